//! Workers that read in closed loops, all at once for a given time, and their results.
//!
//! Every worker begins once all are ready. The time runs from the first start to the last end; the
//! CPU time is that of the whole process, including the kernel's. The waiting thread does nothing
//! meanwhile. Fails with the first worker's error, which ends all workers.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

use crate::pattern;
use crate::rounds::SplitMix;
use crate::scratch::StopRequest;

/// The workers' results.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DriveResult {
    /// Reads of all workers.
    pub(crate) reads: u64,
    /// Wall time.
    pub(crate) seconds: f64,
    /// CPU time of this process, user and system.
    pub(crate) cpu_seconds: f64,
}

impl DriveResult {
    /// Returns reads per second.
    pub(crate) fn rate(&self) -> f64 {
        self.reads as f64 / self.seconds
    }

    /// Returns the CPU time of a read, in µs.
    pub(crate) fn cpu_us(&self) -> f64 {
        self.cpu_seconds * 1e6 / (self.reads as f64).max(1.0)
    }
}

/// Runs each worker in a loop, at least once, in a thread of its own, until `duration` is over.
///
/// A worker's call does some reads and returns their number. It should take at most a few
/// milliseconds.
pub(crate) fn drive<W>(workers: Vec<W>, duration: Duration, stop: &StopRequest) -> Result<DriveResult>
where
    W: FnMut() -> Result<u64> + Send,
{
    let over = AtomicBool::new(false);
    let start = Barrier::new(workers.len() + 1);
    let cpu_before = cpu_seconds();
    let ended: Vec<Result<(u64, Instant, Instant)>> = std::thread::scope(|scope| {
        let (over, start) = (&over, &start);
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut work| {
                scope.spawn(move || {
                    start.wait();
                    let began = Instant::now();
                    let mut reads = 0;
                    loop {
                        reads += work().inspect_err(|_| over.store(true, Ordering::Relaxed))?;
                        if over.load(Ordering::Relaxed) {
                            return Ok((reads, began, Instant::now()));
                        }
                    }
                })
            })
            .collect();
        start.wait();
        let until = Instant::now() + duration;
        while !over.load(Ordering::Relaxed) && stop.check().is_ok() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
        over.store(true, Ordering::Relaxed);
        threads.into_iter().map(join).collect()
    });
    let cpu_seconds = cpu_seconds() - cpu_before;
    stop.check()?;
    let ended: Vec<(u64, Instant, Instant)> = ended.into_iter().collect::<Result<_>>()?;
    let began = ended.iter().map(|(_, began, _)| *began).min();
    let last = ended.iter().map(|(_, _, last)| *last).max();
    let seconds = began.zip(last).map_or(0.0, |(began, last)| (last - began).as_secs_f64());
    Ok(DriveResult { reads: ended.iter().map(|(reads, ..)| reads).sum(), seconds, cpu_seconds })
}

/// Waits for a thread, and panics as it did.
pub(crate) fn join<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns the CPU time of this process so far.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Bytes of a page.
pub(crate) const FILE_PAGE_BYTES: u64 = 4096;

/// Returns a random offset for a read of `bytes` bytes (at most a page) in the first `pages` pages.
/// It starts at a word and lies within one page.
#[inline]
pub(crate) fn place(random: &mut SplitMix, pages: u64, bytes: usize) -> u64 {
    let word = pattern::WORD_BYTES as u64;
    random.below(pages) * FILE_PAGE_BYTES + random.below((FILE_PAGE_BYTES - bytes as u64) / word + 1) * word
}

/// Checks reads of a file made by [`pattern::make_file`]: the first and the last whole word of each
/// read, and all bytes of every sixty-fourth. No word occurs twice in such a file, so a wrong page
/// is always detected.
#[derive(Debug)]
pub(crate) struct ReadChecker {
    seed: u64,
    seen: u64,
}

impl ReadChecker {
    const FULL_CHECK_ONE_IN: u64 = 64;

    /// Creates a judge for a file of this seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, seen: 0 }
    }

    /// Fails unless `bytes` can be the file's content at `offset`.
    #[inline]
    pub(crate) fn check(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.seen += 1;
        if !self.seen.is_multiple_of(Self::FULL_CHECK_ONE_IN) && self.ends_are_right(offset, bytes) {
            return Ok(());
        }
        // This also names the wrong byte.
        pattern::check(self.seed, offset, bytes)
    }

    /// Whether the first and the last whole word are correct.
    fn ends_are_right(&self, offset: u64, bytes: &[u8]) -> bool {
        let word = pattern::WORD_BYTES as u64;
        let first = offset.next_multiple_of(word);
        let last = ((offset + bytes.len() as u64) / word).saturating_sub(1) * word;
        [first, last].into_iter().all(|at| {
            at.checked_sub(offset)
                .and_then(|start| usize::try_from(start).ok())
                .and_then(|start| bytes.get(start..)?.first_chunk())
                .is_some_and(|found| u64::from_le_bytes(*found) == pattern::word(self.seed, at / word))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn all_workers_work_and_are_counted() {
        let calls: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
        let workers = calls.iter().map(|count| {
            || {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(5)
            }
        });
        let driven = drive(workers.collect(), Duration::from_millis(30), &StopRequest::never()).unwrap();
        let calls: Vec<u64> = calls.into_iter().map(AtomicU64::into_inner).collect();
        assert!(calls.iter().all(|&calls| calls > 0));
        assert_eq!(driven.reads, 5 * calls.iter().sum::<u64>());
        assert!(driven.seconds > 0.0 && driven.cpu_seconds > 0.0);
        assert!((driven.rate() - driven.reads as f64 / driven.seconds).abs() < 1.0);
    }

    #[test]
    fn places_are_all_words_from_which_a_read_stays_in_its_page() {
        let mut random = SplitMix::new(1);
        let mut places: Vec<u64> = (0..1000).map(|_| place(&mut random, 3, 4076)).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places, [0, 8, 16, 4096, 4104, 4112, 8192, 8200, 8208]);
        assert_eq!(place(&mut random, 1, 4096), 0);
    }

    #[test]
    fn an_error_ends_all() {
        let workers = (0..4).map(|index| {
            move || {
                anyhow::ensure!(index != 2, "wrong bytes");
                Ok(1)
            }
        });
        // Far longer than the test takes: only the error ends it.
        let error = drive(workers.collect(), Duration::from_secs(3600), &StopRequest::never()).unwrap_err();
        assert_eq!(error.to_string(), "wrong bytes");
    }

    #[test]
    fn a_page_in_the_wrong_place_is_seen_at_once() {
        let (mut bytes, mut judge) = ([0; 500], ReadChecker::new(7));
        for offset in 4096..4104 {
            pattern::fill(7, offset, &mut bytes);
            for _ in 0..65 {
                judge.check(offset, &bytes).unwrap();
            }
            assert!(ReadChecker::new(7).check(offset + 4096, &bytes).is_err());
            assert!(ReadChecker::new(8).check(offset, &bytes).is_err());
        }
    }
}
