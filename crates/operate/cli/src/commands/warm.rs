//! `pagekeeper warm`: reads files into the page cache, whole, in part, as recorded in a snapshot,
//! or as a service's last start read them ([`restart`]).
//!
//! Several small files are read at once, large ones one after another by several threads each.
//! Fails path by path, and also ends with 1 if the user may not see a file's figures. A change
//! since the snapshot is reported, but is not a failure. SIGINT and SIGTERM end the reading with a
//! report of the loaded bytes; with `--lock` they end the lock.

mod item;
mod report;
mod restart;
mod work;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use clap::{Args as _, FromArgMatches as _};
use pagekeeper_guard::Selector;
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::pressure::{MemoryCgroup, SysRoots};
use pagekeeper_kernel::{WarmOptions, WarmTurns};
use pagekeeper_observe::saved_pages::{RECORDING_DIRECTORY, RecordingName, Recordings};
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_streams::PacedTurns;
use pagekeeper_text::{ByteSize, escaped};

use crate::arguments::{PaceArgs, parse_time};
use crate::devices::MountedDevices;
use crate::output::{self, UsageError};
use crate::part::{FilePart, parse_part, range_meant_by};
use crate::paths::TreeArgs;
use crate::problems::{self, Problems};
use crate::signals::Stop;
use item::{WantedPages, WarmItem};
use report::WarmOutcome;
use restart::Learning;
use work::WarmRun;

/// Read files into the page cache, or restore a snapshot's pages
#[derive(Debug, clap::Args)]
#[command(mut_arg("pace", |pace| pace.alias("rate")), after_help = crate::help::of!("warm"))]
pub(crate) struct WarmArgs {
    #[command(flatten)]
    tree: TreeArgs,
    /// Only this part of each file: A..B, A.. or ..B, in sizes like 64M, or in percent of the file
    /// like ..90%
    #[arg(long, value_name = "RANGE", value_parser = parse_part, default_value = "..", hide_default_value = true)]
    range: FilePart,
    /// Restore the pages of a snapshot, most recently used files first
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath,
          conflicts_with_all = ["paths", "command", "dir", "files_from", "include", "exclude", "follow", "one_file_system"])]
    from: Option<PathBuf>,
    /// Become the command behind "--", load what its last start under NAME read ahead of it, and
    /// record what this start reads; as root
    #[arg(long, value_name = "NAME", help_heading = "Restarts", requires = "start",
          conflicts_with_all = ["paths", "from", "learned", "dir", "files_from", "include", "exclude", "follow", "one_file_system", "range",
                                "jobs", "pace", "lock", "verbose", "json"])]
    learn: Option<RecordingName>,
    /// Load what the last start under NAME read
    #[arg(long, value_name = "NAME", help_heading = "Restarts",
          conflicts_with_all = ["paths", "command", "dir", "from", "files_from", "include", "exclude", "follow", "one_file_system", "jobs",
                                "pace"])]
    learned: Option<RecordingName>,
    /// With --learn: the next start of this systemd unit, instead of a command
    #[arg(long, value_name = "UNIT", requires = "learn", group = "start", help_heading = "Restarts",
          value_parser = |unit: &str| format!("unit:{unit}").parse::<Selector>())]
    unit: Option<Selector>,
    /// The longest start that --learn records, from its first process on; otherwise it ends once
    /// the command reads next to nothing for 5 seconds
    #[arg(long, value_name = "TIME", requires = "learn", help_heading = "Restarts", default_value = "5m",
          value_parser = |text: &str| parse_time(text, Duration::from_secs(1)))]
    duration: Duration,
    /// Directory of the recordings
    #[arg(long, value_name = "DIR", help_heading = "Restarts", default_value = RECORDING_DIRECTORY,
          value_hint = clap::ValueHint::DirPath)]
    recordings: PathBuf,
    /// Number of threads that read in parallel
    #[arg(short, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    jobs: u16,
    #[command(flatten)]
    pace: PaceArgs,
    /// Lock the pages in memory, and stay until Ctrl-C or SIGTERM
    #[arg(long)]
    lock: bool,
    /// Report every file
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON object with all figures in bytes
    #[arg(long)]
    json: bool,
    /// With --learn: the command and its arguments; otherwise more PATHs
    #[arg(last = true, value_name = "COMMAND", group = "start")]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: &WarmArgs) -> anyhow::Result<ExitCode> {
    let recordings = Recordings::new(&args.recordings);
    if let Some(name) = &args.learn {
        let learning = Learning { name, recordings, is_unit: args.unit.is_some(), duration: args.duration };
        return match &args.unit {
            Some(unit) => learning.of_unit(unit.clone()),
            None => Ok(learning.become_command(&args.command)),
        };
    }
    let start = Instant::now();
    let stop = Stop::on_signals()?;
    let (problems, mounted) = (Problems::default(), MountedDevices::default());
    let mut options = WarmOptions { width: usize::from(args.jobs), ..WarmOptions::default() };
    let mut pace = args.pace.pace;
    let items = match (&args.from, &args.learned) {
        (Some(snapshot), _) => item::saved(snapshot, args.range)?,
        (None, Some(name)) => {
            let Some((recording, wide)) = restart::learned(&recordings, name)? else {
                return Ok(ExitCode::SUCCESS);
            };
            (options, pace) = (wide, StreamPace::Off);
            item::recorded(recording, args.range)
        }
        (None, None) => listed(args, &stop, &problems, &mounted)?,
    };
    // A snapshot may claim any sizes.
    let total = items.iter().map(|item| item.bytes).fold(0, u64::saturating_add);
    if args.lock {
        let group = MemoryCgroup::of(&SysRoots::default(), std::process::id()).ok().flatten();
        if let Some(warning) = group.and_then(|group| too_much_to_lock(total, &group)) {
            output::complain(warning);
        }
    }
    let turns = (pace != StreamPace::Off).then(|| Arc::new(PacedTurns::new(pace)));
    options.turns = turns.clone().map(|turns| turns as Arc<dyn WarmTurns>);
    let bar = output::progress_bar(total, "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} {wide_msg}");
    let run = WarmRun {
        options: &options,
        turns,
        stop: &stop,
        problems,
        bar: &bar,
        lock: args.lock,
        keep_all: args.json || args.verbose,
        results: Mutex::default(),
    };
    run.run(&items);
    bar.finish_and_clear();
    let (report, locks) = run.into_report(start.elapsed());

    output::show(args.json, || &report, |out| report::write(&report, args.verbose, out))?;
    problems::report(&report.errors, args.json);
    if !args.json && report.total.unknown_files > 0 {
        let files = output::files(report.total.unknown_files);
        problems::report_unknown(format_args!("which pages of {files} are resident"));
    }
    mounted.report("these alone were read, and no file of it");
    if !locks.is_empty() && !stop.requested() {
        if !args.json {
            output::complain("the locked pages stay in memory until this process ends: Ctrl-C or SIGTERM");
        }
        while !stop.wait(Duration::from_secs(3600))? {}
    }
    let WarmOutcome { errors, total, .. } = report;
    Ok(output::code(errors.is_empty() && !total.cancelled && total.unknown_files == 0))
}

