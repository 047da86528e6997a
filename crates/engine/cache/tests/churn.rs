//! A storage engine's life on one cache, with real files. Tables come and go under readers, with
//! few descriptors, beside programs that are started, cancelled reads, and a device that fails for
//! a while. Memory and descriptors stay bounded.

mod support;

use std::collections::VecDeque;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::task::{Context, Waker};

use pagekeeper_cache::{CachedFile, PageCache};
use pagekeeper_simdisk::{Fault, SimDisk, Times};
use rustix::process::{Resource, Rlimit, setrlimit};

use pagekeeper_testing::{Seed, disk_dir};
use support::tasks::block_on;
use support::{PAGE, SEED, alone, bytes, check};

const MIB: u64 = 1 << 20;

/// Returns the resident bytes of this process.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Tables in the order in which they were made, each with its number.
type Tables = RwLock<VecDeque<Arc<(u64, CachedFile)>>>;

/// Reads at random offsets until all tables were made: blocking reads, and futures that are dropped
/// after one poll.
fn read(tables: &Tables, ended: &AtomicBool, reads: &AtomicU64, mut below: impl FnMut(u64) -> u64) {
    let mut buf = [0; 3 * PAGE];
    while !ended.load(Ordering::Relaxed) {
        let table = {
            let tables = tables.read().unwrap();
            let at = below(tables.len() as u64);
            tables.get(usize::try_from(at).unwrap()).map(Arc::clone)
        };
        let Some(table) = table else { continue };
        let (number, file) = &*table;
        let offset = below(file.len());
        if below(8) == 0 {
            let mut future = Box::pin(file.read_at_async(offset, &mut buf));
            let _ = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            continue;
        }
        let read = file.read_at(offset, &mut buf).unwrap();
        check(*number, offset, &buf[..read]);
        reads.fetch_add(1, Ordering::Relaxed);
    }
}

fn churn() {
    const TABLE_COUNT: u64 = 5_000;
    /// Tables open at a time.
    const LIVE_FILES: usize = 180;
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum: Some(256) }).unwrap();
    let seed = Seed::new();
    let dir = disk_dir();
    let budget = 8 * MIB;
    let cache = PageCache::options().memory(budget).build().unwrap();
    let (tables, ended, reads) = (Tables::default(), AtomicBool::new(false), AtomicU64::new(0));
    let before = resident();
    let mut most = 0;
    std::thread::scope(|scope| {
        for reader in 1..=2 {
            let mut rng = seed.rng(reader);
            let (tables, ended, reads) = (&tables, &ended, &reads);
            scope.spawn(move || read(tables, ended, reads, |end| rng.of(0..end.max(1))));
        }
        let mut rng = seed.rng(0);
        for number in 0..TABLE_COUNT {
            // Numbers are reused, as by engines after a restart.
            let path = dir.path().join(format!("{:06}.sst", number % 1000));
            let len = usize::try_from(rng.of(1..16 * PAGE as u64)).unwrap();
            std::fs::write(&path, bytes(number, 0, len)).unwrap();
            let file = cache.open(&path).unwrap();
            let old = {
                let mut tables = tables.write().unwrap();
                tables.push_back(Arc::new((number, file)));
                (tables.len() > LIVE_FILES).then(|| tables.pop_front()).flatten()
            };
            if let Some(old) = old {
                std::fs::remove_file(old.1.path()).unwrap();
            }
            if number % 250 == 0 {
                assert!(Command::new("true").status().unwrap().success());
                most = most.max(resident());
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    let reads = reads.into_inner();
    assert!(reads > 1000, "only {reads} reads were made");
    let more = most.saturating_sub(before);
    let max = budget + 8 * MIB;
    assert!(more <= max, "{more} bytes are in use for a budget of {budget}; seed {seed:?}");
    drop(tables);
    assert_eq!(cache.stats().failures, 0);
}

#[test]
fn five_thousand_tables_come_and_go_with_256_descriptors() {
    alone("five_thousand_tables_come_and_go_with_256_descriptors", churn);
}

#[test]
fn a_device_that_fails_for_a_while_leaves_nothing_behind() {
    const FILE_PAGES: u64 = 20_000;
    let seed = Seed::new();
    let disk = SimDisk::new();
    disk.create_patterned("/file", FILE_PAGES * PAGE as u64, SEED).unwrap();
    let cache = PageCache::options().memory(4 * MIB).io(Arc::new(disk.clone())).build().unwrap();
    let file = cache.open("/file").unwrap();
    let mut rng = seed.rng(0);
    let mut page = [0; PAGE];
    let mut read = |by_future: bool| {
        let offset = rng.of(0..FILE_PAGES) * PAGE as u64;
        let read = if by_future {
            block_on(file.read_at_async(offset, &mut page))
        } else {
            file.read_at(offset, &mut page)
        };
        if read.is_ok() {
            check(SEED, offset, &page);
        }
        read.is_ok()
    };
    for _ in 0..3 {
        assert!((0..2000).all(|n| read(n % 2 == 0)), "a read failed on a device that is well");
        disk.inject_all(Fault::EIO, Times::Always);
        let well = (0..4000).filter(|n| read(n % 2 == 0)).count();
        assert!(well < 1000, "{well} reads of 4000 went to a device that fails");
        disk.heal_all();
    }
    assert!((0..2000).all(|n| read(n % 2 == 0)), "a page was not loaded again");
    let stats = cache.stats();
    assert!(stats.failures > 3000, "{} failures", stats.failures);
    assert_eq!(stats.bypassed, 0, "frames of loads that failed are missing");
}
