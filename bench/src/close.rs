//! `close`: the time to close a file with 524,288 cached pages while other threads read another
//! file.
//!
//! Every sample begins with the file fully cached, and ends with proof that it is gone while the
//! other file is still correct. In our cache, guards hold pages of the closed file meanwhile, and
//! their bytes are compared after the close. Fails where a page stays or a byte is wrong.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagekeeper_cache::{CachedFile, PageCache, PageNo};
use pagekeeper_kernel::{Advice, advise};

use crate::BenchRun;
use crate::data::{GIB, MIB, open, read_through, require_resident, resident};
use crate::drive::join;
use crate::hit::ours::{cache_for, load};
use crate::hit::plain::PreadFile;
use crate::hit::reader::{FILE_SEED, PAGE_BYTES, PageReader, ReadLoad, reading};
use crate::hit::{CACHE_NAME, affordable};
use crate::pattern;
use crate::report::FigureUnit;
use crate::rounds::{SplitMix, SubjectSamples, median};

const FADVISE_NAME: &str = "posix_fadvise(DONTNEED)";
const CLOSE_LIMIT_NAME: &str = "the limit: a flag, and a list under a lock";
/// Bytes of the file that stays open.
const OPEN_FILE_BYTES: u64 = 64 * MIB;
/// Number of threads that read it.
const READER_THREADS: usize = 2;
/// The time they read before the close.
const READ_BEFORE_CLOSE: Duration = Duration::from_millis(50);
/// The longest time they may take to continue after the close.
const READER_WAIT_MAX: Duration = Duration::from_secs(10);

/// Pages of the closed file that one thread holds.
const HELD_PAGES: u64 = 64;

/// The files of a run.
struct CloseFiles<'a> {
    closed: &'a Path,
    other: &'a Path,
    pages: u64,
}

/// Runs the benchmark.
pub(crate) fn run(run: &mut BenchRun) -> Result<()> {
    // Two copies, in the kernel's page cache and in ours, and the allocator's reserve.
    let size = affordable(run, 2 * GIB, 3)?;
    run.scratch.require_space(size + OPEN_FILE_BYTES)?;
    let (closed, other) = (run.scratch.path().join("closed"), run.scratch.path().join("other"));
    let files = CloseFiles { closed: &closed, other: &other, pages: size / PAGE_BYTES as u64 };
    run.say("writing the files")?;
    pattern::make_file(&closed, size, FILE_SEED)?;
    pattern::make_file(&other, OPEN_FILE_BYTES, FILE_SEED)?;
    let case = format!("closing a file with {} cached pages", files.pages);
    run.say(&case)?;
    let samples = measure(run, &files)?;
    run.report.add_case(&case, FigureUnit::Microseconds, &samples);
    if let Some(took) = samples.first().and_then(|ours| median(&ours.values)) {
        run.report.ratios.insert("close_us", took);
        run.report.add_ratio(
            "close_vs_limit",
            FigureUnit::Microseconds,
            &samples,
            CACHE_NAME,
            CLOSE_LIMIT_NAME,
        );
    }
    Ok(())
}

fn measure(run: &mut BenchRun, files: &CloseFiles<'_>) -> Result<Vec<SubjectSamples>> {
    let cache = cache_for((files.pages * PAGE_BYTES as u64) + OPEN_FILE_BYTES)?;
    let other = load(&cache, files.other, OPEN_FILE_BYTES)?;
    let seed = run.random.next_u64();
    let names = [CACHE_NAME, FADVISE_NAME, CLOSE_LIMIT_NAME];
    let measured = run.measure(&names, run.plan(42), |turn| {
        let seed = SplitMix::new(seed ^ turn.round as u64).next_u64();
        match names[turn.subject] {
            FADVISE_NAME => drop_pages(files, seed),
            CLOSE_LIMIT_NAME => least(files, seed),
            _ => close_ours(files, &cache, &other, seed),
        }
    })?;
    Ok(measured.figure(|us| *us))
}

