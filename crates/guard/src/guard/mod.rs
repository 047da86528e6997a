//! The guard: finds databases, looks at their log files at each tick, asks the policy, and does what it says.
//!
//! Invariants:
//! 1. It only reads, asks for writeback and gives advice: no byte of a file that it watches can change.
//! 2. No descriptor of a watched file is held between ticks.
//! 3. What fails for one file or database is told once and does not keep the others from being watched.
//! 4. Its cost is bounded: dear looks (all processes, all descriptors of a process) are repeated at intervals
//!    that follow what the last one took.

mod carry_out;
mod sampling;
mod watched;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_catalog::{Discovery, Profile, ProfileError, find_profile};
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_policy::{Facts, StepState};

use self::sampling::{LIST_AGAIN, RETRY};
use crate::config::Options;
use crate::decision::Decision;
use crate::descriptors::Descriptors;
use crate::directory::{Directory, Ids};
use crate::event::{Done, Event, Summary, Tick};
use crate::follower_history::FollowerHistory;
use crate::notify::Notifications;
use crate::streams::{Around, StreamWatch};
use crate::usage;

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
    /// Whether the profile is known by more than the process's name.
    certain: bool,
    descriptors: Descriptors,
    /// Processes of it whose titles tell of followers.
    titled: Vec<u32>,
    /// Directories of its logs that are watched for another database already.
    shared: BTreeSet<PathBuf>,
    told: bool,
}

