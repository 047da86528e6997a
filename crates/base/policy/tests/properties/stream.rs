//! Streams read files on a model of the page cache: what was resident before stays, and of what
//! they bring in nothing does, as far as they are in order.

#![allow(clippy::cast_possible_truncation, reason = "page numbers of small files")]

use std::ops::Range;

use pagekeeper_policy::PAGE_BYTES;
use pagekeeper_policy::WINDOW;
use pagekeeper_policy::stream::ReadStream;
use proptest::prelude::*;

/// The maximum distance of read-ahead from a reader.
const READ_AHEAD: u64 = 32 << 20;

/// A file's pages.
struct Cache {
    size: u64,
    /// Resident before the stream came.
    before: Vec<bool>,
    resident: Vec<bool>,
    /// Being read in, or held by the kernel for a moment: release leaves them.
    locked: Vec<bool>,
}

impl Cache {
    fn new(size: u64, warm: &[(u64, u64)]) -> Self {
        let count = size.div_ceil(PAGE_BYTES) as usize;
        let mut before = vec![false; count];
        for &(from, length) in warm {
            let from = (from as usize).min(count);
            before[from..(from + length as usize).min(count)].fill(true);
        }
        Self { size, resident: before.clone(), before, locked: vec![false; count] }
    }

    fn pages(&self, range: &Range<u64>) -> Range<usize> {
        let count = self.resident.len() as u64;
        ((range.start / PAGE_BYTES).min(count)) as usize..(range.end.div_ceil(PAGE_BYTES).min(count)) as usize
    }

    fn bytes(&self, range: &Range<u64>) -> u64 {
        self.resident[self.pages(range)].iter().filter(|&&is| is).count() as u64 * PAGE_BYTES
    }

    fn show(&self, stream: &mut ReadStream, range: &Range<u64>) {
        if stream.record_residency(range, self.bytes(range)) {
            return;
        }
        let mut start = range.start;
        while start < range.end {
            let window = start..(start + WINDOW).min(range.end);
            if !stream.record_residency(&window, self.bytes(&window)) {
                let pages: Vec<_> =
                    self.resident[self.pages(&window)].iter().map(|&is| u8::from(is)).collect();
                stream.record_pages(start, PAGE_BYTES, &pages);
            }
            start += WINDOW;
        }
    }

    fn read(&mut self, range: Range<u64>, ahead: u64, chance: u64) {
        for page in self.pages(&(range.start..range.end + ahead)) {
            if !self.resident[page] {
                self.resident[page] = true;
                let is_ahead = page as u64 * PAGE_BYTES >= range.end;
                self.locked[page] = is_ahead || (page as u64 ^ chance).is_multiple_of(5);
            }
        }
    }

    /// Unlocks the pages a window behind the reader, also those of the read that brought them in:
    /// it has returned. (Linux 6.18, cold reads of 2 to 3 MB with and without read-ahead: of two
    /// million pages 4 stayed so far behind.)
    fn unlock(&mut self, before: u64) {
        let pages = self.pages(&(0..before));
        self.locked[pages].fill(false);
    }

    fn release(&mut self, ranges: impl Iterator<Item = Range<u64>>) {
        let mut end = 0;
        for range in ranges {
            assert!(range.start >= end && range.start < range.end, "{range:?} after {end}");
            assert!(range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES));
            end = range.end;
            for page in self.pages(&range) {
                assert!(!self.before[page], "page {page} was resident before");
                self.resident[page] &= self.locked[page];
            }
        }
    }

    /// Reads for the stream, and applies the rule as its follower does.
    fn stream(&mut self, stream: &mut ReadStream, at: u64, length: u64, ahead: u64) {
        if stream.jumps(at) {
            self.unlock(u64::MAX);
            self.release(stream.remaining_ranges());
            stream.forget();
        }
        if let Some(range) = stream.sample_for_read(at, length, self.size) {
            self.show(stream, &range);
        }
        let done = length.min(self.size.saturating_sub(at));
        self.read(at..at + done, ahead, length);
        self.unlock((at + done).saturating_sub(WINDOW));
        self.release(stream.passed(at, done));
    }

    fn close(&mut self, stream: &ReadStream) {
        self.unlock(u64::MAX);
        self.release(stream.remaining_ranges());
    }
}

fn warm() -> impl Strategy<Value = Vec<(u64, u64)>> {
    // Pages here and there, and whole stretches.
    prop::collection::vec((0..40_000_u64, prop_oneof![1..20_u64, 400..3000_u64]), 0..60)
}

/// Returns the cache after a file was read from its beginning to its end, and closed.
fn read_in_order(size: u64, warm: &[(u64, u64)], reads: &[(u64, u64)]) -> Cache {
    let (mut cache, mut stream) = (Cache::new(size, warm), ReadStream::new());
    let (mut at, mut next) = (0, reads.iter().cycle());
    while at < size {
        let &(length, ahead) = next.next().unwrap();
        cache.stream(&mut stream, at, length, ahead);
        at += length;
    }
    cache.close(&stream);
    cache
}

/// One read begins two windows before the one in which it ends: the windows that it passed are
/// released once.
#[test]
fn a_read_of_more_than_a_window_leaves_nothing() {
    for (size, long) in [(4_194_304, 2_371_008), (5_000_000, 2_400_000)] {
        let cache = read_in_order(size, &[], &[(1_823_296, 0), (long, 0)]);
        let left: Vec<_> = (0..cache.resident.len()).filter(|&page| cache.resident[page]).collect();
        assert!(left.is_empty(), "pages {left:?} of {size} bytes stay");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_stream_in_order_leaves_the_cache_as_it_was(
        size in prop_oneof![1..3_000_000_u64, 1..160_000_000_u64],
        warm in warm(),
        reads in prop::collection::vec((1..3_000_000_u64, 0..READ_AHEAD), 1..40),
    ) {
        let cache = read_in_order(size, &warm, &reads);
        prop_assert!(cache.resident == cache.before, "the cache is not as it was");
    }

    #[test]
    fn a_stream_that_jumps_releases_nothing_of_others(
        size in 1..160_000_000_u64,
        warm in warm(),
        runs in prop::collection::vec((0..200_000_000_u64, 1..60_u64, 1..300_000_u64, 0..READ_AHEAD), 1..40),
    ) {
        let (mut cache, mut stream) = (Cache::new(size, &warm), ReadStream::new());
        for (from, reads, length, ahead) in runs {
            for nth in 0..reads {
                cache.stream(&mut stream, from + nth * length, length, ahead.min(nth * length));
            }
        }
        cache.close(&stream);
        for (page, &before) in cache.before.iter().enumerate() {
            prop_assert!(!before || cache.resident[page], "page {} is gone", page);
        }
    }
}
