//! Readers with the kernel's read-ahead: pages they have yet to use stay.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A file with its resident pages: when each was added, and whether it was used.
struct ReadFile {
    ledger: StreamPages,
    now: Duration,
    resident: BTreeMap<u64, (Duration, bool)>,
    /// The largest read-ahead, in pages.
    read_ahead: u64,
    size: u64,
    sees_use: bool,
}

impl ReadFile {
    fn new(size: u64, read_ahead: u64, sees_use: bool) -> Self {
        let (ledger, resident) = (StreamPages::default(), BTreeMap::new());
        Self { ledger, now: at(1000), resident, read_ahead, size, sees_use }
    }

    /// Reads pages, and reads ahead once less than half of the read-ahead is left.
    fn read(&mut self, pages: Range<u64>) {
        let half = (pages.end + self.read_ahead / 2).min(self.size);
        let whole = (pages.end + self.read_ahead).min(self.size);
        let wanted = if (pages.start..half).all(|page| self.resident.contains_key(&page)) {
            pages.start..half
        } else {
            pages.start..whole
        };
        for page in wanted {
            if !self.resident.contains_key(&page) {
                self.resident.insert(page, (self.now, false));
                self.ledger.added(page * PAGE_BYTES..(page + 1) * PAGE_BYTES, self.now);
            }
        }
        for page in pages.clone() {
            self.resident.entry(page).and_modify(|(_, used)| *used = true);
        }
        if self.sees_use {
            self.ledger.used(pages.start * PAGE_BYTES..pages.end * PAGE_BYTES, self.now);
        }
    }

    /// Lets time pass, releasing due pages every 10 ms. Returns the pages with the time of their
    /// addition and whether they were used.
    fn pass(&mut self, time: Duration) -> Vec<(u64, Duration, bool)> {
        let end = self.now + time;
        let mut all = Vec::new();
        while self.now < end {
            self.now = (self.now + at(10)).min(end);
            for range in release_due(&mut self.ledger, self.now, self.sees_use, false) {
                for page in pages_of(&range) {
                    let (added_at, used) = self.resident.remove(&page).expect("a resident page");
                    all.push((page, added_at, used));
                }
            }
        }
        all
    }
}

/// Pauses between two reads, in microseconds: mostly those of a fast reader, now and then a long
/// rest.
fn pause(longest: u64) -> impl Strategy<Value = u64> {
    prop_oneof![20 => 0..2000_u64, 2 => 0..100_000_u64, 1 => 0..longest]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_reader_in_order_keeps_the_pages_before_it(
        read_ahead in prop_oneof![Just(1_u64), 1..64_u64, 1..=READ_AHEAD_PAGES],
        reads in proptest::collection::vec((1..256_u64, pause(1_990_000)), 1..120),
    ) {
        let mut file = ReadFile::new(40_000, read_ahead, true);
        let mut place = 0;
        for (length, pause) in reads {
            let end = (place + length).min(file.size);
            file.read(place..end);
            place = end;
            for (page, _, used) in file.pass(Duration::from_micros(pause)) {
                prop_assert!(used && page < place);
            }
        }
        let left = file.pass(at(4200));
        prop_assert!(left.iter().all(|(page, _, used)| *used == (*page < place)));
        prop_assert!(file.resident.is_empty() && file.ledger.is_done());
    }

    #[test]
    fn a_reader_whose_uses_are_not_seen_keeps_the_pages_before_it(
        read_ahead in 1..=READ_AHEAD_PAGES,
        reads in proptest::collection::vec((1..256_u64, pause(20_000)), 1..120),
        readers in 1..4_u64,
    ) {
        let mut file = ReadFile::new(3 * READER_DISTANCE_PAGES, read_ahead, false);
        let mut place = 0;
        for (length, pause) in reads {
            for reader in 0..readers {
                let from = reader * READER_DISTANCE_PAGES + place;
                file.read(from..from + length);
            }
            place += length;
            // The kernel brings in the next read-ahead within a second.
            let slowest = at(990) / u32::try_from(read_ahead / length).unwrap().max(1);
            for (page, _, used) in file.pass(Duration::from_micros(pause).min(slowest)) {
                prop_assert!(used, "page {page} of {place}");
            }
        }
        file.pass(at(1100));
        prop_assert!(file.resident.is_empty() && file.ledger.is_done());
    }

    #[test]
    fn a_reader_of_pieces_in_any_order_keeps_the_rest_of_its_piece(
        read_ahead in 1..256_u64,
        piece in prop_oneof![Just(256_u64), Just(1024_u64)],
        order in Just((0..8_u64).collect::<Vec<_>>()).prop_shuffle(),
        lengths in proptest::collection::vec((1..128_u64, pause(300_000)), 1..20),
    ) {
        let mut file = ReadFile::new(8 * piece, read_ahead, true);
        let mut lengths = lengths.iter().cycle();
        for index in order {
            let (mut place, end) = (index * piece, (index + 1) * piece);
            while place < end {
                let (length, pause) = lengths.next().unwrap();
                let read = place..(place + length).min(end);
                place = read.end;
                file.read(read);
                for (page, added_at, used) in file.pass(Duration::from_micros(*pause)) {
                    prop_assert!(used || (added_at + at(2000) <= file.now && !(place..end).contains(&page)));
                }
            }
        }
        file.pass(at(4200));
        prop_assert!(file.resident.is_empty() && file.ledger.is_done());
    }
}

/// Distance between two readers in pages.
const READER_DISTANCE_PAGES: u64 = 40_000;
/// The largest read-ahead, in pages.
const READ_AHEAD_PAGES: u64 = crate::READ_AHEAD / PAGE_BYTES;
