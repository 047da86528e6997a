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
mod claims;
mod devices;
mod directories;
mod directory_owners;
mod directory_trees;
mod error;
mod fair_shares;
mod files;
mod host;
mod host_gaps;
#[cfg(test)]
mod limit_tests;
mod observer;
mod opened_files;
mod openers;
mod options;
mod overview;
mod sample;
pub mod saved_pages;
pub mod size;
mod snapshot;
mod subjects;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tree;
mod unknown_databases;
mod visibility;

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
