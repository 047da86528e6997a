//! The current figures for all consumers: filled by the guard's loop, the watching thread and a clock.
//!
//! Invariants:
//! 1. The lock is held to copy figures in or out, never over I/O: no consumer can delay the guard.
//! 2. Everything is bounded: [`MAX_DATABASES`] names, [`MAX_OF_USER`] of one user, [`MAX_POINTS`] points of
//!    history, and per-file figures only up to the requested number. Further names are counted together as
//!    `other`. So no user's databases displace another user's series, and databases that come and go do not create
//!    new series forever.
//! 3. Counters never decrease while their series exists. An unknown value has no figure, and the figures of a
//!    failed sample are removed.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use pagekeeper_guard::{Done, Event, StreamFigures, Tick};
use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_observe::VisibilityGap;
use pagekeeper_policy::FileClass;
use pagekeeper_trace::{Losses, TraceLevel};

use super::digest::{Digest, Name, Seen, Top, Waited, label};
use super::fleet::Fleet;
use super::histogram::Histogram;
use super::host::Host;

/// Maximum number of databases with their own series. Each takes some 10 KB of a response.
const MAX_DATABASES: usize = 1000;
/// Maximum per user. If there is no room, the user with the most loses one to a user with fewer.
const MAX_OF_USER: usize = 250;
/// Points of history: a quarter of an hour.
pub(super) const MAX_POINTS: usize = 180;
/// Time between two points.
pub(super) const POINT_EVERY: Duration = Duration::from_secs(5);
/// Time for which the counters of a database that has ended are kept.
const FORGET_AFTER: Duration = Duration::from_secs(15 * 60);
/// Maximum number of releases that wait for a sample to show their owner.
const MAX_PENDING: usize = 256;

/// See the module.
#[derive(Debug)]
pub(super) struct MetricsState(Mutex<Known>);

/// All known figures.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) began: SystemTime,
    pub(super) dry_run: bool,
    /// The longest normal time between the ends of two ticks.
    pub(super) patience: Duration,
    pub(super) tick: Option<Tick>,
    pub(super) ticked: Option<(Instant, SystemTime)>,
    pub(super) ticks: Histogram,
    pub(super) acts: u64,
    pub(super) warnings: u64,
    pub(super) problems: u64,
    pub(super) released: BTreeMap<(Name, FileClass), Released>,
    /// The results on streaming programs.
    pub(super) streamed: StreamFigures,
    pub(super) host: Host,
    pub(super) samples: Samples,
    pub(super) databases: Vec<Seen>,
    pub(super) waited: BTreeMap<Name, Waited>,
    pub(super) everyone: Waited,
    pub(super) trace: Option<Trace>,
    pub(super) top: Vec<Top>,
    pub(super) visibility_gaps: Vec<VisibilityGap>,
    /// Databases of the last sample that are counted under `other`.
    pub(super) dropped: usize,
    pub(super) fleet: Fleet,
    /// When a database's counters were last of use, and its user.
    alive: BTreeMap<Name, (Instant, u32)>,
    pending: Vec<Done>,
    history: VecDeque<Point>,
}

/// The actions on a database's files of one class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Released {
    pub(super) acts: u64,
    pub(super) bytes: u64,
    /// Bytes that resisted.
    pub(super) kept: u64,
    /// Bytes read back since.
    pub(super) read_back: u64,
}

/// The watching thread's own statistics.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Samples {
    pub(super) done: u64,
    pub(super) failed: u64,
    /// Duration of the last sample.
    pub(super) took: Duration,
    pub(super) at: Option<SystemTime>,
}

/// The source of traced figures, and the lost events.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trace {
    pub(super) level: TraceLevel,
    pub(super) pauses: bool,
    pub(super) stalls: bool,
    pub(super) losses: Losses,
}

/// One point of the history. Counters are sums since the start.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Point {
    pub(super) at: SystemTime,
    pub(super) host: Host,
    /// Resident bytes by class.
    pub(super) resident: BTreeMap<super::digest::Class, u64>,
    /// Waits of the watched databases, and of all tasks; `None` if they are not traced.
    pub(super) waited: Option<(Waited, Waited)>,
    pub(super) released: u64,
}

