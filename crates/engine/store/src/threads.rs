//! The background threads: one runs checkpoints when there is much to apply, and maintains the warm
//! set; the other delivers a recovery's progress reports.
//!
//! Invariants: a waiting thread holds no lock but that of the checkpoint request. A failure poisons
//! the store and ends the thread. The threads are stopped and joined before the store is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

use crate::core::Core;
use crate::{Error, Progress};

/// Interval between two checks for work.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Commits are in the data file after this time, even if nothing else requires it.
const IDLE_CHECKPOINT_AFTER: Duration = Duration::from_secs(30);
/// Interval between two writes of the warm set.
pub(crate) const WARM_SAVE_INTERVAL: Duration = Duration::from_secs(60);

/// Starts the checkpoint thread.
pub(crate) fn start(core: &Arc<Core>) -> Result<JoinHandle<()>, Error> {
    let core = Arc::clone(core);
    let name = "store_applier";
    Builder::new().name(name.into()).spawn(move || run(&core)).map_err(|error| not_started(name, &error))
}

/// Returns the error for a thread that could not be started.
pub(crate) fn not_started(name: &str, error: &std::io::Error) -> Error {
    Error::Io(pagekeeper_io::Error::Call {
        call: "clone",
        path: name.into(),
        // The name has no zero byte, so only the system can refuse.
        errno: error.raw_os_error().unwrap_or(libc::EAGAIN),
    })
}

/// Starts the thread that delivers a recovery's progress reports, if a receiver is set and there is
/// anything to report. It ends with the last report.
pub(crate) fn start_reporter(core: &Arc<Core>) -> Result<Option<JoinHandle<()>>, Error> {
    if core.config.options.on_progress.is_none() || core.config.opening.pages == 0 {
        return Ok(None);
    }
    let core = Arc::clone(core);
    let name = "store_reporter";
    let run = move || {
        while let Some(progress) = core.reports.wait_for_next() {
            core.hand_over(&progress);
        }
    };
    Builder::new().name(name.into()).spawn(run).map(Some).map_err(|error| not_started(name, &error))
}

impl Core {
    /// Delivers pending reports, in a store without threads.
    pub(crate) fn hand_over_reports(&self) {
        while let Some(progress) = self.reports.next() {
            self.hand_over(&progress);
        }
    }

    fn hand_over(&self, progress: &Progress) {
        if let Some(report) = &self.config.options.on_progress {
            // The panic hook reports its panic, which must not end the calling thread.
            let _ = catch_unwind(AssertUnwindSafe(|| report(progress)));
        }
    }
}

fn run(core: &Core) {
    let mut first = core.config.options.background_apply;
    let (mut last_checkpoint, mut last_save) = (Instant::now(), Instant::now());
    loop {
        if (first && core.config.opening.pages > 0) || is_checkpoint_due(core, last_checkpoint) {
            // A failure is reported to those who commit.
            let _ = core.run_checkpoint();
            last_checkpoint = Instant::now();
        }
        if std::mem::take(&mut first) {
            core.load_warm_set();
        }
        if core.config.options.warm && last_save.elapsed() >= WARM_SAVE_INTERVAL {
            core.save_warm_set(false);
            last_save = Instant::now();
        }
        if !wait(core) {
            return;
        }
    }
}

/// Whether a checkpoint is due.
fn is_checkpoint_due(core: &Core, last_checkpoint: Instant) -> bool {
    let asked = std::mem::take(&mut lock(&core.checkpoints.request).requested);
    let is_idle = || {
        core.config.options.background_apply
            && last_checkpoint.elapsed() >= IDLE_CHECKPOINT_AFTER
            && !core.is_checkpointed()
    };
    core.poison.get().is_none() && (asked || is_idle())
}

/// Waits until there is work. Returns false if the thread is to stop.
fn wait(core: &Core) -> bool {
    let request = lock(&core.checkpoints.request);
    if request.requested || request.stopping {
        return !request.stopping;
    }
    let (request, _) = ignore_poison(core.checkpoints.requested.wait_timeout(request, CHECK_INTERVAL));
    !request.stopping
}

/// Stops the threads, and waits for them.
pub(crate) fn stop(core: &Core, threads: impl IntoIterator<Item = JoinHandle<()>>) {
    core.reports.end();
    core.checkpoints.stopping.store(true, std::sync::atomic::Ordering::Relaxed);
    lock(&core.checkpoints.request).stopping = true;
    core.checkpoints.requested.notify_all();
    // One of them may be closing the store: the receiver of reports may drop its last owner.
    let me = std::thread::current().id();
    for thread in threads.into_iter().filter(|thread| thread.thread().id() != me) {
        let _ = thread.join();
    }
}
