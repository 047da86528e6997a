//! Reads of a file whose residency this user may not see. They are uncached, if they are of whole
//! pages, and the helper reads ahead of them; pages that others bring in are probed by the helper
//! ([`ReadAhead`]). Without a helper, pages of plain reads stay.
//!
//! `pagekeeper_policy::uncached_reads` decides which reads can be uncached.
//!
//! Invariant: a wait for the helper is bounded. After a timeout the helper gets no request for a
//! while.

use libc::c_int;
use pagekeeper_policy::stream::IN_ORDER_BYTES;
use pagekeeper_policy::uncached_reads::UncachedReads;

use super::ReadMode;
use crate::counters::Count;
use crate::helper::{CallKind, ReadAhead, WaitOutcome};
use crate::process::count;
use crate::sys;

/// The reads of one file, and the read-ahead for them.
pub(super) struct UncachedReader {
    reads: UncachedReads,
    ahead: Option<ReadAhead>,
    /// Whether the kernel copies the file, as for sendfile(2).
    is_copy: bool,
}

impl UncachedReader {
    pub(super) const NEW: Self = Self { reads: UncachedReads::new(), ahead: None, is_copy: false };

    /// Records that the file system does not support uncached reads.
    pub(super) fn mark_refused(&mut self) {
        self.reads.mark_refused();
    }

    /// Ends read-ahead.
    pub(super) fn end(&mut self) {
        self.ahead = None;
    }

    /// Runs before a read of `length` bytes at `at` of a file of `size` bytes.
    pub(super) fn before(&mut self, fd: c_int, at: u64, length: u64, size: u64) -> ReadMode {
        self.is_copy = false;
        self.read_ahead(fd, at, length, size);
        if self.is_plain() { ReadMode::Plain } else { ReadMode::Uncached }
    }

    /// Runs before the kernel copies a part of the file. Returns whether the pages that it brings
    /// in will go.
    pub(super) fn before_copy(&mut self, fd: c_int, at: u64, length: u64, size: u64) -> bool {
        self.read_ahead(fd, at, length, size);
        if self.ahead.is_none() {
            self.begin(fd, if self.reads.is_plain() { CallKind::Plain } else { CallKind::Uncached });
        }
        let end = at.saturating_add(length).min(size);
        self.is_copy = true;
        self.waited(|ahead| ahead.wait_to_copy(end)) == Some(WaitOutcome::Begun)
    }

    /// Records that unhooked calls read from `at` on. Returns whether the helper handles their
    /// pages.
    pub(super) fn begin_unhooked(&mut self, fd: c_int, at: u64) -> bool {
        self.ahead = ReadAhead::begin(fd, at, CallKind::Unseen);
        if let Some(ahead) = &self.ahead {
            ahead.wait_for(at.saturating_add(IN_ORDER_BYTES));
        }
        self.ahead.is_some()
    }

    /// Records that unhooked calls have read up to `position`. Returns whether the helper handles
    /// their pages.
    pub(super) fn record_unhooked(&self, position: u64) -> bool {
        self.ahead.as_ref().map(|ahead| ahead.passed(position)).is_some()
    }

    /// Runs after a read of `done` bytes.
    pub(super) fn after(&mut self, done: u64) {
        self.reads.passed(done);
        if let Some(ahead) = &self.ahead {
            if !self.is_copy {
                ahead.reads();
            }
            ahead.passed(self.reads.next());
        }
        count(Count::StreamUncached, if self.is_plain() { 0 } else { done });
    }

    fn is_plain(&self) -> bool {
        self.ahead.as_ref().is_some_and(ReadAhead::is_plain)
    }

    /// Starts read-ahead for a reader in order, and waits until it is ahead of the read.
    fn read_ahead(&mut self, fd: c_int, at: u64, length: u64, size: u64) {
        if self.reads.jumps(at) {
            self.ahead = None;
        }
        let is_whole = self.reads.are_whole(length, sys::page_size());
        if !is_whole && !self.is_plain() {
            self.ahead = None;
        }
        let is_worth = self.reads.are_in_order() && size.saturating_sub(at) > IN_ORDER_BYTES;
        // Repeats the request if the helper has closed the file since.
        for _ in 0..2 {
            if self.ahead.is_none() && is_worth {
                self.begin(fd, if is_whole { CallKind::Uncached } else { CallKind::Plain });
            }
            // Otherwise the kernel would read ahead itself.
            let end = at.saturating_add(length).min(size);
            if self.waited(|ahead| ahead.wait_for(end)) != Some(WaitOutcome::Left) {
                return;
            }
        }
    }

    /// Has the helper read ahead, unless a wait for it timed out shortly before.
    fn begin(&mut self, fd: c_int, calls: CallKind) {
        if self.reads.may_ask() {
            self.ahead = ReadAhead::begin(fd, self.reads.next(), calls);
        }
    }

    /// Waits for the helper. Ends read-ahead if the helper has left or the wait timed out. `None`:
    /// there is no read-ahead.
    fn waited(&mut self, wait: impl FnOnce(&ReadAhead) -> WaitOutcome) -> Option<WaitOutcome> {
        let waited = wait(self.ahead.as_ref()?);
        if waited != WaitOutcome::Begun {
            self.ahead = None;
        }
        if waited == WaitOutcome::InVain {
            self.reads.timed_out();
        }
        Some(waited)
    }
}
