//! Sampling: reads the names in the watched directories, the descriptors of their files, and the
//! files' pages.

use std::cell::{LazyCell, OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::directory_watch::{DirectoryChange, MadeWatch, WatchMaker};
use pagekeeper_kernel::process::{ProcRoot, measured, thread_cpu_time};
use pagekeeper_kernel::{Error, ExpectedFile, Result};
use pagekeeper_policy::FileId;
use pagekeeper_policy::shares::shares_by_party;
use pagekeeper_policy::turns::Slice;
use pagekeeper_policy::unnamed::APPENDED_REPORT_BYTES;
use pagekeeper_text::ByteSize;

use super::claimant::Claim;
use super::jobs::{Job, JobPlace, Turns};
use super::report::{Report, TickContext};
use super::watched::{Database, RELIST_INTERVAL, WatchList};
use crate::budget::{Budget, Turn};
use crate::config::WalReaderLimits;
use crate::descriptors::{
    Descriptor, Extent, FilesInUse, ForeignDescriptors, ListedProcess, Lister, POLLED_PER_TICK,
    name_of_removed,
};
use crate::directory::{
    DatabaseKey, Directories, Directory, DirectoryId, INOTIFY_STORM_CHANGES, ListingResult,
};
use crate::event::Event;
use crate::sample::{SamplingResult, WindowRoom};
use crate::state_files::with_state_files;

/// Files that a process has open there are not logs: devices, the kernel's own files, shared
/// memory.
const NO_LOG_DIRECTORIES: [&str; 3] = ["/dev", "/proc", "/sys"];

impl WatchList {
    /// Lists the directories in which names came or went.
    pub(super) fn list_directories(&mut self, tick: &mut TickContext<'_>) {
        self.take_back(tick);
        let of = |database: &Database| (DatabaseKey::Process(database.pid), database.ownership().party());
        let watched =
            self.directories.iter().map(|directory| (directory.database(), directory.ownership.party()));
        self.jobs.turns.begin_tick(watched, self.databases.iter().map(of), tick.now);
        if tick.now >= self.list_due {
            self.list_due = tick.now + RELIST_INTERVAL;
            self.directories.iter_mut().for_each(|directory| directory.stale = true);
        }
        let directories = &mut self.directories;
        self.notifications.changes(INOTIFY_STORM_CHANGES, |change| match change {
            DirectoryChange::In(id, name) => {
                of_id(directories, *id).for_each(|directory| directory.changed(name));
            }
            DirectoryChange::Storm(id) => {
                of_id(directories, *id).for_each(|directory| directory.in_storm(tick.now));
            }
            DirectoryChange::Anywhere => directories.iter_mut().for_each(|directory| directory.stale = true),
        });
        self.list_stale(tick, None);
    }

    /// Continues listings, of all databases or of one.
    pub(super) fn list_stale(&mut self, tick: &mut TickContext<'_>, only: Option<&DatabaseKey>) {
        let (mut grown, mut moved) = (Vec::new(), Vec::new());
        let Self { proc, notifications, directories, jobs, .. } = self;
        let maker = notifications.maker();
        let prepare = |turns: &mut Turns, key: &DatabaseKey, _: &[usize], own: &mut [Box<Directory>]| {
            if only.is_some_and(|only| only != key) {
                return None;
            }
            // The limit changes with the number of directories.
            let limit = turns.names(key, own[0].ownership.party(), own.len());
            let begun = own.iter_mut().map(|directory| directory.begin_listing(limit, tick.now));
            if begun.filter(|begun| *begun).count() == 0 {
                return None;
            }
            // A directory that was just found is listed at once, and with it everything that its
            // database has in progress.
            let slice = turns.slice_to_find(key)?;
            Some(listing_job(proc.clone(), maker.clone(), (slice, limit, tick.now)))
        };
        let done = |_: &mut Turns, _: &DatabaseKey, own: &mut [Box<Directory>], done: ListingDone| {
            moved.extend(done.moved);
            for (watch, directory) in done.watches {
                notifications.made(watch, own[directory].id);
            }
            for (index, listed) in done.listed {
                let directory = &mut own[index];
                match listed {
                    Ok(listed) => {
                        tick.report.listed(directory, &listed);
                        if !listed.grown.is_empty() {
                            grown.push((directory.owner, listed.grown));
                        }
                    }
                    Err(error) => {
                        directory.forget_files();
                        if error.is_gone() {
                            directory.stale = true;
                        } else {
                            tick.report.problem(directory.path.clone(), &error);
                        }
                    }
                }
            }
        };
        jobs.serve(directories, prepare, done);
        self.forget_changed(&moved, tick.report);
        if !grown.is_empty() {
            // Their writers and followers are to be seen at once.
            let is_named = grown.iter().any(|(owner, _)| owner.is_none());
            self.others.schedule.ask(if is_named { Extent::All } else { Extent::Changes });
            for database in &mut self.databases {
                let shares = || database.claims.values().any(|claim| matches!(claim, Claim::Shared));
                if is_named || shares() {
                    database.descriptors.schedule.ask(Extent::All);
                }
                let own = grown.iter().filter(|(owner, _)| *owner == Some(database.pid));
                let files: Vec<FileId> = own.flat_map(|(_, files)| files).copied().collect();
                if !files.is_empty() {
                    database.descriptors.expect(files.into_iter());
                }
            }
        }
    }

    /// Reads the positions of descriptors. Returns whether any has moved.
    pub(super) fn sample_descriptors(&mut self, tick: &mut TickContext<'_>) -> bool {
        for listed in self.list_databases(tick.now) {
            let Some(index) = self.databases.iter().position(|database| database.pid == listed.pid) else {
                self.take_logger(listed, tick.report);
                continue;
            };
            self.report_unnamed(index, &listed, tick.report);
            self.databases[index].descriptors.listed(listed.cost, listed.count);
            if let Err(error) = &listed.read
                && !error.is_gone()
            {
                let denied = || {
                    format!(
                        "can't see the open files of process {}: run as root, as its user, or with CAP_SYS_PTRACE and \
                         CAP_DAC_READ_SEARCH",
                        listed.pid
                    )
                };
                tick.report.problem(self.proc.root(listed.pid), &reason(error, denied));
            }
            if listed.left_out {
                let (key, root) = (DatabaseKey::Process(listed.pid), self.proc.root(listed.pid));
                let profile = &self.databases[index].profile.name;
                tick.report.database_in_part(key, profile, &root, Budget::Descriptors);
            }
            let is_read = listed.read.is_ok();
            self.databases[index].sees_descriptors = is_read && !listed.left_out;
            let is_cut = listed.left_out || listed.is_unread();
            self.note_removed(listed.pid, Some(index), (listed.removed, is_cut), tick.now);
            let (is_first_look, party) =
                (self.databases[index].is_idle(), self.databases[index].ownership().party());
            let ((), spent) = measured(|| self.note_claims(index, listed.open, tick));
            if is_first_look {
                self.jobs.turns.charge(party, spent);
            }
            let database = &mut self.databases[index];
            if is_read && database.shows_no_log() && tick.settings.options.pids.contains(&database.pid) {
                let (pid, profile) = (database.pid, &database.profile.name);
                let warning = format!(
                    "process {pid} has no file open whose name is a log's in the profile \"{profile}\": \
                     nothing of it is watched until it opens one"
                );
                tick.report.warning(&mut database.warned, self.proc.root(pid), warning);
            }
        }
        self.examine_claims(tick);
        self.others.poll(&self.proc);
        if !self.directories.is_empty() {
            let own = std::process::id();
            // Made only when a listing begins.
            let known: LazyCell<HashSet<u32>, _> =
                LazyCell::new(|| self.databases.iter().map(|database| database.pid).collect());
            let is_known = |pid: u32| known.contains(&pid);
            let programs = self.discovery.processes().programs().map(|(pid, _)| pid);
            let others = programs.filter(|pid| !is_known(*pid) && *pid != own);
            let (table, removed) = (self.discovery.processes(), &self.removed);
            let (all, databases) = (OnceCell::new(), &self.databases);
            let was_log = |pid: u32, name: &Path| {
                let is_of_parent = || {
                    let profiles: &HashMap<u32, &Profile> = all.get_or_init(|| profiles(databases));
                    let profile = profiles.get(&table.get(pid)?.parent)?;
                    profile.log_of(name)
                };
                removed.has_name(name) || is_of_parent().is_some()
            };
            self.names.update(&self.directories);
            let found = self.others.list(&self.proc, others, &self.names, &was_log, tick.now);
            for one in found.into_iter().filter(|one| !one.is_unread()) {
                let index = if one.removed.is_empty() { None } else { self.parent_of(one.pid) };
                self.note_removed(one.pid, index, (one.removed, one.left_out), tick.now);
            }
        }
        for pid in self.others.left_out() {
            let problem = "it has more log files open than the guard keeps in mind: the part that it has yet to read is only partly known";
            tick.report.problem(self.proc.root(pid), &problem);
        }
        descriptors(&self.databases, &self.others).any(|descriptor| descriptor.moved)
    }

    /// Returns the database that is the parent of a process.
    fn parent_of(&self, pid: u32) -> Option<usize> {
        let parent = self.discovery.processes().get(pid)?.parent;
        self.databases.iter().position(|database| database.pid == parent)
    }

    /// Records the descriptors of a process that writes text logs for a database.
    fn take_logger(&mut self, listed: ListedProcess, report: &mut Report) {
        let is_its = |database: &Database| database.loggers.contains(&listed.pid);
        let Some(index) = self.databases.iter().position(is_its) else { return };
        self.report_unnamed(index, &listed, report);
        let database = &mut self.databases[index];
        let profile = Arc::clone(&database.profile);
        let mut open = listed.open;
        open.retain(|file| file.access.writes() && profile.is_open_log(&file.path, true));
        if database.claimant.note_logged(listed.pid, open) {
            database.descriptors.schedule.ask(Extent::All);
        }
    }

    /// Reports files that no pattern names and that a process of a database appends much to.
    fn report_unnamed(&mut self, index: usize, listed: &ListedProcess, report: &mut Report) {
        let (pid, open) = (listed.pid, &listed.unnamed);
        let is_complete = listed.read.is_ok() && !listed.has_more_unnamed;
        let database = &mut self.databases[index];
        let (own, loggers) = (database.pid, &database.loggers);
        database.appended.retain(|pid, _| *pid == own || loggers.contains(pid));
        let seen =
            open.iter().filter_map(|file| Some((file.path.parent()?.to_path_buf(), file.inode, file.size)));
        let much = database.appended.entry(pid).or_default().observe(seen, is_complete);
        // A server has one file open as both its standard output and its standard error.
        for file in much.iter().filter_map(|much| open.iter().find(|file| file.inode == *much)) {
            let warning = format!(
                "no pattern of the profile \"{}\" names this file, to which process {own} has appended {} or more while it was \
                 watched: its pages are left alone; `pagekeeper doctor --pid {own}` shows the lines for a profile",
                database.profile.name,
                ByteSize(APPENDED_REPORT_BYTES)
            );
            report.events.push(Event::Warning { path: self.proc.as_seen_by(pid, &file.path), warning });
        }
    }

    /// Reads the positions of databases' descriptors, and lists those that are due, as far as there
    /// is time. Returns the processes that were listed.
    fn list_databases(&mut self, now: Instant) -> Vec<ListedProcess> {
        let wanted: Vec<_> = self
            .databases
            .iter()
            .map(|database| (database.ownership().party(), database.descriptors.known.len()))
            .collect();
        let shares = shares_by_party(POLLED_PER_TICK, &wanted);
        let mut wanted = Duration::ZERO;
        let has_time = self.listing_time.slice(Duration::MAX, now).is_some();
        for (database, share) in self.databases.iter_mut().zip(shares) {
            database.descriptors.poll(&self.proc, share);
            let (party, is_idle) = (database.ownership().party(), database.is_idle());
            // Whoever has very many processes without a log waits for their own budget.
            let may_begin = !is_idle || self.jobs.turns.has_time(party);
            let begun = if may_begin { database.descriptors.begin(now) } else { None };
            let is_listed = match begun {
                None => false,
                Some(Extent::All) => true,
                Some(Extent::Changes) => {
                    let before = thread_cpu_time();
                    let may_check = has_time && database.may_check();
                    if may_check {
                        self.names.update(&self.directories);
                    }
                    let names = may_check.then_some(&self.names);
                    let is_enough = database.descriptors.end_with_check(database.pid, &self.proc, names);
                    self.listing_time.spend(thread_cpu_time().saturating_sub(before));
                    !is_enough
                }
            };
            if is_listed {
                if database.claims.is_empty() {
                    self.listings.push_first_in(party, database.pid);
                } else {
                    self.listings.push_in(party, database.pid);
                }
                database.loggers.iter().for_each(|logger| self.listings.push_in(party, *logger));
            }
            wanted = wanted.max(database.descriptors.schedule.slice());
        }
        if self.listings.is_empty() {
            return Vec::new();
        }
        let Some(slice) = self.listing_time.slice(wanted, now) else { return Vec::new() };
        let before = thread_cpu_time();
        self.names.update(&self.directories);
        let names = &self.names;
        let (profiles, removed) = (profiles(&self.databases), &self.removed);
        let wanted = |pid: u32, path: &Path| {
            let is_log = || profiles.get(&pid).is_some_and(|profile| profile.log_of(path).is_some());
            let was_log = || {
                name_of_removed(path).is_some_and(|name| {
                    let profile = profiles.get(&pid);
                    removed.has_name(name) || profile.is_some_and(|profile| profile.log_of(name).is_some())
                })
            };
            path.is_absolute() && (is_log() || names.has(path) || was_log())
        };
        let unnamed = |pid: u32, path: &Path| {
            let is_on_disk =
                || path.is_absolute() && !NO_LOG_DIRECTORIES.iter().any(|below| path.starts_with(below));
            is_on_disk() && profiles.get(&pid).is_some_and(|profile| profile.is_unnamed(path))
        };
        let proc = &self.proc;
        let mut lister =
            Lister { proc, wanted: &wanted, kept: &|_| true, unnamed: &unnamed, done: Vec::new() };
        self.listings.advance(proc, &mut lister, slice);
        let done = lister.done;
        self.listing_time.spend(thread_cpu_time().saturating_sub(before));
        done
    }

    /// Samples the files that are due. Returns whether any has changed.
    pub(super) fn sample_files(&mut self, tick: &mut TickContext<'_>) -> bool {
        let mut changed = false;
        let (limits, now, report) =
            (tick.settings.options.wal_readers, tick.now, RefCell::new(&mut *tick.report));
        let mut in_use = FilesInUse::default();
        let databases = self.databases.iter().map(|database| &*database.descriptors.known);
        databases.chain(self.others.by_process()).for_each(|of_process| in_use.add(of_process));
        let in_use = Arc::new(in_use);
        let Self { proc, databases, directories, jobs, .. } = self;
        let prepare = |turns: &mut Turns, key: &DatabaseKey, _: &[usize], own: &mut [Box<Directory>]| {
            let Some(slice) = turns.slice_to_sample(key) else {
                if let Some(first) = own.first().filter(|_| turns.has_waited(key)) {
                    report.borrow_mut().in_part(first, Budget::Time);
                }
                // As long as releases continue, these files say which pages have yet to be read.
                turns.slice_on_account(key)?;
                return Some(state_files_job(proc.clone(), (limits, now)));
            };
            let files: usize = own.iter().map(|directory| directory.entries.len()).sum();
            let process = databases.iter().find(|database| Some(database.pid) == key.pid());
            // For a named directory it is not known which process opens its files.
            let sees_openers = process.is_some_and(|database| database.sees_descriptors);
            for directory in own.iter_mut() {
                directory.of_database_with(files, sees_openers);
            }
            let windows: usize = own.iter().map(|directory| directory.sums().windows).sum();
            let limit = turns.windows(key, own[0].ownership.party());
            let room =
                WindowRoom { left: limit.saturating_sub(windows), least: (limit / files.max(1)).max(1) };
            Some(sampling_job(proc.clone(), (slice, room), Arc::clone(&in_use), (limits, now)))
        };
        let done = |_: &mut Turns, _: &DatabaseKey, own: &mut [Box<Directory>], done: SamplingDone| {
            changed |= done.changed;
            if let Some(index) = done.no_room {
                report.borrow_mut().in_part(&own[index], Budget::Windows);
            }
            for (path, problem) in done.problems {
                report.borrow_mut().problem(path, &problem);
            }
        };
        jobs.serve(directories, prepare, done);
        changed
    }
}

/// Returns a job that lists those directories of a database whose listing has begun.
fn listing_job(
    proc: ProcRoot,
    maker: WatchMaker,
    (slice, limit, now): (Slice, usize, Instant),
) -> Job<ListingDone> {
    Box::new(move |own, place| {
        let turn = Turn::begin(slice);
        let mut done = ListingDone::default();
        for (index, directory) in own.iter_mut().enumerate() {
            if !directory.is_listed_now() || turn.is_over() {
                continue;
            }
            if directory.server.are_wanted(&directory.profile) {
                place.elsewhere();
                directory.server.get();
            }
            place.at(index);
            let listed = directory.resolve(&proc).and_then(|(found, identity)| {
                if directory.pin.is_some_and(|pin| !pin.is_same(&identity.pin)) {
                    directory.forget_files();
                    directory.stale = true;
                    if let Some(pid) = directory.owner {
                        done.moved.push((pid, directory.path.clone()));
                        return Ok(ListingResult::default());
                    }
                    // The operator named the path, so another directory there is listed from the
                    // beginning.
                    directory.begin_listing(limit, now);
                }
                if !directory.ownership.may_enter(identity.user) {
                    directory.forget_files();
                    directory.pin = None;
                    return Ok(ListingResult { refused: Some(OsString::new()), ..ListingResult::default() });
                }
                directory.pin = Some(identity.pin);
                let fd = found.open_directory(ExpectedFile::Inode(identity.pin.inode))?;
                // Watched again: it may be another directory of that name.
                done.watches.extend(maker.watch(fd.as_fd()).map(|watch| (watch, index)));
                directory.list(fd.as_fd(), &turn)
            });
            done.listed.push((index, listed));
        }
        done
    })
}

/// Returns a job that samples the files of a database that are due, and then reads the files that
/// state something about its logs.
fn sampling_job(
    proc: ProcRoot,
    (slice, room): (Slice, WindowRoom),
    in_use: Arc<FilesInUse>,
    (limits, now): (WalReaderLimits, Instant),
) -> Job<SamplingDone> {
    Box::new(move |own, place| {
        let turn = Turn::begin(slice);
        let (mut done, mut room) = (SamplingDone::default(), room);
        for (index, directory) in own.iter_mut().enumerate() {
            // In most directories no file is due: the clocks are read only where one is.
            let is_due = directory.begin_tick(&in_use);
            if is_due && turn.step() {
                break;
            }
            place.at(index);
            let problems = &mut done.problems;
            let sampled = sample_directory(directory, is_due, &proc, &mut room, &turn, |path, error| {
                let denied = || {
                    format!(
                        "{error}; run as root, as the file's owner, or with CAP_DAC_READ_SEARCH and CAP_FOWNER"
                    )
                };
                problems.push((path.to_path_buf(), reason(error, denied)));
            });
            done.changed |= sampled.changed;
            if sampled.no_room {
                done.no_room = Some(index);
            }
        }
        read_state_files(own, place, &proc, (&limits, now));
        done
    })
}

/// Returns a job that only reads the files that state something about the logs of a database.
fn state_files_job(proc: ProcRoot, (limits, now): (WalReaderLimits, Instant)) -> Job<SamplingDone> {
    Box::new(move |own, place| {
        read_state_files(own, place, &proc, (&limits, now));
        SamplingDone::default()
    })
}

/// Reads the files that state something about the logs of a database, as far as they are due.
fn read_state_files(
    own: &mut [Box<Directory>],
    place: &JobPlace,
    proc: &ProcRoot,
    (limits, now): (&WalReaderLimits, Instant),
) {
    for (index, directory) in own.iter_mut().enumerate() {
        let begins = |is_elsewhere| if is_elsewhere { place.elsewhere() } else { place.at(index) };
        with_state_files(directory, |files, directory| files.read(directory, proc, limits, now, &begins));
    }
}

/// Samples the files of a directory that are due, if there are any, while the turn lasts.
fn sample_directory(
    directory: &mut Directory,
    is_due: bool,
    proc: &ProcRoot,
    room: &mut WindowRoom,
    turn: &Turn,
    mut problem: impl FnMut(&Path, &Error),
) -> SamplingResult {
    let mut all = SamplingResult::default();
    let mut is_checked = directory.is_checked_now();
    loop {
        // If no file is due, the files are not visited.
        let mut due = if is_due { directory.due() } else { Vec::new() };
        directory.take_unchanged(&mut due);
        if std::mem::take(&mut is_checked) || !due.is_empty() {
            let Ok(found) = directory.find(proc) else {
                // The directory is gone, or out of reach for now.
                directory.forget_files();
                directory.stale = true;
                return all;
            };
            let sampled = directory.sample(found.as_fd(), due, room, turn, &mut problem);
            all.changed |= sampled.changed;
            all.no_room |= sampled.no_room;
        }
        if !is_due || !directory.has_more_due() || turn.is_over() {
            return all;
        }
    }
}

/// Returns the directory of this id, if it is not away.
fn of_id(directories: &mut Directories, id: DirectoryId) -> impl Iterator<Item = &mut Box<Directory>> {
    directories.iter_mut().filter(move |directory| directory.id == id)
}

/// Returns the descriptors of watched files.
pub(super) fn descriptors<'a>(
    databases: &'a [Database],
    others: &'a ForeignDescriptors,
) -> impl Iterator<Item = &'a Descriptor> {
    databases.iter().flat_map(|database| &database.descriptors.known).chain(others.known())
}

/// Returns the profiles of databases, by their processes and their loggers.
fn profiles(databases: &[Database]) -> HashMap<u32, &Profile> {
    let mut profiles = HashMap::new();
    for database in databases {
        let loggers = database.loggers.iter().copied();
        profiles.extend(loggers.chain([database.pid]).map(|pid| (pid, &*database.profile)));
    }
    profiles
}

/// The result of listing the directories of a database, by their indices among its own.
#[derive(Default)]
struct ListingDone {
    watches: Vec<(MadeWatch, usize)>,
    listed: Vec<(usize, Result<ListingResult>)>,
    /// Directories of processes whose path leads elsewhere now.
    moved: Vec<(u32, PathBuf)>,
}

/// The result of sampling the files of a database.
#[derive(Default)]
struct SamplingDone {
    changed: bool,
    /// A directory for which there was no room for all windows.
    no_room: Option<usize>,
    problems: Vec<(PathBuf, String)>,
}

/// Returns the sentence for an error; `denied` replaces that of a denial.
fn reason(error: &Error, denied: impl FnOnce() -> String) -> String {
    if error.is_denied() { denied() } else { error.to_string() }
}
