//! Threads that commit changes of random pages, again and again, and what is common to all who keep pages.
//!
//! Invariants: a commit reads each of its pages, changes a part of it and is durable when it returns; what was acknowledged
//! is in the ledger. Pages are drawn alike for all subjects, distinct within a commit, and given in ascending order.
//! Fails with the first thread's error, at which all end.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::CHECK_EVERY;
use super::content::{self, Ledger};
use crate::rounds::Random;
use crate::scratch::Stop;

/// How pages are made to hold values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Values there are, from page 0 on.
    pub(super) pages: u64,
    /// Bytes of memory for a cache, where the subject has one of its own.
    pub(super) memory: u64,
}

/// What changes a value, given which page it is of.
pub(super) type Change<'a> = dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a;

/// What checks a value, given which page it is of.
pub(super) type Check<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

/// One that keeps pages durably. Dropped, it is closed.
pub(super) trait Pages: Send + Sync {
    /// Makes all pages of an empty one, as [`content::fresh`] has them; in any order, and durable.
    fn fill(&self) -> Result<()>;

    /// What one thread commits with.
    fn committer(&self) -> Result<Box<dyn Committer + '_>>;

    /// What one thread reads with.
    fn reader(&self) -> Result<Box<dyn Reader + '_>>;

    /// Waits until nothing is left to be done in the background.
    fn settle(&self) -> Result<()>;

    /// Shows the values of these pages.
    fn check(&self, pages: std::ops::Range<u64>, see: &mut Check<'_>) -> Result<()>;
}

/// One thread's way to commit.
pub(super) trait Committer {
    /// Has all of `pages` changed in one commit, which is durable when this returns.
    fn commit(&mut self, pages: &[u64], change: &mut Change<'_>) -> Result<()>;
}

/// One thread's way to read.
pub(super) trait Reader {
    /// Begins to read, shows the values of all of `pages` as they were at one time, and ends.
    fn read(&mut self, pages: &[u64], see: &mut Check<'_>) -> Result<()>;
}

/// A kind of those: its name, and how one is made, or opened again, in a directory.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) open: fn(&Path, Room) -> Result<Box<dyn Pages>>,
}

/// What is committed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Load {
    /// Threads that commit.
    pub(super) threads: usize,
    /// Pages of each commit.
    pub(super) pages: usize,
    /// Seed of the choice of pages.
    pub(super) seed: u64,
}

/// What is called when each commit has ended: how long it took.
pub(super) trait Record: Send {
    fn record(&mut self, took: Duration);
}

/// Where threads start together, and learn that it is over.
pub(super) struct Gate {
    start: Barrier,
    over: AtomicBool,
    /// When the first one went on.
    began: OnceLock<Instant>,
}

impl Gate {
    /// Waits until all are there.
    pub(super) fn pass(&self) {
        self.start.wait();
        self.began.get_or_init(Instant::now);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

/// Lets threads work, each of which passes the gate, until `meanwhile` ends; or until one fails, which `meanwhile` is informed of. Gives what
/// each came to, and for how long they worked: from when the first one went on, since where there are more threads than
/// processors the caller may go on much later, to the end of `meanwhile`.
pub(super) fn work_while<R: Send>(
    load: Load,
    work: impl Fn(&Gate, Random) -> Result<R> + Sync,
    meanwhile: impl FnOnce(&AtomicBool) -> Result<()>,
) -> Result<(Vec<R>, Duration)> {
    let start = Barrier::new(load.threads + 1);
    let gate = Gate { start, over: AtomicBool::new(false), began: OnceLock::new() };
    let (gate, work) = (&gate, &work);
    let mut seeds = Random::new(load.seed);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..load.threads)
            .map(|_| {
                let random = Random::new(seeds.next_u64());
                scope.spawn(move || {
                    work(gate, random).inspect_err(|_| gate.over.store(true, Ordering::Relaxed))
                })
            })
            .collect();
        gate.start.wait();
        let result = meanwhile(&gate.over);
        gate.over.store(true, Ordering::Relaxed);
        let ended = Instant::now();
        let joined: Result<Vec<R>> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect();
        let joined = result.and(joined)?;
        let began = *gate.began.get().context("no thread")?;
        Ok((joined, ended - began))
    })
}

/// Waits for as long as `window`, if nobody fails.
pub(super) fn wait(window: Duration, over: &AtomicBool, stop: &Stop) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < window && !over.load(Ordering::Relaxed) {
        stop.sleep(window.saturating_sub(began.elapsed()).min(CHECK_EVERY))?;
    }
    Ok(())
}

/// Lets all threads commit for as long as `meanwhile` runs; gives what they recorded, and how long that was. A commit that ends later is
/// not recorded.
pub(super) fn commit_while<R: Record>(
    subject: &dyn Pages,
    ledger: &Ledger,
    load: Load,
    recorder: impl Fn() -> R + Sync,
    meanwhile: impl FnOnce(&AtomicBool) -> Result<()>,
) -> Result<(Vec<R>, Duration)> {
    let work = |gate: &Gate, random: Random| {
        let (committer, record) = (subject.committer(), recorder());
        gate.pass();
        commit_until(gate, &mut *committer?, ledger, load.pages, random, record)
    };
    work_while(load, work, meanwhile)
}

fn commit_until<R: Record>(
    gate: &Gate,
    committer: &mut dyn Committer,
    ledger: &Ledger,
    each: usize,
    mut random: Random,
    mut record: R,
) -> Result<R> {
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
        // Before anything else is done: the time is over then.
        let is_in_time = !gate.is_over();
        for (page, count) in pages.iter().zip(&counts) {
            ledger.acknowledge(*page, *count);
        }
        if is_in_time {
            record.record(took);
        }
    }
    Ok(record)
}

/// Draws `each` distinct pages, ascending; there must be as many.
pub(super) fn draw(random: &mut Random, of: u64, each: usize, pages: &mut Vec<u64>) {
    pages.clear();
    while pages.len() < each {
        let page = random.below(of);
        if let Err(place) = pages.binary_search(&page) {
            pages.insert(place, page);
        }
    }
}

/// Opens what `kind` has left in a directory, and checks all pages.
pub(super) fn verify(kind: Kind, dir: &Path, room: Room, ledger: &Ledger) -> Result<()> {
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
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    });
    checked.into_iter().collect::<Result<()>>().with_context(|| format!("{} opened again", kind.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_commit_are_distinct_and_in_order() {
        let mut random = Random::new(5);
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
