//! The current figures for all consumers: filled by the guard's loop and the threads that sample.
//!
//! Invariants:
//! 1. The lock is held to copy figures in or out, never over I/O: no consumer can delay the guard.
//! 2. Everything is bounded: databases by [`SeriesNames`], history by [`POINTS_MAX`], releases
//!    without a known owner by [`PENDING_RELEASES_MAX`], and per-file figures by the requested
//!    number.
//! 3. Counters never decrease while their series exists. An unknown value has no figure, and the
//!    figures of a failed sample are removed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use pagekeeper_guard::{Done, Event, StreamReport};
use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_trace::{EventLosses, TraceLevel};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::digest::{DatabaseFigures, SampleDigest, TopFile, TracedWaits};
use crate::events::EventFigures;
use crate::histogram::TickHistogram;
use crate::host::HostFigures;
use crate::names::DatabaseName;
use crate::release_origin::ReleaseOrigin;
use crate::series::SeriesNames;
use crate::totals::{ReleaseTotals, TaskWaits};

/// Points of history: a quarter of an hour.
const POINTS_MAX: usize = 180;
/// Time between two points.
pub(crate) const POINT_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of kinds of releases that wait for a sample to show their owner.
const PENDING_RELEASES_MAX: usize = 256;

/// See the module.
#[derive(Debug)]
pub(crate) struct MetricsState(Mutex<MetricFigures>);

/// All known figures. Points in time are in seconds since 1970.
#[derive(Debug, Clone, Default)]
pub(crate) struct MetricFigures {
    pub(crate) began: f64,
    pub(crate) dry_run: bool,
    /// Whether the configuration that was read last is in force.
    pub(crate) is_config_current: bool,
    /// The longest normal time between the ends of two ticks.
    pub(crate) deadline: Duration,
    pub(crate) ticked: Option<(Instant, f64)>,
    pub(crate) ticks: TickHistogram,
    pub(crate) events: EventFigures,
    pub(crate) acts: u64,
    /// By database and file class.
    pub(crate) released: BTreeMap<(DatabaseName, &'static str), ReleaseTotals>,
    /// The results on streaming programs.
    pub(crate) streamed: StreamReport,
    pub(crate) host: HostFigures,
    pub(crate) samples: SampleStats,
    pub(crate) databases: Vec<DatabaseFigures>,
    pub(crate) waits: BTreeMap<DatabaseName, TaskWaits>,
    /// Waits of all tasks of the host.
    pub(crate) all_waits: TaskWaits,
    pub(crate) trace: Option<TraceStatus>,
    pub(crate) top: Vec<TopFile>,
    pub(crate) visibility_gaps: Vec<String>,
    /// Databases of the last sample that are counted under `other`.
    pub(crate) dropped: usize,
    pub(crate) history: VecDeque<HistoryPoint>,
    series: SeriesNames,
    pending: BTreeMap<ReleaseOrigin, ReleaseTotals>,
}

/// The sampling thread's own statistics.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SampleStats {
    pub(crate) done: u64,
    pub(crate) failed: u64,
    /// Duration of the last sample.
    pub(crate) took: Duration,
    pub(crate) at: Option<f64>,
}

/// The source of traced figures, and the lost events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TraceStatus {
    pub(crate) level: TraceLevel,
    pub(crate) pauses: bool,
    pub(crate) stalls: bool,
    pub(crate) losses: EventLosses,
}

/// One point of the history, as the page gets it. Sizes are in bytes, times in seconds since 1970.
/// Counters are sums since the start.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct HistoryPoint {
    at: f64,
    memory: Option<u64>,
    free: Option<u64>,
    /// The watermarks `min`, `low` and `high`.
    marks: Option<[u64; 3]>,
    dirty: Option<u64>,
    /// By class.
    resident: BTreeMap<&'static str, u64>,
    /// Waits of the watched databases, and of all tasks; `None` if they are not traced.
    databases: Option<TaskWaits>,
    everyone: Option<TaskWaits>,
    released: u64,
}

impl MetricsState {
    /// Creates an empty state.
    pub(crate) fn new(dry_run: bool, deadline: Duration) -> Self {
        let began = unix_now();
        let figures =
            MetricFigures { began, dry_run, deadline, is_config_current: true, ..MetricFigures::default() };
        Self(Mutex::new(figures))
    }

    /// Returns a copy of all figures.
    pub(crate) fn figures(&self) -> MetricFigures {
        lock(&self.0).clone()
    }

