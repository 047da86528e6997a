//! Retries pages that stayed when their file was closed because the queue of a socket or pipe holds
//! them.
//!
//! Invariants: without such pages there is no timer. Retries back off, and end after
//! [`RETRY_GIVE_UP_NS`] without another page gone. If there is no free place, pages stay; the
//! report shows that.

use core::ops::Range;

use super::drop_written;
use super::helper_files::HeldFile;
use crate::counters::Count;
use crate::files::tracked_files;
use crate::pages::residency::resident;
use crate::{process, sys};

/// Ranges at a time.
const RANGES_MAX: usize = 128;
/// Nanoseconds between two retries: at first and at most.
const RETRY_MIN_NS: u64 = 5_000_000;
const RETRY_MAX_NS: u64 = 1_000_000_000;
/// Give up after this many nanoseconds without another page gone.
const RETRY_GIVE_UP_NS: u64 = 120_000_000_000;

/// A range of a file.
struct DeferredDrop {
    file: HeldFile,
    range: Range<u64>,
    count: Count,
    due: u64,
    interval: u64,
    went_at: u64,
}

impl DeferredDrop {
    /// Drops the pages once; returns whether nothing more is to be done.
    fn is_done(&mut self, now: u64) -> bool {
        if self.file.is_lost() {
            return true;
        }
        let went = drop_written(self.file.fd(), self.range.clone());
        process::count(self.count, went);
        if went > 0 {
            (self.interval, self.went_at) = (RETRY_MIN_NS, now);
        }
        self.due = now.saturating_add(self.interval);
        self.interval = (self.interval * 2).min(RETRY_MAX_NS);
        let is_gone = resident(self.file.fd(), &self.range).unwrap_or(0) == 0;
        is_gone || now.saturating_sub(self.went_at) > RETRY_GIVE_UP_NS
    }
}

impl Drop for DeferredDrop {
    fn drop(&mut self) {
        tracked_files::released(self.file.fd());
    }
}

/// All ranges.
pub(super) struct DeferredDrops([Option<DeferredDrop>; RANGES_MAX]);

impl DeferredDrops {
    pub(super) const NONE: Self = Self([const { None }; RANGES_MAX]);

    /// Returns the nanoseconds until the next retry.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        self.0.iter().flatten().map(|waiting| waiting.due.saturating_sub(now)).min()
    }

    /// Adds a range of a file.
    pub(super) fn add(&mut self, file: HeldFile, range: Range<u64>, count: Count) {
        let now = sys::now();
        if self.0.iter().all(Option::is_some) {
            self.check(u64::MAX);
        }
        if let Some(free) = self.0.iter_mut().find(|place| place.is_none()) {
            let due = now.saturating_add(RETRY_MIN_NS);
            *free = Some(DeferredDrop { file, range, count, due, interval: RETRY_MIN_NS, went_at: now });
        }
    }

    /// Retries the ranges that are due by `until`.
    pub(super) fn check(&mut self, until: u64) {
        let now = sys::now();
        self.end_those(|waiting| waiting.due <= until && waiting.is_done(now));
    }

    /// Lets go of the files that are lost.
    pub(super) fn let_go(&mut self) {
        self.end_those(|waiting| waiting.file.is_lost());
    }

    fn end_those(&mut self, is_over: impl Fn(&mut DeferredDrop) -> bool) {
        for place in &mut self.0 {
            drop(place.take_if(&is_over));
        }
    }
}
