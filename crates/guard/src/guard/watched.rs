//! What is watched: databases found among the processes, the directories of their logs, and directories that were named.
//!
//! Scans of all processes are repeated at intervals that follow what the last one took.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_catalog::{Discovery, Profile, Recognised, logs_below, recognise};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::text::unescaped;

use super::claims::{Claim, Claimant};
use super::report::Report;
use super::serve::Hung;
use super::turns::Turns;
use crate::config::Settings;
use crate::crew::Crew;
use crate::descriptors::Descriptors;
use crate::directory::{DatabaseKey, Directory, Ids};
use crate::event::Event;
use crate::notify::Notifications;
use crate::ownership::ProcessRight;
use crate::ownership::Right;

/// A scan of all processes that takes a millisecond is repeated after this many, but not sooner than a second.
const SCAN_SHARE: u32 = 1000;
/// Directories are listed this often even without news: inotify does not see all network file systems.
pub(super) const LIST_AGAIN: Duration = Duration::from_secs(60);

/// A database that is watched.
pub(super) struct Database {
    pub(super) pid: u32,
    started: u64,
    pub(super) profile: Arc<Profile>,
    /// Whether the profile is known by more than the process's name.
    pub(super) certain: bool,
    pub(super) descriptors: Descriptors,
    /// Processes of it whose titles show followers.
    pub(super) titled: Vec<u32>,
    pub(super) claimant: Claimant,
    /// What became of its claims to directories, as it sees them.
    pub(super) claims: BTreeMap<PathBuf, Claim>,
    /// Whether it was reported as found.
    pub(super) reported: bool,
}

impl Database {
    /// What of the files in its directories counts as its own.
    pub(super) fn right(&self) -> Arc<ProcessRight> {
        self.claimant.right()
    }

    /// Whether it is watched, or may yet be: not all that it claims was refused.
    pub(super) fn is_watched(&self) -> bool {
        self.claims.is_empty() || self.claims.values().any(|claim| !matches!(claim, Claim::Refused(_)))
    }
}

/// All that is watched.
pub(super) struct Watched {
    pub(super) proc: ProcRoot,
    pub(super) databases: Vec<Database>,
    pub(super) directories: Vec<Directory>,
    /// Descriptors of watched files in processes that are no watched database: `mysqlbinlog`, `cp`, a follower
    /// of one's own.
    pub(super) others: Descriptors,
    pub(super) ids: Ids,
    pub(super) notifications: Notifications<(Option<u32>, PathBuf)>,
    pub(super) list_due: Instant,
    pub(super) turns: Turns,
    pub(super) crew: Crew,
    pub(super) hung: Vec<Hung>,
    discovery: Discovery,
    scan_due: Instant,
}

impl Watched {
    /// Nothing yet.
    pub(super) fn new(proc: ProcRoot, now: Instant) -> Self {
        Self {
            proc,
            databases: Vec::new(),
            directories: Vec::new(),
            others: Descriptors::new(now),
            ids: Ids::default(),
            notifications: Notifications::new(),
            list_due: now + LIST_AGAIN,
            turns: Turns::new(now),
            crew: Crew::default(),
            hung: Vec::new(),
            discovery: Discovery::default(),
            scan_due: now,
        }
    }

    /// Forgets all, which is then found anew. Ids of files are not given again.
    pub(super) fn forget(&mut self, now: Instant) {
        for directory in std::mem::take(&mut self.directories) {
            self.notifications.unwatch(&directory.key());
        }
        self.drop_hung();
        self.databases.clear();
        self.discovery.forget();
        self.scan_due = now;
        // Files get new ids: until followers are seen anew, their pages would look unneeded.
        self.others = Descriptors::new(now);
    }

    /// Drops databases that ended, and takes up new ones.
    pub(super) fn find_databases(&mut self, settings: &Settings, report: &mut Report, now: Instant) {
        let (proc, mut lost) = (&self.proc, Vec::new());
        self.databases.retain(|database| {
            let alive = proc.start_time(database.pid).is_ok_and(|started| started == database.started);
            if !alive {
                lost.push(database.pid);
                if database.reported {
                    let (pid, profile) = (database.pid, database.profile.name.clone());
                    report.events.push(Event::Lost { pid, profile });
                }
            }
            alive
        });
        if !lost.is_empty() {
            self.forget_directories_of(&lost);
            self.scan_due = now;
        }
        if now < self.scan_due {
            return;
        }
        self.recognise_again(settings);
        let known: Vec<u32> = self.databases.iter().map(|database| database.pid).collect();
        if settings.options.find || self.databases.iter().any(|database| database.profile.postgresql_titles) {
            match self.proc.pids() {
                Ok(pids) => self.scan(settings, &pids, &known, now),
                Err(error) => report.problem(error.path().to_path_buf(), &error),
            }
        }
        for &pid in &settings.options.pids {
            if !known.contains(&pid) {
                self.take_named_process(settings, report, pid, now);
            }
        }
        self.scan_due = Instant::now() + (now.elapsed() * SCAN_SHARE).max(Duration::from_secs(1));
    }

    pub(super) fn forget_directories_of(&mut self, pids: &[u32]) {
        for directory in &self.directories {
            if directory.owner.is_some_and(|owner| pids.contains(&owner)) {
                self.notifications.unwatch(&directory.key());
            }
        }
        self.directories.retain(|directory| directory.owner.is_none_or(|owner| !pids.contains(&owner)));
        for database in &mut self.databases {
            // A directory that was another's may be its own now.
            database.claims.retain(|_, claim| claim.is_held() && !pids.contains(&database.pid));
            database.descriptors.ask();
        }
        self.others.ask();
    }

