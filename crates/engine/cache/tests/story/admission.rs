//! While every page of a cache of buffered files is in use, the kernel's cache alone answers most
//! misses.

use std::path::Path;

use pagekeeper_cache::{Backend, CachedFile, Error, PageCache};

use crate::support::{PAGE, check, write_patterned};
use pagekeeper_testing::{Rng, Seed, disk_dir};

const PAGE_LEN: u64 = PAGE as u64;
/// Pages of the file; the cache has room for about nine tenths of them.
const FILE_PAGES: u64 = 2200;

fn cache_of(path: &Path, backend: Backend) -> (PageCache, CachedFile) {
    let cache = PageCache::options().memory(8 << 20).backend(backend).build().unwrap();
    let file = cache.open(path).unwrap();
    assert!(cache.stats().capacity_pages < FILE_PAGES);
    (cache, file)
}

/// Reads at random, uniformly distributed offsets, and checks the results.
fn read_anywhere(file: &CachedFile, rng: &mut Rng, times: u64) {
    let mut buf = [0; 500];
    for _ in 0..times {
        let offset = rng.of(0..FILE_PAGES) * PAGE_LEN + rng.of(0..PAGE_LEN - 500);
        assert_eq!(file.read_at(offset, &mut buf).unwrap(), 500);
        check(1, offset, &buf);
    }
}

#[test]
fn reads_go_through_the_kernel_when_all_frames_are_in_use() {
    let mut rng = Seed::new().rng(0);
    let dir = disk_dir();
    let path = dir.path().join("file");
    write_patterned(&path, 1, 0..FILE_PAGES * PAGE_LEN);
    let (cache, file) = cache_of(&path, Backend::Buffered);
    read_anywhere(&file, &mut rng, 20_000);
    let before = cache.stats();
    assert!(before.resident_pages * 20 > before.capacity_pages * 19, "the cache fills up first: {before}");
    read_anywhere(&file, &mut rng, 100_000);
    let stats = cache.stats();
    let (missed, refused) = (stats.misses - before.misses, stats.bypassed - before.bypassed);
    assert!(refused * 10 >= missed * 8 && refused < missed, "{refused} of {missed}: {stats}");
    assert!(stats.hit_ratio() > 0.8, "{stats}");

    // A page that is read in small parts is admitted on its second miss.
    let mut buf = [0; 256];
    let before = cache.stats();
    for offset in (0..FILE_PAGES * PAGE_LEN).step_by(256) {
        assert_eq!(file.read_at(offset, &mut buf).unwrap(), 256);
        check(1, offset, &buf);
    }
    let stats = cache.stats();
    assert!(stats.misses - before.misses <= 2 * FILE_PAGES, "{stats}");

    // Pages are admitted to the room that a closed file leaves.
    let other = dir.path().join("other");
    write_patterned(&other, 1, 0..PAGE_LEN * 1000);
    file.close();
    let file = cache.open(&other).unwrap();
    let before = cache.stats();
    for _ in 0..2 {
        for page in 0..1000 {
            assert_eq!(file.read_at(page * PAGE_LEN, &mut buf).unwrap(), 256);
        }
    }
    assert_eq!(cache.stats().bypassed, before.bypassed);
    // Except for a few that are evicted while the closed file's pages are still being freed.
    let missed = cache.stats().misses - before.misses;
    assert!((1000..=1010).contains(&missed), "{missed}: {}", cache.stats());
}

#[test]
fn the_pages_that_come_into_use_take_the_places_of_others() {
    let mut rng = Seed::new().rng(1);
    let dir = disk_dir();
    let path = dir.path().join("file");
    write_patterned(&path, 1, 0..2 * FILE_PAGES * PAGE_LEN);
    let (cache, file) = cache_of(&path, Backend::Buffered);
    read_anywhere(&file, &mut rng, 100_000);
    assert!(cache.stats().bypassed > 0);
    // Now the other half of the file.
    let mut buf = [0; 500];
    let mut hits = 0;
    for turn in 0..40 {
        let before = cache.stats();
        for _ in 0..FILE_PAGES {
            let offset = (FILE_PAGES + rng.of(0..FILE_PAGES)) * PAGE_LEN;
            file.read_at(offset, &mut buf).unwrap();
            check(1, offset, &buf);
        }
        hits = cache.stats().hits - before.hits;
        if hits * 10 > FILE_PAGES * 8 {
            println!("after {turn} turns");
            break;
        }
    }
    assert!(hits * 10 > FILE_PAGES * 8, "{hits} of {FILE_PAGES}: {}", cache.stats());
}

#[test]
fn bypassing_reads_report_changes_and_respect_the_verifier() {
    let mut rng = Seed::new().rng(2);
    let dir = disk_dir();
    let path = dir.path().join("file");
    write_patterned(&path, 1, 0..FILE_PAGES * PAGE_LEN);
    let cache = PageCache::options()
        .memory(8 << 20)
        .backend(Backend::Buffered)
        .verifier(|page| if page.bytes().len() == PAGE { Ok(()) } else { Err("not whole".to_owned()) })
        .build()
        .unwrap();
    let file = cache.open(&path).unwrap();
    read_anywhere(&file, &mut rng, 60_000);
    assert_eq!(cache.stats().bypassed, 0);

    let (cache, file) = cache_of(&path, Backend::Buffered);
    read_anywhere(&file, &mut rng, 60_000);
    assert!(cache.stats().bypassed > 0);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(FILE_PAGES * PAGE_LEN + 1).unwrap();
    let mut buf = [0; 500];
    let (mut failed, before) = (0, cache.stats());
    for page in 0..FILE_PAGES {
        match file.read_at(page * PAGE_LEN, &mut buf) {
            Ok(_) => {}
            Err(Error::Grew { .. }) => failed += 1,
            Err(error) => panic!("{error}"),
        }
    }
    // Each miss counts, wherever it was answered.
    assert_eq!(failed + cache.stats().hits - before.hits, FILE_PAGES);
    assert!(failed > 0);
}
