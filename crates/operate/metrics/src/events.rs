//! Figures from the guard's events: whether each database is watched, how soon it was, and what was
//! refused.
//!
//! Invariants: nothing is kept for a process that neither runs as a database nor is seen as one.
//! Sums by reason and budget exist from the start, so that the first event shows as an increase.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pagekeeper_guard::{Budget, Event, GroupNews, Refusal, Tick};

use crate::digest::DatabaseFigures;

/// A deadline longer than any sample takes, including the pause after it.
const LEFT_OUT_RETENTION: Duration = Duration::from_secs(15 * 60);

/// The combined state from the guard's events and the samples.
#[derive(Debug, Clone, Default)]
pub(crate) struct EventFigures {
    /// By process: whether it is watched now, and how long the first detection took.
    watched: BTreeMap<u32, WatchState>,
    /// Processes that the configuration excludes, and since when.
    left_out: BTreeMap<u32, Instant>,
    /// Processes with logs that are not watched, and the first and last sample that showed them so.
    unwatched: BTreeMap<u32, (Instant, Instant)>,
    /// The last tick.
    pub(crate) tick: Option<Tick>,
    /// Duration of the last tick, by process.
    took: BTreeMap<u32, Duration>,
    refused: BTreeMap<Refusal, u64>,
    over_budget: BTreeMap<Budget, u64>,
    pub(crate) warnings: u64,
    pub(crate) problems: u64,
    pub(crate) shared: u64,
    pub(crate) postponed: u64,
    /// Bytes reclaimed in memory cgroups, and how often that was stopped.
    pub(crate) reclaimed: u64,
    pub(crate) stopped: u64,
    /// Number of times that limits of these groups took effect: `memory.high`, `memory.max`,
    /// failing allocations, killed processes.
    pub(crate) limits_hit: [u64; 4],
}

#[derive(Debug, Clone, Copy)]
struct WatchState {
    now: bool,
    after: Option<Duration>,
}

impl EventFigures {
    /// Records an event of the guard; `after` is how long a newly found database had to wait, if
    /// known.
    pub(crate) fn record(&mut self, event: &Event, after: Option<Duration>) {
        match event {
            Event::Found { pid: Some(pid), .. } => {
                self.watched.entry(*pid).or_insert(WatchState { now: true, after }).now = true;
                self.unwatched.remove(pid);
            }
            Event::Shared { pid, .. } => {
                self.shared += 1;
                self.watched.entry(*pid).or_insert(WatchState { now: true, after: None }).now = true;
            }
            Event::Lost { pid, .. } => drop(self.watched.remove(pid)),
            Event::InPart { budget, .. } => *self.over_budget.entry(*budget).or_default() += 1,
            Event::Refused { pid, reason, .. } => {
                *self.refused.entry(*reason).or_default() += 1;
                if matches!(reason, Refusal::NotSelected | Refusal::Never) {
                    self.left_out.extend(pid.map(|pid| (pid, Instant::now())));
                }
            }
            Event::Tick(tick) => {
                self.postponed += tick.postponed_acts as u64;
                self.tick = Some(tick.clone());
            }
            Event::Cgroup { news: GroupNews::Reclaimed { bytes }, .. } => self.reclaimed += bytes,
            Event::Cgroup { news: GroupNews::Stopped { .. }, .. } => self.stopped += 1,
            Event::Cgroup { news: GroupNews::LimitsHit { high, max, oom, oom_kill }, .. } => {
                for (sum, times) in self.limits_hit.iter_mut().zip([high, max, oom, oom_kill]) {
                    *sum += times;
                }
            }
            Event::Warning { .. } => self.warnings += 1,
            Event::Problem { .. } => self.problems += 1,
            _ => {}
        }
    }

    /// Records a new configuration: everything is detected again.
    pub(crate) fn reconfigured(&mut self) {
        self.watched.values_mut().for_each(|watched| watched.now = false);
        self.left_out.clear();
    }

    /// Records the end of a tick, with its durations by process.
    pub(crate) fn ticked(&mut self, took: BTreeMap<u32, Duration>) {
        self.took = took;
    }

    /// Records the databases of a sample.
    pub(crate) fn sampled(&mut self, databases: &[DatabaseFigures], now: Instant) {
        let running: BTreeSet<u32> = databases.iter().filter_map(|seen| seen.pid).collect();
        self.watched.retain(|pid, watched| watched.now || running.contains(pid));
        // A sample that began earlier may not know it yet.
        let is_new = |since: &Instant| now.saturating_duration_since(*since) < LEFT_OUT_RETENTION;
        self.left_out.retain(|pid, since| running.contains(pid) || is_new(since));
        let before = std::mem::take(&mut self.unwatched);
        for pid in databases.iter().filter(|seen| seen.holds_logs()).filter_map(|seen| seen.pid) {
            if !self.is_watched(pid) && !self.left_out.contains_key(&pid) {
                let since = before.get(&pid).map_or(now, |(since, _)| *since);
                self.unwatched.insert(pid, (since, now));
            }
        }
    }

