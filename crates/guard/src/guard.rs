//! The guard: finds databases, looks at their log files at each tick, asks the policy, and does what it says.
//!
//! Invariants:
//! 1. It only reads, asks for writeback and gives advice: no byte of a file that it watches can change.
//! 2. No descriptor of a watched file is held between ticks.
//! 3. What fails for one file or database is told once and does not keep the others from being watched.
//! 4. Its cost is bounded: dear looks (all processes, all descriptors of a process) are repeated at intervals that follow
//!    what the last one took.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fmt::Display;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Error, Flush, ReleaseOptions, release, start_writeback};
use pagekeeper_policy::{Act, Facts, FileClass, FileId, State, step};

use crate::config::Options;
use crate::descriptors::{Descriptors, log_directories};
use crate::directory::{Directory, Ids};
use crate::discover::{Discovery, recognise};
use crate::event::{Event, Summary, Tick};
use crate::facts::{add, by_file, overwritten_logs};
use crate::notify::{Change, Notifications};
use crate::profile::{Profile, ProfileError, find_profile};
use crate::{postgresql, usage};

/// What resisted a release is tried again this often.
const RETRY: Duration = Duration::from_secs(10);
/// Directories are listed this often even without news: inotify does not see all network file systems.
const LIST_AGAIN: Duration = Duration::from_secs(60);
/// A scan of all processes that takes a millisecond is repeated after this many, but not sooner than a second.
const SCAN_SHARE: u32 = 1000;
/// Ticks without any news after which the guard looks less often.
const IDLE_AFTER: u32 = 20;
/// Paths whose problems are remembered, so that each is told once.
const PROBLEMS_REMEMBERED: usize = 10_000;

/// What the caller of [`Guard::run`] wants next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Go on with the next tick.
    Continue,
    /// End, and give the summary.
    Stop,
}

/// A database that is watched.
struct Database {
    pid: u32,
    started: u64,
    profile: Arc<Profile>,
    descriptors: Descriptors,
    /// Processes of it whose titles tell of followers.
    titled: Vec<u32>,
    told: bool,
}

/// The guard. See the module.
pub struct Guard {
    options: Options,
    proc: ProcRoot,
    profiles: Vec<Arc<Profile>>,
    databases: Vec<Database>,
    directories: Vec<Directory>,
    /// Descriptors of watched files in processes that are no watched database: `mysqlbinlog`, `cp`, a follower of one's own.
    others: Descriptors,
    discovery: Discovery,
    notifications: Notifications<PathBuf>,
    state: State,
    ids: Ids,
    problems: HashSet<PathBuf>,
    began: Instant,
    cpu_before: Duration,
    scan_due: Instant,
    list_due: Instant,
    retry_due: Instant,
    retry: u64,
    quiet_ticks: u32,
    summary: Summary,
    events: Vec<Event>,
}

impl Guard {
    /// A guard that has not looked yet. Fails if a profile that was asked for does not exist.
    ///
    /// ```
    /// use pagekeeper_guard::{Guard, Options};
    /// use pagekeeper_kernel::process::ProcRoot;
    /// let options = Options { dry_run: true, ..Options::default() };
    /// let mut guard = Guard::new(options, ProcRoot::default())?;
    /// guard.tick(&mut |event| println!("{event:?}"));
    /// assert_eq!(guard.summary().released_total_bytes, 0);
    /// # Ok::<(), pagekeeper_guard::ProfileError>(())
    /// ```
    pub fn new(options: Options, proc: ProcRoot) -> Result<Self, ProfileError> {
        if let Some(name) = &options.profile {
            find_profile(&options.profiles, name)?;
        }
        let now = Instant::now();
        let mut guard = Self {
            profiles: Vec::new(),
            databases: Vec::new(),
            directories: Vec::new(),
            others: Descriptors::new(now),
            discovery: Discovery::default(),
            notifications: Notifications::new(),
            state: State::default(),
            ids: Ids::default(),
            problems: HashSet::new(),
            began: now,
            cpu_before: usage::cpu_time(),
            scan_due: now,
            list_due: now + LIST_AGAIN,
            retry_due: now + RETRY,
            retry: 0,
            quiet_ticks: 0,
            summary: Summary::default(),
            events: Vec::new(),
            options: Options::default(),
            proc,
        };
        guard.events.push(Event::Start {
            version: env!("CARGO_PKG_VERSION"),
            tick_ms: u64::try_from(options.tick.as_millis()).unwrap_or(u64::MAX),
            dry_run: options.dry_run,
        });
        guard.events.extend(
            crate::limits::limits()
                .into_iter()
                .map(|limit| Event::Limited { limit }),
        );
        guard.take_options(options);
        guard.watch_named_directories();
        Ok(guard)
    }

