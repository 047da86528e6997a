//! The memory cgroups of databases: which of them a rule names, what their page cache takes of their limit, and what is done about it.
//!
//! Where a group's page cache takes more of its limit than it may, the logs of its databases are kept tighter, and if that is asked for
//! the kernel is asked to reclaim the group's file pages, in the steps that [`pagekeeper_policy::group`] decides on.
//!
//! Invariants:
//! 1. Without a rule nothing is read. What is reclaimed from is the very group that a glob of the rule matches by its whole path, that a
//!    watched database's memory is charged to, and that was opened in the same pass without following links.
//! 2. In a dry run, for what is not the canary's, and by [`Guard::decide`](super::Guard::decide) nothing is reclaimed, and it is said
//!    what would be. Nothing is from a group with a database in it or below it that is never to be touched.
//! 3. A pass waits for calls no longer than [`PASS`] in all. A call that does not come back keeps nothing else waiting, and its group is
//!    left alone until it does; with [`MOST_AWAY`] of them none is made.
//!
//! A group that is gone is forgotten. What can't be read or done is reported once for each group.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_kernel::hang::Crew;
use pagekeeper_kernel::pressure::{HeldGroup, MemoryCgroup, MemoryEvents, MemoryPlace, Reclaim, SysRoots};
use pagekeeper_kernel::process::Mount;
use pagekeeper_kernel::{Error, page_size};
use pagekeeper_policy::group::{GroupReason, GroupRule, GroupSample, GroupState, GroupStep};

use super::group_sight::GroupSight;
use super::members::{Members, Owner, Place, Stand};
use super::report::Report;
use super::silence::are_too_many;
use super::watched::{Database, Watched};
use crate::config::Settings;
use crate::event::{Event, GroupNews};

/// How long a pass waits for one call, and for all.
const CALL: Duration = Duration::from_millis(250);
const PASS: Duration = Duration::from_secs(1);
/// Calls for one party that have not come back, from which on no other is made for it, and of all.
const MOST_AWAY: (usize, usize) = (4, 16);
/// A group that is not met in so many passes is forgotten, where one meets all.
const PASSES: u64 = 3;
/// Groups deeper in the hierarchy are left alone: the limits of all above are read.
const LEVELS: usize = 64;
/// Groups that are counted by name; those beyond are counted together.
const MOST_COUNTED: usize = 1000;

/// What is remembered of one group.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each says what was reported of it")]
struct Known {
    path: PathBuf,
    state: GroupState,
    tight: bool,
    /// Why nothing was asked for last, as far as that was reported.
    braked: bool,
    /// Whether it was reported that the kernel found no more.
    exhausted: bool,
    /// Whether it was reported that something would be reclaimed.
    would: bool,
    /// How often its limits had taken effect when it was met last.
    events: Option<MemoryEvents>,
    pass: u64,
}

/// A group that was met in a pass.
struct Met {
    held: HeldGroup,
    path: PathBuf,
    figures: MemoryCgroup,
    limit: Option<u64>,
}

/// What came of a call, and by how much the group's page cache shrank.
type Outcome = (Result<Reclaim, Error>, u64);

/// Whom a call is made for.
struct Call {
    id: u64,
    party: Party,
    path: PathBuf,
    sample: GroupSample,
}

/// The groups, and the calls under way.
pub(super) struct Groups {
    crew: Crew,
    known: BTreeMap<u64, Known>,
    members: Members,
    sight: GroupSight,
    away: Vec<(Call, Receiver<Outcome>)>,
    began: Instant,
    due: Instant,
    pass: u64,
    /// For how long this pass may wait yet.
    left: Duration,
    reclaimed: BTreeMap<PathBuf, u64>,
}

