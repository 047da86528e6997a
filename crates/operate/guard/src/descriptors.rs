//! Finds which processes have which log files open, and at which position: writers and followers,
//! from `/proc/PID/fd` and `/proc/PID/fdinfo`.
//!
//! - Listing all descriptors of a process is the expensive part (some microseconds each). So it is
//!   done rarely, at intervals that keep its cost under [a share](schedule) of the time.
//! - A listing proceeds in slices of processor time. A process with very many descriptors takes
//!   several ticks, and keeps no other waiting.
//! - When files came, or a descriptor turned out to be another file than before, the likely changes
//!   are checked first: [of a database](log_fd_predictor) and [of other processes](changes).
//! - In between only descriptors known to be of log files are read. At most [`POLLED_PER_TICK`] are
//!   read in one tick, by shares; of many descriptors, those that moved come first.
//! - At most [`DESCRIPTORS_PER_PROCESS`] are remembered per process, and
//!   [`FOREIGN_DESCRIPTORS_MAX`], by shares, for all processes that are not databases.
//!
//! A process that ended has no descriptors. A process that may not be inspected is reported by its
//! error.
//!
//! [`DESCRIPTORS_PER_PROCESS`]: crate::budget::DESCRIPTORS_PER_PROCESS
//! [`FOREIGN_DESCRIPTORS_MAX`]: crate::budget::FOREIGN_DESCRIPTORS_MAX

mod changes;
mod lister;
mod log_fd_predictor;
mod others;
mod poll;
mod schedule;

use std::time::{Duration, Instant};

use pagekeeper_kernel::process::{OpenFile, ProcRoot, thread_cpu_time};
use pagekeeper_policy::FileId;

pub(crate) use crate::descriptor::{Descriptor, FilesInUse, POLLED_PER_TICK};
use crate::known_names::KnownNames;

pub(crate) use self::lister::{ListedProcess, Lister, name_of_removed};
use self::lister::{descriptor, mark_moved};
use self::log_fd_predictor::LogFdPredictor;
pub(crate) use self::others::ForeignDescriptors;
use self::poll::poll;
pub(crate) use self::schedule::{Extent, Schedule};

/// The descriptors of a database's process, kept up to date.
#[derive(Debug)]
pub(crate) struct Descriptors {
    pub(crate) known: Vec<Descriptor>,
    pub(crate) schedule: Schedule,
    turn: usize,
    predictor: LogFdPredictor,
}

impl Descriptors {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            known: Vec::new(),
            schedule: Schedule::new(now),
            turn: 0,
            predictor: LogFdPredictor::default(),
        }
    }

    /// Records that a full listing has ended, the time that it took, and how many descriptors there
    /// were when it began. [`Self::settle`] is given its result.
    pub(crate) fn listed(&mut self, cost: Duration, count: Option<u64>) {
        self.schedule.end(cost);
        self.predictor.listed(count);
    }

    /// Expects new files, each the last of its log: the process may have opened them, and closed
    /// others.
    pub(crate) fn expect(&mut self, files: impl Iterator<Item = FileId>) {
        let extent = self.predictor.expect(files);
        self.schedule.ask(extent);
    }

    /// Begins a listing if one is due. Returns its extent.
    pub(crate) fn begin(&mut self, now: Instant) -> Option<Extent> {
        let extent = self.schedule.begin(now);
        if extent == Some(Extent::All) {
            self.predictor.begin_all();
        }
        extent
    }

    /// Checks where changes are likely to be, if that may be enough. Returns whether the check
    /// shows what a full listing would; otherwise that listing follows. See [`log_fd_predictor`].
    pub(crate) fn end_with_check(&mut self, pid: u32, proc: &ProcRoot, names: Option<&KnownNames>) -> bool {
        let before = thread_cpu_time();
        let count = || proc.fd_count(pid);
        let is_enough =
            names.is_some_and(|names| self.predictor.check(&mut self.known, pid, proc, names, count));
        if is_enough {
            self.schedule.end(thread_cpu_time().saturating_sub(before));
        } else {
            self.schedule.go_on_with_all();
            self.predictor.begin_all();
        }
        is_enough
    }

    /// Remembers those of the listed descriptors that are of watched files.
    pub(crate) fn settle(&mut self, pid: u32, listed: &[OpenFile], names: &KnownNames) {
        let mut known: Vec<_> = listed.iter().filter_map(|file| descriptor(pid, file, names)).collect();
        mark_moved(&mut known, &self.known);
        self.predictor.settled(self.known.iter().map(|before| before.fd), &known, listed.len());
        self.known = known;
    }

    /// Reads the positions of up to `share` known descriptors again. A descriptor that is closed or
    /// became another file triggers a check.
    pub(crate) fn poll(&mut self, proc: &ProcRoot, share: usize) {
        let polled = poll(&mut self.known, &mut self.turn, proc, share);
        if !polled.lost.is_empty() {
            self.schedule.ask(Extent::Changes);
        }
        self.predictor.polled(&polled);
    }
}
