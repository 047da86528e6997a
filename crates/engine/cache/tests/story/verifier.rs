//! Checksums: each page is checked once, when it is loaded. Nobody gets a rejected page, and it is
//! not kept.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use pagekeeper_cache::{CachedFile, Error, LoadedPage, OpenOptions, PageCache, PageNo, ReadRequest};
use pagekeeper_simdisk::SimDisk;

use crate::support::tasks::{block_on, block_on_all};
use crate::support::{PAGE, SEED, await_coalesced, bytes, check, sim_options, write_patterned};
use pagekeeper_testing::{disk_dir, skip};

const PAGE_LEN: u64 = PAGE as u64;
/// The time for which a verifier waits for another one.
const VERIFIER_WAIT_MAX: Duration = Duration::from_secs(30);

/// The state of the verifier of [`set_up`], with the number of its calls.
#[derive(Default)]
struct VerifierState {
    calls: AtomicU64,
    rejects: AtomicBool,
    panics: AtomicBool,
}

/// Returns a file of 20 pages and 100 bytes; the verifier checks all of them and is to reject page
/// 7.
fn set_up() -> (SimDisk, PageCache, Arc<VerifierState>) {
    let disk = SimDisk::new();
    disk.create_patterned("/file", 20 * PAGE_LEN + 100, SEED).unwrap();
    let verifier = Arc::new(VerifierState::default());
    let state = Arc::clone(&verifier);
    let cache = sim_options(&disk, 200, PAGE)
        .verifier(move |page| {
            state.calls.fetch_add(1, Ordering::SeqCst);
            assert_eq!(page.offset(), page.page().get() * PAGE_LEN);
            assert_eq!(page.path(), "/file");
            let expected = if page.page().get() == 20 { 100 } else { PAGE };
            assert!(page.bytes() == bytes(SEED, page.offset(), expected), "not the page's bytes");
            assert!(page.page().get() != 7 || !state.panics.load(Ordering::SeqCst), "as it is meant to be");
            if page.page().get() == 7 && state.rejects.load(Ordering::SeqCst) {
                return Err(format!("its checksum is {:#x}", 0x5eed));
            }
            Ok(())
        })
        .build()
        .unwrap();
    (disk, cache, verifier)
}

fn read_all(file: &CachedFile) {
    let mut whole = vec![0; 20 * PAGE + 100];
    assert_eq!(file.read_at(0, &mut whole).unwrap(), whole.len());
    check(SEED, 0, &whole);
}

#[test]
fn each_page_is_verified_once_on_every_load_path() {
    let (_, cache, verifier) = set_up();
    let file = cache.open("/file").unwrap();
    file.prefetch(0..4 * PAGE_LEN);
    file.page(PageNo::new(4)).unwrap();
    file.page_ref(PageNo::new(5)).unwrap();
    file.read_at(6 * PAGE_LEN, &mut [0; 10]).unwrap();
    let (mut one, mut other) = ([0; 10], [0; 10]);
    file.read_many(&mut [
        ReadRequest::new(8 * PAGE_LEN, &mut one),
        ReadRequest::new(20 * PAGE_LEN, &mut other),
    ])
    .unwrap();
    block_on(file.read_at_async(9 * PAGE_LEN + 9, &mut [0; 2 * PAGE])).unwrap();
    for _ in 0..3 {
        read_all(&file);
    }
    assert_eq!(verifier.calls.load(Ordering::SeqCst), 21);
}

/// Returns the results of several readers of page 7 that wait for one load of it, each in its own
/// way; the loader's first.
fn read_together(
    disk: &SimDisk,
    cache: &PageCache,
    file: &CachedFile,
) -> Vec<thread::Result<Result<(), Error>>> {
    let hold = disk.hold("/file", 7 * PAGE_LEN..8 * PAGE_LEN).unwrap();
    let waiting = cache.stats().coalesced;
    thread::scope(|scope| {
        let mut readers = vec![scope.spawn(|| file.read_at(7 * PAGE_LEN, &mut [0; 10]).map(drop))];
        hold.wait_for(1);
        readers.push(scope.spawn(|| file.read_at(7 * PAGE_LEN + 1, &mut [0; 10]).map(drop)));
        readers.push(scope.spawn(|| file.page(PageNo::new(7)).map(drop)));
        readers.push(scope.spawn(|| file.page_ref(PageNo::new(7)).map(drop)));
        readers.push(scope.spawn(|| block_on(file.read_at_async(7 * PAGE_LEN, &mut [0; 10])).map(drop)));
        readers.push(scope.spawn(|| file.read_many(&mut [ReadRequest::new(7 * PAGE_LEN, &mut [0; 10])])));
        await_coalesced(cache, waiting + 5);
        drop(hold);
        readers.into_iter().map(thread::ScopedJoinHandle::join).collect()
    })
}