    /// Records an event of the guard.
    pub(crate) fn record(&self, event: &Event) {
        let age = if let Event::Found { pid: Some(pid), .. } = event { age(*pid) } else { None };
        let mut figures = lock(&self.0);
        // Time before the guard's start does not count as delay.
        let after = age.map(|age| age.min(figures.running()));
        figures.events.record(event, after);
    }

    /// Records the end of a tick and its duration `took`, in total and by process.
    pub(crate) fn ticked(
        &self,
        took: Duration,
        done: &[Done],
        streamed: &StreamReport,
        by_process: BTreeMap<u32, Duration>,
    ) {
        let mut figures = lock(&self.0);
        figures.events.ticked(by_process);
        figures.streamed.clone_from(streamed);
        figures.ticked = Some((Instant::now(), unix_now()));
        figures.ticks.add(took);
        for done in done {
            figures.acts += done.acts;
            figures.take_release(ReleaseOrigin::of(done), ReleaseTotals::of(done));
        }
    }

    /// Records the guard's new configuration.
    pub(crate) fn reconfigured(&self, dry_run: bool, deadline: Duration) {
        let mut figures = lock(&self.0);
        (figures.dry_run, figures.deadline, figures.is_config_current) = (dry_run, deadline, true);
        figures.events.reconfigured();
    }

    /// Records that a new configuration was refused.
    pub(crate) fn config_refused(&self) {
        lock(&self.0).is_config_current = false;
    }

    /// Records a sample, taken with this trace source.
    pub(crate) fn files_sampled(&self, digest: SampleDigest, took: Duration, level: Option<TraceLevel>) {
        let mut figures = lock(&self.0);
        figures.samples.done += 1;
        (figures.samples.took, figures.samples.at) = (took, Some(unix_now()));
        figures.take_digest(digest, level);
    }

    /// Records a failed sample: nothing is known about any database.
    pub(crate) fn failed(&self) {
        let mut figures = lock(&self.0);
        figures.samples.failed += 1;
        figures.databases.clear();
        figures.top.clear();
    }

    /// Records the host's memory, and adds a point to the history.
    pub(crate) fn host_sampled(&self, host: &HostFigures) {
        let mut figures = lock(&self.0);
        figures.host = *host;
        let point = figures.point();
        if figures.history.len() == POINTS_MAX {
            figures.history.pop_front();
        }
        figures.history.push_back(point);
    }
}

impl MetricFigures {
    /// Returns how long the guard's loop has been stuck, if it is.
    pub(crate) fn stuck(&self) -> Option<Duration> {
        let since = self.ticked.map_or_else(|| self.running(), |(at, _)| at.elapsed());
        (since > self.deadline).then_some(since)
    }

    fn running(&self) -> Duration {
        Duration::try_from_secs_f64(unix_now() - self.began).unwrap_or_default()
    }

    fn point(&self) -> HistoryPoint {
        let mut resident = BTreeMap::new();
        for (class, files) in self.databases.iter().flat_map(|database| &database.classes) {
            *resident.entry(*class).or_default() += files.resident;
        }
        let databases = self.trace.map(|_| {
            let mut sum = TaskWaits::default();
            self.waits.values().for_each(|waits| sum.add(waits));
            sum
        });
        let host = &self.host;
        HistoryPoint {
            at: unix_now(),
            memory: host.memory.map(|memory| memory.total),
            free: host.memory.map(|memory| memory.free),
            marks: host.watermarks.map(|marks| [marks.min, marks.low, marks.high]),
            dirty: host.dirty.map(|dirty| dirty.dirty),
            resident,
            databases,
            everyone: self.trace.map(|_| self.all_waits),
            released: self.released.values().chain(self.pending.values()).map(|totals| totals.released).sum(),
        }
    }

    fn take_digest(&mut self, digest: SampleDigest, level: Option<TraceLevel>) {
        let now = Instant::now();
        self.events.sampled(&digest.databases, now);
        let names = self.names_for(&digest.databases, now);
        self.dropped = names.iter().filter(|name| **name == DatabaseName::others()).count();
        self.take_trace(digest.traced.as_ref(), level, &names);
        self.databases = merged(digest.databases, names);
        self.top = digest.top.into_iter().filter(|top| self.series.contains(&top.name)).collect();
        self.visibility_gaps = digest.visibility_gaps;
        for (origin, totals) in std::mem::take(&mut self.pending) {
            let name = origin.owner_among(&self.databases).unwrap_or_else(|| origin.name());
            self.add_released(&name, origin.class, &totals);
        }
        self.series.forget(now);
        self.waits.retain(|name, _| self.series.contains(name));
        self.released.retain(|(name, _), _| self.series.contains(name));
    }

