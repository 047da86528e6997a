//! The miss-ratio curve of a page cache: the hit ratio and the reads that it would have at other
//! sizes, from events of a [`PageSample`].
//!
//! Each size has its own simulation ([`PageLists`]), to which all events of sampled pages are
//! applied. The sample rarely has the few pages that are used most, so the true number of accesses
//! is given: those that the sample lacks are hits at all sizes, as SHARDS does.
//!
//! Invariants: memory is bounded by the number of pages that are kept. Where that is reached, pages
//! that are resident at no size are forgotten, then half of the sample. Counts begin with
//! [`MissCurve::begin_counting`], once the simulations are filled.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use crate::page_lists::{PageLists, PageUse};
use crate::page_sample::{COUNTED_PAGES_MAX, PageSample, SAMPLE_FACTORS};

/// Points of hit ratio that a smaller size may lose, for [`SizeCurve::least_within`].
pub const TOLERATED_LOSS: f64 = 0.01;

/// A file: its device and inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CachedFile {
    /// The device.
    pub dev: u64,
    /// The inode number.
    pub ino: u64,
}

/// An event of pages in the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheEvent {
    /// Pages came, by a read, read-ahead or a write.
    Added,
    /// Clean pages were written to.
    Written,
    /// Pages were used.
    Used {
        /// Whether it repeats the end of the event before, of a long read. Such an event is
        /// counted, but its pages were used by the first one.
        is_continued: bool,
    },
    /// Pages around a fault were mapped, those of them that are resident: at least one.
    Mapped,
    /// Pages left.
    Removed {
        /// Whether for lack of memory; otherwise they left the file, or were dropped.
        is_reclaim: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct PageKey {
    file: CachedFile,
    page: u64,
}

/// A page that is kept.
#[derive(Debug, Clone, Copy)]
struct KnownPage {
    number: u32,
    /// Whether it came and was not used since, in the real cache.
    is_unused: bool,
}

/// A simulated size, and its counts in pages.
#[derive(Debug)]
struct SimulatedSize {
    bytes: u64,
    lists: PageLists,
    hits: u64,
    reads: u64,
}

/// Counts of the real cache by the sample, in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SampledCounts {
    /// Accesses.
    pub accesses: u64,
    /// Accesses as the kernel's programs count them.
    pub counted: u64,
    /// Accesses to pages that a read brought in for them.
    pub misses: u64,
}

/// The curve under construction.
#[derive(Debug)]
pub struct MissCurve {
    sample: PageSample,
    /// The kernel's page size.
    page_bytes: u64,
    /// The logarithm of how many sampled pages one that is kept stands for.
    thinned: u32,
    present_bytes: u64,
    sizes: Vec<SimulatedSize>,
    pages: HashMap<PageKey, KnownPage>,
    free_numbers: Vec<u32>,
    pages_max: usize,
    counts: SampledCounts,
}

impl MissCurve {
    /// Makes a curve of these sizes in bytes, ascending, that keeps at most `pages_max` pages of
    /// `page_bytes` bytes.
    pub fn new(
        sample: PageSample,
        page_bytes: u64,
        present_bytes: u64,
        sizes: &[u64],
        pages_max: usize,
    ) -> Self {
        let bytes_each = page_bytes * sample.weight();
        let simulated = |bytes: &u64| SimulatedSize {
            bytes: *bytes,
            lists: PageLists::new(capacity(*bytes, bytes_each), bytes_each),
            hits: 0,
            reads: 0,
        };
        Self {
            sample,
            page_bytes,
            thinned: 0,
            present_bytes,
            sizes: sizes.iter().map(simulated).collect(),
            pages: HashMap::new(),
            free_numbers: Vec::new(),
            pages_max,
            counts: SampledCounts::default(),
        }
    }

    /// Forgets all counts, but no page.
    pub fn begin_counting(&mut self) {
        self.counts = SampledCounts::default();
        for size in &mut self.sizes {
            (size.hits, size.reads) = (0, 0);
        }
    }

    /// Returns the counts of the real cache.
    pub fn counts(&self) -> SampledCounts {
        self.counts
    }

    /// Returns the number of pages that each page in it stands for.
    pub fn weight(&self) -> u64 {
        self.sample.weight() << self.thinned
    }

    /// Returns the number of pages that are kept.
    pub fn kept_pages(&self) -> usize {
        self.pages.len()
    }

    /// Applies an event to those of its pages that are in the sample.
    pub fn apply(&mut self, file: CachedFile, pages: RangeInclusive<u64>, event: CacheEvent) {
        if let CacheEvent::Used { is_continued } = event {
            self.count_use(file, &pages);
            if is_continued {
                return;
            }
        }
        for page in self.sample.pages(file.ino, pages) {
            let key = PageKey { file, page };
            if self.is_kept(&key) {
                self.apply_to_page(key, event);
            }
        }
    }

