//! Looking: at the names in the watched directories, at the descriptors of their files, at the files' pages;
//! and what the policy is told of it.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Error, Inode};
use pagekeeper_policy::{Facts, FileId};

use super::watched::title;
use super::{Database, Guard};
use crate::descriptors::Descriptor;
use crate::directory::{Directory, Entry};
use crate::event::Event;
use crate::facts::{add, by_file, follower_in_title, overwritten_logs};
use crate::notify::Change;

/// What resisted a release is tried again this often.
pub(super) const RETRY: Duration = Duration::from_secs(10);
/// Directories are listed this often even without news: inotify does not see all network file systems.
pub(super) const LIST_AGAIN: Duration = Duration::from_secs(60);

impl Guard {
    pub(super) fn list_directories(&mut self, now: Instant) {
        let all = now >= self.list_due;
        if all {
            self.list_due = now + LIST_AGAIN;
        }
        let directories = &mut self.directories;
        self.notifications.changes(|change| match change {
            Change::In((owner, path), name) => directories
                .iter_mut()
                .filter(|directory| directory.owner == *owner && directory.path == *path)
                .for_each(|directory| directory.changed(name)),
            Change::Anywhere => directories.iter_mut().for_each(|directory| directory.stale = true),
        });
        let mut problems = Vec::new();
        let mut new_files = false;
        for directory in &mut self.directories {
            if !std::mem::take(&mut directory.stale) && !all {
                continue;
            }
            let listed = directory.open(&self.proc).and_then(|fd| {
                directory.inode = rustix::fs::fstat(&fd).ok().map(|stat| Inode::of(&stat));
                // Again: it may be another directory of that name.
                self.notifications.watch(fd.as_fd(), directory.key());
                directory.list(fd.as_fd(), &mut self.ids)
            });
            match listed {
                Ok(new) => new_files |= new,
                Err(error) => {
                    directory.entries.clear();
                    if error.is_gone() {
                        directory.stale = true;
                    } else {
                        problems.push((directory.path.clone(), error));
                    }
                }
            }
        }
        if new_files {
            // Their writers and followers are to be seen at once.
            self.others.ask();
            for database in &mut self.databases {
                database.descriptors.ask();
            }
        }
        for (path, error) in problems {
            self.problem(path, &error);
        }
    }

    /// Reads who is where; whether anybody moved.
    pub(super) fn look_at_descriptors(&mut self, now: Instant) -> bool {
        let positions = |guard: &Self| -> Vec<u64> {
            guard.descriptors().map(|descriptor| descriptor.position).collect()
        };
        let before = positions(self);
        let mut problems = Vec::new();
        let mut new_directories = Vec::new();
        for database in &mut self.databases {
            database.descriptors.poll(&self.proc);
            if !database.descriptors.is_due(now) {
                continue;
            }
            let profile = &database.profile;
            let mut found: BTreeSet<PathBuf> = named_directories(&self.proc, database).into_iter().collect();
            let errors =
                database.descriptors.list(&self.proc, &[database.pid], &self.directories, |target| {
                    if target.is_absolute() && profile.log_of(target).is_some() {
                        found.extend(target.parent().map(Path::to_path_buf));
                    }
                });
            for (pid, error) in errors {
                if !error.is_gone() {
                    problems.push((self.proc.root(pid), denied(&error, pid)));
                }
            }
            found = found.iter().map(|path| self.proc.as_seen_by(database.pid, path)).collect();
            found.retain(|path| {
                !database.shared.contains(path)
                    && !self.directories.iter().any(|directory| {
                        directory.path == *path && directory.owner.is_none_or(|owner| owner == database.pid)
                    })
            });
            if !found.is_empty() {
                database.told = true;
                self.events.push(Event::Found {
                    pid: Some(database.pid),
                    profile: database.profile.name.clone(),
                    directories: found.iter().cloned().collect(),
                });
            }
            new_directories.extend(found.into_iter().map(|path| (database.pid, path)));
        }
        for (pid, path) in new_directories {
            self.watch_directory_of(pid, path);
        }
        self.others.poll(&self.proc);
        if self.others.is_due(now) && !self.directories.is_empty() {
            let known: Vec<u32> = self.databases.iter().map(|database| database.pid).collect();
            let own = std::process::id();
            let pids = self.proc.pids().unwrap_or_default();
            let others: Vec<u32> =
                pids.into_iter().filter(|pid| !known.contains(pid) && *pid != own).collect();
            // That some may not be looked into was said at the start.
            self.others.list(&self.proc, &others, &self.directories, |_| ());
        }
        for (path, problem) in problems {
            self.problem(path, &problem);
        }
        positions(self) != before
    }

