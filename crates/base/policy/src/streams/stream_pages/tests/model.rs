//! Events in any order, against a page cache in which the state of each page is known.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// The size of the model's file, in pages: six windows.
const FILE_PAGES: u64 = 6 * WINDOW_PAGES as u64;

/// An event on the file.
#[derive(Debug, Clone)]
enum Happening {
    /// A stream adds pages.
    Add(Range<u64>),
    /// A stream uses pages.
    Use(Range<u64>),
    /// Another process uses pages, and brings in those that are missing.
    OthersUse(Range<u64>),
    /// The kernel drops pages.
    Drop(Range<u64>),
    /// Time passes, and due pages are released, except every `one_in_stays`-th (none for 0).
    /// Meanwhile a stream adds pages.
    Release { ms: u64, one_in_stays: u64, meanwhile: Range<u64> },
}

fn some_pages() -> impl Strategy<Value = Range<u64>> {
    (0..FILE_PAGES, prop_oneof![1..4_u64, 1..800_u64])
        .prop_map(|(start, length)| start..(start + length).min(FILE_PAGES))
}

fn happening() -> impl Strategy<Value = Happening> {
    let pause = prop_oneof![0..30_u64, 0..3000_u64];
    let meanwhile = prop_oneof![4 => Just(0..0), 1 => some_pages()];
    prop_oneof![
        4 => some_pages().prop_map(Happening::Add),
        4 => some_pages().prop_map(Happening::Use),
        1 => some_pages().prop_map(Happening::OthersUse),
        1 => some_pages().prop_map(Happening::Drop),
        4 => (pause, 0..4_u64, meanwhile)
            .prop_map(|(ms, one_in_stays, meanwhile)| Happening::Release { ms, one_in_stays, meanwhile }),
    ]
}

/// The page cache of one file, and the ledger under test.
#[derive(Default)]
struct PageCache {
    ledger: StreamPages,
    now: Duration,
    resident: BTreeSet<u64>,
    /// Pages that streams added, and that nobody else has used since.
    of_streams: BTreeSet<u64>,
    released: u64,
}

impl PageCache {
    fn add(&mut self, pages: &Range<u64>) {
        self.now += Duration::from_micros(1);
        self.resident.extend(pages.clone());
        self.of_streams.extend(pages.clone());
        self.ledger.added(in_bytes(pages), self.now);
    }

    fn happens(&mut self, happening: &Happening, sees_use: bool) {
        match happening {
            Happening::Add(pages) => self.add(pages),
            Happening::Use(pages) => self.ledger.used(in_bytes(pages), self.now),
            Happening::OthersUse(pages) => {
                self.resident.extend(pages.clone());
                self.of_streams.retain(|page| !pages.contains(page));
                self.ledger.used_by_others(in_bytes(pages));
            }
            Happening::Drop(pages) => self.resident.retain(|page| !pages.contains(page)),
            Happening::Release { ms, one_in_stays, meanwhile } => {
                self.now += at(*ms);
                self.release(sees_use, false, *one_in_stays, meanwhile);
            }
        }
    }

    fn release(&mut self, sees_use: bool, ended: bool, one_in_stays: u64, meanwhile: &Range<u64>) {
        let due = self.ledger.due(self.now, sees_use, ended);
        let mut end = 0;
        for range in &due {
            assert!(range.bytes.start >= end && !range.bytes.is_empty(), "{due:?}");
            end = range.bytes.end;
        }
        for range in &due {
            let mut outcome = ReleaseOutcome::default();
            for page in pages_of(&range.bytes) {
                assert!(self.of_streams.contains(&page), "page {page} is no stream's: {range:?}");
                if !self.resident.contains(&page) {
                    outcome.gone += PAGE_BYTES;
                } else if one_in_stays > 0 && page.is_multiple_of(one_in_stays) {
                    outcome.stays += PAGE_BYTES;
                } else {
                    self.resident.remove(&page);
                    self.released += PAGE_BYTES;
                    outcome.released += PAGE_BYTES;
                }
            }
            self.add(meanwhile);
            self.ledger.tried(range, outcome, self.now);
        }
    }

    fn check(&self, sees_use: bool) {
        let sums = self.ledger.totals();
        let kept: u64 = self.ledger.windows.values().map(|window| u64::from(window.resident())).sum();
        assert_eq!(sums.resident, kept * PAGE_BYTES);
        assert_eq!(sums.added, sums.released + sums.handed_on + sums.gone + sums.resident);
        assert!(sums.released <= self.released);
        assert_eq!(self.ledger.next_due(self.now, sees_use, false).is_none(), self.ledger.is_done());
        for ended in [false, true] {
            if let Some(next) = self.ledger.next_due(self.now, sees_use, ended) {
                assert!(!self.ledger.due(next, sees_use, ended).is_empty());
                let before = next.saturating_sub(Duration::from_nanos(1));
                assert!(next == self.now || self.ledger.due(before, sees_use, ended).is_empty());
            }
        }
    }
}

fn in_bytes(pages: &Range<u64>) -> Range<u64> {
    pages.start * PAGE_BYTES..pages.end * PAGE_BYTES
}

proptest! {
    #[test]
    fn only_pages_of_streams_are_due_and_all_of_them_at_last(
        happenings in proptest::collection::vec(happening(), 1..60),
        sees_use in any::<bool>(),
    ) {
        let mut cache = PageCache::default();
        for happening in &happenings {
            cache.happens(happening, sees_use);
            cache.check(sees_use);
        }
        // Everything is due once the streams have ended, apart from the pause after an attempt.
        cache.now += RETRY_PAUSE_MAX;
        cache.release(sees_use, true, 0, &(0..0));
        cache.check(sees_use);
        prop_assert!(cache.ledger.is_done());
        prop_assert_eq!(cache.ledger.totals().resident, 0);
        prop_assert_eq!(cache.resident.intersection(&cache.of_streams).count(), 0);
    }
}
