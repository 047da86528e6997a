//! The turns in which threads that read many files read, so that others get the disk when they wait
//! for it.
//!
//! Parts that take longer than usual show that others wait. As root, the requests of others are
//! counted as well, once the reading takes [`COUNT_AFTER`].
//!
//! Invariants: at most a piece is in flight at once ([`TaskPacer`]), or a single longer part.
//! Nothing begins during a pause. A wait ends at most [`NAP_MAX`] after a stop was requested. The
//! lock is not held while a part is read.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::{WarmTurns, disk_of};
use pagekeeper_policy::disk_contention::YieldShare;
use pagekeeper_policy::pacer::{WrittenPart, nanoseconds};
use pagekeeper_policy::stream_pace::{StreamPace, TaskPacer};

use crate::disks::others::OthersOnDisks;

/// The longest wait before the next check for a stop.
const NAP_MAX: Duration = Duration::from_millis(100);
/// The time after which requests of others are counted: a shorter run ends before the counting
/// programs are loaded.
const COUNT_AFTER: Duration = Duration::from_millis(500);
/// The time between two looks at the counts.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Turns at the operator's pace.
#[derive(Debug)]
pub struct PacedTurns {
    start: Instant,
    state: Mutex<TurnState>,
    /// Notified when a part is read.
    ended: Condvar,
    others: Mutex<Others>,
}

/// The counts of others' requests to the disks that are read from.
#[derive(Debug)]
struct Others {
    /// `None` before the first look, and where requests can't be counted.
    counts: Option<OthersOnDisks>,
    next_look: Option<Duration>,
    /// The disk of each device that is read from.
    disks: HashMap<u64, Option<u64>>,
}

impl Others {
    /// Samples the disks, if that is due. Returns the largest share that others have of a disk.
    fn look(&mut self, now: Duration) -> Option<YieldShare> {
        self.next_look.filter(|due| *due <= now)?;
        if self.counts.is_none() {
            self.counts = OthersOnDisks::start().ok();
        }
        self.next_look = self.counts.is_some().then_some(now + LOOK_EVERY);
        let counts = self.counts.as_mut()?;
        counts.look();
        self.disks.values().flatten().map(|disk| counts.share(*disk)).max()
    }
}

/// All times are since the start.
#[derive(Debug)]
struct TurnState {
    pacer: TaskPacer,
    in_flight: u64,
    /// No part begins before this time.
    pause_until: Duration,
    /// The time when the last part was read, if others have been in flight ever since.
    done_at: Option<Duration>,
}

/// A part that is being read.
struct PartInFlight {
    bytes: u64,
    /// Bytes in flight when it was begun, including its own.
    in_flight: u64,
    begun: Duration,
}

impl PacedTurns {
    /// Returns turns that begin now.
    pub fn new(pace: StreamPace) -> Self {
        let pacer = TaskPacer::new(pace);
        let state = TurnState { pacer, in_flight: 0, pause_until: Duration::ZERO, done_at: None };
        let others = Others { counts: None, next_look: Some(COUNT_AFTER), disks: HashMap::new() };
        Self {
            start: Instant::now(),
            state: Mutex::new(state),
            ended: Condvar::new(),
            others: Mutex::new(others),
        }
    }

    /// Records that files of this device are read.
    pub fn reads_from(&self, device: u64) {
        lock(&self.others).disks.entry(device).or_insert_with(|| disk_of(Path::new("/sys"), device));
    }

    /// Samples the disks for others that wait, unless another thread is sampling.
    fn look(&self) {
        let Ok(mut others) = self.others.try_lock() else { return };
        let share = others.look(self.start.elapsed());
        drop(others);
        if let Some(share) = share {
            lock(&self.state).pacer.others(share);
        }
    }

