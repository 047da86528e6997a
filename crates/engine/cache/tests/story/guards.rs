//! Kept pages: many, for a long time, in any order, on any thread, after everything else is gone.

use std::sync::mpsc;
use std::thread;

use pagekeeper_cache::{PageCache, PageNo, PageRef};
use pagekeeper_simdisk::{Fault, SimDisk, Times};

use crate::support::tasks::block_on;
use crate::support::{PAGE, SEED, bytes, check, sim, sim_cache};
use pagekeeper_testing::Seed;

const PAGE_LEN: u64 = PAGE as u64;

/// Evicts all evictable pages from a cache of `frames` frames.
fn evict(disk: &SimDisk, cache: &PageCache, frames: u64) {
    let _ = disk.create_patterned("/large", 4 * frames * PAGE_LEN, 5);
    let large = cache.open("/large").unwrap();
    let mut page = [0; PAGE];
    for n in 0..4 * frames {
        assert_eq!(large.read_at(n * PAGE_LEN, &mut page).unwrap(), PAGE);
        check(5, n * PAGE_LEN, &page);
    }
}

#[test]
fn a_thread_can_have_more_guards_than_its_record_has_room_for() {
    let seed = Seed::new();
    let mut rng = seed.rng(0);
    let (disk, cache) = sim(60, 100);
    let file = cache.open("/file").unwrap();
    let mut guards = Vec::new();
    for step in 0..1000 {
        if guards.len() < 50 && rng.of(0..9) < 5 {
            let page = rng.of(0..60);
            guards.push((page, file.page(PageNo::new(page)).unwrap()));
        } else if !guards.is_empty() {
            // In any order.
            let at = usize::try_from(rng.number()).unwrap() % guards.len();
            guards.swap_remove(at);
        }
        if step % 100 == 0 {
            evict(&disk, &cache, 100);
            for (page, guard) in &guards {
                check(SEED, page * PAGE_LEN, guard);
            }
        }
    }
}

#[test]
fn reads_go_past_a_cache_all_of_which_is_kept() {
    let (disk, cache) = sim(300, 64);
    let file = cache.open("/file").unwrap();
    let refs: Vec<_> = (0..84).map(|page| file.page_ref(PageNo::new(page)).unwrap()).collect();
    let stats = cache.stats();
    assert_eq!(
        (stats.resident_pages, stats.bypassed),
        (stats.capacity_pages, 84 - stats.capacity_pages),
        "{stats}"
    );

    let (page, bypassed) = (100, stats.bypassed);
    let mut buf = vec![0; 3 * PAGE];
    assert_eq!(file.read_at(page * PAGE_LEN + 1, &mut buf).unwrap(), buf.len());
    check(SEED, page * PAGE_LEN + 1, &buf);
    buf.fill(0);
    assert_eq!(block_on(file.read_at_async(page * PAGE_LEN + 2, &mut buf)).unwrap(), buf.len());
    check(SEED, page * PAGE_LEN + 2, &buf);
    check(SEED, page * PAGE_LEN, &file.page(PageNo::new(page)).unwrap());
    assert_eq!(file.prefetch(page * PAGE_LEN..(page + 9) * PAGE_LEN), 0);
    assert_eq!(cache.stats().bypassed, bypassed + 4 + 4 + 1);
    // A failed read is counted, and the next caller tries again.
    disk.inject("/file", page * PAGE_LEN..page * PAGE_LEN + 1, Fault::EIO, Times::Always).unwrap();
    assert!(file.page(PageNo::new(page)).is_err());
    assert!(block_on(file.read_at_async(page * PAGE_LEN, &mut [0; 9])).is_err());
    assert_eq!(cache.stats().failures, 2);
    disk.heal("/file").unwrap();
    check(SEED, page * PAGE_LEN, &file.page(PageNo::new(page)).unwrap());
    // Kept pages are hits.
    let reads = disk.stats().reads;
    check(SEED, 5 * PAGE_LEN, &file.page(PageNo::new(5)).unwrap());
    assert_eq!(disk.stats().reads, reads);
    for (page, page_ref) in (0..).zip(&refs) {
        check(SEED, page * PAGE_LEN, page_ref);
    }
    // The last page of a file is shorter than a page, also past the cache.
    disk.create_patterned("/odd", 100, 9).unwrap();
    check(9, 0, &cache.open("/odd").unwrap().page(PageNo::new(0)).unwrap());
    assert_eq!(cache.open("/odd").unwrap().page_ref(PageNo::new(0)).unwrap().len(), 100);

    drop(refs);
    let before = cache.stats();
    evict(&disk, &cache, 64);
    assert_eq!(cache.stats().bypassed, before.bypassed, "frames that nobody has are not used again");
}

