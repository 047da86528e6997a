use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::output::pacer::{Pacer, WrittenPart};
use crate::output::write_behind::WritePace;
use crate::streams::read_pace::ReadDuty;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const TICK: u64 = 50_000;
/// The time in which a throttle counts.
const SLICE: u64 = 100 * MS;

/// A disk that takes requests in order, each at `rate` bytes a second plus a `latency` that
/// overlaps with others'. A sync waits for all data submitted before it, as in a journal that
/// orders data.
struct Disk {
    latency: u64,
    rate: u64,
    free_at: u64,
    /// Bytes that it takes in each tenth of a second, as a throttle has it, and the last tenth with
    /// its bytes.
    throttle: Option<u64>,
    slice: (u64, u64),
}

impl Disk {
    fn submit(&mut self, now: u64, bytes: u64) -> u64 {
        if let Some(most) = self.throttle {
            let this = self.slice.0.max(now / SLICE);
            let used = if this == self.slice.0 { self.slice.1 } else { 0 };
            self.slice = if used + bytes > most { (this + 1, bytes) } else { (this, used + bytes) };
            self.free_at = self.free_at.max(self.slice.0 * SLICE);
        }
        self.free_at = self.free_at.max(now) + bytes * 1000 / (self.rate / 1_000_000);
        self.free_at + self.latency
    }
}

/// Requests of others, counted as the kernel counts them.
#[derive(Default)]
struct Counted {
    open: VecDeque<(u64, u64)>,
    window: OthersRequests,
    took: Vec<u64>,
}

impl Counted {
    fn begin(&mut self, now: u64, done_at: u64) {
        self.window.begun += 1;
        self.open.push_back((now, done_at));
    }

    /// Returns the requests counted since the last call.
    fn take(&mut self, now: u64, ns: u64) -> OthersRequests {
        while let Some(&(begun, done)) = self.open.front().filter(|(_, done)| *done <= now) {
            self.open.pop_front();
            self.window.done += 1;
            self.window.waited_ns += done - begun;
            self.took.push(done - begun);
        }
        OthersRequests { ns, ..std::mem::take(&mut self.window) }
    }
}

/// A process that commits in an open loop: a fixed number is due per second, and all due commits go
/// together, as two requests one after the other.
struct Commits {
    every: u64,
    due: VecDeque<u64>,
    on_their_way: Vec<u64>,
    requests_left: u32,
    wake: u64,
    late: Vec<u64>,
}

impl Commits {
    fn new(a_second: u64) -> Self {
        Self {
            every: SECOND / a_second,
            due: VecDeque::new(),
            on_their_way: Vec::new(),
            requests_left: 0,
            wake: 0,
            late: Vec::new(),
        }
    }

    fn go_on(&mut self, now: u64, is_on: bool, disk: &mut Disk, counted: &mut Counted) {
        if is_on && now / self.every != (now + TICK) / self.every {
            self.due.push_back(now);
        }
        if now < self.wake {
            return;
        }
        if self.requests_left == 0 {
            self.late.extend(self.on_their_way.drain(..).map(|due| now - due));
            let count = self.due.len().min(16);
            self.on_their_way.extend(self.due.drain(..count));
            self.requests_left = if count > 0 { 2 } else { 0 };
        }
        if self.requests_left > 0 {
            self.requests_left -= 1;
            self.wake = disk.submit(now, 8 << 10);
            counted.begin(now, self.wake);
        }
    }

    fn quantile(&mut self, parts: usize) -> u64 {
        self.late.sort_unstable();
        self.late[self.late.len() - 1 - self.late.len() / parts]
    }
}

/// A stream's output through a pacer, which learns of others every 10 ms if `hears`.
#[derive(Default)]
struct Output {
    pacer: Pacer,
    contention: DiskContention,
    parts: VecDeque<(u64, u64, u64, u64)>,
    last_done: u64,
    not_before: u64,
    /// Bytes written in each tenth of a second.
    written: Vec<u64>,
}

impl Output {
    fn go_on(&mut self, now: u64, disk: &mut Disk) {
        self.written.resize(usize::try_from(now / (100 * MS)).unwrap() + 1, 0);
        while let Some(&(bytes, in_flight, begun, done)) = self.parts.front().filter(|part| part.3 <= now) {
            self.parts.pop_front();
            *self.written.last_mut().unwrap() += bytes;
            let (took, busy) = (done - begun, Some(done - self.last_done));
            let part = WrittenPart { bytes, in_flight, took_min: took, took_max: took, busy };
            self.last_done = done;
            self.not_before = self.not_before.max(done + self.pacer.written(part));
        }
        let pace = WritePace::of(self.pacer.part(), self.pacer.backlog(), 128 << 10, true);
        let in_flight = |parts: &VecDeque<(u64, u64, u64, u64)>| parts.iter().map(|part| part.0).sum::<u64>();
        while now >= self.not_before
            && (self.parts.is_empty() || in_flight(&self.parts) + pace.step <= self.pacer.piece())
        {
            let all = in_flight(&self.parts) + pace.step;
            // A pause says nothing about the disk's rate.
            self.last_done = self.last_done.max(self.not_before);
            self.parts.push_back((pace.step, all, now, disk.submit(now, pace.step)));
        }
    }