    /// Counts a use as the kernel's programs do: at most [`COUNTED_PAGES_MAX`] of its pages.
    fn count_use(&mut self, file: CachedFile, pages: &RangeInclusive<u64>) {
        let last = (*pages.end()).min(pages.start().saturating_add(COUNTED_PAGES_MAX - 1));
        let is_kept = |page: &u64| self.is_kept(&PageKey { file, page: *page });
        let count = self.sample.pages(file.ino, *pages.start()..=last).filter(is_kept).count();
        self.counts.counted += self.weight() * count as u64;
    }

    fn apply_to_page(&mut self, key: PageKey, event: CacheEvent) {
        match event {
            CacheEvent::Added => self.add(key),
            CacheEvent::Written => self.write(&key),
            CacheEvent::Used { .. } => self.use_page(key),
            CacheEvent::Mapped => {
                // A page of the range that is not resident comes by a later event.
                let Some(known) = self.pages.get(&key) else { return };
                for size in self.sizes.iter_mut().filter(|size| size.lists.is_resident(known.number)) {
                    size.lists.use_page(known.number);
                }
            }
            CacheEvent::Removed { is_reclaim: true } => {}
            CacheEvent::Removed { is_reclaim: false } => {
                if let Some(known) = self.pages.remove(&key) {
                    self.forget(known.number);
                }
            }
        }
    }

    fn add(&mut self, key: PageKey) {
        let (number, _) = self.number(key);
        let weight = self.weight();
        for size in &mut self.sizes {
            size.reads += if size.lists.read_in(number) { weight } else { 0 };
        }
        self.set_unused(&key, true);
    }

    fn write(&mut self, key: &PageKey) {
        let Some(known) = self.pages.get(key) else { return };
        let (number, weight) = (known.number, self.weight());
        for size in &mut self.sizes {
            if size.lists.write(number) {
                size.reads = size.reads.saturating_sub(weight);
            }
        }
        self.set_unused(key, false);
    }

    fn use_page(&mut self, key: PageKey) {
        let (number, is_new) = self.number(key);
        let weight = self.weight();
        let was_unused = self.set_unused(&key, false);
        self.counts.accesses += weight;
        self.counts.misses += if was_unused { weight } else { 0 };
        for size in &mut self.sizes {
            // A page that was resident before the events began is so at larger sizes, too.
            let was_there = is_new && (size.bytes >= self.present_bytes || !size.lists.has_evicted());
            match size.lists.use_page(number) {
                PageUse::Hit => size.hits += weight,
                PageUse::Absent if was_there => size.hits += weight,
                PageUse::Absent => size.reads += weight,
                PageUse::FirstUse => {}
            }
        }
    }

    fn set_unused(&mut self, key: &PageKey, is_unused: bool) -> bool {
        let known = self.pages.get_mut(key);
        known.is_some_and(|known| std::mem::replace(&mut known.is_unused, is_unused))
    }

    /// Returns the number of a page, and whether it is new.
    fn number(&mut self, key: PageKey) -> (u32, bool) {
        if let Some(known) = self.pages.get(&key) {
            return (known.number, false);
        }
        if self.pages.len() >= self.pages_max {
            self.shrink();
        }
        let next = u32::try_from(self.pages.len()).unwrap_or(u32::MAX);
        let number = self.free_numbers.pop().unwrap_or(next);
        self.pages.insert(key, KnownPage { number, is_unused: false });
        (number, true)
    }

    fn forget(&mut self, number: u32) {
        for size in &mut self.sizes {
            size.lists.forget(number);
        }
        self.free_numbers.push(number);
    }

    fn is_kept(&self, key: &PageKey) -> bool {
        let [first, second, third] = SAMPLE_FACTORS;
        let mixed = key.file.ino.wrapping_mul(third).wrapping_add(key.page).wrapping_mul(first);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(second);
        self.thinned == 0 || mixed >> (u64::BITS - self.thinned) == 0
    }

    /// Forgets pages that are resident nowhere. If that leaves little room, forgets half of the
    /// sample, again and again.
    fn shrink(&mut self) {
        self.forget_unless(|curve, _, number| curve.sizes.iter().any(|size| size.lists.is_resident(number)));
        while self.pages.len() > self.pages_max / 4 * 3 && self.thinned < u64::BITS / 2 {
            self.thinned += 1;
            self.forget_unless(|curve, key, _| curve.is_kept(key));
            let bytes_each = self.weight() * self.page_bytes;
            for size in &mut self.sizes {
                size.lists.resize(capacity(size.bytes, bytes_each), bytes_each);
            }
        }
    }

