//! The finders, each of which makes findings of its own kinds.
//!
//! To add a finding: add a module here with a function from an [`Observation`] and the
//! [`EarlierFindings`] to findings, a line in [`FINDERS`], and a variant of [`Kind`](crate::Kind)
//! if the kind is new. Its sentences are in `advice/findings.toml`. Nothing else changes.
//!
//! Invariants: a finder does no I/O, so that it can be tested on plain data. A finder that depends
//! on the findings of others comes after them in the table, and looks them up by kind and database,
//! never by their text.

mod cgroup;
mod dirty_limits;
mod eviction;
mod logs;
mod memory;
mod mixed;
mod pool_pressure;
#[cfg(test)]
mod printed_tests;
mod read_ahead;
mod settings;
mod start;
mod streams;
mod swapped;
mod synced;
mod throttled;
mod unnamed;
mod unwritten;

use crate::{Finding, Kind, Observation};

pub(crate) use mixed::was_read_through_cache;
pub use mixed::{MixedWith, mixed_with};
pub use start::missing_snapshot;
pub(crate) use throttled::is_background;

/// The common form of the finders.
type FinderFunction = fn(&Observation<'_>, EarlierFindings<'_>) -> Vec<Finding>;

/// All finders, in execution order.
const FINDERS: &[FinderFunction] = &[
    synced::find,
    dirty_limits::find,
    throttled::find,
    start::find,
    logs::find,
    unnamed::find,
    streams::find,
    read_ahead::find,
    swapped::find,
    memory::find,
    cgroup::find,
    eviction::find,
    pool_pressure::find,
    mixed::find,
    settings::find,
];

/// The findings of the finders before this one.
#[derive(Debug, Clone, Copy)]
struct EarlierFindings<'a>(&'a [Finding]);

impl<'a> EarlierFindings<'a> {
    /// Returns the finding of this kind about a database, by its index.
    fn of(self, kind: Kind, database: usize) -> Option<&'a Finding> {
        self.0.iter().find(|finding| finding.kind == kind && finding.is_about(database))
    }
}

/// Returns all findings of an observation, unordered; [`Report::new`](crate::Report::new) sorts
/// them.
pub fn examine(observation: &Observation<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for find in FINDERS {
        let found = find(observation, EarlierFindings(&findings));
        findings.extend(found);
    }
    findings
}
