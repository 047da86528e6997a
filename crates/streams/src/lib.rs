//! Streams: programs that read or write much data once, followed by events of the kernel. The pages that they bring into the page
//! cache are released behind them.
//!
//! # Invariants
//!
//! A page that no followed process brought in is never released, nor one that another process has used since. No file is held open
//! between two steps. Only reads, asks for writeback, and gives advice.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod backlog;
mod device;
mod files;
mod follow;
mod hold;
mod limits;
mod open;
mod processes;
mod report;
mod requests;
mod source;
#[cfg(test)]
mod tests;
mod turns;
mod writing;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use pagekeeper_policy::stream_pace::StreamPace;
pub use pagekeeper_policy::stream_pages::StreamTotals;
use pagekeeper_trace::page_events::{FollowedNames, PageEvents};

use follow::Follower;
pub use requests::{RequestId, RequestReport, Requester};

/// What may be done with a stream's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its pages are released.
    Release,
    /// What would be released is reported, and left.
    Report,
    /// It is left alone.
    Leave,
}

/// Decides about a file of a followed process: the process, and the file's path as far as it is known. Called by the workers of several
/// devices at once.
pub type Decide = Box<dyn Fn(u32, Option<&Path>) -> Verdict + Send + Sync>;

/// Whether a process that has just become another program is followed, although none of the names fits.
pub type IsMember = Box<dyn Fn(u32) -> bool + Send>;

/// What is to be followed, and how.
pub struct StreamOptions {
    /// Names of processes (`comm`) that are followed from their start on, with their children; `*` may stand at the end.
    pub names: Vec<String>,
    /// Processes that are followed beside these, such as those of a control group. It is asked about each program that is started on this
    /// machine.
    pub members: Option<IsMember>,
    /// Names of processes that are never followed nor held: databases.
    pub never: Vec<String>,
    /// What may be done with each file.
    pub decide: Decide,
    /// How fast they may use a disk.
    pub pace: StreamPace,
}

/// Why streams can't be followed by events: a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(String);

/// What happened in a step, for who reports it.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// A process is followed that has brought in pages of a file (the first 1 MiB of it).
    Began {
        /// The process.
        pid: u32,
        /// What it is called.
        program: String,
    },
    /// A followed process has ended, and nothing of what it brought in is left to be released.
    Ended {
        /// The process.
        pid: u32,
        /// What it was called.
        program: String,
        /// How long it ran.
        seconds: f64,
        /// Files that it brought pages in of.
        files: u64,
        /// What became of its pages.
        totals: StreamTotals,
    },
    /// What would have been released ([`Verdict::Report`]).
    Would {
        /// The file, as far as its path is known.
        path: PathBuf,
        /// First and last byte.
        start: u64,
        /// Behind the last.
        end: u64,
    },
    /// Something could not be done.
    Problem {
        /// The file, as far as its path is known.
        path: PathBuf,
        /// What, and how it can be cured.
        sentence: String,
    },
}

/// Why pages of a file stayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StayReason {
    /// Not on disk yet.
    Unwritten,
    /// Mapped by a process.
    Mapped,
    /// The file could not be opened.
    NotOpened,
    /// Its file system did not answer.
    Hung,
    /// The verdict was to leave it.
    Left,
    /// Locked, in flight, or unknown.
    Other,
}

/// What became of a file's pages.
#[derive(Debug, Clone)]
pub struct FileReport {
    /// Its path, as far as it is known.
    pub path: PathBuf,
    /// What became of its pages.
    pub totals: StreamTotals,
    /// Why some stayed.
    pub why: Option<StayReason>,
}

/// What became of all.
#[derive(Debug, Clone, Default)]
pub struct StreamReport {
    /// Of all files together.
    pub totals: StreamTotals,
    /// The files of which something stayed, the most first, at most 64.
    pub stayed: Vec<FileReport>,
    /// Released so far, by program.
    pub released_by_program: BTreeMap<String, u64>,
    /// Released so far, by the user who runs the program; `None` are users beyond the first 256.
    pub released_by_user: BTreeMap<Option<u32>, u64>,
    /// Followed processes that run.
    pub running: usize,
    /// Pages whose additions were not seen, for want of room in the kernel's buffer, in bytes.
    pub lost_bytes: u64,
    /// How long programs were held because they outran their disk or others waited for it, all together.
    pub held: Duration,
}

