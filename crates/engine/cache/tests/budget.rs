//! The memory that a cache really takes, measured by the kernel (`/proc/self/smaps_rollup`), each
//! case in its own process.
//!
//! The growth of a process during a case must be within 2 % of the budget and [`BESIDE_BYTES`]
//! bytes more. It includes frames, records, tables of files, threads of the back-end, and memory
//! that the allocator keeps.

mod support;

use pagekeeper_cache::{Backend, BuildError, HugePages, PageCache, PageNo};
use pagekeeper_simdisk::SimDisk;

use pagekeeper_testing::{Seed, disk_dir};
use support::{PAGE, alone, bytes, check};

const MIB: u64 = 1 << 20;

/// Bytes that may be in use beside the budget, whatever its size: stacks, the simulated disk, the
/// allocator.
const BESIDE_BYTES: u64 = 2 * MIB;

/// Bytes of frames that are cleared before they are used, in a large cache; in a small one, a
/// sixteenth of the cache.
const AHEAD_BYTES: u64 = 16 * MIB;

/// Bytes of memory that this process has taken, without pages of files. The kernel maps a few pages
/// of the program's text and libraries, or a large folio, at a fault (`mm/filemap.c`, Linux 6.18):
/// up to 1.3 MiB at a time.
#[derive(Debug, Clone, Copy)]
struct ProcessMemory(u64);

impl ProcessMemory {
    fn now() -> Self {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
        };
        Self(field("Pss_Anon:") + field("Pss_Shmem:"))
    }

    fn since(self) -> u64 {
        Self::now().0.saturating_sub(self.0)
    }

    /// Checks the memory taken up since, by a cache of this budget.
    #[track_caller]
    fn check_since(self, budget: u64, what: &str) {
        let (more, max) = (self.since(), budget + budget / 50 + BESIDE_BYTES);
        println!("{what}: {more} of {budget} bytes");
        assert!(more <= max, "{what}: {more} bytes more, {} above the most allowed, {max}", more - max);
    }

    /// Checks that the budget is used.
    #[track_caller]
    fn check_used(self, budget: u64, what: &str) {
        let more = self.since();
        assert!(more >= budget / 10 * 9, "{what}: only {more} of {budget} bytes are in use");
    }
}

/// Fills a cache with four times as much data as it holds: from one file, several files, several
/// threads, and files that come and go.
fn fill(budget: u64, page_size: usize, huge_pages: HugePages) {
    let what = format!("{} MiB in pages of {page_size}, {huge_pages:?}", budget / MIB);
    let disk = SimDisk::new();
    disk.create_patterned("/one", 4 * budget, 1).unwrap();
    for n in 2..10 {
        disk.create_patterned(format!("/{n}"), budget / 2, n).unwrap();
    }
    // The test's own memory is allocated and touched before anything is measured.
    let mut buf = vec![1; 1 << 20];
    let mut bufs: Vec<_> = (2..10).map(|_| vec![1; 64 << 10]).collect();
    let before = ProcessMemory::now();
    let cache = PageCache::options()
        .memory(budget)
        .page_size(page_size)
        .huge_pages(huge_pages)
        .io(std::sync::Arc::new(disk.clone()))
        .build()
        .unwrap();
    before.check_since(budget / 50, &format!("{what}, empty"));

    let one = cache.open("/one").unwrap();
    for offset in (0..one.len()).step_by(buf.len()) {
        one.read_at(offset, &mut buf).unwrap();
    }
    check(1, one.len() - MIB, &buf);
    before.check_since(budget, &format!("{what}, one file"));
    before.check_used(budget, &what);

    let several: Vec<_> = (2..10).map(|n| (n, cache.open(format!("/{n}")).unwrap())).collect();
    std::thread::scope(|scope| {
        for ((n, file), buf) in several.iter().zip(&mut bufs) {
            scope.spawn(move || {
                for offset in (0..file.len()).step_by(buf.len()) {
                    file.read_at(offset, buf).unwrap();
                }
                check(*n, file.len() - buf.len() as u64, buf);
            });
        }
    });
    before.check_since(budget, &format!("{what}, several files"));

    drop((one, several));
    for n in 2..10 {
        let file = cache.open(format!("/{n}")).unwrap();
        for offset in (0..file.len()).step_by(8 * buf.len()) {
            file.read_at(offset, &mut buf).unwrap();
        }
    }
    before.check_since(budget, &format!("{what}, files that come and go"));
    before.check_used(budget, &what);
    assert!(cache.stats().evictions > 0);
    drop(cache);
    before.check_since(0, &format!("{what}, gone"));
}

