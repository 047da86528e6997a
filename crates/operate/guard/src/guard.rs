//! The guard: finds databases, samples their log files at each tick, asks the policy, and carries
//! out its decisions.
//!
//! Invariants:
//! 1. It only reads, asks for writeback and gives advice: no byte of a file that it watches can
//!    change.
//! 2. No descriptor of a watched file is held between ticks.
//! 3. A failure at one file or database is reported once, and does not keep the others from being
//!    watched.
//! 4. Users share the budgets, and a user's databases take turns: an excess of one costs the others
//!    nothing.
//! 5. A file system that does not answer keeps only its own databases waiting.
//! 6. Its cost is bounded. Processes and their descriptors are read in slices of processor time, at
//!    intervals that depend on the previous cost. A tick ends soon, so that signals are heeded.

mod carry_out;
#[cfg(test)]
mod claim_tests;
mod claimant;
mod claims;
#[cfg(test)]
mod crowd_tests;
mod decide;
mod group_sight;
mod groups;
mod hung_jobs;
mod jobs;
#[cfg(test)]
mod limit_tests;
#[cfg(test)]
mod named_tests;
mod removed;
#[cfg(test)]
mod removed_tests;
mod report;
#[cfg(test)]
mod rotation_tests;
mod sampling;
#[cfg(test)]
mod selection_tests;
#[cfg(test)]
mod stranger_tests;
mod streams;
#[cfg(test)]
mod tests;
mod unreleased;
mod watched;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pagekeeper_catalog::ProfileError;
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_policy::StepFacts;
use pagekeeper_streams::StreamReport;
use pagekeeper_text::unescaped;

use self::carry_out::carry_out;
use self::decide::Decider;
use self::groups::CgroupWatch;
use self::report::{Report, TickContext};
use self::streams::StreamWatch;
use self::watched::WatchList;
use crate::config::{Options, Settings};
use crate::decision::Decision;
use crate::directory::Directory;
use crate::event::{Done, Event, Summary, Tick};
use crate::visibility;

/// Ticks without any change after which the guard takes samples less often.
const IDLE_AFTER_TICKS: u32 = 20;

/// After this time [`Guard::has_seen_all`] no longer waits for new databases.
const SEEN_WITHIN: Duration = Duration::from_secs(60);

/// The next step that the caller of [`Guard::run`] wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Go on with the next tick.
    Continue,
    /// End, and return the summary.
    Stop,
}

/// The guard. See the module.
pub struct Guard {
    settings: Settings,
    watched: WatchList,
    decider: Decider,
    streams: StreamWatch,
    groups: CgroupWatch,
    report: Report,
    quiet_ticks: u32,
}

