//! The source of events.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use pagekeeper_trace::TraceError;
use pagekeeper_trace::page_events::{EventFile, LostEvents, PageEvent, PageEvents};

/// Events of followed processes.
pub(crate) trait EventSource: Send {
    /// Follows a process and the children that it starts from now on.
    fn follow(&self, process: u32) -> Result<(), TraceError>;
    /// Follows this process, and the children that it starts from now on, once they have one of the
    /// names.
    fn heed_names_below(&self, process: u32) -> Result<(), TraceError> {
        self.follow(process)
    }
    /// Returns whether such a process is running.
    fn heeds_names(&self) -> bool {
        false
    }
    /// Stops following a process.
    fn unfollow(&self, process: u32);
    /// Watches the uses of a file.
    fn watch(&self, file: &EventFile);
    /// Frees the table entry of a file.
    fn forget(&self, file: &EventFile);
    /// Returns whether uses are seen.
    fn sees_use(&self) -> bool;
    /// Takes the events that have come, oldest first.
    fn drain(&mut self, take: &mut dyn FnMut(PageEvent));
    /// Waits until an event comes, but at most for `timeout`.
    fn wait(&self, timeout: Duration);
    /// Waits until an event comes or one of the others is readable, but at most for `timeout`.
    fn wait_or_readable(&self, timeout: Duration, _others: &[BorrowedFd<'_>]) {
        self.wait(timeout);
    }
    /// Returns the events since the start for which there was no room.
    fn lost(&self) -> LostEvents;
}

impl EventSource for PageEvents {
    fn follow(&self, process: u32) -> Result<(), TraceError> {
        self.follow(process)
    }

    fn heed_names_below(&self, process: u32) -> Result<(), TraceError> {
        self.heed_names_below(process)
    }

    fn heeds_names(&self) -> bool {
        self.heeds_names()
    }

    fn unfollow(&self, process: u32) {
        // After a failure the process is already gone from the table, or stays.
        let _ = self.unfollow(process);
    }

    fn watch(&self, file: &EventFile) {
        // Without room its uses are not seen, and neither are its next additions.
        let _ = self.watch(file);
    }

    fn forget(&self, file: &EventFile) {
        // The kernel has forgotten it already, or the table entry stays occupied.
        let _ = self.forget(file);
    }

    fn sees_use(&self) -> bool {
        self.sees_use()
    }

    fn drain(&mut self, take: &mut dyn FnMut(PageEvent)) {
        self.drain(take);
    }

    fn wait(&self, timeout: Duration) {
        self.wait(timeout);
    }

    fn wait_or_readable(&self, timeout: Duration, others: &[BorrowedFd<'_>]) {
        self.wait_or_readable(timeout, others);
    }

    fn lost(&self) -> LostEvents {
        self.lost().unwrap_or_default()
    }
}
