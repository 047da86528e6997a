//! The parts that the cache's tests share: files whose bytes can be computed, futures without a
//! runtime.
//!
//! Invariant: nothing here relies on the cache for the expected content of a file; it is computed.

// Every test binary compiles all of this and uses its own part.
#![allow(dead_code)]

pub(crate) mod tasks;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use pagekeeper_cache::{CacheOptions, PageCache};
use pagekeeper_simdisk::{SimDisk, pattern};

/// Bytes of a page, unless a test sets another size.
pub(crate) const PAGE: usize = 4096;

/// Returns the bytes from `offset` on of the file that `seed` stands for.
pub(crate) fn bytes(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pattern(seed, offset, &mut bytes);
    bytes
}

/// Checks that these are the bytes from `offset` on of the file of `seed`. Panics with the first
/// difference.
#[track_caller]
pub(crate) fn check(seed: u64, offset: u64, got: &[u8]) {
    let expected = bytes(seed, offset, got.len());
    if let Some(at) = got.iter().zip(&expected).position(|(got, expected)| got != expected) {
        panic!(
            "byte {} of file {seed} is {:#x}, not {:#x}; {} of {} bytes from {offset} on differ",
            offset + at as u64,
            got[at],
            expected[at],
            got.iter().zip(&expected).filter(|(got, expected)| got != expected).count(),
            got.len()
        );
    }
}

/// Writes a file of patterned bytes and syncs it.
pub(crate) fn write_patterned(path: &Path, seed: u64, range: std::ops::Range<u64>) {
    let mut file = File::options().create(true).append(true).open(path).unwrap();
    let mut at = range.start;
    while at < range.end {
        let len = usize::try_from((range.end - at).min(1 << 20)).unwrap();
        file.write_all(&bytes(seed, at, len)).unwrap();
        at += len as u64;
    }
    file.sync_all().unwrap();
}

/// Creates a cache on a simulated disk, with room for `frames` pages, less what the tables of open
/// files take.
pub(crate) fn sim_cache(disk: &SimDisk, frames: u32, page_size: usize) -> PageCache {
    sim_options(disk, frames, page_size).build().unwrap()
}

pub(crate) fn sim_options(disk: &SimDisk, frames: u32, page_size: usize) -> CacheOptions {
    PageCache::options()
        .memory(CacheOptions::memory_for(frames, page_size))
        .page_size(page_size)
        .io(std::sync::Arc::new(disk.clone()))
}

/// Creates a disk with one patterned file, `/file`, of `pages` pages of [`PAGE`], and a cache of
/// `frames` frames on it.
pub(crate) fn sim(pages: u64, frames: u32) -> (SimDisk, PageCache) {
    let disk = SimDisk::new();
    disk.create_patterned("/file", pages * PAGE as u64, SEED).unwrap();
    let cache = sim_cache(&disk, frames, PAGE);
    (disk, cache)
}

/// The seed of `/file` of [`sim`].
pub(crate) const SEED: u64 = 77;

/// Runs a test again in a process in which nothing else runs.
pub(crate) fn alone(name: &str, test: impl FnOnce()) {
    if std::env::var_os("PAGEKEEPER_ALONE").is_some() {
        return test();
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output =
        command.args([name, "--exact", "--nocapture"]).env("PAGEKEEPER_ALONE", "1").output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    print!("{said}");
}

/// Waits until `count` callers wait for loads of others.
pub(crate) fn await_coalesced(cache: &PageCache, count: u64) {
    let before = std::time::Instant::now();
    while cache.stats().coalesced < count {
        assert!(before.elapsed().as_secs() < 60, "only {} wait", cache.stats().coalesced);
        std::thread::yield_now();
    }
}
