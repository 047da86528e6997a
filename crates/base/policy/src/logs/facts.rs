//! Facts: the state of files, writers and followers that the caller saw at one moment.
//!
//! The guard observes it from outside; an engine's own logs know it exactly. Nothing here does I/O.
//! Offsets and sizes are in bytes.

use std::sync::Arc;

use crate::{CheckpointPosition, FileClass, RewriteKind, Rule};

/// Identifies a file for as long as the caller watches it; never reused for another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// Identifies a log: the files of one series (`binlog.000001`, `binlog.000002`, …) or of one ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId(pub u64);

/// Identifies a database, whose logs share the total of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatabaseId(pub u64);

/// Identifies a follower (a reader that tails a log) for as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FollowerId(pub u64);

/// A position in a file, as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FilePosition {
    /// The next byte to be written or read is at this offset.
    At(u64),
    /// Unknown: the program uses `pwrite` or `pread`, whose offsets `/proc` does not show.
    Unknown,
}

/// A part of a file that has resident pages.
///
/// Windows of one file ascend, do not overlap, and are aligned to [`crate::WINDOW`], except that
/// the last ends at the end of the file. A part without resident pages is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowFacts {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Resident bytes.
    pub resident: u64,
    /// Bytes that are dirty or under writeback; at most `resident`.
    pub unwritten: u64,
}

/// One watched file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileFacts {
    /// The file's ID.
    pub id: FileId,
    /// The database that owns it.
    pub database: DatabaseId,
    /// The log it belongs to.
    pub log: LogId,
    /// Its position in the log: a larger one is newer. In a ring, its slot.
    pub sequence: u64,
    /// The role of the file in the database.
    pub class: FileClass,
    /// The rule for its pages.
    pub rule: Rule,
    /// The way in which its writer overwrites old bytes.
    pub rewrite: RewriteKind,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last write, by the clock of its file system or as a count. Compared only with
    /// that of other steps.
    pub changed: i128,
    /// The writer's position, if this is the file it writes now.
    pub writer: Option<FilePosition>,
    /// The parts that have resident pages, ascending. Shared, since most steps repeat the facts of
    /// the step before.
    pub windows: Arc<[WindowFacts]>,
}

/// One reader that tails a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowerFacts {
    /// The follower's ID.
    pub id: FollowerId,
    /// The log it reads.
    pub log: LogId,
    /// The sequence of the file it reads now.
    pub sequence: u64,
    /// Its position in that file.
    pub position: FilePosition,
    /// It is near up to this many files behind the writer. The larger of this and the rule's limit
    /// applies.
    pub near_files: u64,
}

/// The position from which crash recovery would read a log, as its database states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointFacts {
    /// The log.
    pub log: LogId,
    /// The checkpoint. In a ring it must be read after the residency of the file.
    pub at: CheckpointPosition,
}

/// Everything observed at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepFacts {
    /// The watched files, in any order.
    pub files: Vec<FileFacts>,
    /// The followers, in any order.
    pub followers: Vec<FollowerFacts>,
    /// The known checkpoints, in any order; only [`Rule::ReleaseBeforeCheckpoint`] uses them.
    pub checkpoints: Vec<CheckpointFacts>,
    /// A counter that the caller raises every few seconds. Pages that resisted a release are tried
    /// again only after it has changed.
    pub retry: u64,
}

impl StepFacts {
    /// Returns the resident bytes of all files.
    pub fn resident(&self) -> u64 {
        self.files.iter().flat_map(|file| file.windows.iter()).map(|window| window.resident).sum()
    }
}
