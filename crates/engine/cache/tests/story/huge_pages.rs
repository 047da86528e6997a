//! Memory in huge pages of the system's pool, on request.

use std::time::{Duration, Instant};

use pagekeeper_cache::{Backend, HugePages, PageCache, PageNo};

use crate::support::{PAGE, SEED, check, write_patterned};
use pagekeeper_testing::{disk_dir, skip};

const POOL: &str = "/proc/sys/vm/nr_hugepages";
const MIB: usize = 1 << 20;

/// Additional huge pages in the pool, as long as the value lives.
struct ReservedPages {
    before: u64,
}

impl ReservedPages {
    fn more(pages: u64) -> Option<Self> {
        let read = || std::fs::read_to_string(POOL).ok()?.trim().parse::<u64>().ok();
        let reserved = Self { before: read()? };
        let wanted = reserved.before + pages;
        // If memory is fragmented, the kernel needs several attempts.
        for _ in 0..20 {
            std::fs::write(POOL, wanted.to_string()).ok()?;
            if read()? >= wanted {
                return Some(reserved);
            }
            let _ = std::fs::write("/proc/sys/vm/compact_memory", "1");
            std::thread::sleep(std::time::Duration::from_millis(500));
        }
        None
    }
}

impl Drop for ReservedPages {
    fn drop(&mut self) {
        let _ = std::fs::write(POOL, self.before.to_string());
    }
}

/// Returns the number of unused huge pages.
fn free() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("HugePages_Free:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn a_cache_of_huge_pages_reads_evicts_and_gives_them_back() {
    // 8 MiB of frames are 4 pages of 2 MiB; the rest are for what comes beside.
    let Some(_reserved) = ReservedPages::more(8) else {
        return skip("huge pages can't be reserved: not root, or memory is too scattered");
    };
    let unused = free();
    let dir = disk_dir();
    let path = dir.path().join("000012.sst");
    let len = 24 * MIB;
    write_patterned(&path, SEED, 0..len as u64);
    let options = PageCache::options().memory(8 * MIB as u64).huge_pages(HugePages::Hugetlb);
    let cache = options.backend(Backend::Threads).build().unwrap();
    let file = cache.open(&path).unwrap();
    let mut page = vec![0; PAGE];
    let kept = file.page_ref(PageNo::new(7)).unwrap();
    // Three times as much as fits, twice: tables grow, frames are loaned, pages are evicted.
    for _ in 0..2 {
        for offset in (0..len as u64).step_by(PAGE) {
            assert_eq!(file.read_at(offset, &mut page).unwrap(), PAGE);
            check(SEED, offset, &page);
        }
    }
    check(SEED, 7 * PAGE as u64, &kept);
    assert!(cache.stats().evictions > 0, "{}", cache.stats());
    assert!(free() < unused, "no huge page is in use: {} of {unused} are free", free());
    drop((kept, file, cache));
    // Reads in flight keep the cache until they end.
    let end = Instant::now() + Duration::from_secs(60);
    while free() != unused {
        assert!(Instant::now() < end, "huge pages are still in use: {} of {unused} are free", free());
        std::thread::sleep(Duration::from_millis(5));
    }
}
