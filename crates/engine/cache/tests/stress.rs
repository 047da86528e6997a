//! Everything at once: threads that read in every way, prefetch, keep pages, open, close, delete
//! and replace. The caches are so small that nearly every read evicts. Each byte that is read is
//! checked; at the end nothing is lost.
//!
//! Each thread's operations follow from a seed that is printed on failure: `PAGEKEEPER_SEED`
//! repeats it, as far as threads can be repeated. `PAGEKEEPER_STRESS_SECONDS` sets the duration of
//! all tests (5).

mod support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use pagekeeper_cache::{
    Backend, CacheOptions, CacheStats, CachedFile, Error, PageCache, PageNo, PageRef, ReadRequest,
};
use pagekeeper_simdisk::{Fault, RandomFaults, SimDisk, Times};

use pagekeeper_testing::{Rng, Seed, disk_dir};
use support::tasks::{block_on, block_on_all};
use support::{check, write_patterned};

/// Returns the duration of one of the tests here.
fn duration() -> Duration {
    let seconds = std::env::var("PAGEKEEPER_STRESS_SECONDS").ok();
    let seconds =
        seconds.map_or(5.0, |seconds| seconds.parse().expect("PAGEKEEPER_STRESS_SECONDS is a number"));
    Duration::from_secs_f64(seconds / 4.0)
}

/// An open file and its content.
struct OpenedFile {
    cached: CachedFile,
    seed: u64,
    len: u64,
}

/// The state that all threads share.
struct StressState<'a> {
    cache: PageCache,
    page_size: u64,
    opened: Vec<RwLock<OpenedFile>>,
    /// Pages that are passed from thread to thread.
    passed: Mutex<Vec<(PageRef, u64, u64)>>,
    /// Whether reads may fail.
    faults: bool,
    /// Opens another file in place of one.
    reopen: &'a (dyn Fn(&PageCache, usize, &mut Rng) -> OpenedFile + Sync),
    steps: AtomicU64,
    done: AtomicBool,
}

/// The number of files that are open at a time.
const OPEN_FILES: usize = 5;