#[test]
fn a_cache_of_64_mib() {
    alone("a_cache_of_64_mib", || fill(64 * MIB, 4096, HugePages::Transparent));
}

#[test]
fn a_cache_of_64_mib_without_huge_pages() {
    alone("a_cache_of_64_mib_without_huge_pages", || fill(64 * MIB, 4096, HugePages::Off));
}

#[test]
fn a_cache_of_large_pages() {
    alone("a_cache_of_large_pages", || fill(64 * MIB, 65536, HugePages::Transparent));
}

#[test]
fn a_cache_of_256_mib() {
    alone("a_cache_of_256_mib", || fill(256 * MIB, 4096, HugePages::Transparent));
}

/// The whole table would take 1 GiB. Each read is in a part of the table that was not touched
/// before.
#[test]
fn random_reads_of_a_file_of_a_tebibyte() {
    alone("random_reads_of_a_file_of_a_tebibyte", || {
        let budget = 64 * MIB;
        let seed = Seed::new();
        let mut rng = seed.rng(0);
        let dir = disk_dir();
        let path = dir.path().join("sparse");
        let sparse = std::fs::File::create(&path).unwrap();
        sparse.set_len(1 << 40).unwrap();
        // Some content that is not zero.
        for tenth in 0..10 {
            std::os::unix::fs::FileExt::write_all_at(&sparse, &bytes(7, 0, PAGE), tenth << 36).unwrap();
        }
        sparse.sync_all().unwrap();
        let disk = SimDisk::new();
        disk.create_patterned("/sparse", 1 << 40, 3).unwrap();

        let before = ProcessMemory::now();
        let cache = PageCache::options().memory(budget).backend(Backend::Threads).build().unwrap();
        let file = cache.open(&path).unwrap();
        before.check_since(4 * MIB + budget / 16, "1 TiB opened");
        let mut page = [0; PAGE];
        for n in 0..40_000 {
            let offset = rng.of(0..1 << 28) * PAGE as u64;
            file.read_at(offset, &mut page).unwrap();
            if n % 1000 == 0 {
                file.read_at((n / 1000 % 10) << 36, &mut page).unwrap();
                check(7, 0, &page);
            }
        }
        before.check_since(budget, "1 TiB, read here and there");
        before.check_used(budget, "1 TiB");
        drop((file, cache));
        before.check_since(0, "gone");

        // The same at the speed of memory, and with many more reads.
        let before = ProcessMemory::now();
        let cache = PageCache::options().memory(budget).io(std::sync::Arc::new(disk)).build().unwrap();
        let file = cache.open("/sparse").unwrap();
        for n in 0..200_000_u64 {
            let offset = rng.of(0..1 << 28) * PAGE as u64;
            file.read_at(offset, &mut page).unwrap();
            if n % 100 == 0 {
                check(3, offset, &page);
            }
        }
        before.check_since(budget, "1 TiB on a simulated disk");
        before.check_used(budget, "1 TiB on a simulated disk");
    });
}

