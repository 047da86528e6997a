//! Bugs of other caches, and of this one before it was published: each has a test here.
//!
//! If several threads have to meet, the simulated disk holds a read back until they do.

mod support;

use std::cell::RefCell;
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, OnceLock, mpsc};
use std::thread;

use pagekeeper_cache::{CachedFile, Error, LoadedPage, PageCache, PageGuard, PageNo, ReadRequest};
use pagekeeper_simdisk::{Fault, SimDisk, Times};

use pagekeeper_testing::disk_dir;
use support::tasks::block_on;
use support::{PAGE, SEED, await_coalesced, bytes, check, sim, sim_cache, sim_options, write_patterned};

/// Bytes of a page.
const PAGE_LEN: u64 = PAGE as u64;

/// Reads a whole file, page by page, and checks it.
fn read_all(file: &CachedFile, seed: u64) {
    let mut page = [0; PAGE];
    for offset in (0..file.len()).step_by(PAGE) {
        let count = file.read_at(offset, &mut page).unwrap();
        check(seed, offset, &page[..count]);
    }
}

/// Creates a file larger than a cache of `frames` frames: reading it evicts everything else.
fn large(disk: &SimDisk, cache: &PageCache, frames: u64) -> CachedFile {
    disk.create_patterned("/large", 4 * frames * PAGE_LEN, 5).unwrap();
    cache.open("/large").unwrap()
}

/// In TerarkDB with one shard, a read across several resident pages returned 0 bytes.
#[test]
fn a_read_across_pages_that_all_hit_gives_all_bytes() {
    let (disk, cache) = sim(20, 100);
    let file = cache.open("/file").unwrap();
    read_all(&file, SEED);
    let before = disk.stats().reads;
    for (offset, len) in [(0, 2), (0, 20), (1, 2), (4095, 1), (3 * PAGE_LEN - 1, 10), (PAGE_LEN - 1, 1)] {
        for odd in [0, 1, 2] {
            let mut buf = vec![0; usize::try_from(len * PAGE_LEN).unwrap().saturating_sub(1) + odd];
            let expected = buf.len().min(usize::try_from(file.len() - offset).unwrap());
            assert_eq!(file.read_at(offset, &mut buf).unwrap(), expected);
            check(SEED, offset, &buf[..expected]);
        }
    }
    assert_eq!(disk.stats().reads, before, "not all were hits");
}

/// Returns the result of each way to read a page.
fn read_every_way(file: &CachedFile, page: u64) -> Vec<Result<(), Error>> {
    let mut buf = [0; 100];
    let mut across = [0; 2 * PAGE];
    let mut other = [0; 10];
    let mut requests =
        [ReadRequest::new(page * PAGE_LEN, &mut buf), ReadRequest::new(page * PAGE_LEN + 7, &mut other)];
    let mut results = vec![file.read_many(&mut requests)];
    results.extend([
        file.read_at(page * PAGE_LEN, &mut buf).map(drop),
        file.read_at(page * PAGE_LEN, &mut across).map(drop),
        file.page(PageNo::new(page)).map(drop),
        file.page_ref(PageNo::new(page)).map(drop),
        block_on(file.read_at_async(page * PAGE_LEN, &mut buf)).map(drop),
        block_on(file.read_at_async(page * PAGE_LEN, &mut across)).map(drop),
    ]);
    results
}

/// In TerarkDB, a device's error or a read of less than a page ended the process.
#[test]
fn a_device_that_fails_is_an_error_until_it_works_again() {
    let (disk, cache) = sim(20, 100);
    let file = cache.open("/file").unwrap();
    disk.inject("/file", 5 * PAGE_LEN + 10..5 * PAGE_LEN + 11, Fault::EIO, Times::Always).unwrap();
    for result in read_every_way(&file, 5) {
        assert!(matches!(&result, Err(Error::Io(error)) if error.errno() == Some(libc::EIO)), "{result:?}");
    }
    assert!(cache.stats().failures >= 7, "{}", cache.stats());
    disk.heal("/file").unwrap();
    for result in read_every_way(&file, 5) {
        result.unwrap();
    }
    read_all(&file, SEED);
}