#[test]
fn a_kept_page_outlives_its_file_and_its_cache() {
    let (disk, cache) = sim(20, 64);
    let file = cache.open("/file").unwrap();
    let other = file.clone();
    let page_ref = file.page_ref(PageNo::new(19)).unwrap();
    drop(file);
    check(SEED, 0, &other.page(PageNo::new(0)).unwrap());
    drop((other, cache, disk));
    let (back, returned) = mpsc::channel::<PageRef>();
    thread::spawn(move || {
        check(SEED, 19 * PAGE_LEN, &page_ref);
        back.send(page_ref).unwrap();
    })
    .join()
    .unwrap();
    let page_ref = returned.recv().unwrap();
    thread::spawn(move || {
        check(SEED, 19 * PAGE_LEN, page_ref.as_ref());
        drop(page_ref);
    })
    .join()
    .unwrap();
}

#[test]
fn guards_of_several_caches_do_not_get_in_each_others_way() {
    let disks: Vec<_> = (0..3)
        .map(|seed| {
            let disk = SimDisk::new();
            disk.create_patterned("/file", 20 * PAGE_LEN, seed).unwrap();
            disk
        })
        .collect();
    let caches: Vec<_> = disks.iter().map(|disk| sim_cache(disk, 64, PAGE)).collect();
    let files: Vec<_> = caches.iter().map(|cache| cache.open("/file").unwrap()).collect();
    let mut guards = Vec::new();
    for page in 0..20 {
        for (seed, file) in (0..).zip(&files) {
            guards.push((seed, page, file.page(PageNo::new(page)).unwrap()));
        }
    }
    for (disk, cache) in disks.iter().zip(&caches) {
        evict(disk, cache, 64);
    }
    while !guards.is_empty() {
        for (seed, page, guard) in &guards {
            check(*seed, page * PAGE_LEN, guard);
        }
        guards = guards.into_iter().skip(1).step_by(2).collect();
    }
    // Dropping a cache leaves the others intact.
    let guard = files[2].page(PageNo::new(3)).unwrap();
    for _ in 0..100 {
        let (disk, cache) = sim(5, 64);
        let file = cache.open("/file").unwrap();
        check(SEED, PAGE_LEN, &file.page(PageNo::new(1)).unwrap());
        drop((disk, cache));
        check(2, 3 * PAGE_LEN, &guard);
    }
}

#[test]
fn thousands_of_threads_use_it_one_after_the_other() {
    let (disk, cache) = sim(100, 64);
    let file = cache.open("/file").unwrap();
    for batch in 0..100 {
        let kept: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..30)
                .map(|n| {
                    let file = &file;
                    scope.spawn(move || {
                        let page = (batch * 30 + n) % 100;
                        let guard = file.page(PageNo::new(page)).unwrap();
                        assert!(guard[..] == bytes(SEED, page * PAGE_LEN, PAGE));
                        (page, file.page_ref(PageNo::new((page + 1) % 100)).unwrap())
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (page, page_ref) in &kept {
            check(SEED, (page + 1) % 100 * PAGE_LEN, page_ref);
        }
    }
    evict(&disk, &cache, 64);
    let stats = cache.stats();
    assert_eq!(stats.resident_pages, stats.capacity_pages, "{stats}");
}
