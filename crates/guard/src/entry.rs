//! One log file of a watched directory: what was seen of it last, and when it is sampled next.
//!
//! Invariants: where nothing happens it is sampled ever more seldom, at least every [`SELDOM`] ticks, or [`EMPTY`] where it may rest;
//! where its database has very many, its pages are counted in every [`COUNTED`]th of these samples at least, and stat(2) alone is
//! asked in the others. Fails never: what can't be seen is its directory's to report.

use pagekeeper_kernel::Inode;
use pagekeeper_policy::names::Number;
use pagekeeper_policy::{FileId, LogId, WINDOW};

use crate::sample::{FileSample, LastStat, Sample};

/// Ticks between samples of a file where nothing happens.
pub(crate) const SELDOM: u32 = 32;
/// And of one that has nothing resident, where a database has many files: somebody has to open it first, which is seen. Not of
/// one that is new, nor of the last of its log.
pub(crate) const EMPTY: u32 = 128;
/// Of a database with very many files, the pages of one that rests, or has no more than a window of them, are counted in every so many
/// samples while stat(2) shows no change: somebody has to read it for them to be others, and who is seen to be at it asks for a count.
pub(crate) const COUNTED: u8 = 4;
/// A file where nothing happens is sampled so many times as seldom each time; one of very many that had pages by the second.
const SLOWER: (u32, u32) = (2, 4);

/// One log file.
pub(crate) struct Entry {
    pub(crate) id: FileId,
    pub(crate) log: LogId,
    /// The number in its name.
    pub(crate) number: Number,
    /// Which file of its log it is, by that number and the log's segment size.
    pub(crate) sequence: u64,
    pub(crate) inode: Inode,
    /// Time of birth, in nanoseconds of the epoch, where the file system records it.
    pub(crate) born: Option<i128>,
    /// Time of the last change, in nanoseconds of the epoch.
    pub(crate) changed: i128,
    pub(crate) size: u64,
    /// The size in the sample before; 0 before the first.
    pub(crate) previous_size: u64,
    /// Where the writer was at the tick before.
    pub(crate) writer_was_at: Option<u64>,
    pub(crate) sample: Sample,
    /// `st_ctime` at the last sample, in nanoseconds of the epoch; 0 before the first.
    pub(crate) status_changed: i128,
    /// Samples since, in which it showed the same.
    pub(crate) uncounted: u8,
    /// Ticks until the next sample.
    pub(crate) due: u32,
    /// Ticks between samples.
    pub(crate) interval: u32,
    /// Whether it was seen with resident pages.
    pub(crate) had_pages: bool,
    /// Where the next sample begins, if the last one did not come to the end.
    pub(crate) from: u64,
}

impl Entry {
    /// Asks for a sample when files are next sampled, in which its pages are counted.
    pub(crate) fn sample_now(&mut self) {
        self.due = 0;
        self.interval = 1;
        self.uncounted = COUNTED;
    }

    /// Takes in what was seen; whether it is another than before. `among_many` says whether its database has very many. Files with
    /// the same `turn` that fall quiet are sampled in the same ticks later.
    pub(crate) fn take(&mut self, seen: FileSample, among_many: bool, may_rest: bool, turn: u64) -> bool {
        let FileSample { stat, sample: found, next, .. } = seen;
        let size = stat.size;
        let same = found == self.sample && size == self.size && next.is_none() && self.from == 0;
        self.from = next.unwrap_or(0);
        // One that never had a page may be new, and be written next.
        let is_known = self.had_pages || self.interval >= SELDOM;
        let rests = may_rest && is_known && found.resident == 0;
        let slower = self.slower(among_many);
        self.had_pages |= found.resident > 0;
        if !same {
            (self.interval, self.due) = (1, 1);
        } else if rests {
            self.slow_down(EMPTY, EMPTY, turn);
        } else {
            self.slow_down(slower, SELDOM, turn);
        }
        (self.status_changed, self.uncounted) = (stat.status_changed, 0);
        self.previous_size = self.size;
        self.size = size;
        self.sample = found;
        !same
    }

    /// What stat(2) has to show for its pages not to be counted in its next sample. `among_many` as in [`Self::take`].
    pub(crate) fn uncounted_while(&self, among_many: bool) -> Option<LastStat> {
        let rests = self.interval >= SELDOM && self.sample.unwritten == 0;
        let can_wait = self.from == 0 && (rests || self.sample.resident <= WINDOW);
        (among_many && can_wait && self.uncounted + 1 < COUNTED)
            .then_some(LastStat { size: self.size, status_changed: self.status_changed })
    }

    /// Takes in that stat(2) showed that. `turn` as in [`Self::take`].
    pub(crate) fn take_unchanged(&mut self, turn: u64) {
        self.uncounted += 1;
        self.slow_down(self.slower(true), SELDOM.max(self.interval), turn);
    }

    fn slower(&self, among_many: bool) -> u32 {
        if among_many && self.had_pages { SLOWER.1 } else { SLOWER.0 }
    }

    /// It is sampled so many times as seldom from now on, but no more seldom than `most`.
    fn slow_down(&mut self, slower: u32, most: u32, turn: u64) {
        let before = self.interval;
        self.interval = (before * slower).min(most);
        self.due = if before < most && self.interval == most {
            // Files that fell quiet together are spread over the ticks.
            1 + u32::try_from(turn % u64::from(most)).expect("it is less than the most")
        } else {
            self.interval
        };
    }
}