impl Groups {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            crew: Crew::default(),
            known: BTreeMap::new(),
            members: Members::default(),
            sight: GroupSight::default(),
            away: Vec::new(),
            began: now,
            due: now,
            pass: 0,
            left: PASS,
            reclaimed: BTreeMap::new(),
        }
    }

    /// Forgets all, for another configuration.
    pub(super) fn forget(&mut self, watched: &mut Watched) {
        self.known.clear();
        self.members.forget();
        self.sight = GroupSight::default();
        watched.directories.iter_mut().for_each(|directory| directory.tight = false);
    }

    /// Reclaimed so far, by group.
    pub(super) fn reclaimed(&self) -> &BTreeMap<PathBuf, u64> {
        &self.reclaimed
    }

    /// Looks at all groups once, if it is time for that, and `acts`, or says what would be done.
    pub(super) fn look(
        &mut self,
        watched: &mut Watched,
        settings: &Settings,
        report: &mut Report,
        acts: bool,
        now: Instant,
    ) {
        let rule = &settings.options.cgroup;
        if rule.groups.is_empty() || now < self.due {
            return;
        }
        self.due = now + rule.tick;
        self.pass += 1;
        self.left = PASS;
        self.take_back(report);
        let wanted = GroupRule { percent: rule.percent, reclaim: rule.reclaim };
        let acts = acts && !settings.options.dry_run;
        let (met, passes) = self.meet(watched, settings, report);
        for (id, (party, met)) in in_turn(met, self.pass) {
            let sample = sample(id, &met, now.saturating_duration_since(self.began));
            let known = self.known.entry(id).or_default();
            (known.path, known.pass) = (met.path.clone(), self.pass);
            let step = known.state.step(wanted, sample);
            known.tell_limits(met.figures.events, &sample, report);
            known.tell(step, &sample, report);
            let Ok(bytes) = step.reclaim else { continue };
            match self.members.stand_in(&met.path) {
                Some(Stand::Acts) if acts => {
                    let call = Call { id, party, path: met.path.clone(), sample };
                    self.reclaim(call, met, bytes, report);
                    continue;
                }
                Some(Stand::Acts | Stand::Reported) => known.tell_would(bytes, &sample, report),
                Some(Stand::Never) => {
                    let problem =
                        "nothing is reclaimed: a database in it or below it is listed as never to be touched";
                    report.problem(met.path, &problem);
                }
                None => {}
            }
            known.state.not_done();
        }
        self.known.retain(|_, known| known.pass.saturating_add(passes) > self.pass);
        self.tighten(watched);
        if self.members.is_complete() {
            self.sight.report(&rule.groups, report, now);
        }
    }

    /// The groups of watched databases that the rule names, of those whose turn it is; and after how many passes a group that was
    /// not met is forgotten.
    fn meet(
        &mut self,
        watched: &Watched,
        settings: &Settings,
        report: &mut Report,
    ) -> (BTreeMap<u64, (Party, Met)>, u64) {
        let roots = SysRoots { proc: watched.proc.clone(), ..SysRoots::default() };
        let mut met: BTreeMap<u64, (Party, Met)> = BTreeMap::new();
        let mounts = match roots.proc.own_mounts() {
            Ok(mounts) => mounts,
            Err(error) => {
                report.problem(error.path().to_path_buf(), &error);
                return (met, PASSES);
            }
        };
        let owners = watched.owners(settings, &self.members);
        let sight = &mut self.sight;
        let passes = self.members.take_turns(&owners, |pid, party| {
            let mut place = Place::default();
            match group_of(&roots, pid, &mounts, settings, (sight, report), &mut place.path) {
                Ok(Some(group)) => {
                    place.group = Some(group.held.id());
                    met.entry(group.held.id()).or_insert((party, group));
                }
                Ok(None) => {}
                // It has ended, or its group was removed.
                Err(error) if error.is_gone() => {}
                Err(error) => report.problem(error.path().to_path_buf(), &error),
            }
            place
        });
        (met, u64::try_from(passes).unwrap_or(u64::MAX).saturating_add(PASSES))
    }

    /// Asks the kernel, unless that hangs, or there is no time left in this pass.
    fn reclaim(&mut self, call: Call, met: Met, bytes: u64, report: &mut Report) {
        let parties = self.away.iter().map(|(call, _)| call.party);
        let hangs = are_too_many(parties, call.party, MOST_AWAY)
            || self.away.iter().any(|(other, _)| other.id == call.id);
        if hangs || self.left.is_zero() || !self.crew.is_ready() {
            self.not_done(call.id);
            return;
        }
        let Met { held, figures, .. } = met;
        let began = Instant::now();
        let outcome = self.crew.run(CALL.min(self.left), move || {
            let outcome = held.reclaim_file(&SysRoots::default(), bytes);
            let after = held.figures().map_or(figures.file, |after| after.file);
            (outcome, figures.file.saturating_sub(after))
        });
        self.left = self.left.saturating_sub(began.elapsed());
        match outcome {
            Ok(outcome) => self.take(&call, outcome, report),
            Err(waiting) => self.away.push((call, waiting)),
        }
    }

    fn not_done(&mut self, id: u64) {
        if let Some(known) = self.known.get_mut(&id) {
            known.state.not_done();
        }
    }

    /// Takes in what came of a call.
    fn take(&mut self, call: &Call, (outcome, released): Outcome, report: &mut Report) {
        let (path, sample) = (&call.path, &call.sample);
        match outcome {
            Ok(outcome @ (Reclaim::All | Reclaim::Part)) => {
                if released > 0 {
                    // Groups come and go, as containers do.
                    let counted = self.reclaimed.contains_key(path) || self.reclaimed.len() < MOST_COUNTED;
                    let name = if counted { path.clone() } else { PathBuf::from("others") };
                    *self.reclaimed.entry(name).or_default() += released;
                    report.events.push(event(path, sample, GroupNews::Reclaimed { bytes: released }));
                }
                let Some(known) = self.known.get_mut(&call.id) else { return };
                if outcome == Reclaim::All {
                    known.exhausted = false;
                    return;
                }
                let reason = known.state.exhausted();
                if !std::mem::replace(&mut known.exhausted, true) {
                    report.events.push(event(path, sample, GroupNews::Stopped { reason }));
                }
            }
            Ok(Reclaim::Refused(why)) => {
                self.not_done(call.id);
                report.problem(path.clone(), &why);
            }
            Err(error) if error.is_gone() => {}
            Err(error) => {
                self.not_done(call.id);
                report.problem(path.clone(), &error);
            }
        }
    }

    /// Takes back calls that have come back.
    fn take_back(&mut self, report: &mut Report) {
        for (call, waiting) in std::mem::take(&mut self.away) {
            match waiting.try_recv() {
                Ok(outcome) => self.take(&call, outcome, report),
                Err(TryRecvError::Empty) => self.away.push((call, waiting)),
                Err(TryRecvError::Disconnected) => {}
            }
        }
    }

    /// Has the logs kept tighter of the databases in groups that are over their share.
    fn tighten(&self, watched: &mut Watched) {
        let tight = self.known.iter().filter(|(_, known)| known.tight).map(|(id, _)| *id).collect();
        let tight = self.members.in_groups(&tight);
        for directory in &mut watched.directories {
            directory.tight = directory.owner.is_some_and(|owner| tight.contains(&owner));
        }
    }
}

