//! The memory cgroups of databases: which of them a rule names, what their page cache takes of their limit, and what is done about it.
//!
//! Where a group's page cache takes more of its limit than it may, the logs of its databases are kept tighter, and if that is asked for
//! the kernel is asked to reclaim the group's file pages, in the steps that [`pagekeeper_policy::group`] decides on.
//!
//! Invariants:
//! 1. Without a rule nothing is read. What is reclaimed from is the very group that a glob of the rule matches by its whole path, that a
//!    watched database's memory is charged to, and that was opened in the same pass without following links.
//! 2. In a dry run, and for what is not the canary's, nothing is reclaimed, and it is said what would be.
//! 3. A call that does not come back keeps nothing else waiting, and its group is left alone until it does; with [`MOST_AWAY`] of them
//!    none is made.
//!
//! A group that is gone is forgotten. What can't be read or done is reported once for each group.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use pagekeeper_kernel::hang::Crew;
use pagekeeper_kernel::pressure::{HeldGroup, MemoryCgroup, MemoryPlace, Reclaim, SysRoots};
use pagekeeper_kernel::process::Mount;
use pagekeeper_kernel::{Error, page_size};
use pagekeeper_policy::group::{GroupReason, GroupRule, GroupSample, GroupState, GroupStep};

use super::report::Report;
use super::silence::PATIENCE;
use super::watched::Watched;
use crate::config::Settings;
use crate::event::{Event, GroupNews};

/// Calls that have not come back, from which on no other is made.
const MOST_AWAY: usize = 16;
/// Databases whose groups are looked at in one pass; the others come in the next ones.
const AT_ONCE: usize = 64;

/// A group that is not met in so many passes is forgotten, where one meets all.
const PASSES: u64 = 3;
/// Groups that are counted by name; those beyond are counted together.
const MOST_COUNTED: usize = 1000;

/// What is remembered of one group.
#[derive(Default)]
struct Known {
    path: PathBuf,
    state: GroupState,
    tight: bool,
    /// Why nothing was asked for last, as far as that was reported.
    braked: bool,
    /// Whether it was reported that something would be reclaimed.
    would: bool,
    pids: BTreeSet<u32>,
    pass: u64,
}

/// A group that was met in a pass.
struct Met {
    held: HeldGroup,
    path: PathBuf,
    figures: MemoryCgroup,
    limit: Option<u64>,
}

type Outcome = (Result<Reclaim, Error>, u64);

/// The groups, and the calls under way.
pub(super) struct Groups {
    crew: Crew,
    known: BTreeMap<u64, Known>,
    away: Vec<(u64, Receiver<Outcome>)>,
    began: Instant,
    due: Instant,
    pass: u64,
    /// After how many a group that is not met is forgotten.
    passes: u64,
    /// Behind which process the next pass begins.
    after: u32,
    reclaimed: BTreeMap<PathBuf, u64>,
}

