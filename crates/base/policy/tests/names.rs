//! File names of logs: sequences, distances, stems, for every kind of number.

use pagekeeper_policy::allowance::is_near;
use pagekeeper_policy::names::{
    FileNumber, NamePattern, SegmentSize, WalSegment, by_last_number, check, matches,
};
use proptest::prelude::*;

/// Sizes of WAL segments, in bytes: powers of two from 1 MiB to 1 GiB.
fn sizes() -> impl Strategy<Value = u64> {
    (20_u32..=30).prop_map(|bits| 1 << bits)
}

/// Returns the name of the segment with this sequence, as PostgreSQL's `XLogFileName` makes it.
fn segment_name(timeline: u32, sequence: u64, size: u64) -> String {
    let count = (1_u64 << 32) / size;
    format!("{timeline:08X}{:08X}{:08X}", sequence / count, sequence % count)
}

fn sequence_of(name: &str, size: u64) -> u64 {
    let segment = WalSegment::of_name(name.as_bytes()).expect("a segment's name");
    segment.sequence(SegmentSize::of_file(size))
}

#[test]
fn neighbours_are_at_distance_one_across_the_wraparound_of_the_low_part() {
    for bits in 20..=30 {
        let size = 1 << bits;
        let last = (1_u64 << (32 - bits)) - 1;
        let before = sequence_of(&format!("0000000100000000{last:08X}"), size);
        let after = sequence_of("000000010000000100000000", size);
        assert_eq!(after - before, 1, "{size}");
        assert!(is_near(after, before, 1) && !is_near(after, before, 0));
    }
}

proptest! {
    #[test]
    fn segments_have_consecutive_sequences_on_all_timelines(
        size in sizes(),
        sequence in 0_u64..(1 << 34),
        timelines in any::<(u32, u32)>(),
    ) {
        // For any size, at most 2^32 times 4 GiB.
        let sequence = sequence % (((1_u64 << 32) / size) << 32);
        let here = sequence_of(&segment_name(timelines.0, sequence, size), size);
        let next = sequence_of(&segment_name(timelines.1, sequence + 1, size), size);
        prop_assert_eq!((here, next), (sequence, sequence + 1));
    }

    #[test]
    fn sequences_order_as_names_do(size in sizes(), parts in any::<[(u32, u32); 2]>()) {
        let sequence = |(high, low): (u32, u32)| sequence_of(&format!("00000001{high:08X}{low:08X}"), size);
        let [a, b] = parts;
        // Whatever the low parts are, even those that segments of this size don't have.
        let (earlier, later) = (a.min(b), a.max(b));
        prop_assert!(sequence(earlier) <= sequence(later));
    }

    #[test]
    fn a_position_is_in_the_segment_that_holds_it(size in sizes(), lsn: u64) {
        let (sequence, offset) = SegmentSize::of_file(size).unwrap().place_of(lsn);
        prop_assert_eq!(sequence_of(&segment_name(1, sequence, size), size), sequence);
        prop_assert_eq!((u128::from(sequence) * u128::from(size)) + u128::from(offset), u128::from(lsn));
        prop_assert!(offset < size);
    }

    #[test]
    fn stem_and_number_give_the_name_back(
        before in "[a-z-]{0,8}[g-z.]",
        after in "[g-z.][a-z0-9.]{0,8}",
        number: u64,
        width in 1_usize..20,
        ignored: u64,
    ) {
        let literal = |text: &str| text.replace('*', "");
        for (digits, class) in [
            (format!("{number:0width$}"), "{n}"),
            (format!("{number:0width$x}"), "{h}"),
            (format!("{number:0width$X}"), "{h}"),
        ] {
            let pattern = format!("{}{class}{}", literal(&before), literal(&after));
            let any = format!("*{class}{after}");
            for (pattern, name) in [
                (pattern, format!("{before}{digits}{after}")),
                (any, format!("{before}{digits}{after}")),
                (format!("{before}{class}{after}-{{_}}"), format!("{before}{digits}{after}-{ignored:x}")),
                (format!("{{_}}-{before}{class}{after}"), format!("{ignored:x}-{before}{digits}{after}")),
            ] {
                let found = matches(pattern.as_bytes(), name.as_bytes()).expect("a match");
                prop_assert_eq!(found.number.sequence(None), number, "{} {}", pattern, name);
                // The stem is the name without its digits: with them it is as long as the name, and
                // begins and ends as it.
                let stem = found.stem().concat();
                let dash = if pattern.contains("{_}") { "-" } else { "" };
                let expected = if pattern.starts_with("{_}") {
                    format!("{dash}{before}{after}")
                } else {
                    format!("{before}{after}{dash}")
                };
                prop_assert_eq!(String::from_utf8(stem).unwrap(), expected, "{} {}", pattern, name);
            }
        }
    }

    #[test]
    fn wal_segments_give_their_names_back(timeline: u32, high: u32, low: u32) {
        let name = format!("{timeline:08X}{high:08X}{low:08X}");
        let found = matches(b"pg_wal/{x}", format!("/d/pg_wal/{name}").as_bytes()).map(|found| found.number);
        prop_assert_eq!(found, Some(FileNumber::WalSegment(WalSegment { timeline, high, low })));
        prop_assert_eq!(by_last_number(name.as_bytes()).number, found.unwrap());
    }

    #[test]
    fn neighbours_with_counted_numbers_are_at_distance_one(number in 0_u64..u64::MAX, width in 1_usize..25) {
        let pair = |pattern: &str, names: [String; 2]| {
            let sequence = |name: &str| matches(pattern.as_bytes(), name.as_bytes()).unwrap().number.sequence(None);
            (sequence(&names[0]), sequence(&names[1]))
        };
        let next = number + 1;
        let decimal = [format!("log.{number:0width$}"), format!("log.{next:0width$}")];
        prop_assert_eq!(pair("*.{n}", decimal.clone()), (number, next));
        let hexadecimal = [format!("{number:016x}-{number:016x}.wal"), format!("{next:016x}-{number:016x}.wal")];
        prop_assert_eq!(pair("{h}-{_}.wal", hexadecimal), (number, next));
        let inferred = decimal.map(|name| by_last_number(name.as_bytes()).number.sequence(None));
        prop_assert_eq!(inferred, [number, next]);
    }

    #[test]
    fn matching_any_bytes_never_panics(
        pieces in proptest::collection::vec(
            proptest::sample::select(vec!["*", "{n}", "{h}", "{x}", "{_}", "{", "}", "/", "a", "0", "."]),
            0..8,
        ),
        path in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'/'), Just(b'0'), Just(b'a'), Just(b'.')], 0..40),
    ) {
        let text = pieces.concat();
        let found = matches(text.as_bytes(), &path);
        prop_assert_eq!(check(text.as_bytes()).is_ok(), text.parse::<NamePattern>().is_ok());
        if let Some(found) = found {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap();
            prop_assert!(found.stem().concat().len() <= name.len());
            prop_assert!(found.number != FileNumber::None || text.parse::<NamePattern>().is_err() || !has_number(&text));
        }
    }
}

/// Whether the last name of a pattern has a number that orders.
fn has_number(pattern: &str) -> bool {
    ["{n}", "{h}", "{x}"].iter().any(|class| pattern.contains(class))
}
