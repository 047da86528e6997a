//! The simulated page cache against a second, plain statement of the kernel's rules, and its curve
//! against the cache whose events it is given.

use std::collections::{HashMap, VecDeque};

use pagekeeper_policy::PAGE_BYTES;
use pagekeeper_policy::miss_curve::{CacheEvent, CachedFile, MissCurve, SizeCurve, SizePoint};
use pagekeeper_policy::page_lists::{PageLists, PageUse};
use pagekeeper_policy::page_sample::PageSample;
use proptest::prelude::*;

/// The two lists as queues, newest first. Searches them for each page.
#[derive(Default)]
struct Queues {
    inactive: VecDeque<u32>,
    active: VecDeque<u32>,
    referenced: HashMap<u32, bool>,
    unused: HashMap<u32, bool>,
    evicted: HashMap<u32, u32>,
    age: u32,
    debt: f64,
    since_return: Option<u32>,
}

impl Queues {
    fn has(&self, page: u32) -> bool {
        self.inactive.contains(&page) || self.active.contains(&page)
    }

    fn insert(&mut self, page: u32, is_read: bool, capacity: usize) {
        let then = self.evicted.remove(&page).filter(|_| is_read);
        self.referenced.insert(page, false);
        self.unused.insert(page, false);
        if then.is_some_and(|then| (self.age - then) as usize <= self.active.len()) {
            self.age += 1;
            self.since_return = Some(0);
            self.active.push_front(page);
        } else {
            self.inactive.push_front(page);
        }
        if self.inactive.len() + self.active.len() > capacity {
            self.evict();
        }
    }

    fn evict(&mut self) {
        let is_low = self.inactive.len() < self.active.len();
        if is_low || self.since_return.is_some_and(|count| count < 64) {
            let part = (self.active.len() * 1024 / self.inactive.len().max(1)) as f64;
            self.debt += part / 1024.0;
            while self.debt >= 1.0 && !self.active.is_empty() {
                self.debt -= 1.0;
                self.inactive.push_front(self.active.pop_back().expect("a page"));
            }
        } else {
            self.debt = 0.0;
        }
        if self.inactive.is_empty() {
            self.inactive.push_front(self.active.pop_back().expect("a page"));
        }
        let page = self.inactive.pop_back().expect("a page");
        self.evicted.insert(page, self.age);
        self.age += 1;
        self.since_return = self.since_return.map(|count| count + 1);
    }

    fn access(&mut self, page: u32, capacity: usize) -> PageUse {
        let was_there = self.has(page);
        if !was_there {
            self.insert(page, true, capacity);
        }
        let was_unused = self.unused.insert(page, false) == Some(true);
        if self.referenced.insert(page, true) == Some(true) && self.inactive.contains(&page) {
            self.inactive.retain(|other| *other != page);
            self.active.push_front(page);
            self.referenced.insert(page, false);
            self.age += 1;
        }
        match (was_there, was_unused) {
            (false, _) => PageUse::Absent,
            (true, true) => PageUse::FirstUse,
            (true, false) => PageUse::Hit,
        }
    }
}

/// Pages by a seed, the first ones far more often than the last.
struct Skewed {
    state: u64,
    pages: u64,
}

impl Skewed {
    fn next_number(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state >> 33
    }

    fn next_page(&mut self) -> u64 {
        let share = self.next_number() as f64 / f64::from(1_u32 << 31);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a page of the file")]
        let rank = (self.pages as f64).powf(share) as u64;
        // Spread over the file.
        rank.min(self.pages - 1).wrapping_mul(0x9e37_79b1) % self.pages
    }
}

const FILE: CachedFile = CachedFile { dev: 1, ino: 42 };
const USED: CacheEvent = CacheEvent::Used { is_continued: false };

fn bytes(pages: &[u64]) -> Vec<u64> {
    pages.iter().map(|pages| pages * PAGE_BYTES).collect()
}