    fn hear(&mut self, seen: OthersRequests) {
        self.contention.others(seen);
        self.pacer.others(self.contention.output_share());
    }
}

fn quick_disk() -> Disk {
    Disk { latency: 100_000, rate: 100_000_000, free_at: 0, throttle: None, slice: (0, 0) }
}

/// Returns a disk of 600 MB/s behind a throttle of 100 MB/s.
fn throttled_disk() -> Disk {
    Disk { rate: 600_000_000, throttle: Some(10_000_000), ..quick_disk() }
}

/// Runs one process that commits, pauses for 2 ms, and commits again, beside output or alone, for
/// ten seconds.
fn one_writer(mut disk: Disk, is_beside: bool) -> (usize, Output) {
    let (mut output, mut counted) = (Output::default(), Counted::default());
    let (mut requests_left, mut wake, mut commits) = (2, 0, 0);
    for now in (0..10 * SECOND).step_by(usize::try_from(TICK).unwrap()) {
        if now % (10 * MS) == 0 {
            output.hear(counted.take(now, 10 * MS));
        }
        if is_beside {
            output.go_on(now, &mut disk);
        }
        if now < wake {
            continue;
        }
        if requests_left == 0 {
            (requests_left, wake) = (2, now + 2 * MS);
            commits += 1;
        } else {
            requests_left -= 1;
            wake = disk.submit(now, 8 << 10);
            counted.begin(now, wake);
        }
    }
    (commits, output)
}

#[test]
fn one_writer_that_waits_for_each_commit_keeps_the_maximum_share_at_most() {
    for (disk, percent) in [(quick_disk as fn() -> Disk, 70), (throttled_disk, 75)] {
        let (alone, beside) = (one_writer(disk(), false).0, one_writer(disk(), true));
        let rate = beside.1.written.iter().sum::<u64>() / 10;
        assert!(beside.0 * 100 >= alone * percent, "{} of {alone} at {rate}", beside.0);
        assert!(rate >= 80_000_000, "{rate}");
    }
}

/// Runs commits during `on` beside output, for `seconds`.
fn beside(seconds: u64, hears: bool, on: std::ops::Range<u64>) -> (Commits, Output) {
    let (mut disk, mut commits) = (quick_disk(), Commits::new(1500));
    let (mut output, mut counted) = (Output::default(), Counted::default());
    for now in (0..seconds * SECOND).step_by(usize::try_from(TICK).unwrap()) {
        if now % (10 * MS) == 0 {
            let seen = counted.take(now, 10 * MS);
            if hears {
                output.hear(seen);
            }
        }
        output.go_on(now, &mut disk);
        commits.go_on(now, on.contains(&now), &mut disk, &mut counted);
    }
    (commits, output)
}

#[test]
fn commits_in_an_open_loop_are_kept_at_most_of_the_disk() {
    let (mut commits, output) = beside(20, true, 0..u64::MAX);
    let due = 20 * 1500;
    assert!(commits.late.len() * 100 >= due * 99, "{} of {due}", commits.late.len());
    let rate = output.written[100..].iter().sum::<u64>() / 10;
    assert!(rate >= 80_000_000, "{rate}");
    assert!(commits.quantile(100) < 30 * MS, "{}", commits.quantile(100));
    // It is also faster for them than a pacer that infers others from its own pieces alone.
    let (mut alone, _) = beside(20, false, 0..u64::MAX);
    assert!(commits.quantile(2) <= alone.quantile(2), "{} {}", commits.quantile(2), alone.quantile(2));
}

#[test]
fn a_stream_yields_within_a_tenth_of_a_second_and_takes_all_within_one() {
    let (_, output) = beside(12, true, 4 * SECOND..6 * SECOND);
    let rate = |tenths: std::ops::Range<usize>| {
        let count = tenths.len() as u64;
        output.written[tenths].iter().sum::<u64>() * 10 / count
    };
    assert!(rate(20..39) >= 97_000_000, "{}", rate(20..39));
    assert!(rate(41..42) <= 60_000_000, "{}", rate(41..42));
    assert!(rate(71..118) >= 97_000_000, "{}", rate(71..118));
}

