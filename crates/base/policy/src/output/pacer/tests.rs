use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

/// A disk that takes requests in order: each takes a `latency` that overlaps with others', then its
/// turn at `rate` bytes a second.
struct Disk {
    latency: u64,
    rate: u64,
    /// The end of the last request's turn.
    free_at: u64,
}

impl Disk {
    fn new(latency: u64, rate: u64) -> Self {
        Self { latency, rate, free_at: 0 }
    }

    fn transfer(&self, bytes: u64) -> u64 {
        bytes * 1000 / (self.rate / 1_000_000)
    }

    /// Submits a request and returns the time at which it is done.
    fn submit(&mut self, now: u64, bytes: u64) -> u64 {
        self.free_at = self.free_at.max(now) + self.transfer(bytes);
        self.free_at + self.latency
    }
}

/// A writer that always has something to write, through a pacer.
struct Writer {
    pacer: Pacer,
    parts: VecDeque<(u64, u64, u64, u64)>,
    last_done: u64,
    not_before: u64,
    written: u64,
    longest_pause: u64,
    longest_piece: u64,
}

impl Writer {
    fn new() -> Self {
        Self {
            pacer: Pacer::new(),
            parts: VecDeque::new(),
            last_done: 0,
            not_before: 0,
            written: 0,
            longest_pause: 0,
            longest_piece: 0,
        }
    }

    fn in_flight(&self) -> u64 {
        self.parts.iter().map(|part| part.0).sum()
    }

    /// Notices the requests that are done, and begins those that may begin.
    fn go_on(&mut self, now: u64, disk: &mut Disk) {
        while let Some(&(bytes, in_flight, begun, done)) = self.parts.front()
            && done <= now
        {
            self.parts.pop_front();
            self.written += bytes;
            let took = done - begun;
            let busy = Some(done - self.last_done);
            let pause =
                self.pacer.written(WrittenPart { bytes, in_flight, took_min: took, took_max: took, busy });
            self.last_done = done;
            self.longest_pause = self.longest_pause.max(pause);
            self.not_before = self.not_before.max(done + pause);
        }
        let pace = WritePace::of(self.pacer.part(), self.pacer.backlog(), 128 << 10, true);
        while now >= self.not_before
            && (self.parts.is_empty() || self.in_flight() + pace.step <= self.pacer.piece())
        {
            let in_flight = self.in_flight() + pace.step;
            self.parts.push_back((pace.step, in_flight, now, disk.submit(now, pace.step)));
            self.longest_piece = self.longest_piece.max(in_flight);
        }
    }
}

/// The outcome of a run of both.
struct Outcome {
    writer: Writer,
    /// Fraction of the disk's rate that the writer got.
    share: f64,
    commits: u64,
    longest_commit: u64,
}

/// Runs the writer for `seconds` in steps of 50 µs. `commits` has the number of requests, of 8 KiB
/// each, that a commit makes one after the other, and the nanoseconds until the next commit.
/// `is_on` says when the database is at work.
fn simulate(
    mut disk: Disk,
    seconds: u64,
    commit: Option<(u32, u64)>,
    is_on: impl Fn(u64) -> bool,
) -> Outcome {
    let mut writer = Writer::new();
    let (mut commits, mut longest_commit) = (0, 0);
    let (mut begun, mut wake, mut requests) = (0, 0, 0);
    let end = seconds * SECOND;
    for now in (0..end).step_by(50_000) {
        writer.go_on(now, &mut disk);
        let Some((each, rest)) = commit else { continue };
        if now < wake || (requests == 0 && !is_on(now)) {
            continue;
        }
        if requests == 0 {
            (begun, requests) = (now, each);
        } else {
            requests -= 1;
            if requests == 0 {
                commits += 1;
                longest_commit = longest_commit.max(now - begun);
                wake = now + rest;
                continue;
            }
        }
        // The journal's commit waits behind everything submitted before it.
        wake = disk.submit(now, 8 << 10);
    }
    let share = writer.written as f64 / (disk.rate * seconds) as f64;
    Outcome { writer, share, commits, longest_commit }
}

fn alone(disk: Disk) -> Outcome {
    simulate(disk, 10, None, |_| false)
}