/// Accesses of a process with a cache of `present` pages, as the kernel reports them, and the curve
/// of the second half.
fn traced(sample: PageSample, file_pages: u64, present: u64, seed: u64, accesses: u64) -> SizeCurve {
    let sizes = bytes(&[present / 4, present / 2, present, present * 2]);
    let mut curve = MissCurve::new(sample, PAGE_BYTES, present * PAGE_BYTES, &sizes, 1 << 17);
    let mut cache = PageLists::new(u32::try_from(present).unwrap(), PAGE_BYTES);
    let mut pages = Skewed { state: seed, pages: file_pages };
    for count in 0..accesses {
        if count == accesses / 2 {
            curve.begin_counting();
        }
        let page = pages.next_page();
        if cache.use_page(u32::try_from(page).unwrap()) == PageUse::Absent {
            curve.apply(FILE, page..=page, CacheEvent::Added);
        }
        curve.apply(FILE, page..=page, USED);
    }
    curve.curve(Some(accesses - accesses / 2)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_lists_agree_with_a_plain_model(
        capacity in 1_u32..40,
        steps in prop::collection::vec((0_u32..80, 0_u8..8), 1..2000),
    ) {
        let mut lists = PageLists::new(capacity, PAGE_BYTES);
        let mut queues = Queues::default();
        for (page, step) in steps {
            match step {
                0 => {
                    let was_there = queues.has(page);
                    if !was_there {
                        queues.insert(page, true, capacity as usize);
                        queues.unused.insert(page, true);
                    }
                    prop_assert_eq!(lists.read_in(page), !was_there);
                }
                1 => {
                    if !queues.has(page) {
                        queues.insert(page, false, capacity as usize);
                    }
                    prop_assert_eq!(lists.write(page), queues.unused.insert(page, false) == Some(true));
                }
                2 => {
                    queues.inactive.retain(|other| *other != page);
                    queues.active.retain(|other| *other != page);
                    queues.evicted.remove(&page);
                    queues.unused.remove(&page);
                    queues.referenced.remove(&page);
                    lists.forget(page);
                }
                _ => prop_assert_eq!(lists.use_page(page), queues.access(page, capacity as usize)),
            }
            for page in 0..80 {
                prop_assert_eq!(lists.is_resident(page), queues.has(page), "page {}", page);
            }
        }
    }

    #[test]
    fn a_whole_sample_predicts_the_counts_at_the_traced_size(
        seed: u64, file_pages in 100_u64..2000, share in 1_u64..8,
    ) {
        let curve = traced(PageSample::one_in_power(0), file_pages, (file_pages * share / 8).max(4), seed, 20_000);
        let predicted = curve.at(curve.present_bytes).unwrap();
        prop_assert!((predicted.hit_ratio - curve.counted_hit_ratio).abs() < 1e-9, "{:?}", curve);
    }

    #[test]
    fn a_larger_cache_hits_no_less_but_for_noise(seed: u64, file_pages in 1000_u64..4000, share in 1_u64..4) {
        let curve = traced(PageSample::one_in_power(0), file_pages, file_pages * share / 8, seed, 40_000);
        for pair in curve.points.windows(2) {
            prop_assert!(pair[1].hit_ratio >= pair[0].hit_ratio - 0.01, "{:?}", curve);
            prop_assert!(pair[1].read_bytes <= pair[0].read_bytes + pair[0].read_bytes / 50, "{:?}", curve);
        }
        let least = curve.least_within(0.01);
        prop_assert!(least <= curve.present_bytes);
        let (least, present) = (curve.at(least).unwrap(), curve.at(curve.present_bytes).unwrap());
        prop_assert!(least.hit_ratio >= present.hit_ratio - 0.010_001);
    }

    #[test]
    fn files_that_are_read_once_need_bounded_room(pages_max in 64_usize..512, seed: u64) {
        let sizes = bytes(&[64, 1 << 18]);
        let mut curve = MissCurve::new(PageSample::one_in_power(0), PAGE_BYTES, 1 << 30, &sizes, pages_max);
        for ino in 0..20_000 {
            let file = CachedFile { dev: 1, ino: seed.wrapping_add(ino) };
            curve.apply(file, 0..=3, CacheEvent::Added);
            curve.apply(file, 0..=3, USED);
            prop_assert!(curve.kept_pages() <= pages_max);
        }
        let curve = curve.curve(Some(80_000)).unwrap();
        prop_assert!(curve.points.iter().all(|point| point.hit_ratio < 0.5), "{:?}", curve);
    }
}

#[test]
fn a_sample_predicts_the_result_of_all_pages() {
    let (file_pages, present) = (100_000, 20_000);
    for seed in 0..4 {
        let whole = traced(PageSample::one_in_power(0), file_pages, present, seed, 1_000_000);
        let sampled = traced(PageSample::one_in_power(4), file_pages, present, seed, 1_000_000);
        for (whole, sampled) in whole.points.iter().zip(&sampled.points) {
            let off = sampled.hit_ratio - whole.hit_ratio;
            assert!(off.abs() < 0.03, "{:+.3} at {} bytes: {whole:?}", off, whole.bytes);
        }
        let present = whole.at(whole.present_bytes).unwrap();
        assert!((present.hit_ratio - whole.counted_hit_ratio).abs() < 1e-9);
    }
}

#[test]
fn a_loop_that_fits_is_all_hits_until_pages_are_removed() {
    let sizes = bytes(&[100, 200]);
    let mut curve = MissCurve::new(PageSample::one_in_power(0), PAGE_BYTES, sizes[1], &sizes, 1 << 10);
    let round = |curve: &mut MissCurve| {
        for page in 0..150 {
            curve.apply(FILE, page..=page, USED);
        }
    };
    curve.apply(FILE, 0..=149, CacheEvent::Added);
    round(&mut curve);
    curve.begin_counting();
    round(&mut curve);
    let points = curve.curve(Some(150)).unwrap().points;
    assert!(points[0].hit_ratio < 0.8 && points[0].read_bytes > 0, "{points:?}");
    assert_eq!((points[1].hit_ratio, points[1].read_bytes), (1.0, 0));
    curve.apply(FILE, 0..=149, CacheEvent::Removed { is_reclaim: false });
    curve.begin_counting();
    curve.apply(FILE, 0..=149, CacheEvent::Added);
    round(&mut curve);
    let curve = curve.curve(Some(150)).unwrap();
    assert_eq!((curve.points[1].hit_ratio, curve.points[1].read_bytes), (0.0, 150 * PAGE_BYTES));
    assert!(curve.counted_hit_ratio.abs() < f64::EPSILON);
}

#[test]
fn written_pages_are_no_reads_and_a_repeated_end_is_no_access() {
    let mut curve = MissCurve::new(PageSample::one_in_power(0), PAGE_BYTES, 1 << 20, &[1 << 20], 1 << 10);
    curve.apply(FILE, 0..=9, CacheEvent::Added);
    curve.apply(FILE, 0..=9, CacheEvent::Written);
    curve.apply(FILE, 0..=9, USED);
    curve.apply(FILE, 5..=9, CacheEvent::Used { is_continued: true });
    assert_eq!((curve.counts().accesses, curve.counts().counted), (10, 15));
    let curve = curve.curve(Some(15)).unwrap();
    assert_eq!((curve.points[0].hit_ratio, curve.points[0].read_bytes), (1.0, 0));
}

#[test]
fn a_page_that_is_read_for_a_fault_is_a_read_though_pages_around_it_were_mapped() {
    let mut curve = MissCurve::new(PageSample::one_in_power(0), PAGE_BYTES, 1 << 20, &[1 << 20], 1 << 10);
    for page in 0..10 {
        curve.apply(FILE, 0..=15, CacheEvent::Mapped);
        curve.apply(FILE, page..=page, CacheEvent::Added);
        curve.apply(FILE, page..=page, USED);
    }
    let curve = curve.curve(Some(10)).unwrap();
    assert_eq!((curve.points[0].hit_ratio, curve.points[0].read_bytes), (0.0, 10 * PAGE_BYTES));
}

#[test]
fn the_end_of_a_long_read_counts_as_31_pages_and_alone_is_no_access() {
    let mut curve = MissCurve::new(PageSample::one_in_power(0), PAGE_BYTES, 1 << 20, &[1 << 20], 1 << 10);
    // Far too many pages to look at each.
    curve.apply(FILE, 100..=1 << 60, CacheEvent::Used { is_continued: true });
    assert_eq!((curve.counts().accesses, curve.counts().counted, curve.kept_pages()), (0, 31, 0));
    assert_eq!(curve.curve(Some(31)), None);
    assert_eq!(curve.curve(None), None);
}

#[test]
fn unsampled_accesses_count_as_hits_only_if_their_number_is_known() {
    let mut curve = MissCurve::new(PageSample::one_in_power(0), PAGE_BYTES, 1 << 20, &[1 << 20], 1 << 10);
    curve.apply(FILE, 0..=9, CacheEvent::Added);
    curve.apply(FILE, 0..=9, USED);
    let (corrected, plain) = (curve.curve(Some(40)).unwrap(), curve.curve(None).unwrap());
    assert!((corrected.counted_hit_ratio - 0.75).abs() < 1e-9, "{corrected:?}");
    assert_eq!((plain.counted_hit_ratio, plain.accesses), (0.0, 10.0));
}

#[test]
fn the_smallest_size_is_at_most_the_present_one() {
    let point = |bytes, hit_ratio| SizePoint { bytes, hit_ratio, read_bytes: 0 };
    let points = vec![point(100, 0.2), point(200, 0.3), point(300, 0.29), point(400, 0.39)];
    let curve = |present_bytes| SizeCurve {
        present_bytes,
        accesses: 1.0,
        counted_hit_ratio: 0.3,
        points: points.clone(),
    };
    assert_eq!(curve(400).least_within(0.02), 380);
    assert_eq!(curve(350).least_within(0.01), 340);
    assert_eq!(curve(300).least_within(0.01), 180);
    assert_eq!((curve(400).least_within(0.5), curve(100).least_within(0.01)), (100, 100));
    // Below the smallest point, and above the largest one.
    assert_eq!((curve(50).least_within(0.01), curve(500).least_within(0.01)), (50, 500));
}