    /// Returns the names under which databases' figures are kept. Those with logs choose first.
    fn names_for(&mut self, databases: &[DatabaseFigures], now: Instant) -> Vec<DatabaseName> {
        let mut order: Vec<usize> = (0..databases.len()).collect();
        order.sort_by_key(|index| !databases[*index].holds_logs());
        let mut names = vec![DatabaseName::others(); databases.len()];
        for index in order {
            names[index] = self.series.name_for(&databases[index].name, databases[index].user, now);
        }
        names
    }

    /// Records the counts of waits; `names` are those of the sample's databases.
    fn take_trace(
        &mut self,
        traced: Option<&TracedWaits>,
        level: Option<TraceLevel>,
        names: &[DatabaseName],
    ) {
        for name in names {
            self.waits.entry(name.clone()).or_default();
        }
        let mut losses = self.trace.map(|trace| trace.losses).unwrap_or_default();
        if let Some(traced) = traced {
            losses.no_room += traced.losses.no_room;
            losses.skipped += traced.losses.skipped;
            self.all_waits.add(&traced.everyone);
            for (index, waits) in &traced.databases {
                if let Some(sum) = names.get(*index).and_then(|name| self.waits.get_mut(name)) {
                    sum.add(waits);
                }
            }
        }
        if let Some(level) = level {
            let (pauses, stalls) = traced.map_or((false, false), |traced| (traced.pauses, traced.stalls));
            self.trace = Some(TraceStatus { level, pauses, stalls, losses });
        }
    }

    fn take_release(&mut self, origin: ReleaseOrigin, totals: ReleaseTotals) {
        if let Some(name) = origin.owner_among(&self.databases) {
            self.add_released(&name, origin.class, &totals);
        } else if self.pending.len() < PENDING_RELEASES_MAX || self.pending.contains_key(&origin) {
            self.pending.entry(origin).or_default().add(&totals);
        } else {
            self.add_released(&DatabaseName::others(), origin.class, &totals);
        }
    }

    fn add_released(&mut self, name: &DatabaseName, class: &'static str, totals: &ReleaseTotals) {
        let user = self.databases.iter().find(|database| database.name == *name).map_or(0, |seen| seen.user);
        let name = self.series.name_for(name, user, Instant::now());
        self.released.entry((name, class)).or_default().add(totals);
    }
}

/// Returns the seconds since 1970.
pub(crate) fn unix_now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Returns the time since a process started.
fn age(pid: u32) -> Option<Duration> {
    let started = ProcRoot::default().start_time(pid).ok()?;
    let up = Duration::try_from(clock_gettime(ClockId::Boottime)).ok()?;
    Some(up.saturating_sub(Duration::from_millis(started.saturating_mul(10))))
}

