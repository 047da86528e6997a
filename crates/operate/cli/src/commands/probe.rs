//! `pagekeeper probe`: measures the disk and the file system of a directory, and reports the
//! results.
//!
//! If a measurement is impossible, that is reported before anything is written, and the command
//! ends with 1. It also ends with 1 on SIGINT and SIGTERM, and leaves no files behind. The paths of
//! `--output` and `--save` are tested before the measurements, which take a minute.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use indicatif::ProgressBar;
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_probe::{MIN_FILE_BYTES, Probe, ProbeProgress};
use pagekeeper_text::{ByteSize, escaped, parse_size};

use crate::arguments::{DirArg, PaceArgs};
use crate::output::{self, UsageError, wait_while_frozen};
use crate::signals::Stop;

/// Measure a disk and its file system: direct I/O, syncs, reads
///
/// Takes about a minute and keeps the disk busy. It writes to unnamed files in DIR, which disappear
/// when it exits, however it exits. It touches nothing else and changes no setting of the machine.
#[derive(Debug, clap::Args)]
#[command(mut_arg("place", |place| place.help("A directory on the disk, in which files may be created")),
          after_help = crate::help::of!("probe"))]
pub(crate) struct ProbeArgs {
    #[command(flatten)]
    dir: DirArg,
    /// Print one JSON object with all figures: bytes, microseconds, rates a second
    #[arg(long)]
    json: bool,
    /// Take about ten seconds, on a file of 256 MiB; less exact
    #[arg(long)]
    quick: bool,
    /// Write the profile to FILE, as TOML
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Save the profile in /var/lib/pagekeeper/disks, where doctor and guard find it
    #[arg(long)]
    save: bool,
    /// Size of the file for random reads and writes; larger than the disk's cache [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = parse_file_size)]
    size: Option<u64>,
    #[command(flatten)]
    pace: PaceArgs,
}

/// Refuses a pace that no measurement can keep.
fn require_full_speed(pace: StreamPace) -> Result<(), UsageError> {
    match pace {
        StreamPace::Auto | StreamPace::Off => Ok(()),
        StreamPace::Idle | StreamPace::BytesPerSecond(_) => Err(UsageError(
            "a measurement takes all that the disk gives, and can't keep to this pace: give --pace auto or off, and \
             run it while the disk is idle"
                .to_owned(),
        )),
    }
}

fn parse_file_size(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes < MIN_FILE_BYTES {
        return Err(format!("less than {} says more of caches than of the disk", ByteSize(MIN_FILE_BYTES)));
    }
    Ok(bytes)
}

/// Runs the command.
pub(crate) fn run(args: &ProbeArgs) -> anyhow::Result<ExitCode> {
    require_full_speed(args.pace.pace)?;
    let dir = args.dir.path();
    let disks = args.save.then(|| Path::new(pagekeeper_catalog::disks::PROFILE_DIRECTORY));
    [Some(dir), args.output.as_deref(), disks].into_iter().flatten().for_each(wait_while_frozen);
    let stop = Stop::on_signals()?;
    if let Some(path) = &args.output {
        try_to_write(parent(path))?;
    }
    if let Some(disks) = disks {
        std::fs::create_dir_all(disks).with_context(|| format!("make {}", escaped(disks)))?;
        try_to_write(disks)?;
    }
    let bar = output::progress_bar(1000, "{bar:30} {percent} % {wide_msg}");
    let show = |progress: &ProbeProgress| show(&bar, progress);
    let mut probe = Probe::new(dir).pace(args.pace.pace);
    if args.quick {
        probe = probe.quick();
    }
    if let Some(size) = args.size {
        probe = probe.file_bytes(size);
    }
    let measured = probe.cancel(stop.flag()).on_progress(&show).run();
    bar.finish_and_clear();
    let report = match measured {
        Ok(report) => report,
        Err(error) if error.is_cancelled() => {
            output::complain(format_args!("interrupted; nothing stays behind in {}", escaped(dir)));
            return Ok(ExitCode::FAILURE);
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(path) = &args.output {
        pagekeeper_catalog::disks::write(&report.profile, path)?;
    }
    let saved = args.save.then(|| pagekeeper_catalog::disks::save(&report.profile, dir)).transpose()?;
    output::show(
        args.json,
        || &report,
        |out| {
            write!(out, "{report}")?;
            let kept = saved.as_deref().or(args.output.as_deref());
            kept.map_or(Ok(()), |path| writeln!(out, "\nThe profile is in {}.", escaped(path)))
        },
    )?;
    Ok(ExitCode::SUCCESS)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Fails if no file can be made in the directory.
fn try_to_write(directory: &Path) -> anyhow::Result<()> {
    tempfile::tempfile_in(directory)
        .with_context(|| format!("no file can be made in {}", escaped(directory)))?;
    Ok(())
}

fn show(bar: &ProgressBar, progress: &ProbeProgress) {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to 1000")]
    bar.set_position((progress.done * 1000.0) as u64);
    match progress.part {
        Some(part) => bar.set_message(part.to_string()),
        None => bar.set_message("writing the file that is measured on"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_a_minimum() {
        assert_eq!(parse_file_size("1G"), Ok(1 << 30));
        assert_eq!(parse_file_size("64M"), Ok(64 << 20));
        assert!(parse_file_size("1M").unwrap_err().contains("64 MiB"));
        assert!(parse_file_size("big").unwrap_err().contains("not a size"));
    }

    #[test]
    fn the_directory_of_a_bare_name_is_this_one() {
        assert_eq!(parent(Path::new("disk.toml")), Path::new("."));
        assert_eq!(parent(Path::new("/etc/disk.toml")), Path::new("/etc"));
    }
}
