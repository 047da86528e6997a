//! The rules of pagekeeper: from facts about files, writers and followers they decide which ranges
//! to write back, release, keep or warn about. No I/O, no clock, no threads: plain data in, plain
//! data out.
//!
//! * *Logs* have one rule in two halves. [`allowance`] decides what may be released, from the
//!   positions of a log's writer and followers. The exact half serves callers that know the
//!   positions: an engine's own logs ([`exact`]), and a process whose writes are seen one by one
//!   ([`log`], which finds the writer's position from them; [`log_rule`] says how much of it stays;
//!   [`file_action`] names what such a process does with each file). The inferring half,
//!   [`step()`], serves an observer. It gets windows with their resident and dirty bytes, infers a
//!   writer's position from its traces if none is visible, and remembers its actions, since windows
//!   may resist or fill again. It notices when unknown readers read released pages back, and then
//!   keeps their logs.
//! * *Removed files* that are still open may go in front of their readers ([`removed_file`]).
//! * *Recovery*: the part of a log that crash recovery would read ([`recovery`]) follows from its
//!   checkpoint, which only the database knows.
//! * *Bulk output* ([`write_behind`]) asks a different question: how output goes to its disk so
//!   that others hardly wait for it ([`pacer`]). [`output_offset`] finds its position,
//!   [`writer_state`] its state, and [`write_parts`] its parts in flight. It shares only the form
//!   of due work ([`exact::DueWork`]) with the exact half.
//! * *Streams* decide which pages a program brought in and may give back. [`stream`] serves the
//!   preloaded library: it sees each read in advance and samples residency just ahead of the
//!   reader, page by page, in fixed memory. [`scattered`] does the same for readers that jump, and
//!   [`uncached_reads`] where residency cannot be seen; [`reader_state`] says which of them
//!   applies. [`stream_pages`] serves observers, to whom the kernel reports which pages a stream
//!   adds and who used them since; it keeps bits of those pages alone. Both leave pages that others
//!   use and the pages around the reader, and retry pages that resisted. They keep their state
//!   differently: per-page bits of whole files would cost an observer of hundreds of files too
//!   much, and growing lists can't be kept in a signal handler.
//! * *Pacing*: both kinds of streams yield where others wait for their disk ([`stream_pace`]),
//!   writers by [`pacer`] and readers by [`read_pace`]. The requests of known others decide how
//!   much of the disk they leave to them ([`disk_contention`]). Writers that outrun their disk are
//!   held ([`stream_hold`]).
//! * *Processes* of unknown programs count as streams if they go through their files once
//!   ([`once_through`]).
//! * *Names* decide which files belong to a log, and how far apart two of them are ([`names`]).
//! * *Unnamed files* that a server appends much to are reported ([`unnamed`]).
//! * *Groups* decide when a memory cgroup's page cache takes too much of its limit, and how much of
//!   it to give up next ([`mod@group`]).
//!   [`group_members`] says which processes an observer looks at next to find them.
//! * *Shares* divide a common total ([`mod@shares`]): processor time for an observer's work on the
//!   databases of each user ([`turns`], [`cpu_budget`]), and their files and directories that it
//!   watches ([`quota`]).
//! * *Samples* of a file where nothing happens are made at growing intervals ([`sample_schedule`]).
//! * *Followers* of logs are found again in the file after the next ([`follower_history`]).
//! * *Sizes* of a page cache: the hit ratio at each ([`miss_curve`]), by simulations of the
//!   kernel's lists ([`page_lists`]) with a sample of pages ([`page_sample`]).
//!
//! Modules that do not require the feature `std` below allocate nothing and need no standard
//! library. They serve the library that is preloaded into other programs.

#![cfg_attr(not(feature = "std"), no_std)]

mod disks;
pub mod file_action;
pub mod group;
#[cfg(feature = "std")]
pub mod group_members;
mod logs;
#[cfg(feature = "std")]
pub mod miss_curve;
pub mod names;
mod output;
#[cfg(feature = "std")]
pub mod page_lists;
pub mod page_sample;
mod quotas;
#[cfg(feature = "std")]
pub mod ranges;
#[cfg(feature = "std")]
pub mod reported_once;
mod rule;
mod streams;
#[cfg(feature = "std")]
pub mod unnamed;

pub use disks::{disk_contention, disk_turn};
pub use logs::{allowance, exact, log, log_rule, recovery, sample_schedule};
#[cfg(feature = "std")]
pub use logs::{follower_history, removed_file};
pub use output::{output_offset, pacer, write_behind, write_parts, write_queue, writer_state};
#[cfg(feature = "std")]
pub use quotas::{cpu_budget, full_listing, quota, shares, turns};
pub use streams::{
    once_through, pending_ranges, read_pace, reader_state, scattered, stream, stream_pace, uncached_reads,
};
#[cfg(feature = "std")]
pub use streams::{stream_hold, stream_pages};

#[cfg(feature = "std")]
pub use disks::disk::{
    BulkProfile, DepthProfile, DirectProfile, DiskProfile, Leftovers, MixedProfile, UncachedProfile,
};
#[cfg(feature = "std")]
pub use logs::facts::{
    CheckpointFacts, DatabaseId, FileFacts, FileId, FilePosition, FollowerFacts, FollowerId, LogId,
    StepFacts, WindowFacts,
};
#[cfg(feature = "std")]
pub use logs::read_back::READ_BACK_EVIDENCE_BYTES;
pub use logs::recovery::CheckpointPosition;
#[cfg(feature = "std")]
pub use logs::state::StepState;
#[cfg(feature = "std")]
pub use logs::step::step;
#[cfg(feature = "std")]
pub use logs::step_action::{LogWarning, StepAction};
pub use rule::{
    BulkPages, DEFAULT_BUDGET_TOTAL, DEFAULT_NEAR_FILES, DEFAULT_SLACK, FileClass, RewriteKind,
    RewriteSource, Rule, number,
};

/// Alignment and minimum size of released ranges, in bytes (2 MiB): the largest folio of ext4 and
/// XFS on x86-64. Releasing a smaller range inside a large folio drops nothing (measured on Linux
/// 6.18).
pub const WINDOW: u64 = 2 << 20;

/// The smallest page of all kernels, in bytes: the unit of writeback.
pub const PAGE_BYTES: u64 = 4096;

/// Bytes ahead of a moving far follower that stay resident (8 MiB), so that a release does not drop
/// what the kernel has just read ahead for it. This is the largest `read_ahead_kb` seen (ext4,
/// Linux 6.18).
pub const READ_AHEAD: u64 = 8 << 20;
