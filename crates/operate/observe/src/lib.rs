//! Observes the page cache of a host: its contents, its activity, and the databases concerned.
//!
//! [`Observer`] takes one [`Snapshot`] or many: memory and its limits, the databases and their
//! files by class, the processes that have each file open, and the activity in the page cache since
//! the snapshot before. [`Census`] knows all files of the host that have pages in memory, including
//! closed ones. [`size`] has the hit ratio that a database would have with more or less memory.
//! This crate neither judges nor acts: the doctor and the guard do.
//!
//! Invariants: only reads. A value that can't be seen is `None`, and a [`VisibilityGap`] says why
//! and which capability would show it. A process that ends, or a file that goes away, during a
//! snapshot is not a failure. Fails only if `/proc` can't be read, or something that was named does
//! not exist ([`ObserveError`]).
//!
//! ```
//! use pagekeeper_observe::{Observer, ObserverOptions, ObserverScope};
//!
//! # let dir = tempfile::tempdir_in(".")?;
//! # std::fs::write(dir.path().join("000004.log"), [0; 5000])?;
//! # let directory = dir.path().to_path_buf();
//! let scope = ObserverScope::Directories(vec![directory]);
//! let options = ObserverOptions { scope, ..ObserverOptions::default() };
//! let mut observer = Observer::start(options)?;
//! let before = observer.snapshot()?;
//! for file in &before.files {
//!     let resident = file.residency.map_or_else(|| "?".to_owned(), |pages| pages.resident.to_string());
//!     println!("{}: {resident} of {} bytes resident, {:?}", file.path.display(), file.size, file.class);
//! }
//! // Somewhat later:
//! let after = observer.snapshot()?;
//! println!("{:?} bytes were made dirty", after.change.unwrap().machine.dirtied);
//! for gap in &after.visibility_gaps {
//!     println!("not seen: {}: {}", gap.what, gap.why);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod census;
mod discovery;
mod error;
mod files;
mod host;
mod host_gaps;
mod observer;
mod openers;
mod options;
mod overview;
pub mod saved_pages;
pub mod size;
mod snapshot;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod trees;
mod visibility;
mod watch;

pub use census::{
    CPU_SHARE, CachedBreakdown, Census, CensusOptions, CensusTick, FileSystemSum, FileUse, FlowBytes,
    GroupBy, MemoryBreakdown, PatientCensus, QueryRows, Row, RowKey, RowOwner, RowQuery, SortKey,
    WalkProgress,
};
pub use error::ObserveError;
pub use host_gaps::not_traced;
pub use observer::Observer;
pub use options::{DirectoryFilter, ObserverOptions, ObserverScope};
pub use overview::{HeldPages, Overview, RunningDatabase};
pub use snapshot::{Database, File, Host, HostChange, Opener, OpenerKind, Snapshot};
pub use visibility::{VisibilityGap, unanswered};
pub use watch::elsewhere::largest_elsewhere;
pub use watch::holders::{Holder, OpenIn};
pub use watch::pool_pressure::PoolPressure;
pub use watch::read_watch::{AskedReads, ReadWatch};
pub use watch::streamers::{Streamer, StreamerFile, streamers};
pub use watch::sync_watch::{SeenSync, SyncWatch, SyncedFile, Syncs};
