//! The background thread: checkpoints when there is much to apply, and the warm set.
//!
//! Invariants: while it waits it holds no lock but that of the checkpoint request; a failure poisons the store and ends it. It is stopped
//! and joined before the store is dropped.

use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

use crate::Error;
use crate::core::Core;

/// Between two checks whether something is to be done.
const TICK: Duration = Duration::from_secs(1);
/// What was committed is in the data file after so long, if nothing else asks for it.
const IDLE: Duration = Duration::from_secs(30);
/// Between two notes of what is resident.
pub(crate) const WARM: Duration = Duration::from_secs(60);

/// Starts it.
pub(crate) fn start(core: &std::sync::Arc<Core>) -> Result<JoinHandle<()>, Error> {
    let core = std::sync::Arc::clone(core);
    let name = "store_applier";
    Builder::new().name(name.into()).spawn(move || run(&core)).map_err(|error| not_started(name, &error))
}

/// The error of a thread that could not be started.
pub(crate) fn not_started(name: &str, error: &std::io::Error) -> Error {
    Error::Io(pagekeeper_io::Error::Call {
        call: "clone",
        path: name.into(),
        // Its name has no zero byte, so that only the system can refuse.
        errno: error.raw_os_error().unwrap_or(libc::EAGAIN),
    })
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
        if core.config.options.warm && last_save.elapsed() >= WARM {
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
        core.config.options.background_apply && last_checkpoint.elapsed() >= IDLE && !core.is_checkpointed()
    };
    core.poison.get().is_none() && (asked || is_idle())
}

/// Waits until something is to be done; false if it is to stop.
fn wait(core: &Core) -> bool {
    let request = lock(&core.checkpoints.request);
    if request.requested || request.stopping {
        return !request.stopping;
    }
    let (request, _) = ignore_poison(core.checkpoints.requested.wait_timeout(request, TICK));
    !request.stopping
}

/// Has them end, and waits for that.
pub(crate) fn stop(core: &Core, threads: impl IntoIterator<Item = JoinHandle<()>>) {
    core.reports.end();
    core.checkpoints.stopping.store(true, std::sync::atomic::Ordering::Relaxed);
    lock(&core.checkpoints.request).stopping = true;
    core.checkpoints.requested.notify_all();
    // One may be what closes the store: whoever gets a report may hold it as the last.
    let me = std::thread::current().id();
    for thread in threads.into_iter().filter(|thread| thread.thread().id() != me) {
        let _ = thread.join();
    }
}