/// A verifier that reads its own page, or the whole file, gets an error with that reason, by every
/// way to read.
#[test]
fn a_verifier_that_reads_its_own_file_does_not_wait_for_itself() {
    let opened: Arc<OnceLock<CachedFile>> = Arc::default();
    let in_verifier = Arc::clone(&opened);
    let disk = SimDisk::new();
    disk.create_patterned("/file", 20 * PAGE_LEN, SEED).unwrap();
    let verifier = move |page: &LoadedPage<'_>| {
        let Some(file) = in_verifier.get() else { return Ok(()) };
        let own = read_every_way(file, page.page().get()).into_iter();
        let words: Vec<_> = own.filter_map(|result| Some(result.err()?.to_string())).collect();
        match &words[..] {
            [first, ..] if words.len() == 7 => Err(first.clone()),
            others => Err(format!("not every way was refused: {others:?}")),
        }
    };
    let cache = sim_options(&disk, 100, PAGE).verifier(verifier).build().unwrap();
    let file = cache.open("/file").unwrap();
    file.page(PageNo::new(1)).unwrap();
    opened.set(file.clone()).unwrap();
    for result in read_every_way(&file, 5) {
        let error = result.unwrap_err();
        assert!(error.to_string().ends_with("a verifier asked for it, and would wait for itself"), "{error}");
    }
    file.prefetch(7 * PAGE_LEN..9 * PAGE_LEN);
    assert!(matches!(file.page(PageNo::new(8)), Err(Error::Rejected { .. })));
    check(SEED, PAGE_LEN, &file.page(PageNo::new(1)).unwrap());
}

/// A verifier that waits for futures of absent pages of its file gets an error, too: its thread may
/// be the one that settles their loads. It can read pages in the cache.
#[test]
fn a_verifier_that_awaits_absent_pages_of_its_file_does_not_wait_for_itself() {
    let opened: Arc<OnceLock<CachedFile>> = Arc::default();
    let in_verifier = Arc::clone(&opened);
    let disk = SimDisk::new();
    disk.create_patterned("/file", 20 * PAGE_LEN, SEED).unwrap();
    let verifier = move |page: &LoadedPage<'_>| {
        let Some(file) = in_verifier.get() else { return Ok(()) };
        let mut across = [0; 2 * PAGE];
        block_on(file.read_at_async(PAGE_LEN, &mut across)).map_err(|error| error.to_string())?;
        check(SEED, PAGE_LEN, &across);
        let absent = (page.page().get() + 5) * PAGE_LEN;
        for len in [100, PAGE, 2 * PAGE] {
            let result = block_on(file.read_at_async(absent, &mut across[..len]));
            if !matches!(result, Err(Error::WithinVerifier { .. })) {
                return Err(format!("{result:?}"));
            }
        }
        Ok(())
    };
    let cache = sim_options(&disk, 100, PAGE).verifier(verifier).build().unwrap();
    let file = cache.open("/file").unwrap();
    file.read_at(PAGE_LEN, &mut [0; 2 * PAGE]).unwrap();
    opened.set(file.clone()).unwrap();
    let mut page = [0; PAGE];
    block_on(file.read_at_async(5 * PAGE_LEN, &mut page)).unwrap();
    check(SEED, 5 * PAGE_LEN, &page);
    file.read_at(6 * PAGE_LEN, &mut page).unwrap();
    file.prefetch(7 * PAGE_LEN..8 * PAGE_LEN);
    file.page(PageNo::new(7)).unwrap();
}

/// An earlier version refused a verifier that read the page of the same number from a file of
/// another cache, as if it waited for itself.
#[test]
fn a_verifier_can_read_through_another_cache() {
    let disk = SimDisk::new();
    disk.create_patterned("/file", 20 * PAGE_LEN, SEED).unwrap();
    let cache = || sim_options(&disk, 100, PAGE);
    let other = cache().verifier(|_| Ok(())).build().unwrap();
    let checksums = other.open("/file").unwrap();
    let id = checksums.id();
    let verifier = move |page: &LoadedPage<'_>| {
        assert_eq!(page.file_id(), id);
        let kept = checksums.page(page.page()).map_err(|error| error.to_string())?;
        if *kept == *page.bytes() { Ok(()) } else { Err("other bytes".to_owned()) }
    };
    let file = cache().verifier(verifier).build().unwrap().open("/file").unwrap();
    read_all(&file, SEED);
    assert_eq!(other.stats().misses, 20);
}