impl Groups {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            crew: Crew::default(),
            known: BTreeMap::new(),
            away: Vec::new(),
            began: now,
            due: now,
            pass: 0,
            passes: PASSES,
            after: 0,
            reclaimed: BTreeMap::new(),
        }
    }

    /// Forgets all, for another configuration.
    pub(super) fn forget(&mut self, watched: &mut Watched) {
        self.known.clear();
        watched.directories.iter_mut().for_each(|directory| directory.tight = false);
    }

    /// Reclaimed so far, by group.
    pub(super) fn reclaimed(&self) -> &BTreeMap<PathBuf, u64> {
        &self.reclaimed
    }

    /// Looks at all groups once, and acts, if it is time for that.
    pub(super) fn look(
        &mut self,
        watched: &mut Watched,
        settings: &Settings,
        report: &mut Report,
        now: Instant,
    ) {
        let rule = &settings.options.cgroup;
        if rule.groups.is_empty() || now < self.due {
            return;
        }
        self.due = now + rule.tick;
        self.pass += 1;
        self.take_back(report);
        let wanted = GroupRule { percent: rule.percent, reclaim: rule.reclaim };
        for (id, (met, pids)) in self.meet(watched, settings, report) {
            let sample = sample(id, &met, now.saturating_duration_since(self.began));
            let known = self.known.entry(id).or_default();
            (known.path, known.pass) = (met.path.clone(), self.pass);
            known.pids.extend(pids);
            let step = known.state.step(wanted, sample);
            known.tell(step, &sample, report);
            let Ok(bytes) = step.reclaim else { continue };
            let own = |owner: Option<u32>| owner.is_some_and(|owner| known.pids.contains(&owner));
            let mut directories = watched.directories.iter().filter(|directory| own(directory.owner));
            if settings.options.dry_run || !directories.all(|directory| directory.acts) {
                known.state.not_done();
                if !std::mem::replace(&mut known.would, true) {
                    let news = GroupNews::WouldReclaim { bytes };
                    report.events.push(event(&met.path, &sample, news));
                }
                continue;
            }
            self.reclaim(id, met, bytes, &sample, report);
        }
        self.known.retain(|_, known| known.pass + self.passes > self.pass);
        self.tighten(watched);
    }

    /// The groups of watched databases that the rule names, with their databases' processes.
    fn meet(
        &mut self,
        watched: &Watched,
        settings: &Settings,
        report: &mut Report,
    ) -> BTreeMap<u64, (Met, BTreeSet<u32>)> {
        let roots = SysRoots { proc: watched.proc.clone(), ..SysRoots::default() };
        let mut met: BTreeMap<u64, (Met, BTreeSet<u32>)> = BTreeMap::new();
        let mounts = match roots.proc.own_mounts() {
            Ok(mounts) => mounts,
            Err(error) => {
                report.problem(error.path().to_path_buf(), &error);
                return met;
            }
        };
        let owners: BTreeSet<u32> =
            watched.directories.iter().filter_map(|directory| directory.owner).collect();
        // Each group is met again before it is forgotten, however many there are.
        self.passes =
            u64::try_from(owners.len().div_ceil(AT_ONCE)).unwrap_or(u64::MAX).saturating_add(PASSES);
        self.known.values_mut().for_each(|known| known.pids.retain(|pid| owners.contains(pid)));
        let turn;
        (turn, self.after) = turn_of(&owners, self.after);
        for pid in turn {
            match group_of(&roots, pid, &mounts, settings) {
                Ok(Some(group)) => {
                    let entry = met.entry(group.held.id()).or_insert_with(|| (group, BTreeSet::new()));
                    entry.1.insert(pid);
                }
                Ok(None) => {}
                // It has ended, or its group was removed.
                Err(error) if error.is_gone() => {}
                Err(error) => report.problem(error.path().to_path_buf(), &error),
            }
        }
        met
    }

    /// Asks the kernel, unless that hangs.
    fn reclaim(&mut self, id: u64, met: Met, bytes: u64, sample: &GroupSample, report: &mut Report) {
        let hangs = self.away.len() >= MOST_AWAY || self.away.iter().any(|(other, _)| *other == id);
        if hangs || !self.crew.is_ready() {
            self.not_done(id);
            return;
        }
        let Met { held, path, figures, .. } = met;
        let outcome = self.crew.run(PATIENCE, move || {
            let outcome = held.reclaim_file(&SysRoots::default(), bytes);
            let after = held.figures().map_or(figures.file, |after| after.file);
            (outcome, figures.file.saturating_sub(after))
        });
        match outcome {
            Ok(outcome) => self.take(id, &path, outcome, Some(sample), report),
            Err(waiting) => self.away.push((id, waiting)),
        }
    }

    fn not_done(&mut self, id: u64) {
        if let Some(known) = self.known.get_mut(&id) {
            known.state.not_done();
        }
    }

    /// Takes in what came of a call.
    fn take(
        &mut self,
        id: u64,
        path: &Path,
        (outcome, released): Outcome,
        sample: Option<&GroupSample>,
        report: &mut Report,
    ) {
        match outcome {
            Ok(Reclaim::All | Reclaim::Part) => {
                // Groups come and go, as containers do.
                let counted = self.reclaimed.contains_key(path) || self.reclaimed.len() < MOST_COUNTED;
                let name = if counted { path.to_path_buf() } else { PathBuf::from("others") };
                *self.reclaimed.entry(name).or_default() += released;
                if let Some(sample) = sample {
                    report.events.push(event(path, sample, GroupNews::Reclaimed { bytes: released }));
                }
            }
            Ok(Reclaim::Refused(why)) => {
                self.not_done(id);
                report.problem(path.to_path_buf(), &why);
            }
            Err(error) if error.is_gone() => {}
            Err(error) => {
                self.not_done(id);
                report.problem(path.to_path_buf(), &error);
            }
        }
    }

    /// Takes back calls that have come back.
    fn take_back(&mut self, report: &mut Report) {
        for (id, waiting) in std::mem::take(&mut self.away) {
            match waiting.try_recv() {
                Ok(outcome) => {
                    let path = self.known.get(&id).map(|known| known.path.clone()).unwrap_or_default();
                    self.take(id, &path, outcome, None, report);
                }
                Err(TryRecvError::Empty) => self.away.push((id, waiting)),
                Err(TryRecvError::Disconnected) => {}
            }
        }
    }

    /// Has the logs kept tighter of the databases in groups that are over their share.
    fn tighten(&self, watched: &mut Watched) {
        let tight: BTreeSet<u32> = self
            .known
            .values()
            .filter(|known| known.tight)
            .flat_map(|known| known.pids.iter().copied())
            .collect();
        for directory in &mut watched.directories {
            directory.tight = directory.owner.is_some_and(|owner| tight.contains(&owner));
        }
    }
}

