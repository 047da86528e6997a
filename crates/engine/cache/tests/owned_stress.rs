//! Writers that rewrite the pages of a file, each its own, and notify the cache, while readers read
//! in every way, on caches so small that nearly every read evicts. Each word of a page holds its
//! number and its version. Once the cache was notified of a version, no read that begins after that
//! returns an older one. None returns a version that was not yet written, and none returns parts of
//! two.
//!
//! Each thread's operations follow from a seed that is printed on failure: `PAGEKEEPER_SEED`
//! repeats it, as far as threads can be repeated. `PAGEKEEPER_STRESS_SECONDS` sets the duration of
//! all tests (5).

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use pagekeeper_cache::{
    CacheOptions, Error, InstallAs, OpenOptions, OwnedFile, PageCache, PageNo, ReadRequest,
};
use pagekeeper_io::{Access, AlignedBuf, Create, Io, IoFile, Threads, WriteMode};
use pagekeeper_simdisk::{RandomFaults, RandomWriteFaults, SimDisk};

use pagekeeper_testing::{Rng, Seed, disk_dir};
use support::tasks::block_on;

/// Bytes of a page.
const PAGE: usize = 4096;

/// Pages at the end of the run; the file begins with half of them and grows.
const FILE_PAGES: u64 = 400;

/// Frames of the cache.
const FRAMES: u32 = 100;

/// Returns the duration of one of the tests here.
fn duration() -> Duration {
    let seconds = std::env::var("PAGEKEEPER_STRESS_SECONDS").ok();
    let seconds =
        seconds.map_or(5.0, |seconds| seconds.parse().expect("PAGEKEEPER_STRESS_SECONDS is a number"));
    Duration::from_secs_f64(seconds / 4.0)
}

/// The known versions of one page.
#[derive(Default)]
struct PageVersions {
    /// The last version whose write has begun.
    begun: AtomicU64,
    /// The last version that the cache was notified of.
    notified: AtomicU64,
}

struct StressState {
    data: Arc<dyn IoFile>,
    cache: PageCache,
    file: OwnedFile,
    versions: Vec<PageVersions>,
    /// Pages below this number were written at least once.
    end: AtomicU64,
    /// Whether reads may fail.
    faults: bool,
    done: AtomicBool,
    reads: AtomicU64,
    /// Number of reads by the shortest way to a page in place.
    held: AtomicU64,
    writes: AtomicU64,
}

/// Returns the word that a page repeats.
fn word(page: u64, version: u64) -> u64 {
    page << 40 | version
}

/// Returns the version of a part of a page, if the part is of a single version.
fn version(page: u64, bytes: &[u8]) -> Result<u64, String> {
    let (words, []) = bytes.as_chunks::<8>() else { return Err("no whole words".to_owned()) };
    let first = u64::from_le_bytes(words[0]);
    if let Some(other) = words.iter().map(|word| u64::from_le_bytes(*word)).find(|other| *other != first) {
        return Err(format!("page {page} is of {first:#x} and of {other:#x}"));
    }
    if first >> 40 == page {
        Ok(first & ((1 << 40) - 1))
    } else {
        Err(format!("page {page} holds {first:#x}"))
    }
}

impl StressState {
    fn new(io: Arc<dyn Io>, path: &Path, faults: bool) -> Self {
        let data = io.open_writable(path, Access::Direct, Create::New).unwrap();
        let memory = CacheOptions::memory_for(FRAMES, PAGE);
        let cache = PageCache::options().memory(memory).io(io).build().unwrap();
        let options = OpenOptions::new().verifier(|page| version(page.page().get(), page.bytes()).map(drop));
        let file = cache.open_owned_with(Arc::clone(&data), 1 << 20, options).unwrap();
        let versions = (0..FILE_PAGES).map(|_| PageVersions::default()).collect();
        let arena = Self {
            data,
            cache,
            file,
            versions,
            end: AtomicU64::new(0),
            faults,
            done: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            held: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        };
        let mut rng = Rng::default();
        while arena.end.load(Ordering::Relaxed) < FILE_PAGES / 2 {
            arena.grow(&mut rng);
        }
        arena
    }

