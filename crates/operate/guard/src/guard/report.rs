//! The guard's reports to its caller: events, the effect of the last tick, and the figures of the
//! summary.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::OwnCost;
use pagekeeper_policy::FileClass;
use pagekeeper_policy::reported_once::{ReportOnce, WarningDedup};

use crate::budget::Budget;
use crate::config::Settings;
use crate::decision::{Action, FileAct};
use crate::directory::{DatabaseKey, Directory, ListingResult};
use crate::event::{Done, Event, Refusal, Summary};

/// The parts of a tick that all its steps share.
pub(super) struct TickContext<'a> {
    pub(super) settings: &'a Settings,
    pub(super) report: &'a mut Report,
    pub(super) now: Instant,
}

/// Reports that are collected for the caller.
pub(super) struct Report {
    /// Events that were not passed on yet.
    pub(super) events: Vec<Event>,
    /// The effect of this tick.
    pub(super) done: Vec<Done>,
    /// Bytes released behind streams since the last tick.
    pub(super) streamed: u64,
    summary: Summary,
    /// Whether the summary has the figures of a first sample.
    sampled: bool,
    problems: ReportOnce<(PathBuf, String)>,
    in_part: ReportOnce<(DatabaseKey, Budget)>,
    refused: ReportOnce<(Option<u32>, PathBuf, Refusal)>,
    began: Instant,
    cpu_before: Duration,
}

