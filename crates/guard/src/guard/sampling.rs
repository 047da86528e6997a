//! Sampling: the names in the watched directories, the descriptors of their files, the files' pages.

use std::collections::{BTreeSet, HashSet};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Error, Inode};
use pagekeeper_policy::FileId;

use super::report::Report;
use super::watched::{Database, LIST_AGAIN, Watched};
use crate::budget::{Budget, Turn};
use crate::descriptors::Descriptor;
use crate::directory::{Directory, Listed, STORM};
use crate::event::Event;
use crate::notify::Change;
use crate::sample::Room;

impl Watched {
    /// Lists the directories in which names came or went.
    pub(super) fn list_directories(&mut self, report: &mut Report, now: Instant) {
        self.turns.begin_tick(&self.directories, now);
        if now >= self.list_due {
            self.list_due = now + LIST_AGAIN;
            self.directories.iter_mut().for_each(|directory| directory.stale = true);
        }
        let directories = &mut self.directories;
        let mut of = |(owner, path): &(Option<u32>, PathBuf), what: &mut dyn FnMut(&mut Directory)| {
            let same = |directory: &&mut Directory| directory.owner == *owner && directory.path == *path;
            directories.iter_mut().filter(same).for_each(what);
        };
        let mut anywhere = false;
        self.notifications.changes(STORM, |change| match change {
            Change::In(key, name) => of(key, &mut |directory| directory.changed(name)),
            Change::Storm(key) => of(key, &mut |directory| directory.in_storm(now)),
            Change::Anywhere => anywhere = true,
        });
        let mut problems = Vec::new();
        let mut new_files = false;
        for (key, indices) in self.turns.order(&self.directories) {
            let limit = self.turns.names(indices.len());
            let mut listed_now = indices;
            listed_now.retain(|&index| {
                let directory = &mut self.directories[index];
                directory.stale |= anywhere;
                directory.begin_listing(limit, now)
            });
            if listed_now.is_empty() {
                continue;
            }
            let Some(slice) = self.turns.slice(&key) else { continue };
            let turn = Turn::begin(slice);
            for index in listed_now {
                let directory = &mut self.directories[index];
                let listed = directory.open(&self.proc).and_then(|fd| {
                    directory.inode = rustix::fs::fstat(&fd).ok().map(|stat| Inode::of(&stat));
                    // Again: it may be another directory of that name.
                    self.notifications.watch(fd.as_fd(), directory.key());
                    directory.list(fd.as_fd(), &mut self.ids, &turn)
                });
                match listed {
                    Ok(listed) => {
                        new_files |= listed.grown;
                        if listed.left_out {
                            report.in_part(directory, Budget::Names);
                        }
                    }
                    Err(error) => {
                        directory.forget_files();
                        if error.is_gone() {
                            directory.stale = true;
                        } else {
                            problems.push((directory.path.clone(), error));
                        }
                    }
                }
                if turn.is_over() {
                    break;
                }
            }
            self.turns.spend(&key, turn.spent());
        }
        if new_files {
            // Their writers and followers are to be seen at once.
            self.others.ask();
            for database in &mut self.databases {
                database.descriptors.ask();
            }
        }
        for (path, error) in problems {
            report.problem(path, &error);
        }
    }

