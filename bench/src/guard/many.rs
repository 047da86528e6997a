//! The guard's cost beside a directory of 10,000 log files, of which one is written and followed by the next.
//!
//! These are more files than the guard watches in one database; a note reports how many it watches. Fails where the
//! guard does.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::watcher::{Used, Watched, Watcher};
use crate::Run;
use crate::data::{MIB, make_sparse, open, read_through};
use crate::report::Unit;
use crate::rounds::Samples;

const FILES: u64 = 10_000;
const FILE_BYTES: u64 = 16 << 10;

/// Measures the cost and adds rows.
pub(super) fn run(run: &mut Run) -> Result<()> {
    let (settle, window) = if run.quick { (2, 5) } else { (3, 30) };
    run.say(&format!("{FILES} log files"))?;
    let directory = run.scratch.path().join("many");
    make(&directory, FILES)?;
    let done = AtomicBool::new(false);
    let (whole, steady, watched) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&directory, &done));
        let measured = watch(run, &directory, settle, window);
        done.store(true, Ordering::Relaxed);
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written.context("can't write the log")?;
        measured
    })?;
    run.note(&format!(
        "guard_10k: one directory is one database, of which the guard watches so many log files and leaves so many out, by its last tick: {} and {}",
        watched.files, watched.left_out
    ));
    let mut add = |case: &str, unit, subject, value| {
        run.report.add_case(case, unit, &[Samples { subject, values: vec![value] }]);
    };
    add("guard_10k_cpu_percent", Unit::PercentOfCore, "with its start", whole.cpu_percent);
    add("guard_10k_cpu_percent", Unit::PercentOfCore, "after its start", steady);
    add("guard_10k_memory_mib", Unit::Mib, "at most", whole.memory_bytes / MIB as f64);
    std::fs::remove_dir_all(&directory).context("can't remove the log files")
}

/// Returns the guard's total use, its CPU percentage in a window after it has settled, and the files it watches. Both
/// times are in seconds.
fn watch(run: &Run, directory: &Path, settle: u64, window: u64) -> Result<(Used, f64, Watched)> {
    let shown = directory.to_string_lossy();
    let guard = Watcher::start(&run.pagekeeper, &["--dir", &shown, "--profile", "generic"])?;
    run.stop.sleep(Duration::from_secs(settle))?;
    let steady = percent_within(run, &guard, window)?;
    let watched = guard.watched().context("the guard has made no tick")?;
    Ok((guard.stop()?, steady, watched))
}

/// Returns a guard's CPU percentage in a window of this many seconds, from now on.
pub(super) fn percent_within(run: &Run, guard: &Watcher, window: u64) -> Result<f64> {
    let (before, began) = (cpu_seconds(guard.pid())?, Instant::now());
    run.stop.sleep(Duration::from_secs(window))?;
    Ok((cpu_seconds(guard.pid())? - before) / began.elapsed().as_secs_f64() * 100.0)
}

/// Returns a log's name.
pub(super) fn name(number: u64) -> String {
    format!("binlog.{number:06}")
}

/// Creates log files and their index. The files are holes whose pages are cached and clean, so they cost no disk space.
pub(super) fn make(directory: &Path, files: u64) -> Result<()> {
    std::fs::create_dir_all(directory).context("can't make the directory of log files")?;
    let mut index = String::new();
    for number in 1..=files {
        let path = directory.join(name(number));
        make_sparse(&path, FILE_BYTES)?;
        read_through(&open(&path)?, 0..FILE_BYTES)?;
        writeln!(index, "{}", path.display())?;
    }
    std::fs::write(directory.join("binlog.index"), index).context("can't make the index")
}

/// Appends 64 KiB ten times a second, with a new file every two seconds.
fn write_on(directory: &Path, done: &AtomicBool) -> std::io::Result<()> {
    let block = vec![b'y'; 64 << 10];
    let mut number = FILES;
    while !done.load(Ordering::Relaxed) {
        number += 1;
        let mut file = File::create(directory.join(name(number)))?;
        for _ in 0..20 {
            file.write_all(&block)?;
            std::thread::sleep(Duration::from_millis(100));
            if done.load(Ordering::Relaxed) {
                break;
            }
        }
    }
    Ok(())
}

/// Returns the CPU time of a process in seconds: the sum over its threads in nanoseconds
/// (`/proc/PID/task/TID/schedstat`). Falls back to `utime` and `stime` of `proc_pid_stat(5)`, with 0.01 s resolution,
/// where a thread has ended or the kernel keeps no such account.
pub(super) fn cpu_seconds(pid: u32) -> Result<f64> {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/stat")).context("can't see what the guard uses")?;
    let ticks = cpu_ticks(&text).with_context(|| format!("not a stat file: {text}"))?;
    let of_all = ticks as f64 / 100.0;
    // A thread may end while they are read.
    let of_threads = (0..3).find_map(|_| cpu_of_threads(pid));
    Ok(of_threads.map_or(of_all, |of_threads| of_threads.max(of_all)))
}

/// Returns the CPU time of a process's current threads, in seconds.
fn cpu_of_threads(pid: u32) -> Option<f64> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        sum += nanoseconds(&std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?)?;
    }
    Some(sum as f64 / 1e9)
}

/// Returns the time on a processor, the first figure of `schedstat`.
fn nanoseconds(schedstat: &str) -> Option<u64> {
    schedstat.split_whitespace().next()?.parse().ok()
}

fn cpu_ticks(stat: &str) -> Option<u64> {
    // The name before may contain any character.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_whatever_the_name() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 30 12 13 14 20 0 1 0";
        assert_eq!(cpu_ticks(stat), Some(42));
        let own = std::process::id();
        assert!(cpu_seconds(own).is_ok());
        assert_eq!(nanoseconds("168335 60333 1\n"), Some(168_335));
        // Another test's thread may end meanwhile.
        let seen = (0..100).find_map(|_| cpu_of_threads(own));
        assert_eq!(seen.is_some(), std::path::Path::new("/proc/self/schedstat").exists());
    }
}
