//! Everything that is watched: databases found among the processes, the directories of their logs,
//! and directories that were named.
//!
//! Processes are listed every second. New ones are inspected at once and old ones in turns, within
//! a budget of processor time for each tick.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_catalog::ownership::{FileOwnership, ProcessOwnership};
use pagekeeper_catalog::postgresql::{process_title, wal_reader};
use pagekeeper_catalog::settings::ServerSettings;
use pagekeeper_catalog::{
    DatabaseDiscovery, FoundProcess, InspectionBudget, Party, Profile, ProfileMatch, Targets, logs_below,
    recognise,
};
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::directory_watch::Notifications;
use pagekeeper_kernel::process::{FdRounds, ProcRoot, measured, thread_cpu_time};
use pagekeeper_policy::cpu_budget::ListingTime;
use pagekeeper_policy::reported_once::WarningDedup;
use pagekeeper_policy::unnamed::AppendedFiles;

use super::claimant::{Claim, Claimant};
use super::jobs::Jobs;
use super::removed::RemovedFiles;
use super::report::{Report, TickContext};
use crate::config::Settings;
use crate::descriptors::{Descriptors, Extent, ForeignDescriptors, ListedProcess};
use crate::directory::{DatabaseKey, Directories, Directory, DirectoryId};
use crate::event::{Event, Refusal};
use crate::known_names::KnownNames;

/// Processor time per tick for inspecting the processes that were there at the start, and how long
/// that may take.
const FIRST_INSPECTION: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// Later the time is a fraction 1/`NEW_PROCESSES_DIVISOR` of the time since the last tick for new
/// processes, and 1/`OLD_PROCESSES_DIVISOR` for old ones. At most `SINCE_MAX` of that time counts.
const NEW_PROCESSES_DIVISOR: u32 = 100;
const OLD_PROCESSES_DIVISOR: u32 = 300;
const SINCE_MAX: Duration = Duration::from_secs(2);
/// A scan of the named processes that takes a millisecond of processor time is repeated after this
/// many milliseconds, but after about a second at the earliest and [`SCAN_INTERVAL_MAX`] at the
/// latest.
const SCAN_COST_FACTOR: u32 = 1000;
const SCAN_INTERVAL_MAX: Duration = Duration::from_secs(15);
/// Maximum number of processes of one database that count as writers of its text logs. PostgreSQL
/// has one.
const LOGGERS_MAX: usize = 2;
/// Directories are listed this often even without notifications: inotify does not see all network
/// file systems.
pub(super) const RELIST_INTERVAL: Duration = Duration::from_secs(60);

/// A watched database.
pub(super) struct Database {
    pub(super) pid: u32,
    pub(super) started: u64,
    pub(super) profile: Arc<Profile>,
    /// Whether the profile is known by more than the process's name.
    pub(super) certain: bool,
    pub(super) descriptors: Descriptors,
    /// Its processes whose titles show followers.
    pub(super) titled: Vec<u32>,
    /// Its processes whose titles show that they write its text logs.
    pub(super) loggers: Vec<u32>,
    /// The amounts that it and each of its loggers has appended to files that no pattern names.
    pub(super) appended: BTreeMap<u32, AppendedFiles<PathBuf, Inode>>,
    pub(super) claimant: Claimant,
    /// The outcomes of its claims to directories, as it sees them.
    pub(super) claims: BTreeMap<PathBuf, Claim>,
    /// Whether it was reported as found.
    pub(super) reported: bool,
    /// Whether all its descriptors could be listed last.
    pub(super) sees_descriptors: bool,
    /// The warnings given for it that do not concern a directory.
    pub(super) warned: WarningDedup,
    /// Its settings.
    pub(super) server: Arc<ServerSettings>,
}

impl Database {
    /// Returns which of the files in its directories count as its own.
    pub(super) fn ownership(&self) -> Arc<ProcessOwnership> {
        self.claimant.ownership()
    }

    /// Returns whether it is never to be touched, as a whole or in a directory that it claims, or
    /// that can't be ruled out.
    pub(super) fn is_never(&self, targets: &Targets) -> bool {
        self.claimant.is_never(targets, self.claims.keys())
    }

