//! `close`: the time to close a file with 524,288 cached pages while other threads read another file.
//!
//! Every sample begins with the file fully cached, and ends with proof that it is gone while the other file is still
//! correct. In our cache, guards hold pages of the closed file meanwhile, and their bytes are compared after the close.
//! Fails where a page stays or a byte is wrong.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagekeeper_cache::{CachedFile, PageCache};
use pagekeeper_kernel::{Advice, advise};

use crate::Run;
use crate::data::{GIB, MIB, open, read_through, require_resident, resident};
use crate::drive::join;
use crate::hit::ours::{cache_for, load};
use crate::hit::plain::Pread;
use crate::hit::reader::{Load, PAGE, Reader, SEED, reading};
use crate::hit::{OURS, affordable};
use crate::pattern;
use crate::report::Unit;
use crate::rounds::{Random, Samples, median};

const FADVISE: &str = "posix_fadvise(DONTNEED)";
const LIMIT: &str = "the limit: a flag, and a list under a lock";
/// Bytes of the file that stays open.
const OTHER: u64 = 64 * MIB;
/// Number of threads that read it.
const READERS: usize = 2;
/// The time they read before the close.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest time they may take to go on after the close.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pages of the closed file that one thread holds.
const HELD: u64 = 64;

/// The files of a run.
struct Files<'a> {
    closed: &'a Path,
    other: &'a Path,
    pages: u64,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    // Two copies, the kernel's page cache and ours, and what the allocator keeps.
    let size = affordable(run, 2 * GIB, 3)?;
    run.scratch.require_space(size + OTHER)?;
    let (closed, other) = (run.scratch.path().join("closed"), run.scratch.path().join("other"));
    let files = Files { closed: &closed, other: &other, pages: size / PAGE as u64 };
    run.say("writing the files")?;
    pattern::make_file(&closed, size, SEED)?;
    pattern::make_file(&other, OTHER, SEED)?;
    let case = format!("closing a file with {} cached pages", files.pages);
    run.say(&case)?;
    let samples = measure(run, &files)?;
    run.report.add_case(&case, Unit::Microseconds, &samples);
    if let Some(took) = samples.first().and_then(|ours| median(&ours.values)) {
        run.report.ratios.insert("close_us", took);
        run.report.add_ratio("close_vs_limit", Unit::Microseconds, &samples, OURS, LIMIT);
    }
    Ok(())
}

fn measure(run: &mut Run, files: &Files<'_>) -> Result<Vec<Samples>> {
    let cache = cache_for((files.pages * PAGE as u64) + OTHER)?;
    let other = load(&cache, files.other, OTHER)?;
    let seed = run.random.next_u64();
    let names = [OURS, FADVISE, LIMIT];
    let measured = run.measure(&names, run.plan(42), |turn| {
        let seed = Random::new(seed ^ turn.round as u64).next_u64();
        match names[turn.subject] {
            FADVISE => drop_pages(files, seed),
            LIMIT => least(files, seed),
            _ => close_ours(files, &cache, &other, seed),
        }
    })?;
    Ok(measured.figure(|us| *us))
}

/// Times `close` while other threads read the other file.
fn while_reading<R: Reader>(other: &R, seed: u64, close: impl FnOnce() -> Result<()>) -> Result<f64> {
    let load = Load { pages: OTHER / PAGE as u64, stride: 1, len: 500 };
    reading(other, load, READERS, seed, |count| {
        std::thread::sleep(PAUSE);
        let began = Instant::now();
        close()?;
        let took = began.elapsed();
        let (then, patience) = (count(), Instant::now() + PATIENCE);
        while count() == then && Instant::now() < patience {
            std::thread::sleep(PAUSE);
        }
        ensure!(count() > then, "the others stopped reading");
        Ok(took.as_secs_f64() * 1e6)
    })
}

/// Closes a file while pages of it are held: many by guards owned by another thread, one by a borrowed guard. The next
/// sample loads the file into the frames that this one freed.
fn close_ours(files: &Files<'_>, cache: &PageCache, other: &CachedFile, seed: u64) -> Result<f64> {
    let closed = load(cache, files.closed, files.pages * PAGE as u64)?;
    // The main thread and the two threads that hold pages.
    let (held, over) = (Barrier::new(3), Barrier::new(3));
    let took = std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let numbers = (0..HELD).map(|index| index * (files.pages / HELD));
            let pages: Result<Vec<_>> = numbers.map(|page| Ok((page, closed.page_ref(page)?))).collect();
            held.wait();
            over.wait();
            pages?.iter().try_for_each(|(number, page)| pattern::check(SEED, number * PAGE as u64, page))
        });
        let borrower = scope.spawn(|| {
            let number = files.pages - 1;
            let page = closed.page(number);
            held.wait();
            over.wait();
            pattern::check(SEED, number * PAGE as u64, &page?)
        });
        held.wait();
        let took = while_reading(other, seed, || {
            closed.close();
            Ok(())
        });
        over.wait();
        for holder in [owner, borrower] {
            join(holder).context("a held page")?;
        }
        took
    })?;
    ensure!(closed.read_at(0, &mut [0; 8]).is_err(), "a closed file can be read");
    ensure!(closed.page(files.pages / 2).is_err(), "a page of a closed file can be read");
    Ok(took)
}

/// Asks the kernel to drop the page cache of a clean file.
fn drop_pages(files: &Files<'_>, seed: u64) -> Result<f64> {
    let size = files.pages * PAGE as u64;
    let closed = open(files.closed)?;
    read_through(&closed, 0..size)?;
    require_resident(resident(files.closed)?, size)?;
    read_through(&open(files.other)?, 0..OTHER)?;
    let other = Pread(File::open(files.other).context("can't open the other file")?);
    let took =
        while_reading(&other, seed, || Ok(advise(&closed, Advice::DontNeed, 0..u64::MAX, files.closed)?))?;
    let left = resident(files.closed)?;
    ensure!(left <= size / 50, "{left} bytes are still resident");
    Ok(took)
}

/// The least that any cache must do to close a file at once: set a flag in the file, and record its pages as free under
/// a lock. Memory and code were in the processor's caches when the file was opened and no longer are.
struct Least {
    open: CacheLine<AtomicU64>,
    closed: CacheLine<Mutex<Vec<Arc<u64>>>>,
}

#[repr(align(64))]
struct CacheLine<T>(T);

impl Least {
    #[inline(never)]
    fn close(&self, file: &Arc<u64>) {
        if self.open.0.swap(0, Ordering::SeqCst) != 0 {
            self.closed.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(Arc::clone(file));
        }
    }
}

fn least(files: &Files<'_>, seed: u64) -> Result<f64> {
    let other = Pread(File::open(files.other).context("can't open the other file")?);
    let least = Box::new(Least {
        open: CacheLine(AtomicU64::new(files.pages)),
        closed: CacheLine(Mutex::new(Vec::with_capacity(64))),
    });
    let file = Arc::new(files.pages);
    let took = while_reading(&other, seed, || {
        least.close(&file);
        Ok(())
    })?;
    ensure!(Arc::strong_count(&file) == 2, "the file was not noted");
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_close_that_fails_ends_the_sample_and_the_readers() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("other");
        pattern::make_file(&path, OTHER, SEED).unwrap();
        let other = Pread(File::open(&path).unwrap());
        let error = while_reading(&other, 1, || anyhow::bail!("it stays")).unwrap_err();
        assert_eq!(error.to_string(), "it stays");
    }
}
