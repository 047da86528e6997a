//! Large sequential output (a compaction, a backup, a flush) that disturbs no one: it leaves
//! neither dirty pages that make the writes of others wait, nor resident pages that evict those of
//! others.
//!
//! | mode | how | leaves |
//! |---|---|---|
//! | [`BulkMode::Direct`] | past the page cache, in pieces, one at a time, with pauses while others wait | nothing |
//! | [`BulkMode::Paced`] | in the same pieces, through the page cache | at most the budget |
//! | [`BulkMode::Uncached`] | as paced, but the kernel drops the pages (`RWF_DONTCACHE`) | at most the budget |
//! | [`BulkMode::Buffered`] | as any write(2) | everything, and stalls others on the disk |
//!
//! Invariants: a file is written once, from its start to its end. After a failed write or writeback
//! every call returns its error, [`BulkWriter::finish`] at the latest; nothing is retried. No lock
//! is held over I/O. An error names the file and the byte range that could not be written (`EIO`,
//! `ENOSPC`).

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(not(target_os = "linux"))]
compile_error!("pagekeeper-bulk needs Linux: its rules are about the Linux page cache");

mod budget;
mod choose;
mod direct;
mod layout;
mod mode;
mod others_syncs;
mod pages;
mod writer;

pub use layout::{Backing, Disk, DiskLayout};
pub use mode::BulkMode;
pub use writer::{BulkOptions, BulkReport, BulkWriter};