impl Known {
    /// Reports what has changed.
    fn tell(&mut self, step: GroupStep, sample: &GroupSample, report: &mut Report) {
        if std::mem::replace(&mut self.tight, step.tight) != step.tight {
            let news = if step.tight { GroupNews::Over } else { GroupNews::Within };
            report.events.push(event(&self.path, sample, news));
        }
        if !step.tight {
            self.would = false;
        }
        match step.reclaim {
            Err(reason @ (GroupReason::Refaults | GroupReason::Stalls | GroupReason::Blind))
                if !self.braked =>
            {
                self.braked = true;
                report.events.push(event(&self.path, sample, GroupNews::Stopped { reason }));
            }
            Ok(_) => self.braked = false,
            Err(_) => {}
        }
    }
}

fn event(path: &Path, sample: &GroupSample, news: GroupNews) -> Event {
    Event::Cgroup { path: path.to_path_buf(), file_bytes: sample.file, limit_bytes: sample.limit, news }
}

/// The processes whose groups are looked at next, and behind which the pass after that begins.
fn turn_of(owners: &BTreeSet<u32>, after: u32) -> (Vec<u32>, u32) {
    let mut turn: Vec<u32> = owners
        .range((Bound::Excluded(after), Bound::Unbounded))
        .chain(owners.range(..=after))
        .copied()
        .collect();
    turn.truncate(AT_ONCE);
    let last = turn.last().copied().filter(|_| turn.len() < owners.len());
    (turn, last.unwrap_or(0))
}

/// The group that a process's memory is charged to, if the rule names it.
fn group_of(roots: &SysRoots, pid: u32, mounts: &[Mount], settings: &Settings) -> Result<Option<Met>, Error> {
    let Some(place) = MemoryPlace::among(roots, pid, mounts)? else { return Ok(None) };
    let Some(figures) = MemoryCgroup::charged_in(&place)? else { return Ok(None) };
    let path = place.charged(&figures);
    if !settings.options.cgroup.groups.iter().any(|glob| glob.is_match(&path)) {
        return Ok(None);
    }
    let held = HeldGroup::open(place.version, &figures.directory)?;
    let limit = [figures.effective_limit, held.high()?].into_iter().flatten().min();
    Ok(Some(Met { held, path, figures, limit }))
}

