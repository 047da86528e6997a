//! `close`: how long it takes to let go of a file of which 524,288 pages are cached, while other threads go on reading
//! another one.
//!
//! Every sample begins with the file wholly cached, and ends with proof that it is gone while the other is still right. Of
//! ours, pages are held through guards meanwhile, whose bytes are compared after the close.
//! Fails where a page stays, or a byte is wrong.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pagekeeper_kernel::{Advice, advise};

use crate::Run;
use crate::data::{GIB, MIB, open, read_through, require_resident, resident};
use crate::hit::caches::{Cache, FileIn, QuickCache};
use crate::hit::plain::Pread;
use crate::hit::reader::{Load, PAGE, Reader, SEED, reading};
use crate::hit::{affordable, note_missing, note_version};
use crate::pattern;
use crate::report::Unit;
use crate::rounds::{Random, Samples, Subject};

/// Bytes of the file that goes on being read.
const OTHER: u64 = 64 * MIB;
/// How many threads read it.
const READERS: usize = 2;
/// How long they have read it before the close, and go on after it.
const PAUSE: Duration = Duration::from_millis(50);

/// The files of a run.
struct Files<'a> {
    closed: &'a Path,
    other: &'a Path,
    pages: u64,
}

/// Runs it.
pub(crate) fn run(run: &mut Run) -> Result<()> {
    // At most: the kernel's page cache, a subject, and what the allocator kept of the one before.
    let size = affordable(run, 2 * GIB, 4)?;
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
    Ok(())
}

fn measure(run: &mut Run, files: &Files<'_>) -> Result<Vec<Samples>> {
    let mut seeds = Random::new(run.random.next_u64());
    let mut subjects = Vec::new();
    subjects.push(forget::<QuickCache>(files, seeds.next_u64()));
    note_version(run, "quick_cache");
    if run.quick {
        run.note("left out of a quick run: moka, foyer and RocksDB");
    } else {
        #[cfg(feature = "moka")]
        {
            note_version(run, "moka");
            subjects.push(forget::<crate::hit::caches::Moka>(files, seeds.next_u64()));
        }
        #[cfg(feature = "foyer")]
        {
            note_version(run, "foyer-memory");
            subjects.push(forget::<crate::hit::caches::Foyer>(files, seeds.next_u64()));
        }
        #[cfg(feature = "rocksdb")]
        {
            use crate::hit::rocksdb;
            run.report.machine.versions.insert("rocksdb".to_owned(), rocksdb::version());
            subjects.push(forget::<rocksdb::Lru>(files, seeds.next_u64()));
            subjects.push(forget::<rocksdb::HyperClock>(files, seeds.next_u64()));
        }
        note_missing(run);
    }
    let seed = seeds.next_u64();
    subjects.push(Subject::new("posix_fadvise(DONTNEED)", move || drop_pages(files, seed)));
    run.rounds(&mut subjects, 42)
}

/// Times `close` while other threads read the other file.
fn while_reading<R: Reader>(other: &R, seed: u64, close: impl FnOnce() -> Result<()>) -> Result<f64> {
    let load = Load { pages: OTHER / PAGE as u64, stride: 1, len: 500 };
    reading(other, load, READERS, seed, |count| {
        std::thread::sleep(PAUSE);
        let began = Instant::now();
        close()?;
        let took = began.elapsed();
        let then = count();
        std::thread::sleep(PAUSE);
        ensure!(count() > then, "the others stopped reading");
        Ok(took.as_secs_f64() * 1e6)
    })
}

/// A cache that knows of no files: each page is taken out by its key.
fn forget<'a, C: Cache + 'a>(files: &'a Files<'_>, seed: u64) -> Subject<'a> {
    let mut seeds = Random::new(seed);
    Subject::new(C::NAME, move || {
        let cache = Arc::new(C::with_room_for(files.pages + OTHER / PAGE as u64)?);
        let other = FileIn::fill(&cache, 2, OTHER / PAGE as u64)?;
        let closed = FileIn::fill(&cache, 1, files.pages)?;
        let took = while_reading(&other, seeds.next_u64(), || {
            (0..files.pages).for_each(|page| cache.remove(closed.key(page)));
            cache.settle();
            Ok(())
        })?;
        let stays = (0..files.pages).find(|&page| closed.read(page, 0, &mut [0; 8]));
        ensure!(stays.is_none(), "page {stays:?} is still there");
        Ok(took)
    })
}

/// The kernel's page cache, told to let go of a clean file.
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
