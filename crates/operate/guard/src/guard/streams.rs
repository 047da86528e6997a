//! Follows streaming programs by events of the kernel, in a thread of its own that reports to the loop.
//!
//! Invariants:
//! 1. The loop never waits for the thread while it ticks, and the thread's reports are bounded.
//! 2. A program that a profile names as a database is not followed.
//! 3. If streams can't be followed, the guard reports that once, and everything else continues.
//!
//! A [`service`] takes users' requests; it outlives the thread.

mod listener;
mod rules;
mod service;
#[cfg(test)]
mod service_tests;

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_streams::{
    IsMember, StayReason, StreamEvent, StreamOptions, StreamPace, StreamReport, StreamTotals,
};

use self::rules::StreamRules;
use self::service::{Asks, CurrentLink, Service, ThreadLink};
use super::report::Report;
use crate::config::{Options, Settings, Streams, stream_name};
use crate::decision::Action;
use crate::event::Event;
use crate::targets::Selector;

/// Time between two steps while streams bring pages in.
const BUSY_STEP: Duration = Duration::from_millis(10);
/// Longest wait for a stream; a stop is heeded after it.
const IDLE_WAIT: Duration = Duration::from_millis(100);
/// Shortest time between two updates for the loop.
const UPDATE_EVERY: Duration = Duration::from_millis(100);
/// The most updates that wait for the loop; later ones are merged.
const UPDATES_MAX: usize = 16;
/// The most events in one update; more are dropped, and a problem reports that.
const EVENTS_MAX: usize = 1024;
/// Longest wait for the kernel to load the programs.
const START_MAX: Duration = Duration::from_secs(10);
/// Longest wait for the thread to stop: a release may hang.
const STOP_MAX: Duration = Duration::from_secs(2);

/// The processes to follow, and those never to follow.
#[derive(Debug, Clone)]
struct FollowedNames {
    streams: Vec<String>,
    groups: Vec<Selector>,
    never: Vec<String>,
    pace: StreamPace,
}

impl FollowedNames {
    /// Returns the processes of the configuration; `None` if streams are off. Globs of profiles that the
    /// kernel can't compare are left to [`StreamRules`].
    fn of(options: &Options) -> Option<Self> {
        let globs = options.profiles.iter().flat_map(|profile| &profile.processes);
        let mut never: Vec<String> = globs.filter_map(|glob| stream_name(glob.glob().glob()).ok()).collect();
        never.sort_unstable();
        never.dedup();
        let Streams { on, processes, groups, pace, socket: _ } = options.streams.clone();
        on.then_some(Self { streams: processes, groups, never, pace })
    }

    /// Returns a test for processes in the units and control groups to follow, if there are any.
    fn members(&self, proc: &ProcRoot) -> Option<IsMember> {
        let (groups, proc) = (self.groups.clone(), proc.clone());
        (!groups.is_empty()).then(|| -> IsMember {
            Box::new(move |pid| groups.iter().any(|group| group.has_member(&proc, pid)))
        })
    }

    /// Returns the values by which two of them are compared.
    fn identity(&self) -> (&[String], Vec<String>, &[String], StreamPace) {
        let groups = self.groups.iter().map(Selector::to_string).collect();
        (&self.streams, groups, &self.never, self.pace)
    }
}

/// Figures about streams since the start.
#[derive(Debug, Clone, Default)]
pub struct StreamFigures {
    /// Followed processes that are running.
    pub running: usize,
    /// The fate of their pages.
    pub totals: StreamTotals,
    /// Bytes of pages whose additions were not seen.
    pub lost_bytes: u64,
    /// Bytes released so far, by program.
    pub released_by_program: BTreeMap<String, u64>,
    /// Bytes released so far, by the user who runs the programs; `None` stands for users beyond the first
    /// 256.
    pub released_by_user: BTreeMap<Option<u32>, u64>,
}