    fn forget_unless(&mut self, stays: impl Fn(&Self, &PageKey, u32) -> bool) {
        let goes = |(key, known): (&PageKey, &KnownPage)| {
            (!stays(self, key, known.number)).then_some((*key, known.number))
        };
        let gone: Vec<_> = self.pages.iter().filter_map(goes).collect();
        for (key, number) in gone {
            self.pages.remove(&key);
            self.forget(number);
        }
    }

    /// Returns the curve, given the number of accesses that the kernel's programs counted since
    /// [`Self::begin_counting`]; `None` without an access in the sample. If events were lost the
    /// number must not be given: lost accesses would be taken for hits.
    pub fn curve(&self, counted: Option<u64>) -> Option<SizeCurve> {
        let SampledCounts { accesses, counted: sampled, .. } = self.counts;
        if accesses == 0 || sampled == 0 || counted == Some(0) {
            return None;
        }
        let all = counted.unwrap_or(sampled) as f64 * (accesses as f64 / sampled as f64);
        let not_sampled = all - accesses as f64;
        let ratio = |hits: u64| ((hits as f64 + not_sampled) / all).clamp(0.0, 1.0);
        let point = |size: &SimulatedSize| SizePoint {
            bytes: size.bytes,
            hit_ratio: ratio(size.hits),
            read_bytes: size.reads * self.page_bytes,
        };
        Some(SizeCurve {
            present_bytes: self.present_bytes,
            accesses: all,
            counted_hit_ratio: ratio(accesses - self.counts.misses),
            points: self.sizes.iter().map(point).collect(),
        })
    }
}

/// Returns the number of sampled pages of a cache of this size; each stands for `bytes_each` bytes.
fn capacity(bytes: u64, bytes_each: u64) -> u32 {
    u32::try_from(bytes / bytes_each.max(1)).unwrap_or(u32::MAX)
}

/// A size, and what a cache of it would do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizePoint {
    /// The size of the page cache.
    pub bytes: u64,
    /// Hits as a share of accesses.
    pub hit_ratio: f64,
    /// Bytes read from disk.
    pub read_bytes: u64,
}

/// The finished curve.
#[derive(Debug, Clone, PartialEq)]
pub struct SizeCurve {
    /// The present size.
    pub present_bytes: u64,
    /// Accesses, in pages.
    pub accesses: f64,
    /// The hit ratio of the real cache, counted.
    pub counted_hit_ratio: f64,
    /// The points, by size.
    pub points: Vec<SizePoint>,
}

impl SizeCurve {
    /// Returns the point at a size, between its neighbours on a straight line.
    pub fn at(&self, bytes: u64) -> Option<SizePoint> {
        let above = self.points.iter().position(|point| point.bytes >= bytes)?;
        let (high, low) = (self.points[above], self.points[above.saturating_sub(1)]);
        if high.bytes == bytes || high.bytes == low.bytes {
            return Some(SizePoint { bytes, ..high });
        }
        let share = bytes.saturating_sub(low.bytes) as f64 / (high.bytes - low.bytes) as f64;
        let between = |low: f64, high: f64| low + share * (high - low);
        let read_bytes = between(low.read_bytes as f64, high.read_bytes as f64);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two counts")]
        let read_bytes = read_bytes as u64;
        Some(SizePoint { bytes, hit_ratio: between(low.hit_ratio, high.hit_ratio), read_bytes })
    }

    /// Returns the least size, at most the present one, that keeps the hit ratio within `loss` of
    /// the present one, as do all sizes from there up to the present one.
    pub fn least_within(&self, loss: f64) -> u64 {
        let Some(present) = self.at(self.present_bytes) else { return self.present_bytes };
        let wanted = present.hit_ratio - loss;
        let mut above = present;
        let is_below = |point: &&SizePoint| point.bytes < present.bytes;
        for below in self.points.iter().rev().filter(is_below) {
            if below.hit_ratio < wanted {
                return crossing(*below, above, wanted).min(self.present_bytes);
            }
            above = *below;
        }
        above.bytes
    }
}

/// Returns the size between two points at which the hit ratio rises to `wanted`.
fn crossing(below: SizePoint, above: SizePoint, wanted: f64) -> u64 {
    let rise = above.hit_ratio - below.hit_ratio;
    let share = if rise > 0.0 { ((wanted - below.hit_ratio) / rise).clamp(0.0, 1.0) } else { 1.0 };
    let bytes = ((above.bytes - below.bytes) as f64 * share).ceil();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between two sizes")]
    let bytes = bytes as u64;
    below.bytes + bytes
}