impl Guard {
    /// A guard that has taken no sample yet. Fails if a profile that was asked for does not exist,
    /// or if nothing could ever be watched by it.
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
        let now = Instant::now();
        let settings = Settings::new(options)?;
        let mut report = Report::new(now);
        report.events.push(Event::Start {
            version: env!("CARGO_PKG_VERSION"),
            tick_ms: u64::try_from(settings.options.tick.as_millis()).unwrap_or(u64::MAX),
            dry_run: settings.options.dry_run,
        });
        report.events.extend(visibility::gaps().into_iter().map(|gap| Event::VisibilityGap { gap }));
        let mut guard = Self {
            streams: StreamWatch::new(proc.clone(), &settings, &mut report),
            settings,
            watched: WatchList::new(proc, now),
            decider: Decider::new(now),
            groups: CgroupWatch::new(now),
            report,
            quiet_ticks: 0,
        };
        guard.watched.watch_named_directories(&guard.settings, &mut guard.report);
        Ok(guard)
    }

    /// Checks options as [`Self::new`] does, and starts nothing.
    ///
    /// # Errors
    ///
    /// If they name an unknown profile or rule, or contradict each other.
    pub fn check(options: Options) -> Result<(), ProfileError> {
        Settings::new(options).map(drop)
    }

    /// Takes a new configuration. Everything that is watched is found again; the figures of the
    /// summary continue.
    pub fn reload(&mut self, options: Options) -> Result<(), ProfileError> {
        self.settings = Settings::new(options)?;
        let now = Instant::now();
        self.watched.forget(now);
        self.report.forget_problems();
        self.streams.apply(&self.settings, &mut self.report);
        self.groups.forget(&mut self.watched);
        self.watched.watch_named_directories(&self.settings, &mut self.report);
        Ok(())
    }

    /// Ticks until `wait` says to stop. `wait` gets the time until the next tick; `report` gets all
    /// events except the summary.
    pub fn run(
        &mut self,
        mut wait: impl FnMut(&mut Self, Duration) -> Control,
        report: &mut dyn FnMut(&Event),
    ) -> Summary {
        loop {
            let began = Instant::now();
            self.tick(report);
            let options = &self.settings.options;
            let pause = if self.quiet_ticks >= IDLE_AFTER_TICKS { options.idle_tick } else { options.tick };
            if wait(self, pause.saturating_sub(began.elapsed())) == Control::Stop {
                self.streams.stop(&mut self.report);
                self.report.pass_on(report);
                return self.summary();
            }
        }
    }

    /// Returns whether all processes that were named have ended, and nothing else is to be watched.
    pub fn is_done(&self) -> bool {
        let options = &self.settings.options;
        !options.pids.is_empty()
            && !options.find
            && options.directories.is_empty()
            && self.watched.databases.is_empty()
            && self.report.ticks() > 0
    }

    /// Returns whether everything that is there was found; otherwise more ticks are needed. After a
    /// minute the guard stops waiting, and reports that: there may always be new processes.
    pub fn has_seen_all(&mut self) -> bool {
        let seen = self.watched.has_seen_all(&self.settings);
        if !seen {
            self.watched.hurry();
        }
        let late = self.report.seconds() >= SEEN_WITHIN.as_secs_f64();
        if late && !seen {
            let problem =
                "not everything could be inspected within a minute: new processes and files are left out";
            self.report.problem(self.watched.proc.path().to_path_buf(), &problem);
        }
        self.report.ticks() > 0 && (seen || late)
    }

    /// Returns whether a database had no processor time left in the last tick, for a sample or to
    /// finish listing its directories, and gets some later: its pages are not released yet. Always
    /// false after the first minute, as for [`Self::has_seen_all`].
    pub fn is_behind(&self) -> bool {
        let is_listed = |directory: &Directory| directory.is_listed_now();
        let waits = self.watched.jobs.turns.anyone_waits()
            || self.watched.directories.iter().any(|directory| is_listed(directory));
        waits && self.report.seconds() < SEEN_WITHIN.as_secs_f64()
    }

    /// Samples everything and returns the decision, which is left to the caller: nothing is
    /// released, reclaimed or written. `report` gets what was found, and what could not be seen.
    ///
    /// A decision counts as carried out: it is made again after ten seconds at the earliest, if it
    /// still applies.
    pub fn decide(&mut self, report: &mut dyn FnMut(&Event)) -> Decision {
        let (facts, _) = self.sample(false, Instant::now());
        let decision = self.decider.decide(&facts, &mut self.watched, &self.settings);
        self.report.pass_on(report);
        decision
    }

    /// Returns the files that the guard watches now.
    pub fn watched_files(&self) -> impl Iterator<Item = Inode> {
        self.watched
            .directories
            .iter()
            .flat_map(|directory| directory.entries.values().map(|entry| entry.inode))
    }

    /// Samples everything, and acts.
    pub fn tick(&mut self, report: &mut dyn FnMut(&Event)) {
        self.report.done.clear();
        let (facts, moved) = self.sample(true, Instant::now());
        let directories = &self.watched.directories;
        let mut tick = Tick {
            databases: self.watched.databases.iter().filter(|database| database.is_watched()).count(),
            files: directories.iter().map(|directory| directory.entries.len()).sum(),
            followers: facts.followers.len(),
            hung: self.watched.jobs.hung_databases(),
            hung_seconds: self.watched.jobs.hung_for().as_secs_f64(),
            left_out_files: directories.iter().map(|directory| directory.left_out).sum(),
            ..Tick::default()
        };
        self.report.resident_before(tick.files, facts.resident());

        let decision = self.decider.decide(&facts, &mut self.watched, &self.settings);
        (tick.read_back_bytes, tick.kept_logs) =
            self.decider.report_read_back(&self.watched, &mut self.report);
        tick.acts = decision.acts.len();
        let idle = !moved && decision == Decision::default();
        self.quiet_ticks = if idle { self.quiet_ticks.saturating_add(1) } else { 0 };
        let done = carry_out(decision, &mut self.watched, &self.settings, &mut self.report);
        self.decider.released(&facts, &done.ranges);
        self.decider.not_done(&done.not_done);
        tick.postponed_acts = done.not_done.len();
        let now = Instant::now();
        let mut context = TickContext { settings: &self.settings, report: &mut self.report, now };
        let (of_removed, acts) = self.watched.release_removed(&mut context);
        tick.acts += acts;

        if !self.settings.options.dry_run {
            self.watched.report_unreleased(&mut self.report, Instant::now());
        }

        for directory in &self.watched.directories {
            let sums = directory.sums();
            tick.resident_bytes += sums.resident;
            tick.unwritten_bytes += sums.unwritten;
        }
        self.streams.look(&mut self.report);
        tick.released_bytes = done.released + of_removed + std::mem::take(&mut self.report.streamed);
        tick.seconds = self.report.seconds();
        self.report.resident_after(tick.resident_bytes);
        self.report.events.push(Event::Tick(tick));
        self.report.pass_on(report);
    }

    /// Samples everything, and acts on memory cgroups if `acts`. Returns whether anything has
    /// moved.
    fn sample(&mut self, acts: bool, now: Instant) -> (StepFacts, bool) {
        let watched = &mut self.watched;
        let mut tick = TickContext { settings: &self.settings, report: &mut self.report, now };
        watched.jobs.took.clear();
        watched.find_databases(&mut tick);
        watched.list_directories(&mut tick);
        let moved = watched.sample_descriptors(&mut tick) | watched.sample_files(&mut tick);
        let report = tick.report;
        if self.decider.is_retry_due(now) {
            watched.watch_named_directories(&self.settings, report);
        }
        self.groups.look(watched, &self.settings, report, acts, now);
        (self.decider.facts(watched, &self.settings, report, now), moved)
    }

    /// Returns the effect of the last tick, by directory and class; empty in a dry run.
    pub fn done(&self) -> &[Done] {
        &self.report.done
    }

    /// Returns how long the last tick took for each database's process: listing, sampling and acts.
    pub fn tick_by_process(&self) -> BTreeMap<u32, Duration> {
        self.watched.jobs.took.iter().filter_map(|(key, took)| Some((key.pid()?, *took))).collect()
    }

    /// Returns the figures about streams so far.
    pub fn streams(&self) -> StreamReport {
        self.streams.figures()
    }

    /// Returns the summary of the run so far.
    pub fn summary(&self) -> Summary {
        let (summary, streams) = (self.report.summary(), self.streams());
        let reclaimed = self.groups.reclaimed().iter();
        Summary {
            released_behind_streams_bytes: streams.released_by_program,
            reclaimed_in_cgroups_bytes: reclaimed
                .map(|(path, bytes)| (unescaped(path).into_owned(), *bytes))
                .collect(),
            kept_bytes: summary.kept_bytes + streams.totals.resident,
            ..summary
        }
    }
}
