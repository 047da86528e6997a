//! The counters are consistent.

use std::sync::Arc;

use pagekeeper_cache::{CacheStats, PageCache, PageNo, ReadRequest};
use pagekeeper_simdisk::SimDisk;

use crate::support::tasks::block_on;
use crate::support::{PAGE, SEED, check, sim};
use pagekeeper_testing::Seed;

const PAGE_LEN: u64 = PAGE as u64;

fn lookups(stats: &CacheStats) -> u64 {
    stats.hits + stats.misses + stats.coalesced
}

#[test]
fn each_request_of_a_page_is_counted_once() {
    let seed = Seed::new();
    let mut rng = seed.rng(0);
    let (disk, cache) = sim(300, 100);
    let file = cache.open("/file").unwrap();
    let (mut expected, mut repeated) = (0, 0);
    let mut buf = vec![0; 5 * PAGE];
    for step in 0..5000 {
        let offset = rng.of(0..file.len());
        let len = usize::try_from(rng.of(1..6000)).unwrap();
        let pages = (offset + len as u64).min(file.len()).div_ceil(PAGE_LEN) - offset / PAGE_LEN;
        match rng.of(0..6) {
            0 => drop(file.page(PageNo::new(offset / PAGE_LEN)).unwrap()),
            1 => drop(file.page_ref(PageNo::new(offset / PAGE_LEN)).unwrap()),
            2 => {
                block_on(file.read_at_async(offset, &mut buf[..len])).unwrap();
                expected += pages - 1;
            }
            3 => {
                let (one, other) = buf.split_at_mut(len);
                let mut requests = [ReadRequest::new(offset, one), ReadRequest::new(0, &mut other[..1])];
                file.read_many(&mut requests).unwrap();
                // Two parts of one absent page are one lookup.
                expected += pages;
            }
            _ => {
                file.read_at(offset, &mut buf[..len]).unwrap();
                expected += pages - 1;
            }
        }
        expected += 1;
        let stats = cache.stats();
        let together = u64::from(offset < PAGE_LEN);
        // Occasionally a page is evicted before the caller that loaded it copies it, and is looked
        // up once more.
        let again = lookups(&stats).saturating_sub(expected);
        repeated += again;
        assert!(
            again <= 1 && repeated <= 50 && lookups(&stats) + together >= expected,
            "step {step}: {} lookups where {expected} are expected, {repeated} repeated: {stats}",
            lookups(&stats)
        );
        expected = lookups(&stats);
        assert_eq!(
            stats.misses - stats.bypassed,
            stats.evictions + stats.resident_pages,
            "step {step}: {stats}"
        );
    }
    let stats = cache.stats();
    assert_eq!((stats.device_reads, stats.device_bytes), (disk.stats().reads, disk.stats().bytes));
    assert!(stats.hits > 0 && stats.misses > 0 && stats.evictions > 0, "{stats}");
    assert!((stats.hit_ratio() - stats.hits as f64 / lookups(&stats) as f64).abs() < 1e-9);
}

#[test]
fn cached_pages_of_a_long_list_are_found_while_others_load() {
    let (disk, cache) = sim(300, 4000);
    let file = cache.open("/file").unwrap();
    let mut buf = vec![0; PAGE];
    for page in (200..300).step_by(2) {
        file.read_at(page * PAGE_LEN, &mut buf).unwrap();
    }
    let before = disk.stats().reads;
    let mut buf = vec![0; 300 * PAGE];
    let parts = (0..).zip(buf.chunks_mut(PAGE)).map(|(page, part)| ReadRequest::new(page * PAGE_LEN, part));
    let mut requests: Vec<_> = parts.collect();
    file.read_many(&mut requests).unwrap();
    assert!(requests.iter().all(|request| matches!(request.outcome(), Ok(PAGE))));
    check(SEED, 0, &buf);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses), (50, 50 + 250), "{stats}");
    // At most sixteen neighbours are one read; a page between two resident pages is a read of its
    // own.
    assert_eq!(disk.stats().reads - before, 200_u64.div_ceil(16) + 50);
}