/// The guard. See the module.
pub struct Guard {
    options: Options,
    proc: ProcRoot,
    profiles: Vec<Arc<Profile>>,
    databases: Vec<Database>,
    directories: Vec<Directory>,
    /// Descriptors of watched files in processes that are no watched database: `mysqlbinlog`, `cp`, a follower
    /// of one's own.
    others: Descriptors,
    discovery: Discovery,
    notifications: Notifications<(Option<u32>, PathBuf)>,
    state: StepState,
    ids: Ids,
    follower_history: FollowerHistory,
    problems: HashSet<(PathBuf, String)>,
    began: Instant,
    cpu_before: Duration,
    scan_due: Instant,
    list_due: Instant,
    retry_due: Instant,
    retry: u64,
    quiet_ticks: u32,
    streams: StreamWatch,
    /// Released behind streams since the last tick.
    streamed: u64,
    /// Whether the last look was a whole tick, not one at the streams alone.
    ticked: bool,
    /// Whether any file was looked at yet.
    looked: bool,
    summary: Summary,
    /// What this tick did.
    done: Vec<Done>,
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
    /// # Ok::<(), pagekeeper_catalog::ProfileError>(())
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
            state: StepState::default(),
            ids: Ids::default(),
            follower_history: FollowerHistory::default(),
            problems: HashSet::new(),
            began: now,
            cpu_before: usage::cpu_time(),
            scan_due: now,
            list_due: now + LIST_AGAIN,
            retry_due: now + RETRY,
            retry: 0,
            quiet_ticks: 0,
            streams: StreamWatch::new(now),
            streamed: 0,
            ticked: false,
            looked: false,
            summary: Summary::default(),
            done: Vec::new(),
            events: Vec::new(),
            options: Options::default(),
            proc,
        };
        guard.events.push(Event::Start {
            version: env!("CARGO_PKG_VERSION"),
            tick_ms: u64::try_from(options.tick.as_millis()).unwrap_or(u64::MAX),
            dry_run: options.dry_run,
        });
        guard.events.extend(crate::visibility::gaps().into_iter().map(|gap| Event::VisibilityGap { gap }));
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
            self.notifications.unwatch(&directory.key());
        }
        self.databases.clear();
        self.discovery.forget();
        self.problems.clear();
        let now = Instant::now();
        self.scan_due = now;
        // Files get new ids: until followers are seen anew, their pages would look unneeded.
        self.others = Descriptors::new(now);
        self.streams.forget_names(now);
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

    /// Ticks until `wait` says to stop. `wait` is given the time until the next tick; `tell` hears all events
    /// but the summary.
    pub fn run(
        &mut self,
        mut wait: impl FnMut(&mut Self, Duration) -> Control,
        tell: &mut dyn FnMut(&Event),
    ) -> Summary {
        loop {
            let began = Instant::now();
            self.tick(tell);
            let pause =
                if self.quiet_ticks >= IDLE_AFTER { self.options.idle_tick } else { self.options.tick };
            loop {
                let left = pause.saturating_sub(began.elapsed());
                let on = self.options.streams.on;
                let until = if on { self.streams.pause(Instant::now()).min(left) } else { left };
                if wait(self, until) == Control::Stop {
                    return self.summary();
                }
                if until == left {
                    break;
                }
                self.look_at_streams(tell);
            }
        }
    }

    /// Looks at the streams between two ticks.
    fn look_at_streams(&mut self, tell: &mut dyn FnMut(&Event)) {
        self.ticked = false;
        self.done.clear();
        self.follow_streams();
        for event in self.events.drain(..) {
            tell(&event);
        }
    }

    /// Follows the streams, if that is asked for.
    fn follow_streams(&mut self) {
        if !self.options.streams.on {
            return;
        }
        let databases: Vec<_> =
            self.databases.iter().map(|database| (database.pid, Arc::clone(&database.profile))).collect();
        let mut problems = Vec::new();
        let released = self.streams.look(&mut Around {
            proc: &self.proc,
            options: &self.options.streams,
            dry_run: self.options.dry_run,
            databases: &databases,
            events: &mut self.events,
            problems: &mut problems,
        });
        for (path, problem) in problems {
            self.problem(path, &problem);
        }
        self.summary.released_total_bytes += released;
        self.streamed += released;
    }

    /// Whether all processes that were named have ended, and nothing else is to be watched.
    pub fn is_done(&self) -> bool {
        !self.options.pids.is_empty()
            && !self.options.find
            && self.options.directories.is_empty()
            && self.databases.is_empty()
            && self.summary.ticks > 0
    }

    /// Looks at everything once, and decides what is to be done, which is left to the caller: nothing is released or
    /// written. `report` is given what was found, and what could not be seen.
    ///
    /// What was decided once is taken to be done: it is decided again no sooner than ten seconds later, if it is there still.
    pub fn decide(&mut self, report: &mut dyn FnMut(&Event)) -> Decision {
        let (facts, _) = self.sample(Instant::now());
        let decision = self.ask_policy(&facts);
        for event in self.events.drain(..) {
            report(&event);
        }
        decision
    }

    /// Which files the guard watches now.
    pub fn watched_files(&self) -> impl Iterator<Item = Inode> {
        self.directories.iter().flat_map(|directory| directory.entries.values().map(|entry| entry.inode))
    }

    /// Looks at everything once, and acts.
    pub fn tick(&mut self, report: &mut dyn FnMut(&Event)) {
        self.ticked = true;
        self.done.clear();
        let (facts, moved) = self.sample(Instant::now());
        let mut tick = Tick {
            databases: self.databases.len(),
            files: self.directories.iter().map(|directory| directory.entries.len()).sum(),
            followers: facts.followers.len(),
            ..Tick::default()
        };
        let before = facts.resident();
        if !self.looked && tick.files > 0 {
            self.looked = true;
            self.summary.resident_before_bytes = before;
        }
        self.summary.resident_peak_bytes = self.summary.resident_peak_bytes.max(before);

        let decision = self.ask_policy(&facts);
        tick.acts = decision.acts.len();
        let idle = !moved && decision == Decision::default();
        self.quiet_ticks = if idle { self.quiet_ticks.saturating_add(1) } else { 0 };
        tick.released_bytes = self.carry_out(decision);

        for entry in self.directories.iter().flat_map(|directory| directory.entries.values()) {
            tick.resident_bytes += entry.sample.resident;
            tick.unwritten_bytes += entry.sample.unwritten;
        }
        self.follow_streams();
        tick.released_bytes += std::mem::take(&mut self.streamed);
        tick.seconds = self.began.elapsed().as_secs_f64();
        self.summary.ticks += 1;
        self.summary.resident_after_bytes = tick.resident_bytes;
        self.events.push(Event::Tick(tick));
        for event in self.events.drain(..) {
            report(&event);
        }
    }

    /// Looks at everything once; whether anything has moved.
    fn sample(&mut self, now: Instant) -> (Facts, bool) {
        self.find_databases(now);
        self.list_directories(now);
        let moved = self.look_at_descriptors(now) | self.look_at_files();
        (self.facts(now), moved)
    }

    /// What the last tick did, by directory and class; nothing in a dry run.
    pub fn done(&self) -> &[Done] {
        &self.done
    }

    /// Whether the last look was a whole tick, and not one at streaming processes between two ticks.
    pub fn ticked(&self) -> bool {
        self.ticked
    }

    /// Released behind streaming processes so far, in bytes, by what they are called.
    pub fn released_behind_streams(&self) -> &BTreeMap<String, u64> {
        self.streams.released()
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
            released_behind_streams_bytes: self.streams.released().clone(),
            kept_bytes: self.summary.kept_bytes + self.streams.kept(),
            ..self.summary.clone()
        }
    }

    fn problem(&mut self, path: PathBuf, problem: &dyn Display) {
        let problem = problem.to_string();
        if self.problems.len() < PROBLEMS_REMEMBERED && self.problems.insert((path.clone(), problem.clone()))
        {
            self.events.push(Event::Problem { path, problem });
        }
    }
}
