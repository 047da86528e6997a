//! Threads that commit changes of random pages in a loop, and the interface of everything that
//! stores pages.
//!
//! Invariants: a commit reads each of its pages, changes a part of it and is durable when it
//! returns; acknowledged changes are in the ledger. Pages are chosen alike for all subjects,
//! distinct within a commit, and in ascending order. Fails with the first thread's error, which
//! ends all threads.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::FAILURE_CHECK_INTERVAL;
use super::content::{self, ChangeLedger};
use crate::drive::join;
use crate::latencies::Latencies;
use crate::rounds::SplitMix;
use crate::scratch::StopRequest;

/// The size of a subject's data and cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoreSize {
    /// Number of values, from page 0 on.
    pub(super) pages: u64,
    /// Bytes of memory for the subject's own cache, if it has one.
    pub(super) memory: u64,
}

/// A function that changes a value, given its page.
pub(super) type PageChange<'a> = dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a;

/// A function that checks a value, given its page.
pub(super) type PageCheck<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

/// A durable store of pages, which is closed when it is dropped.
pub(super) trait PageStore: Send + Sync {
    /// Writes all pages of an empty store durably, in any order, with the values of
    /// [`content::fresh`].
    fn fill(&self) -> Result<()>;

    /// Returns a handle with which one thread commits.
    fn committer(&self) -> Result<Box<dyn StoreCommitter + '_>>;

    /// Waits until no background work is left.
    fn settle(&self) -> Result<()>;

    /// Passes the values of these pages to `see`.
    fn check(&self, pages: std::ops::Range<u64>, see: &mut PageCheck<'_>) -> Result<()>;
}

/// One thread's handle for commits.
pub(super) trait StoreCommitter {
    /// Changes all of `pages` in one commit, which is durable when this returns.
    fn commit(&mut self, pages: &[u64], change: &mut PageChange<'_>) -> Result<()>;
}

/// A kind of store: its name, and how one is created or reopened in a directory.
#[derive(Clone, Copy)]
pub(super) struct StoreKind {
    pub(super) name: &'static str,
    pub(super) open: fn(&Path, StoreSize) -> Result<Box<dyn PageStore>>,
}

/// The load of a sample.
#[derive(Debug, Clone, Copy)]
pub(super) struct CommitLoad {
    /// Threads that commit.
    pub(super) threads: usize,
    /// Pages of each commit.
    pub(super) pages: usize,
    /// Seed of the choice of pages.
    pub(super) seed: u64,
}

/// A gate where threads start together and learn that time is over.
struct StartGate {
    start: Barrier,
    over: AtomicBool,
    /// The time when the first thread continued.
    began: OnceLock<Instant>,
}

impl StartGate {
    /// Waits until all threads are there.
    fn pass(&self) {
        self.start.wait();
        self.began.get_or_init(Instant::now);
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn close(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Waits for `window`, unless a thread fails.
    fn wait(&self, window: Duration, stop: &StopRequest) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < window && !self.is_over() {
            stop.sleep(window.saturating_sub(began.elapsed()).min(FAILURE_CHECK_INTERVAL))?;
        }
        Ok(())
    }
}

/// Commits by all threads for `window`. Returns how long each commit took, and the time of all. A
/// commit that ends later is not recorded. The time starts when the first thread continues, because
/// the caller may continue much later where there are more threads than processors.
pub(super) fn commit_while(
    subject: &dyn PageStore,
    ledger: &ChangeLedger,
    load: CommitLoad,
    window: Duration,
    stop: &StopRequest,
) -> Result<(Latencies, Duration)> {
    let start = Barrier::new(load.threads + 1);
    let gate = &StartGate { start, over: AtomicBool::new(false), began: OnceLock::new() };
    let mut seeds = SplitMix::new(load.seed);
    std::thread::scope(|scope| {
        let thread = |random| {
            move || {
                let committer = subject.committer();
                gate.pass();
                commit_until(gate, &mut *committer?, ledger, load.pages, random).inspect_err(|_| gate.close())
            }
        };
        let threads: Vec<_> =
            (0..load.threads).map(|_| scope.spawn(thread(SplitMix::new(seeds.next_u64())))).collect();
        gate.start.wait();
        let waited = gate.wait(window, stop);
        gate.close();
        let ended = Instant::now();
        let mut took = Latencies::new();
        let joined: Vec<Result<Latencies>> = threads.into_iter().map(join).collect();
        waited?;
        for of_thread in joined {
            took.add(&of_thread?);
        }
        Ok((took, ended - *gate.began.get().context("no thread")?))
    })
}

fn commit_until(
    gate: &StartGate,
    committer: &mut dyn StoreCommitter,
    ledger: &ChangeLedger,
    each: usize,
    mut random: SplitMix,
) -> Result<Latencies> {
    let mut recorded = Latencies::new();
    let mut pages = Vec::with_capacity(each);
    let mut counts = Vec::with_capacity(each);
    while !gate.is_over() {
        draw(&mut random, ledger.pages(), each, &mut pages);
        counts.clear();
        let began = Instant::now();
        committer.commit(&pages, &mut |page, value| {
            counts.push(content::change(page, value)?);
            Ok(())
        })?;
        let took = began.elapsed();
        // Before anything else, because the time may end now.
        let is_in_time = !gate.is_over();
        for (page, count) in pages.iter().zip(&counts) {
            ledger.acknowledge(*page, *count);
        }
        if is_in_time {
            recorded.record(took);
        }
    }
    Ok(recorded)
}

/// Chooses `each` distinct pages in ascending order; `of` must be at least `each`.
fn draw(random: &mut SplitMix, of: u64, each: usize, pages: &mut Vec<u64>) {
    pages.clear();
    while pages.len() < each {
        let page = random.below(of);
        if let Err(place) = pages.binary_search(&page) {
            pages.insert(place, page);
        }
    }
}

/// Opens the store that `kind` has left in a directory, and checks all pages.
pub(super) fn verify(kind: StoreKind, dir: &Path, room: StoreSize, ledger: &ChangeLedger) -> Result<()> {
    const THREADS: u64 = 4;
    let subject = (kind.open)(dir, room)?;
    let share = room.pages.div_ceil(THREADS);
    let check = |thread: u64| {
        let range = thread * share..((thread + 1) * share).min(room.pages);
        let mut next = range.start;
        subject.check(range.clone(), &mut |page, value| {
            anyhow::ensure!(page == next, "page {page} comes where {next} should");
            next += 1;
            ledger.check(page, value)
        })?;
        anyhow::ensure!(next == range.end, "pages from {next} on are missing");
        Ok(())
    };
    let checked: Vec<Result<()>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || check(thread))).collect();
        threads.into_iter().map(join).collect()
    });
    checked.into_iter().collect::<Result<()>>().with_context(|| format!("{} opened again", kind.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_commit_are_distinct_and_in_order() {
        let mut random = SplitMix::new(5);
        let mut pages = Vec::new();
        let mut seen = [false; 20];
        for _ in 0..100 {
            draw(&mut random, 20, 16, &mut pages);
            assert_eq!(pages.len(), 16);
            assert!(pages.is_sorted_by(|a, b| a < b), "{pages:?}");
            for &page in &pages {
                seen[usize::try_from(page).unwrap()] = true;
            }
        }
        assert!(seen.iter().all(|&seen| seen));
    }
}