#[test]
fn alone_on_its_disk_a_stream_is_as_fast_as_the_disk() {
    for (latency, rate) in [(0, 100_000_000), (100_000, 500_000_000), (MS, 100_000_000), (MS, 400_000_000)] {
        let outcome = alone(Disk::new(latency, rate));
        assert!(outcome.share > 0.9, "{latency} {rate}: {}", outcome.share);
        assert_eq!(outcome.writer.longest_pause, 0);
    }
}

#[test]
fn a_piece_is_three_milliseconds_of_the_disk() {
    assert_eq!(alone(Disk::new(0, 100_000_000)).writer.pacer.piece(), PIECE_MIN);
    let quick = alone(Disk::new(50_000, 2_000_000_000)).writer;
    assert!((MIB..=PIECE_MAX).contains(&quick.pacer.piece()), "{}", quick.pacer.piece());
    assert_eq!(quick.pacer.backlog(), BACKLOG_MAX);
    // On a slow disk less may be unwritten.
    assert!(alone(Disk::new(0, 10_000_000)).writer.pacer.backlog() < 6 * MIB);
}

/// The first sync of a newcomer waits for what is in flight, and the kernel's own flusher for none.
#[test]
fn on_an_unused_disk_pieces_grow_at_once_and_shrink_at_once() {
    let (mut disk, mut writer) = (Disk::new(100_000, 2_000_000_000), Writer::new());
    writer.pacer.users(OtherUsers::None);
    for now in (0..200 * MS).step_by(50_000) {
        writer.go_on(now, &mut disk);
        if now == 20 * MS {
            assert!(writer.pacer.piece() > PIECE_MAX, "{}", writer.pacer.piece());
            writer.written = 0;
        }
    }
    assert!(writer.written > 330_000_000, "{}", writer.written);
    assert!(writer.longest_piece <= WIDE_PIECE_MAX && writer.pacer.backlog() > 4 * BACKLOG_MAX / 2);
    for users in [OtherUsers::Few, OtherUsers::Unknown] {
        writer.pacer.users(users);
        assert!((MIB..=PIECE_MAX).contains(&writer.pacer.piece()), "{}", writer.pacer.piece());
        assert_eq!(writer.pacer.backlog(), BACKLOG_MAX);
    }
    // A slow disk has no more than 13 ms of work.
    let (mut disk, mut writer) = (Disk::new(0, 100_000_000), Writer::new());
    writer.pacer.users(OtherUsers::None);
    (0..SECOND).step_by(50_000).for_each(|now| writer.go_on(now, &mut disk));
    assert!(writer.longest_piece <= 3 * MIB / 2 && writer.written > 90_000_000, "{}", writer.longest_piece);
}

#[test]
fn a_disk_that_answers_slowly_but_serves_much_at_once_gets_longer_pieces() {
    let wide = alone(Disk::new(40 * MS, 200_000_000));
    assert!(wide.share > 0.6 && wide.writer.longest_piece <= WIDE_PIECE_MAX, "{}", wide.share);
    // A merely slow disk does not.
    let slow = alone(Disk::new(0, 40_000_000));
    assert!(slow.writer.pacer.piece() == PIECE_MIN && slow.share > 0.9, "{}", slow.share);
}

#[test]
fn a_writer_in_a_closed_loop_keeps_most_of_its_commits() {
    // A slow flush, then a pause of two milliseconds.
    for commit in [(3, 2 * MS), (1, 2 * MS)] {
        let mut idle = Disk::new(500_000, 100_000_000);
        let (mut now, mut alone) = (0, 0);
        while now < 10 * SECOND {
            for _ in 0..commit.0 {
                now = idle.submit(now, 8 << 10);
            }
            (now, alone) = (now + commit.1, alone + 1);
        }
        let beside = simulate(Disk::new(500_000, 100_000_000), 10, Some(commit), |_| true);
        assert!(beside.commits * 3 > alone, "{} of {alone}", beside.commits);
        assert!(beside.longest_commit < 50 * MS && beside.share > 0.3, "{}", beside.longest_commit);
    }
}

