//! The thread `log_releaser`: starts writeback and releases pages, so that neither an append nor a
//! follower waits for that.
//!
//! A log on a simulated disk has none: there everything happens in order, on the threads of the
//! callers. The same holds for a log that is only read, and if no thread can be started. The thread
//! ends with the log's handle, after a last pass.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};

use pagekeeper_io::has_real_files;

use super::shared::SharedLog;
use super::writer::SegmentWriter;

/// Starts the thread, if the log can use one.
pub(super) fn start(shared: &Arc<SharedLog<SegmentWriter>>) -> Option<JoinHandle<()>> {
    let options = &shared.store.options;
    if options.read_only || !options.release || !has_real_files(&*shared.store.io) {
        return None;
    }
    shared.thread.runs.store(true, Ordering::SeqCst);
    let of_thread = Arc::clone(shared);
    let started = Builder::new().name("log_releaser".to_owned()).spawn(move || run(&of_thread)).ok();
    shared.thread.runs.store(started.is_some(), Ordering::SeqCst);
    started
}

/// Ends the thread, and waits for that.
pub(super) fn stop(shared: &SharedLog<SegmentWriter>, thread: Option<JoinHandle<()>>) {
    shared.thread.runs.store(false, Ordering::SeqCst);
    shared.thread.due.notify_all();
    // The thread panicked, which the panic hook has reported.
    let _ = thread.map(JoinHandle::join);
}

fn run(shared: &SharedLog<SegmentWriter>) {
    let mut runs = true;
    while runs {
        let seen = shared.thread.due.count();
        runs = shared.thread.runs.load(Ordering::SeqCst);
        shared.release_now();
        if runs {
            shared.thread.due.wait(seen, None);
        }
    }
}