/// Gives databases their names. Databases of one name become one.
fn merged(databases: Vec<DatabaseFigures>, names: Vec<DatabaseName>) -> Vec<DatabaseFigures> {
    let mut merged: Vec<DatabaseFigures> = Vec::new();
    for (database, name) in databases.into_iter().zip(names) {
        let Some(same) = merged.iter_mut().find(|other| other.name == name) else {
            merged.push(DatabaseFigures { name, ..database });
            continue;
        };
        same.mixed += database.mixed;
        for (class, files) in database.classes {
            same.classes.entry(class).or_default().add(&files);
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::DATABASES_OF_USER_MAX;
    use crate::totals::FileTotals;
    use pagekeeper_policy::FileClass;

    fn name(directory: &str) -> DatabaseName {
        DatabaseName { engine: "mariadb".to_owned(), directory: directory.to_owned(), cgroup: String::new() }
    }

    fn seen(pid: u32, directory: &str) -> DatabaseFigures {
        let files = FileTotals {
            count: 1,
            size: 9000,
            resident: 8192,
            dirty: Some(0),
            writeback: Some(0),
            ..FileTotals::default()
        };
        DatabaseFigures {
            name: name(directory),
            pid: Some(pid),
            user: 0,
            directories: vec![directory.into()],
            classes: BTreeMap::from([("redo", files)]),
            mixed: 1,
        }
    }

    fn done(pid: u32, released_bytes: u64) -> Done {
        Done {
            pid: Some(pid),
            profile: "mariadb".to_owned(),
            directory: "/logs".into(),
            class: FileClass::Binlog,
            acts: 1,
            released_bytes,
            kept_bytes: 1,
            read_back_bytes: 2,
        }
    }

    fn state() -> MetricsState {
        MetricsState::new(false, Duration::from_secs(60))
    }

    fn sample(state: &MetricsState, databases: Vec<DatabaseFigures>) {
        state.files_sampled(SampleDigest { databases, ..SampleDigest::default() }, Duration::ZERO, None);
    }

    #[test]
    fn a_release_before_the_first_sample_finds_its_database_later() {
        let state = state();
        state.ticked(
            Duration::from_millis(3),
            &[done(7, 100), done(8, 10)],
            &StreamReport::default(),
            BTreeMap::new(),
        );
        assert!(state.figures().released.is_empty());
        state.host_sampled(&HostFigures::default());
        assert_eq!(state.figures().history[0].released, 110, "the history has it already");
        sample(&state, vec![seen(7, "/var/lib/mysql")]);
        state.ticked(Duration::from_millis(3), &[done(7, 1)], &StreamReport::default(), BTreeMap::new());
        let known = state.figures();
        let bytes = |directory| known.released[&(name(directory), "binlog")].released;
        assert_eq!((bytes("/var/lib/mysql"), bytes("/logs"), known.acts), (101, 10, 3));
    }

    #[test]
    fn a_restarted_database_keeps_its_name() {
        let state = state();
        sample(&state, vec![seen(7, "/a")]);
        state.ticked(Duration::ZERO, &[done(7, 5)], &StreamReport::default(), BTreeMap::new());
        sample(&state, vec![seen(9, "/a")]);
        state.ticked(Duration::ZERO, &[done(9, 6)], &StreamReport::default(), BTreeMap::new());
        let known = state.figures();
        assert_eq!(known.released.len(), 1);
        assert_eq!(
            known.released[&(name("/a"), "binlog")],
            ReleaseTotals { acts: 2, released: 11, kept: 2, read_back: 4 }
        );
    }

    #[test]
    fn more_databases_than_there_is_room_for_are_counted_together() {
        let state = state();
        sample(&state, (0..300).map(|n| seen(n, &format!("/data/{n}"))).collect());
        let known = state.figures();
        assert_eq!(known.databases.len(), DATABASES_OF_USER_MAX + 1);
        let others = known.databases.iter().find(|seen| seen.name == DatabaseName::others()).unwrap();
        let files = others.classes["redo"];
        let rest = 300 - DATABASES_OF_USER_MAX as u64;
        assert_eq!((files.count, files.resident, others.mixed), (rest, rest * 8192, rest));
        assert_eq!((files.dirty, files.unreadable, known.dropped as u64), (Some(0), 0, rest));
    }

    #[test]
    fn waits_add_up_per_database() {
        let state = state();
        let waited =
            |pauses| TaskWaits { pauses, throttled: Duration::from_millis(pauses), ..TaskWaits::default() };
        for _ in 0..2 {
            let traced = TracedWaits {
                pauses: true,
                databases: [(1, waited(3))].into(),
                everyone: waited(10),
                losses: EventLosses { no_room: 1, ..EventLosses::default() },
                ..TracedWaits::default()
            };
            let databases = vec![seen(7, "/a"), seen(8, "/b")];
            let digest = SampleDigest { databases, traced: Some(traced), ..SampleDigest::default() };
            state.files_sampled(digest, Duration::ZERO, Some(TraceLevel::Bpf));
        }
        let known = state.figures();
        assert_eq!((known.waits[&name("/a")].pauses, known.waits[&name("/b")].pauses), (0, 6));
        assert_eq!((known.all_waits.pauses, known.all_waits.throttled), (20, Duration::from_millis(20)));
        let trace = known.trace.unwrap();
        assert_eq!((trace.losses.no_room, trace.pauses, trace.stalls), (2, true, false));
    }

    #[test]
    fn a_sample_that_fails_takes_its_figures_along() {
        let state = state();
        sample(&state, vec![seen(7, "/a")]);
        state.failed();
        let known = state.figures();
        assert!(known.databases.is_empty());
        assert_eq!((known.samples.done, known.samples.failed), (1, 1));
    }

    #[test]
    fn the_history_has_an_end() {
        let state = state();
        for _ in 0..POINTS_MAX + 5 {
            state.host_sampled(&HostFigures::default());
        }
        assert_eq!(state.figures().history.len(), POINTS_MAX);
    }

    #[test]
    fn a_loop_without_ticks_is_stuck() {
        let state = MetricsState::new(false, Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        assert!(state.figures().stuck().is_some());
        state.reconfigured(true, Duration::from_secs(3600));
        assert!(state.figures().stuck().is_none());
    }
}