    /// Takes a new configuration; what is watched is found anew, figures of the summary go on.
    pub fn reload(&mut self, options: Options) -> Result<(), ProfileError> {
        if let Some(name) = &options.profile {
            find_profile(&options.profiles, name)?;
        }
        for directory in std::mem::take(&mut self.directories) {
            self.notifications.unwatch(&directory.path);
        }
        self.databases.clear();
        self.discovery.forget();
        self.scan_due = Instant::now();
        self.take_options(options);
        self.watch_named_directories();
        Ok(())
    }

    fn take_options(&mut self, mut options: Options) {
        for profile in &mut options.profiles {
            for log in &mut profile.logs {
                if let Some(rule) = options.rules.get(&log.class) {
                    log.rule = *rule;
                }
            }
        }
        self.profiles = options.profiles.iter().cloned().map(Arc::new).collect();
        self.options = options;
    }

    /// Ticks until `wait` says to stop. `wait` is given the time until the next tick; `tell` hears all events but the summary.
    pub fn run(
        &mut self,
        mut wait: impl FnMut(&mut Self, Duration) -> Control,
        tell: &mut dyn FnMut(&Event),
    ) -> Summary {
        loop {
            let began = Instant::now();
            self.tick(tell);
            let pause = if self.quiet_ticks >= IDLE_AFTER {
                self.options.idle_tick
            } else {
                self.options.tick
            };
            let left = pause.saturating_sub(began.elapsed());
            if wait(self, left) == Control::Stop {
                return self.summary();
            }
        }
    }

    /// Whether all processes that were named have ended, and nothing else is to be watched.
    pub fn is_done(&self) -> bool {
        !self.options.pids.is_empty()
            && !self.options.find
            && self.options.directories.is_empty()
            && self.databases.is_empty()
            && self.summary.ticks > 0
    }

    /// Looks at everything once, and acts.
    pub fn tick(&mut self, tell: &mut dyn FnMut(&Event)) {
        let now = Instant::now();
        self.find_databases(now);
        self.list_directories(now);
        let moved = self.look_at_descriptors(now);
        self.look_at_files();
        let facts = self.facts(now);
        let mut tick = Tick {
            databases: self.databases.len(),
            files: self
                .directories
                .iter()
                .map(|directory| directory.entries.len())
                .sum(),
            followers: facts.followers.len(),
            ..Tick::default()
        };
        let resident = |directories: &[Directory]| -> u64 {
            directories
                .iter()
                .flat_map(|dir| dir.entries.values())
                .map(|entry| entry.sample.resident)
                .sum()
        };
        let before = resident(&self.directories);
        if self.summary.resident_before_bytes == 0 {
            self.summary.resident_before_bytes = before;
        }
        self.summary.resident_peak_bytes = self.summary.resident_peak_bytes.max(before);

        let acts = step(&mut self.state, &facts);
        tick.acts = acts.len();
        for act in acts {
            tick.released_bytes += self.act(act);
        }

        self.quiet_ticks = if moved || tick.acts > 0 {
            0
        } else {
            self.quiet_ticks.saturating_add(1)
        };
        tick.resident_bytes = resident(&self.directories);
        tick.unwritten_bytes = self
            .directories
            .iter()
            .flat_map(|dir| dir.entries.values())
            .map(|entry| entry.sample.unwritten)
            .sum();
        tick.seconds = self.began.elapsed().as_secs_f64();
        self.summary.ticks += 1;
        self.summary.resident_after_bytes = tick.resident_bytes;
        self.events.push(Event::Tick(tick));
        for event in self.events.drain(..) {
            tell(&event);
        }
    }

    /// What the run did so far.
    pub fn summary(&self) -> Summary {
        let seconds = self.began.elapsed().as_secs_f64();
        let cpu_seconds = usage::cpu_time().saturating_sub(self.cpu_before).as_secs_f64();
        Summary {
            seconds,
            cpu_seconds,
            cpu_percent: cpu_seconds / seconds.max(f64::MIN_POSITIVE) * 100.0,
            memory_peak_bytes: usage::memory_peak().unwrap_or(0),
            ..self.summary.clone()
        }
    }