    /// Databases that were known by name alone may have opened the files that show what they are by now.
    fn recognise_again(&mut self, settings: &Settings) {
        let uncertain: Vec<u32> =
            self.databases.iter().filter(|database| !database.certain).map(|database| database.pid).collect();
        for pid in uncertain {
            let Some(recognised) =
                recognise(&self.proc, pid, &settings.profiles).filter(|again| again.certain)
            else {
                continue;
            };
            let Some(database) = self.databases.iter_mut().find(|database| database.pid == pid) else {
                continue;
            };
            database.certain = true;
            database.claims.retain(|_, claim| claim.is_held());
            if database.profile.name != recognised.profile.name {
                database.profile = recognised.profile;
                self.forget_directories_of(&[pid]);
            }
        }
    }

    fn scan(&mut self, settings: &Settings, pids: &[u32], known: &[u32], now: Instant) {
        if settings.options.find {
            for found in self.discovery.scan(&self.proc, pids, known, &settings.candidates()) {
                self.take_up(settings, found.pid, found.recognised, now);
            }
        }
        for database in self.databases.iter_mut().filter(|database| database.profile.postgresql_titles) {
            let is_child = |pid: &u32| self.proc.parent(*pid).is_ok_and(|parent| parent == database.pid);
            let shows = |pid: &u32| {
                let title = title(&self.proc, *pid);
                title.contains("walsender") || title.contains("archiver")
            };
            database.titled = pids.iter().copied().filter(|pid| is_child(pid) && shows(pid)).collect();
        }
    }

    fn take_named_process(&mut self, settings: &Settings, report: &mut Report, pid: u32, now: Instant) {
        let by_name = settings.named_profile().map(|profile| Recognised { profile, certain: true });
        match by_name.or_else(|| recognise(&self.proc, pid, &settings.profiles)) {
            Some(recognised) => self.take_up(settings, pid, recognised, now),
            None if self.proc.start_time(pid).is_err() => {
                report.problem(self.proc.root(pid), &format!("there is no process {pid}"));
            }
            None => report.problem(
                self.proc.root(pid),
                &format!(
                    "process {pid} fits no profile: name one with --profile (generic, if none is its own)"
                ),
            ),
        }
    }

    /// Takes up a database; at the tick that began at `now` its files are sampled already.
    fn take_up(&mut self, settings: &Settings, pid: u32, recognised: Recognised, now: Instant) {
        // One that ended in between is no loss.
        let Ok(started) = self.proc.start_time(pid) else {
            return;
        };
        self.databases.push(Database {
            pid,
            started,
            // By a profile that was asked for there is nothing to find out.
            certain: recognised.certain || settings.options.profile.is_some(),
            profile: recognised.profile,
            descriptors: Descriptors::new(now),
            titled: Vec::new(),
            claimant: Claimant::default(),
            claims: BTreeMap::new(),
            reported: false,
        });
        self.others.ask();
    }

    /// Takes up the directories that were named, and those below that their profile names; again and again,
    /// since they may be made or mounted later.
    pub(super) fn watch_named_directories(&mut self, settings: &Settings, report: &mut Report) {
        for named in &settings.options.directories {
            let known: Vec<(PathBuf, Arc<Profile>)> = self
                .directories
                .iter()
                .filter(|directory| directory.owner.is_none())
                .map(|directory| (directory.path.clone(), Arc::clone(&directory.profile)))
                .collect();
            let (path, candidates) = (named.clone(), settings.candidates());
            let found = self.find_out(DatabaseKey::Named(named.clone()), named, move || {
                let path = std::fs::canonicalize(&path).map_err(|error| (path, error))?;
                // The profile that was chosen once stays: its files may all be purged by now.
                let chosen = known.into_iter().find(|(other, _)| *other == path);
                let chosen = chosen.map_or(candidates, |(_, profile)| vec![profile]);
                let found = logs_below(&path, &chosen);
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
            let Some((profile, mut found)) = found else {
                report
                    .problem(path, &"no file in it looks like a log of any profile: name one with --profile");
                continue;
            };
            let watched = |path: &PathBuf| {
                self.directories.iter().any(|other| other.owner.is_none() && other.path == *path)
                    || self.may_not_open(&DatabaseKey::Named(path.clone()))
            };
            found.retain(|path| !watched(path));
            found.retain(|path| {
                let refusal = settings.options.targets.refusal(None, path, true);
                refusal.inspect(|reason| report.refused(None, &profile.name, path.clone(), *reason)).is_none()
            });
            if found.is_empty() {
                continue;
            }
            report.events.push(Event::Found {
                pid: None,
                profile: profile.name.clone(),
                directories: found.clone(),
            });
            for directory in found {
                let acts = settings.options.targets.acts_on(None, &directory);
                let right = Right::Operator;
                let mut named =
                    Directory::new(directory, None, None, Arc::clone(&profile), Vec::new(), right);
                named.acts = acts;
                self.directories.push(named);
            }
        }
    }
}

pub(super) fn title(proc: &ProcRoot, pid: u32) -> String {
    let line = proc.command_line(pid).unwrap_or_default();
    line.iter().map(|argument| unescaped(argument)).collect::<Vec<_>>().join(" ")
}
