//! The files that followers read between two ticks and closed again, in which their pages are left.
//!
//! A follower that catches up reads several files in a tick, each under another descriptor. Old and new descriptors are matched so that
//! the follower has moved the least. What this misses is found a little later, when the file is sampled anyway.

use std::ops::RangeInclusive;

use pagekeeper_policy::{FollowerFacts, LogId};

/// Ticks for which a follower that has no file open, as between two, is remembered.
const REMEMBERED: u8 = 8;

/// Where followers were.
#[derive(Debug, Default)]
pub(crate) struct FollowerHistory {
    seen: Vec<Seen>,
}

#[derive(Debug)]
struct Seen {
    log: LogId,
    sequence: u64,
    /// Ticks since a follower was seen there.
    age: u8,
}

impl FollowerHistory {
    /// Takes in where followers are now. Of each log the sequences that one passed since the tick before; all older ones, if
    /// it is new.
    pub(crate) fn passed(&mut self, followers: &[FollowerFacts]) -> Vec<(LogId, RangeInclusive<u64>)> {
        let mut before = std::mem::take(&mut self.seen);
        let mut moved = Vec::new();
        for follower in followers {
            let (log, sequence) = (follower.log, follower.sequence);
            self.seen.push(Seen { log, sequence, age: 0 });
            match before.iter().position(|seen| seen.log == log && seen.sequence == sequence) {
                Some(at) => drop(before.swap_remove(at)),
                None => moved.push((log, sequence)),
            }
        }
        let mut passed = Vec::new();
        for (log, sequence) in moved {
            let origins = before.iter().enumerate();
            let nearest = origins
                .filter(|(_, seen)| seen.log == log && seen.sequence < sequence)
                .max_by_key(|(_, seen)| seen.sequence)
                .map(|(at, _)| at);
            let from = nearest.map_or(0, |at| before.swap_remove(at).sequence);
            passed.push((log, from..=sequence));
        }
        let absent = before.into_iter().filter(|seen| seen.age < REMEMBERED);
        self.seen.extend(absent.map(|seen| Seen { age: seen.age + 1, ..seen }));
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_policy::{FollowerId, Position};

    fn at(sequences: &[u64]) -> Vec<FollowerFacts> {
        let follower = |&sequence| FollowerFacts {
            id: FollowerId(0),
            log: LogId(1),
            sequence,
            position: Position::At(0),
        };
        sequences.iter().map(follower).collect()
    }

    #[test]
    fn a_follower_passes_what_lies_between() {
        let mut history = FollowerHistory::default();
        assert_eq!(history.passed(&at(&[3])), [(LogId(1), 0..=3)], "a new one may have come from anywhere");
        assert_eq!(history.passed(&at(&[3])), []);
        assert_eq!(history.passed(&at(&[9])), [(LogId(1), 3..=9)]);
        assert_eq!(history.passed(&[]), []);
        assert_eq!(history.passed(&at(&[11])), [(LogId(1), 9..=11)], "it was between two files");
        for _ in 0..=REMEMBERED {
            assert_eq!(history.passed(&[]), []);
        }
        assert_eq!(history.passed(&at(&[12])), [(LogId(1), 0..=12)]);
    }

    #[test]
    fn one_that_catches_up_with_another_is_distinguished_from_it() {
        let mut history = FollowerHistory::default();
        history.passed(&at(&[2, 10]));
        assert_eq!(history.passed(&at(&[10, 10])), [(LogId(1), 2..=10)]);
        assert_eq!(history.passed(&at(&[10, 11])), [(LogId(1), 10..=11)]);
    }

    #[test]
    fn logs_are_apart() {
        let mut history = FollowerHistory::default();
        history.passed(&at(&[4]));
        let mut elsewhere = at(&[6]);
        elsewhere[0].log = LogId(2);
        assert_eq!(history.passed(&elsewhere), [(LogId(2), 0..=6)]);
    }
}
