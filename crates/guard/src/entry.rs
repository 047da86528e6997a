//! One log file of a watched directory: what was seen of it last, and when it is sampled next.
//!
//! Invariant: where nothing happens it is sampled ever more seldom, at least every [`SELDOM`] ticks, or [`EMPTY`] where it may rest.

use pagekeeper_kernel::Inode;
use pagekeeper_policy::names::Number;
use pagekeeper_policy::{FileId, LogId};

use crate::sample::{FileSample, Sample};

/// Ticks between samples of a file where nothing happens.
pub(crate) const SELDOM: u32 = 32;
/// And of one that has nothing resident, where a database has many files: somebody has to open it first, which is seen. Not of
/// one that is new, nor of the last of its log.
pub(crate) const EMPTY: u32 = 128;
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
    /// Asks for a sample when files are next sampled.
    pub(crate) fn sample_now(&mut self) {
        self.due = 0;
        self.interval = 1;
    }

    /// Takes in what was seen; whether it is another than before. `among_many` says whether its database has very many. Files with
    /// the same `turn` that fall quiet are sampled in the same ticks later.
    pub(crate) fn take(&mut self, seen: FileSample, among_many: bool, may_rest: bool, turn: u64) -> bool {
        let before = self.interval;
        let FileSample { size, sample: found, next, .. } = seen;
        let same = found == self.sample && size == self.size && next.is_none() && self.from == 0;
        self.from = next.unwrap_or(0);
        // One that never had a page may be new, and be written next.
        let is_known = self.had_pages || before >= SELDOM;
        let slower = if among_many && self.had_pages { SLOWER.1 } else { SLOWER.0 };
        self.had_pages |= found.resident > 0;
        let most = if may_rest && is_known && found.resident == 0 { EMPTY } else { SELDOM };
        self.interval = if !same {
            1
        } else if most == EMPTY {
            EMPTY
        } else {
            (self.interval * slower).min(SELDOM)
        };
        self.previous_size = self.size;
        self.size = size;
        self.sample = found;
        self.due = if before < most && self.interval == most {
            // Files that fell quiet together are spread over the ticks.
            1 + u32::try_from(turn % u64::from(most)).expect("it is less than the most")
        } else {
            self.interval
        };
        !same
    }
}
