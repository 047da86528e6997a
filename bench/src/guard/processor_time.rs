//! The processor time of a process.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::watcher::RunningGuard;
use crate::BenchRun;

/// Returns a guard's CPU percentage in a window of this many seconds, from now on.
pub(super) fn percent_within(run: &BenchRun, guard: &RunningGuard, window: u64) -> Result<f64> {
    let (before, began) = (cpu_seconds(guard.pid())?, Instant::now());
    run.stop.sleep(Duration::from_secs(window))?;
    Ok((cpu_seconds(guard.pid())? - before) / began.elapsed().as_secs_f64() * 100.0)
}

/// Returns the CPU time of a process in seconds: the sum over its threads in nanoseconds
/// (`/proc/PID/task/TID/schedstat`). Falls back to `utime` and `stime` of `proc_pid_stat(5)`, with
/// 0.01 s resolution, where a thread has ended or the kernel keeps no such account.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/stat")).context("can't see what a process uses")?;
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
    fn cpu_time_is_read_for_any_process_name() {
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