/// Opens tens of thousands of files of different names, as a storage engine does over time.
#[test]
fn opened_and_closed_files_leave_nothing() {
    alone("opened_and_closed_files_leave_nothing", || {
        const FILE_COUNT: u64 = 30_000;
        let budget = 8 * MIB;
        let disk = SimDisk::new();
        for n in 0..FILE_COUNT {
            disk.create_patterned(format!("/{n:06}.sst"), 3 * PAGE as u64 + 1, n).unwrap();
            disk.create_patterned(format!("/{n:06}.empty"), 0, n).unwrap();
        }
        let before = ProcessMemory::now();
        let cache = PageCache::options().memory(budget).io(std::sync::Arc::new(disk)).build().unwrap();
        let capacity = cache.capacity_pages();
        for n in 0..FILE_COUNT {
            // A file that is not read at all.
            drop(cache.open(format!("/{n:06}.empty")).unwrap());
            drop(cache.open(format!("/{n:06}.sst")).unwrap());
        }
        before.check_since(MIB, "opened and closed");
        let mut page = [0; PAGE];
        for n in 0..FILE_COUNT {
            let file = cache.open(format!("/{n:06}.sst")).unwrap();
            file.read_at(PAGE as u64, &mut page).unwrap();
            if n % 100 == 0 {
                check(n, PAGE as u64, &page);
            }
        }
        before.check_since(budget, "opened, read and closed");
        let last = cache.open("/000000.sst").unwrap();
        last.page(PageNo::new(0)).unwrap();
        // The table takes one part at most.
        assert!(cache.capacity_pages() + 1 >= capacity, "{capacity} before: {}", cache.stats());
    });
}

/// Ten thousand small files that stay open: each has a table, a handle and places in maps.
#[test]
fn many_open_files_are_within_the_budget() {
    alone("many_open_files_are_within_the_budget", || {
        const FILE_COUNT: usize = 10_000;
        let budget = 64 * MIB;
        let disk = SimDisk::new();
        for n in 0..FILE_COUNT {
            disk.create_patterned(format!("/{n:06}.sst"), 3000, n as u64).unwrap();
        }
        disk.create_patterned("/large", 4 * budget, 1).unwrap();
        let mut files = Vec::with_capacity(FILE_COUNT);
        let mut buf = vec![1; 1 << 20];
        let before = ProcessMemory::now();
        let cache = PageCache::options().memory(budget).io(std::sync::Arc::new(disk)).build().unwrap();
        for n in 0..FILE_COUNT {
            let file = cache.open(format!("/{n:06}.sst")).unwrap();
            assert_eq!(file.read_at(0, &mut buf).unwrap(), 3000);
            check(n as u64, 0, &buf[..3000]);
            files.push(file);
        }
        let large = cache.open("/large").unwrap();
        for offset in (0..large.len()).step_by(buf.len()) {
            large.read_at(offset, &mut buf).unwrap();
        }
        before.check_since(budget, "ten thousand files");
        before.check_used(budget, "ten thousand files");
    });
}

