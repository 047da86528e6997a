//! The guard's cost beside 10,000 log files in 2,000 directories, all of which it watches.
//!
//! The guard watches up to 4,096 log files and 1,024 directories per database, so there are [`WRITERS`] databases:
//! processes that hold the newest log of each of their directories open, append to one after the other, and now and
//! then begin the next. The guard identifies them by their processes alone. Invariant: the guard's ticks report, before
//! and after the count, that it watches every file and leaves none out. Fails otherwise.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::processor_time::percent_within;
use super::watcher::{Used, Watched, Watcher};
use crate::Run;
use crate::data::{MIB, make_sparse, open as open_to_read, read_through};
use crate::peers::this_program;
use crate::report::Unit;
use crate::rounds::Samples;
use crate::running::Running;

/// Databases.
const WRITERS: u64 = 4;
/// Directories per database.
const DIRECTORIES: u64 = 500;
/// Log files per directory.
const LOGS: u64 = 5;
/// Bytes of a log at the beginning.
const FILE_BYTES: u64 = 16 << 10;
/// All log files.
const FILES: u64 = WRITERS * DIRECTORIES * LOGS;
/// Bytes of an append, and the pause between two appends of a database.
const APPEND: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(100);
/// Appends after which a directory gets its next log: one log in two seconds, in all databases together.
const APPENDS_OF_A_LOG: usize = 80;
/// The longest time until the guard has found them all.
const FOUND: Duration = Duration::from_secs(120);

const READY: &str = "ready";

/// The task of a database's process.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Its directories are in this one.
    dir: PathBuf,
}

/// Writes logs as a database process until it is killed.
pub(crate) fn write_logs(arguments: &Arguments) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("can't be tied to the parent's life")?;
    let directories: Vec<PathBuf> =
        (0..DIRECTORIES).map(|number| arguments.dir.join(number.to_string())).collect();
    let mut logs: Vec<(File, u64)> =
        directories.iter().map(|directory| Ok((open(directory, LOGS)?, LOGS))).collect::<Result<_>>()?;
    println!("{READY}");
    let block = [b'y'; APPEND];
    for append in 1.. {
        let at = append % logs.len();
        if append.is_multiple_of(APPENDS_OF_A_LOG) {
            let next = logs[at].1 + 1;
            logs[at] = (open(&directories[at], next)?, next);
        }
        logs[at].0.write_all(&block).context("can't append to a log")?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Returns a log's name.
fn name(number: u64) -> String {
    format!("binlog.{number:06}")
}

/// Creates log files and their index. The files are holes whose pages are cached and clean, so they cost no disk space.
fn make(directory: &Path, files: u64) -> Result<()> {
    std::fs::create_dir_all(directory).context("can't make the directory of log files")?;
    let mut index = String::new();
    for number in 1..=files {
        let path = directory.join(name(number));
        make_sparse(&path, FILE_BYTES)?;
        read_through(&open_to_read(&path)?, 0..FILE_BYTES)?;
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
struct Writer(Running);

impl Writer {
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
        ensure!(said.trim_end() == READY, "a database ended before it had its logs open");
        Ok(writer)
    }
}

/// The guard's cost.
struct Cost {
    whole: Used,
    /// Percent of a core once all files are found: while the guard still lowers the sampling rate of idle logs, and
    /// after that.
    first: f64,
    steady: f64,
    /// Seconds until all were found.
    found: f64,
    watched: Watched,
}

/// Measures the cost and adds rows.
pub(super) fn run(run: &mut Run) -> Result<()> {
    let directories = WRITERS * DIRECTORIES;
    run.say(&format!("{FILES} log files in {directories} directories"))?;
    let home = run.scratch.path().join("directories");
    for writer in 0..WRITERS {
        for number in 0..DIRECTORIES {
            make(&home.join(writer.to_string()).join(number.to_string()), LOGS)?;
        }
        run.stop.check()?;
    }
    let writers: Vec<Writer> =
        (0..WRITERS).map(|writer| Writer::start(&home.join(writer.to_string()))).collect::<Result<_>>()?;
    let cost = watch(run, &writers)?;
    drop(writers);
    run.note(&format!(
        "guard_2k: {WRITERS} processes, {directories} directories; the guard's last tick has {} log files watched and {} left out",
        cost.watched.files, cost.watched.left_out
    ));
    let mut add = |case: &str, unit, subject, value| {
        run.report.add_case(case, unit, &[Samples { subject, values: vec![value] }]);
    };
    add("guard_2k_directories_cpu_percent", Unit::PercentOfCore, "with its start", cost.whole.cpu_percent);
    add(
        "guard_2k_directories_cpu_percent",
        Unit::PercentOfCore,
        "in the first minute (quick: 3 s)",
        cost.first,
    );
    add("guard_2k_directories_cpu_percent", Unit::PercentOfCore, "after that", cost.steady);
    add("guard_2k_directories_memory_mib", Unit::Mib, "at most", cost.whole.memory_bytes / MIB as f64);
    add("guard_2k_directories: until all are watched", Unit::Milliseconds, "the guard", cost.found * 1e3);
    run.report.ratios.insert("guard_2k_directories_cpu_percent", cost.steady);
    std::fs::remove_dir_all(&home).context("can't remove the log files")
}

fn watch(run: &Run, writers: &[Writer]) -> Result<Cost> {
    let (settle, window) = if run.quick { (3, 10) } else { (60, 60) };
    let mut arguments = vec!["--profile".to_owned(), "generic".to_owned()];
    for writer in writers {
        arguments.extend(["--pid".to_owned(), writer.0.id().to_string()]);
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let began = Instant::now();
    let guard = Watcher::start(&run.pagekeeper, &arguments)?;
    while !guard.watched().is_some_and(is_all) {
        if began.elapsed() > FOUND {
            bail!("after {FOUND:?} the guard's last tick has {:?} of {FILES} log files", guard.watched());
        }
        run.stop.sleep(Duration::from_millis(100))?;
    }
    let found = began.elapsed().as_secs_f64();
    let first = percent_within(run, &guard, settle)?;
    let steady = percent_within(run, &guard, window)?;
    let watched = guard.watched().context("the guard has made no tick")?;
    ensure!(is_all(watched), "the guard's last tick has {watched:?} of {FILES} log files");
    Ok(Cost { whole: guard.stop()?, first, steady, found, watched })
}

/// Whether the guard watches all files; newer logs come on top.
fn is_all(watched: Watched) -> bool {
    watched.files >= FILES && watched.left_out == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_watched_only_if_none_is_left_out() {
        assert_eq!(FILES, 10_000);
        assert!(is_all(Watched { files: FILES + 3, left_out: 0 }));
        assert!(!is_all(Watched { files: FILES - 1, left_out: 0 }));
        assert!(!is_all(Watched { files: FILES, left_out: 1 }));
    }
}
