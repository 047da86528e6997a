//! The events by which everybody wakes the thread that releases pages.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::redo::EventCount;

/// The events between the thread and everybody else.
#[derive(Debug, Default)]
pub(super) struct ReleaseEvents {
    /// Notified when there may be something to do.
    pub(super) due: EventCount,
    /// Whether the thread runs.
    pub(super) runs: AtomicBool,
}

impl ReleaseEvents {
    /// Wakes the thread. Returns false if there is none.
    pub(super) fn wake(&self) -> bool {
        let runs = self.runs.load(Ordering::SeqCst);
        if runs {
            self.due.notify_all();
        }
        runs
    }
}
