//! Leads on simulated disks: programs that write, on a clock that is handed on.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::write_behind::WriteBehind;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const MS: u64 = 1_000_000;
/// Bytes a second of a copy in memory.
const MEMORY: u64 = 2 * GIB;

/// A disk: so many requests at once, each of `largest` bytes at most and for so long, and so many bytes a second.
#[derive(Debug, Clone, Copy)]
struct Disk {
    latency: u64,
    width: usize,
    bandwidth: u64,
    largest: u64,
    /// What the first request takes longer: the file system may have much to do for it.
    first: u64,
}

const WIDE: Disk = Disk { latency: 40 * MS, width: 64, bandwidth: 400 * MIB, largest: MIB, first: 0 };
const NARROW: Disk = Disk { latency: 40 * MS, width: 1, bandwidth: 4 * GIB, largest: MIB, first: 0 };
const SLOW: Disk = Disk { latency: MS / 10, width: 32, bandwidth: 60 * MIB, largest: MIB, first: 0 };

/// The same, with what it has to do: when the latest requests are done, as many as it serves at once, and the last bytes.
struct Busy {
    disk: Disk,
    places: VecDeque<u64>,
    last: u64,
}

impl Busy {
    fn new(disk: Disk) -> Self {
        Self { disk, places: VecDeque::new(), last: 0 }
    }

    /// When so many bytes that come now are written.
    fn write(&mut self, mut bytes: u64, now: u64) -> u64 {
        while bytes > 0 {
            let request = bytes.min(self.disk.largest);
            bytes -= request;
            let free = if self.places.len() < self.disk.width {
                now
            } else {
                self.places.pop_front().unwrap().max(now)
            };
            let transfer = request * SECOND / self.disk.bandwidth;
            let first = core::mem::take(&mut self.disk.first);
            self.last = (free + self.disk.latency + first + transfer).max(self.last + transfer);
            self.places.push_back(self.last);
        }
        self.last
    }
}

/// What came of a program that writes: nanoseconds until all was on disk, the lead that was good at the end, and the most that was in flight in
/// the second half.
#[derive(Debug)]
struct Outcome {
    took: u64,
    bytes: u64,
    most: u64,
}

/// A program that writes by calls of `call` bytes, and makes each in so many nanoseconds more than the copy takes.
fn write_new(disk: Disk, total: u64, call: u64, between: u64) -> Outcome {
    let mut lead = Lead::NEW;
    write(&mut lead, disk, total, call, between, 256 * MIB)
}

/// The same, of a disk of which something is known.
fn write(lead: &mut Lead, disk: Disk, total: u64, call: u64, between: u64, max: u64) -> Outcome {
    let (mut disk, mut behind, mut marks) = (Busy::new(disk), WriteBehind::NEW, Marks::NONE);
    let (mut now, mut at, mut waits, mut most) = (0, 0, 0, 0);
    let mut begun: VecDeque<(u64, u64)> = VecDeque::new();
    while at < total {
        now += call * SECOND / MEMORY + between;
        let bytes = lead.bytes(max);
        let pace = Pace::of(bytes, call, true);
        let due = behind.wrote(at..at + call, pace);
        at += call;
        if let Some(range) = due.start {
            let mut from = range.start;
            while from < range.end {
                let end = (from + pace.step).min(range.end);
                begun.push_back((end, disk.write(end - from, now)));
                from = end;
            }
            let waited = due.wait.as_ref().map_or(range.end - behind.in_flight(), |wait| wait.start);
            let in_flight = range.end - waited;
            most = if at > total / 2 { in_flight.max(most) } else { 0 };
            marks.begun(&range, bytes, in_flight, now, waits);
        }
        let Some(mut wait) = due.wait else { continue };
        while !wait.is_empty() {
            let end = marks.first_end(&wait);
            let is_whole = begun.iter().find(|(begun_end, _)| *begun_end >= end);
            if let Some(&(_, until)) = is_whole.filter(|(_, until)| *until > now) {
                waits += 1;
                now = until;
            }
            for timed in marks.written(end, now, waits) {
                lead.timed(timed, max);
            }
            while begun.front().is_some_and(|(begun_end, _)| *begun_end < end) {
                begun.pop_front();
            }
            wait.start = end;
        }
    }
    let took = disk.write(at % MIB, now).max(disk.last).max(now);
    Outcome { took, bytes: lead.good, most }
}