impl StreamFigures {
    fn add(&mut self, report: &StreamReport) {
        self.running = report.running;
        self.totals.added += report.totals.added;
        self.totals.released += report.totals.released;
        self.totals.handed_on += report.totals.handed_on;
        self.totals.gone += report.totals.gone;
        self.totals.resident += report.totals.resident;
        self.lost_bytes += report.lost_bytes;
        for (program, bytes) in &report.released_by_program {
            *self.released_by_program.entry(program.clone()).or_default() += bytes;
        }
        for (user, bytes) in &report.released_by_user {
            *self.released_by_user.entry(*user).or_default() += bytes;
        }
    }
}

/// A report of the thread to the loop.
#[derive(Debug, Default)]
struct StreamUpdate {
    events: Vec<StreamEvent>,
    /// Whether events were dropped.
    is_cut: bool,
    report: StreamReport,
}

/// The thread; it ends when this is dropped.
struct StreamThread {
    names: FollowedNames,
    /// Ends the thread when it is dropped.
    stop: Sender<()>,
    updates: Receiver<StreamUpdate>,
}

/// The streams, as the loop sees them.
pub(super) struct StreamWatch {
    proc: ProcRoot,
    rules: Arc<Mutex<StreamRules>>,
    thread: Option<StreamThread>,
    service: Option<Service>,
    link: CurrentLink,
    /// The thread's last report.
    last: StreamReport,
    /// Figures of threads that were stopped.
    before: StreamFigures,
}

impl StreamWatch {
    /// Starts to follow streams, if the settings ask for that.
    pub(super) fn new(proc: ProcRoot, settings: &Settings, report: &mut Report) -> Self {
        let rules = Arc::new(Mutex::new(StreamRules::new(proc.clone(), &settings.options)));
        let (last, before) = (StreamReport::default(), StreamFigures::default());
        let (thread, service, link) = (None, None, CurrentLink::default());
        let mut watch = Self { proc, rules, thread, service, link, last, before };
        watch.apply(settings, report);
        watch
    }

    /// Applies new settings.
    pub(super) fn apply(&mut self, settings: &Settings, report: &mut Report) {
        *lock(&self.rules) = StreamRules::new(self.proc.clone(), &settings.options);
        let wanted = FollowedNames::of(&settings.options);
        let present = self.thread.as_ref().map(|thread| thread.names.identity());
        if present != wanted.as_ref().map(FollowedNames::identity) {
            self.stop(report);
            if let Some(names) = wanted {
                self.begin(names, report);
            }
        }
        self.serve(settings, report);
    }

    fn begin(&mut self, names: FollowedNames, report: &mut Report) {
        match self.start(names) {
            Ok((thread, link)) => {
                self.thread = Some(thread);
                *lock(&self.link) = Some(link);
            }
            Err(why) => {
                report.events.push(Event::VisibilityGap { gap: format!("streams are not followed: {why}") });
            }
        }
    }

    /// Listens for requests if the settings ask for that, while streams are followed.
    fn serve(&mut self, settings: &Settings, report: &mut Report) {
        let wanted = self.thread.as_ref().and(settings.options.streams.socket.as_ref());
        if self.service.as_ref().map(|service| &service.socket) == wanted {
            return;
        }
        self.service = None;
        let started = wanted.map(|socket| Service::start(self.proc.clone(), socket, Arc::clone(&self.link)));
        match started.transpose() {
            Ok(service) => self.service = service,
            Err(gap) => report.events.push(Event::VisibilityGap { gap }),
        }
    }