    /// Writes the page after the last.
    fn grow(&self, rng: &mut Rng) {
        let end = self.end.load(Ordering::Relaxed);
        if end < FILE_PAGES {
            self.rewrite(end, rng);
            self.end.store(end + 1, Ordering::Release);
        }
    }

    /// Writes a new version of a page that only the calling thread writes, and notifies the cache.
    fn rewrite(&self, page: u64, rng: &mut Rng) {
        let of = &self.versions[usize::try_from(page).unwrap()];
        let next = of.begun.load(Ordering::Relaxed) + 1;
        of.begun.store(next, Ordering::SeqCst);
        let mut bytes = AlignedBuf::new(PAGE);
        bytes.as_chunks_mut::<8>().0.fill(word(page, next).to_le_bytes());
        self.data.write_at(page * PAGE as u64, &bytes, WriteMode::Plain).unwrap();
        match rng.of(0..4) {
            0 => self.file.discard(PageNo::new(page)),
            1 => self.file.discard_many(&[PageNo::new(page)]),
            2 => _ = self.file.install(PageNo::new(page), &bytes, InstallAs::Read).unwrap(),
            _ => _ = self.file.install(PageNo::new(page), &bytes, InstallAs::Prefetched).unwrap(),
        }
        of.notified.store(next, Ordering::SeqCst);
        self.writes.fetch_add(1, Ordering::Relaxed);
        if rng.one_in(8) {
            // The writer reads too.
            self.read(page, rng);
        }
    }

