//! A thread that follows streams and reports to its owner, who never waits for it.
//!
//! Invariants: its reports are bounded; those that do not fit are merged. It ends when it is
//! dropped.

use std::os::fd::AsFd as _;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

use crate::service::{Asks, ThreadLink, link};
use crate::{StreamEvent, StreamOptions, StreamReport, Streams};

/// Time between two steps while streams bring pages in.
const BUSY_STEP_INTERVAL: Duration = Duration::from_millis(10);
/// Longest wait for a stream; a stop is heeded after it.
const IDLE_WAIT: Duration = Duration::from_millis(100);
/// Shortest time between two updates.
const UPDATE_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Maximum number of updates that wait for the owner; later ones are merged.
const UPDATES_MAX: usize = 16;
/// Maximum number of events in one update; more are dropped.
const EVENTS_MAX: usize = 1024;
/// Longest wait for the kernel to load the programs.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the thread to stop: a release may hang.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A report of the thread.
#[derive(Debug, Default)]
pub struct StreamUpdate {
    /// The events since the last update.
    pub events: Vec<StreamEvent>,
    /// Whether events were dropped.
    pub is_cut: bool,
    /// Everything since the thread began.
    pub report: StreamReport,
}

impl StreamUpdate {
    fn add(&mut self, events: Vec<StreamEvent>) {
        let room = EVENTS_MAX - self.events.len();
        self.is_cut |= events.len() > room;
        self.events.extend(events.into_iter().take(room));
    }
}

/// The thread. See the module.
pub struct StreamThread {
    link: ThreadLink,
    /// Ends the thread when it is dropped.
    stop: Sender<()>,
    updates: Receiver<StreamUpdate>,
}

impl StreamThread {
    /// Starts the thread. `refusal` returns why a process may not be followed for a user who asks
    /// for it. Fails with a sentence if streams can't be followed.
    pub fn start(
        options: StreamOptions,
        refusal: impl Fn(u32) -> Option<&'static str> + Send + Sync + 'static,
    ) -> Result<Self, String> {
        let (link, asks) = link(refusal)?;
        let ((stop, stopped), (say, updates)) = (channel(), sync_channel(UPDATES_MAX));
        let (started, outcome) = sync_channel(1);
        let run = move || {
            let streams = match Streams::start(options) {
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
        let outcome = outcome.recv_timeout(START_TIMEOUT);
        outcome.map_err(|_| "the kernel does not load the programs for that in time".to_owned())??;
        Ok(Self { link, stop, updates })
    }

    /// Returns the end of the thread that takes requests.
    pub fn link(&self) -> ThreadLink {
        self.link.clone()
    }

    /// Returns the updates since the last call, and whether the thread continues.
    pub fn updates(&self) -> (Vec<StreamUpdate>, bool) {
        let mut updates = Vec::new();
        loop {
            match self.updates.try_recv() {
                Ok(update) => updates.push(update),
                Err(end) => return (updates, end == TryRecvError::Empty),
            }
        }
    }

    /// Stops the thread. Returns its last updates.
    pub fn stop(self) -> Vec<StreamUpdate> {
        drop(self.stop);
        let until = Instant::now() + STOP_TIMEOUT;
        let left = || until.saturating_duration_since(Instant::now());
        std::iter::from_fn(|| self.updates.recv_timeout(left()).ok()).collect()
    }
}

/// Follows streams until the other end of `stopped` is dropped.
fn follow(mut streams: Streams, asks: &Asks, stopped: &Receiver<()>, say: &SyncSender<StreamUpdate>) {
    let (mut update, mut said) = (StreamUpdate::default(), Instant::now());
    // Whether anything may have happened that was not reported yet.
    let mut has_news = true;
    loop {
        let is_stopped = stopped.try_recv() == Err(TryRecvError::Disconnected);
        // A report has all that came before its request.
        update.add(streams.step());
        asks.serve(&mut streams);
        let is_busy = streams.is_busy();
        has_news |= is_busy || !update.events.is_empty();
        if is_stopped {
            update.report = streams.report();
            // The owner takes it, unless it has stopped waiting.
            return drop(say.send(update));
        }
        if has_news && said.elapsed() >= UPDATE_INTERVAL_MIN {
            update.report = streams.report();
            match say.try_send(std::mem::take(&mut update)) {
                Ok(()) => (has_news, said) = (is_busy, Instant::now()),
                Err(TrySendError::Full(unsaid)) => update = unsaid,
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
        streams.wait_or_readable(if is_busy { BUSY_STEP_INTERVAL } else { IDLE_WAIT }, asks.wake.as_fd());
    }
}