    /// Returns whether it claims nothing: it has no log open, and its profile names no directory.
    pub(super) fn shows_no_log(&self) -> bool {
        self.claims.is_empty() && !self.claimant.waits()
    }

    /// Returns whether no directory is watched for it.
    pub(super) fn is_idle(&self) -> bool {
        self.claims.values().all(|claim| matches!(claim, Claim::Refused(_)))
    }

    /// Returns whether a check of the likely places of its new logs may replace a listing of its
    /// descriptors. That needs that all descriptors were seen, and that all directories that it
    /// claims by them are its own.
    pub(super) fn may_check(&self) -> bool {
        self.sees_descriptors && self.claimant.is_settled() && self.claims.values().all(Claim::is_held)
    }

    /// Returns whether it is watched, or may yet be: not all of its claims were refused.
    pub(super) fn is_watched(&self) -> bool {
        self.claims.is_empty() || self.claims.values().any(|claim| !matches!(claim, Claim::Refused(_)))
    }
}

/// Everything that is watched.
pub(super) struct WatchList {
    pub(super) proc: ProcRoot,
    pub(super) databases: Vec<Database>,
    pub(super) directories: Directories,
    /// Descriptors of watched files in processes that are not watched databases: `mysqlbinlog`,
    /// `cp`, a user's own follower.
    pub(super) others: ForeignDescriptors,
    /// Databases' processes whose descriptors are being listed.
    pub(super) listings: FdRounds<ListedProcess, Party>,
    pub(super) listing_time: ListingTime,
    /// The names of the watched files.
    pub(super) names: KnownNames,
    pub(super) notifications: Notifications<DirectoryId>,
    pub(super) list_due: Instant,
    pub(super) jobs: Jobs,
    /// Log files without names that databases have open.
    pub(super) removed: RemovedFiles,
    /// The database with which the examination of claims begins.
    pub(super) claims_from: usize,
    pub(super) discovery: DatabaseDiscovery,
    /// The time when the inspection of all processes began, until it is complete.
    unsettled: Option<Instant>,
    /// The time when processes were last inspected.
    inspected: Instant,
    scan_due: Instant,
}

impl WatchList {
    /// Watches nothing yet.
    pub(super) fn new(proc: ProcRoot, now: Instant) -> Self {
        Self {
            proc,
            databases: Vec::new(),
            directories: Vec::new(),
            others: ForeignDescriptors::new(now),
            listings: FdRounds::default(),
            listing_time: ListingTime::new(now),
            names: KnownNames::default(),
            notifications: Notifications::default(),
            list_due: now + RELIST_INTERVAL,
            jobs: Jobs::new(now),
            removed: RemovedFiles::new(now),
            claims_from: 0,
            discovery: DatabaseDiscovery::default(),
            unsettled: Some(now),
            inspected: now,
            scan_due: now,
        }
    }

    /// Forgets everything, which is then found again with full budgets: a slow machine would
    /// otherwise watch nothing for minutes, until its debt is paid.
    pub(super) fn forget(&mut self, now: Instant) {
        self.jobs.drop_hung();
        let hung = std::mem::take(&mut self.jobs.hung);
        *self = Self::new(self.proc.clone(), now);
        self.jobs.hung = hung;
    }

