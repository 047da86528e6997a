//! Streams: programs that read or write much data once, followed by events of the kernel. The pages
//! that they bring into the page cache are released behind them.
//!
//! # Invariants
//!
//! A page that no followed process brought in is never released, nor one that another process has
//! used since. No file is held open between two steps. This crate only reads, asks for writeback,
//! and gives advice.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod disks;
mod files;
mod follow;
mod limits;
mod open;
mod processes;
mod report;
mod requests;
mod service;
mod source;
mod start_reads;
mod stream_name;
pub mod stream_request;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use pagekeeper_policy::stream_pace::StreamPace;
pub use pagekeeper_policy::stream_pages::StreamTotals;
use pagekeeper_trace::page_events::{FollowedNames, PageEvents};

pub use disks::others::OthersOnDisks;
pub use disks::paced_turns::PacedTurns;
use follow::Follower;
pub use requests::{RequestId, RequestReport, Requester};
pub use service::{CurrentLink, Service, StreamSocket, ThreadLink};
pub use start_reads::{ReadStep, RecordedReads, StartReads};
pub use stream_name::stream_name;
pub use thread::{StreamThread, StreamUpdate};

/// The decision about a stream's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Its pages are released.
    Release,
    /// Its pages are reported instead of released.
    Report,
    /// It is left alone.
    Leave,
}

/// Decides about a file of a followed process, given the process, and the file's path as far as it
/// is known. Called by the workers of several devices at once.
pub type Decide = Box<dyn Fn(u32, Option<&Path>) -> Verdict + Send + Sync>;

/// Returns whether a process that has just become another program is followed although none of the
/// names fits.
pub type IsMember = Box<dyn Fn(u32) -> bool + Send>;

/// The programs to follow, and how.
pub struct StreamOptions {
    /// Names of processes (`comm`) that are followed from their start on, with their children; a
    /// name may end in `*`.
    pub names: Vec<String>,
    /// A test for further processes to follow, such as those of a control group. It is called for
    /// each program that is started on this machine.
    pub members: Option<IsMember>,
    /// Names of processes that are never followed or held: databases.
    pub never: Vec<String>,
    /// The decision about each file.
    pub decide: Decide,
    /// The pace at which they may use a disk.
    pub pace: StreamPace,
}

/// The reason, in a sentence, why streams can't be followed by events.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(String);

/// An event of a step, to be reported.
#[derive(Debug, Clone, PartialEq)]
pub enum StreamEvent {
    /// A followed process has brought in pages of files, 1 MiB for the first time.
    Began {
        /// The process.
        pid: u32,
        /// The program's name.
        program: String,
    },
    /// A followed process has ended, and none of the pages that it brought in is left to be
    /// released.
    Ended {
        /// The process.
        pid: u32,
        /// The program's name.
        program: String,
        /// The time that it ran.
        seconds: f64,
        /// Files of which it brought in pages.
        files: u64,
        /// The fate of its pages.
        totals: StreamTotals,
    },
    /// A range that would have been released ([`Verdict::Report`]).
    Would {
        /// The file, as far as its path is known.
        path: PathBuf,
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    /// A failure.
    Problem {
        /// The file, as far as its path is known.
        path: PathBuf,
        /// The failure, and its remedy.
        sentence: String,
    },
}

/// The reason why pages of a file stayed.
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
    /// The verdict was to leave the file alone.
    Left,
    /// Locked, in flight, or unknown.
    Other,
}

/// The fate of a file's pages.
#[derive(Debug, Clone)]
pub struct FileReport {
    /// Its path, as far as it is known.
    pub path: PathBuf,
    /// The fate of its pages.
    pub totals: StreamTotals,
    /// The reason why some stayed.
    pub why: Option<StayReason>,
}

/// The fate of all pages.
#[derive(Debug, Clone, Default)]
pub struct StreamReport {
    /// Totals of all files.
    pub totals: StreamTotals,
    /// The files of which pages stayed, largest first, at most 64.
    pub stayed: Vec<FileReport>,
    /// Bytes released so far, by program.
    pub released_by_program: BTreeMap<String, u64>,
    /// Bytes released so far, by the user who runs the program; `None` stands for users beyond the
    /// first 256.
    pub released_by_user: BTreeMap<Option<u32>, u64>,
    /// Followed processes that are running.
    pub running: usize,
    /// Pages whose additions were missed because the kernel's buffer had no room, in bytes.
    pub lost_bytes: u64,
    /// The time that programs were held, all together, because they outran their disk or others
    /// waited for it.
    pub held: Duration,
}

