//! The log's two threads. Each waits on its event count until there is something to do.
//!
//! They end when the log is closed, and for good after an error, which every later call of the log
//! returns.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use pagekeeper_kernel::mutex::lock;

use super::core::Core;
use super::options::FlushPolicy;
use super::release;
use crate::Error;

/// The time for which records that nobody waits for stay unsynced (or unwritten, if syncs are left
/// to the kernel).
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);
/// Practically never.
const FLUSH_INTERVAL_MAX: Duration = Duration::from_secs(1 << 32);
/// The time to wait for an append that is filling its part while others wait for room.
const FILLING_WAIT: Duration = Duration::from_millis(1);

type ThreadMain = fn(&Core);

/// Starts both threads.
pub(super) fn start(core: &Arc<Core>) -> Result<Vec<JoinHandle<()>>, Error> {
    let mut threads = Vec::new();
    let works: [(&'static str, ThreadMain); 2] = [("log_writer", write), ("log_flusher", flush)];
    for (name, work) in works {
        let shared = Arc::clone(core);
        match Builder::new().name(name.to_owned()).spawn(move || work(&shared)) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                stop(core, threads);
                return Err(Error::NoThread { name, errno: error.raw_os_error().unwrap_or(libc::EAGAIN) });
            }
        }
    }
    Ok(threads)
}

/// Stops the threads, and waits for their end.
pub(super) fn stop(core: &Core, threads: Vec<JoinHandle<()>>) {
    core.lifecycle.stopped.store(true, Ordering::SeqCst);
    core.events.to_write.notify_all();
    core.events.to_flush.notify_all();
    core.events.released.notify_all();
    for thread in threads {
        // The thread panicked, which the panic hook has reported.
        let _ = thread.join();
    }
}

fn is_over(core: &Core) -> bool {
    core.lifecycle.stopped.load(Ordering::SeqCst) || core.check().is_err()
}

/// Runs the log writer: writes whole blocks when there are many, or somebody waits for room.
fn write(core: &Core) {
    loop {
        let seen = core.events.to_write.count();
        if is_over(core) {
            return;
        }
        if !core.should_write_now() {
            core.events.to_write.wait(seen, None);
            continue;
        }
        wait_for_release(core);
        match core.write_whole_blocks() {
            // The first block is still being filled.
            Ok(0) => core.events.to_write.wait(seen, Some(FILLING_WAIT)),
            Ok(_) => core.nudge_flusher(),
            Err(_) => return,
        }
    }
}

/// Waits until enough pages are released, so that few stay resident.
fn wait_for_release(core: &Core) {
    loop {
        let seen = core.events.released.count();
        if core.unreleased() < release::UNRELEASED_BYTES_MAX || is_over(core) {
            return;
        }
        core.events.to_flush.notify_all();
        core.events.released.wait(seen, Some(FLUSH_INTERVAL));
    }
}

/// Runs the log flusher: syncs records that nobody waits for, by the policy and before too much is
/// unsynced, and releases pages. Populates the buffer once appending begins, so that commits need not
/// allocate memory.
fn flush(core: &Core) {
    let interval = match core.config.policy {
        FlushPolicy::Every(interval) => interval.clamp(FILLING_WAIT, FLUSH_INTERVAL_MAX),
        FlushPolicy::EachCommit | FlushPolicy::Os => FLUSH_INTERVAL,
    };
    let mut due = Instant::now() + interval;
    let mut is_populated = false;
    loop {
        let seen = core.events.to_flush.count();
        if is_over(core) {
            return;
        }
        if !is_populated && core.has_begun() {
            core.buffer.populate(|| is_over(core));
            is_populated = true;
        }
        let now = Instant::now();
        if now >= due {
            due = now + interval;
            let end = core.buffer.reserved();
            let done = match core.config.policy {
                FlushPolicy::EachCommit | FlushPolicy::Every(_) => core.wait_durable(end),
                FlushPolicy::Os => core.wait_written(end),
            };
            if done.is_err() {
                return;
            }
            // Little was written, but its pages need not stay.
            core.release();
        }
        if core.should_sync_now() && core.wait_durable(core.buffer.reserved()).is_err() {
            return;
        }
        if core.unreleased() >= release::RELEASE_STEP_BYTES {
            core.release();
        } else {
            core.events.to_flush.wait(seen, Some(due.saturating_duration_since(now)));
        }
    }
}

/// Releases all remaining pages before the log is closed.
pub(super) fn release_all(core: &Core) {
    if !core.config.releases {
        return;
    }
    let mut releaser = lock(&core.release.releaser);
    // Pages that are still dirty go in the second step.
    for _ in 0..2 {
        releaser.step(core, false);
    }
}