impl Report {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            events: Vec::new(),
            done: Vec::new(),
            streamed: 0,
            summary: Summary::default(),
            sampled: false,
            problems: ReportOnce::default(),
            in_part: ReportOnce::default(),
            refused: ReportOnce::default(),
            began: now,
            cpu_before: OwnCost::read().cpu,
        }
    }

    /// Reports something that could not be seen or done, once for each path.
    pub(super) fn problem(&mut self, path: PathBuf, problem: &dyn Display) {
        let problem = problem.to_string();
        if self.problems.is_news((path.clone(), problem.clone())) {
            self.events.push(Event::Problem { path, problem });
        }
    }

    /// Warns of a file, once for the directory or process that `warned` belongs to: a log has ever
    /// new files.
    pub(super) fn warning(&mut self, warned: &mut WarningDedup, path: PathBuf, warning: String) {
        let news = warned.news(warning);
        self.events.extend(news.map(|warning| Event::Warning { path, warning }));
    }

    /// Reports that a database is served in part, once for each budget.
    pub(super) fn in_part(&mut self, directory: &Directory, budget: Budget) {
        self.database_in_part(directory.database(), &directory.profile.name, &directory.path, budget);
    }

    /// Reports the same for a database, as seen at this path.
    pub(super) fn database_in_part(&mut self, key: DatabaseKey, profile: &str, path: &Path, budget: Budget) {
        let pid = key.pid();
        if self.in_part.is_news((key, budget)) {
            let (profile, path) = (profile.to_owned(), path.to_path_buf());
            self.events.push(Event::InPart { pid, profile, path, budget });
        }
    }

    /// Reports that something is not watched, once for each reason.
    pub(super) fn refused(&mut self, pid: Option<u32>, profile: &str, path: PathBuf, reason: Refusal) {
        if self.refused.is_news((pid, path.clone(), reason)) {
            self.events.push(Event::Refused { pid, profile: profile.to_owned(), path, reason });
        }
    }

    /// Reports files that a listing refused, a directory with too many files, and logs that are
    /// released because of settings.
    pub(super) fn listed(&mut self, directory: &mut Directory, listed: &ListingResult) {
        if directory.left_out > 0 {
            self.in_part(directory, Budget::Names);
        }
        for (name, setting) in &listed.decided {
            self.events.push(Event::Setting {
                pid: directory.owner,
                profile: directory.profile.name.clone(),
                path: directory.path_of(name),
                setting: setting.clone(),
            });
        }
        for (name, warning) in &listed.unknown {
            let path = directory.path_of(name);
            self.warning(&mut directory.warned, path, warning.clone());
        }
        if let Some(name) = &listed.refused {
            let path = if name.is_empty() { directory.path.clone() } else { directory.path_of(name) };
            self.refused(directory.owner, &directory.profile.name, path, Refusal::NotOwner);
        }
    }

    /// Makes problems be reported once more.
    pub(super) fn forget_problems(&mut self) {
        self.problems.forget();
        self.in_part.forget();
        self.refused.forget();
    }

    /// Passes all events since the last call to the caller.
    pub(super) fn pass_on(&mut self, report: &mut dyn FnMut(&Event)) {
        for event in self.events.drain(..) {
            report(&event);
        }
    }

    /// Returns the seconds since the start.
    pub(super) fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Records the bytes that were resident in that many log files before this tick's acts.
    pub(super) fn resident_before(&mut self, files: usize, bytes: u64) {
        if !self.sampled && files > 0 {
            self.sampled = true;
            self.summary.resident_before_bytes = bytes;
        }
        self.summary.resident_peak_bytes = self.summary.resident_peak_bytes.max(bytes);
    }

    /// Records the bytes that are resident after these acts.
    pub(super) fn resident_after(&mut self, bytes: u64) {
        self.summary.ticks += 1;
        self.summary.resident_after_bytes = bytes;
    }

    /// Records the bytes that were released behind streams.
    pub(super) fn behind_streams(&mut self, bytes: u64) {
        self.summary.released_total_bytes += bytes;
        self.streamed += bytes;
    }

    /// Records an act on a file of this directory.
    pub(super) fn act_done(&mut self, act: &FileAct, directory: &mut Directory, released: u64, kept: u64) {
        directory.unreleased_since = directory.unreleased_since.filter(|_| released == 0);
        match act.action {
            Action::StartWriteback => {}
            Action::Release => {
                *self.summary.released_bytes.entry(act.class).or_default() += released;
                self.summary.released_total_bytes += released;
                self.summary.kept_bytes += kept;
            }
        }
        let done = self.done_to(directory, act.class);
        done.acts += 1;
        done.released_bytes += released;
        done.kept_bytes += kept;
    }

    /// Records bytes of released files of a directory that were read back.
    pub(super) fn read_back(&mut self, directory: &Directory, class: FileClass, bytes: u64) {
        *self.summary.read_back_bytes.entry(class).or_default() += bytes;
        self.done_to(directory, class).read_back_bytes += bytes;
    }

    /// Returns the record of this tick for the files of a class in a directory.
    fn done_to(&mut self, directory: &Directory, class: FileClass) -> &mut Done {
        let same = |done: &Done| {
            done.class == class && done.pid == directory.owner && done.directory == directory.path
        };
        let at = self.done.iter().position(same).unwrap_or_else(|| {
            self.done.push(Done {
                pid: directory.owner,
                profile: directory.profile.name.clone(),
                directory: directory.path.clone(),
                class,
                acts: 0,
                released_bytes: 0,
                kept_bytes: 0,
                read_back_bytes: 0,
            });
            self.done.len() - 1
        });
        &mut self.done[at]
    }

    /// Returns the number of ticks.
    pub(super) fn ticks(&self) -> u64 {
        self.summary.ticks
    }

    /// Returns the summary of the run so far, without the figures about streams and memory cgroups.
    pub(super) fn summary(&self) -> Summary {
        let seconds = self.seconds();
        let cost = OwnCost::read();
        let cpu_seconds = cost.cpu.saturating_sub(self.cpu_before).as_secs_f64();
        Summary {
            seconds,
            cpu_seconds,
            cpu_percent: cpu_seconds / seconds.max(f64::MIN_POSITIVE) * 100.0,
            memory_peak_bytes: cost.memory_peak,
            ..self.summary.clone()
        }
    }
}