/// Returns a warning if this many bytes would exceed the limit of the memory cgroup when they are
/// locked: the kernel kills processes beyond the limit without a message.
fn too_much_to_lock(bytes: u64, group: &MemoryCgroup) -> Option<String> {
    let limit = group.effective_limit?;
    (bytes > group.room()?).then(|| {
        format!(
            "{} are to be locked, and the memory cgroup of this process may have {} ({}): unless others pay for their \
             pages, the kernel will kill this process; lock less, or raise memory.max (version 1: \
             memory.limit_in_bytes)",
            ByteSize(bytes),
            ByteSize(limit),
            escaped(&group.directory)
        )
    })
}

/// Returns the arguments with the words behind "--" as paths, which may begin with a dash.
fn with_paths(tree: &TreeArgs, words: &[OsString]) -> anyhow::Result<TreeArgs> {
    let mut tree = tree.clone();
    if words.iter().any(|word| word.is_empty()) {
        return Err(UsageError("a PATH is empty".to_owned()).into());
    }
    if !words.is_empty() {
        let command = TreeArgs::augment_args(clap::Command::new("warm").no_binary_name(true));
        let paths = tree.paths().iter().map(OsString::from);
        let all = ["--".into()].into_iter().chain(paths).chain(words.iter().cloned());
        tree.update_from_arg_matches(&command.try_get_matches_from(all)?)?;
    }
    Ok(tree)
}

/// Returns the files of the named trees; only their names are kept, since there may be more of them
/// than file descriptors.
fn listed(
    args: &WarmArgs,
    stop: &Stop,
    problems: &Problems,
    mounted: &MountedDevices,
) -> anyhow::Result<Vec<WarmItem>> {
    let tree = with_paths(&args.tree, &args.command)?;
    if let Some(error) = tree.paths().iter().find_map(|path| range_as_path(path)) {
        return Err(error.into());
    }
    let tree = tree.tree()?.with_devices(&tree);
    let found = Mutex::new(Vec::new());
    tree.walk_until(&|| stop.requested(), None, &|visited| match visited
        .and_then(|file| mounted.has(&file).map(|_| file))
    {
        Ok(file) => {
            let range = args.range.of(file.size());
            let bytes = range.end.min(file.size()).saturating_sub(range.start);
            let item = WarmItem {
                path: file.path().to_path_buf(),
                bytes,
                wanted: WantedPages::Range { range, inode: file.inode() },
            };
            lock(&found).push(item);
        }
        Err(error) => problems.note(&error),
    });
    let mut items = ignore_poison(found.into_inner());
    // Small files first: several are read at the same time.
    items.sort_by(|a, b| (!a.is_small(), &a.path).cmp(&(!b.is_small(), &b.path)));
    Ok(items)
}

