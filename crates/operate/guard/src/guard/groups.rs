//! Memory cgroups of databases: finds those that a rule names, compares their page cache with their
//! limit, and acts on it.
//!
//! If a group's page cache takes more of its limit than it may, the logs of its databases follow
//! tighter rules. If the configuration asks for that, the kernel is asked to reclaim the group's
//! file pages, in the steps that [`pagekeeper_policy::group`] decides on.
//!
//! Invariants:
//! 1. Without a rule nothing is read. Pages are reclaimed only from a group whose whole path a glob
//!    of the rule matches, that a watched database's memory is charged to, and that was opened in
//!    the same pass without following links.
//! 2. Nothing is reclaimed in a dry run, outside the canary, or by
//!    [`Guard::decide`](super::Guard::decide); the act is reported instead. Nothing is reclaimed
//!    from a group that has in it or below it a database that is never to be touched.
//! 3. A pass waits at most [`PASS_WAIT_MAX`] for all calls. A call that does not return keeps
//!    nothing else waiting, and its group is left alone until it does. With [`CALLS_IN_FLIGHT_MAX`]
//!    such calls no further one is made.
//!
//! A group that is gone is forgotten. Failures to read or act are reported once for each group.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_kernel::hang::JobWorker;
use pagekeeper_kernel::pressure::{
    HeldGroup, MemoryCgroup, MemoryEvents, MemoryPlace, ReclaimResult, SysRoots,
};
use pagekeeper_kernel::process::Mount;
use pagekeeper_kernel::{Error, page_size};
use pagekeeper_policy::group::{GroupReason, GroupRule, GroupSample, GroupState, GroupStep};
use pagekeeper_policy::group_members::{CgroupPlace, GroupAccess, GroupMembers, OwnerProcess, in_turn};
use pagekeeper_policy::quota::are_too_many;

use super::group_sight::GroupSight;
use super::report::Report;
use super::watched::{Database, WatchList};
use crate::config::Settings;
use crate::event::{Event, GroupNews};

/// The longest time that a pass waits for one call, and for all.
const CALL_WAIT_MAX: Duration = Duration::from_millis(250);
const PASS_WAIT_MAX: Duration = Duration::from_secs(1);
/// Limits on calls that have not returned, per party and in all; beyond them no further call is
/// made.
const CALLS_IN_FLIGHT_MAX: (usize, usize) = (4, 16);
/// Number of passes without a sighting after which a group is forgotten, if a single pass covers
/// all groups.
const FORGET_AFTER_PASSES: u64 = 3;
/// Groups deeper in the hierarchy are left alone, since the limits of all groups above are read.
const GROUP_DEPTH_MAX: usize = 64;
/// Maximum number of groups that are counted by name; all others are counted together.
const CGROUPS_COUNTED_MAX: usize = 1000;

/// The state of one group.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "each says what was reported of it")]
struct CgroupRecord {
    path: PathBuf,
    state: GroupState,
    tight: bool,
    /// Whether it was reported why no reclaim was asked for last.
    braked: bool,
    /// Whether it was reported that the kernel found no more to reclaim.
    exhausted: bool,
    /// Whether it was reported that pages would be reclaimed.
    would: bool,
    /// Counts of its limits' effects at the last look.
    events: Option<MemoryEvents>,
    pass: u64,
}

/// A group that was seen in this pass.
struct SeenGroup {
    held: HeldGroup,
    path: PathBuf,
    figures: MemoryCgroup,
    limit: Option<u64>,
}

/// The result of a call, and by how much the group's page cache shrank.
type ReclaimOutcome = (Result<ReclaimResult, Error>, u64);

/// A call, and the party that it is made for.
struct ReclaimCall {
    id: u64,
    party: Party,
    path: PathBuf,
    sample: GroupSample,
}

/// The groups, and the calls in flight.
pub(super) struct CgroupWatch {
    worker: JobWorker,
    known: BTreeMap<u64, CgroupRecord>,
    members: GroupMembers<Party>,
    sight: GroupSight,
    away: Vec<(ReclaimCall, Receiver<ReclaimOutcome>)>,
    began: Instant,
    due: Instant,
    pass: u64,
    /// The time that this pass may still wait.
    left: Duration,
    reclaimed: BTreeMap<PathBuf, u64>,
}

