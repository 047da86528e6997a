//! One file among others: its descriptor, its counters, its pages' priority, and their end.

use std::fs;
use std::path::Path;

use pagekeeper_cache::{CachedFile, Error, FilePriority, OpenOptions, PageCache, PageNo, ReadRequest};
use pagekeeper_simdisk::SimDisk;
use pagekeeper_testing::disk_dir;

use crate::support::tasks::block_on;
use crate::support::{PAGE, SEED, alone, check, sim, sim_cache, write_patterned};

const PAGE_LEN: u64 = PAGE as u64;

/// Returns the number of this process's descriptors of files in a directory.
fn descriptors(dir: &Path) -> usize {
    let links =
        fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
    links.filter(|file| file.starts_with(dir)).count()
}

#[test]
fn descriptors_come_and_go_while_handles_stay() {
    alone("files::descriptors_come_and_go_while_handles_stay", || {
        let dir = disk_dir();
        let cache = PageCache::options().memory(8 << 20).max_open_files(10).build().unwrap();
        let files: Vec<_> = (0..100_u64)
            .map(|number| {
                let path = dir.path().join(number.to_string());
                write_patterned(&path, number, 0..20 * PAGE_LEN);
                cache.open(path).unwrap()
            })
            .collect();
        assert_eq!(descriptors(dir.path()), 10);
        let read = |number: u64, page: u64| {
            let mut buf = [0; PAGE];
            let read = files[usize::try_from(number).unwrap()].read_at(page * PAGE_LEN, &mut buf);
            read.map(|len| check(number, page * PAGE_LEN, &buf[..len]))
        };
        for page in 0..5 {
            (0..100).for_each(|number| read(number, page).unwrap());
            assert!(descriptors(dir.path()) <= 10);
        }
        std::thread::scope(|scope| {
            for first in 0..4 {
                let (read, files) = (&read, &files);
                scope.spawn(move || {
                    for number in (first..100).step_by(4) {
                        read(number, 10).unwrap();
                        let file = &files[usize::try_from(number).unwrap()];
                        let (mut buf, mut other) = ([0; PAGE], [0; PAGE]);
                        block_on(file.read_at_async(15 * PAGE_LEN, &mut buf)).unwrap();
                        check(number, 15 * PAGE_LEN, &buf);
                        let mut requests = [
                            ReadRequest::new(17 * PAGE_LEN, &mut buf),
                            ReadRequest::new(19 * PAGE_LEN, &mut other),
                        ];
                        file.read_many(&mut requests).unwrap();
                        check(number, 17 * PAGE_LEN, &buf);
                        file.page(PageNo::new(12)).unwrap();
                    }
                });
            }
        });
        assert!(descriptors(dir.path()) <= 14, "{}", descriptors(dir.path()));

        // A name that is another file now, or none.
        fs::rename(dir.path().join("1"), dir.path().join("first")).unwrap();
        fs::copy(dir.path().join("first"), dir.path().join("1")).unwrap();
        fs::remove_file(dir.path().join("2")).unwrap();
        (50..90).for_each(|number| read(number, 11).unwrap());
        assert!(matches!(read(1, 11), Err(Error::Replaced { .. })), "{:?}", read(1, 11));
        assert!(matches!(read(2, 11), Err(Error::Io(_))), "{:?}", read(2, 11));
        // Cached pages are served all the same.
        read(1, 0).unwrap();
        read(2, 0).unwrap();
        files.iter().for_each(CachedFile::close);
        assert_eq!(descriptors(dir.path()), 0);
    });
}

#[test]
fn a_file_counts_and_forgets_its_own_pages() {
    let (disk, cache) = sim(100, 200);
    disk.create_patterned("/other", 20 * PAGE_LEN, 5).unwrap();
    let (file, other) = (cache.open("/file").unwrap(), cache.open("/other").unwrap());
    let mut buf = vec![0; 50 * PAGE];
    file.read_at(0, &mut buf).unwrap();
    other.read_at(0, &mut buf).unwrap();
    file.prefetch(60 * PAGE_LEN..70 * PAGE_LEN);
    // Waits for pages that are being loaded.
    file.read_at(60 * PAGE_LEN, &mut buf[..10 * PAGE]).unwrap();
    let stats = file.stats();
    assert_eq!((stats.misses, stats.prefetched, stats.resident_pages), (50, 10, 60), "{stats:?}");
    assert_eq!((other.stats().misses, other.stats().resident_pages), (20, 20));

    let kept = file.page_ref(PageNo::new(7)).unwrap();
    assert_eq!(file.forget(5 * PAGE_LEN + 100..10 * PAGE_LEN + 1), 6);
    assert_eq!(file.forget(5 * PAGE_LEN..11 * PAGE_LEN), 0);
    assert_eq!((file.forget(9..9), file.forget(std::ops::Range { start: 9, end: 7 })), (0, 0));
    check(SEED, 7 * PAGE_LEN, &kept);
    assert_eq!((file.stats().resident_pages, other.stats().resident_pages), (54, 20));
    assert_eq!(cache.stats().resident_pages, 74);
    file.read_at(0, &mut buf).unwrap();
    check(SEED, 0, &buf);
    assert_eq!((file.stats().misses, cache.stats().failures), (56, 0));
    drop(kept);
    assert_eq!(file.forget(0..u64::MAX), 60);
    assert_eq!((file.stats().resident_pages, file.stats().evictions), (0, 0));
    // Its frames are free at once.
    disk.create_patterned("/third", 150 * PAGE_LEN, 6).unwrap();
    let third = cache.open("/third").unwrap();
    third.read_at(0, &mut vec![0; 150 * PAGE]).unwrap();
    assert_eq!((third.stats().resident_pages, other.stats().resident_pages), (150, 20));
    file.close();
    assert_eq!(file.forget(0..u64::MAX), 0);
}

/// Returns how many pages of a file of this priority, of which each is read `reads` times, are left
/// after other pages were read `reads_of_others` times each.
fn left(priority: FilePriority, reads: u32, others: u64, reads_of_others: u32) -> u64 {
    let disk = SimDisk::new();
    disk.create_patterned("/file", 50 * PAGE_LEN, SEED).unwrap();
    disk.create_patterned("/others", others * PAGE_LEN, SEED).unwrap();
    let cache = sim_cache(&disk, 400, PAGE);
    let read = |file: &CachedFile, pages: u64, reads| {
        for page in 0..pages {
            (0..reads).for_each(|_| _ = file.page(PageNo::new(page)).unwrap());
        }
    };
    let file = cache.open_with("/file", OpenOptions::new().priority(priority)).unwrap();
    let beside = cache.open("/others").unwrap();
    // A full cache, so that each load evicts.
    read(&beside, 400.min(others), 1);
    read(&file, 50, reads);
    read(&beside, others, reads_of_others);
    file.stats().resident_pages
}

#[test]
fn a_files_priority_decides_how_long_its_pages_stay() {
    use FilePriority::{High, Low, Normal};
    // Read often, beside a scan: only pages of low priority go.
    let of_scan = [Low, Normal, High].map(|priority| left(priority, 4, 2000, 1));
    assert_eq!(of_scan, [0, 50, 50]);
    // Read once, beside pages that are read often.
    let of_hot = [Low, Normal, High].map(|priority| left(priority, 1, 800, 4));
    assert!(of_hot[0] == 0 && of_hot[1] < 25 && of_hot[2] > 40, "{of_hot:?}");
    // In the end pages that nobody reads go.
    assert_eq!(left(High, 1, 8000, 4), 0);
}