    /// Drops databases that ended, and takes up new ones.
    pub(super) fn find_databases(&mut self, tick: &mut TickContext<'_>) {
        if let Err(error) = self.discovery.list(&self.proc, tick.now) {
            tick.report.problem(error.path().to_path_buf(), &error);
        }
        let (proc, table, mut lost) = (&self.proc, self.discovery.processes(), Vec::new());
        self.databases.retain(|database| {
            let is_same = |started| started == database.started;
            let alive = if database.is_idle() {
                // Any user can start very many of these: they cost no system call here.
                table.get(database.pid).is_some_and(|process| is_same(process.started))
            } else {
                proc.start_time(database.pid).is_ok_and(is_same)
            };
            if !alive && !database.is_idle() {
                lost.push(database.pid);
            }
            if !alive && database.reported {
                let (pid, profile) = (database.pid, database.profile.name.clone());
                tick.report.events.push(Event::Lost { pid, profile });
            }
            alive
        });
        if !lost.is_empty() {
            self.forget_directories_of(&lost);
            self.scan_due = tick.now;
        }
        if tick.settings.options.find {
            self.discover(tick);
        }
        if tick.now < self.scan_due {
            return;
        }
        let began = thread_cpu_time();
        if !tick.settings.options.find {
            self.recognise_again(tick.settings);
        }
        self.find_titles();
        let settings = tick.settings;
        for &pid in &settings.options.pids {
            if self.databases.iter().all(|database| database.pid != pid) {
                self.take_named_process(pid, tick);
            }
        }
        let cost = thread_cpu_time().saturating_sub(began);
        self.scan_due =
            tick.now + (cost * SCAN_COST_FACTOR).clamp(Duration::from_millis(900), SCAN_INTERVAL_MAX);
    }

    /// Inspects processes, as far as there is time.
    fn discover(&mut self, tick: &mut TickContext<'_>) {
        let now = tick.now;
        let of = |database: &Database| {
            let (profile, certain) = (Arc::clone(&database.profile), database.certain);
            (database.pid, ProfileMatch { profile, certain })
        };
        let known = self.databases.iter().map(of).collect();
        let since = now.saturating_duration_since(self.inspected).min(SINCE_MAX);
        let new = if self.unsettled.is_some() { FIRST_INSPECTION.0 } else { since / NEW_PROCESSES_DIVISOR };
        let budget = InspectionBudget { new, old: since / OLD_PROCESSES_DIVISOR };
        self.inspected = now;
        let found = self.discovery.advance(&self.proc, &known, &tick.settings.candidates(), budget, now);
        self.unsettled = self.unsettled.filter(|began| {
            !self.discovery.has_seen_all() && now.saturating_duration_since(*began) < FIRST_INSPECTION.1
        });
        match found {
            Ok(found) => {
                for FoundProcess { pid, party, recognised, .. } in found {
                    if known.contains_key(&pid) {
                        self.make_certain(pid, recognised);
                    } else if self.jobs.turns.has_time(party) {
                        // Otherwise it is found again at its next inspection.
                        let take_up = || self.take_up(tick.settings, pid, recognised, tick.now);
                        let (_, spent) = measured(take_up);
                        self.jobs.turns.charge(party, spent);
                    }
                }
            }
            Err(error) => tick.report.problem(error.path().to_path_buf(), &error),
        }
    }

    /// Returns whether all processes that are there were inspected, and all claims of databases
    /// examined.
    pub(super) fn has_seen_all(&self, settings: &Settings) -> bool {
        (!settings.options.find || self.discovery.has_seen_all())
            && self.listings.is_empty()
            && !self.others.is_listing()
            && self.databases.iter().all(|database| !database.claimant.waits())
    }

    /// Makes listings of descriptors come soon, for a caller that waits until everything was seen.
    pub(super) fn hurry(&mut self) {
        self.listing_time.hurry();
        self.others.hurry();
    }

    pub(super) fn forget_directories_of(&mut self, pids: &[u32]) {
        let is_theirs = |directory: &Directory| directory.owner.is_some_and(|owner| pids.contains(&owner));
        for directory in self.directories.extract_if(.., |directory| is_theirs(directory)) {
            self.notifications.unwatch(&directory.id);
        }
        for database in &mut self.databases {
            // A directory that was another database's may be its own now.
            database.claims.retain(|_, claim| claim.is_held() && !pids.contains(&database.pid));
            database.descriptors.schedule.ask(Extent::All);
        }
        self.others.schedule.ask(Extent::All);
    }