/// Runs four threads of small reads beside a stream with read-ahead. Returns each side's throughput
/// as a fraction of its throughput alone.
fn readers_beside_a_stream(hears: bool) -> (f64, f64) {
    let run = |reads: bool, streams: bool| {
        let mut disk = quick_disk();
        let (mut contention, mut duty, mut counted) =
            (DiskContention::default(), ReadDuty::default(), Counted::default());
        let (mut threads, mut ahead) = ([0_u64; 4], VecDeque::<u64>::new());
        let (mut small, mut streamed, mut is_held) = (0_u64, 0_u64, false);
        for now in (0..10 * SECOND).step_by(usize::try_from(TICK).unwrap()) {
            if now % (10 * MS) == 0 && hears {
                let share = contention.others(counted.take(now, 10 * MS));
                is_held = duty.step(share, now).is_some();
            }
            while streams && !is_held && ahead.len() < 8 {
                ahead.push_back(disk.submit(now, 128 << 10));
            }
            while ahead.front().is_some_and(|done| *done <= now) {
                ahead.pop_front();
                streamed += 128 << 10;
            }
            for wake in threads.iter_mut().filter(|wake| reads && **wake <= now) {
                *wake = disk.submit(now, 4 << 10);
                counted.begin(now, *wake);
                small += 1;
            }
        }
        (small as f64, streamed as f64)
    };
    let (alone, whole, beside) = (run(true, false).0, run(false, true).1, run(true, true));
    (beside.0 / alone, beside.1 / whole)
}

#[test]
fn small_reads_get_more_than_half_beside_a_stream_in_turns() {
    let (plain, _) = readers_beside_a_stream(false);
    let (reads, stream) = readers_beside_a_stream(true);
    assert!(plain < 0.2 && reads > 0.5 && stream > 0.35, "{plain} {reads} {stream}");
}

#[test]
fn alone_on_its_disk_a_stream_is_never_held() {
    let (mut contention, mut duty) = (DiskContention::default(), ReadDuty::default());
    for tick in 0..10_000 {
        // Another process writes a line to a log each second.
        let one = u64::from(tick % 100 == 0);
        let seen = OthersRequests { ns: 10 * MS, begun: one, done: one, waited_ns: one * 200_000 };
        assert_eq!(duty.step(contention.others(seen), tick * 10 * MS), None);
    }
}

#[test]
fn others_that_are_not_slowed_down_leave_the_stream_most() {
    let mut contention = DiskContention::default();
    let seen = |took: u64| OthersRequests { ns: 10 * MS, begun: 10, done: 10, waited_ns: 10 * took };
    for _ in 0..200 {
        contention.others(seen(100_000));
    }
    assert_eq!(contention.share(), YieldShare::MIN_BESIDE);
    for _ in 0..20 {
        contention.others(seen(2_000_000));
    }
    assert_eq!(contention.share(), YieldShare::MAX);
}

proptest! {
    #[test]
    fn shares_and_holds_are_bounded(
        windows in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>()), 1..100),
    ) {
        let (mut contention, mut duty, mut now) = (DiskContention::default(), ReadDuty::default(), 0_u64);
        for (ns, begun, done, waited_ns) in windows {
            let share = contention.others(OthersRequests { ns, begun, done, waited_ns });
            prop_assert!(share <= YieldShare::MAX);
            prop_assert_eq!(YieldShare::of_sixteenths(share.sixteenths()), share);
            now = now.saturating_add(ns % SECOND);
            let held = duty.step(share, now).unwrap_or_default();
            prop_assert!(held <= now.saturating_add(crate::streams::read_pace::READ_HOLD_MAX_NS));
        }
    }

    #[test]
    fn a_stream_gets_the_whole_disk_back_after_any_load(
        windows in prop::collection::vec((1..SECOND, 0..1000_u64, 0..1000_u64, 0..SECOND), 1..100),
    ) {
        let mut contention = DiskContention::default();
        for (ns, begun, done, waited_ns) in windows {
            contention.others(OthersRequests { ns, begun, done, waited_ns });
        }
        for _ in 0..100 {
            contention.others(OthersRequests { ns: 10 * MS, ..OthersRequests::default() });
        }
        prop_assert!(contention.share().is_none());
    }
}

/// A disk counts as unused from the start, and again some time after the last request. Requests
/// that take almost no time count, too.
#[test]
fn a_disk_is_unused_without_requests_for_some_time() {
    let mut disk = DiskContention::default();
    let nothing = OthersRequests { ns: WINDOW_NS, ..OthersRequests::default() };
    let few = OthersRequests { begun: 1, done: 1, waited_ns: 100_000, ..nothing };
    let until_unused = |disk: &mut DiskContention| {
        let is_used = |_: &u64| {
            disk.others(nothing);
            !disk.is_unused()
        };
        (1..1000).take_while(is_used).count() as u64 + 1
    };
    disk.others(nothing);
    assert!(disk.is_unused());
    for (requests, ns) in [(1, USED_NS), (2, 2 * USED_NS), (10, USED_NS_MAX)] {
        for _ in 0..requests {
            disk.others(few);
            assert!(!disk.is_unused());
        }
        assert!(until_unused(&mut disk).abs_diff(ns / WINDOW_NS) <= requests);
    }
}