#[test]
fn a_budget_that_is_made_smaller_and_larger_in_use() {
    alone("a_budget_that_is_made_smaller_and_larger_in_use", || {
        const LARGE_BYTES: u64 = 128 * MIB;
        const SMALL_BYTES: u64 = 16 * MIB;
        let disk = SimDisk::new();
        disk.create_patterned("/one", 2 * LARGE_BYTES, 1).unwrap();
        let mut buf = vec![1; 1 << 20];
        let before = ProcessMemory::now();
        let cache =
            PageCache::options().memory(LARGE_BYTES).io(std::sync::Arc::new(disk.clone())).build().unwrap();
        let one = cache.open("/one").unwrap();
        let mut read_all = |what: &str, budget: u64| {
            for offset in (0..one.len()).step_by(buf.len()) {
                one.read_at(offset, &mut buf).unwrap();
                check(1, offset, &buf);
            }
            before.check_since(budget, what);
            before.check_used(budget, what);
        };
        read_all("large", LARGE_BYTES);
        let held = one.page_ref(PageNo::new(7)).unwrap();

        cache.set_memory(SMALL_BYTES).unwrap();
        before.check_since(SMALL_BYTES, "made smaller");
        assert!(cache.capacity_pages() * (PAGE as u64) < SMALL_BYTES);
        check(1, 7 * PAGE as u64, &held);
        read_all("small", SMALL_BYTES);
        drop(held);

        cache.set_memory(LARGE_BYTES).unwrap();
        read_all("large again", LARGE_BYTES);

        // While other threads read.
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let one = &one;
                scope.spawn(move || {
                    let mut buf = vec![0; 64 << 10];
                    for n in 0..2000 {
                        let offset = (n * 7919 + thread * 31) * 4096 % (2 * LARGE_BYTES - (64 << 10));
                        one.read_at(offset, &mut buf).unwrap();
                        check(1, offset, &buf);
                    }
                });
            }
            for n in 0..20 {
                cache.set_memory(if n % 2 == 0 { SMALL_BYTES } else { LARGE_BYTES }).unwrap();
            }
        });
        cache.set_memory(SMALL_BYTES).unwrap();
        before.check_since(SMALL_BYTES, "made smaller at last");
    });
}

#[test]
fn an_impossible_budget_changes_nothing() {
    let cache = PageCache::options().memory(16 * MIB).build().unwrap();
    let pages = cache.capacity_pages();
    let error = cache.set_memory(17 * MIB).unwrap_err();
    assert_eq!(
        error.to_string(),
        "17825792 bytes of memory: this cache was built with 16777216, and can't have more"
    );
    let BuildError::TooLittleMemory { least, .. } = cache.set_memory(100_000).unwrap_err() else {
        panic!("not too little")
    };
    assert_eq!(cache.capacity_pages(), pages);
    cache.set_memory(least).unwrap();
    assert_eq!(cache.capacity_pages(), 64);
    cache.set_memory(16 * MIB).unwrap();
    assert_eq!(cache.capacity_pages(), pages);
}

#[test]
fn a_large_cache_takes_up_its_records_as_it_fills() {
    alone("a_large_cache_takes_up_its_records_as_it_fills", || {
        const LARGE_BYTES: u64 = 64 << 30;
        let disk = SimDisk::new();
        disk.create_patterned("/one", 8 * MIB, 1).unwrap();
        let mut buf = vec![1; 1 << 20];
        let before = ProcessMemory::now();
        let cache =
            PageCache::options().memory(LARGE_BYTES).io(std::sync::Arc::new(disk.clone())).build().unwrap();
        before.check_since(0, "made");
        let one = cache.open("/one").unwrap();
        for offset in (0..one.len()).step_by(buf.len()) {
            one.read_at(offset, &mut buf).unwrap();
        }
        before.check_since(9 * MIB + AHEAD_BYTES, "of a file");
        drop(one);
        before.check_since(9 * MIB + AHEAD_BYTES, "that is closed");
    });
}

#[test]
fn tables_give_up_their_share_of_a_budget_that_is_made_smaller() {
    alone("tables_give_up_their_share_of_a_budget_that_is_made_smaller", || {
        const LARGE_BYTES: u64 = 64 * MIB;
        const SMALL_BYTES: u64 = 8 * MIB;
        let disk = SimDisk::new();
        // A page in each part of a table: 6,000 parts of 4 KiB.
        disk.create_patterned("/sparse", 6000 * 4 * MIB, 1).unwrap();
        let mut buf = vec![1; 500];
        let before = ProcessMemory::now();
        let cache =
            PageCache::options().memory(LARGE_BYTES).io(std::sync::Arc::new(disk.clone())).build().unwrap();
        let file = cache.open("/sparse").unwrap();
        let mut read = |what: &str, budget: u64, parts: u64| {
            for part in 0..parts {
                file.read_at(part * 4 * MIB, &mut buf).unwrap();
                check(1, part * 4 * MIB, &buf);
            }
            before.check_since(budget, what);
        };
        read("large", LARGE_BYTES, 6000);
        cache.set_memory(SMALL_BYTES).unwrap();
        before.check_since(SMALL_BYTES, "made smaller");
        assert!(
            cache.capacity_pages() * (PAGE as u64) > SMALL_BYTES / 4,
            "{} pages are left",
            cache.capacity_pages()
        );
        read("small", SMALL_BYTES, 6000);
        cache.set_memory(LARGE_BYTES).unwrap();
        read("large again", LARGE_BYTES, 6000);
    });
}

