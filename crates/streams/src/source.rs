//! Where events come from.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use pagekeeper_trace::TraceError;
use pagekeeper_trace::page_events::{EventFile, LostEvents, PageEvent, PageEvents};

/// Events of followed processes.
pub(crate) trait EventSource: Send {
    /// Follows a process and the children that it starts from now on.
    fn follow(&self, process: u32) -> Result<(), TraceError>;
    /// Follows this process, and the children that it starts from now on, once their names say so.
    fn heed_names_below(&self, process: u32) -> Result<(), TraceError> {
        self.follow(process)
    }
    /// Whether such a process runs.
    fn heeds_names(&self) -> bool {
        false
    }
    /// Follows a process no longer.
    fn unfollow(&self, process: u32);
    /// Watches who uses a file.
    fn watch(&self, file: &EventFile);
    /// Gives back the place that a file takes.
    fn forget(&self, file: &EventFile);
    /// Whether uses are seen.
    fn sees_use(&self) -> bool;
    /// Takes the events that have come, the oldest first.
    fn drain(&mut self, take: &mut dyn FnMut(PageEvent));
    /// Waits until an event comes, or for so long.
    fn wait(&self, timeout: Duration);
    /// Waits until an event comes, the other descriptor is readable, or for so long.
    fn wait_or_readable(&self, timeout: Duration, _other: BorrowedFd<'_>) {
        self.wait(timeout);
    }
    /// Events that found no room since the start.
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
        // It is in the table no more, or stays.
        let _ = self.unfollow(process);
    }

    fn watch(&self, file: &EventFile) {
        // Without room its uses are not seen, nor its next additions.
        let _ = self.watch(file);
    }

    fn forget(&self, file: &EventFile) {
        // The kernel has forgotten it already, or the table's place stays taken.
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

    fn wait_or_readable(&self, timeout: Duration, other: BorrowedFd<'_>) {
        self.wait_or_readable(timeout, other);
    }

    fn lost(&self) -> LostEvents {
        self.lost().unwrap_or_default()
    }
}