impl Known {
    /// Reports how often its limits took effect since it was met before.
    fn tell_limits(&mut self, events: MemoryEvents, sample: &GroupSample, report: &mut Report) {
        let Some(before) = self.events.replace(events) else { return };
        let more = events.since(&before);
        let [high, max, oom, oom_kill] =
            [more.high, more.max, more.oom, more.oom_kill].map(Option::unwrap_or_default);
        if [high, max, oom, oom_kill].iter().any(|times| *times > 0) {
            let news = GroupNews::LimitsHit { high, max, oom, oom_kill };
            report.events.push(event(&self.path, sample, news));
        }
    }

    /// Reports what would be done, once.
    fn tell_would(&mut self, bytes: u64, sample: &GroupSample, report: &mut Report) {
        if !std::mem::replace(&mut self.would, true) {
            report.events.push(event(&self.path, sample, GroupNews::WouldReclaim { bytes }));
        }
    }

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

impl Watched {
    /// The processes of databases that are watched, or are never to be.
    fn owners(&self, settings: &Settings, members: &Members) -> BTreeMap<u32, Owner> {
        let mut stands: BTreeMap<u32, Stand> = BTreeMap::new();
        for directory in &self.directories {
            let Some(owner) = directory.owner else { continue };
            let stand = if directory.acts { Stand::Acts } else { Stand::Reported };
            stands.entry(owner).and_modify(|least| *least = stand.max(*least)).or_insert(stand);
        }
        let targets = &settings.options.targets;
        let owner = |database: &Database| {
            let (pid, started) = (database.pid, database.started);
            let stand = if database.is_never(targets) {
                Stand::Never
            } else if let Some(stand) = stands.get(&pid) {
                *stand
            } else {
                // Its directories are away.
                let hangs = self.hung.iter().any(|hung| hung.is_of(pid));
                hangs.then(|| members.stand(pid, started).unwrap_or(Stand::Reported))?
            };
            Some((pid, Owner { started, party: database.right().party(), stand }))
        };
        self.databases.iter().filter_map(owner).collect()
    }
}

fn event(path: &Path, sample: &GroupSample, news: GroupNews) -> Event {
    Event::Cgroup { path: path.to_path_buf(), file_bytes: sample.file, limit_bytes: sample.limit, news }
}

/// The groups in the order of a pass: one of each party's first, and of each party's another one first in each pass.
fn in_turn<T>(met: BTreeMap<u64, (Party, T)>, pass: u64) -> Vec<(u64, (Party, T))> {
    let mut counts: BTreeMap<Party, u64> = BTreeMap::new();
    for (party, _) in met.values() {
        *counts.entry(*party).or_default() += 1;
    }
    let mut ranks: BTreeMap<Party, u64> = BTreeMap::new();
    let ranked = met.into_iter().map(|(id, (party, group))| {
        let (count, rank) = (counts[&party], ranks.entry(party).or_default());
        let turn = (*rank + count - pass % count) % count;
        *rank += 1;
        (turn, (id, (party, group)))
    });
    let mut all: Vec<_> = ranked.collect();
    all.sort_by_key(|(turn, _)| *turn);
    all.into_iter().map(|(_, group)| group).collect()
}

/// The group that a process's memory is charged to, if the rule names it; and where the process is.
fn group_of(
    roots: &SysRoots,
    pid: u32,
    mounts: &[Mount],
    settings: &Settings,
    (sight, report): (&mut GroupSight, &mut Report),
    path: &mut Option<PathBuf>,
) -> Result<Option<Met>, Error> {
    let globs = &settings.options.cgroup.groups;
    let Some(place) = MemoryPlace::among(roots, pid, mounts)? else { return Ok(None) };
    *path = Some(place.group.clone());
    // Who makes groups may make very long chains of them: figures are read only of what the rule may name.
    let is_named = |group: &Path| globs.iter().any(|glob| glob.is_match(group));
    if !place.group.ancestors().take(LEVELS).any(is_named) {
        sight.saw(&place.group, false);
        return Ok(None);
    }
    if place.group.components().count() > LEVELS {
        let problem = format!("its memory cgroup is more than {LEVELS} levels deep: it is left alone");
        report.problem(roots.proc.root(pid), &problem);
        return Ok(None);
    }
    let Some(figures) = MemoryCgroup::charged_in(&place)? else {
        sight.saw(&place.group, true);
        return Ok(None);
    };
    let charged = place.charged(&figures);
    if !sight.matches(globs, &charged) {
        sight.saw(&charged, false);
        return Ok(None);
    }
    let held = HeldGroup::open(place.version, &figures.directory)?;
    let limit = [figures.effective_limit, held.high()?].into_iter().flatten().min();
    Ok(Some(Met { held, path: charged, figures, limit }))
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
mod tests;