#[test]
fn a_rejected_page_fails_for_all_waiters_and_is_not_kept() {
    let (disk, cache, verifier) = set_up();
    let file = cache.open("/file").unwrap();
    verifier.rejects.store(true, Ordering::SeqCst);
    for outcome in read_together(&disk, &cache, &file) {
        let error = outcome.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "page 7 of /file: its checksum is 0x5eed");
        assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::InvalidData);
    }
    assert_eq!(verifier.calls.load(Ordering::SeqCst), 1);
    assert_eq!((file.resident_pages(), cache.stats().failures), (0, 1));
    // Its neighbours are fine, also when they are read together with it.
    let mut bufs = vec![[0; PAGE]; 10];
    let mut requests: Vec<_> =
        (0..).zip(&mut bufs).map(|(n, buf)| ReadRequest::new(n * PAGE_LEN, buf)).collect();
    file.read_many(&mut requests).unwrap_err();
    let failed: Vec<_> = requests.iter().map(|request| request.outcome().is_err()).collect();
    assert_eq!(failed.iter().position(|failed| *failed), Some(7));
    assert_eq!(failed.iter().filter(|failed| **failed).count(), 1);
    // Once the page is good, the next read succeeds.
    verifier.rejects.store(false, Ordering::SeqCst);
    check(SEED, 7 * PAGE_LEN, &file.page(PageNo::new(7)).unwrap());
    read_all(&file);
}

#[test]
fn a_verifier_that_panics_panics_its_reader_and_is_an_error_for_the_others() {
    let (disk, cache, verifier) = set_up();
    let file = cache.open("/file").unwrap();
    verifier.panics.store(true, Ordering::SeqCst);
    let outcomes = read_together(&disk, &cache, &file);
    assert!(outcomes[0].is_err(), "its own reader gets the error");
    for outcome in &outcomes[1..] {
        let outcome = outcome.as_ref().unwrap();
        assert!(matches!(outcome, Err(Error::LoaderPanicked { page, .. }) if page.get() == 7), "{outcome:?}");
    }
    // A panic does not reach a future, and a batch returns all that it took.
    let result = block_on(file.read_at_async(0, &mut vec![0; 20 * PAGE]));
    assert!(matches!(result, Err(Error::LoaderPanicked { .. })), "{result:?}");
    catch_unwind(AssertUnwindSafe(|| file.read_at(6 * PAGE_LEN, &mut [0; 3 * PAGE]))).unwrap_err();
    catch_unwind(AssertUnwindSafe(|| file.page(PageNo::new(7)).map(drop))).unwrap_err();
    file.prefetch(0..20 * PAGE_LEN);
    verifier.panics.store(false, Ordering::SeqCst);
    // Pages of the prefetch may not have reached the panic yet.
    for page in 0..20 {
        while let Err(error) = file.page(PageNo::new(page)).map(drop) {
            assert!(matches!(error, Error::LoaderPanicked { .. }), "{error}");
        }
    }
    read_all(&file);
}

#[test]
fn a_file_can_have_a_verifier_of_its_own() {
    let (_, cache, verifier) = set_up();
    let own = OpenOptions::new().verifier(|page| Err(format!("no page {} for anyone", page.page())));
    let file = cache.open_with("/file", own).unwrap();
    assert_eq!(file.page(PageNo::new(3)).unwrap_err().to_string(), "page 3 of /file: no page 3 for anyone");
    let plain = cache.open("/file").unwrap();
    assert_ne!(plain.id(), file.id());
    read_all(&plain);
    file.page(PageNo::new(3)).unwrap_err();
    assert_eq!(verifier.calls.load(Ordering::SeqCst), 21);
}

#[test]
fn pages_that_futures_read_are_verified_by_several_threads_at_once() {
    if std::thread::available_parallelism().map_or(1, std::num::NonZero::get) < 2 {
        return skip("there is one processor");
    }
    let dir = disk_dir();
    let path = dir.path().join("file");
    write_patterned(&path, SEED, 0..64 * PAGE_LEN);
    // Each call waits for another one that verifies at the same time.
    let (here, changed) = (Mutex::new((0_u32, 0_u32)), Condvar::new());
    let verifier = move |page: &LoadedPage<'_>| {
        let mut counts = here.lock().unwrap();
        counts.0 += 1;
        counts.1 = counts.1.max(counts.0);
        changed.notify_all();
        let (mut counts, _) =
            changed.wait_timeout_while(counts, VERIFIER_WAIT_MAX, |(_, most)| *most < 2).unwrap();
        counts.0 -= 1;
        if counts.1 < 2 {
            return Err("nobody else verifies".to_owned());
        }
        if page.page().get() == 7 { Err("the seventh".to_owned()) } else { Ok(()) }
    };
    let cache = PageCache::options().memory(16 << 20).verifier(verifier).build().unwrap();
    let file = cache.open(&path).unwrap();
    // Not neighbours: each is a separate read.
    let reads: Vec<_> = (0..32_u64).map(|nth| (nth * 2 + 1) * PAGE_LEN).collect();
    let mut futures: Vec<_> = reads
        .iter()
        .map(|&offset| {
            let file = file.clone();
            Box::pin(async move {
                let mut buffer = [0; 100];
                file.read_at_async(offset, &mut buffer).await.map(|_| buffer)
            })
        })
        .collect();
    for (offset, read) in reads.iter().zip(block_on_all(&mut futures)) {
        match read {
            Ok(buffer) => check(SEED, *offset, &buffer),
            Err(Error::Rejected { page, reason, .. }) if page.get() == 7 => {
                assert_eq!(&*reason, "the seventh");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