/// Times `close` while other threads read the other file.
fn while_reading<R: PageReader>(other: &R, seed: u64, close: impl FnOnce() -> Result<()>) -> Result<f64> {
    let load = ReadLoad { pages: OPEN_FILE_BYTES / PAGE_BYTES as u64, stride: 1, len: 500 };
    reading(other, load, READER_THREADS, seed, |count| {
        std::thread::sleep(READ_BEFORE_CLOSE);
        let began = Instant::now();
        close()?;
        let took = began.elapsed();
        let (then, patience) = (count(), Instant::now() + READER_WAIT_MAX);
        while count() == then && Instant::now() < patience {
            std::thread::sleep(READ_BEFORE_CLOSE);
        }
        ensure!(count() > then, "the others stopped reading");
        Ok(took.as_secs_f64() * 1e6)
    })
}

/// Closes a file while pages of it are held: many by guards owned by another thread, one by a
/// borrowed guard. The next sample loads the file into the frames that this one freed.
fn close_ours(files: &CloseFiles<'_>, cache: &PageCache, other: &CachedFile, seed: u64) -> Result<f64> {
    let closed = load(cache, files.closed, files.pages * PAGE_BYTES as u64)?;
    // The main thread and the two threads that hold pages.
    let (held, over) = (Barrier::new(3), Barrier::new(3));
    let took = std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let numbers = (0..HELD_PAGES).map(|index| index * (files.pages / HELD_PAGES));
            let pages: Result<Vec<_>> =
                numbers.map(|page| Ok((page, closed.page_ref(PageNo::new(page))?))).collect();
            held.wait();
            over.wait();
            pages?
                .iter()
                .try_for_each(|(number, page)| pattern::check(FILE_SEED, number * PAGE_BYTES as u64, page))
        });
        let borrower = scope.spawn(|| {
            let number = files.pages - 1;
            let page = closed.page(PageNo::new(number));
            held.wait();
            over.wait();
            pattern::check(FILE_SEED, number * PAGE_BYTES as u64, &page?)
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
    ensure!(closed.page(PageNo::new(files.pages / 2)).is_err(), "a page of a closed file can be read");
    Ok(took)
}

/// Asks the kernel to drop the page cache of a clean file.
fn drop_pages(files: &CloseFiles<'_>, seed: u64) -> Result<f64> {
    let size = files.pages * PAGE_BYTES as u64;
    let closed = open(files.closed)?;
    read_through(&closed, 0..size)?;
    require_resident(resident(files.closed)?, size)?;
    read_through(&open(files.other)?, 0..OPEN_FILE_BYTES)?;
    let other = PreadFile(File::open(files.other).context("can't open the other file")?);
    let took =
        while_reading(&other, seed, || Ok(advise(&closed, Advice::DontNeed, 0..u64::MAX, files.closed)?))?;
    let left = resident(files.closed)?;
    ensure!(left <= size / 50, "{left} bytes are still resident");
    Ok(took)
}

/// The minimal work of any cache to close a file immediately: set a flag in the file, and record
/// its pages as free under a lock. Memory and code were in the processor's caches when the file was
/// opened and no longer are.
struct LeastClose {
    open: CacheLine<AtomicU64>,
    closed: CacheLine<Mutex<Vec<Arc<u64>>>>,
}

#[repr(align(64))]
struct CacheLine<T>(T);

impl LeastClose {
    #[inline(never)]
    fn close(&self, file: &Arc<u64>) {
        if self.open.0.swap(0, Ordering::SeqCst) != 0 {
            self.closed.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(Arc::clone(file));
        }
    }
}

fn least(files: &CloseFiles<'_>, seed: u64) -> Result<f64> {
    let other = PreadFile(File::open(files.other).context("can't open the other file")?);
    let least = Box::new(LeastClose {
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
        pattern::make_file(&path, OPEN_FILE_BYTES, FILE_SEED).unwrap();
        let other = PreadFile(File::open(&path).unwrap());
        let error = while_reading(&other, 1, || anyhow::bail!("it stays")).unwrap_err();
        assert_eq!(error.to_string(), "it stays");
    }
}
