use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use super::*;
use crate::testing::{evict_all, evict_once, file_of, tebibyte};
use crate::{Links, residency_by_mincore, resident_extents};

const MIB: u64 = 1 << 20;
const METHODS: [WarmMethod; 4] =
    [WarmMethod::Auto, WarmMethod::Populate, WarmMethod::SendFile, WarmMethod::ReadAhead];

fn never() -> AtomicBool {
    AtomicBool::new(false)
}

fn warm_all(file: &InspectedFile, options: &WarmOptions) -> WarmReport {
    warm(file, 0..u64::MAX, options, &|_| {}, &never()).unwrap()
}

/// Returns the resident bytes by mincore, which does not count pages that are still being read.
fn really_resident(file: &InspectedFile) -> u64 {
    residency_by_mincore(file, 0..u64::MAX).unwrap().resident
}

fn load_single_pages(file: &InspectedFile, pages: impl Iterator<Item = u64>) {
    let random = std::fs::File::open(file.path()).unwrap();
    rustix::fs::fadvise(&random, 0, None, rustix::fs::Advice::Random).unwrap();
    for page in pages {
        random.read_exact_at(&mut [0; 1], page * page_size()).unwrap();
    }
}

#[test]
fn a_cold_file_is_there_when_it_returns() {
    // Not a whole number of pages: the last one is partial.
    let size = 40 * MIB + 100;
    let (_dir, file) = file_of((40 << 20) + 100);
    let pages = size.next_multiple_of(page_size());
    for method in METHODS {
        for width in [1, 3] {
            evict_all(&file);
            assert_eq!(really_resident(&file), 0);
            let reported = AtomicU64::new(0);
            let options = WarmOptions { width, method, ..WarmOptions::default() };
            let progress = |bytes| {
                reported.fetch_add(bytes, Ordering::Relaxed);
            };
            let report = warm(&file, 0..u64::MAX, &options, &progress, &never()).unwrap();
            assert_eq!(really_resident(&file), pages, "{method:?}");
            assert_eq!(
                report,
                WarmReport {
                    requested: size,
                    holes: 0,
                    resident_before: Some(0),
                    loaded: pages,
                    resident_after: Some(pages),
                    cancelled: false,
                },
                "{method:?}"
            );
            assert_eq!(reported.into_inner(), pages, "{method:?}");
        }
    }
}

#[test]
fn resident_pages_are_not_read_again() {
    let (_dir, file) = file_of(16 << 20);
    let report = warm_all(&file, &WarmOptions::default());
    assert_eq!((report.resident_before, report.loaded), (Some(16 * MIB), 0));
    evict_all(&file);
    let pages = 16 * MIB / page_size();
    load_single_pages(&file, (0..pages).step_by(3));
    let there = pages.div_ceil(3) * page_size();
    let reported = AtomicU64::new(0);
    let progress = |bytes| {
        reported.fetch_add(bytes, Ordering::Relaxed);
    };
    let report = warm(&file, 0..u64::MAX, &WarmOptions::default(), &progress, &never()).unwrap();
    assert_eq!(
        (report.resident_before, report.loaded, report.resident_after),
        (Some(there), 16 * MIB - there, Some(16 * MIB))
    );
    assert_eq!(reported.into_inner(), 16 * MIB);
    assert_eq!(really_resident(&file), 16 * MIB);
}

#[test]
fn a_short_range_is_loaded_exactly() {
    let (_dir, file) = file_of(16 << 20);
    evict_all(&file);
    let page = page_size();
    let range = 3 * MIB + 5 * page + 1..3 * MIB + 9 * page + 1;
    let report = warm(&file, range, &WarmOptions::default(), &|_| {}, &never()).unwrap();
    assert_eq!(
        (report.requested, report.loaded, report.resident_after),
        (4 * page, 5 * page, Some(5 * page))
    );
    assert_eq!(really_resident(&file), 5 * page);
}

#[test]
fn a_long_range_is_loaded_with_next_to_nothing_around_it() {
    let (_dir, file) = file_of(72 << 20);
    let page = page_size();
    for range in [0..18 * MIB, 0..36 * MIB, 3 * MIB + page..50 * MIB + page] {
        for width in [1, 4] {
            evict_all(&file);
            let options = WarmOptions { width, ..WarmOptions::default() };
            let report = warm(&file, range.clone(), &options, &|_| {}, &never()).unwrap();
            let wanted = range.end - range.start;
            assert_eq!((report.loaded, report.resident_after), (wanted, Some(wanted)), "{range:?}");
            let around = really_resident(&file) - wanted;
            assert!(around <= 256 << 10, "{around} bytes around {range:?} by {width}");
        }
    }
}

