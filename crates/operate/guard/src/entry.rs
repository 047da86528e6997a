//! One log file of a watched directory: how it was last seen, and when it is sampled next.
//!
//! Nothing here fails: the directory reports what can't be seen.

use pagekeeper_kernel::Inode;
use pagekeeper_policy::names::FileNumber;
use pagekeeper_policy::sample_schedule::SampleSchedule;
use pagekeeper_policy::{FileId, LogId};

use crate::sample::{FileSample, LastStat, Sample};

/// One log file.
pub(crate) struct Entry {
    pub(crate) id: FileId,
    pub(crate) log: LogId,
    /// The number in the file's name.
    pub(crate) number: FileNumber,
    /// Its place in the log, by that number and the log's segment size.
    pub(crate) sequence: u64,
    pub(crate) inode: Inode,
    /// Time of birth, in nanoseconds of the epoch, where the file system records it.
    pub(crate) born: Option<i128>,
    /// Time of the last change, in nanoseconds of the epoch.
    pub(crate) changed: i128,
    pub(crate) size: u64,
    /// The size in the sample before; 0 before the first.
    pub(crate) previous_size: u64,
    /// The writer's position at the previous tick.
    pub(crate) writer_was_at: Option<u64>,
    pub(crate) sample: Sample,
    /// `st_ctime` at the last sample, in nanoseconds of the epoch; 0 before the first.
    pub(crate) status_changed: i128,
    /// When it is sampled next.
    pub(crate) schedule: SampleSchedule,
    /// The offset at which the next sample begins, if the last one did not reach the end.
    pub(crate) from: u64,
}

/// The time for which no file of a directory is due.
#[derive(Debug, Default)]
pub(crate) struct NextDue {
    /// Ticks that the files have not been counted down by.
    pub(crate) passed: u32,
    /// In how many of these ticks no file is due, as things stand.
    pub(crate) until_due: u32,
    /// Whether some process used a file of it in the tick before.
    pub(crate) was_busy: bool,
}

/// The properties of its database on which the sampling intervals depend.
pub(crate) struct OfDatabase {
    /// The number of its files.
    pub(crate) files: usize,
    /// Whether the guard sees which of them its process has open.
    pub(crate) sees_openers: bool,
}

impl Entry {
    /// Records a sample. Returns whether it differs from the one before. `among_many` and `turn`
    /// as in [`SampleSchedule`].
    pub(crate) fn take(&mut self, seen: FileSample, among_many: bool, may_rest: bool, turn: u64) -> bool {
        let FileSample { stat, sample: found, next, .. } = seen;
        let same = found == self.sample && stat.size == self.size && next.is_none() && self.from == 0;
        self.schedule.counted(same, found.resident, among_many, may_rest, turn);
        (self.from, self.status_changed) = (next.unwrap_or(0), stat.status_changed);
        (self.previous_size, self.size) = (self.size, stat.size);
        self.sample = found;
        !same
    }

    /// Returns the state in stat(2) for which its pages need not be counted in its next sample.
    /// `among_many` as in [`Self::take`].
    pub(crate) fn uncounted_while(&self, among_many: bool) -> Option<LastStat> {
        let can_wait = self.schedule.can_go_uncounted(self.sample.resident, self.sample.unwritten);
        (among_many && self.from == 0 && can_wait)
            .then_some(LastStat { size: self.size, status_changed: self.status_changed })
    }
}