    fn problem(&mut self, path: PathBuf, problem: &dyn Display) {
        if self.problems.len() < PROBLEMS_REMEMBERED && self.problems.insert(path.clone()) {
            self.events.push(Event::Problem {
                path,
                problem: problem.to_string(),
            });
        }
    }

    /// Drops databases that ended, and takes up new ones.
    fn find_databases(&mut self, now: Instant) {
        let (databases, events, proc) = (&mut self.databases, &mut self.events, &self.proc);
        let mut lost = Vec::new();
        databases.retain(|database| {
            let alive = proc
                .start_time(database.pid)
                .is_ok_and(|started| started == database.started);
            if !alive {
                lost.push(database.pid);
                if database.told {
                    events.push(Event::Lost {
                        pid: database.pid,
                        profile: database.profile.name.clone(),
                    });
                }
            }
            alive
        });
        if !lost.is_empty() {
            for directory in &self.directories {
                if directory.owner.is_some_and(|owner| lost.contains(&owner)) {
                    self.notifications.unwatch(&directory.path);
                }
            }
            self.directories
                .retain(|directory| directory.owner.is_none_or(|owner| !lost.contains(&owner)));
            self.others.ask();
            self.scan_due = now;
        }
        if now < self.scan_due {
            return;
        }
        let known: Vec<u32> = self.databases.iter().map(|database| database.pid).collect();
        if self.options.find
            || self
                .databases
                .iter()
                .any(|database| database.profile.postgresql_titles)
        {
            match self.proc.pids() {
                Ok(pids) => self.scan(&pids, &known),
                Err(error) => self.problem(error.path().to_path_buf(), &error),
            }
        }
        for pid in self.options.pids.clone() {
            if !known.contains(&pid) {
                self.take_named_process(pid);
            }
        }
        self.scan_due = Instant::now() + (now.elapsed() * SCAN_SHARE).max(Duration::from_secs(1));
    }

    fn scan(&mut self, pids: &[u32], known: &[u32]) {
        if self.options.find {
            let wanted: Vec<Arc<Profile>> = match &self.options.profile {
                Some(name) => self
                    .profiles
                    .iter()
                    .filter(|profile| profile.name == *name)
                    .cloned()
                    .collect(),
                None => self.profiles.clone(),
            };
            for found in self.discovery.scan(&self.proc, pids, known, &wanted) {
                self.take_up(found.pid, found.profile);
            }
        }
        for database in self
            .databases
            .iter_mut()
            .filter(|database| database.profile.postgresql_titles)
        {
            let is_child = |pid: &u32| self.proc.parent(*pid).is_ok_and(|parent| parent == database.pid);
            let tells = |pid: &u32| {
                title(&self.proc, *pid).contains("walsender") || title(&self.proc, *pid).contains("archiver")
            };
            database.titled = pids
                .iter()
                .copied()
                .filter(|pid| is_child(pid) && tells(pid))
                .collect();
        }
    }