impl CgroupWatch {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            worker: JobWorker::default(),
            known: BTreeMap::new(),
            members: GroupMembers::default(),
            sight: GroupSight::default(),
            away: Vec::new(),
            began: now,
            due: now,
            pass: 0,
            left: PASS_WAIT_MAX,
            reclaimed: BTreeMap::new(),
        }
    }

    /// Forgets everything, for another configuration.
    pub(super) fn forget(&mut self, watched: &mut WatchList) {
        self.known.clear();
        self.members.forget();
        self.sight = GroupSight::default();
        watched.directories.iter_mut().for_each(|directory| directory.tight = false);
    }

    /// Returns the bytes reclaimed so far, by group.
    pub(super) fn reclaimed(&self) -> &BTreeMap<PathBuf, u64> {
        &self.reclaimed
    }

    /// Looks at all groups once, if it is time for that. Acts on them if `acts`, and reports
    /// otherwise.
    pub(super) fn look(
        &mut self,
        watched: &mut WatchList,
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
        self.left = PASS_WAIT_MAX;
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
            match self.members.access_in(&met.path) {
                Some(GroupAccess::Acts) if acts => {
                    let call = ReclaimCall { id, party, path: met.path.clone(), sample };
                    self.reclaim(call, met, bytes, report);
                    continue;
                }
                Some(GroupAccess::Acts | GroupAccess::Reported) => known.tell_would(bytes, &sample, report),
                Some(GroupAccess::Never) => {
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

    /// Finds the groups that the rule names, of those watched databases whose turn it is. Returns
    /// also after how many passes a group that was not seen is forgotten.
    fn meet(
        &mut self,
        watched: &WatchList,
        settings: &Settings,
        report: &mut Report,
    ) -> (BTreeMap<u64, (Party, SeenGroup)>, u64) {
        let roots = SysRoots { proc: watched.proc.clone(), ..SysRoots::default() };
        let mut met: BTreeMap<u64, (Party, SeenGroup)> = BTreeMap::new();
        let mounts = match roots.proc.own_mounts() {
            Ok(mounts) => mounts,
            Err(error) => {
                report.problem(error.path().to_path_buf(), &error);
                return (met, FORGET_AFTER_PASSES);
            }
        };
        let owners = watched.owners(settings, &self.members);
        let sight = &mut self.sight;
        let passes = self.members.take_turns(&owners, |pid, party| {
            let mut place = CgroupPlace::default();
            match group_of(&roots, pid, &mounts, settings, (sight, report), &mut place.path) {
                Ok(Some(group)) => {
                    place.group = Some(group.held.id());
                    met.entry(group.held.id()).or_insert((party, group));
                }
                Ok(None) => {}
                // The process has ended, or its group was removed.
                Err(error) if error.is_gone() => {}
                Err(error) => report.problem(error.path().to_path_buf(), &error),
            }
            place
        });
        (met, u64::try_from(passes).unwrap_or(u64::MAX).saturating_add(FORGET_AFTER_PASSES))
    }

    /// Asks the kernel to reclaim, unless earlier calls hang or no time is left in this pass.
    fn reclaim(&mut self, call: ReclaimCall, met: SeenGroup, bytes: u64, report: &mut Report) {
        let parties = self.away.iter().map(|(call, _)| call.party);
        let hangs = are_too_many(parties, call.party, CALLS_IN_FLIGHT_MAX)
            || self.away.iter().any(|(other, _)| other.id == call.id);
        if hangs || self.left.is_zero() || !self.worker.is_ready() {
            self.not_done(call.id);
            return;
        }
        let SeenGroup { held, figures, .. } = met;
        let began = Instant::now();
        let outcome = self.worker.run(CALL_WAIT_MAX.min(self.left), move || {
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

    /// Records the result of a call.
    fn take(&mut self, call: &ReclaimCall, (outcome, released): ReclaimOutcome, report: &mut Report) {
        let (path, sample) = (&call.path, &call.sample);
        match outcome {
            Ok(outcome @ (ReclaimResult::All | ReclaimResult::Part)) => {
                if released > 0 {
                    // Groups come and go, as containers do.
                    let counted =
                        self.reclaimed.contains_key(path) || self.reclaimed.len() < CGROUPS_COUNTED_MAX;
                    let name = if counted { path.clone() } else { PathBuf::from("others") };
                    *self.reclaimed.entry(name).or_default() += released;
                    report.events.push(event(path, sample, GroupNews::Reclaimed { bytes: released }));
                }
                let Some(known) = self.known.get_mut(&call.id) else { return };
                if outcome == ReclaimResult::All {
                    known.exhausted = false;
                    return;
                }
                let reason = known.state.exhausted();
                if !std::mem::replace(&mut known.exhausted, true) {
                    report.events.push(event(path, sample, GroupNews::Stopped { reason }));
                }
            }
            Ok(ReclaimResult::Refused(why)) => {
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

    /// Records the results of calls that have returned.
    fn take_back(&mut self, report: &mut Report) {
        for (call, waiting) in std::mem::take(&mut self.away) {
            match waiting.try_recv() {
                Ok(outcome) => self.take(&call, outcome, report),
                Err(TryRecvError::Empty) => self.away.push((call, waiting)),
                Err(TryRecvError::Disconnected) => {}
            }
        }
    }

    /// Tightens the rules for logs of databases in groups that are over their share.
    fn tighten(&self, watched: &mut WatchList) {
        let tight = self.known.iter().filter(|(_, known)| known.tight).map(|(id, _)| *id).collect();
        let tight = self.members.in_groups(&tight);
        for directory in &mut watched.directories {
            directory.tight = directory.owner.is_some_and(|owner| tight.contains(&owner));
        }
    }
}

impl CgroupRecord {
    /// Reports how often its limits took effect since the last look.
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

    /// Reports the act that would be done, once.
    fn tell_would(&mut self, bytes: u64, sample: &GroupSample, report: &mut Report) {
        if !std::mem::replace(&mut self.would, true) {
            report.events.push(event(&self.path, sample, GroupNews::WouldReclaim { bytes }));
        }
    }

    /// Reports changes.
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

impl WatchList {
    /// Returns the processes of databases that are watched, or are never to be watched.
    fn owners(
        &self,
        settings: &Settings,
        members: &GroupMembers<Party>,
    ) -> BTreeMap<u32, OwnerProcess<Party>> {
        let mut accesses: BTreeMap<u32, GroupAccess> = BTreeMap::new();
        for directory in &self.directories {
            let Some(owner) = directory.owner else { continue };
            let access = if directory.acts { GroupAccess::Acts } else { GroupAccess::Reported };
            accesses.entry(owner).and_modify(|least| *least = access.max(*least)).or_insert(access);
        }
        let targets = &settings.options.targets;
        let owner = |database: &Database| {
            let (pid, started) = (database.pid, database.started);
            let access = if database.is_never(targets) {
                GroupAccess::Never
            } else if let Some(access) = accesses.get(&pid) {
                *access
            } else {
                // The database's directories are away with a hung job.
                let hangs = self.jobs.hung.iter().any(|hung| hung.is_of(pid));
                hangs.then(|| members.access(pid, started).unwrap_or(GroupAccess::Reported))?
            };
            Some((pid, OwnerProcess { started, party: database.ownership().party(), access }))
        };
        self.databases.iter().filter_map(owner).collect()
    }
}

fn event(path: &Path, sample: &GroupSample, news: GroupNews) -> Event {
    Event::Cgroup { path: path.to_path_buf(), file_bytes: sample.file, limit_bytes: sample.limit, news }
}

/// Returns the group that a process's memory is charged to, if the rule names it. Stores the
/// process's own group in `path`.
fn group_of(
    roots: &SysRoots,
    pid: u32,
    mounts: &[Mount],
    settings: &Settings,
    (sight, report): (&mut GroupSight, &mut Report),
    path: &mut Option<PathBuf>,
) -> Result<Option<SeenGroup>, Error> {
    let globs = &settings.options.cgroup.groups;
    let Some(place) = MemoryPlace::among(roots, pid, mounts)? else { return Ok(None) };
    *path = Some(place.group.clone());
    // Groups can be nested very deeply by their users: figures are read only for groups that the
    // rule may name.
    let is_named = |group: &Path| globs.iter().any(|glob| glob.is_match(group));
    if !place.group.ancestors().take(GROUP_DEPTH_MAX).any(is_named) {
        sight.saw(&place.group, false);
        return Ok(None);
    }
    if place.group.components().count() > GROUP_DEPTH_MAX {
        let problem =
            format!("its memory cgroup is more than {GROUP_DEPTH_MAX} levels deep: it is left alone");
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
    Ok(Some(SeenGroup { held, path: charged, figures, limit }))
}

fn sample(group: u64, met: &SeenGroup, at: Duration) -> GroupSample {
    let SeenGroup { held, figures, limit, .. } = met;
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