/// Follows streams, from when it is made until it is dropped.
pub struct Streams {
    follower: Follower,
}

impl Streams {
    /// Begins to follow, also what runs already under one of the names.
    pub fn start(options: StreamOptions) -> Result<Self, Unavailable> {
        let StreamOptions { names, members, never, decide, pace } = options;
        // With members each program's start is an event; what is none of them is followed no longer.
        let every = members.iter().map(|_| "*".to_owned());
        let kernel = FollowedNames { streams: names.iter().cloned().chain(every).collect(), never };
        let events = PageEvents::open(&kernel).map_err(|error| Unavailable(error.to_string()))?;
        let mut follower = Follower::paced(events, decide, kernel.never, pace);
        follower.follow_chosen(names, members);
        Ok(Self { follower })
    }

    /// Begins to follow, by names only below the processes of [`Self::heed_names_below`].
    pub fn start_below(options: StreamOptions) -> Result<Self, Unavailable> {
        let StreamOptions { names, members: _, never, decide, pace } = options;
        let names = FollowedNames { streams: names, never };
        let events = PageEvents::open_below(&names).map_err(|error| Unavailable(error.to_string()))?;
        Ok(Self { follower: Follower::paced(events, decide, names.never, pace) })
    }

    /// Follows this process, and the children that it starts from now on, from when they have one of the names.
    pub fn heed_names_below(&mut self, pid: u32) -> Result<(), Unavailable> {
        self.follower.heed_names_below(pid).map_err(|error| Unavailable(error.to_string()))
    }

    /// Whether a process runs that may be followed by its name some time.
    pub fn heeds_names(&self) -> bool {
        self.follower.heeds_names()
    }

    /// Follows a process and the children that it starts from now on, whatever they are called.
    pub fn follow(&mut self, pid: u32) -> Result<(), Unavailable> {
        self.follower.follow(pid).map_err(|error| Unavailable(error.to_string()))
    }

    /// Follows a process, and the children that it starts from now on, for a user: only files that they may read are released.
    pub fn follow_for(&mut self, pid: u32, user: Requester) -> Result<RequestId, Unavailable> {
        self.follower.follow_for(pid, user).map_err(|error| Unavailable(error.to_string()))
    }

    /// What became of the pages that a request's processes brought in; `None` if it was forgotten.
    pub fn request_report(&self, id: RequestId) -> Option<RequestReport> {
        self.follower.request_report(id)
    }

    /// Keeps the sums of a request no longer; its processes are followed as before.
    pub fn forget_request(&mut self, id: RequestId) {
        self.follower.forget_request(id);
    }

    /// Follows the processes of a request no longer, and forgets it.
    pub fn withdraw_request(&mut self, id: RequestId) {
        self.follower.withdraw_request(id);
    }

    /// Takes the events that have come, decides, and releases. To be called each 10 ms while [`Self::is_busy`], else after
    /// [`Self::wait`].
    pub fn step(&mut self) -> Vec<StreamEvent> {
        self.follower.step()
    }

    /// Waits until something is to be done, or for so long; at least until 10 ms after the last step, unless that is longer.
    pub fn wait(&self, at_most: Duration) {
        self.follower.wait(at_most);
    }

    /// Waits as [`Self::wait`] does, and no longer than until the descriptor is readable.
    pub fn wait_or_readable(&self, at_most: Duration, other: BorrowedFd<'_>) {
        self.follower.wait_or_readable(at_most, other);
    }

    /// Whether events have come lately, or pages are to be released.
    pub fn is_busy(&self) -> bool {
        self.follower.is_busy()
    }

    /// How many followed processes run.
    pub fn running(&self) -> usize {
        self.follower.running()
    }

    /// What became of all so far.
    pub fn report(&self) -> StreamReport {
        self.follower.report()
    }
}
