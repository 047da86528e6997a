//! Sampling: the names in the watched directories, the descriptors of their files, the files' pages.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use pagekeeper_kernel::Error;
use pagekeeper_policy::FileId;

use super::report::Report;
use super::watched::{LIST_AGAIN, Watched};
use crate::budget::{Budget, Turn};
use crate::descriptors::{Descriptor, Names};
use crate::directory::{Directory, Listed, STORM};
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
        let (mut problems, mut moved) = (Vec::new(), Vec::new());
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
                let listed = directory.open_anew(&self.proc).and_then(|(fd, identity)| {
                    if directory.pin.is_some_and(|pin| !pin.is(&identity.pin)) {
                        directory.forget_files();
                        directory.stale = true;
                        if let Some(pid) = directory.owner {
                            moved.push((pid, directory.path.clone()));
                            return Ok(Listed::default());
                        }
                        // The operator's word is the path: it is listed from the beginning.
                        directory.begin_listing(limit, now);
                    }
                    directory.pin = Some(identity.pin);
                    // Again: it may be another directory of that name.
                    self.notifications.watch(fd.as_fd(), directory.key());
                    directory.list(fd.as_fd(), &mut self.ids, &turn)
                });
                match listed {
                    Ok(listed) => {
                        new_files |= listed.grown;
                        report.listed(directory, &listed);
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
        self.forget_changed(&moved, report);
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
        let mut listings = Vec::new();
        let names = Names::of(&self.directories);
        for (index, database) in self.databases.iter_mut().enumerate() {
            database.descriptors.poll(&self.proc);
            if !database.descriptors.is_due(now) {
                continue;
            }
            let profile = &database.profile;
            let wanted =
                |path: &Path| path.is_absolute() && (profile.log_of(path).is_some() || names.has(path));
            let (listed, errors) = database.descriptors.list(&self.proc, &[database.pid], &wanted);
            for (pid, error) in errors {
                if !error.is_gone() {
                    problems.push((self.proc.root(pid), denied(&error, pid)));
                }
            }
            listings.push((index, listed));
        }
        for (index, listed) in listings {
            self.note_claims(index, listed, now);
        }
        self.examine_claims(report, now);
        self.others.poll(&self.proc);
        if self.others.is_due(now) && !self.directories.is_empty() {
            let known: Vec<u32> = self.databases.iter().map(|database| database.pid).collect();
            let own = std::process::id();
            let pids = self.proc.pids().unwrap_or_default();
            let others: Vec<u32> =
                pids.into_iter().filter(|pid| !known.contains(pid) && *pid != own).collect();
            // That some may not be inspected was reported at the start.
            let names = Names::of(&self.directories);
            let (listed, _) = self.others.list(&self.proc, &others, &|path| names.has(path));
            self.others.settle(&listed, &names);
        }
        for (path, problem) in problems {
            report.problem(path, &problem);
        }
        positions(self) != before
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
                    let sampled = directory.sample(fd.as_fd(), &busy, &mut room, &turn, |path, error| {
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
