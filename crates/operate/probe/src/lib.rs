//! Measures the behaviour of a disk and its file system: direct I/O, the cost of mixing it with
//! buffered I/O, uncached and atomic writes, latency and concurrency of reads, and the cost of
//! syncs and releases.
//!
//! [`Probe`] measures in a directory, for about a minute, and returns a [`ProbeReport`]. The report
//! has all figures, and the [`DiskProfile`](pagekeeper_policy::DiskProfile) for the guard, the bulk
//! writer and the page store.
//!
//! Invariants:
//!
//! * All files are without a name and are freed at the end, however it ends. Nothing else in the
//!   directory is touched.
//! * No setting of the machine is changed.
//! * All data that is read is checked.
//! * Compared measurements alternate, in an order that is reshuffled in each round.
//! * A value that is not available is `None`, never zero.
//!
//! If a directory cannot be measured, the error is a plain sentence, before anything is written.

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
mod table;
mod writes;

pub use bulk::{BulkCase, BulkOutput, BulkReport};
pub use direct::{DirectKind, DirectReport};
pub use error::{Error, Result};
pub use events::EventRates;
pub use mixed::{ConcurrentUse, DirectOperation, MixedCase, MixedReport, MixedSubject};
pub use pages::{ReadAheadReport, ReleaseReport};
pub use probe::{MIN_FILE_BYTES, Probe, ProbeFindings, ProbeReport};
pub use reads::ReadsReport;
pub use run::{ProbePart, ProbeProgress};
pub use summary::summary;
pub use sync::{SyncReport, SyncTimes};
pub use writes::{AtomicReport, AtomicSize, UncachedReport, UncachedUse};