/// A database submits bursts, as a checkpoint does: the stream yields, and uses the whole disk
/// again after them.
#[test]
fn a_burst_is_made_room_for_and_the_rest_is_taken() {
    let (mut disk, mut writer) = (Disk::new(0, 100_000_000), Writer::new());
    let mut during = 0;
    for now in (0..12 * SECOND).step_by(50_000) {
        let second = now / SECOND;
        // 4 MiB every 50 ms: most of the disk's rate.
        if (4..6).contains(&second) && now % (50 * MS) == 0 {
            disk.submit(now, 4 * MIB);
        }
        let before = writer.written;
        writer.go_on(now, &mut disk);
        during += if (4..6).contains(&second) { writer.written - before } else { 0 };
        if now == 7 * SECOND {
            writer.written = 0;
        }
    }
    assert!(during < 100_000_000, "{during}");
    assert!(writer.longest_pause > 0 && writer.longest_pause <= PAUSE_MAX_NS);
    assert!(writer.written > 450_000_000, "{}", writer.written);
}

#[test]
fn a_disk_that_became_slower_is_not_waited_for_forever() {
    let (mut disk, mut writer) = (Disk::new(0, 200_000_000), Writer::new());
    for now in (0..60 * SECOND).step_by(50_000) {
        if now == 10 * SECOND {
            disk.rate = 20_000_000;
        }
        if now == 50 * SECOND {
            writer.written = 0;
        }
        writer.go_on(now, &mut disk);
    }
    assert!(writer.written > 160_000_000, "{}", writer.written);
}

#[test]
fn a_late_piece_is_followed_by_a_pause_unless_nobody_else_is_there() {
    for (users, pauses) in [(OtherUsers::Unknown, true), (OtherUsers::Few, false), (OtherUsers::None, false)]
    {
        let mut pacer = Pacer::new();
        pacer.users(users);
        let mut write = |took| {
            let (bytes, in_flight) = (PIECE_MIN / 2, PIECE_MIN);
            pacer.written(WrittenPart { bytes, in_flight, took_min: took, took_max: took, busy: Some(took) })
        };
        assert_eq!(write(2_000_000), 0);
        assert_eq!(write(20_000_000) > 0, pauses, "{users:?}");
    }
}

#[test]
fn steps_follow_the_piece_and_the_calls() {
    let of = |piece: u64, backlog, length| WritePace::of(piece / 2, backlog, length, true);
    assert_eq!(
        of(PIECE_MIN, 16 * MIB, 4096),
        WritePace { step: 128 << 10, budget: 16 * MIB - (128 << 10), release: true }
    );
    // A write of 1 MiB makes folios of that size, which are written as a whole.
    assert_eq!(of(PIECE_MIN, 16 * MIB, MIB).step, MIB);
    assert_eq!(of(PIECE_MIN, 16 * MIB, 64 * MIB).step, MIB);
    // A small share of the backlog.
    assert_eq!(of(4 * MIB, 512 << 10, MIB), WritePace { step: 128 << 10, budget: 384 << 10, release: true });
    assert!(of(0, 0, 0).step > 0 && of(u64::MAX, u64::MAX, u64::MAX).step > 0);
}

proptest! {
    #[test]
    fn bounds_hold_for_any_setting_and_any_share(
        words in prop::array::uniform7(any::<u64>()),
        parts in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<Option<u64>>()), 1..50),
    ) {
        let mut pacer = Pacer::from_words(words);
        for (bytes, in_flight, took_min, took_max, busy) in parts {
            let pause = pacer.written(WrittenPart { bytes, in_flight, took_min, took_max, busy });
            prop_assert!(pause <= PAUSE_MAX_NS);
            prop_assert!((PIECE_MIN..=WIDE_PIECE_MAX).contains(&pacer.piece()));
            pacer.users(OtherUsers::None);
            prop_assert!((BACKLOG_MIN..=UNUSED_BACKLOG_MAX).contains(&pacer.backlog()));
            pacer.users(OtherUsers::Few);
            prop_assert!((BACKLOG_MIN..=BACKLOG_MAX).contains(&pacer.backlog()));
            prop_assert_eq!(Pacer::from_words(pacer.to_words()).piece(), pacer.piece());
        }
    }

    #[test]
    fn every_setting_parses_back(took in prop::collection::vec(1..100_000_000_u64, 1..200)) {
        let mut pacer = Pacer::new();
        for took in took {
            let part = WrittenPart { bytes: 128 << 10, in_flight: 256 << 10, took_min: took, took_max: took, busy: Some(took) };
            pacer.written(part);
            prop_assert_eq!(Pacer::from_words(pacer.to_words()), pacer);
        }
    }
}