    /// Reads a page in a random way until a read succeeds, and checks it.
    fn read(&self, page: u64, rng: &mut Rng) {
        let of = &self.versions[usize::try_from(page).unwrap()];
        loop {
            let min = of.notified.load(Ordering::SeqCst);
            let read = self.attempt(page, rng);
            let max = of.begun.load(Ordering::SeqCst);
            match read {
                Ok(read) => {
                    assert!((min..=max).contains(&read), "page {page}: {read}, not {min} to {max}");
                    break;
                }
                // Only beside a write.
                Err(Error::Rejected { reason, .. }) => assert!(min < max, "{reason}"),
                Err(Error::Io(_)) if self.faults => {}
                Err(error) => panic!("{error}"),
            }
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    fn attempt(&self, page: u64, rng: &mut Rng) -> Result<u64, Error> {
        let (start, file) = (page * PAGE as u64, &self.file);
        let whole = |bytes: &[u8]| version(page, bytes).unwrap_or_else(|torn| panic!("{torn}"));
        let mut part = [0; 512];
        Ok(match rng.of(0..9) {
            8 => {
                // Most pages are evicted before they are read often enough.
                let Some(held) = file.page_shortest(PageNo::new(page)) else {
                    return self.attempt(page, rng);
                };
                self.held.fetch_add(1, Ordering::Relaxed);
                let first = whole(&held);
                thread::yield_now();
                assert_eq!(whole(&held), first, "while it is held");
                first
            }
            0..=2 => {
                file.read_at(start + 8 * rng.of(0..400), &mut part)?;
                whole(&part)
            }
            3 => {
                let guard = file.page(PageNo::new(page))?;
                let first = whole(&guard);
                thread::yield_now();
                assert_eq!(whole(&guard), first, "under a guard");
                first
            }
            4 => whole(&file.page_ref(PageNo::new(page))?),
            5 => {
                block_on(file.read_at_async(start, &mut part))?;
                whole(&part)
            }
            6 => {
                // With neighbours, which may be of any version.
                let mut others = [[0; 64]; 4];
                let mut requests = vec![ReadRequest::new(start, &mut part)];
                let places = others.iter_mut().map(|buf| (rng.of(0..FILE_PAGES / 2) * PAGE as u64, buf));
                requests.extend(places.map(|(place, buf)| ReadRequest::new(place, buf)));
                let _ = file.read_many(&mut requests);
                requests[0].outcome().clone()?;
                whole(&part)
            }
            _ => {
                file.prefetch(start..start + 4 * PAGE as u64);
                file.read_at(start, &mut part)?;
                whole(&part)
            }
        })
    }

    fn run(&self, seed: &Seed) {
        const WRITERS: u64 = 2;
        let start = Instant::now();
        thread::scope(|scope| {
            let mut running = Vec::new();
            for n in 0..WRITERS {
                let mut rng = seed.rng(n);
                running.push(scope.spawn(move || {
                    while !self.done.load(Ordering::Relaxed) {
                        let page = rng.skewed(FILE_PAGES / 2) / WRITERS * WRITERS + n;
                        if page < FILE_PAGES / 2 {
                            self.rewrite(page, &mut rng);
                        }
                        if n == 0 && rng.one_in(50) {
                            self.grow(&mut rng);
                        }
                    }
                }));
            }
            for n in WRITERS..WRITERS + 4 {
                let mut rng = seed.rng(n);
                running.push(scope.spawn(move || {
                    while !self.done.load(Ordering::Relaxed) {
                        let page = rng.skewed(self.end.load(Ordering::Acquire));
                        self.read(page, &mut rng);
                    }
                }));
            }
            while start.elapsed() < duration() && running.iter().all(|thread| !thread.is_finished()) {
                thread::sleep(Duration::from_millis(10));
            }
            self.done.store(true, Ordering::Relaxed);
        });
        self.end(&mut seed.rng(99));
    }

    /// Checks that all pages have their last version, in the cache and out of it, and that no frame
    /// is lost.
    fn end(&self, rng: &mut Rng) {
        let end = self.end.load(Ordering::Relaxed);
        for _ in 0..3 {
            for page in 0..end {
                self.read(page, rng);
            }
        }
        // The last prefetches may be in flight.
        let resident = || self.file.resident().iter().map(|range| range.end - range.start).sum::<u64>();
        let before = Instant::now();
        while resident() != self.file.resident_pages() {
            assert!(before.elapsed().as_secs() < 60, "{} of {}", resident(), self.file.resident_pages());
            thread::yield_now();
        }
        let stats = self.cache.stats();
        let (reads, writes) = (self.reads.load(Ordering::Relaxed), self.writes.load(Ordering::Relaxed));
        let held = self.held.load(Ordering::Relaxed);
        println!("{reads} reads, {held} of them held, {writes} writes, {end} pages; {stats}");
        assert_eq!(stats.resident_pages, resident());
        assert!(stats.resident_pages + 4 >= stats.capacity_pages, "{stats}");
        assert!(stats.installed > 0 && stats.hits > 0 && stats.evictions > 0, "{stats}");
    }
}

#[test]
fn on_a_simulated_disk() {
    let seed = Seed::new();
    let disk = SimDisk::builder().seed(seed.0).build();
    StressState::new(Arc::new(disk), "/data".as_ref(), false).run(&seed);
}

#[test]
fn on_a_simulated_disk_that_fails() {
    let seed = Seed::new();
    let disk = SimDisk::builder().seed(seed.0).build();
    let arena = StressState::new(Arc::new(disk.clone()), "/data".as_ref(), true);
    let random = RandomFaults { short_per_mille: 20, interrupted_per_mille: 20, failing_per_mille: 20 };
    disk.set_random_faults(random, RandomWriteFaults::default());
    arena.run(&seed);
}

#[test]
fn on_a_real_file_by_the_best_back_end() {
    let (seed, dir) = (Seed::new(), disk_dir());
    StressState::new(pagekeeper_io::best(), &dir.path().join("data"), false).run(&seed);
}

#[test]
fn on_a_real_file_by_threads() {
    let (seed, dir) = (Seed::new(), disk_dir());
    StressState::new(Arc::new(Threads::new()), &dir.path().join("data"), false).run(&seed);
}
