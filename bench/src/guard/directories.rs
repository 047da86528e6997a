//! The guard's cost beside 10,000 log files in 2,000 directories, all of which it watches.
//!
//! The guard watches up to 4,096 log files and 1,024 directories per database, so there are
//! [`DATABASES`] databases: processes that hold the newest log of each of their directories open,
//! append to one after the other, and now and then begin the next. The guard identifies them by
//! their processes alone. Invariant: the guard's ticks report, before and after the count, that it
//! watches every file and leaves none out. Fails otherwise.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::processor_time::percent_within;
use super::watcher::{GuardUsage, RunningGuard, WatchedLogs};
use crate::BenchRun;
use crate::data::{MIB, make_sparse, open as open_to_read, read_through};
use crate::peers::this_program;
use crate::report::FigureUnit;
use crate::rounds::SubjectSamples;
use crate::running::RunningChild;

/// Databases.
const DATABASES: u64 = 4;
/// Directories per database.
const DIRECTORIES_PER_DATABASE: u64 = 500;
/// Log files per directory.
const LOGS_PER_DIRECTORY: u64 = 5;
/// Bytes of a log at the beginning.
const INITIAL_LOG_BYTES: u64 = 16 << 10;
/// All log files.
const LOG_FILES: u64 = DATABASES * DIRECTORIES_PER_DATABASE * LOGS_PER_DIRECTORY;
/// Bytes of an append, and the pause between two appends of a database.
const APPEND_BYTES: usize = 16 << 10;
const DATABASE_APPEND_PAUSE: Duration = Duration::from_millis(100);
/// Appends after which a directory gets its next log: one log in two seconds, in all databases
/// together.
const APPENDS_PER_LOG: usize = 80;
/// The longest time until the guard has found them all.
const DISCOVERY_WAIT_MAX: Duration = Duration::from_secs(120);

const WRITER_READY: &str = "ready";

/// The task of a database's process.
#[derive(Debug, clap::Args)]
pub(crate) struct WriterArguments {
    /// Its directories are in this one.
    dir: PathBuf,
}

/// Writes logs as a database process until it is killed.
pub(crate) fn write_logs(arguments: &WriterArguments) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("can't be tied to the parent's life")?;
    let directories: Vec<PathBuf> =
        (0..DIRECTORIES_PER_DATABASE).map(|number| arguments.dir.join(number.to_string())).collect();
    let mut logs: Vec<(File, u64)> = directories
        .iter()
        .map(|directory| Ok((open(directory, LOGS_PER_DIRECTORY)?, LOGS_PER_DIRECTORY)))
        .collect::<Result<_>>()?;
    println!("{WRITER_READY}");
    let block = [b'y'; APPEND_BYTES];
    for append in 1.. {
        let at = append % logs.len();
        if append.is_multiple_of(APPENDS_PER_LOG) {
            let next = logs[at].1 + 1;
            logs[at] = (open(&directories[at], next)?, next);
        }
        logs[at].0.write_all(&block).context("can't append to a log")?;
        std::thread::sleep(DATABASE_APPEND_PAUSE);
    }
    Ok(())
}

/// Returns a log's name.
fn name(number: u64) -> String {
    format!("binlog.{number:06}")
}

/// Creates log files and their index. The files are holes whose pages are cached and clean, so they
/// cost no disk space.
fn make(directory: &Path, files: u64) -> Result<()> {
    std::fs::create_dir_all(directory).context("can't make the directory of log files")?;
    let mut index = String::new();
    for number in 1..=files {
        let path = directory.join(name(number));
        make_sparse(&path, INITIAL_LOG_BYTES)?;
        read_through(&open_to_read(&path)?, 0..INITIAL_LOG_BYTES)?;
        writeln!(index, "{}", path.display())?;
    }
    std::fs::write(directory.join("binlog.index"), index).context("can't make the index")
}

/// Opens a log to append to, and creates it if it is missing.
fn open(directory: &Path, number: u64) -> Result<File> {
    let path = directory.join(name(number));
    let log = OpenOptions::new().append(true).create(true).open(&path);
    log.with_context(|| format!("can't open {}", path.display()))
}

/// A database's process, which ends with its handle.
struct WriterProcess(RunningChild);