#[test]
fn a_list_of_reads_is_the_same_as_single_reads() {
    let seed = Seed::new();
    let mut rng = seed.rng(1);
    let (_disk, cache) = sim(300, 100);
    let file = cache.open("/file").unwrap();
    for _ in 0..300 {
        // Pages that are hot, pages that come and go, and the end of the file.
        let reads: Vec<_> = (0..rng.index(70))
            .map(|_| {
                let pages = [0..4 * PAGE_LEN, 0..file.len(), file.len() - 9..file.len() + 9];
                let (range, most) = (rng.index(3), [1, 600, 2 * PAGE][rng.index(3)]);
                (rng.of(pages[range].clone()), rng.index(most + 1))
            })
            .collect();
        let mut bufs: Vec<_> = reads.iter().map(|(_, len)| vec![0; *len]).collect();
        let parts = reads.iter().zip(&mut bufs).map(|((offset, _), buf)| ReadRequest::new(*offset, buf));
        let mut requests: Vec<_> = parts.collect();
        file.read_many(&mut requests).unwrap();
        for (request, (offset, len)) in requests.iter().zip(reads) {
            let expected = usize::try_from(file.len().saturating_sub(offset)).unwrap().min(len);
            assert_eq!(*request.outcome().as_ref().unwrap(), expected, "{len} bytes at {offset}");
            check(SEED, offset, &request.bytes()[..expected]);
        }
    }
    let stats = cache.stats();
    assert!(stats.hits > 0 && stats.evictions > 0, "{stats}");
    file.close();
    let mut buf = [1; 8];
    let mut requests = [ReadRequest::new(0, &mut buf)];
    assert!(file.read_many(&mut requests).is_err() && requests[0].outcome().is_err());
    assert_eq!(requests[0].bytes(), [1; 8]);
}

#[test]
fn pages_that_are_prefetched_are_no_misses() {
    let (disk, cache) = sim(100, 400);
    let file = cache.open("/file").unwrap();
    assert_eq!(file.prefetch(10 * PAGE_LEN + 5..20 * PAGE_LEN + 1), 11);
    let mut buf = vec![0; 20 * PAGE];
    file.read_at(5 * PAGE_LEN, &mut buf).unwrap();
    check(SEED, 5 * PAGE_LEN, &buf);
    let stats = cache.stats();
    assert_eq!((stats.prefetched, stats.misses), (11, 9), "{stats}");
    assert_eq!(lookups(&stats), 20, "{stats}");
    assert_eq!(stats.device_bytes, 20 * PAGE_LEN);
    // At most sixteen neighbours are one read: 11 ahead, 5 before them and 4 behind.
    assert_eq!(disk.stats().reads, 3);
    // One call begins at most a quarter of the cache, and no resident pages.
    assert_eq!(file.prefetch(0..u64::MAX), 80);
    assert_eq!(file.prefetch(u64::MAX - 1..u64::MAX), 0);
    // Empty and reversed ranges.
    assert_eq!(file.prefetch(7..7) + file.prefetch(std::ops::Range { start: 9, end: 7 }), 0);
}

#[test]
fn occupancy_is_reported_in_pages_and_as_text() {
    let (_, cache) = sim(50, 100);
    let file = cache.open("/file").unwrap();
    let empty = cache.stats();
    assert_eq!((empty.resident_pages, empty.page_size), (0, PAGE_LEN));
    assert_eq!((empty.capacity_pages, cache.capacity_pages()), (100, 100));
    file.read_at(0, &mut vec![0; 10 * PAGE]).unwrap();
    file.page(PageNo::new(3)).unwrap();
    assert_eq!((file.resident_pages(), cache.stats().resident_pages), (10, 10));
    // The first miss of the file loans a frame to its table.
    file.page(PageNo::new(20)).unwrap();
    assert_eq!(cache.capacity_pages(), 99);
    assert_eq!(
        cache.stats().to_string(),
        "1 hits, 11 misses (8.3 % hits), 0 waited for others' loads, 0 prefetched, 0 past the cache, 0 failed; \
         0 evicted; 0 installed; 2 reads of 45056 bytes from the device; 11 of 99 pages of 4096 bytes in use"
    );
}

#[test]
fn reserved_tables_keep_the_capacity_constant_as_files_are_read() {
    for (memory, pages) in [(6 << 20, 1_000_000), (2 << 20, 1_000_000), (64 << 20, 50_000), (6 << 20, 1_000)]
    {
        let disk = SimDisk::new();
        disk.create_patterned("/file", pages * PAGE as u64, SEED).unwrap();
        let options = PageCache::options().memory(memory).reserve_tables(true);
        let cache = options.io(Arc::new(disk)).build().unwrap();
        let file = cache.open("/file").unwrap();
        let opened = cache.stats().capacity_pages;
        // Each part of the table has a thousand pages; all parts are taken up, twice.
        for page in (0..pages).step_by(500).chain((0..pages).step_by(700)) {
            check(SEED, page * PAGE as u64, &file.page(PageNo::new(page)).unwrap()[..8]);
            assert_eq!(cache.stats().capacity_pages, opened, "{memory} bytes, at page {page} of {pages}");
        }
    }
}