    /// Waits until the part may begin. Returns `None` if a stop was requested.
    fn begin(&self, bytes: u64, is_stopped: &dyn Fn() -> bool) -> Option<PartInFlight> {
        let mut state = lock(&self.state);
        while !is_stopped() {
            let begun = self.start.elapsed();
            let pause = state.pause_until.saturating_sub(begun);
            let in_flight = state.in_flight.saturating_add(bytes);
            if pause.is_zero() && (state.in_flight == 0 || in_flight <= state.pacer.piece()) {
                state.in_flight = in_flight;
                return Some(PartInFlight { bytes, in_flight, begun });
            }
            let wait = if pause.is_zero() { NAP_MAX } else { pause.min(NAP_MAX) };
            state = ignore_poison(self.ended.wait_timeout(state, wait)).0;
        }
        None
    }

    fn end(&self, part: &PartInFlight) {
        let mut state = lock(&self.state);
        let now = self.start.elapsed();
        let took = nanoseconds(now.saturating_sub(part.begun));
        let busy = state.done_at.map_or(took, |done_at| nanoseconds(now.saturating_sub(done_at)));
        let done = WrittenPart {
            bytes: part.bytes,
            in_flight: part.in_flight,
            took_min: took,
            took_max: took,
            busy: Some(busy),
        };
        let pause = state.pacer.done(done, nanoseconds(now));
        state.pause_until = state.pause_until.max(now.saturating_add(Duration::from_nanos(pause)));
        state.in_flight -= part.bytes;
        state.done_at = (state.in_flight > 0).then_some(now);
        drop(state);
        self.ended.notify_all();
    }
}

impl WarmTurns for PacedTurns {
    /// Returns half of a piece: the disk has the second part when it is done with the first.
    fn part_bytes(&self) -> u64 {
        lock(&self.state).pacer.piece() / 2
    }

    fn take(&self, bytes: u64, is_stopped: &dyn Fn() -> bool, read: &mut dyn FnMut()) {
        self.look();
        if let Some(part) = self.begin(bytes, is_stopped) {
            read();
            self.end(&part);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn threads_together_have_a_piece_in_flight() {
        let turns = PacedTurns::new(StreamPace::Auto);
        let (in_flight, read) = (AtomicU64::new(0), AtomicU64::new(0));
        let work = || {
            for _ in 0..50 {
                let bytes = turns.part_bytes();
                turns.take(bytes, &|| false, &mut || {
                    let sum = in_flight.fetch_add(bytes, Ordering::SeqCst) + bytes;
                    assert!(sum == bytes || sum <= pagekeeper_policy::pacer::WIDE_PIECE_MAX, "{sum}");
                    std::thread::yield_now();
                    in_flight.fetch_sub(bytes, Ordering::SeqCst);
                    read.fetch_add(1, Ordering::SeqCst);
                });
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
        assert_eq!(read.into_inner(), 200);
        let state = turns.state.into_inner().unwrap();
        assert_eq!((state.in_flight, state.done_at), (0, None));
    }

    #[test]
    fn more_than_a_piece_waits_for_its_turn() {
        let turns = PacedTurns::new(StreamPace::Auto);
        let piece = 2 * turns.part_bytes();
        let first = turns.begin(4 * piece, &|| false).expect("nothing is in flight");
        let asked = AtomicU64::new(0);
        // Stops at the second question, after a wait.
        assert!(turns.begin(1, &|| asked.fetch_add(1, Ordering::Relaxed) > 0).is_none());
        turns.end(&first);
        assert!(turns.begin(1, &|| false).is_some());
    }

    #[test]
    fn a_stop_ends_the_wait_for_a_rate() {
        let turns = PacedTurns::new(StreamPace::BytesPerSecond(1));
        let mut reads = 0;
        turns.take(1 << 20, &|| false, &mut || reads += 1);
        // The next turn is in twelve days.
        turns.take(1, &|| true, &mut || reads += 1);
        let asked = AtomicU64::new(0);
        turns.take(1, &|| asked.fetch_add(1, Ordering::Relaxed) > 1, &mut || reads += 1);
        assert_eq!(reads, 1);
    }
}