    fn watch_directory_of(&mut self, pid: u32, path: PathBuf) {
        let Some(database) = self.databases.iter_mut().find(|database| database.pid == pid) else {
            return;
        };
        let through = if self.proc.same_root(pid).unwrap_or(true) { None } else { Some(pid) };
        let command_line = self.proc.command_line(pid).unwrap_or_default();
        let mut directory =
            Directory::new(path, Some(pid), through, Arc::clone(&database.profile), command_line);
        let opened = directory.open(&self.proc);
        directory.inode =
            opened.as_ref().ok().and_then(|fd| rustix::fs::fstat(fd).ok()).map(|stat| Inode::of(&stat));
        if directory.inode.is_some() && self.directories.iter().any(|other| other.inode == directory.inode) {
            // Two databases, or two views of one: it is watched once, and descriptors of both count.
            database.shared.insert(directory.path);
            return;
        }
        let listed = opened.and_then(|fd| {
            self.notifications.watch(fd.as_fd(), directory.key());
            directory.list(fd.as_fd(), &mut self.ids)
        });
        directory.stale = false;
        let path = directory.path.clone();
        self.directories.push(directory);
        if let Err(error) = listed {
            self.problem(path, &error);
        } else if let Some(database) = self.databases.iter_mut().find(|database| database.pid == pid) {
            database.descriptors.list(&self.proc, &[pid], &self.directories, |_| ());
        }
    }

    fn descriptors(&self) -> impl Iterator<Item = &Descriptor> {
        let databases = self.databases.iter().flat_map(|database| &database.descriptors.known);
        databases.chain(&self.others.known)
    }

    /// Takes samples of the files that are due; whether any has changed.
    pub(super) fn look_at_files(&mut self) -> bool {
        let mut changed = false;
        let busy: HashSet<FileId> = self.descriptors().map(|descriptor| descriptor.file).collect();
        let mut problems = Vec::new();
        for directory in &mut self.directories {
            if let Ok(fd) = directory.open(&self.proc) {
                changed |= directory.look(fd.as_fd(), &busy, &mut self.ids, |path, error| {
                    problems.push((path.to_path_buf(), unknown(error)));
                });
            } else {
                // Gone, or out of reach for now.
                directory.entries.clear();
                directory.stale = true;
            }
        }
        for (path, problem) in problems {
            self.problem(path, &problem);
        }
        changed
    }

    pub(super) fn facts(&mut self, now: Instant) -> Facts {
        if now >= self.retry_due {
            self.retry += 1;
            self.retry_due = now + RETRY;
            self.watch_named_directories();
        }
        let mut facts = Facts { retry: self.retry, ..Facts::default() };
        let descriptors: Vec<_> = self.descriptors().cloned().collect();
        let by_file = by_file(descriptors.iter());
        for directory in &mut self.directories {
            for log in overwritten_logs(directory, &by_file) {
                directory.overwrites(log);
            }
            add(directory, &by_file, &mut facts);
        }
        for database in &self.databases {
            for &pid in &database.titled {
                let title = title(&self.proc, pid);
                for directory in
                    self.directories.iter().filter(|directory| directory.owner == Some(database.pid))
                {
                    facts.followers.extend(follower_in_title(directory, pid, &title));
                }
            }
        }
        // What followers went through since the last tick holds pages that nothing else tells of.
        for (log, passed) in self.follower_history.passed(&facts.followers) {
            let entries = self.directories.iter_mut().flat_map(|directory| directory.entries.values_mut());
            entries
                .filter(|entry| entry.log == log && passed.contains(&entry.sequence))
                .for_each(Entry::look_now);
        }
        facts
    }
}

/// The directories that a database's profile names, below its working directory.
fn named_directories(proc: &ProcRoot, database: &Database) -> Vec<PathBuf> {
    let named = &database.profile.directories;
    if named.is_empty() {
        return Vec::new();
    }
    // A process that may not be looked into is reported when its descriptors are listed.
    let Ok(base) = proc.working_directory(database.pid) else { return Vec::new() };
    named.iter().map(|directory| base.join(directory)).collect()
}

fn denied(error: &Error, pid: u32) -> String {
    if error.is_denied() {
        format!("can't see the open files of process {pid}: run as root, as its user, or with CAP_SYS_PTRACE")
    } else {
        error.to_string()
    }
}

fn unknown(error: &Error) -> String {
    if error.is_denied() {
        format!("{error}; run as root, as the file's owner, or with CAP_DAC_READ_SEARCH and CAP_FOWNER")
    } else {
        error.to_string()
    }
}
