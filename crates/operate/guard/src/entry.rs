//! One log file of a watched directory: how it was last seen, and when it is sampled next.
//!
//! Invariants: an idle file is sampled ever less often, at least every [`IDLE_TICKS_MAX`] ticks, or
//! every [`EMPTY_TICKS_MAX`] ticks where it may rest. In a database with very many files, its pages
//! are counted in at least every [`SAMPLES_PER_COUNT`]th of these samples; the others only ask
//! stat(2). Nothing here fails: the directory reports what can't be seen.

use pagekeeper_kernel::Inode;
use pagekeeper_policy::names::FileNumber;
use pagekeeper_policy::{FileId, LogId, WINDOW};

use crate::sample::{FileSample, LastStat, Sample};

/// Maximum ticks between samples of an idle file.
pub(crate) const IDLE_TICKS_MAX: u32 = 32;
/// The same for a file without resident pages in a database with many files: somebody has to open
/// it first, which is seen. Does not apply to new files or to the last of a log.
pub(crate) const EMPTY_TICKS_MAX: u32 = 128;
/// In a database with very many files, the pages of some files are counted only every so many
/// samples while stat(2) shows no change. These are files that are sampled rarely, or that have at
/// most one window. Their pages change only if somebody reads them, and a reader that is seen
/// triggers a count.
pub(crate) const SAMPLES_PER_COUNT: u8 = 4;
/// Factors by which the interval of an idle file grows with each sample. The second one is for
/// files that had pages, in a database with very many files.
const SLOWDOWN_FACTORS: (u32, u32) = (2, 4);

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
    /// Samples since its pages were counted, in which stat(2) showed no change.
    pub(crate) uncounted: u8,
    /// Ticks until the next sample.
    pub(crate) due: u32,
    /// Ticks between samples.
    pub(crate) interval: u32,
    /// Whether it ever had resident pages.
    pub(crate) had_pages: bool,
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
    /// Makes the next sample due at once, with its pages counted.
    pub(crate) fn sample_now(&mut self) {
        self.due = 0;
        self.interval = 1;
        self.uncounted = SAMPLES_PER_COUNT;
    }

    /// Takes in a sample. Returns whether it differs from the one before. `among_many` says whether
    /// its database has very many files. Files with the same `turn` that become idle are sampled in
    /// the same ticks later.
    pub(crate) fn take(&mut self, seen: FileSample, among_many: bool, may_rest: bool, turn: u64) -> bool {
        let FileSample { stat, sample: found, next, .. } = seen;
        let size = stat.size;
        let same = found == self.sample && size == self.size && next.is_none() && self.from == 0;
        self.from = next.unwrap_or(0);
        // A file that never had a page may be new, and be written next.
        let is_known = self.had_pages || self.interval >= IDLE_TICKS_MAX;
        let rests = may_rest && is_known && found.resident == 0;
        let slower = self.slower(among_many);
        self.had_pages |= found.resident > 0;
        if !same {
            (self.interval, self.due) = (1, 1);
        } else if rests {
            self.slow_down(EMPTY_TICKS_MAX, EMPTY_TICKS_MAX, turn);
        } else {
            self.slow_down(slower, IDLE_TICKS_MAX, turn);
        }
        (self.status_changed, self.uncounted) = (stat.status_changed, 0);
        self.previous_size = self.size;
        self.size = size;
        self.sample = found;
        !same
    }

    /// Returns the state in stat(2) for which its pages need not be counted in its next sample.
    /// `among_many` as in [`Self::take`].
    pub(crate) fn uncounted_while(&self, among_many: bool) -> Option<LastStat> {
        let rests = self.interval >= IDLE_TICKS_MAX && self.sample.unwritten == 0;
        let can_wait = self.from == 0 && (rests || self.sample.resident <= WINDOW);
        (among_many && can_wait && self.uncounted + 1 < SAMPLES_PER_COUNT)
            .then_some(LastStat { size: self.size, status_changed: self.status_changed })
    }

    /// Records that stat(2) showed that state. `turn` as in [`Self::take`].
    pub(crate) fn take_unchanged(&mut self, turn: u64) {
        self.uncounted += 1;
        self.slow_down(self.slower(true), IDLE_TICKS_MAX.max(self.interval), turn);
    }

    fn slower(&self, among_many: bool) -> u32 {
        if among_many && self.had_pages { SLOWDOWN_FACTORS.1 } else { SLOWDOWN_FACTORS.0 }
    }

    /// Multiplies its interval by `slower`, up to `most`.
    fn slow_down(&mut self, slower: u32, most: u32, turn: u64) {
        let before = self.interval;
        self.interval = (before * slower).min(most);
        self.due = if before < most && self.interval == most {
            // Files that became idle together are spread over the ticks.
            1 + u32::try_from(turn % u64::from(most)).expect("it is less than the most")
        } else {
            self.interval
        };
    }
}
