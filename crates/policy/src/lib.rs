//! The rules of pagekeeper, alone: given facts about files, writers and followers, which ranges to flush, release,
//! keep or warn about.
//!
//! No I/O, no clock, no threads: plain data in, plain data out. The same function serves the guard, which observes
//! positions from outside, and an engine's own logs, which know them exactly.

mod act;
mod facts;
mod rule;

pub use act::{Act, Warning};
pub use facts::{FileFacts, FileId, Facts, FollowerFacts, FollowerId, LogId, Position, Rewrite, Window};
pub use rule::{FileClass, Rule};

/// Alignment and least size of released ranges, in bytes (2 MiB): the largest folio of ext4 and XFS on x86-64.
/// A smaller range inside a large folio drops nothing (Linux 6.18, measured).
pub const WINDOW: u64 = 2 << 20;