    /// Looks again at databases that were known by name alone: by now they may have opened the
    /// files that identify them.
    fn recognise_again(&mut self, settings: &Settings) {
        let uncertain: Vec<u32> =
            self.databases.iter().filter(|database| !database.certain).map(|database| database.pid).collect();
        for pid in uncertain {
            if let Some(again) = recognise(&self.proc, pid, &settings.profiles).filter(|again| again.certain)
            {
                self.make_certain(pid, again);
            }
        }
    }

    /// Records the certain profile of a database.
    fn make_certain(&mut self, pid: u32, recognised: ProfileMatch) {
        let Some(database) = self.databases.iter_mut().find(|database| database.pid == pid) else { return };
        database.certain = true;
        database.claimant.waiting = None;
        database.claims.retain(|_, claim| claim.is_held());
        database.descriptors.schedule.ask(Extent::All);
        if !database.profile.is_same_as(&recognised.profile) {
            database.server =
                ServerSettings::of(&self.proc, Some(pid), PathBuf::new(), &recognised.profile, true);
            database.profile = recognised.profile;
            self.forget_directories_of(&[pid]);
        }
    }

    /// Finds the processes whose titles show followers, or that they write text logs.
    fn find_titles(&mut self) {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (pid, process) in self.discovery.processes().programs() {
            children.entry(process.parent).or_default().push(pid);
        }
        for database in self.databases.iter_mut().filter(|database| database.profile.postgresql_titles) {
            let (mut titled, mut loggers) = (Vec::new(), Vec::new());
            for pid in children.remove(&database.pid).unwrap_or_default() {
                let title = process_title(&self.proc, pid);
                if wal_reader(&title, None).is_some() {
                    titled.push(pid);
                } else if title.trim_end().ends_with(" logger") && loggers.len() < LOGGERS_MAX {
                    loggers.push(pid);
                }
            }
            if loggers != database.loggers {
                database.descriptors.schedule.ask(Extent::All);
                database.claimant.forget_loggers();
                database.loggers = loggers;
            }
            database.titled = titled;
        }
    }

    fn take_named_process(&mut self, pid: u32, tick: &mut TickContext<'_>) {
        let by_name = tick.settings.named_profile().map(|profile| ProfileMatch { profile, certain: true });
        let fitting = by_name.or_else(|| recognise(&self.proc, pid, &tick.settings.profiles));
        let fits = fitting.is_some();
        let is_there = match fitting {
            Some(recognised) => self.take_up(tick.settings, pid, recognised, tick.now),
            None => self.proc.start_time(pid).is_ok(),
        };
        let problem = match (is_there, fits) {
            (true, true) => return,
            (true, false) => {
                format!(
                    "process {pid} fits no profile: name one with --profile (generic, if none is its own)"
                )
            }
            (false, _) => format!("there is no process {pid}"),
        };
        tick.report.problem(self.proc.root(pid), &problem);
    }

    /// Takes up a database, so that its files are sampled at the tick that began at `now`. Returns
    /// false if its process is gone, which does not count as a loss of a database.
    fn take_up(&mut self, settings: &Settings, pid: u32, recognised: ProfileMatch, now: Instant) -> bool {
        let Ok(started) = self.proc.start_time(pid) else {
            return false;
        };
        // Process ids wrap around, and a process with many descriptors takes longer: a worker may
        // have been seen first.
        let (table, name) = (self.discovery.processes(), &recognised.profile.name);
        let is_worker = |database: &&Database| {
            database.profile.name == *name
                && table.get(database.pid).is_some_and(|process| process.parent == pid)
        };
        let workers: Vec<u32> = self.databases.iter().filter(is_worker).map(|worker| worker.pid).collect();
        if !workers.is_empty() {
            self.databases.retain(|database| !workers.contains(&database.pid));
            self.forget_directories_of(&workers);
        }
        // With a profile that was requested there is nothing to find out.
        let certain = recognised.certain || settings.options.profile.is_some();
        self.databases.push(Database {
            pid,
            started,
            certain,
            server: ServerSettings::of(&self.proc, Some(pid), PathBuf::new(), &recognised.profile, certain),
            profile: recognised.profile,
            descriptors: Descriptors::new(now),
            titled: Vec::new(),
            loggers: Vec::new(),
            appended: BTreeMap::new(),
            claimant: Claimant::of(&self.proc, pid),
            claims: BTreeMap::new(),
            reported: false,
            sees_descriptors: false,
            warned: WarningDedup::default(),
        });
        self.others.schedule.ask(Extent::All);
        true
    }

