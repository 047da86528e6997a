//! Logs that release their page cache.
//!
//! An engine's log files fill the kernel's page cache with pages that nobody reads again. These
//! logs leave no pages behind:
//!
//! | | what | pages |
//! |---|---|---|
//! | [`RedoLog`] | a ring of preallocated files, read after a crash only | released behind the writer |
//! | [`BinLog`] | segments without end, with followers | released behind the last near follower |
//!
//! The best way of writing on a file system is found by testing it ([`LogMode`]). An error of a
//! write or a sync is final: from then on the log accepts nothing, and every caller gets the error.
//!
//! ```
//! use pagekeeper_wal::RedoLog;
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

#[cfg(not(target_os = "linux"))]
compile_error!("pagekeeper-wal needs Linux: its rules are about the Linux page cache");

mod binlog;
mod convert;
mod error;
mod injected_fault;
mod limits;
mod mode;
mod position;
mod record;
mod redo;
#[cfg(test)]
mod testing;

pub use binlog::{BinLog, BinLogOptions, BinLogStats, Event, Follower, PurgeMode};
pub use error::Error;
#[cfg(feature = "injected-faults")]
pub use injected_fault::InjectedFault;
pub use mode::{ChosenMode, FileUse, LogMode, SyncFrequency};
pub use position::{Position, PositionError};
pub use redo::{
    Backpressure, FlushPolicy, Lsn, RecoveredRecord, RedoLog, RedoOptions, RedoReader, RedoRecord, RedoStats,
    SalvagedLog,
};
