//! `pagekeeper size`: how much page cache a database needs, by the hit ratio that it would have
//! with more and with less.
//!
//! It only observes. SIGINT and SIGTERM end the watch early, and the report covers the time until
//! then. Where accesses can't be seen the command says why in one line and ends with 1. A picture
//! replaces its file at once: the target is checked before the watch, and no link is followed.

mod plot;
mod report;

use std::fs::Permissions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use pagekeeper_observe::size::{SizeScope, measure};
use pagekeeper_text::{escaped, parse_period};

use crate::arguments::DirArgs;
use crate::output::{self, UsageError, code};
use crate::signals::Stop;
use report::SizeOutput;

/// Find how much memory a database needs
///
/// Watches the accesses of processes, of a memory cgroup or to a directory, simulates the kernel's
/// page cache at other sizes, and reports the hit ratio and the reads at each.
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "pagekeeper size [OPTIONS] --pid PID | --cgroup PATH | DIR...",
    mut_arg("dirs", |dirs| dirs.help("Watch the files in and below this directory; may be given several times")),
    after_help = crate::help::of!("size")
)]
pub(crate) struct SizeArgs {
    #[command(flatten)]
    dirs: DirArgs,
    /// Watch this process and its children; may be given several times
    #[arg(long, value_name = "PID", conflicts_with_all = ["dirs", "dir"])]
    pid: Vec<u32>,
    /// Watch the processes of this memory cgroup: its directory, or its path from the root
    #[arg(long, value_name = "PATH", conflicts_with_all = ["dirs", "dir", "pid"], value_hint = clap::ValueHint::DirPath)]
    cgroup: Option<PathBuf>,
    /// How long to watch
    #[arg(long, value_name = "TIME", value_parser = parse_period, default_value = "2m")]
    duration: Duration,
    /// Draw the curve into this file, which is replaced
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    plot: Option<PathBuf>,
    /// Print one JSON object with all figures, in bytes and seconds
    #[arg(long)]
    json: bool,
}

impl SizeArgs {
    fn scope(&self) -> Result<SizeScope, UsageError> {
        let directories = self.dirs.all();
        match (&self.cgroup, self.pid.is_empty(), directories.is_empty()) {
            (Some(path), ..) => Ok(SizeScope::Cgroup(path.clone())),
            (None, false, _) => Ok(SizeScope::Processes(self.pid.clone())),
            (None, true, false) => Ok(SizeScope::Directories(directories)),
            (None, true, true) => Err(UsageError("give --pid, --cgroup or a directory".to_owned())),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &SizeArgs) -> anyhow::Result<ExitCode> {
    let scope = args.scope()?;
    if let Some(path) = &args.plot {
        check_target(path)?;
    }
    let stop = Stop::on_signals().context("catch signals")?;
    let report = measure(&scope, args.duration, &|time| stop.wait(time).unwrap_or(true))?;
    let output = SizeOutput::new(&report);
    output::show(args.json, || &output, |out| output.write(out))?;
    if let Some(path) = &args.plot {
        replace(path, plot::svg(&output).as_bytes()).with_context(|| cannot_write(path))?;
    }
    Ok(code(true))
}

/// Fails if a picture can't be written there.
fn check_target(path: &Path) -> anyhow::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => anyhow::bail!("{}: it is not a regular file", cannot_write(path)),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context(cannot_write(path)),
        _ => {}
    }
    temporary_beside(path).map(drop).with_context(|| cannot_write(path))
}

fn cannot_write(path: &Path) -> String {
    format!("can't write {}", escaped(path))
}

/// Makes a file with a name of its own in the same directory; it is removed when dropped.
fn temporary_beside(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    // The umask restricts this further.
    let permissions = Permissions::from_mode(0o666);
    tempfile::Builder::new().prefix(".pagekeeper-").permissions(permissions).tempfile_in(parent)
}

/// Replaces a file, or a link, by one with this content.
fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut temporary = temporary_beside(path)?;
    temporary.write_all(content)?;
    temporary.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_replaces_regular_files_only() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for target in [at("new.svg"), at("old.svg")] {
            check_target(&target).unwrap();
            replace(&target, b"one").unwrap();
            replace(&target, b"two").unwrap();
            assert_eq!(std::fs::read(&target).unwrap(), b"two");
        }
        std::os::unix::fs::symlink(at("new.svg"), at("link")).unwrap();
        for target in [at("link"), directory.path().to_path_buf(), "/dev/null".into()] {
            let refused = check_target(&target).unwrap_err();
            assert!(refused.to_string().ends_with("it is not a regular file"), "{refused}");
        }
        assert!(check_target(&at("no/such.svg")).is_err());
        // One that came since then is not followed, and no other file is left.
        replace(&at("link"), b"three").unwrap();
        assert_eq!(std::fs::read(at("new.svg")).unwrap(), b"two");
        assert!(std::fs::symlink_metadata(at("link")).unwrap().is_file());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 3);
    }
}