/// Woken futures, by number.
#[derive(Default)]
struct WokenFutures(std::sync::Mutex<std::collections::VecDeque<usize>>, std::sync::Condvar);

impl WokenFutures {
    fn push(&self, number: usize) {
        self.0.lock().unwrap().push_back(number);
        self.1.notify_one();
    }

    /// Returns the future that was woken last, so that futures that have a page come before those
    /// that were not polled yet.
    fn next(&self) -> usize {
        let mut numbers = self.0.lock().unwrap();
        loop {
            if let Some(number) = numbers.pop_back() {
                return number;
            }
            numbers = self.1.wait(numbers).unwrap();
        }
    }
}

struct WakeOne(std::sync::Arc<WokenFutures>, usize);

impl std::task::Wake for WakeOne {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.push(self.1);
    }
}

/// Returns the peak memory of this process since `reset_peak`, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Simulates a server that begins a read for each of very many requests before the first has ended.
fn many_futures(page_size: usize) {
    const FUTURES: usize = 200_000;
    /// Bytes of each waiting read, beside its future: its waker, and its place in a queue.
    const WAIT_BYTES: u64 = 512;

    let dir = disk_dir();
    let path = dir.path().join("sparse");
    let sparse = std::fs::File::create(&path).unwrap();
    sparse.set_len((FUTURES * page_size) as u64).unwrap();
    sparse.sync_all().unwrap();
    let budget = 64 * MIB;
    let cache = PageCache::options().memory(budget).page_size(page_size).build().unwrap();
    let file = cache.open(&path).unwrap();
    let woken = std::sync::Arc::new(WokenFutures::default());
    let mut tasks: Vec<_> = (0..FUTURES)
        .map(|number| {
            let file = &file;
            let future = Box::pin(async move {
                let mut buf = [1; 16];
                let read = file.read_at_async((number * page_size) as u64, &mut buf).await;
                (read, buf)
            });
            let waker: std::task::Waker =
                std::sync::Arc::new(WakeOne(std::sync::Arc::clone(&woken), number)).into();
            woken.push(number);
            Some((future, waker))
        })
        .collect();

    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak();
    for _ in 0..FUTURES {
        loop {
            let number = woken.next();
            let Some((future, waker)) = &mut tasks[number] else { continue };
            let polled = future.as_mut().poll(&mut std::task::Context::from_waker(waker));
            if let std::task::Poll::Ready((read, buf)) = polled {
                assert_eq!(read.unwrap(), 16);
                assert_eq!(buf, [0; 16]);
                tasks[number] = None;
                break;
            }
        }
    }
    let more = peak() - before;
    // A read past the cache keeps its page until it is polled, and this thread may have to wait for
    // a processor.
    let unpolled = 8192 * page_size as u64;
    let max = budget + budget / 16 + FUTURES as u64 * WAIT_BYTES + 2 * BESIDE_BYTES + unpolled;
    println!("{FUTURES} futures on pages of {page_size}: {more} of at most {max} bytes");
    assert!(
        more <= max,
        "{FUTURES} futures on pages of {page_size} took {more} bytes, {} too many",
        more - max
    );
}

#[test]
fn many_futures_at_once() {
    alone("many_futures_at_once", || many_futures(4096));
}

#[test]
fn many_futures_at_once_on_large_pages() {
    alone("many_futures_at_once_on_large_pages", || many_futures(65536));
}
