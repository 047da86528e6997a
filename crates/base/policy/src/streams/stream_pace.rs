//! The operator's choice of the speed at which streams may use a shared disk, and the pacer of a
//! task that keeps to it.
//!
//! A task that reads or writes by itself ([`TaskPacer`]) works in pieces, as writers of streams do
//! ([`Pacer`]). A piece that took longer than its price shows that others wait.
//!
//! Invariants: no pause is longer than [`PAUSE_MAX_NS`](crate::pacer::PAUSE_MAX_NS), except to keep
//! to a rate. With [`StreamPace::Off`] there are no pauses.

use core::time::Duration;

use crate::disks::disk_contention::{QUIET_NS, YieldShare};
use crate::output::pacer::{PIECE_MIN, Pacer, WIDE_PIECE_MAX, WrittenPart, nanoseconds};

/// The speed at which streams may use a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StreamPace {
    /// At the disk's full speed while nobody else waits for it; yields to those who wait.
    #[default]
    Auto,
    /// As fast as the programs run by themselves.
    Off,
    /// As [`Self::Auto`], but with at most a third of the disk's time while others use it.
    Idle,
    /// At most this many bytes per second on each file system; yields to others as [`Self::Auto`]
    /// does.
    BytesPerSecond(u64),
}

/// Pieces per second at a low rate.
const PIECES_PER_SECOND: u64 = 16;

/// The pacer of a task that reads from one disk, or writes to it.
#[derive(Debug, Clone, Copy)]
pub struct TaskPacer {
    pace: StreamPace,
    pacer: Pacer,
    /// The share to leave to others whose requests are known.
    known: YieldShare,
    /// Others are taken to be present until then; used by [`StreamPace::Idle`].
    others_until: u64,
    /// The time at which the bytes so far are paid for; used by [`StreamPace::BytesPerSecond`].
    paid_at: u64,
}

impl TaskPacer {
    /// Returns the initial state, with nothing known of the disk.
    pub const fn new(pace: StreamPace) -> Self {
        Self { pace, pacer: Pacer::new(), known: YieldShare::NONE, others_until: 0, paid_at: 0 }
    }

    /// Returns the bytes that may be in flight at once.
    pub fn piece(&self) -> u64 {
        match self.pace {
            StreamPace::Off => WIDE_PIECE_MAX,
            StreamPace::Auto | StreamPace::Idle => self.pacer.piece(),
            StreamPace::BytesPerSecond(rate) => {
                self.pacer.piece().min(rate / PIECES_PER_SECOND).max(PIECE_MIN)
            }
        }
    }

    /// Sets the share to leave to others, as computed from their requests
    /// ([`DiskContention`](crate::disk_contention::DiskContention)). Without it, the durations of
    /// the parts alone show whether somebody waits.
    pub fn others(&mut self, share: YieldShare) {
        self.known = share;
    }

    /// Records that a part of a piece was read or written, by `now`. Returns the nanoseconds for
    /// which to begin nothing.
    ///
    /// ```
    /// use pagekeeper_policy::pacer::WrittenPart;
    /// use pagekeeper_policy::stream_pace::{StreamPace, TaskPacer};
    ///
    /// let (bytes, ms) = (256 << 10, 1_000_000);
    /// let part = |took| WrittenPart { bytes, in_flight: bytes, took_min: took, took_max: took, busy: Some(took) };
    /// let mut pacer = TaskPacer::new(StreamPace::Auto);
    /// assert_eq!(pacer.done(part(2 * ms), 2 * ms), 0);
    /// assert_eq!(pacer.done(part(20 * ms), 22 * ms), 40 * ms);
    /// // At 1 MiB a second, 256 KiB take a quarter of a second.
    /// let mut pacer = TaskPacer::new(StreamPace::BytesPerSecond(1 << 20));
    /// assert_eq!(pacer.done(part(2 * ms), 2 * ms), 248 * ms);
    /// ```
    pub fn done(&mut self, part: WrittenPart, now: u64) -> u64 {
        self.pacer.others(self.known);
        match self.pace {
            StreamPace::Off => 0,
            StreamPace::Auto => self.pacer.written(part),
            StreamPace::Idle => self.done_idle(part, now),
            StreamPace::BytesPerSecond(rate) => self.pacer.written(part).max(self.unpaid(rate, part, now)),
        }
    }

    /// Records that a part was read or written with nothing else in flight. Its start and end are
    /// since the same moment. Returns for how long to begin nothing.
    pub fn done_alone(&mut self, bytes: u64, start: Duration, end: Duration) -> Duration {
        let took = nanoseconds(end.saturating_sub(start));
        let part = WrittenPart { bytes, in_flight: bytes, took_min: took, took_max: took, busy: Some(took) };
        Duration::from_nanos(self.done(part, nanoseconds(end)))
    }

