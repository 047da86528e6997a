//! The finders, each of which makes findings of its own kinds.
//!
//! To add a finding: a module here with a function from an [`Observation`] and what was found [`Earlier`] to findings, a line in
//! [`FINDERS`], and a variant of [`Kind`](crate::Kind) if it is of a new kind. Nothing else changes.
//!
//! Invariants: a finder does no I/O, so that it can be tested on plain data. One that depends on others' findings comes
//! after them in the table, and asks for them by kind and database, never by what they print.

mod cgroup;
mod dirty_limits;
mod logs;
mod memory;
mod mixed;
#[cfg(test)]
mod printed;
mod settings;
mod start;
mod streams;
mod synced;
mod throttled;
mod unnamed;
mod unwritten;

use crate::{Finding, Kind, Observation};

pub use mixed::{MixedWith, mixed_with, was_read_through_cache};
pub use start::lacks_snapshot;
pub(crate) use throttled::is_background;

/// What finders of one kind or a few have in common.
type Finder = fn(&Observation<'_>, Earlier<'_>) -> Vec<Finding>;

/// All finders, in the order in which they run.
const FINDERS: &[Finder] = &[
    synced::find,
    dirty_limits::find,
    throttled::find,
    start::find,
    logs::find,
    unnamed::find,
    streams::find,
    memory::find,
    cgroup::find,
    mixed::find,
    settings::find,
];

/// What the finders before this one found.
#[derive(Debug, Clone, Copy)]
struct Earlier<'a>(&'a [Finding]);

impl<'a> Earlier<'a> {
    /// The finding of this kind about a database, by its index.
    fn of(self, kind: Kind, database: usize) -> Option<&'a Finding> {
        self.0.iter().find(|finding| finding.kind == kind && finding.is_about(database))
    }
}

/// All that can be found in an observation, in no order; [`Report::new`](crate::Report::new) sorts it.
pub fn examine(observation: &Observation<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for find in FINDERS {
        let found = find(observation, Earlier(&findings));
        findings.extend(found);
    }
    findings
}