#[test]
fn extents_are_loaded_exactly() {
    let (_dir, file) = file_of(64 << 20);
    evict_all(&file);
    let page = page_size();
    let extents: Vec<_> =
        (0..64 * MIB / page / 30).map(|index| index * 30 * page..(index * 30 + 4) * page).collect();
    let bytes = extents.len() as u64 * 4 * page;
    let options = WarmOptions::default();
    let report = warm_extents(&file, &extents, &options, &|_| {}, &never()).unwrap();
    assert_eq!((report.resident_before, report.loaded, report.resident_after), (Some(0), bytes, Some(bytes)));
    let found: Vec<_> = resident_extents(&file, 0..u64::MAX).unwrap().collect::<Result<_>>().unwrap();
    assert_eq!(found, extents);
    let again = warm_extents(&file, &extents, &options, &|_| {}, &never()).unwrap();
    assert_eq!((again.resident_before, again.loaded), (Some(bytes), 0));
}

#[test]
fn extents_past_the_end_are_left_out() {
    let page = page_size();
    let (_dir, file) = file_of(usize::try_from(10 * page).unwrap());
    evict_all(&file);
    let extents = [0..page, 8 * page..20 * page, 30 * page..40 * page];
    let report = warm_extents(&file, &extents, &WarmOptions::default(), &|_| {}, &never()).unwrap();
    assert_eq!((report.requested, report.loaded), (3 * page, 3 * page));
}

#[test]
fn holes_are_left_alone() {
    let (_dir, file) = file_of(0);
    let writer = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
    let tebibyte = tebibyte(&file);
    writer.set_len(15 * tebibyte).unwrap();
    let bytes = 2 * page_size();
    writer.write_all_at(&vec![1; usize::try_from(bytes).unwrap()], 7 * tebibyte).unwrap();
    writer.sync_all().unwrap();
    evict_all(&file);
    let report = warm_all(&file, &WarmOptions::default());
    assert_eq!((report.requested, report.loaded), (15 * tebibyte, bytes));
    assert_eq!(report.holes, (15 * tebibyte) - bytes);
    assert_eq!(report.resident_after, Some(bytes));
}

#[test]
fn an_empty_file_is_warmed_without_reads() {
    let (_dir, file) = file_of(0);
    let none = WarmReport { resident_before: Some(0), resident_after: Some(0), ..WarmReport::default() };
    assert_eq!(warm_all(&file, &WarmOptions::default()), none);
    let (_dir, file) = file_of(4096);
    let report = warm(&file, 8192..u64::MAX, &WarmOptions::default(), &|_| {}, &never()).unwrap();
    assert_eq!(report, none);
}

#[test]
fn a_cancelled_warming_reports_its_progress() {
    let (_dir, file) = file_of(64 << 20);
    evict_all(&file);
    let cancel = AtomicBool::new(false);
    let options = WarmOptions { width: 1, ..WarmOptions::default() };
    let report =
        warm(&file, 0..u64::MAX, &options, &|_| cancel.store(true, Ordering::Relaxed), &cancel).unwrap();
    assert!(report.cancelled);
    assert_eq!(report.loaded, 8 * MIB);
    assert!(report.resident_after.unwrap() >= 8 * MIB && report.resident_after.unwrap() < 64 * MIB);
}

/// Turns that never wait, and record the bytes of each part. After some parts they cancel the work.
#[derive(Debug)]
struct RecordedTurns {
    parts: Mutex<Vec<u64>>,
    parts_max: usize,
    cancel: AtomicBool,
}

impl RecordedTurns {
    fn new(parts_max: usize) -> Arc<Self> {
        Arc::new(Self { parts: Mutex::default(), parts_max, cancel: never() })
    }
}

impl WarmTurns for RecordedTurns {
    fn part_bytes(&self) -> u64 {
        256 << 10
    }

    fn take(&self, bytes: u64, is_stopped: &dyn Fn() -> bool, read: &mut dyn FnMut()) {
        let mut parts = self.parts.lock().unwrap();
        if parts.len() == self.parts_max {
            self.cancel.store(true, Ordering::Relaxed);
            assert!(is_stopped());
            return;
        }
        parts.push(bytes);
        drop(parts);
        read();
    }
}