    /// Leaves others their share for as long as they count as present after a late part.
    fn done_idle(&mut self, part: WrittenPart, now: u64) -> u64 {
        if self.pacer.is_late(&part) {
            self.others_until = now.saturating_add(QUIET_NS);
        }
        let are_there = now < self.others_until || !self.known.is_none();
        self.pacer.others(if are_there { YieldShare::MAX } else { YieldShare::NONE });
        self.pacer.written(part)
    }

    /// Returns the nanoseconds until the bytes of the part are paid for at this rate. Unused time
    /// is lost.
    fn unpaid(&mut self, rate: u64, part: WrittenPart, now: u64) -> u64 {
        let cost = u128::from(part.bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let cost = u64::try_from(cost).unwrap_or(u64::MAX);
        self.paid_at = self.paid_at.max(now.saturating_sub(part.took_max)).saturating_add(cost);
        self.paid_at.saturating_sub(now)
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::output::pacer::PAUSE_MAX_NS;

    const NS_PER_MS: u64 = 1_000_000;

    fn part(bytes: u64, took: u64) -> WrittenPart {
        WrittenPart { bytes, in_flight: bytes, took_min: took, took_max: took, busy: Some(took) }
    }

    /// Does pieces that take this long each. Returns the pauses after them.
    fn pauses(pacer: &mut TaskPacer, now: &mut u64, took: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut pause_after = |took: u64| {
            *now += took;
            let pause = pacer.done(part(pacer.piece(), took), *now);
            *now += pause;
            pause
        };
        took.into_iter().map(&mut pause_after).collect()
    }

    #[test]
    fn without_a_pace_nothing_is_paused() {
        let (mut pacer, mut now) = (TaskPacer::new(StreamPace::Off), 0);
        let took = (0..100).map(|nth| nth % 10 * 30 * NS_PER_MS);
        assert_eq!(pauses(&mut pacer, &mut now, took).into_iter().sum::<u64>(), 0);
        assert_eq!(pacer.piece(), WIDE_PIECE_MAX);
    }

    #[test]
    fn an_idle_task_takes_a_third_as_long_as_others_count_as_present() {
        let found = |pace| {
            let (mut pacer, mut now) = (TaskPacer::new(pace), 0);
            let mut quick = |count| pauses(&mut pacer, &mut now, vec![2 * NS_PER_MS; count]);
            assert_eq!(quick(20), [0; 20]);
            assert!(pauses(&mut pacer, &mut now, [30 * NS_PER_MS])[0] >= 60 * NS_PER_MS);
            pauses(&mut pacer, &mut now, vec![2 * NS_PER_MS; 200])
        };
        assert_eq!(found(StreamPace::Auto), [0; 200]);
        let after = found(StreamPace::Idle);
        let beside = after.iter().take_while(|pause| **pause == 4 * NS_PER_MS).count();
        // Each piece and its pause take 6 ms.
        assert!((35..=60).contains(&beside), "{after:?}");
        assert_eq!(after[beside..].iter().sum::<u64>(), 0, "others have gone");
    }

    #[test]
    fn known_others_get_their_share_and_from_an_idle_task_the_largest() {
        for (pace, known, pause) in [
            (StreamPace::Auto, YieldShare::MIN_BESIDE, NS_PER_MS),
            (StreamPace::Auto, YieldShare::NONE, 0),
            (StreamPace::Idle, YieldShare::MIN_BESIDE, 4 * NS_PER_MS),
            (StreamPace::Idle, YieldShare::NONE, 0),
            (StreamPace::BytesPerSecond(1 << 40), YieldShare::MAX, 4 * NS_PER_MS),
            (StreamPace::Off, YieldShare::MAX, 0),
        ] {
            let (mut pacer, mut now) = (TaskPacer::new(pace), 0);
            pacer.others(known);
            assert_eq!(pauses(&mut pacer, &mut now, [2 * NS_PER_MS; 3]), [pause; 3], "{pace:?}");
        }
    }

    proptest! {
        #[test]
        fn a_rate_is_kept(
            rate in 1_u64..1 << 33,
            parts in prop::collection::vec((1_u64..8 << 20, 0_u64..50 * NS_PER_MS), 1..50),
        ) {
            let (mut pacer, mut now) = (TaskPacer::new(StreamPace::BytesPerSecond(rate)), NS_PER_MS);
            let mut sum = 0;
            for (bytes, took) in parts {
                now += took;
                now += pacer.done(part(bytes, took), now);
                sum += bytes;
                prop_assert!(u128::from(now) + 100 >= u128::from(sum) * 1_000_000_000 / u128::from(rate));
            }
        }

        #[test]
        fn pauses_are_bounded(took in prop::collection::vec(any::<u64>(), 1..50)) {
            for pace in [StreamPace::Auto, StreamPace::Idle] {
                let mut pacer = TaskPacer::new(pace);
                for took in &took {
                    prop_assert!(pacer.done(part(1 << 18, *took), *took) <= PAUSE_MAX_NS);
                    prop_assert!((PIECE_MIN..=WIDE_PIECE_MAX).contains(&pacer.piece()));
                }
            }
        }
    }
}
