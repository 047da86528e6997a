//! What the guard decided on one sample, as data: the tick carries it out, others only read it.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use pagekeeper_kernel::Inode;
use pagekeeper_policy::{FileClass, FileId, Rule, Warning};
use serde::Serialize;

/// What is to be done to a range of a file. Neither can lose a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Ask the kernel to write its dirty pages, without waiting.
    StartWriteback,
    /// Drop its pages, once they are written.
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
    /// Which file that is: by the time of the act the path may lead to another, which is left alone.
    pub inode: Inode,
    /// In bytes.
    pub range: Range<u64>,
    /// What is to be done.
    pub action: Action,
    /// What the file is to its database.
    pub class: FileClass,
    /// Why: the rule for its log.
    pub rule: Rule,
    /// The same to the policy.
    pub(crate) file: FileId,
    /// Which of the watched directories it is in.
    pub(crate) directory: usize,
}

/// What an operator should know of one log file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileWarning {
    /// The file, as its database sees it.
    pub path: PathBuf,
    /// Which file that is.
    pub inode: Inode,
    /// What of it.
    pub warning: Warning,
    /// The same in a sentence, with what was measured of the disk and what helps.
    pub text: String,
    /// Which of the watched directories it is in.
    pub(crate) directory: usize,
}

/// What one sample of all log files led to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// What is to be done, in this order. What is not done now is decided anew at the next tick.
    pub acts: Vec<FileAct>,
    /// What to warn of; of each file and warning once.
    pub warnings: Vec<FileWarning>,
}
