//! Measures what a disk and the file system on it do, by doing it: direct I/O, what mixing it with buffered I/O costs,
//! uncached and atomic writes, how wide and how slow reads are, what a sync and a release cost.
//!
//! [`Probe`] measures in a directory, in about a minute, and gives a [`Report`]: all figures, and the
//! [`DiskProfile`](pagekeeper_policy::DiskProfile) that the guard, the bulk writer and the page store can be given.
//!
//! Invariants: all files are without a name and gone afterwards, whatever ends it; nothing else in the directory is touched; no
//! setting of the machine is changed; all that is read is checked. What is compared is measured in turn, in an order
//! that is shuffled anew in each round. What can't be had is `None`, never zero.
//! Fails in a plain sentence where a directory can't be measured, before anything is written.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod bulk;
mod direct;
mod directory;
mod error;
mod events;
mod figures;
mod file;
mod mixed;
mod pages;
mod probe;
mod reads;
mod run;
mod summary;
mod sync;
mod writes;

pub use bulk::{BulkBeside, BulkCase, BulkReport};
pub use direct::{DirectKind, DirectReport};
pub use error::{Error, Result};
pub use events::EventRates;
pub use mixed::{Access, Beside, MixedCase, MixedReport, Subject};
pub use pages::{ReadAheadReport, ReleaseReport};
pub use probe::{Findings, MIN_FILE_BYTES, Probe, Report};
pub use reads::ReadsReport;
pub use run::{Part, Progress};
pub use summary::summary;
pub use sync::{SyncReport, SyncTimes};
pub use writes::{AtomicReport, AtomicSize, UncachedReport, UncachedUse};