    fn take_named_process(&mut self, pid: u32) {
        let by_name = self.options.profile.as_ref().and_then(|name| {
            self.profiles
                .iter()
                .find(|profile| profile.name == *name)
                .cloned()
        });
        match by_name.or_else(|| recognise(&self.proc, pid, &self.profiles)) {
            Some(profile) => self.take_up(pid, profile),
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

    fn take_up(&mut self, pid: u32, profile: Arc<Profile>) {
        // One that ended in between is no loss.
        let Ok(started) = self.proc.start_time(pid) else {
            return;
        };
        let now = Instant::now();
        self.databases.push(Database {
            pid,
            started,
            profile,
            descriptors: Descriptors::new(now),
            titled: Vec::new(),
            told: false,
        });
        self.others.ask();
    }

    fn watch_named_directories(&mut self) {
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
            let Some((profile, directories)) = crate::named::logs_below(&path, &candidates) else {
                self.problem(
                    path,
                    &"no file in it looks like a log of any profile: name one with --profile",
                );
                continue;
            };
            self.events.push(Event::Found {
                pid: None,
                profile: profile.name.clone(),
                directories: directories.clone(),
            });
            for directory in directories {
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

    fn list_directories(&mut self, now: Instant) {
        let all = now >= self.list_due;
        if all {
            self.list_due = now + LIST_AGAIN;
        }
        for change in self.notifications.changes() {
            for directory in &mut self.directories {
                directory.stale |= match &change {
                    Change::In(path) => *path == directory.path,
                    Change::Anywhere => true,
                };
            }
        }
        let mut problems = Vec::new();
        for directory in &mut self.directories {
            if !directory.stale && !all {
                continue;
            }
            let first = directory.entries.is_empty();
            let listed = directory.open(&self.proc).and_then(|fd| {
                if first {
                    self.notifications.watch(fd.as_fd(), directory.path.clone());
                }
                directory.list(fd.as_fd(), &mut self.ids)
            });
            if let Err(error) = listed {
                directory.entries.clear();
                if !error.is_gone() {
                    problems.push((directory.path.clone(), error));
                }
            }
            // New files: their writers and followers are to be seen at once.
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
    fn look_at_descriptors(&mut self, now: Instant) -> bool {
        let positions = |guard: &Self| -> Vec<u64> {
            guard
                .descriptors()
                .map(|descriptor| descriptor.position)
                .collect()
        };
        let before = positions(self);
        let mut problems = Vec::new();
        let mut new_directories = Vec::new();
        for database in &mut self.databases {
            database.descriptors.poll(&self.proc);
            if !database.descriptors.is_due(now) {
                continue;
            }
            match directories_of(&self.proc, database) {
                Ok(found) => {
                    let watched = |path: &PathBuf| {
                        self.directories.iter().any(|directory| {
                            directory.path == *path
                                && directory.owner.is_none_or(|owner| owner == database.pid)
                        })
                    };
                    let new: Vec<PathBuf> = found.into_iter().filter(|path| !watched(path)).collect();
                    if !new.is_empty() || !database.told {
                        let (pid, profile) = (Some(database.pid), database.profile.name.clone());
                        if !new.is_empty() {
                            self.events.push(Event::Found {
                                pid,
                                profile,
                                directories: new.clone(),
                            });
                            database.told = true;
                        }
                    }
                    new_directories.extend(new.into_iter().map(|path| (database.pid, path)));
                }
                Err(error) => problems.push((self.proc.root(database.pid), denied(&error, database.pid))),
            }
            for (pid, error) in database
                .descriptors
                .list(&self.proc, &[database.pid], &self.directories)
            {
                if !error.is_gone() {
                    problems.push((self.proc.root(pid), denied(&error, pid)));
                }
            }
        }
        for (pid, path) in new_directories {
            self.watch_directory_of(pid, path);
        }
        self.others.poll(&self.proc);
        if self.others.is_due(now) && !self.directories.is_empty() {
            let known: Vec<u32> = self.databases.iter().map(|database| database.pid).collect();
            let own = std::process::id();
            let pids = self.proc.pids().unwrap_or_default();
            let others: Vec<u32> = pids
                .into_iter()
                .filter(|pid| !known.contains(pid) && *pid != own)
                .collect();
            // Processes of other users that may not be looked into can't be followers that matter: said once at the start.
            self.others.list(&self.proc, &others, &self.directories);
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
        let through = if self.proc.same_root(pid).unwrap_or(true) {
            None
        } else {
            Some(pid)
        };
        let command_line = self.proc.command_line(pid).unwrap_or_default();
        let mut directory = Directory::new(
            path,
            Some(pid),
            through,
            Arc::clone(&database.profile),
            command_line,
        );
        let listed = directory.open(&self.proc).and_then(|fd| {
            self.notifications.watch(fd.as_fd(), directory.path.clone());
            directory.list(fd.as_fd(), &mut self.ids)
        });
        database.descriptors.ask();
        let path = directory.path.clone();
        self.directories.push(directory);
        if let Err(error) = listed {
            self.problem(path, &error);
        } else if let Some(database) = self.databases.iter_mut().find(|database| database.pid == pid) {
            database.descriptors.list(&self.proc, &[pid], &self.directories);
        }
    }

    fn descriptors(&self) -> impl Iterator<Item = &crate::descriptors::Descriptor> {
        let databases = self
            .databases
            .iter()
            .flat_map(|database| &database.descriptors.known);
        databases.chain(&self.others.known)
    }

    fn look_at_files(&mut self) {
        let busy: HashSet<FileId> = self.descriptors().map(|descriptor| descriptor.file).collect();
        let mut problems = Vec::new();
        for directory in &mut self.directories {
            for entry in directory.entries.values_mut() {
                if busy.contains(&entry.id) {
                    entry.look_now();
                }
            }
            match directory.open(&self.proc) {
                Ok(fd) => directory.look(fd.as_fd(), &mut self.ids, |path, error| {
                    problems.push((path.to_path_buf(), unknown(error)));
                }),
                Err(_) => directory.stale = true,
            }
        }
        for (path, problem) in problems {
            self.problem(path, &problem);
        }
    }

    fn facts(&mut self, now: Instant) -> Facts {
        if now >= self.retry_due {
            self.retry += 1;
            self.retry_due = now + RETRY;
        }
        let mut facts = Facts {
            retry: self.retry,
            ..Facts::default()
        };
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
                for directory in self
                    .directories
                    .iter()
                    .filter(|directory| directory.owner == Some(database.pid))
                {
                    facts
                        .followers
                        .extend(postgresql::follower_in(directory, pid, &title));
                }
            }
        }
        facts
    }

    /// Does one act; the bytes it released.
    fn act(&mut self, act: Act) -> u64 {
        let (file, range, kind) = match act {
            Act::StartWriteback { file, range } => (file, range, "start_writeback"),
            Act::Release { file, range } => (file, range, "release"),
            Act::Warn { file, warning } => {
                if let Some((directory, name)) = self.place_of(file) {
                    let directory = &self.directories[directory];
                    let hint = directory.spec(directory.entries[&name].log).hint.clone();
                    let warning =
                        hint.map_or_else(|| warning.to_string(), |hint| format!("{warning}; {hint}"));
                    self.events.push(Event::Warning {
                        path: directory.path_of(&name),
                        warning,
                    });
                }
                return 0;
            }
            _ => return 0,
        };
        let Some((index, name)) = self.place_of(file) else {
            return 0;
        };
        let path = self.directories[index].path_of(&name);
        if self.options.dry_run {
            self.events.push(Event::Would {
                path,
                act: kind,
                start: range.start,
                end: range.end,
            });
            return 0;
        }
        match self.act_on(index, &name, range, kind == "release") {
            Ok(released) => released,
            Err(error) if error.is_gone() => {
                self.directories[index].stale = true;
                0
            }
            Err(error) => {
                self.problem(path, &error);
                0
            }
        }
    }

    fn act_on(
        &mut self,
        index: usize,
        name: &OsString,
        range: std::ops::Range<u64>,
        drop: bool,
    ) -> Result<u64, Error> {
        let Some(file) = self.directories[index].open_file(&self.proc, name)? else {
            self.directories[index].stale = true;
            return Ok(0);
        };
        if !drop {
            start_writeback(&file, range)?;
            return Ok(0);
        }
        let options = ReleaseOptions {
            flush: Flush::Watch,
            // What takes longer is taken up at the next tick, so that a signal is heeded at once.
            patience: self.options.tick,
            retry_pause: Duration::ZERO,
            explain: false,
        };
        let report = release(&file, range, &options)?;
        let directory = &mut self.directories[index];
        directory.take_sample(name, &file)?;
        let class = directory.spec(directory.entries[name].log).class;
        *self.summary.released_bytes.entry(class).or_default() += report.released;
        self.summary.released_total_bytes += report.released;
        self.summary.kept_bytes += report.kept();
        Ok(report.released)
    }

    fn place_of(&self, file: FileId) -> Option<(usize, OsString)> {
        self.directories
            .iter()
            .enumerate()
            .find_map(|(index, directory)| {
                let (name, _) = directory.entries.iter().find(|(_, entry)| entry.id == file)?;
                Some((index, name.clone()))
            })
    }

    /// What the guard has released so far, by file class, in bytes.
    pub fn released(&self) -> &BTreeMap<FileClass, u64> {
        &self.summary.released_bytes
    }
}

/// Directories of a database's logs: where it has log files open, and those its profile names.
fn directories_of(proc: &ProcRoot, database: &Database) -> Result<Vec<PathBuf>, Error> {
    let profile = &database.profile;
    let mut found = log_directories(proc, database.pid, |path: &Path| profile.log_of(path).is_some())?;
    if !profile.directories.is_empty() {
        let base = proc.working_directory(database.pid)?;
        found.extend(profile.directories.iter().map(|directory| base.join(directory)));
    }
    let mut found: Vec<PathBuf> = found.into_iter().collect();
    found.sort_unstable();
    Ok(found)
}

fn title(proc: &ProcRoot, pid: u32) -> String {
    let line = proc.command_line(pid).unwrap_or_default();
    line.iter()
        .map(|argument| argument.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
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
