//! Finds how running databases lose to the page cache: with evidence, cost, fixes (the database's own settings
//! first), and what pagekeeper can do about it.
//!
//! Findings are made from the observations of an [`Observer`](pagekeeper_observe) before and after a watch, and
//! from the database's own settings. `finders` explains how to add another kind of finding.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod advice;
mod attribution;
mod finders;
mod finding;
mod fix;
mod holders;
mod journal;
mod observation;
mod phrases;
mod programs;
mod report;
pub mod settings;
mod streamers;
mod syncs;
#[cfg(test)]
mod testing;

pub use advice::{Advice, Advised, Effect, Goal, Offer, Product, TABLE, advise};
pub use finders::{MixedWith, examine, lacks_snapshot, mixed_with, was_read_through_cache};
pub use finding::{Cost, Evidence, Finding, Kind, Severity, Subject};
pub use fix::{Confidence, Fix, FixKind, HoldsFor, Restart, Risk, Terms};
pub use holders::{HeldFile, Holder, OpenIn, holders};
pub use journal::{Journal, journal};
pub use observation::{Observation, Releasable, SavedFile, SavedSnapshot, called};
pub use pagekeeper_observe::VisibilityGap;
pub use report::{Inspected, InspectedDatabase, InspectedMemory, Report};
pub use streamers::{Streamer, StreamerFile, streamers};
pub use syncs::{SeenSync, SyncedFile, Syncs};
