//! Retries pages that stayed when their file was closed because the queue of a socket or pipe holds them.
//!
//! Invariants: without such pages there is no timer. Retries back off, and end after [`GIVE_UP`] without another page gone. If there is no
//! free place, pages stay; the report shows that.

use core::ops::Range;

use libc::c_int;

use super::drop_written;
use super::helper_files::{FileHash, is_lost};
use crate::counters::Count;
use crate::residency::resident;
use crate::{process, sys, tracked_files};

/// Ranges at a time.
const RANGES: usize = 128;
/// Nanoseconds between two retries: at first and at most.
const SOON: u64 = 5_000_000;
const LATE: u64 = 1_000_000_000;
/// Give up after this many nanoseconds without another page gone.
const GIVE_UP: u64 = 120_000_000_000;

/// A range of a file. `file` is the helper's own descriptor; -1 if there is none.
#[derive(Clone, Copy)]
struct DeferredDrop {
    file: c_int,
    start: u64,
    end: u64,
    count: Count,
    place: FileHash,
    due: u64,
    interval: u64,
    went_at: u64,
}

impl DeferredDrop {
    const NONE: Self = Self {
        file: -1,
        start: 0,
        end: 0,
        count: Count::StreamReleased,
        place: FileHash::NONE,
        due: 0,
        interval: 0,
        went_at: 0,
    };

    /// Drops the pages once; returns whether nothing more is to be done.
    fn is_done(&mut self, now: u64) -> bool {
        if is_lost(self.file, self.place) {
            return true;
        }
        let range = self.start..self.end;
        let went = drop_written(self.file, range.clone());
        process::count(self.count, went);
        if went > 0 {
            (self.interval, self.went_at) = (SOON, now);
        }
        self.due = now.saturating_add(self.interval);
        self.interval = (self.interval * 2).min(LATE);
        resident(self.file, &range).unwrap_or(0) == 0 || now.saturating_sub(self.went_at) > GIVE_UP
    }

    fn close(&mut self) {
        tracked_files::released(self.file);
        sys::close(self.file);
        self.place.give_back();
        *self = Self::NONE;
    }
}

/// All ranges.
pub(super) struct DeferredDrops([DeferredDrop; RANGES]);

impl DeferredDrops {
    pub(super) const NONE: Self = Self([DeferredDrop::NONE; RANGES]);

    fn each(&mut self) -> impl Iterator<Item = &mut DeferredDrop> {
        self.0.iter_mut().filter(|waiting| waiting.file >= 0)
    }

    /// Returns the nanoseconds until the next retry.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        let waiting = self.0.iter().filter(|waiting| waiting.file >= 0);
        waiting.map(|waiting| waiting.due.saturating_sub(now)).min()
    }

    /// Adds a range of a file.
    pub(super) fn add(&mut self, file: c_int, range: Range<u64>, count: Count, place: FileHash) {
        let now = sys::now();
        if self.0.iter().all(|waiting| waiting.file >= 0) {
            self.check(u64::MAX);
        }
        let Some(free) = self.0.iter_mut().find(|waiting| waiting.file < 0) else {
            sys::close(file);
            return place.give_back();
        };
        let (due, interval) = (now.saturating_add(SOON), SOON);
        *free = DeferredDrop {
            file,
            start: range.start,
            end: range.end,
            count,
            place,
            due,
            interval,
            went_at: now,
        };
    }

    /// Retries the ranges that are due by `until`.
    pub(super) fn check(&mut self, until: u64) {
        let now = sys::now();
        for waiting in self.each().filter(|waiting| waiting.due <= until) {
            if waiting.is_done(now) {
                waiting.close();
            }
        }
    }

    /// Lets go of the files that are lost.
    pub(super) fn let_go(&mut self) {
        self.each().filter(|waiting| is_lost(waiting.file, waiting.place)).for_each(DeferredDrop::close);
    }
}