fn sample(group: u64, met: &Met, at: Duration) -> GroupSample {
    let Met { held, figures, limit, .. } = met;
    let pages = |pages: u64| pages.saturating_mul(page_size());
    GroupSample {
        group,
        at,
        limit: *limit,
        file: figures.file.saturating_sub(figures.shmem.unwrap_or(0)),
        unwritten: figures.dirty.unwrap_or(0).saturating_add(figures.writeback.unwrap_or(0)),
        refaulted: figures.file_refaults.map(pages),
        stalled: held.memory_pressure().ok().flatten().map(|pressure| pressure.some.total),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Groups as Rule, Options};
    use crate::guard::Guard;
    use pagekeeper_kernel::process::ProcRoot;

    fn options(groups: &[&str]) -> Options {
        let groups = groups.iter().map(|glob| glob.parse::<crate::config::GroupGlob>().unwrap().0).collect();
        Options {
            find: false,
            cgroup: Rule { groups, percent: 1, reclaim: true, ..Rule::default() },
            ..Options::default()
        }
    }

    fn settings(groups: &[&str]) -> Settings {
        Settings::new(options(groups)).unwrap()
    }

    /// The group of this process, as a rule would name it.
    fn own() -> Option<String> {
        let roots = SysRoots::default();
        let place = MemoryPlace::of(&roots, std::process::id()).unwrap()?;
        let figures = MemoryCgroup::charged_in(&place).unwrap()?;
        Some(place.charged(&figures).to_str().unwrap().to_owned())
    }

    #[test]
    fn a_group_is_met_by_its_whole_path_alone() {
        let Some(own) = own() else {
            pagekeeper_testing::skip(
                "a_group_is_met_by_its_whole_path_alone: this process is in no memory cgroup that can be seen",
            );
            return;
        };
        let roots = SysRoots::default();
        let mounts = roots.proc.own_mounts().unwrap();
        let is_met = |glob: &str| {
            let met = group_of(&roots, std::process::id(), &mounts, &settings(&[glob])).unwrap();
            met.inspect(|met| assert_eq!(met.path, PathBuf::from(&own))).is_some()
        };
        assert!(is_met(&own));
        assert!(is_met("/**") || own == "/");
        for other in [format!("{own}x"), format!("{own}/below"), "/no-such-group".to_owned()] {
            assert!(!is_met(&other), "{other}");
        }
    }

    #[test]
    fn what_would_be_done_to_a_group_with_an_odd_name_is_said() {
        let mut guard = Guard::new(options(&[]), ProcRoot::default()).unwrap();
        let report = &mut guard.report;
        report.events.clear();
        let mut known = Known { path: PathBuf::from("/pod\n\u{1b}[2J/x"), ..Known::default() };
        let seen = GroupSample {
            group: 1,
            at: Duration::from_secs(1),
            limit: Some(1 << 30),
            file: 1 << 29,
            unwritten: 0,
            refaulted: Some(0),
            stalled: None,
        };
        let step = GroupStep { tight: true, reclaim: Err(GroupReason::Refaults) };
        known.tell(step, &seen, report);
        known.tell(step, &seen, report);
        assert_eq!(report.events.len(), 2, "each once: {:?}", report.events);
        let json = serde_json::to_string(&report.events[0]).unwrap();
        assert!(!json.contains('\n') && !json.contains('\u{1b}'), "{json}");
        known.tell(GroupStep { tight: false, reclaim: Err(GroupReason::Within) }, &seen, report);
        assert!(matches!(report.events[2], Event::Cgroup { news: GroupNews::Within, .. }));
    }

    #[test]
    fn a_group_that_goes_away_is_forgotten_and_its_call_too() {
        let mut guard = Guard::new(options(&["/**"]), ProcRoot::default()).unwrap();
        let now = Instant::now();
        let groups = &mut guard.groups;
        groups.known.insert(5, Known { path: "/gone".into(), tight: true, ..Known::default() });
        let (give, take) = std::sync::mpsc::channel::<Outcome>();
        groups.away.push((5, take));
        drop(give);
        let settings = settings(&["/**"]);
        for pass in 0..5 {
            groups.look(
                &mut guard.watched,
                &settings,
                &mut guard.report,
                now + Duration::from_secs(60 * pass),
            );
        }
        assert!(groups.known.is_empty() && groups.away.is_empty());
        assert!(groups.reclaimed.is_empty());
    }

    #[test]
    fn each_of_many_databases_has_its_turn() {
        let owners: BTreeSet<u32> = (1..=200).chain([u32::MAX]).collect();
        let (mut after, mut seen) = (0, BTreeSet::new());
        for _ in 0..4 {
            let turn;
            (turn, after) = turn_of(&owners, after);
            assert!(turn.len() <= AT_ONCE);
            seen.extend(turn);
        }
        assert_eq!(seen, owners);
        let few: BTreeSet<u32> = [7, 9].into();
        assert_eq!(turn_of(&few, 8), (vec![9, 7], 0));
        assert_eq!(turn_of(&BTreeSet::new(), u32::MAX), (Vec::new(), 0));
    }

    #[test]
    fn a_refusal_is_said_once_and_nothing_counted() {
        let mut guard = Guard::new(options(&["/**"]), ProcRoot::default()).unwrap();
        guard.report.events.clear();
        let path = PathBuf::from("/db");
        for _ in 0..3 {
            let refused =
                Ok(Reclaim::Refused("control groups of version 1 have no memory.reclaim".to_owned()));
            guard.groups.take(1, &path, (refused, 0), None, &mut guard.report);
        }
        assert_eq!(guard.report.events.len(), 1, "{:?}", guard.report.events);
        assert!(guard.groups.reclaimed.is_empty());
    }
}
