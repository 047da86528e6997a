//! The victim: a log to which 4 KiB are appended about each millisecond, never synced.
//!
//! Each append is one write(2) into the page cache, which would return at once if nobody else wrote. Only the call is
//! timed, not the wait until it was due.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::pattern;

const BYTES: usize = 4096;
const EVERY: Duration = Duration::from_millis(1);

/// An append: its start in seconds since the first one, and its duration in microseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Append {
    pub(super) at: f64,
    pub(super) us: f64,
}

/// Appends until it is asked to stop.
pub(super) fn append_until(stop: &AtomicBool, path: &Path, seed: u64) -> Result<Vec<Append>> {
    let mut file = OpenOptions::new()
        .append(true)
        .create_new(true)
        .open(path)
        .with_context(|| format!("can't make {}", path.display()))?;
    let mut appends = Vec::new();
    let mut bytes = [0; BYTES];
    let first = Instant::now();
    let mut due = first;
    while !stop.load(Ordering::Relaxed) {
        pattern::fill(seed, (appends.len() * BYTES) as u64, &mut bytes);
        let began = Instant::now();
        file.write_all(&bytes).with_context(|| format!("can't append to {}", path.display()))?;
        let us = began.elapsed().as_secs_f64() * 1e6;
        appends.push(Append { at: began.duration_since(first).as_secs_f64(), us });
        // Delays by a stall are not caught up, because a burst would be another load.
        due = (due + EVERY).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    check(path, seed, appends.len() * BYTES)?;
    Ok(appends)
}

/// Fails unless the file has this many bytes of the pattern.
fn check(path: &Path, seed: u64, len: usize) -> Result<()> {
    let found = std::fs::read(path).with_context(|| format!("can't read {}", path.display()))?;
    ensure!(found.len() == len, "{} has {} bytes instead of {len}", path.display(), found.len());
    pattern::check(seed, 0, &found).with_context(|| path.display().to_string())
}

/// Makes all writes to the file system durable, so that the next sample begins with nothing dirty.
pub(crate) fn settle(directory: &Path) -> Result<()> {
    let open = File::open(directory).with_context(|| format!("can't open {}", directory.display()))?;
    rustix::fs::syncfs(&open).with_context(|| format!("can't sync {}", directory.display()))
}

/// The percentiles of a sample's times, in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Latency {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) longest: f64,
}

impl Latency {
    /// Returns the percentiles of appends.
    pub(super) fn of(appends: &[Append]) -> Self {
        Self::of_times(appends.iter().map(|append| append.us))
    }

    /// Returns the percentiles of times in microseconds; all are 0 without times. A percentile is the smallest time
    /// that this share of times does not exceed.
    pub(crate) fn of_times(us: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = us.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let of = |per_mille: usize| {
            let rank = (sorted.len() * per_mille).div_ceil(1000).max(1);
            sorted.get(rank - 1).copied().unwrap_or(0.0)
        };
        Self { p50: of(500), p99: of(990), p999: of(999), longest: of(1000) }
    }
}

/// Returns the longest append of each of `parts` equal parts of the time. A part without any waits for the append
/// before it, whose duration it takes.
pub(super) fn longest_of_parts(appends: &[Append], seconds: f64, parts: usize) -> Vec<f64> {
    let mut longest = vec![0.0_f64; parts];
    for append in appends {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small number, not negative"
        )]
        let part = (append.at / seconds * parts as f64) as usize;
        if let Some(longest) = longest.get_mut(part) {
            *longest = longest.max(append.us);
        }
    }
    let mut before = 0.0;
    for part in &mut longest {
        if *part == 0.0 {
            *part = before;
        }
        before = *part;
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(us: impl IntoIterator<Item = f64>) -> Vec<Append> {
        us.into_iter().enumerate().map(|(number, us)| Append { at: number as f64 / 1000.0, us }).collect()
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let latency = Latency::of(&of((1..=2000).map(f64::from)));
        assert_eq!(latency, Latency { p50: 1000.0, p99: 1980.0, p999: 1998.0, longest: 2000.0 });
        assert_eq!(Latency::of(&of([7.0])), Latency { p50: 7.0, p99: 7.0, p999: 7.0, longest: 7.0 });
    }

    #[test]
    fn each_part_has_its_longest() {
        let appends = of([1.0, 5.0, 2.0, 9.0, 3.0, 4.0]);
        assert_eq!(longest_of_parts(&appends, 0.006, 3), [5.0, 9.0, 4.0]);
        // A stall from the second millisecond on fills the time in which nothing could begin.
        let stalled =
            [Append { at: 0.0, us: 1.0 }, Append { at: 0.001, us: 4000.0 }, Append { at: 0.0055, us: 1.0 }];
        assert_eq!(longest_of_parts(&stalled, 0.006, 6), [1.0, 4000.0, 4000.0, 4000.0, 4000.0, 1.0]);
    }

    #[test]
    fn appends_are_checked() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = directory.path().join("log");
        let stop = AtomicBool::new(false);
        let appends = std::thread::scope(|scope| {
            let appender = scope.spawn(|| append_until(&stop, &path, 7));
            while path.metadata().map_or(0, |found| found.len()) < 3 * BYTES as u64 {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            appender.join().unwrap().unwrap()
        });
        assert!(appends.len() >= 3);
        assert!(check(&path, 8, appends.len() * BYTES).is_err());
        assert!(check(&path, 7, BYTES).is_err());
        settle(directory.path()).unwrap();
    }
}
