#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges, some of one")]

use super::*;

mod model;
mod readers;

const MIB: u64 = 1 << 20;

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn bytes(due: &[DueRange]) -> Vec<Range<u64>> {
    due.iter().map(|range| range.bytes.clone()).collect()
}

fn size(due: &[DueRange]) -> u64 {
    due.iter().map(|range| range.bytes.end - range.bytes.start).sum()
}

fn released(range: &DueRange) -> ReleaseOutcome {
    ReleaseOutcome { released: range.bytes.end - range.bytes.start, ..ReleaseOutcome::default() }
}

/// Releases everything that is due.
fn release_due(pages: &mut StreamPages, now: Duration, sees_use: bool, ended: bool) -> Vec<Range<u64>> {
    let due = pages.due(now, sees_use, ended);
    for range in &due {
        pages.tried(range, released(range), now);
    }
    bytes(&due)
}

#[test]
fn a_writer_keeps_16_mib_until_it_rests() {
    let mut pages = StreamPages::default();
    for window in 0..16 {
        pages.added(window * WINDOW..(window + 1) * WINDOW, at(window));
    }
    for sees_use in [true, false] {
        assert_eq!(bytes(&pages.due(at(16), sees_use, false)), [0..16 * MIB]);
        assert_eq!(size(&pages.due(at(1014), sees_use, false)), 16 * MIB);
        assert_eq!(size(&pages.due(at(1015), sees_use, false)), 32 * MIB);
    }
}

#[test]
fn two_writers_of_one_file_keep_16_mib_each() {
    let mut pages = StreamPages::default();
    for window in 0..16 {
        pages.added(window * WINDOW..(window + 1) * WINDOW, at(window));
        pages.added((100 + window) * WINDOW..(101 + window) * WINDOW, at(window));
    }
    assert_eq!(bytes(&pages.due(at(16), false, false)), [0..16 * MIB, 200 * MIB..216 * MIB]);
}

#[test]
fn all_is_due_once_the_streams_have_ended() {
    let mut pages = StreamPages::default();
    pages.added(0..MIB, at(1));
    pages.used(0..65_536, at(1));
    assert!(pages.due(at(1), true, false).is_empty());
    assert_eq!(release_due(&mut pages, at(1), true, true), [0..MIB]);
    assert!(pages.is_done());
    assert_eq!(pages.next_due(at(1), true, true), None);
}

#[test]
fn two_readers_keep_their_windows() {
    let mut pages = StreamPages::default();
    pages.added(0..64 * MIB, at(0));
    pages.used(0..3 * MIB, at(10));
    pages.used(40 * MIB..43 * MIB, at(11));
    assert!(pages.due(at(29), true, false).is_empty());
    pages.used(3 * MIB..4 * MIB - PAGE_BYTES, at(30));
    pages.used(43 * MIB..44 * MIB - PAGE_BYTES, at(30));
    assert_eq!(bytes(&pages.due(at(31), true, false)), [0..2 * MIB, 40 * MIB..42 * MIB]);
}

#[test]
fn the_window_of_the_newest_use_stays_until_the_file_is_idle() {
    let mut pages = StreamPages::default();
    pages.added(0..4 * MIB, at(0));
    pages.used(0..3 * MIB, at(10));
    assert_eq!(bytes(&pages.due(at(59), true, false)), [0..2 * MIB]);
    assert_eq!(bytes(&pages.due(at(60), true, false)), [0..3 * MIB]);
    // An addition elsewhere shows that the stream continues.
    pages.added(50 * MIB..51 * MIB, at(60));
    assert_eq!(bytes(&pages.due(at(109), true, false)), [0..2 * MIB]);
}

#[test]
fn a_page_that_comes_again_waits_for_its_use_again() {
    let mut pages = StreamPages::default();
    pages.added(0..MIB, at(0));
    pages.used(0..MIB, at(0));
    pages.added(0..PAGE_BYTES, at(1));
    assert_eq!(bytes(&pages.due(at(100), true, false)), [PAGE_BYTES..MIB]);
}