#[test]
fn with_turns_each_part_is_read_exactly() {
    let (_dir, file) = file_of(24 << 20);
    evict_all(&file);
    let turns = RecordedTurns::new(usize::MAX);
    let options = WarmOptions { turns: Some(turns.clone()), ..WarmOptions::default() };
    let range = MIB + page_size()..6 * MIB;
    let report = warm(&file, range, &options, &|_| {}, &never()).unwrap();
    let wanted = 5 * MIB - page_size();
    assert_eq!((report.loaded, report.resident_after), (wanted, Some(wanted)));
    assert_eq!(really_resident(&file), wanted);
    let parts = turns.parts.lock().unwrap();
    assert_eq!(parts.iter().sum::<u64>(), wanted);
    assert_eq!(parts.iter().filter(|bytes| **bytes == 256 << 10).count(), 19, "{parts:?}");
}

#[test]
fn a_wait_for_a_turn_ends_when_it_is_cancelled() {
    let (_dir, file) = file_of(4 << 20);
    evict_all(&file);
    let turns = RecordedTurns::new(2);
    let options = WarmOptions { turns: Some(turns.clone()), width: 1, ..WarmOptions::default() };
    let report = warm(&file, 0..u64::MAX, &options, &|_| {}, &turns.cancel).unwrap();
    assert_eq!((report.loaded, report.cancelled), (MIB / 2, true));
}

#[test]
fn a_file_cut_meanwhile_ends_the_work_without_an_error() {
    let (_dir, file) = file_of(64 << 20);
    for method in METHODS {
        std::fs::write(file.path(), vec![3; 64 << 20]).unwrap();
        std::fs::File::open(file.path()).unwrap().sync_all().unwrap();
        evict_all(&file);
        let options = WarmOptions { width: 1, method, ..WarmOptions::default() };
        let cut = |_| {
            let writer = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
            writer.set_len(MIB).unwrap();
        };
        let report = warm(&file, 0..u64::MAX, &options, &cut, &never()).unwrap();
        assert_eq!(report.resident_after, Some(MIB), "{method:?}");
    }
}

#[test]
fn a_stranger_may_warm_but_gets_no_figures() {
    if !rustix::process::geteuid().is_root() {
        crate::testing::skip("a_stranger_may_warm_but_gets_no_figures needs root to give up root");
        return;
    }
    let (dir, file) = file_of(8 << 20);
    std::fs::set_permissions(file.path(), PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    evict_all(&file);
    let path = file.path().to_path_buf();
    let report = crate::testing::as_nobody(move || {
        let stranger = InspectedFile::open(path, Links::Refuse).unwrap();
        let options = WarmOptions { width: 1, ..WarmOptions::default() };
        warm_all(&stranger, &options)
    });
    assert_eq!((report.resident_before, report.resident_after), (None, None));
    assert_eq!(report.loaded, 8 * MIB);
    assert_eq!(really_resident(&file), 8 * MIB);
}

#[test]
fn locked_pages_can_not_be_evicted_while_the_lock_lives() {
    let (_dir, file) = file_of(4 << 20);
    evict_all(&file);
    let locked = lock(&file, MIB..2 * MIB).unwrap();
    assert_eq!((locked.bytes(), locked.mappings()), (MIB, 1));
    evict_once(&file);
    let resident = residency_by_mincore(&file, MIB..2 * MIB).unwrap().resident;
    assert_eq!(resident, MIB);
    drop(locked);
    evict_all(&file);
    assert_eq!(really_resident(&file), 0);
}

#[test]
fn holes_are_not_locked() {
    let (_dir, file) = file_of(0);
    let writer = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
    writer.set_len(1 << 40).unwrap();
    writer.write_all_at(&[1; 4096], 5 << 30).unwrap();
    let locked = lock(&file, 0..u64::MAX).unwrap();
    assert_eq!(locked.bytes(), page_size());
}

#[test]
fn the_limit_on_locked_memory_is_reported_with_its_fix() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let Some(limit) = limit.filter(|limit| *limit < 1 << 30) else {
        crate::testing::skip(
            "the_limit_on_locked_memory_is_reported_with_its_fix needs a limit under 1 GiB (ulimit -l)",
        );
        return;
    };
    let (_dir, file) = file_of(0);
    std::fs::write(file.path(), vec![1; usize::try_from(limit + MIB).unwrap()]).unwrap();
    let locking = || lock(&file, 0..u64::MAX).unwrap_err();
    let error =
        if rustix::process::geteuid().is_root() { crate::testing::as_nobody(locking) } else { locking() };
    assert!(matches!(error, LockError::Limit { limit: reported, .. } if reported == limit), "{error}");
    assert!(error.to_string().contains("ulimit -l"), "{error}");
}

#[test]
fn a_huge_page_spans_one_page_of_the_page_table() {
    assert_eq!([4096, 16_384, 65_536].map(load::huge_page_bytes), [2 << 20, 32 << 20, 512 << 20]);
}