    fn is_watched(&self, pid: u32) -> bool {
        self.watched.get(&pid).is_some_and(|watched| watched.now)
    }

    /// Returns how long a database had to wait until it was watched.
    pub(crate) fn watched_after(&self, seen: &DatabaseFigures) -> Option<Duration> {
        self.watched.get(&seen.pid?)?.after
    }

    /// Returns how long a database has not been watched; `None` if it should not be.
    pub(crate) fn unwatched_for(&self, seen: &DatabaseFigures) -> Option<Duration> {
        let pid = seen.pid.filter(|pid| !self.left_out.contains_key(pid))?;
        match self.unwatched.get(&pid) {
            Some((since, until)) => Some(until.saturating_duration_since(*since)),
            None => self.is_watched(pid).then_some(Duration::ZERO),
        }
    }

    /// Returns how long the last tick took for a database.
    pub(crate) fn took(&self, seen: &DatabaseFigures) -> Option<Duration> {
        self.took.get(&seen.pid?).copied()
    }

    /// Returns the refused amounts, by reason.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Refusal::ALL.iter().map(|reason| (reason.name(), self.refused.get(reason).copied().unwrap_or(0)))
    }

    /// Returns how often databases first exceeded a budget, by budget.
    pub(crate) fn over_budget(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Budget::ALL.iter().map(|budget| (budget.name(), self.over_budget.get(budget).copied().unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::DatabaseName;
    use crate::totals::FileTotals;

    fn seen(pid: u32) -> DatabaseFigures {
        let files = FileTotals { count: 1, size: 4096, ..FileTotals::default() };
        DatabaseFigures {
            name: DatabaseName::others(),
            pid: Some(pid),
            user: 0,
            directories: Vec::new(),
            classes: BTreeMap::from([("redo", files)]),
            mixed: 0,
        }
    }

    fn found(pid: u32) -> Event {
        Event::Found {
            pid: Some(pid),
            profile: "mariadb".to_owned(),
            also: Vec::new(),
            directories: Vec::new(),
        }
    }

    fn refused(pid: u32, reason: Refusal) -> Event {
        Event::Refused { pid: Some(pid), profile: "mariadb".to_owned(), path: "/d".into(), reason }
    }

    #[test]
    fn a_database_waits_from_when_it_is_seen_until_it_is_watched() {
        let mut fleet = EventFigures::default();
        let long_ago = Instant::now().checked_sub(Duration::from_secs(90)).unwrap();
        fleet.sampled(&[seen(7), seen(8)], long_ago);
        fleet.record(&refused(8, Refusal::Never), None);
        // A sample that began before that process.
        fleet.sampled(&[seen(7)], Instant::now());
        fleet.sampled(&[seen(7), seen(8)], Instant::now());
        assert!(fleet.unwatched_for(&seen(7)).unwrap() >= Duration::from_secs(90));
        assert_eq!(fleet.unwatched_for(&seen(8)), None, "it is not to be watched");
        fleet.record(&found(7), Some(Duration::from_secs(2)));
        // Later discoveries in it do not count.
        fleet.record(&found(7), Some(Duration::from_secs(900)));
        assert_eq!(fleet.unwatched_for(&seen(7)), Some(Duration::ZERO));
        assert_eq!(fleet.watched_after(&seen(7)), Some(Duration::from_secs(2)));
        // A new configuration, which excludes nothing.
        fleet.reconfigured();
        fleet.sampled(&[seen(7), seen(8)], long_ago);
        fleet.sampled(&[seen(7), seen(8)], Instant::now());
        assert!(fleet.unwatched_for(&seen(8)).unwrap() >= Duration::from_secs(90));
        fleet.record(&found(7), Some(Duration::from_secs(900)));
        assert_eq!(fleet.watched_after(&seen(7)), Some(Duration::from_secs(2)));
        fleet.record(&Event::Lost { pid: 7, profile: String::new() }, None);
        fleet.sampled(&[], Instant::now() + LEFT_OUT_RETENTION);
        assert!(fleet.watched.is_empty() && fleet.unwatched.is_empty() && fleet.left_out.is_empty());
    }

    #[test]
    fn refusals_and_overruns_are_counted_by_reason_from_zero() {
        let mut fleet = EventFigures::default();
        assert!(
            fleet.refused().all(|(_, count)| count == 0) && fleet.over_budget().count() == Budget::ALL.len()
        );
        fleet.record(&refused(8, Refusal::NotOwner), None);
        let in_part = |budget| Event::InPart { pid: None, profile: String::new(), path: "/d".into(), budget };
        fleet.record(&in_part(Budget::Windows), None);
        assert!(fleet.refused().any(|one| one == ("not-owner", 1)));
        assert!(fleet.over_budget().any(|one| one == ("windows", 1)));
    }
}