#[test]
fn pages_that_were_read_ahead_are_due_after_2_s() {
    let mut pages = StreamPages::default();
    pages.added(0..16 * MIB, at(0));
    pages.used(0..4 * MIB, at(100));
    assert_eq!(release_due(&mut pages, at(150), true, false), [0..4 * MIB]);
    // Pages ahead of the reader wait for it.
    assert_eq!(pages.next_due(at(150), true, false), Some(at(2000)));
    assert_eq!(release_due(&mut pages, at(2000), true, false), [12 * MIB..16 * MIB]);
    assert_eq!(release_due(&mut pages, at(2100), true, false), [4 * MIB..12 * MIB]);
}

#[test]
fn the_oldest_of_many_read_ahead_pages_are_due() {
    let mut pages = StreamPages::default();
    pages.added(200 * MIB..200 * MIB + PAGE_BYTES, at(100));
    for window in 0..40 {
        pages.added(window * WINDOW..(window + 1) * WINDOW, at(100 + window));
    }
    pages.used(200 * MIB..200 * MIB + PAGE_BYTES, at(140));
    assert_eq!(bytes(&pages.due(at(150), true, false)), [0..16 * MIB]);
    assert_eq!(pages.next_due(at(150), true, false), Some(at(150)));
}

#[test]
fn pages_just_ahead_of_a_reader_and_tried_ones_do_not_count_as_waiting() {
    let mut pages = StreamPages::default();
    // 64 MiB that wait, then 56 MiB that were tried, and 8 MiB ahead of the reader.
    pages.added(300 * MIB..364 * MIB, at(2000));
    pages.added(0..56 * MIB, at(2001));
    for range in pages.due(at(2001), true, true).iter().filter(|range| range.bytes.end <= 56 * MIB) {
        pages.tried(range, ReleaseOutcome { stays: 16 * MIB, ..ReleaseOutcome::default() }, at(2001));
    }
    pages.added(200 * MIB..208 * MIB, at(2001));
    pages.used(200 * MIB - PAGE_BYTES..200 * MIB, at(2002));
    assert!(pages.due(at(2019), true, false).is_empty());
    pages.added(400 * MIB..402 * MIB, at(2003));
    assert_eq!(bytes(&pages.due(at(2019), true, false))[0].start, 300 * MIB);
}

#[test]
fn a_first_use_ends_the_pause_of_its_window() {
    let mut pages = StreamPages::default();
    pages.added(0..2 * WINDOW, at(0));
    pages.used(0..2 * WINDOW - PAGE_BYTES, at(0));
    for range in pages.due(at(50), true, false) {
        pages.tried(&range, ReleaseOutcome { stays: 2 * WINDOW, ..ReleaseOutcome::default() }, at(50));
    }
    pages.used(0..PAGE_BYTES, at(51));
    pages.used(2 * WINDOW - PAGE_BYTES..2 * WINDOW, at(51));
    let due: Vec<_> =
        pages.due(at(101), true, false).into_iter().map(|range| (range.bytes, range.attempts)).collect();
    assert_eq!(due, [(0..WINDOW, 1), (WINDOW..2 * WINDOW, 0)]);
}

#[test]
fn pages_that_stay_are_due_again_after_growing_pauses() {
    let mut pages = StreamPages::default();
    let mut now = at(0);
    pages.added(0..MIB, now);
    for (attempts, pause) in [20, 40, 80, 160, 320, 640, 1000, 1000].into_iter().enumerate() {
        let due = pages.due(now, true, true);
        assert_eq!(due, [DueRange { bytes: 0..MIB, attempts: u32::try_from(attempts).unwrap(), asked: now }]);
        pages.tried(&due[0], ReleaseOutcome { stays: MIB, ..ReleaseOutcome::default() }, now);
        assert_eq!(pages.next_due(now, true, true), Some(now + at(pause)));
        assert!(pages.due(now + at(pause - 1), true, true).is_empty());
        now += at(pause);
    }
    pages.added(MIB..2 * MIB, now);
    assert_eq!(pages.due(now, true, true)[0].attempts, 0);
}

#[test]
fn sums_count_each_page_once_over_several_attempts() {
    let mut pages = StreamPages::default();
    pages.added(0..4 * MIB, at(0));
    let due = pages.due(at(10), true, true);
    pages.tried(&due[0], ReleaseOutcome { released: 2 * MIB, gone: MIB, stays: MIB }, at(10));
    let first = StreamTotals { added: 4 * MIB, released: 2 * MIB, handed_on: 0, gone: MIB, resident: MIB };
    assert_eq!(pages.totals(), first);
    let due = pages.due(at(30), true, true);
    pages.tried(&due[0], ReleaseOutcome { released: MIB, gone: 3 * MIB, stays: 0 }, at(30));
    assert_eq!(pages.totals(), StreamTotals { released: 3 * MIB, resident: 0, ..first });
    assert!(pages.is_done());
}

