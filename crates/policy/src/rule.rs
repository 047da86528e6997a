//! File classes and rules: what a profile says a file is, and what is to be done with its pages.
//!
//! Both are plain names; [`crate::step()`] gives them their meaning.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a file is to its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum FileClass {
    /// A redo log: fixed files used as a ring, read only by recovery.
    Redo,
    /// A replication log of the server: segments that followers tail.
    Binlog,
    /// What a replica received and has yet to apply.
    Relay,
    /// A write-ahead log in segments.
    Wal,
    /// Table files, SST files: the data itself.
    Data,
    /// Sort runs, temporary tables, spill files.
    Temp,
}

impl fmt::Display for FileClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Redo => "redo",
            Self::Binlog => "binlog",
            Self::Relay => "relay",
            Self::Wal => "wal",
            Self::Data => "data",
            Self::Temp => "temp",
        })
    }
}

/// What is to be done with the resident pages of a file.
///
/// Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Leave the pages alone.
    Keep,
    /// Release what lies more than `slack` bytes behind the writer; release whole files the writer has left.
    ReleaseBehindWriter {
        /// Bytes behind the writer that stay resident.
        slack: u64,
    },
    /// Leave the writer's file alone, release each file once the writer has left it.
    ReleaseOnRotation,
    /// As [`Rule::ReleaseBehindWriter`], but leave what a near follower has yet to read.
    ReleaseBehindFollowers {
        /// A follower at most this many files behind the writer's file is near: pages wait for it.
        near_files: u64,
        /// Bytes behind the writer that stay resident.
        slack: u64,
    },
    /// Let the log keep `bytes` resident, newest first; release the oldest beyond it.
    Budget {
        /// Bytes of the whole log that may stay resident.
        bytes: u64,
    },
    /// The database uses direct I/O on this file: resident pages are leftovers, released and warned of.
    Direct,
}