/// The time of a program that is never held up before it syncs.
fn unbound(disk: Disk, total: u64) -> u64 {
    Busy::new(disk).write(total, 0).max(total * SECOND / MEMORY)
}

#[test]
fn no_disk_is_idle_for_want_of_a_longer_lead() {
    for latency in [MS / 10, MS, 5 * MS, 15 * MS, 16 * MS, 20 * MS, 40 * MS, 100 * MS] {
        for (width, bandwidth) in
            [(1, 4 * GIB), (4, 4 * GIB), (64, 250 * MIB), (64, 400 * MIB), (64, 1200 * MIB), (32, 60 * MIB)]
        {
            let disk = Disk { latency, width, bandwidth, largest: MIB, first: 0 };
            let best = unbound(disk, 4 * GIB);
            for call in [64 << 10, MIB, 3 * MIB, 64 * MIB] {
                let outcome = write_new(disk, 4 * GIB, call, 0);
                let ratio = best as f64 / outcome.took as f64;
                assert!(ratio >= 0.94, "{ratio:.3} {disk:?} {call} {outcome:?}");
            }
        }
    }
}

/// As of who writes by some KiB: its pages are so small that a request has fewer bytes than a step.
#[test]
fn a_disk_that_answers_slowly_has_few_requests_that_are_the_rest_of_a_step() {
    for latency in [15 * MS, 40 * MS, 100 * MS] {
        for largest in [640 << 10, 720 << 10, 900 << 10] {
            for first in [0, latency / 3] {
                let disk = Disk { latency, largest, bandwidth: 250 * MIB, first, ..NARROW };
                let total = 256 * MIB;
                let outcome = write_new(disk, total, 10 << 10, 0);
                let ratio = unbound(disk, total) as f64 / outcome.took as f64;
                // A longer lead would gain up to 0.05, by seconds of queue.
                assert!(ratio >= 0.82, "{ratio:.3} {disk:?} {outcome:?}");
                // What is queued is no more than it writes in the time that the end of a process waits.
                let rate = total as f64 / outcome.took as f64;
                assert!(outcome.most as f64 / rate <= 2e9, "{disk:?} {outcome:?}");
            }
        }
    }
}

#[test]
fn a_lead_is_no_longer_than_the_disk_needs() {
    let after = |disk| write_new(disk, 4 * GIB, MIB, 0);
    // Four times what is in flight at its rate, at most.
    let wide = after(WIDE);
    assert!((16 * MIB..64 * MIB).contains(&wide.bytes), "{wide:?}");
    // Two requests.
    assert_eq!(after(NARROW).bytes, 2 * MIB);
    // 15 ms of its work, and a call more is in flight.
    let slow = after(SLOW);
    assert!((MIB * 7 / 8..=MIB).contains(&slow.bytes) && slow.most <= 4 * MIB, "{slow:?}");
    let fast = after(Disk { bandwidth: GIB, ..SLOW });
    assert!(fast.bytes <= 2 * QUEUE_MAX, "{fast:?}");
}

/// As where the file system reads its own pages, or commits its journal, before it writes the first of a file.
#[test]
fn a_first_request_that_takes_long_makes_no_lead_that_the_disk_is_seconds_behind() {
    for latency in [100 * MS, 500 * MS, 1000 * MS] {
        for first in [latency, 2 * latency, 4 * latency] {
            let mut lead = Lead::NEW;
            let disk = Disk { latency, first, ..NARROW };
            for total in [8 * MIB, 64 * MIB] {
                let outcome = write(&mut lead, disk, total, 10 << 10, 0, 256 * MIB);
                let queued = lead.bytes(256 * MIB) as f64 / (MIB as f64 / (latency as f64 / 1e9));
                // What is known of a rate is an average.
                assert!(queued <= 2.5, "{queued:.1} s of {disk:?}, {total}: {outcome:?}");
            }
        }
    }
}