impl WriterProcess {
    /// Starts the process and returns once it has its logs open.
    fn start(directory: &Path) -> Result<Self> {
        let child = this_program()?
            .arg("guard-writer")
            .arg(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("can't start this program again")?;
        let mut writer = Self(child.into());
        let mut said = String::new();
        let stdout = writer.0.stdout.take().context("it has no output")?;
        BufReader::new(stdout).read_line(&mut said).context("can't read what a database says")?;
        ensure!(said.trim_end() == WRITER_READY, "a database ended before it had its logs open");
        Ok(writer)
    }
}

/// The guard's cost.
struct GuardCost {
    whole: GuardUsage,
    /// Percent of a core once all files are found: while the guard still lowers the sampling rate
    /// of idle logs, and after that.
    first: f64,
    steady: f64,
    /// Seconds until all were found.
    found: f64,
    watched: WatchedLogs,
}

/// Measures the cost and adds rows.
pub(super) fn run(run: &mut BenchRun) -> Result<()> {
    let directories = DATABASES * DIRECTORIES_PER_DATABASE;
    run.say(&format!("{LOG_FILES} log files in {directories} directories"))?;
    let home = run.scratch.path().join("directories");
    for writer in 0..DATABASES {
        for number in 0..DIRECTORIES_PER_DATABASE {
            make(&home.join(writer.to_string()).join(number.to_string()), LOGS_PER_DIRECTORY)?;
        }
        run.stop.check()?;
    }
    let writers: Vec<WriterProcess> = (0..DATABASES)
        .map(|writer| WriterProcess::start(&home.join(writer.to_string())))
        .collect::<Result<_>>()?;
    let cost = watch(run, &writers)?;
    drop(writers);
    run.note(&format!(
        "guard_2k: {DATABASES} processes, {directories} directories; the guard's last tick has {} log files watched and {} left out",
        cost.watched.files, cost.watched.left_out
    ));
    let mut add = |case: &str, unit, subject, value| {
        run.report.add_case(case, unit, &[SubjectSamples { subject, values: vec![value] }]);
    };
    add(
        "guard_2k_directories_cpu_percent",
        FigureUnit::PercentOfCore,
        "with its start",
        cost.whole.cpu_percent,
    );
    add(
        "guard_2k_directories_cpu_percent",
        FigureUnit::PercentOfCore,
        "in the first minute (quick: 3 s)",
        cost.first,
    );
    add("guard_2k_directories_cpu_percent", FigureUnit::PercentOfCore, "after that", cost.steady);
    add("guard_2k_directories_memory_mib", FigureUnit::Mib, "at most", cost.whole.memory_bytes / MIB as f64);
    add(
        "guard_2k_directories: until all are watched",
        FigureUnit::Milliseconds,
        "the guard",
        cost.found * 1e3,
    );
    run.report.ratios.insert("guard_2k_directories_cpu_percent", cost.steady);
    std::fs::remove_dir_all(&home).context("can't remove the log files")
}

fn watch(run: &BenchRun, writers: &[WriterProcess]) -> Result<GuardCost> {
    let (settle, window) = if run.quick { (3, 10) } else { (60, 60) };
    let mut arguments = vec!["--profile".to_owned(), "generic".to_owned()];
    for writer in writers {
        arguments.extend(["--pid".to_owned(), writer.0.id().to_string()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let began = Instant::now();
    let guard = RunningGuard::start(&run.pagekeeper, &arguments)?;
    while !guard.watched().is_some_and(is_all) {
        if began.elapsed() > DISCOVERY_WAIT_MAX {
            bail!(
                "after {DISCOVERY_WAIT_MAX:?} the guard's last tick has {:?} of {LOG_FILES} log files",
                guard.watched()
            );
        }
        run.stop.sleep(Duration::from_millis(100))?;
    }
    let found = began.elapsed().as_secs_f64();
    let first = percent_within(run, &guard, settle)?;
    let steady = percent_within(run, &guard, window)?;
    let watched = guard.watched().context("the guard has made no tick")?;
    ensure!(is_all(watched), "the guard's last tick has {watched:?} of {LOG_FILES} log files");
    Ok(GuardCost { whole: guard.stop()?, first, steady, found, watched })
}

/// Whether the guard watches all files; newer logs come on top.
fn is_all(watched: WatchedLogs) -> bool {
    watched.files >= LOG_FILES && watched.left_out == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_watched_only_if_none_is_left_out() {
        assert_eq!(LOG_FILES, 10_000);
        assert!(is_all(WatchedLogs { files: LOG_FILES + 3, left_out: 0 }));
        assert!(!is_all(WatchedLogs { files: LOG_FILES - 1, left_out: 0 }));
        assert!(!is_all(WatchedLogs { files: LOG_FILES, left_out: 1 }));
    }
}