    /// Takes up the directories that were named, and those below them that their profile names.
    /// Repeated, because they may be made or mounted later.
    pub(super) fn watch_named_directories(&mut self, settings: &Settings, report: &mut Report) {
        for named in &settings.options.directories {
            let known: Vec<(PathBuf, Arc<Profile>)> = self
                .directories
                .iter()
                .filter(|directory| directory.owner.is_none())
                .map(|directory| (directory.path.clone(), Arc::clone(&directory.profile)))
                .collect();
            let (path, candidates) = (named.clone(), settings.candidates());
            let found = self.jobs.find_out(&DatabaseKey::Named(named.clone()), named, move || {
                let path = std::fs::canonicalize(&path).map_err(|error| (path, error))?;
                // The profile that was chosen once stays: its files may all be purged by now.
                let chosen = known.into_iter().find(|(other, _)| *other == path);
                let chosen = chosen.map_or(candidates, |(_, profile)| vec![profile]);
                let found = logs_below(&path, &chosen).map(|found| {
                    let ownership = |directory: PathBuf| (FileOwnership::below(&path, &directory), directory);
                    let directories: Vec<_> = found.directories.into_iter().map(ownership).collect();
                    (found.profile, directories, found.has_logs)
                });
                Ok::<_, (PathBuf, std::io::Error)>((path, found))
            });
            let (path, found) = match found {
                Some(Ok(found)) => found,
                Some(Err((path, error))) => {
                    report.problem(path, &error);
                    continue;
                }
                None => continue,
            };
            let Some((profile, mut found, has_logs)) = found else {
                report.problem(
                    path,
                    &"no file in it looks like a log of any profile (directories of other users that it links to \
                      are not looked into): name one with --profile",
                );
                continue;
            };
            for (ownership, path) in &found {
                self.credit(path, ownership);
            }
            let watched = |path: &PathBuf| {
                self.directories.iter().any(|other| other.owner.is_none() && other.path == *path)
                    || self.jobs.may_not_open(&DatabaseKey::Named(path.clone()))
            };
            found.retain(|(_, path)| !watched(path));
            found.retain(|(_, path)| {
                let refusal = settings.options.targets.refusal(None, path, true).map(Refusal::from);
                refusal.inspect(|reason| report.refused(None, &profile.name, path.clone(), *reason)).is_none()
            });
            if found.is_empty() {
                continue;
            }
            report.events.push(Event::Found {
                pid: None,
                profile: profile.name.clone(),
                also: profile.also.clone(),
                directories: found.iter().map(|(_, path)| path.clone()).collect(),
            });
            if !has_logs {
                let warning = format!(
                    "no file in it has a name of a log in the profile \"{}\": it is watched in case one comes",
                    profile.name
                );
                report.events.push(Event::Warning { path, warning });
            }
            let proc = &self.proc;
            for (ownership, directory) in found {
                let server = ServerSettings::of(proc, None, directory.clone(), &profile, true);
                let acts = settings.options.targets.acts_on(None, &directory);
                let mut named = Directory::new(directory, None, None, Arc::clone(&profile), ownership);
                (named.acts, named.server) = (acts, server);
                self.directories.push(Box::new(named));
            }
        }
    }
}

impl WatchList {
    /// Updates which files count in a watched directory that was named, or lies below one: its
    /// owner may have changed. A directory that the operator named itself keeps the operator's
    /// authority.
    fn credit(&mut self, path: &Path, ownership: &FileOwnership) {
        let named = self.directories.iter_mut().filter(|other| other.owner.is_none() && other.path == path);
        for directory in
            named.filter(|other| other.ownership != FileOwnership::Operator && other.ownership != *ownership)
        {
            directory.ownership = ownership.clone();
            directory.came_back();
            directory.forget_files();
        }
    }
}