    /// Starts the thread. Fails with a sentence if streams can't be followed.
    fn start(&self, names: FollowedNames) -> Result<(StreamThread, ThreadLink), String> {
        let rules = Arc::clone(&self.rules);
        let options = StreamOptions {
            names: names.streams.clone(),
            members: names.members(&self.proc),
            never: names.never.clone(),
            decide: Box::new(move |pid, path| lock(&rules).verdict(pid, path, Instant::now())),
            pace: names.pace,
        };
        let rules = Arc::clone(&self.rules);
        let (link, asks) = service::link(move |pid| lock(&rules).refusal(pid, Instant::now()))?;
        let ((stop, stopped), (say, updates)) = (channel(), sync_channel(UPDATES_MAX));
        let (started, outcome) = sync_channel(1);
        let run = move || {
            let streams = match pagekeeper_streams::Streams::start(options) {
                Ok(streams) => streams,
                Err(error) => return drop(started.send(Err(error.to_string()))),
            };
            // The starter of the thread may have given up.
            if started.send(Ok(())).is_ok() {
                follow(streams, &asks, &stopped, &say);
            }
        };
        std::thread::Builder::new().name("streams".to_owned()).spawn(run).map_err(|error| {
            format!("no thread can be started (RLIMIT_NPROC, TasksMax or memory): {error}")
        })?;
        let outcome = outcome.recv_timeout(START_MAX);
        outcome.map_err(|_| "the kernel does not load the programs for that in time".to_owned())??;
        Ok((StreamThread { names, stop, updates }, link))
    }

    /// Stops the thread, and takes in its last updates.
    pub(super) fn stop(&mut self, report: &mut Report) {
        let Some(StreamThread { stop, updates, .. }) = self.thread.take() else { return };
        *lock(&self.link) = None;
        drop(stop);
        let until = Instant::now() + STOP_MAX;
        while let Ok(update) = updates.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.take_in(update, report);
        }
        let last = std::mem::take(&mut self.last);
        self.before.add(&StreamReport { running: 0, ..last });
    }

    /// Takes in the thread's updates since the last tick.
    pub(super) fn look(&mut self, report: &mut Report) {
        let Some(thread) = &self.thread else { return };
        let mut updates = Vec::new();
        let end = loop {
            match thread.updates.try_recv() {
                Ok(update) => updates.push(update),
                Err(end) => break end,
            }
        };
        for update in updates {
            self.take_in(update, report);
        }
        if end == TryRecvError::Disconnected {
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
        for file in &update.report.stayed {
            if file.why == Some(StayReason::Hung) {
                let problem = "its file system does not answer: pages that a stream brought in of it stay until it does";
                report.problem(file.path.clone(), &problem);
            }
        }
        let released = |report: &StreamReport| report.released_by_program.values().sum::<u64>();
        report.behind_streams(released(&update.report).saturating_sub(released(&self.last)));
        self.last = update.report;
    }

    /// Returns the figures about streams so far.
    pub(super) fn figures(&self) -> StreamFigures {
        let mut figures = self.before.clone();
        figures.add(&self.last);
        figures
    }
}

/// Follows streams until the other end of `stopped` is dropped.
fn follow(
    mut streams: pagekeeper_streams::Streams,
    asks: &Asks,
    stopped: &Receiver<()>,
    say: &SyncSender<StreamUpdate>,
) {
    let (mut update, mut said) = (StreamUpdate::default(), Instant::now());
    // Whether anything may have happened that was not reported yet.
    let mut has_news = true;
    loop {
        let is_stopped = stopped.try_recv() == Err(TryRecvError::Disconnected);
        asks.serve(&mut streams);
        update.add(streams.step());
        let is_busy = streams.is_busy();
        has_news |= is_busy || !update.events.is_empty();
        if is_stopped {
            update.report = streams.report();
            // The loop takes it, unless it has stopped waiting.
            return drop(say.send(update));
        }
        if has_news && said.elapsed() >= UPDATE_EVERY {
            update.report = streams.report();
            match say.try_send(std::mem::take(&mut update)) {
                Ok(()) => (has_news, said) = (is_busy, Instant::now()),
                Err(TrySendError::Full(unsaid)) => update = unsaid,
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
        streams.wait_or_readable(if is_busy { BUSY_STEP } else { IDLE_WAIT }, asks.wake.as_fd());
    }
}

impl StreamUpdate {
    fn add(&mut self, events: Vec<StreamEvent>) {
        let room = EVENTS_MAX - self.events.len();
        self.is_cut |= events.len() > room;
        self.events.extend(events.into_iter().take(room));
    }
}
