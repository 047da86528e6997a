//! The rules of pagekeeper, alone: given facts about files, writers and followers, which ranges to flush,
//! release, keep or warn about.
//!
//! No I/O, no clock, no threads: plain data in, plain data out. The same function serves the guard, which
//! observes positions from outside, and an engine's own logs, which know them exactly.

mod act;
mod acted;
#[cfg(test)]
mod examples;
mod facts;
mod limit;
mod rule;
mod state;
mod step;
mod tail;

pub use act::{Act, Warning};
pub use facts::{Facts, FileFacts, FileId, FollowerFacts, FollowerId, LogId, Position, Rewrite, Window};
pub use rule::{FileClass, Rule};
pub use state::State;
pub use step::step;

/// Alignment and least size of released ranges, in bytes (2 MiB): the largest folio of ext4 and XFS on x86-64.
/// A smaller range inside a large folio drops nothing (Linux 6.18, measured).
pub const WINDOW: u64 = 2 << 20;

/// Bytes ahead of a moving far follower that stay resident while it moves (8 MiB), so that a release does not
/// throw away what the kernel has just read ahead for it: the largest `read_ahead_kb` met (ext4, Linux 6.18).
pub const READ_AHEAD: u64 = 8 << 20;