impl MetricsState {
    /// Creates an empty state.
    pub(super) fn new(dry_run: bool, patience: Duration) -> Self {
        Self(Mutex::new(Known {
            began: SystemTime::now(),
            dry_run,
            patience,
            tick: None,
            ticked: None,
            ticks: Histogram::default(),
            acts: 0,
            warnings: 0,
            problems: 0,
            released: BTreeMap::new(),
            streamed: StreamFigures::default(),
            host: Host::default(),
            samples: Samples::default(),
            databases: Vec::new(),
            waited: BTreeMap::new(),
            everyone: Waited::default(),
            trace: None,
            top: Vec::new(),
            visibility_gaps: Vec::new(),
            dropped: 0,
            fleet: Fleet::default(),
            alive: BTreeMap::new(),
            pending: Vec::new(),
            history: VecDeque::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // No figure that a panic could leave half written matters more than having none.
        lock(&self.0)
    }

    /// Returns a copy without the history.
    pub(super) fn known(&self) -> Known {
        let known = self.lock();
        Known { history: VecDeque::new(), ..known.clone() }
    }

    /// Returns a copy, and the history.
    pub(super) fn history(&self) -> (Known, Vec<Point>) {
        let mut known = self.lock().clone();
        let points = std::mem::take(&mut known.history);
        (known, points.into())
    }

    /// Records an event of the guard.
    pub(super) fn record(&self, event: &Event) {
        let after = match event {
            Event::Found { pid: Some(pid), .. } => age(*pid),
            _ => None,
        };
        let mut known = self.lock();
        // Time before the guard's start does not count as delay.
        let after = after.map(|age| age.min(known.began.elapsed().unwrap_or_default()));
        known.fleet.record(event, after);
        match event {
            Event::Tick(tick) => known.tick = Some(tick.clone()),
            Event::Warning { .. } => known.warnings += 1,
            Event::Problem { .. } => known.problems += 1,
            Event::Start { .. }
            | Event::VisibilityGap { .. }
            | Event::Found { .. }
            | Event::Lost { .. }
            | Event::InPart { .. }
            | Event::Refused { .. }
            | Event::Shared { .. }
            | Event::Setting { .. }
            | Event::TakenOver { .. }
            | Event::Hung { .. }
            | Event::Answers { .. }
            | Event::Stream { .. }
            | Event::StreamEnded { .. }
            | Event::Cgroup { .. }
            | Event::Would { .. }
            | Event::Summary(_) => {}
        }
    }

    /// Records the end of a tick.
    pub(super) fn ticked(
        &self,
        took: Duration,
        done: &[Done],
        streamed: &StreamFigures,
        by_process: BTreeMap<u32, Duration>,
    ) {
        let mut known = self.lock();
        known.fleet.ticked(by_process);
        known.streamed.clone_from(streamed);
        known.ticked = Some((Instant::now(), SystemTime::now()));
        known.ticks.add(took);
        for done in done {
            known.acts += done.acts;
            known.note_done(done);
        }
    }

    /// Records the guard's new configuration.
    pub(super) fn reconfigured(&self, dry_run: bool, patience: Duration) {
        let mut known = self.lock();
        (known.dry_run, known.patience) = (dry_run, patience);
        known.fleet.reconfigured();
    }

    /// Records a sample, taken with this trace source.
    pub(super) fn files_sampled(&self, digest: Digest, took: Duration, level: Option<TraceLevel>) {
        let mut known = self.lock();
        known.samples.done += 1;
        (known.samples.took, known.samples.at) = (took, Some(SystemTime::now()));
        known.take_digest(digest, level);
    }

    /// Records a failed sample: nothing is known about any database.
    pub(super) fn failed(&self) {
        let mut known = self.lock();
        known.samples.failed += 1;
        known.databases.clear();
        known.top.clear();
    }

    /// Adds a point to the history.
    pub(super) fn host_sampled(&self, host: &Host) {
        let mut known = self.lock();
        known.host = *host;
        let mut resident = BTreeMap::new();
        for (class, files) in known.databases.iter().flat_map(|database| &database.classes) {
            *resident.entry(*class).or_default() += files.resident;
        }
        let waited = known.trace.map(|_| {
            let mut all = Waited::default();
            known.waited.values().for_each(|waited| all.add(waited));
            (all, known.everyone)
        });
        let released = known.released.values().map(|released| released.bytes).sum::<u64>()
            + known.pending.iter().map(|done| done.released_bytes).sum::<u64>();
        let point = Point { at: SystemTime::now(), host: *host, resident, waited, released };
        if known.history.len() == MAX_POINTS {
            known.history.pop_front();
        }
        known.history.push_back(point);
    }
}

impl Known {
    /// Returns how long the guard's loop has been stuck, if it is.
    pub(super) fn stuck(&self) -> Option<Duration> {
        let since = match self.ticked {
            Some((at, _)) => at.elapsed(),
            None => self.began.elapsed().unwrap_or_default(),
        };
        (since > self.patience).then_some(since)
    }

    fn take_digest(&mut self, digest: Digest, level: Option<TraceLevel>) {
        let now = Instant::now();
        self.fleet.sampled(&digest.databases, now);
        // Databases with logs first.
        let mut order: Vec<usize> = (0..digest.databases.len()).collect();
        order.sort_by_key(|index| !digest.databases[*index].holds_logs());
        let mut names: Vec<Name> = vec![Name::others(); order.len()];
        for index in order {
            let seen = &digest.databases[index];
            names[index] = self.room_for(&seen.name, seen.user, now);
        }
        let others = Name::others();
        self.dropped = names.iter().filter(|name| **name == others).count();
        if let Some(level) = level {
            let losses = self.trace.map_or_else(Losses::default, |trace| trace.losses);
            let trace = self.trace.insert(Trace { level, pauses: false, stalls: false, losses });
            if let Some(traced) = &digest.traced {
                (trace.pauses, trace.stalls) = (traced.pauses, traced.stalls);
                let (to, from) = (&mut trace.losses, traced.losses);
                to.no_room += from.no_room;
                to.skipped += from.skipped;
                to.overrun += from.overrun;
                to.unread += from.unread;
            }
        }
        for name in &names {
            self.waited.entry(name.clone()).or_default();
        }
        if let Some(traced) = &digest.traced {
            self.everyone.add(&traced.everyone);
            for (index, waited) in &traced.databases {
                if let Some(to) = names.get(*index).and_then(|name| self.waited.get_mut(name)) {
                    to.add(waited);
                }
            }
        }
        self.databases = merged(digest.databases, names);
        let room = |name: &Name| self.alive.contains_key(name);
        self.top = digest.top.into_iter().filter(|top| room(&top.name)).collect();
        self.visibility_gaps = digest.visibility_gaps;
        for done in std::mem::take(&mut self.pending) {
            let name = self.owner_of(&done).unwrap_or_else(|| named_by(&done));
            self.count_done(&name, &done);
        }
        self.forget(now);
    }

    /// Returns the name under which a database's figures are kept.
    fn room_for(&mut self, name: &Name, user: u32, now: Instant) -> Name {
        let kept = if self.alive.contains_key(name) || self.has_room_for(user) {
            name.clone()
        } else {
            Name::others()
        };
        self.alive.insert(kept.clone(), (now, user));
        kept
    }

    /// Whether a user has room for one more database. If needed, removes one of the user who has the most.
    fn has_room_for(&mut self, user: u32) -> bool {
        let others = Name::others();
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        for (_, (_, user)) in self.alive.iter().filter(|(name, _)| **name != others) {
            *counts.entry(*user).or_default() += 1;
        }
        let own = counts.get(&user).copied().unwrap_or_default();
        if own >= MAX_OF_USER || counts.values().sum::<usize>() < MAX_DATABASES {
            return own < MAX_OF_USER;
        }
        let Some((most, count)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return true };
        if count <= own + 1 {
            return false;
        }
        let of_most = self.alive.iter().filter(|(name, (_, user))| *user == most && **name != others);
        if let Some(oldest) = of_most.min_by_key(|(_, (seen, _))| *seen).map(|(name, _)| name.clone()) {
            self.alive.remove(&oldest);
        }
        true
    }

    fn forget(&mut self, now: Instant) {
        let others = Name::others();
        self.alive.retain(|name, (seen, _)| now.duration_since(*seen) < FORGET_AFTER || *name == others);
        let alive = &self.alive;
        self.waited.retain(|name, _| alive.contains_key(name));
        self.released.retain(|(name, _), _| alive.contains_key(name));
    }

    fn note_done(&mut self, done: &Done) {
        if let Some(name) = self.owner_of(done) {
            self.count_done(&name, done);
            return;
        }
        let same = |other: &&mut Done| {
            other.pid == done.pid && other.directory == done.directory && other.class == done.class
        };
        if let Some(other) = self.pending.iter_mut().find(same) {
            other.acts += done.acts;
            other.released_bytes += done.released_bytes;
            other.kept_bytes += done.kept_bytes;
            other.read_back_bytes += done.read_back_bytes;
        } else if self.pending.len() < MAX_PENDING {
            self.pending.push(done.clone());
        } else {
            self.count_done(&Name::others(), done);
        }
    }

    fn count_done(&mut self, name: &Name, done: &Done) {
        let user = self.databases.iter().find(|seen| seen.name == *name).map_or(0, |seen| seen.user);
        let name = self.room_for(name, user, Instant::now());
        let released = self.released.entry((name, done.class)).or_default();
        released.acts += done.acts;
        released.bytes += done.released_bytes;
        released.kept += done.kept_bytes;
        released.read_back += done.read_back_bytes;
    }

    /// Returns the owner of the files, by the last sample.
    fn owner_of(&self, done: &Done) -> Option<Name> {
        let at = |seen: &&Seen| match done.pid {
            Some(pid) => seen.pid == Some(pid),
            None => seen.directories.iter().any(|directory| overlap(directory, &done.directory)),
        };
        Some(self.databases.iter().find(at)?.name.clone())
    }
}

/// Returns the name of a database that no sample has found, from the guard's knowledge.
fn named_by(done: &Done) -> Name {
    Name { database: done.profile.clone(), directory: label(&done.directory), cgroup: String::new() }
}

/// Returns the time since a process started.
fn age(pid: u32) -> Option<Duration> {
    let started = ProcRoot::default().start_time(pid).ok()?;
    let boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let up = Duration::new(boot.tv_sec.try_into().ok()?, boot.tv_nsec.try_into().ok()?);
    Some(up.saturating_sub(Duration::from_millis(started.saturating_mul(10))))
}

fn overlap(a: &Path, b: &PathBuf) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// Databases of one name as one.
fn merged(databases: Vec<Seen>, names: Vec<Name>) -> Vec<Seen> {
    let mut merged: Vec<Seen> = Vec::new();
    for (seen, name) in databases.into_iter().zip(names) {
        let Some(same) = merged.iter_mut().find(|other| other.name == name) else {
            merged.push(Seen { name, ..seen });
            continue;
        };
        same.mixed += seen.mixed;
        for (class, files) in seen.classes {
            let sum = same.classes.entry(class).or_default();
            let none = sum.count == sum.unreadable;
            let known = |a: Option<u64>, b: Option<u64>| if none { b } else { Some(a? + b?) };
            if files.count > files.unreadable {
                sum.dirty = known(sum.dirty, files.dirty);
                sum.writeback = known(sum.writeback, files.writeback);
            }
            sum.count += files.count;
            sum.size += files.size;
            sum.unreadable += files.unreadable;
            sum.resident += files.resident;
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::digest::{Class, Files, Traced};

    fn name(directory: &str) -> Name {
        Name { database: "mariadb".to_owned(), directory: directory.to_owned(), cgroup: String::new() }
    }

    fn seen(pid: u32, directory: &str) -> Seen {
        let files = Files {
            count: 1,
            size: 9000,
            resident: 8192,
            dirty: Some(0),
            writeback: Some(0),
            ..Files::default()
        };
        Seen {
            name: name(directory),
            pid: Some(pid),
            user: 0,
            directories: vec![directory.into()],
            classes: BTreeMap::from([(Class(Some(FileClass::Redo)), files)]),
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

    fn sample(state: &MetricsState, databases: Vec<Seen>) {
        state.files_sampled(Digest { databases, ..Digest::default() }, Duration::ZERO, None);
    }

    #[test]
    fn a_release_before_the_first_sample_finds_its_database_later() {
        let state = state();
        state.ticked(
            Duration::from_millis(3),
            &[done(7, 100), done(8, 10)],
            &StreamFigures::default(),
            BTreeMap::new(),
        );
        assert!(state.known().released.is_empty());
        state.host_sampled(&Host::default());
        assert_eq!(state.history().1[0].released, 110, "the history has it already");
        sample(&state, vec![seen(7, "/var/lib/mysql")]);
        state.ticked(Duration::from_millis(3), &[done(7, 1)], &StreamFigures::default(), BTreeMap::new());
        let known = state.known();
        let bytes = |directory| known.released[&(name(directory), FileClass::Binlog)].bytes;
        assert_eq!((bytes("/var/lib/mysql"), bytes("/logs"), known.acts), (101, 10, 3));
    }

    #[test]
    fn a_restarted_database_goes_on_under_its_name() {
        let state = state();
        sample(&state, vec![seen(7, "/a")]);
        state.ticked(Duration::ZERO, &[done(7, 5)], &StreamFigures::default(), BTreeMap::new());
        sample(&state, vec![seen(9, "/a")]);
        state.ticked(Duration::ZERO, &[done(9, 6)], &StreamFigures::default(), BTreeMap::new());
        let known = state.known();
        assert_eq!(known.released.len(), 1);
        assert_eq!(
            known.released[&(name("/a"), FileClass::Binlog)],
            Released { acts: 2, bytes: 11, kept: 2, read_back: 4 }
        );
    }

    #[test]
    fn more_databases_than_there_is_room_for_are_counted_together() {
        let state = state();
        sample(&state, (0..300).map(|n| seen(n, &format!("/data/{n}"))).collect());
        let known = state.known();
        assert_eq!(known.databases.len(), MAX_OF_USER + 1);
        let others = known.databases.iter().find(|seen| seen.name == Name::others()).unwrap();
        let files = others.classes[&Class(Some(FileClass::Redo))];
        let rest = 300 - MAX_OF_USER as u64;
        assert_eq!((files.count, files.resident, others.mixed), (rest, rest * 8192, rest));
        assert_eq!((files.dirty, files.unreadable, known.dropped as u64), (Some(0), 0, rest));
    }

    #[test]
    fn nobodys_databases_take_the_series_of_anothers() {
        let state = state();
        let of_user = |user: u32, directory: &str| Seen { user, ..seen(user, directory) };
        // More users than there is room for, each with the maximum, and new ones in each sample.
        for round in 0..3 {
            let fakes = (0..6).flat_map(|user| {
                (0..MAX_OF_USER).map(move |n| (1000 + user, format!("/fake/{user}/{round}/{n}")))
            });
            sample(&state, fakes.map(|(user, directory)| of_user(user, &directory)).collect());
            let known = state.known();
            assert!(known.alive.len() <= MAX_DATABASES + 1 && known.dropped > 0, "{}", known.dropped);
        }
        // A late user still gets series, and keeps them.
        for _ in 0..2 {
            let real = of_user(113, "/var/lib/mysql");
            let fakes = (0..MAX_OF_USER).map(|n| of_user(1000, &format!("/late/{n}")));
            sample(&state, fakes.chain([real]).collect());
            assert!(state.known().databases.iter().any(|seen| seen.name == name("/var/lib/mysql")));
        }
    }

    #[test]
    fn waits_add_up_and_are_those_of_their_database() {
        let state = state();
        let waited =
            |pauses| Waited { pauses, throttled: Duration::from_millis(pauses), ..Waited::default() };
        for _ in 0..2 {
            let traced = Traced {
                pauses: true,
                databases: [(1, waited(3))].into(),
                everyone: waited(10),
                losses: Losses { no_room: 1, ..Losses::default() },
                ..Traced::default()
            };
            let databases = vec![seen(7, "/a"), seen(8, "/b")];
            let digest = Digest { databases, traced: Some(traced), ..Digest::default() };
            state.files_sampled(digest, Duration::ZERO, Some(TraceLevel::Bpf));
        }
        let known = state.known();
        assert_eq!((known.waited[&name("/a")].pauses, known.waited[&name("/b")].pauses), (0, 6));
        assert_eq!((known.everyone.pauses, known.everyone.throttled), (20, Duration::from_millis(20)));
        let trace = known.trace.unwrap();
        assert_eq!((trace.losses.no_room, trace.pauses, trace.stalls), (2, true, false));
    }

    #[test]
    fn a_sample_that_fails_takes_its_figures_along() {
        let state = state();
        sample(&state, vec![seen(7, "/a")]);
        state.failed();
        let known = state.known();
        assert!(known.databases.is_empty());
        assert_eq!((known.samples.done, known.samples.failed), (1, 1));
    }

    #[test]
    fn the_history_has_an_end() {
        let state = state();
        for _ in 0..MAX_POINTS + 5 {
            state.host_sampled(&Host::default());
        }
        assert_eq!(state.history().1.len(), MAX_POINTS);
        assert!(state.known().history.is_empty());
    }

    #[test]
    fn a_loop_that_does_not_go_round_is_stuck() {
        let state = MetricsState::new(false, Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        assert!(state.known().stuck().is_some());
        state.reconfigured(true, Duration::from_secs(3600));
        assert!(state.known().stuck().is_none());
    }
}
