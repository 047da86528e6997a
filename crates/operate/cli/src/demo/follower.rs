//! The engine's follower: it reads the binlog near the writer, as the sender of a replica does, and checks every
//! event.
//!
//! Invariant: every event is seen once, in order, or the follower fails and names the event.

use std::sync::atomic::{AtomicU64, Ordering};

use pagekeeper_log::Follower;

use super::monotonic_ns;
use super::transaction::Checker;

/// The follower's figures.
#[derive(Default)]
pub(super) struct Seen {
    /// Number of verified events.
    events: AtomicU64,
    /// The longest time from an event's append to its reading since the last query, in nanoseconds.
    lag_max_ns: AtomicU64,
}

impl Seen {
    /// Returns the number of events so far, and the greatest lag since the last call.
    pub(super) fn take(&self) -> (u64, u64) {
        (self.events.load(Ordering::Relaxed), self.lag_max_ns.swap(0, Ordering::Relaxed))
    }
}

/// Reads until the log is closed.
pub(super) fn follow(follower: Follower, seen: &Seen) -> anyhow::Result<()> {
    let mut checker = Checker::default();
    for event in follower {
        let appended_ns = checker.check(&event?)?;
        seen.events.fetch_add(1, Ordering::Relaxed);
        seen.lag_max_ns.fetch_max(monotonic_ns().saturating_sub(appended_ns), Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::logs::{Logs, Pages};
    use super::super::transaction::Transaction;
    use super::*;

    /// Returns the result of a follower that reads these changes of one committer.
    fn followed(numbers: &[u64]) -> (anyhow::Result<()>, u64) {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let logs = Logs::create(dir.path(), Pages::Released).unwrap();
        let follower = logs.binlog.follow(logs.binlog.first()).unwrap();
        let seen = Seen::default();
        let result = std::thread::scope(|scope| {
            let following = scope.spawn(|| follow(follower, &seen));
            for number in numbers {
                logs.commit(&mut Transaction::make(&mut 1, 0, *number)).unwrap();
            }
            drop(logs);
            following.join().unwrap()
        });
        (result, seen.take().0)
    }

    #[test]
    fn it_sees_all_that_was_committed() {
        let (result, events) = followed(&[1, 2, 3]);
        result.unwrap();
        assert_eq!(events, 3);
    }

    #[test]
    fn what_is_not_in_order_is_an_error_and_not_counted() {
        let (result, events) = followed(&[1, 3]);
        assert!(result.unwrap_err().to_string().contains("change 3 of committer 0"));
        assert_eq!(events, 1);
    }
}
