//! The guard's decision on one sample, as data. The tick carries it out; others only read it.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use pagekeeper_kernel::Inode;
use pagekeeper_policy::{FileClass, FileId, LogWarning, Rule};
use serde::Serialize;

/// An act on a range of a file. Neither act can lose a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Asks the kernel to write the dirty pages of the range, without waiting.
    StartWriteback,
    /// Drops the pages of the range, once they are written.
    Release,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::StartWriteback => "start writeback",
            Self::Release => "release",
        })
    }
}

/// One act on one log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileAct {
    /// The file, as its database sees it.
    pub path: PathBuf,
    /// The inode of that file. If the path leads to another file by the time of the act, that one
    /// is left alone.
    pub inode: Inode,
    /// The range in bytes.
    pub range: Range<u64>,
    /// The act.
    pub action: Action,
    /// The file's class in its database.
    pub class: FileClass,
    /// The reason: the rule for its log.
    pub rule: Rule,
    /// The file's id in the policy.
    pub(crate) file: FileId,
    /// The index of its watched directory.
    pub(crate) directory: usize,
}

/// A warning for the operator about one log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWarning {
    /// The file, as its database sees it.
    pub path: PathBuf,
    /// The inode of that file.
    pub inode: Inode,
    /// The warning.
    pub warning: LogWarning,
    /// The warning as a sentence, with what was measured of the disk and what helps.
    pub text: String,
    /// The index of its watched directory.
    pub(crate) directory: usize,
}

/// The result of one sample of all log files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// The acts, in the order in which they are to be done. An act that is not done now is decided
    /// again at the next tick.
    pub acts: Vec<FileAct>,
    /// The warnings; each one once per file.
    pub warnings: Vec<FileWarning>,
}
