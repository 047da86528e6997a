//! Facts: what the caller has seen of its files, writers and followers at one moment.
//!
//! The guard observes them from outside; an engine's own logs know them exactly. Nothing here does I/O.
//! Offsets and sizes are in bytes.

use std::sync::Arc;

use crate::{Checkpoint, FileClass, Rewrite, Rule};

/// Names one file for as long as the caller watches it; never reused for another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// Names one log: the files of one series (`binlog.000001`, `binlog.000002`, …) or of one ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub u64);

/// Names one database: its logs share the total of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatabaseId(pub u64);

/// Names one follower (a reader that tails a log) for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FollowerId(pub u64);

/// A place in a file, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Position {
    /// The next byte to be written or read is at this offset.
    At(u64),
    /// It is somewhere in the file: the program uses `pwrite` or `pread`, whose offsets `/proc` does not show.
    Unknown,
}

/// A part of a file that has resident pages.
///
/// Windows of one file do not overlap, ascend, and are aligned to [`crate::WINDOW`] but for the last, which
/// ends at the end of the file. A part without resident pages is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Bytes resident in it.
    pub resident: u64,
    /// Bytes of it that are dirty or under writeback; at most `resident`.
    pub unwritten: u64,
}

/// One watched file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFacts {
    /// Which file this is.
    pub id: FileId,
    /// The database it is of.
    pub database: DatabaseId,
    /// The log it belongs to.
    pub log: LogId,
    /// Its place in the log: a larger one is newer. In a ring, its slot.
    pub sequence: u64,
    /// What it is to the database.
    pub class: FileClass,
    /// What is to be done with its pages.
    pub rule: Rule,
    /// How its writer comes back to old bytes.
    pub rewrite: Rewrite,
    /// Size in bytes.
    pub size: u64,
    /// When it was written last, by the clock of its file system or as a count: compared only with that of other steps.
    pub changed: i128,
    /// Where the writer is, if this is the file it writes now.
    pub writer: Option<Position>,
    /// The parts that have resident pages, ascending. Shared: facts are mostly those of the step before.
    pub windows: Arc<[Window]>,
}

/// One reader that tails a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowerFacts {
    /// Which follower this is.
    pub id: FollowerId,
    /// The log it reads.
    pub log: LogId,
    /// The sequence of the file it reads now.
    pub sequence: u64,
    /// Where in that file it is.
    pub position: Position,
    /// It is near up to so many files behind the writer, if these are more than its rule's.
    pub near_files: u64,
}

/// Where crash recovery would start to read a log, as its database says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointFacts {
    /// The log.
    pub log: LogId,
    /// Where. Of a ring it has to be seen after the residency of its file was.
    pub at: Checkpoint,
}

/// Everything seen at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The watched files, in any order.
    pub files: Vec<FileFacts>,
    /// The followers, in any order.
    pub followers: Vec<FollowerFacts>,
    /// The checkpoints that are known, in any order; only [`Rule::ReleaseBeforeCheckpoint`] asks for them.
    pub checkpoints: Vec<CheckpointFacts>,
    /// A counter that the caller raises now and then (every few seconds): pages that resisted a release are
    /// tried again when it has changed, and left alone while it stands.
    pub retry: u64,
}

impl Facts {
    /// Bytes resident in all files.
    pub fn resident(&self) -> u64 {
        self.files.iter().flat_map(|file| file.windows.iter()).map(|window| window.resident).sum()
    }
}