/// Follows streams, from its creation until it is dropped.
pub struct Streams {
    follower: Follower,
}

impl Streams {
    /// Starts to follow, including processes of these names that already run.
    pub fn start(options: StreamOptions) -> Result<Self, Unavailable> {
        let StreamOptions { names, members, never, decide, pace } = options;
        // With `members` each program's start is an event, and programs that are not members are
        // dropped again.
        let every = members.iter().map(|_| "*".to_owned());
        let kernel = FollowedNames { streams: names.iter().cloned().chain(every).collect(), never };
        let events = PageEvents::open(&kernel).map_err(|error| Unavailable(error.to_string()))?;
        let mut follower = Follower::paced(events, decide, kernel.never, pace);
        follower.follow_chosen(names, members);
        Ok(Self { follower })
    }

    /// Starts to follow, by names only below the processes of [`Self::heed_names_below`].
    pub fn start_below(options: StreamOptions) -> Result<Self, Unavailable> {
        let StreamOptions { names, members: _, never, decide, pace } = options;
        let names = FollowedNames { streams: names, never };
        let events = PageEvents::open_below(&names).map_err(|error| Unavailable(error.to_string()))?;
        Ok(Self { follower: Follower::paced(events, decide, names.never, pace) })
    }

    /// Follows this process, and the children that it starts from now on, once they have one of the
    /// names.
    pub fn heed_names_below(&mut self, pid: u32) -> Result<(), Unavailable> {
        self.follower.heed_names_below(pid).map_err(|error| Unavailable(error.to_string()))
    }

    /// Returns whether a process is running that may be followed by its name at some time.
    pub fn heeds_names(&self) -> bool {
        self.follower.heeds_names()
    }

    /// Follows a process and the children that it starts from now on, whatever their names.
    pub fn follow(&mut self, pid: u32) -> Result<(), Unavailable> {
        self.follower.follow(pid).map_err(|error| Unavailable(error.to_string()))
    }

    /// Follows a process, and the children that it starts from now on, for a user: only files that
    /// this user may read are released.
    pub fn follow_for(&mut self, pid: u32, user: Requester) -> Result<RequestId, Unavailable> {
        self.follower.follow_for(pid, user).map_err(|error| Unavailable(error.to_string()))
    }

    /// Returns the fate of the pages that a request's processes brought in; `None` if it was
    /// forgotten.
    pub fn request_report(&self, id: RequestId) -> Option<RequestReport> {
        self.follower.request_report(id)
    }

    /// Forgets the totals of a request; its processes are still followed.
    pub fn forget_request(&mut self, id: RequestId) {
        self.follower.forget_request(id);
    }

    /// Stops following the processes of a request, and forgets it.
    pub fn withdraw_request(&mut self, id: RequestId) {
        self.follower.withdraw_request(id);
    }

    /// Takes the events that have come, decides, and releases. To be called every 10 ms while
    /// [`Self::is_busy`], otherwise after [`Self::wait`].
    pub fn step(&mut self) -> Vec<StreamEvent> {
        self.follower.step()
    }

    /// Waits until there is something to do, but at most for `at_most`. Within that, waits at least
    /// until 10 ms after the last step.
    pub fn wait(&self, at_most: Duration) {
        self.follower.wait(at_most);
    }

    /// Waits as [`Self::wait`] does, but at most until the descriptor is readable.
    pub fn wait_or_readable(&self, at_most: Duration, other: BorrowedFd<'_>) {
        self.follower.wait_or_readable(at_most, other);
    }

    /// Returns whether events have come recently, or pages are to be released.
    pub fn is_busy(&self) -> bool {
        self.follower.is_busy()
    }

    /// Returns the number of followed processes that are running.
    pub fn running(&self) -> usize {
        self.follower.running()
    }

    /// Returns the report on everything so far.
    pub fn report(&self) -> StreamReport {
        self.follower.report()
    }
}
