//! What the page cache holds and does on a host, and for which database: facts of many kinds, brought together.
//!
//! [`Observer`] looks once or again and again; a [`Look`] is what it saw: memory and its limits, the databases and
//! their files by class, who has which file open and how, and what happened in the page cache since the look before.
//! [`Census`] knows all files of the host that have pages in memory, closed ones too. No judgement, no acts: those are
//! the doctor's and the guard's.
//!
//! Invariants: only reads; what can't be seen is `None`, and [`Limited`] says why and which right would show it.
//! A process that ends, or a file that goes away, while it is looked at is no failure. Fails only where `/proc` can't be
//! read, or what was named is not there ([`ObserveError`]).
//!
//! ```
//! use pagekeeper_observe::{Observer, ObserverOptions, Scope};
//!
//! # let dir = tempfile::tempdir_in(".")?;
//! # std::fs::write(dir.path().join("000004.log"), [0; 5000])?;
//! # let directory = dir.path().to_path_buf();
//! let options = ObserverOptions { scope: Scope::Directories(vec![directory]), ..ObserverOptions::default() };
//! let mut observer = Observer::start(options)?;
//! let before = observer.look()?;
//! for file in &before.files {
//!     let resident = file.residency.map_or_else(|| "?".to_owned(), |pages| pages.resident.to_string());
//!     println!("{}: {resident} of {} bytes resident, {:?}", file.path.display(), file.size, file.class);
//! }
//! // Somewhat later:
//! let after = observer.look()?;
//! println!("{:?} bytes were made dirty", after.change.unwrap().machine.dirtied);
//! for limited in &after.limits {
//!     println!("not seen: {}: {}", limited.what, limited.why);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod census;
mod devices;
mod directories;
mod error;
mod files;
mod held;
mod host;
mod limits;
mod look;
mod observer;
mod openers;
mod options;
mod seen;
mod subjects;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tree;
mod unseen;
mod woods;

pub use census::{
    Census, CensusOptions, CensusTick, Explained, FileSystemSum, Flow, Group, Owner, Progress, Query, Row,
    RowKey, Rows, SHARE, Sort, Split, Use,
};
pub use error::ObserveError;
pub use look::{Database, File, Host, HostChange, Limited, Look, Opener, OpenerKind};
pub use observer::Observer;
pub use options::{ObserverOptions, Scope};