    /// Reads who is where; whether anybody moved.
    pub(super) fn sample_descriptors(&mut self, report: &mut Report, now: Instant) -> bool {
        let positions = |watched: &Self| -> Vec<u64> {
            watched.descriptors().map(|descriptor| descriptor.position).collect()
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
                database.reported = true;
                report.events.push(Event::Found {
                    pid: Some(database.pid),
                    profile: database.profile.name.clone(),
                    directories: found.iter().cloned().collect(),
                });
            }
            new_directories.extend(found.into_iter().map(|path| (database.pid, path)));
        }
        for (pid, path) in new_directories {
            self.watch_directory_of(pid, path, report);
        }
        self.others.poll(&self.proc);
        if self.others.is_due(now) && !self.directories.is_empty() {
            let known: Vec<u32> = self.databases.iter().map(|database| database.pid).collect();
            let own = std::process::id();
            let pids = self.proc.pids().unwrap_or_default();
            let others: Vec<u32> =
                pids.into_iter().filter(|pid| !known.contains(pid) && *pid != own).collect();
            // That some may not be inspected was reported at the start.
            self.others.list(&self.proc, &others, &self.directories, |_| ());
        }
        for (path, problem) in problems {
            report.problem(path, &problem);
        }
        positions(self) != before
    }

    fn watch_directory_of(&mut self, pid: u32, path: PathBuf, report: &mut Report) {
        let Some(database) = self.databases.iter_mut().find(|database| database.pid == pid) else {
            return;
        };
        let through = self.proc.through(pid);
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
        let key = directory.database();
        let siblings = self.directories.iter().filter(|other| other.owner == Some(pid)).count();
        directory.begin_listing(self.turns.names(siblings + 1), Instant::now());
        let listed = opened.and_then(|fd| {
            self.notifications.watch(fd.as_fd(), directory.key());
            let Some(slice) = self.turns.slice(&key) else { return Ok(Listed::default()) };
            let turn = Turn::begin(slice);
            let listed = directory.list(fd.as_fd(), &mut self.ids, &turn);
            self.turns.spend(&key, turn.spent());
            listed
        });
        if listed.as_ref().is_ok_and(|listed| listed.left_out) {
            report.in_part(&directory, Budget::Names);
        }
        let path = directory.path.clone();
        self.directories.push(directory);
        if let Err(error) = listed {
            report.problem(path, &error);
        } else if let Some(database) = self.databases.iter_mut().find(|database| database.pid == pid) {
            database.descriptors.list(&self.proc, &[pid], &self.directories, |_| ());
        }
    }

    /// The descriptors of watched files.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = &Descriptor> {
        let databases = self.databases.iter().flat_map(|database| &database.descriptors.known);
        databases.chain(&self.others.known)
    }

    /// Takes samples of the files that are due; whether any has changed.
    pub(super) fn sample_files(&mut self, report: &mut Report) -> bool {
        let mut changed = false;
        let busy: HashSet<FileId> = self.descriptors().map(|descriptor| descriptor.file).collect();
        let mut problems = Vec::new();
        for (key, indices) in self.turns.order(&self.directories) {
            let Some(slice) = self.turns.slice(&key) else {
                if self.turns.has_waited(&key) {
                    report.in_part(&self.directories[indices[0]], Budget::Time);
                }
                continue;
            };
            let of = |index: &usize| &self.directories[*index];
            let files: usize = indices.iter().map(of).map(|directory| directory.entries.len()).sum();
            let windows: usize = indices.iter().map(of).map(Directory::windows).sum();
            let limit = self.turns.windows();
            let mut room = Room { left: limit.saturating_sub(windows), least: (limit / files.max(1)).max(1) };
            let turn = Turn::begin(slice);
            for index in indices {
                let directory = &mut self.directories[index];
                if let Ok(fd) = directory.open(&self.proc) {
                    let ids = &mut self.ids;
                    let sampled =
                        directory.sample(fd.as_fd(), &busy, ids, &mut room, &turn, |path, error| {
                            problems.push((path.to_path_buf(), unknown(error)));
                        });
                    changed |= sampled.changed;
                    if sampled.no_room {
                        report.in_part(directory, Budget::Windows);
                    }
                } else {
                    // Gone, or out of reach for now.
                    directory.forget_files();
                    directory.stale = true;
                }
                if turn.is_over() {
                    break;
                }
            }
            self.turns.spend(&key, turn.spent());
        }
        for (path, problem) in problems {
            report.problem(path, &problem);
        }
        changed
    }
}

/// The directories that a database's profile names, below its working directory.
fn named_directories(proc: &ProcRoot, database: &Database) -> Vec<PathBuf> {
    let named = &database.profile.directories;
    if named.is_empty() {
        return Vec::new();
    }
    // A process that may not be inspected is reported when its descriptors are listed.
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