/// As above: the file is shorter than it was.
#[test]
fn a_truncated_file_is_reported_as_such() {
    let (disk, cache) = sim(20, 100);
    let file = cache.open("/file").unwrap();
    file.page(PageNo::new(1)).unwrap();
    disk.inject("/file", 9 * PAGE_LEN..10 * PAGE_LEN, Fault::Cut(5 * PAGE_LEN + 100), Times::Once).unwrap();
    for result in read_every_way(&file, 9) {
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::Cut { opened, now, .. } if (opened, now) == (20 * PAGE_LEN, 5 * PAGE_LEN + 100))
        );
        assert!(error.to_string().starts_with("/file: cut to 20580 bytes"), "{error}");
    }
    check(SEED, PAGE_LEN, &file.page(PageNo::new(1)).unwrap());
    let again = cache.open("/file").unwrap();
    assert_eq!(again.len(), 5 * PAGE_LEN + 100);
    read_all(&again, SEED);
}

/// Short counts and signals are not errors, and do not shorten pages.
#[test]
fn a_short_count_or_a_signal_is_continued() {
    let (disk, cache) = sim(20, 100);
    let file = cache.open("/file").unwrap();
    for page in 0..20 {
        let range = page * PAGE_LEN..(page + 1) * PAGE_LEN;
        let fault = if page % 2 == 0 {
            Fault::Short(1 + 100 * usize::try_from(page).unwrap())
        } else {
            Fault::INTERRUPTED
        };
        disk.inject("/file", range, fault, Times::Once).unwrap();
    }
    let mut whole = vec![0; 20 * PAGE];
    assert_eq!(file.read_at(0, &mut whole).unwrap(), whole.len());
    check(SEED, 0, &whole);
    assert_eq!(disk.stats().faults, 20);
}

/// A bad page fails only its own reads, however large the read of the device was.
#[test]
fn a_bad_page_fails_alone() {
    let (disk, cache) = sim(20, 200);
    disk.inject("/file", 5 * PAGE_LEN..5 * PAGE_LEN + 1, Fault::EIO, Times::Always).unwrap();
    let file = cache.open("/file").unwrap();
    let mut bufs = vec![[0; PAGE]; 16];
    let mut requests: Vec<_> =
        (0..).zip(&mut bufs).map(|(n, buf)| ReadRequest::new(n * PAGE_LEN, buf)).collect();
    file.read_many(&mut requests).unwrap_err();
    for (page, request) in requests.iter().enumerate() {
        assert_eq!(request.outcome().is_ok(), page != 5, "page {page}: {:?}", request.outcome());
        if page != 5 {
            check(SEED, page as u64 * PAGE_LEN, request.bytes());
        }
    }

    // The same for callers that wait for a read of another caller.
    file.close();
    let file = cache.open("/file").unwrap();
    let hold = disk.hold("/file", 0..20 * PAGE_LEN).unwrap();
    assert_eq!(file.prefetch(0..16 * PAGE_LEN), 16);
    hold.wait_for(1);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..16)
            .map(|page| {
                let file = &file;
                (page, scope.spawn(move || file.page_ref(PageNo::new(page))))
            })
            .collect();
        await_coalesced(&cache, 16);
        drop(hold);
        for (page, reader) in readers {
            match reader.join().unwrap() {
                Ok(bytes) if page != 5 => check(SEED, page * PAGE_LEN, &bytes),
                Err(Error::Io(_)) if page == 5 => {}
                other => panic!("page {page}: {other:?}"),
            }
        }
    });
}

