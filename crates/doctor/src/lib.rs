//! Finds how running databases lose to the page cache: with evidence, what it costs, the mend in the database's own
//! settings first, and what pagekeeper can do about it.
//!
//! A finding is made from what an [`Observer`](pagekeeper_observe) saw before and after watching, and from the database's
//! own settings; each kind has a module with a function from facts to findings that does no I/O.

mod advice;
mod case;
mod finding;
mod limits;
mod logs;
mod memory;
mod mixed;
mod paused;
mod phrases;
mod report;
pub mod settings;
mod start;
mod streamers;
mod streams;
#[cfg(test)]
mod testing;
mod written;

pub use advice::mends;
pub use case::{Case, Unread, called};
pub use finding::{Evidence, Finding, Kind, Mend, MendKind, Severity};
pub use mixed::{Company, company};
pub use report::{Limit, LookedAt, LookedAtDatabase, LookedAtMemory, Report};
pub use start::{Journal, Snapshot, SnapshotFile, journal, lacks_snapshot};
pub use streamers::{Streamer, StreamerFile, streamers};

/// What looks for one kind of finding each.
const FINDS: &[fn(&Case<'_>) -> Vec<Finding>] = &[
    advice::find,
    limits::find,
    logs::find,
    memory::find,
    mixed::find,
    paused::find,
    start::find,
    streams::find,
];

/// All that can be found in a case, in no order; [`Report::new`] brings it into order.
pub fn examine(case: &Case<'_>) -> Vec<Finding> {
    FINDS.iter().flat_map(|find| find(case)).collect()
}
