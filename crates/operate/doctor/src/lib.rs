//! Finds how running databases lose to the page cache: with evidence, cost, fixes (the database's
//! own settings first), and what pagekeeper can do about it.
//!
//! Findings are made from the observations of an [`Observer`](pagekeeper_observe) before and after
//! a watch, and from the database's own settings. `finders` explains how to add another kind of
//! finding.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod advice;
mod attribution;
mod elsewhere;
mod finders;
mod finding;
mod fix;
mod gather;
mod holders;
mod journal;
mod leftovers;
mod observation;
mod phrases;
mod pool_pressure;
mod programs;
mod read_watch;
mod report;
pub mod settings;
mod streamers;
mod swap_watch;
mod sync_watch;
mod syncs;
#[cfg(test)]
mod testing;

pub use advice::{Advice, Advised, Effect, Goal, Offer, Product, TABLE, advise};
pub use elsewhere::largest_elsewhere;
pub use finders::{MixedWith, examine, missing_snapshot, mixed_with};
pub use finding::{Cost, Evidence, Finding, Kind, Severity, Subject};
pub use fix::{Confidence, Fix, FixKind, HoldsFor, Restart, Risk, Terms};
pub use gather::GatheredData;
pub use holders::{Holder, OpenIn};
pub use journal::{Journal, journal};
pub use leftovers::{EvictedLeftover, evict_leftovers};
pub use observation::{Observation, Releasable, SavedSnapshot, called};
pub use pagekeeper_observe::VisibilityGap;
pub use pool_pressure::PoolPressure;
pub use read_watch::{AskedReads, ReadWatch};
pub use report::{Inspected, InspectedDatabase, InspectedMemory, Report};
pub use streamers::{Streamer, StreamerFile, streamers};
pub use swap_watch::{DatabaseSwap, SwapWatch};
pub use sync_watch::SyncWatch;
pub use syncs::{SeenSync, SyncedFile, Syncs};