/// In TerarkDB, `close()` with a buffer in use corrupts its list.
#[test]
fn a_file_is_closed_while_guards_of_it_live() {
    let (disk, cache) = sim(50, 64);
    let other = large(&disk, &cache, 64);
    for round in 0..20 {
        let file = cache.open("/file").unwrap();
        let guards: Vec<_> = (0..10).map(|page| file.page(PageNo::new(page)).unwrap()).collect();
        let refs: Vec<_> = (5..15).map(|page| file.page_ref(PageNo::new(page)).unwrap()).collect();
        // A page that was read often is read by the fast path.
        (0..10).for_each(|_| assert_eq!(file.read_at(0, &mut [0; 10]).unwrap(), 10));
        file.close();
        let (mut some, mut none) = ([0; 10], [[]; 2]);
        let [at_start, at_page] = &mut none;
        let mut requests = [
            ReadRequest::new(0, &mut some),
            ReadRequest::new(0, at_start),
            ReadRequest::new(PAGE_LEN, at_page),
        ];
        assert!(matches!(file.read_many(&mut requests), Err(Error::Closed { .. })));
        let [refused, empty @ ..] = &requests;
        assert!(matches!(refused.outcome(), Err(Error::Closed { .. })), "{refused:?}");
        // A read of nothing always succeeds.
        assert!(empty.iter().all(|request| matches!(request.outcome(), Ok(0))), "{empty:?}");
        assert_eq!(file.read_at(0, &mut []).unwrap(), 0);
        assert!(matches!(file.read_at(0, &mut [0; 10]), Err(Error::Closed { .. })));
        assert!(matches!(file.page(PageNo::new(0)), Err(Error::Closed { .. })));
        assert!(matches!(file.page_ref(PageNo::new(20)), Err(Error::Closed { .. })));
        assert_eq!(file.prefetch(0..PAGE_LEN), 0);
        read_all(&other, 5);
        for (page, guard) in (0..).zip(&guards) {
            check(SEED, page * PAGE_LEN, guard);
        }
        drop(guards);
        read_all(&other, 5);
        if round % 2 == 0 {
            drop(file);
        }
        for (page, page_ref) in (5..).zip(&refs) {
            check(SEED, page * PAGE_LEN, page_ref);
        }
    }
    // No frame was lost, and none is used twice: all of them can be filled.
    read_all(&other, 5);
    assert_eq!(other.resident_pages(), cache.stats().resident_pages);
    let (resident, capacity) = (cache.stats().resident_pages, cache.stats().capacity_pages);
    assert!(resident + 2 >= capacity, "{resident} of {capacity} frames can be used");
}

/// An earlier version freed a page's frame under its guard if the file was closed while the page
/// was loaded.
#[test]
fn a_file_is_closed_while_a_page_is_loaded_for_a_guard() {
    let (disk, cache) = sim(10, 64);
    let other = large(&disk, &cache, 64);
    for page in 0..4 {
        let file = cache.open("/file").unwrap();
        let hold = disk.hold("/file", 0..10 * PAGE_LEN).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                if page % 2 == 0 {
                    let guard = file.page(PageNo::new(page)).unwrap();
                    for _ in 0..3 {
                        read_all(&other, 5);
                        check(SEED, page * PAGE_LEN, &guard);
                    }
                } else {
                    let page_ref = file.page_ref(PageNo::new(page)).unwrap();
                    for _ in 0..3 {
                        read_all(&other, 5);
                        check(SEED, page * PAGE_LEN, &page_ref);
                    }
                }
            });
            hold.wait_for(1);
            file.close();
            drop(hold);
        });
    }
}

/// In TerarkDB, 16 bits count the pins of a page.
#[test]
fn a_page_can_be_pinned_more_than_65536_times() {
    let (disk, cache) = sim(10, 64);
    let other = large(&disk, &cache, 64);
    let file = cache.open("/file").unwrap();
    let mut refs: Vec<_> = (0..70_000).map(|_| file.page_ref(PageNo::new(3)).unwrap()).collect();
    read_all(&other, 5);
    // At 65,536 fewer, a count of 16 bits would be back at zero pins.
    refs.truncate(70_000 - 65_536);
    read_all(&other, 5);
    check(SEED, 3 * PAGE_LEN, &refs[0]);
    refs.truncate(1);
    read_all(&other, 5);
    check(SEED, 3 * PAGE_LEN, &refs[0]);
    assert_eq!(file.resident_pages(), 1);
    file.close();
    refs.clear();
    read_all(&other, 5);
    // If a count had wrapped, its frame or the total would be lost.
    assert_eq!(other.resident_pages(), cache.stats().resident_pages);
    assert!(cache.stats().resident_pages + 2 >= cache.stats().capacity_pages, "{}", cache.stats());
}