#[test]
fn a_page_that_comes_again_was_gone() {
    let mut pages = StreamPages::default();
    pages.added(0..MIB, at(0));
    pages.added(0..PAGE_BYTES, at(1));
    pages.used_by_others(PAGE_BYTES..3 * PAGE_BYTES);
    let expected = StreamTotals {
        added: MIB + PAGE_BYTES,
        released: 0,
        handed_on: 2 * PAGE_BYTES,
        gone: PAGE_BYTES,
        resident: MIB - 2 * PAGE_BYTES,
    };
    assert_eq!(pages.totals(), expected);
    assert_eq!(pages.give_up(), MIB - 2 * PAGE_BYTES);
    assert!(pages.is_done());
    assert_eq!(pages.totals(), expected);
}

#[test]
fn pages_that_come_again_during_an_attempt_are_kept_for_another() {
    let mut pages = StreamPages::default();
    pages.added(0..2 * WINDOW, at(0));
    let due = pages.due(at(10), true, true);
    pages.added(0..PAGE_BYTES, at(11));
    pages.tried(&due[0], released(&due[0]), at(12));
    assert_eq!(release_due(&mut pages, at(12), true, true), [0..WINDOW]);
    assert!(pages.is_done());
}

#[test]
fn a_range_is_at_most_16_mib() {
    let mut pages = StreamPages::default();
    pages.added(MIB..40 * MIB, at(0));
    assert_eq!(bytes(&pages.due(at(0), true, true)), [MIB..16 * MIB, 16 * MIB..32 * MIB, 32 * MIB..40 * MIB]);
}

#[test]
fn no_more_windows_are_kept_than_there_may_be() {
    let mut pages = StreamPages::default();
    for window in 0..STREAM_WINDOWS_MAX as u64 + 10 {
        pages.added(window * WINDOW..window * WINDOW + PAGE_BYTES, Duration::from_micros(window));
        assert!(pages.windows.len() <= STREAM_WINDOWS_MAX);
    }
    let oldest_kept = *pages.windows.first_key_value().unwrap().0;
    assert_eq!(oldest_kept, GIVE_UP_BATCH_WINDOWS as u64);
    assert_eq!(pages.totals().resident, pages.totals().added);
    pages.added(0..u64::MAX, at(1000));
    pages.used(0..u64::MAX, at(1000));
    assert!(pages.windows.len() <= STREAM_WINDOWS_MAX);
    pages.used_by_others(0..u64::MAX);
    assert!(pages.is_done());
}

#[test]
fn half_a_million_single_pages_take_a_window_for_each_512() {
    for sees_use in [true, false] {
        let mut pages = StreamPages::default();
        let mut most_windows = 0;
        for page in 0..500_000 {
            let now = Duration::from_micros(2 * page);
            pages.added(page * PAGE_BYTES..(page + 1) * PAGE_BYTES, now);
            if sees_use {
                pages.used(page * PAGE_BYTES..(page + 1) * PAGE_BYTES, now);
            }
            if page % 5000 == 0 {
                release_due(&mut pages, now, sees_use, false);
            }
            most_windows = most_windows.max(pages.windows.len());
        }
        // The data of two steps of 10 ms and a current window's time, or the distance that a reader
        // may be behind.
        assert!(most_windows <= 45, "{most_windows}");
        release_due(&mut pages, at(2000), sees_use, true);
        let sums = pages.totals();
        assert_eq!((sums.added, sums.released), (500_000 * PAGE_BYTES, 500_000 * PAGE_BYTES));
    }
}

#[test]
fn found_pages_are_added_unless_they_are_listed() {
    let mut pages = StreamPages::default();
    pages.added(0..MIB, at(0));
    assert_eq!(pages.found(0..3 * MIB, at(1)), 2 * MIB);
    assert_eq!(pages.found(0..3 * MIB, at(2)), 0);
    assert_eq!((pages.totals().added, pages.totals().gone), (3 * MIB, 0));
    release_due(&mut pages, at(3), true, true);
    assert_eq!((pages.totals().released, pages.is_done()), (3 * MIB, true));
}
