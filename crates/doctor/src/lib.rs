//! Finds how running databases lose to the page cache: with evidence, what it costs, the fix in the database's own
//! settings first, and what pagekeeper can do about it.
//!
//! A finding is made from what an [`Observer`](pagekeeper_observe) saw before and after watching, and from the database's
//! own settings; each kind has a module with a function from facts to findings that does no I/O.

mod advice;
mod attribution;
mod dirty_limits;
mod finding;
mod logs;
mod memory;
mod mixed;
mod observation;
mod phrases;
mod report;
pub mod settings;
mod start;
mod streamers;
mod streams;
#[cfg(test)]
mod testing;
mod throttled;

pub use advice::fixes;
pub use finding::{Evidence, Finding, Fix, FixKind, Kind, Severity};
pub use mixed::{MixedWith, mixed_with};
pub use observation::{Observation, Unread, called};
pub use pagekeeper_observe::VisibilityGap;
pub use report::{Inspected, InspectedDatabase, InspectedMemory, Report};
pub use start::{Journal, SavedFile, SavedSnapshot, journal, lacks_snapshot};
pub use streamers::{Streamer, StreamerFile, streamers};

/// What looks for one kind of finding each.
const FINDS: &[fn(&Observation<'_>) -> Vec<Finding>] = &[
    advice::find,
    dirty_limits::find,
    logs::find,
    memory::find,
    mixed::find,
    throttled::find,
    start::find,
    streams::find,
];

/// All that can be found in an observation, in no order; [`Report::new`] brings it into order.
pub fn examine(observation: &Observation<'_>) -> Vec<Finding> {
    FINDS.iter().flat_map(|find| find(observation)).collect()
}