/// Returns the error for a path that is not a path, but a part of each file without its option.
fn range_as_path(path: &Path) -> Option<UsageError> {
    let range = range_meant_by(path.to_str()?)?;
    path.symlink_metadata().is_err().then(|| {
        UsageError(format!("\"{}\" is no file: for a part of each file, give --range {range}", escaped(path)))
    })
}

/// Returns a file's name for the bar: short, and safe on a terminal.
fn bar_name(path: &Path) -> String {
    escaped(path.file_name().map_or(path, Path::new)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locking_more_than_the_cgroups_limit_is_warned_about() {
        const GIB: u64 = 1 << 30;
        let group = |usage, file, effective_limit| MemoryCgroup {
            version: pagekeeper_kernel::pressure::CgroupVersion::V2,
            directory: "/sys/fs/cgroup/db".into(),
            usage,
            limit: effective_limit,
            effective_limit,
            file,
            shmem: None,
            dirty: None,
            writeback: None,
            inactive_file: 0,
            active_file: 0,
            file_refaults: None,
            limited_by: None,
            events: pagekeeper_kernel::pressure::MemoryEvents::default(),
        };
        let warning = too_much_to_lock(2 * GIB, &group(0, 0, Some(GIB))).unwrap();
        assert!(
            warning.contains("2 GiB are to be locked") && warning.contains("may have 1 GiB"),
            "{warning}"
        );
        assert!(too_much_to_lock(GIB / 2, &group(GIB, GIB / 4, Some(GIB))).is_some(), "its other memory");
        assert_eq!(too_much_to_lock(GIB / 2, &group(GIB, GIB, Some(GIB))), None, "the page cache can go");
        assert_eq!(too_much_to_lock(2 * GIB, &group(0, 0, None)), None);
    }

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        args: WarmArgs,
    }

    #[test]
    fn a_command_may_have_empty_arguments_and_options() {
        let parsed = |arguments: &[&str]| {
            <Alone as clap::Parser>::try_parse_from(["warm"].iter().chain(arguments)).map(|alone| alone.args)
        };
        let words = ["redis-server", "--save", "", "--", "-x"];
        let args = parsed(&[&["--learn", "redis", "--"][..], &words].concat()).unwrap();
        assert_eq!(args.command, words);
        assert!(parsed(&["--learn", "redis", "--unit", "redis.service"]).unwrap().command.is_empty());
        for wrong in [
            &["--learn", "redis"][..],
            &["--learn", "redis", "redis-server"],
            &["--learn", "redis", "path", "--", "redis-server"],
            &["--learn", "redis", "--unit", "redis.service", "--", "redis-server"],
            &["--unit", "redis.service"],
            &["--learned", "redis", "--", "path"],
            &["--from", "snapshot", "--", "path"],
        ] {
            parsed(wrong).unwrap_err();
        }
        // Without --learn they are paths.
        let args = parsed(&["--exclude", "*.x", "one", "--", "-two", "--lock"]).unwrap();
        let tree = with_paths(&args.tree, &args.command).unwrap();
        assert_eq!(tree.paths(), ["one", "-two", "--lock"].map(PathBuf::from));
        assert!(format!("{tree:?}").contains("*.x"), "its options stay");
        assert!(with_paths(&args.tree, &["".into()]).is_err(), "no path is empty");
    }

    #[test]
    fn rate_is_another_name_of_pace() {
        let pace = |arguments: &[&str]| {
            let all = ["warm"].iter().chain(arguments).chain(&["file"]);
            <Alone as clap::Parser>::try_parse_from(all).map(|alone| alone.args.pace.pace)
        };
        assert_eq!(pace(&[]).ok(), Some(StreamPace::Auto));
        for option in ["--pace", "--rate"] {
            assert_eq!(pace(&[option, "200M/s"]).ok(), Some(StreamPace::BytesPerSecond(200 << 20)));
            assert!(pace(&[option, "0"]).unwrap_err().to_string().contains("\"0\" is not a pace"));
        }
    }
}