#[test]
fn a_disk_that_changes_is_followed() {
    let mut lead = Lead::NEW;
    let mut then = |disk: Disk, total| {
        let outcome = write(&mut lead, disk, total, MIB, 0, 256 * MIB);
        (unbound(disk, total) as f64 / outcome.took as f64, outcome.bytes)
    };
    then(Disk { bandwidth: GIB, ..SLOW }, GIB);
    let wide = then(WIDE, 16 * GIB);
    assert!(wide.0 > 0.9, "{wide:?}");
    let (_, bytes) = then(SLOW, 16 * GIB);
    assert!(bytes <= 2 * MIB, "{bytes}");
    let narrow = then(NARROW, 4 * GIB);
    assert!(narrow.0 > 0.9, "{narrow:?}");
}

#[test]
fn a_writer_that_is_slower_than_its_disk_needs_no_longer_lead() {
    let outcome = write_new(WIDE, GIB, MIB, 50 * MS);
    assert!(outcome.bytes <= 8 * MIB, "{outcome:?}");
}

#[test]
fn what_was_begun_under_another_lead_says_nothing() {
    let mut lead = Lead::NEW;
    let before = lead;
    lead.timed(Timed { lead: MIB, in_flight: MIB, took: 1, waited: true, is_exact: true }, 8 * MIB);
    assert_eq!(lead, before);
    lead.timed(Timed { lead: 2 * MIB, in_flight: MIB, took: 1, waited: true, is_exact: true }, 8 * MIB);
    assert_ne!(lead, before);
}

#[test]
fn the_pace_has_no_more_in_flight_than_the_lead() {
    for lead in [LEAD_MIN, 900 << 10, 2 * MIB, 64 * MIB] {
        let pace = Pace::of(lead, 4096, true);
        assert!(pace.step + pace.budget <= lead + STEP_MIN && pace.step.is_multiple_of(STEP_MIN), "{pace:?}");
    }
    assert_eq!(Pace::of(0, 0, true), Pace { step: STEP_MIN, budget: STEP_MIN, release: true });
    // Nor less than a call.
    assert_eq!(Pace::of(LEAD_MIN, 8 * MIB, true), Pace { step: 4 * MIB, budget: 8 * MIB, release: true });
}

proptest! {
    #[test]
    fn no_lead_leaves_its_bounds(
        words in prop::array::uniform7(any::<u64>()),
        timed in prop::collection::vec((any::<u64>(), any::<u64>(), any::<bool>()), 0..200),
        max in LEAD_MIN..1 << 32,
    ) {
        for mut lead in [Lead::from_words(words), Lead::NEW] {
            for &(in_flight, took, waited) in &timed {
                let bytes = lead.bytes(max);
                prop_assert!((LEAD_MIN..=max).contains(&bytes));
                let written = (u128::from(lead.rate) * u128::from(QUEUED_MAX_NS) / 1_000_000_000).max(LEAD_MIN.into());
                prop_assert!(lead.rate == 0 || u128::from(bytes) <= written, "{:?}", lead);
                lead.timed(Timed { lead: bytes, in_flight, took, waited, is_exact: took % 3 > 0 }, max);
            }
        }
    }

    #[test]
    fn words_say_all(timed in prop::collection::vec((0..1_u64 << 30, 1..1_u64 << 30, any::<bool>()), 0..200)) {
        let mut lead = Lead::NEW;
        prop_assert_eq!(lead.to_words(), [0; WORDS]);
        for (in_flight, took, waited) in timed {
            lead.timed(Timed { lead: lead.bytes(GIB), in_flight, took, waited, is_exact: took % 3 > 0 }, GIB);
            prop_assert_eq!(Lead::from_words(lead.to_words()), lead);
        }
    }
}
