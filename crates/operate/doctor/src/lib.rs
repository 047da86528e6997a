//! Finds how running databases lose to the page cache: with evidence, cost, fixes (the database's
//! own settings first), and what pagekeeper can do about it.
//!
//! Findings are made from the observations of an [`Observer`](pagekeeper_observe) before and after
//! a watch, and from the database's own settings. `finders` explains how to add another kind of
//! finding.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod advice;
mod finders;
mod finding;
mod fix;
mod gather;
mod observation;
mod observed;
mod phrases;
mod programs;
mod report;
pub mod settings;
mod swap_watch;
#[cfg(test)]
mod testing;
mod texts;

pub use advice::{Advice, Advised, Effect, Goal, Offer, Product, TABLE, advise};
pub use finders::{MixedWith, examine, missing_snapshot, mixed_with};
pub use finding::{Cost, Evidence, Finding, Kind, Severity, Subject};
pub use fix::{Confidence, Fix, FixKind, HoldsFor, Restart, Risk, Terms};
pub use gather::GatheredData;
pub use observation::{Observation, Releasable, SavedSnapshot, called};
pub use observed::journal::{Journal, journal};
pub use observed::leftovers::{EvictedLeftover, evict_leftovers};
pub use pagekeeper_observe::{
    AskedReads, Holder, OpenIn, PoolPressure, ReadWatch, SeenSync, Streamer, StreamerFile, SyncWatch,
    SyncedFile, Syncs, VisibilityGap, largest_elsewhere,
};
pub use report::{Inspected, InspectedDatabase, InspectedMemory, Report};
pub use swap_watch::{DatabaseSwap, SwapWatch};
