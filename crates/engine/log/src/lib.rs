//! Logs that release their page cache, and bulk writes that disturb no other writer.
//!
//! An engine's log files fill the kernel's page cache with pages that nobody reads again, and its bulk writes make
//! its small ones wait. These logs and writers leave no pages behind:
//!
//! | | what | pages |
//! |---|---|---|
//! | [`RedoLog`] | a ring of preallocated files, read after a crash only | released behind the writer |
//! | [`BinLog`] | segments without end, with followers | released behind the last near follower |
//! | [`BulkWriter`] | compaction, backup, flush | never made, or released as it goes |
//!
//! The best way of writing on a file system is found by testing it ([`LogMode`], [`BulkMode`]). [`DiskLayout`]
//! reports the paths that share a disk. An error of a write or a sync is final: from then on the log accepts
//! nothing, and every caller gets the error.
//!
//! ```
//! use pagekeeper_log::RedoLog;
//!
//! # let temp = tempfile::tempdir_in(".")?;
//! # let dir = &temp.path().join("redo");
//! let log = RedoLog::options().files(2).file_bytes(1 << 20).create(dir)?;
//! std::thread::scope(|scope| {
//!     for thread in 0..4 {
//!         let log = &log;
//!         scope.spawn(move || {
//!             let lsn = log.append(format!("from thread {thread}").as_bytes())?;
//!             log.wait_flushed(lsn) // one sync for all who wait
//!         });
//!     }
//! });
//! assert_eq!(log.read_from(log.checkpoint_lsn())?.count(), 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod binlog;
mod bulk;
mod convert;
mod error;
mod injected_fault;
mod layout;
mod limits;
mod mode;
mod position;
mod record;
mod redo;
#[cfg(test)]
mod testing;

pub use binlog::{BinLog, BinLogOptions, Event, Follower, Purge};
pub use bulk::{BulkMode, BulkOptions, BulkReport, BulkWriter};
pub use error::Error;
#[cfg(feature = "injected-faults")]
pub use injected_fault::InjectedFault;
pub use layout::{Backing, Disk, DiskLayout};
pub use mode::{Chosen, LogMode, Syncs, Use};
pub use position::{Position, PositionError};
pub use redo::{
    Backpressure, FlushPolicy, Lsn, Recovered, RedoLog, RedoMetrics, RedoOptions, RedoReader, RedoRecord,
    Salvaged,
};
