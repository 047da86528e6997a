//! The rules of pagekeeper, alone: given facts about files, writers and followers, which ranges to flush,
//! release, keep or warn about.
//!
//! No I/O, no clock, no threads: plain data in, plain data out. The same function serves the guard, which
//! observes positions from outside, and an engine's own logs, which know them exactly. [`write_behind`], [`log`] and [`stream`] allocate
//! nothing and need no standard library, for the library that is preloaded into other programs.

#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(feature = "std")]
mod act;
#[cfg(feature = "std")]
mod allowance;
#[cfg(feature = "std")]
mod disk;
#[cfg(all(test, feature = "std"))]
mod examples;
#[cfg(feature = "std")]
pub mod external_stream;
#[cfg(feature = "std")]
mod facts;
#[cfg(feature = "std")]
mod history;
pub mod log;
mod rule;
#[cfg(feature = "std")]
mod state;
#[cfg(feature = "std")]
mod step;
pub mod stream;
#[cfg(feature = "std")]
mod tail_inference;
pub mod write_behind;

#[cfg(feature = "std")]
pub use act::{Act, Warning};
#[cfg(feature = "std")]
pub use disk::{BulkProfile, DepthProfile, DirectProfile, DiskProfile, MixedProfile, UncachedProfile};
#[cfg(feature = "std")]
pub use facts::{Facts, FileFacts, FileId, FollowerFacts, FollowerId, LogId, Position, Window};
pub use rule::{BulkPages, DEFAULT_NEAR_FILES, DEFAULT_SLACK, FileClass, Rewrite, Rule, number};
#[cfg(feature = "std")]
pub use state::StepState;
#[cfg(feature = "std")]
pub use step::step;

/// Alignment and least size of released ranges, in bytes (2 MiB): the largest folio of ext4 and XFS on x86-64.
/// A smaller range inside a large folio drops nothing (Linux 6.18, measured).
pub const WINDOW: u64 = 2 << 20;

/// Bytes ahead of a moving far follower that stay resident while it moves (8 MiB), so that a release does not
/// throw away what the kernel has just read ahead for it: the largest `read_ahead_kb` met (ext4, Linux 6.18).
pub const READ_AHEAD: u64 = 8 << 20;
