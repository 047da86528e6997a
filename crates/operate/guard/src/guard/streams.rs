//! Follows streaming programs by events of the kernel, in a [thread](StreamThread) of its own that
//! reports to the loop.
//!
//! Invariants:
//! 1. The loop never waits for the thread while it ticks.
//! 2. A program that a profile names as a database is not followed.
//! 3. If streams can't be followed, the guard reports that once, and everything else continues.
//!
//! A [`Service`] takes users' requests; it outlives the thread.

mod rules;

use std::sync::{Arc, Mutex};
use std::time::Instant;

use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_streams::{
    CurrentLink, IsMember, Service, StayReason, StreamEvent, StreamOptions, StreamReport, StreamThread,
    StreamUpdate, stream_name,
};

use self::rules::StreamRules;
use super::report::Report;
use crate::config::{Options, Settings, Streams};
use crate::decision::Action;
use crate::event::Event;

/// The processes to follow, and those never to follow.
#[derive(Debug, Clone, PartialEq)]
struct FollowedNames {
    streams: Streams,
    never: Vec<String>,
}

impl FollowedNames {
    /// Returns the processes of the configuration; `None` if streams are off. Globs of profiles
    /// that the kernel can't compare are left to [`StreamRules`].
    fn of(options: &Options) -> Option<Self> {
        let globs = options.profiles.iter().flat_map(|profile| &profile.processes);
        let mut never: Vec<String> = globs.filter_map(|glob| stream_name(glob.glob().glob()).ok()).collect();
        never.sort_unstable();
        never.dedup();
        // The socket may change while streams are followed.
        let streams = Streams { socket: None, ..options.streams.clone() };
        streams.on.then_some(Self { streams, never })
    }

    /// Returns a test for processes in the units and control groups to follow, if there are any.
    fn members(&self, proc: &ProcRoot) -> Option<IsMember> {
        let (groups, proc) = (self.streams.groups.clone(), proc.clone());
        (!groups.is_empty()).then(|| -> IsMember {
            Box::new(move |pid| groups.iter().any(|group| group.has_member(&proc, pid)))
        })
    }
}

/// The streams, as the loop sees them.
pub(super) struct StreamWatch {
    proc: ProcRoot,
    rules: Arc<Mutex<StreamRules>>,
    thread: Option<(FollowedNames, StreamThread)>,
    service: Option<Service>,
    link: CurrentLink,
    /// The thread's last report.
    last: StreamReport,
    /// Figures of threads that were stopped.
    before: StreamReport,
}

impl StreamWatch {
    /// Starts to follow streams, if the settings ask for that.
    pub(super) fn new(proc: ProcRoot, settings: &Settings, report: &mut Report) -> Self {
        let rules = Arc::new(Mutex::new(StreamRules::new(proc.clone(), &settings.options)));
        let (last, before) = (StreamReport::default(), StreamReport::default());
        let (thread, service, link) = (None, None, CurrentLink::default());
        let mut watch = Self { proc, rules, thread, service, link, last, before };
        watch.apply(settings, report);
        watch
    }

    /// Applies new settings.
    pub(super) fn apply(&mut self, settings: &Settings, report: &mut Report) {
        *lock(&self.rules) = StreamRules::new(self.proc.clone(), &settings.options);
        let wanted = FollowedNames::of(&settings.options);
        if self.thread.as_ref().map(|(names, _)| names) != wanted.as_ref() {
            self.stop(report);
            if let Some(names) = wanted {
                self.start(names, report);
            }
        }
        self.serve(settings, report);
    }

    fn start(&mut self, names: FollowedNames, report: &mut Report) {
        let rules = Arc::clone(&self.rules);
        let options = StreamOptions {
            names: names.streams.processes.clone(),
            members: names.members(&self.proc),
            never: names.never.clone(),
            decide: Box::new(move |pid, path| lock(&rules).verdict(pid, path, Instant::now())),
            pace: names.streams.pace,
        };
        let rules = Arc::clone(&self.rules);
        match StreamThread::start(options, move |pid| lock(&rules).refusal(pid, Instant::now())) {
            Ok(thread) => {
                *lock(&self.link) = Some(thread.link());
                self.thread = Some((names, thread));
            }
            Err(why) => {
                report.events.push(Event::VisibilityGap { gap: format!("streams are not followed: {why}") });
            }
        }
    }

    /// Listens for requests if the settings ask for that, while streams are followed.
    fn serve(&mut self, settings: &Settings, report: &mut Report) {
        let wanted = self.thread.as_ref().and(settings.options.streams.socket.as_ref());
        if self.service.as_ref().map(Service::socket) == wanted {
            return;
        }
        self.service = None;
        let started = wanted.map(|socket| Service::start(self.proc.clone(), socket, Arc::clone(&self.link)));
        match started.transpose() {
            Ok(service) => self.service = service,
            Err(gap) => report.events.push(Event::VisibilityGap { gap }),
        }
    }

    /// Stops the thread, and takes in its last updates.
    pub(super) fn stop(&mut self, report: &mut Report) {
        let Some((_, thread)) = self.thread.take() else { return };
        *lock(&self.link) = None;
        for update in thread.stop() {
            self.take_in(update, report);
        }
        let last = std::mem::take(&mut self.last);
        self.before.add(&StreamReport { running: 0, ..last });
    }

    /// Records the thread's updates since the last tick.
    pub(super) fn look(&mut self, report: &mut Report) {
        let Some((_, thread)) = &self.thread else { return };
        let (updates, goes_on) = thread.updates();
        for update in updates {
            self.take_in(update, report);
        }
        if !goes_on {
            self.stop(report);
            let gap =
                "streams are no longer followed: their thread failed; SIGHUP starts it again".to_owned();
            report.events.push(Event::VisibilityGap { gap });
        }
    }

    fn take_in(&mut self, update: StreamUpdate, report: &mut Report) {
        for event in update.events {
            match event {
                StreamEvent::Began { pid, program } => report.events.push(Event::Stream { pid, program }),
                StreamEvent::Ended { pid, program, seconds, files, totals } => {
                    report.events.push(Event::StreamEnded {
                        pid,
                        program,
                        seconds,
                        files,
                        released_bytes: totals.released,
                        kept_bytes: totals.resident,
                    });
                }
                StreamEvent::Would { path, start, end } => {
                    report.events.push(Event::Would { path, action: Action::Release, start, end });
                }
                StreamEvent::Problem { path, sentence } => report.problem(path, &sentence),
            }
        }
        if update.is_cut {
            let problem = "more happens to streams than is reported: some of their events are left out";
            report.problem(self.proc.path().to_path_buf(), &problem);
        }
        if update.report.lost_bytes > 0 {
            let problem =
                "streams brought in pages faster than the kernel's events are read: some of these pages stay";
            report.problem(self.proc.path().to_path_buf(), &problem);
        }
        for file in update.report.stayed.iter().filter(|file| file.why == Some(StayReason::Hung)) {
            let problem =
                "its file system does not answer: pages that a stream brought in of it stay until it does";
            report.problem(file.path.clone(), &problem);
        }
        let released = |report: &StreamReport| report.released_by_program.values().sum::<u64>();
        report.behind_streams(released(&update.report).saturating_sub(released(&self.last)));
        self.last = update.report;
    }

    /// Returns the figures about streams so far.
    pub(super) fn figures(&self) -> StreamReport {
        let mut figures = self.before.clone();
        figures.add(&self.last);
        figures
    }
}
