//! The rules of pagekeeper, alone: given facts about files, writers and followers, which ranges to write back, release, keep or
//! warn about. No I/O, no clock, no threads: plain data in, plain data out.
//!
//! *Logs* have one rule in two halves. [`allowance`] says what may go, by the places of a log's writer and followers. The exact half is
//! for those that know the places: an engine's own logs ([`exact`]), and a process whose writes are seen one by one ([`log`], which finds
//! the writer's place in them). The inferring half is [`step()`], for an observer: it has windows with their resident and dirty bytes, finds a
//! writer's place by its traces where none is shown, and remembers what it did, since windows may resist or fill again. What readers
//! that it does not know of read back it sees, and keeps their logs.
//!
//! What crash recovery would read of a log ([`recovery`]) follows from its checkpoint, which only the database knows.
//!
//! *Bulk output* ([`write_behind`]) is another question: not what may go, but how output goes to its disk so that others
//! hardly wait for it ([`pacer`]). It shares the form of what is due ([`exact::Due`]) with the exact half, and no more.
//!
//! *Streams* ask which pages a program brought in, and may give back. [`stream`] sees each read before it is made: it samples residency just
//! ahead of the reader, page by page, in fixed memory, for the preloaded library, and [`scattered`] those of readers that jump. [`stream_pages`] serves observers, which the kernel
//! informs of the pages that streams add and of who used them since: it keeps bits of those alone. Both leave pages that others use, and
//! the pages around the reader, and try again what resisted. Their memories differ: per-page bits of whole files would cost an observer
//! of hundreds of them too much, and growing lists can't be kept in a signal handler.
//!
//! Both kinds of streams stand back where others wait for their disk ([`stream_pace`]): writers by [`pacer`], readers by [`read_pace`]. How much
//! they leave to others that are known follows from what these ask of the disk ([`disk_contention`]). Writers that outrun their disk are
//! held ([`stream_hold`]).
//! *Processes* that nobody knows by name are streams if they go through their files once ([`once_through`]).
//!
//! *Names* say which files a log has, and how far apart two of them are ([`names`]).
//!
//! *Unnamed files* that a server appends much to are worth a word ([`unnamed`]).
//!
//! *Groups* say when a memory cgroup's page cache takes too much of its limit, and how much of it may be given up next ([`mod@group`]).
//!
//! *Shares* say what each may have of what there is for all ([`mod@shares`]).
//!
//! What has no `std` in its conditions below allocates nothing and needs no standard library, for the library that is preloaded into other
//! programs.

#![cfg_attr(not(feature = "std"), no_std)]

#[cfg(feature = "std")]
mod act;
pub mod allowance;
#[cfg(feature = "std")]
mod disk;
pub mod disk_contention;
pub mod exact;
#[cfg(all(test, feature = "std"))]
mod examples;
#[cfg(feature = "std")]
mod facts;
#[cfg(feature = "std")]
mod followed;
pub mod group;
#[cfg(feature = "std")]
mod history;
pub mod log;
pub mod names;
pub mod once_through;
pub mod pacer;
#[cfg(feature = "std")]
pub mod ranges;
#[cfg(feature = "std")]
mod read_back;
pub mod read_pace;
pub mod recovery;
mod rule;
pub mod scattered;
#[cfg(feature = "std")]
pub mod shares;
#[cfg(feature = "std")]
mod state;
#[cfg(feature = "std")]
mod step;
pub mod stream;
#[cfg(feature = "std")]
pub mod stream_hold;
pub mod stream_pace;
#[cfg(feature = "std")]
pub mod stream_pages;
#[cfg(feature = "std")]
mod tail_inference;
#[cfg(feature = "std")]
pub mod unnamed;
pub mod write_behind;

#[cfg(feature = "std")]
pub use act::{Act, Warning};
#[cfg(feature = "std")]
pub use disk::{BulkProfile, DepthProfile, DirectProfile, DiskProfile, MixedProfile, UncachedProfile};
#[cfg(feature = "std")]
pub use facts::{
    CheckpointFacts, DatabaseId, Facts, FileFacts, FileId, FollowerFacts, FollowerId, LogId, Position, Window,
};
#[cfg(feature = "std")]
pub use read_back::READ_BACK_EVIDENCE;
pub use recovery::Checkpoint;
pub use rule::{
    BulkPages, DEFAULT_NEAR_FILES, DEFAULT_SLACK, DEFAULT_TOTAL, FileClass, Rewrite, RewriteSource, Rule,
    number,
};
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