impl StressState<'_> {
    fn run(&self, threads: u64, seed: &Seed) {
        let start = Instant::now();
        let ended: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> = (0..threads)
                .map(|n| {
                    let mut rng = seed.rng(n);
                    scope.spawn(move || {
                        let mut kept = Vec::new();
                        while !self.done.load(Ordering::Relaxed) {
                            self.step(&mut rng, &mut kept);
                            self.steps.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            while start.elapsed() < duration() && running.iter().all(|thread| !thread.is_finished()) {
                thread::sleep(Duration::from_millis(10));
            }
            self.done.store(true, Ordering::Relaxed);
            running.into_iter().map(thread::ScopedJoinHandle::join).collect()
        });
        for ended in ended {
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        self.end();
    }

    /// Checks that no frame is missing once all is released.
    fn end(&self) {
        for (page, seed, offset) in self.passed.lock().unwrap().drain(..) {
            check(seed, offset, &page);
        }
        for opened in &self.opened {
            opened.read().unwrap().cached.close();
        }
        let large = (self.reopen)(&self.cache, 0, &mut Rng::default());
        let mut page = vec![0; usize::try_from(self.page_size).unwrap()];
        let mut pass = || {
            for n in 0..large.len / self.page_size {
                self.allow(large.cached.read_at(n * self.page_size, &mut page));
            }
        };
        (0..3).for_each(|_| pass());
        // The last prefetches, for files that are closed by now, may still be in flight.
        let is_all = |stats: &CacheStats| {
            stats.resident_pages == large.cached.resident_pages()
                && stats.resident_pages + 4 >= stats.capacity_pages.min(large.len / self.page_size)
        };
        let begun = Instant::now();
        while !is_all(&self.cache.stats()) && begun.elapsed().as_secs() < 60 {
            pass();
        }
        let stats = self.cache.stats();
        println!("{} steps; {stats}", self.steps.load(Ordering::Relaxed));
        assert_eq!(stats.resident_pages, large.cached.resident_pages(), "{stats}");
        assert!(stats.resident_pages + 4 >= stats.capacity_pages.min(large.len / self.page_size), "{stats}");
        assert!(stats.evictions > 0 && stats.hits > 0, "{stats}");
    }

    /// Returns nothing if the file was closed meanwhile, or reads may fail.
    #[track_caller]
    fn allow<T>(&self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(Error::Closed { .. }) => None,
            Err(Error::Io(_)) if self.faults => None,
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&self, rng: &mut Rng, kept: &mut Vec<(PageRef, u64, u64)>) {
        let place = usize::try_from(rng.of(0..OPEN_FILES as u64)).unwrap();
        if rng.one_in(300) {
            self.change(place, rng);
            return;
        }
        let opened = self.opened[place].read().unwrap();
        let OpenedFile { cached, seed, len } = &*opened;
        let offset = rng.skewed(*len);
        let (page, start) = (offset / self.page_size, offset / self.page_size * self.page_size);
        match rng.of(0..12) {
            0..=3 => {
                let mut buf = [0; 300];
                if let Some(count) = self.allow(cached.read_at(offset, &mut buf)) {
                    assert_eq!(count as u64, 300.min(len - offset));
                    check(*seed, offset, &buf[..count]);
                }
            }
            4..=5 => {
                let Some(guard) = self.allow(cached.page(PageNo::new(page))) else { return };
                check(*seed, start, &guard);
                if rng.one_in(4) {
                    // A second page, and something that evicts, while the first is read.
                    let other = rng.of(0..len.div_ceil(self.page_size));
                    let more = self.allow(cached.page(PageNo::new(other)));
                    self.allow(cached.read_at(0, &mut vec![0; 8 * usize::try_from(self.page_size).unwrap()]));
                    thread::yield_now();
                    check(*seed, start, &guard);
                    drop(guard);
                    if let Some(more) = more {
                        check(*seed, other * self.page_size, &more);
                    }
                }
            }
            6 => {
                if let Some(page) = self.allow(cached.page_ref(PageNo::new(page))) {
                    check(*seed, start, &page);
                    kept.push((page, *seed, start));
                }
                if kept.len() > 6 {
                    let mut passed = self.passed.lock().unwrap();
                    passed.append(kept);
                    let old = passed.len().saturating_sub(12);
                    kept.extend(passed.drain(..old));
                    drop(passed);
                    for (page, seed, offset) in kept.drain(..) {
                        check(seed, offset, &page);
                    }
                }
            }
            7 => {
                let len = usize::try_from(rng.of(1..10 * self.page_size)).unwrap();
                let mut buf = vec![0; len];
                if let Some(count) = self.allow(cached.read_at(offset, &mut buf)) {
                    check(*seed, offset, &buf[..count]);
                }
            }
            8 => {
                let mut bufs = vec![[0; 100]; 12];
                let places: Vec<_> = bufs.iter().map(|_| rng.skewed(*len)).collect();
                let mut requests: Vec<_> = places
                    .iter()
                    .zip(&mut bufs)
                    .map(|(offset, buf)| ReadRequest::new(*offset, buf))
                    .collect();
                self.allow(cached.read_many(&mut requests));
                for (offset, request) in places.iter().zip(&requests) {
                    if let Ok(count) = request.outcome() {
                        check(*seed, *offset, &request.bytes()[..*count]);
                    }
                }
            }
            9 => {
                let mut buf = vec![0; usize::try_from(rng.of(1..3 * self.page_size)).unwrap()];
                if let Some(count) = self.allow(block_on(cached.read_at_async(offset, &mut buf))) {
                    check(*seed, offset, &buf[..count]);
                }
            }
            10 => {
                // Several futures at once, and one that is dropped.
                let places: Vec<_> = (0..4).map(|_| rng.skewed(*len)).collect();
                let mut bufs = vec![[0; 500]; places.len()];
                let mut given_up = [0; 500];
                let mut future = Box::pin(cached.read_at_async(offset, &mut given_up));
                let _ = future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
                let mut futures: Vec<_> = places
                    .iter()
                    .zip(&mut bufs)
                    .map(|(offset, buf)| Box::pin(cached.read_at_async(*offset, buf)))
                    .collect();
                let results = block_on_all(&mut futures);
                drop((future, futures));
                for ((result, offset), buf) in results.into_iter().zip(places).zip(&bufs) {
                    if let Some(count) = self.allow(result) {
                        check(*seed, offset, &buf[..count]);
                    }
                }
            }
            _ => {
                cached.prefetch(offset..offset + rng.of(0..20 * self.page_size));
            }
        }
    }

    /// Replaces an open file with another. The old one is closed at once, or when its last page
    /// goes.
    fn change(&self, place: usize, rng: &mut Rng) {
        if rng.one_in(2) {
            // While others read it.
            self.opened[place].read().unwrap().cached.close();
        }
        let new = (self.reopen)(&self.cache, place, rng);
        *self.opened[place].write().unwrap() = new;
    }
}

fn arena(
    options: CacheOptions,
    page_size: usize,
    faults: bool,
    reopen: &(dyn Fn(&PageCache, usize, &mut Rng) -> OpenedFile + Sync),
) -> StressState<'_> {
    let cache = options.page_size(page_size).build().unwrap();
    let mut rng = Rng::default();
    let opened = (0..OPEN_FILES).map(|place| RwLock::new(reopen(&cache, place, &mut rng))).collect();
    StressState {
        cache,
        page_size: page_size as u64,
        opened,
        passed: Mutex::default(),
        faults,
        reopen,
        steps: AtomicU64::new(0),
        done: AtomicBool::new(false),
    }
}

/// Runs on a simulated disk whose reads are short or fail.
fn on_a_simulated_disk(frames: u32, page_size: usize, failing: u16) {
    let seed = Seed::new();
    let random = RandomFaults { short_per_mille: 20, interrupted_per_mille: 20, failing_per_mille: failing };
    let disk = SimDisk::builder().seed(seed.0).random_faults(random).build();
    let numbers = AtomicU64::new(0);
    let reopen = |cache: &PageCache, place: usize, rng: &mut Rng| {
        let path = format!("/{place}");
        let sizes = [4 * u64::from(frames), 40, u64::from(frames), 5, 200];
        let len = sizes[place] * page_size as u64 + rng.of(0..3) * 1000;
        loop {
            let seed = numbers.fetch_add(1, Ordering::Relaxed);
            // Like a compaction: the name goes to another file.
            let _ = disk.remove(&path);
            if disk.create_patterned(&path, len, seed).is_err() {
                continue;
            }
            if failing > 0 {
                let _ = disk.inject(&path, 0..len, Fault::EIO, Times::Once);
            }
            let Ok(cached) = cache.open(&path) else { continue };
            let mut first = [0; 8];
            while let Err(error) = cached.read_at(0, &mut first) {
                assert!(matches!(error, Error::Io(_)) && failing > 0, "{error}");
            }
            // Another thread may have put a third file there.
            if first[..] == support::bytes(seed, 0, 8) {
                return OpenedFile { len: cached.len(), cached, seed };
            }
        }
    };
    let options = PageCache::options()
        .memory(CacheOptions::memory_for(frames, page_size))
        .io(std::sync::Arc::new(disk.clone()));
    arena(options, page_size, failing > 0, &reopen).run(6, &seed);
}

#[test]
fn small_pages_on_a_simulated_disk() {
    on_a_simulated_disk(100, 4096, 0);
}

#[test]
fn large_pages_on_a_simulated_disk_that_fails() {
    on_a_simulated_disk(64, 16384, 20);
}

/// Runs on real files, through each back-end in turn.
fn on_a_real_disk(backend: Backend, frames: u32) {
    let seed = Seed::new();
    let dir = disk_dir();
    let numbers = AtomicU64::new(0);
    let path = |place: usize, file: u64| -> PathBuf { dir.path().join(format!("{place}-{file}")) };
    let sizes = [4 * u64::from(frames), 40, u64::from(frames), 5, 200].map(|pages| pages * 4096 + 100);
    for (place, len) in sizes.into_iter().enumerate() {
        for file in 0..3 {
            write_patterned(&path(place, file), place as u64 * 3 + file, 0..len);
        }
    }
    let reopen = |cache: &PageCache, place: usize, _: &mut Rng| {
        let file = numbers.fetch_add(1, Ordering::Relaxed) % 3;
        let cached = cache.open(path(place, file)).unwrap();
        OpenedFile { cached, seed: place as u64 * 3 + file, len: sizes[place] }
    };
    let options = PageCache::options().memory(CacheOptions::memory_for(frames, 4096)).backend(backend);
    arena(options, 4096, false, &reopen).run(6, &seed);
}

#[test]
fn real_files_by_the_best_back_end() {
    on_a_real_disk(Backend::Auto, 100);
}

#[test]
fn real_files_by_threads() {
    on_a_real_disk(Backend::Threads, 300);
}
