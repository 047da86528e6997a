//! A small mix of all operations, on a simulated disk, for an interpreter. Miri
//! (`scripts/sanitize.sh`) checks each access to memory for races and for violations of Rust's
//! rules that no other test can see.

mod support;

use std::thread;

use pagekeeper_cache::{Error, PageCache, PageNo, ReadRequest};
use pagekeeper_simdisk::{Fault, SimDisk, Times};

use support::tasks::block_on;
use support::{PAGE, SEED, bytes, sim};

const PAGE_LEN: u64 = PAGE as u64;

/// Checks the first bytes of a page. Checking all would take an interpreter long.
fn check(seed: u64, page: u64, got: &[u8]) {
    let got = &got[..got.len().min(16)];
    assert_eq!(got, bytes(seed, page * PAGE_LEN, got.len()), "page {page}");
}

#[test]
fn two_threads_with_all_operations() {
    let (disk, cache) = sim(80, 64);
    for reader in 0..2 {
        disk.create_patterned(format!("/{reader}"), 3 * PAGE_LEN + 5, 2).unwrap();
    }
    let file = cache.open("/file").unwrap();
    thread::scope(|scope| {
        for reader in 0..2 {
            let (file, cache) = (&file, &cache);
            scope.spawn(move || {
                for n in 0..48 {
                    let page = (n * 7 + reader * 40) % 80;
                    let mut buf = [0; 16];
                    match n % 6 {
                        0 => check(SEED, page, &file.page(PageNo::new(page)).unwrap()),
                        1 => check(SEED, page, &file.page_ref(PageNo::new(page)).unwrap()),
                        2 => {
                            assert_eq!(block_on(file.read_at_async(page * PAGE_LEN, &mut buf)).unwrap(), 16);
                            check(SEED, page, &buf);
                        }
                        3 => assert!(file.prefetch(page * PAGE_LEN..(page + 3) * PAGE_LEN) <= 3),
                        4 => {
                            for _ in 0..5 {
                                assert_eq!(file.read_at(page * PAGE_LEN, &mut buf).unwrap(), 16);
                                check(SEED, page, &buf);
                            }
                        }
                        _ => {
                            let other = cache.open(format!("/{reader}")).unwrap();
                            let page_ref = other.page_ref(PageNo::new(3)).unwrap();
                            check(2, 0, &other.page(PageNo::new(0)).unwrap());
                            other.close();
                            assert_eq!(page_ref.len(), 5);
                            check(2, 3, &page_ref);
                        }
                    }
                }
            });
        }
    });
    assert!(cache.stats().evictions > 0, "{}", cache.stats());
}

#[test]
fn a_cache_that_keeps_all_its_frames() {
    let (_disk, cache) = sim(80, 64);
    let file = cache.open("/file").unwrap();
    let guards: Vec<_> = (0..20).map(|page| file.page(PageNo::new(page)).unwrap()).collect();
    let kept: Vec<_> = (20..70).map(|page| file.page_ref(PageNo::new(page)).unwrap()).collect();
    let mut buf = [0; PAGE];
    assert_eq!(block_on(file.read_at_async(75 * PAGE_LEN, &mut buf)).unwrap(), PAGE);
    check(SEED, 75, &buf);
    assert!(cache.stats().bypassed > 0, "{}", cache.stats());
    file.close();
    for (page, guard) in (0..).zip(&guards) {
        check(SEED, page, guard);
    }
    drop(guards);
    drop((file, cache));
    thread::spawn(move || (20..).zip(kept).for_each(|(page, kept)| check(SEED, page, &kept))).join().unwrap();
}

#[test]
fn a_failed_load_is_reported_to_all_callers() {
    let disk = SimDisk::new();
    disk.create_patterned("/file", 20 * PAGE_LEN, SEED).unwrap();
    let cache = support::sim_options(&disk, 64, PAGE)
        .verifier(|page| if page.page().get() == 9 { Err("nine".to_owned()) } else { Ok(()) })
        .build()
        .unwrap();
    disk.inject("/file", 3 * PAGE_LEN..3 * PAGE_LEN + 1, Fault::EIO, Times::Always).unwrap();
    let read = |cache: &PageCache| {
        let file = cache.open("/file").unwrap();
        let mut bufs = vec![[0; 16]; 12];
        let mut requests: Vec<_> =
            (0..).zip(&mut bufs).map(|(n, buf)| ReadRequest::new(n * PAGE_LEN, buf)).collect();
        file.read_many(&mut requests).unwrap_err();
        for (page, request) in (0..).zip(&requests) {
            match request.outcome() {
                Ok(count) => check(SEED, page, &request.bytes()[..*count]),
                Err(Error::Io(_)) => assert_eq!(page, 3),
                Err(Error::Rejected { .. }) => assert_eq!(page, 9),
                Err(other) => panic!("{other}"),
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| read(&cache));
        scope.spawn(|| read(&cache));
    });
}
