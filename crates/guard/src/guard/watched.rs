//! Finding what to watch: databases among the processes, and directories that were named.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_catalog::{Profile, Recognised, logs_below, recognise};
use pagekeeper_kernel::process::ProcRoot;

use super::{Database, Guard};
use crate::descriptors::Descriptors;
use crate::directory::Directory;
use crate::event::Event;

/// A scan of all processes that takes a millisecond is repeated after this many, but not sooner than a second.
const SCAN_SHARE: u32 = 1000;

impl Guard {
    /// Drops databases that ended, and takes up new ones.
    pub(super) fn find_databases(&mut self, now: Instant) {
        let (databases, events, proc) = (&mut self.databases, &mut self.events, &self.proc);
        let mut lost = Vec::new();
        databases.retain(|database| {
            let alive = proc.start_time(database.pid).is_ok_and(|started| started == database.started);
            if !alive {
                lost.push(database.pid);
                if database.told {
                    events.push(Event::Lost { pid: database.pid, profile: database.profile.name.clone() });
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
        self.recognise_again();
        let known: Vec<u32> = self.databases.iter().map(|database| database.pid).collect();
        if self.options.find || self.databases.iter().any(|database| database.profile.postgresql_titles) {
            match self.proc.pids() {
                Ok(pids) => self.scan(&pids, &known, now),
                Err(error) => self.problem(error.path().to_path_buf(), &error),
            }
        }
        for pid in self.options.pids.clone() {
            if !known.contains(&pid) {
                self.take_named_process(pid, now);
            }
        }
        self.scan_due = Instant::now() + (now.elapsed() * SCAN_SHARE).max(Duration::from_secs(1));
    }

    fn forget_directories_of(&mut self, pids: &[u32]) {
        for directory in &self.directories {
            if directory.owner.is_some_and(|owner| pids.contains(&owner)) {
                self.notifications.unwatch(&directory.key());
            }
        }
        self.directories.retain(|directory| directory.owner.is_none_or(|owner| !pids.contains(&owner)));
        for database in &mut self.databases {
            // A directory that it shared may be its own now.
            database.shared.clear();
            database.descriptors.ask();
        }
        self.others.ask();
    }

    /// Databases that were known by name alone may have opened the files that tell by now.
    fn recognise_again(&mut self) {
        let uncertain: Vec<u32> =
            self.databases.iter().filter(|database| !database.certain).map(|database| database.pid).collect();
        for pid in uncertain {
            let Some(recognised) = recognise(&self.proc, pid, &self.profiles).filter(|again| again.certain)
            else {
                continue;
            };
            let Some(database) = self.databases.iter_mut().find(|database| database.pid == pid) else {
                continue;
            };
            database.certain = true;
            if database.profile.name != recognised.profile.name {
                database.profile = recognised.profile;
                self.forget_directories_of(&[pid]);
            }
        }
    }

    fn scan(&mut self, pids: &[u32], known: &[u32], now: Instant) {
        if self.options.find {
            let wanted: Vec<Arc<Profile>> = match &self.options.profile {
                Some(name) => self.profiles.iter().filter(|profile| profile.name == *name).cloned().collect(),
                None => self.profiles.clone(),
            };
            for found in self.discovery.scan(&self.proc, pids, known, &wanted) {
                self.take_up(found.pid, found.recognised, now);
            }
        }
        for database in self.databases.iter_mut().filter(|database| database.profile.postgresql_titles) {
            let is_child = |pid: &u32| self.proc.parent(*pid).is_ok_and(|parent| parent == database.pid);
            let tells = |pid: &u32| {
                let title = title(&self.proc, *pid);
                title.contains("walsender") || title.contains("archiver")
            };
            database.titled = pids.iter().copied().filter(|pid| is_child(pid) && tells(pid)).collect();
        }
    }

    fn take_named_process(&mut self, pid: u32, now: Instant) {
        let by_name = self
            .options
            .profile
            .as_ref()
            .and_then(|name| self.profiles.iter().find(|profile| profile.name == *name).cloned())
            .map(|profile| Recognised { profile, certain: true });
        match by_name.or_else(|| recognise(&self.proc, pid, &self.profiles)) {
            Some(recognised) => self.take_up(pid, recognised, now),
            None if self.proc.start_time(pid).is_err() => {
                self.problem(self.proc.root(pid), &format!("there is no process {pid}"));
            }
            None => self.problem(
                self.proc.root(pid),
                &format!(
                    "process {pid} fits no profile: name one with --profile (generic, if none is its own)"
                ),
            ),
        }
    }

    /// Takes up a database; at the tick that began at `now` its files are looked at already.
    fn take_up(&mut self, pid: u32, recognised: Recognised, now: Instant) {
        // One that ended in between is no loss.
        let Ok(started) = self.proc.start_time(pid) else {
            return;
        };
        self.databases.push(Database {
            pid,
            started,
            // By a profile that was asked for there is nothing to find out.
            certain: recognised.certain || self.options.profile.is_some(),
            profile: recognised.profile,
            descriptors: Descriptors::new(now),
            titled: Vec::new(),
            shared: BTreeSet::new(),
            told: false,
        });
        self.others.ask();
    }

    /// Takes up the directories that were named, and those below that their profile names; again and again,
    /// since they may be made or mounted later.
    pub(super) fn watch_named_directories(&mut self) {
        for path in self.options.directories.clone() {
            let named = self.options.profile.as_ref();
            let candidates: Vec<Arc<Profile>> = self
                .profiles
                .iter()
                .filter(|profile| named.is_none_or(|name| profile.name == *name))
                .cloned()
                .collect();
            let path = match std::fs::canonicalize(&path) {
                Ok(path) => path,
                Err(error) => {
                    self.problem(path, &error);
                    continue;
                }
            };
            let watched = |directories: &[Directory], path: &PathBuf| {
                directories
                    .iter()
                    .find(|other| other.owner.is_none() && other.path == *path)
                    .map(|other| Arc::clone(&other.profile))
            };
            // The profile that was chosen once stays: its files may all be purged by now.
            let chosen = watched(&self.directories, &path).map_or(candidates, |profile| vec![profile]);
            let Some((profile, mut found)) = logs_below(&path, &chosen) else {
                self.problem(path, &"no file in it looks like a log of any profile: name one with --profile");
                continue;
            };
            found.retain(|path| watched(&self.directories, path).is_none());
            if found.is_empty() {
                continue;
            }
            self.events.push(Event::Found {
                pid: None,
                profile: profile.name.clone(),
                directories: found.clone(),
            });
            for directory in found {
                self.directories.push(Directory::new(
                    directory,
                    None,
                    None,
                    Arc::clone(&profile),
                    Vec::new(),
                ));
            }
        }
    }
}

pub(super) fn title(proc: &ProcRoot, pid: u32) -> String {
    let line = proc.command_line(pid).unwrap_or_default();
    line.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
