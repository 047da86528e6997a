//! Pages that stayed as their file was closed, since a socket's or a pipe's queue holds them: tried again until they went.
//!
//! Invariants: while there are none there is no timer; what does not go is tried ever more rarely, and given up after [`GIVE_UP`] without
//! a page more gone. What there is no room for stays: the report shows it.

use core::ops::Range;

use libc::c_int;

use super::drop_written;
use super::held::{FileHash, is_lost};
use crate::counters::Count;
use crate::residency::resident;
use crate::{noted, process, sys};

/// Ranges at a time.
const RANGES: usize = 128;
/// Nanoseconds between two attempts: first, and at most.
const SOON: u64 = 5_000_000;
const LATE: u64 = 1_000_000_000;
/// Nanoseconds without a page more gone after which the rest is left.
const GIVE_UP: u64 = 120_000_000_000;

/// A range of a file of which `file` is our own descriptor; -1: none.
#[derive(Clone, Copy)]
struct Waiting {
    file: c_int,
    start: u64,
    end: u64,
    count: Count,
    place: FileHash,
    due: u64,
    interval: u64,
    went_at: u64,
}

impl Waiting {
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

    /// Tries: whether there is nothing more to be done.
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
        noted::released(self.file);
        sys::close(self.file);
        self.place.give_back();
        *self = Self::NONE;
    }
}

/// All of them.
pub(super) struct Later([Waiting; RANGES]);

impl Later {
    pub(super) const NONE: Self = Self([Waiting::NONE; RANGES]);

    fn each(&mut self) -> impl Iterator<Item = &mut Waiting> {
        self.0.iter_mut().filter(|waiting| waiting.file >= 0)
    }

    /// Nanoseconds until the next attempt.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        let waiting = self.0.iter().filter(|waiting| waiting.file >= 0);
        waiting.map(|waiting| waiting.due.saturating_sub(now)).min()
    }

    /// Takes a range of a file.
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
        *free =
            Waiting { file, start: range.start, end: range.end, count, place, due, interval, went_at: now };
    }

    /// Tries those that are due.
    pub(super) fn check(&mut self, until: u64) {
        let now = sys::now();
        for waiting in self.each().filter(|waiting| waiting.due <= until) {
            if waiting.is_done(now) {
                waiting.close();
            }
        }
    }

    /// Lets go of those that are lost.
    pub(super) fn let_go(&mut self) {
        self.each().filter(|waiting| is_lost(waiting.file, waiting.place)).for_each(Waiting::close);
    }
}