/// In a vector database's cache, a returned page isn't pinned, so a hit can be overwritten while it
/// is read.
#[test]
fn a_page_is_not_overwritten_while_it_is_read() {
    let (disk, cache) = sim(200, 64);
    let file = cache.open("/file").unwrap();
    let other = large(&disk, &cache, 64);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    read_all(&other, 5);
                }
            });
        }
        let readers: Vec<_> = (0..2)
            .map(|reader| {
                let file = &file;
                scope.spawn(move || {
                    for n in 0..300 {
                        let page = (n * 7 + reader) % 200;
                        let guard = file.page(PageNo::new(page)).unwrap();
                        let kept = file.page_ref(PageNo::new((page + 1) % 200)).unwrap();
                        for _ in 0..5 {
                            check(SEED, page * PAGE_LEN, &guard);
                            check(SEED, (page + 1) % 200 * PAGE_LEN, &kept);
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let ended: Vec<_> = readers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
    assert!(cache.stats().evictions > 0);
}

/// ScyllaDB's `cached_file`: each of several concurrent misses of a page reads it.
#[test]
fn concurrent_misses_of_a_page_are_one_read() {
    const READERS: u64 = 80;
    let (disk, cache) = sim(10, 64);
    let file = cache.open("/file").unwrap();
    let hold = disk.hold("/file", 0..10 * PAGE_LEN).unwrap();
    thread::scope(|scope| {
        for reader in 0..READERS {
            let file = &file;
            scope.spawn(move || {
                let mut buf = [0; 100];
                let offset = 7 * PAGE_LEN + reader;
                let within =
                    |page: &[u8]| page[usize::try_from(reader).unwrap()..][..100].try_into().unwrap();
                match reader % 5 {
                    0 => assert_eq!(file.read_at(offset, &mut buf).unwrap(), 100),
                    1 => assert_eq!(block_on(file.read_at_async(offset, &mut buf)).unwrap(), 100),
                    2 => file.read_many(&mut [ReadRequest::new(offset, &mut buf)]).unwrap(),
                    3 => buf = within(&file.page(PageNo::new(7)).unwrap()),
                    _ => buf = within(&file.page_ref(PageNo::new(7)).unwrap()),
                }
                check(SEED, offset, &buf);
            });
        }
        await_coalesced(&cache, READERS - 1);
        assert_eq!(hold.held(), 1);
        drop(hold);
    });
    let stats = cache.stats();
    assert_eq!((disk.stats().reads, stats.device_reads, stats.misses), (1, 1, 1));
    assert_eq!((stats.hits, stats.coalesced), (0, READERS - 1), "{stats}");
}

/// In RocksDB, pages of deleted files stay in the cache until they are the oldest.
#[test]
fn the_frames_of_a_closed_file_are_used_first() {
    let disk = SimDisk::new();
    let cache = sim_cache(&disk, 300, PAGE);
    for (path, seed) in [("/kept", 1), ("/closed", 2), ("/new", 3)] {
        disk.create_patterned(path, 90 * PAGE_LEN, seed).unwrap();
    }
    let kept = cache.open("/kept").unwrap();
    read_all(&kept, 1);
    let closed = cache.open("/closed").unwrap();
    // Read more often than anything else.
    for _ in 0..5 {
        read_all(&closed, 2);
    }
    closed.close();
    drop(closed);
    for round in 0..4 {
        let new = cache.open("/new").unwrap();
        read_all(&new, 3);
        assert_eq!((new.resident_pages(), kept.resident_pages()), (90, 90), "round {round}");
    }
    assert_eq!(cache.stats().evictions, 0, "{}", cache.stats());
}

/// A deleted file's blocks stay in use as long as somebody has it open: cached pages must not keep
/// it open.
#[test]
fn a_closed_files_descriptor_goes_with_its_last_handle() {
    let dir = disk_dir();
    let path = dir.path().canonicalize().unwrap().join("deleted");
    write_patterned(&path, 1, 0..10 * PAGE_LEN);
    let cache = PageCache::options().memory(8 << 20).build().unwrap();
    let descriptors = || {
        let links = std::fs::read_dir("/proc/self/fd").unwrap();
        links
            .filter(|link| {
                std::fs::read_link(link.as_ref().unwrap().path())
                    .is_ok_and(|to| to.to_string_lossy().starts_with(&*path.to_string_lossy()))
            })
            .count()
    };
    let file = cache.open(&path).unwrap();
    read_all(&file, 1);
    let page_ref = file.page_ref(PageNo::new(4)).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(descriptors(), 1);
    check(1, 2 * PAGE_LEN, &file.page(PageNo::new(2)).unwrap());
    file.close();
    drop(file);
    check(1, 4 * PAGE_LEN, &page_ref);
    drop(page_ref);
    assert_eq!(descriptors(), 0, "closed, with pages of it in the cache");
}

/// In moka all reads go through one channel, and 256 readers have a ninth of the throughput of one.
/// The speed is measured in `bench`. This test checks that all readers make progress, and that none
/// is lost.
#[test]
fn many_readers_of_one_page_all_get_on() {
    const READERS: u64 = 256;
    const READS: u64 = 200;
    let (_, cache) = sim(10, 64);
    let file = cache.open("/file").unwrap();
    file.page(PageNo::new(3)).unwrap();
    let expected = bytes(SEED, 3 * PAGE_LEN, 100);
    let before = cache.stats();
    let (together, read) = (Barrier::new(256), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                together.wait();
                let mut buf = [0; 100];
                for n in 0..READS {
                    if n % 2 == 0 {
                        assert_eq!(file.read_at(3 * PAGE_LEN, &mut buf).unwrap(), 100);
                    } else {
                        buf.copy_from_slice(&file.page(PageNo::new(3)).unwrap()[..100]);
                    }
                    assert!(buf[..] == expected);
                    read.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(read.into_inner(), READERS * READS);
    assert_eq!(cache.stats().hits - before.hits, READERS * READS);
    assert_eq!(cache.stats().device_reads, 1);
}

/// In an earlier version a future whose verifier panicked waited forever if no frame was left.
#[test]
fn a_verifier_that_panics_beside_a_full_cache_ends_the_future() {
    let disk = SimDisk::new();
    disk.create_patterned("/file", 100 * PAGE_LEN, SEED).unwrap();
    let cache = sim_options(&disk, 64, PAGE)
        .verifier(|page| {
            assert!(page.page().get() != 90, "as it is meant to be");
            Ok(())
        })
        .build()
        .unwrap();
    let file = cache.open("/file").unwrap();
    let kept: Vec<_> = (0..80).map(|page| file.page_ref(PageNo::new(page)).unwrap()).collect();
    assert!(cache.stats().bypassed > 0, "{}", cache.stats());
    let result = block_on(file.read_at_async(90 * PAGE_LEN, &mut [0; 10]));
    assert!(matches!(result, Err(Error::LoaderPanicked { page, .. }) if page.get() == 90), "{result:?}");
    block_on(file.read_at_async(91 * PAGE_LEN, &mut [0; 10])).unwrap();
    for (page, kept) in (0..).zip(&kept) {
        check(SEED, page * PAGE_LEN, kept);
    }
}

/// In an earlier version a guard that outlived its thread's record released the hold of another
/// guard.
#[test]
fn guards_live_to_the_end_of_their_thread() {
    static FILE: OnceLock<CachedFile> = OnceLock::new();
    /// Dropped after the cache's own record of the thread, since it was created before that.
    struct LastDropped {
        guard: Option<PageGuard<'static>>,
        large: CachedFile,
        file: &'static CachedFile,
        done: mpsc::Sender<[bool; 3]>,
    }
    impl Drop for LastDropped {
        fn drop(&mut self) {
            let right = |page: u64, guard: &PageGuard<'_>| **guard == bytes(SEED, page * PAGE_LEN, PAGE)[..];
            let evict = || {
                let mut page = [0; PAGE];
                (0..self.large.pages()).for_each(|n| drop(self.large.read_at(n * PAGE_LEN, &mut page)));
            };
            let other = self.file.page(PageNo::new(2)).unwrap();
            evict();
            let first = self.guard.as_ref().is_some_and(|guard| right(1, guard));
            self.guard = None;
            let mut page = [0; PAGE];
            (0..self.large.pages()).for_each(|n| drop(self.large.read_at(n * PAGE_LEN, &mut page)));
            let second = right(2, &other);
            drop(other);
            let third = self.file.page(PageNo::new(3)).is_ok_and(|guard| right(3, &guard));
            self.done.send([first, second, third]).unwrap();
        }
    }
    thread_local!(static LAST_DROPPED: RefCell<Option<LastDropped>> = const { RefCell::new(None) });

    let (disk, cache) = sim(10, 64);
    let large = large(&disk, &cache, 64);
    let file = FILE.get_or_init(|| cache.open("/file").unwrap());
    let (done, ended) = mpsc::channel();
    thread::spawn(move || {
        LAST_DROPPED.set(Some(LastDropped { guard: None, large, file, done }));
        let guard = file.page(PageNo::new(1)).unwrap();
        LAST_DROPPED.with_borrow_mut(|last| last.as_mut().unwrap().guard = Some(guard));
    })
    .join()
    .unwrap();
    assert_eq!(ended.recv().unwrap(), [true; 3]);
}

/// Databases delete files that other threads still read.
#[test]
fn a_deleted_file_can_be_read_as_long_as_it_is_open() {
    let dir = disk_dir();
    let path = dir.path().join("deleted");
    write_patterned(&path, 1, 0..50 * PAGE_LEN);
    let cache = PageCache::options().memory(8 << 20).build().unwrap();
    let file = cache.open(&path).unwrap();
    check(1, 0, &file.page(PageNo::new(0)).unwrap());
    std::fs::remove_file(&path).unwrap();
    read_all(&file, 1);
    assert!(cache.open(&path).unwrap_err().to_string().contains("No such file"));
    let mut plain = Vec::new();
    write_patterned(&path, 2, 0..PAGE_LEN);
    std::fs::File::open(&path).unwrap().read_to_end(&mut plain).unwrap();
    check(2, 0, &plain);
    check(2, 0, &cache.open(&path).unwrap().page(PageNo::new(0)).unwrap());
    read_all(&file, 1);
}

/// A thread that ended while it had guards leaves its frames and its slot to other threads.
#[test]
fn threads_come_and_go() {
    let (disk, cache) = sim(10, 64);
    let other = large(&disk, &cache, 64);
    let file = Arc::new(cache.open("/file").unwrap());
    for round in 0..2000 {
        let file = Arc::clone(&file);
        thread::spawn(move || {
            let page = round % 10;
            let guard = file.page(PageNo::new(page)).unwrap();
            assert_eq!(guard[..50], bytes(SEED, page * PAGE_LEN, 50));
            if round % 100 == 0 {
                // Only the guard's frame is lost.
                std::mem::forget(file.page(PageNo::new((round / 100) % 10)).unwrap());
            }
        })
        .join()
        .unwrap();
    }
    read_all(&other, 5);
    read_all(&file, SEED);
    assert!(cache.stats().resident_pages + 12 >= cache.stats().capacity_pages, "{}", cache.stats());
}

/// Futures that wait for a read past the cache take turns. Futures that were dropped, or that
/// nobody polls any more, do not make others wait.
#[test]
fn futures_that_are_dropped_or_left_alone_hold_no_other_up() {
    const FRAMES: u32 = 64;
    const FUTURES: u64 = 300;
    let (_disk, cache) = sim(u64::from(FRAMES) + FUTURES, FRAMES);
    let file = cache.open("/file").unwrap();
    // All frames are held.
    let frames = cache.capacity_pages();
    let _guards: Vec<_> = (0..frames).map(|page| file.page_ref(PageNo::new(page)).unwrap()).collect();
    let waker = std::task::Waker::noop();
    let mut futures: Vec<_> = (0..FUTURES)
        .map(|number| {
            let file = &file;
            Box::pin(async move {
                let mut page = [0; PAGE];
                let offset = (frames + number) * PAGE_LEN;
                file.read_at_async(offset, &mut page).await.unwrap();
                check(SEED, offset, &page);
            })
        })
        .collect();
    // A future that finds a free turn may end at once.
    futures
        .retain_mut(|future| future.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_pending());
    let last = futures.pop().unwrap();
    futures.drain(..100);
    block_on(last);
    let bypassed = cache.stats().bypassed;
    assert!(bypassed >= 190, "only {bypassed} were read");
    for future in futures {
        block_on(future);
    }
}
