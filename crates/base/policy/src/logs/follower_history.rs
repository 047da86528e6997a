//! Remembers followers between two ticks, to find the files that they read and closed in between:
//! their pages stay resident.
//!
//! A follower that catches up reads several files in a tick, each through another descriptor. Old
//! and new descriptors are matched so that the followers have moved the least. Pages of files that
//! this misses are found a little later, when the file is sampled anyway.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use crate::logs::facts::{FollowerFacts, LogId};

/// Ticks for which a follower without an open file, as between two files, is remembered.
const REMEMBERED_TICKS: u8 = 8;

/// The positions of followers by log: there may be thousands of logs, each with few followers.
#[derive(Debug, Default)]
pub struct FollowerHistory {
    seen: HashMap<LogId, Vec<FollowerSighting>>,
}

#[derive(Debug)]
struct FollowerSighting {
    sequence: u64,
    /// Ticks since a follower was seen there.
    age: u8,
}

impl FollowerHistory {
    /// Records where followers are now. Returns, for each log, the sequences that a follower
    /// passed since the tick before; for a new follower, all older ones.
    pub fn passed(&mut self, followers: &[FollowerFacts]) -> Vec<(LogId, RangeInclusive<u64>)> {
        let mut before = std::mem::take(&mut self.seen);
        let mut moved = Vec::new();
        for follower in followers {
            let (log, sequence) = (follower.log, follower.sequence);
            self.seen.entry(log).or_default().push(FollowerSighting { sequence, age: 0 });
            let of_log = before.get_mut(&log);
            let at = of_log.as_ref().and_then(|seen| seen.iter().position(|seen| seen.sequence == sequence));
            match of_log.zip(at) {
                Some((of_log, at)) => drop(of_log.swap_remove(at)),
                None => moved.push((log, sequence)),
            }
        }
        let mut passed = Vec::new();
        for (log, sequence) in moved {
            let mut from = 0;
            if let Some(of_log) = before.get_mut(&log) {
                let origins = of_log.iter().enumerate().filter(|(_, seen)| seen.sequence < sequence);
                let nearest = origins.max_by_key(|(_, seen)| seen.sequence).map(|(at, _)| at);
                from = nearest.map_or(0, |at| of_log.swap_remove(at).sequence);
            }
            passed.push((log, from..=sequence));
        }
        for (log, of_log) in before {
            let absent = of_log.into_iter().filter(|seen| seen.age < REMEMBERED_TICKS);
            let mut absent = absent.map(|seen| FollowerSighting { age: seen.age + 1, ..seen }).peekable();
            if absent.peek().is_some() {
                self.seen.entry(log).or_default().extend(absent);
            }
        }
        passed
    }
}

/// Forgets readers that have read a rotated file to its end and whose process has a later file open
/// as well, as with `tail -f` on all files. Such a reader would otherwise seem to have all later
/// files to read. Each item is a process, whether it has read its file to the end, and the
/// follower. Only readers of text logs are meant: a server's readers share a process, and move on
/// to a later file by themselves.
pub fn forget_rotated_files(readers: &mut Vec<(u32, bool, FollowerFacts)>) {
    let mut last: HashMap<u32, u64> = HashMap::new();
    for (pid, _, follower) in &*readers {
        let last = last.entry(*pid).or_default();
        *last = follower.sequence.max(*last);
    }
    readers.retain(|(pid, is_finished, follower)| !is_finished || last.get(pid) == Some(&follower.sequence));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FilePosition, FollowerId};

    fn at(sequences: &[u64]) -> Vec<FollowerFacts> {
        let follower = |&sequence| FollowerFacts {
            id: FollowerId(0),
            log: LogId(1),
            sequence,
            position: FilePosition::At(0),
            near_files: 0,
        };
        sequences.iter().map(follower).collect()
    }

    #[test]
    fn a_follower_passes_all_files_between_two_positions() {
        let mut history = FollowerHistory::default();
        assert_eq!(history.passed(&at(&[3])), [(LogId(1), 0..=3)], "a new one may have come from anywhere");
        assert_eq!(history.passed(&at(&[3])), []);
        assert_eq!(history.passed(&at(&[9])), [(LogId(1), 3..=9)]);
        assert_eq!(history.passed(&[]), []);
        assert_eq!(history.passed(&at(&[11])), [(LogId(1), 9..=11)], "it was between two files");
        for _ in 0..=REMEMBERED_TICKS {
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
    fn a_log_that_nobody_follows_any_more_is_forgotten() {
        let mut history = FollowerHistory::default();
        history.passed(&at(&[3, 4]));
        for _ in 0..=REMEMBERED_TICKS {
            history.passed(&[]);
        }
        assert!(history.seen.is_empty(), "{history:?}");
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
