//! Budgets: how many names and windows, and how much processor time, databases may cost the guard.
//!
//! A database's owner may be hostile: hundreds of thousands of files that look like logs, a page in
//! each window of large sparse files, endless renames. None of that may cost more than a small
//! share of a core and of memory, or keep the guard from serving the other databases.
//!
//! The shares of each user and database are rules of the policy crate
//! ([`turns`](pagekeeper_policy::turns), [`quota`](pagekeeper_policy::quota)). A database
//! that has more is served in part, and that is reported as a [`Budget`]. Work measures itself with
//! a [`Turn`], in the thread that does it.

use std::cell::Cell;
use std::fmt;
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::thread_cpu_time;
use pagekeeper_policy::turns::Slice;
use serde::Serialize;

/// The most descriptors of log files remembered per process.
pub(crate) const DESCRIPTORS_PER_PROCESS: usize = 2048;
/// Maximum number of descriptors remembered for all processes that are not databases.
pub(crate) const FOREIGN_DESCRIPTORS_MAX: usize = 16_384;

/// Steps between two readings of the clocks.
const STEPS_PER_CLOCK_READ: u32 = 32;

/// A budget that a database exceeds: it is served in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Budget {
    /// Log files. Only those with the highest numbers are watched.
    Names,
    /// Windows of 2 MiB with resident pages. Some are handled now, the others later.
    Windows,
    /// Processor time, or the time its file system takes to answer. Everything is done later.
    Time,
    /// Directories with logs. The others are not watched.
    Directories,
    /// Descriptors of log files. The positions of the others are not known.
    Descriptors,
}

impl Budget {
    /// All budgets.
    pub const ALL: [Self; 5] = [Self::Names, Self::Windows, Self::Time, Self::Directories, Self::Descriptors];

    /// Returns the budget's name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Names => "names",
            Self::Windows => "windows",
            Self::Time => "time",
            Self::Directories => "directories",
            Self::Descriptors => "descriptors",
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Names => "more log files than the guard watches per database: only those with the highest numbers are watched",
            Self::Windows => "more of its logs is resident than the guard tracks per database: it is released part by part",
            Self::Directories => "more directories of logs than the guard watches per database or per user: the rest are left alone",
            Self::Descriptors => "more of its log files are open than the guard tracks per database: the positions of its writers and followers are known in part",
            Self::Time => "its logs take more time than the guard gives to one database: they are sampled and released more slowly",
        })
    }
}

/// One database's turn. It measures the time spent by the thread that began it.
#[derive(Debug)]
pub(crate) struct Turn {
    slice: Slice,
    cpu: Duration,
    wall: Instant,
    /// Steps until the clocks are read again.
    until_read: Cell<u32>,
    over: Cell<bool>,
}

impl Turn {
    pub(crate) fn begin(slice: Slice) -> Self {
        Self {
            slice,
            cpu: thread_cpu_time(),
            wall: Instant::now(),
            until_read: Cell::new(STEPS_PER_CLOCK_READ),
            over: Cell::new(false),
        }
    }

    /// Counts a step of about a microsecond. Returns whether the turn is over.
    pub(crate) fn step(&self) -> bool {
        let left = self.until_read.get().saturating_sub(1);
        self.until_read.set(left);
        if left == 0 { self.is_over() } else { self.over.get() }
    }

    /// Reads the clocks. Returns whether the turn is over.
    pub(crate) fn is_over(&self) -> bool {
        self.until_read.set(STEPS_PER_CLOCK_READ);
        let over =
            self.over.get() || self.spent() >= self.slice.cpu || self.wall.elapsed() >= self.slice.wall;
        self.over.set(over);
        over
    }

    /// Returns the processor time of this thread since the turn began.
    pub(crate) fn spent(&self) -> Duration {
        thread_cpu_time().saturating_sub(self.cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_by_either_clock() {
        let endless = Duration::from_secs(3600);
        let turn = Turn::begin(Slice { cpu: Duration::from_millis(5), wall: endless });
        while !turn.step() {
            std::hint::spin_loop();
        }
        assert!(turn.spent() >= Duration::from_millis(5) && turn.is_over());
        let turn = Turn::begin(Slice { cpu: endless, wall: Duration::from_millis(5) });
        assert!(!turn.is_over());
        std::thread::sleep(Duration::from_millis(5));
        assert!(turn.is_over());
    }
}
