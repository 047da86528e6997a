//! A page store that opens at once after a crash: a file of pages with atomic commits of many
//! pages, on a redo log and a page cache.
//!
//! A base for storage engines: pages by number, transactions that change any number of them or
//! none, and snapshots. The time to open depends neither on the size of the data nor on the disk's
//! latency for one random read.
//!
//! ```text
//!   begin ── write, page_mut, allocate, free ── commit            begin_read ── read
//!                                                 │                    │
//!                        journal (redo log)  ◀────┤          index ◀───┤  newer than the data file
//!                                                 └────────▶ index     │
//!                                                              │       ▼
//!                                checkpoint: page order, wide  ▼     page cache
//!                                                          data file ◀─┘
//! ```
//!
//! - A **commit** is one entry of the journal. It has a full-page image of each page that it
//!   changes first since the last checkpoint start, and byte ranges for later changes. It is
//!   durable with the journal.
//! - A **checkpoint** runs in the background. It writes all commits before its start to the data
//!   file, syncs that, records it in a superblock, and gives up the journal up to there. The
//!   journal never exceeds its limit.
//! - **Opening** reads the journal, in concurrent wide reads, and nothing else. Reads find its
//!   changes in the index; the first checkpoint applies them.
//!
//! See [`Store`] for how to use it, the crate `pagekeeper-tree` for an ordered map on top of it,
//! and `docs/src/store-format.md` for the on-disk format.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(not(target_os = "linux"))]
compile_error!("pagekeeper-store needs Linux: its rules are about the Linux page cache");

#[macro_use]
mod injected_fault;
mod backup;
mod backup_socket;
mod budget;
mod buffers;
mod bulk_read;
mod changes;
mod checkpoint;
mod commit;
mod compact;
mod confirm;
mod core;
mod create;
mod data;
mod depth;
mod destination;
mod error;
mod format;
mod free_list;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod index;
mod inspect;
mod names;
mod old_versions;
mod open;
mod opening;
mod options;
mod page;
mod page_map;
mod places;
mod read;
mod repair;
mod replay;
mod reports;
mod resize;
mod restore;
mod seq;
mod snapshots;
mod stats;
mod store;
mod superblocks;
mod sync;
#[cfg(test)]
mod tests;
mod threads;
mod txn;
mod txn_size;
mod verify;
mod version;
mod version_file;
mod warm;
mod writer;

pub use backup::Backup;
pub use commit::Durability;
pub use compact::Compaction;
pub use error::Error;
pub use inspect::{FreeList, FreeTrunk, PageInfo, PageState, SuperblockInfo};
pub use opening::{Opening, Progress};
pub use options::{Create, FullPageImages, StoreOptions};
pub use page::Page;
pub use pagekeeper_cache::PageNo;
pub use pagekeeper_wal::Lsn;
pub use read::ReadTxn;
pub use repair::{PageFinding, Repair};
pub use seq::Seq;
pub use stats::StoreStats;
pub use store::Store;
pub use txn::WriteTxn;
pub use verify::Verification;
