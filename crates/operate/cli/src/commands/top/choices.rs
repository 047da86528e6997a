//! The orders and groupings of rows in `top`: as options, and in the order in which keys go through
//! them.

use pagekeeper_observe::{GroupBy, SortKey};

use crate::arguments::NamedValue;

/// The values of `--sort`.
pub(super) const SORTS: [NamedValue<SortKey>; 4] = [
    ("resident", SortKey::Resident, "What is in memory"),
    ("growth", SortKey::Growth, "How fast that grows"),
    ("dirty", SortKey::Dirty, "What is changed and not yet on disk"),
    ("evicted", SortKey::Evicted, "What the kernel took away under memory pressure"),
];

/// The values of `--group`.
pub(super) const GROUPS: [NamedValue<GroupBy>; 4] = [
    ("file", GroupBy::File, "Each file"),
    ("class", GroupBy::Class, "What files are to their database: redo, binlog, data"),
    ("process", GroupBy::Process, "Who brought them in or has them open"),
    ("cgroup", GroupBy::Cgroup, "The same by control group or container"),
];

/// Returns the value that is `step` places behind this one, in a circle.
pub(super) fn next<T: Copy + PartialEq>(all: &[NamedValue<T>], now: T, step: usize) -> T {
    let at = all.iter().position(|known| known.1 == now).unwrap_or(0);
    all[(at + step) % all.len()].1
}

/// Returns the heading of the column of names.
pub(super) fn heading(group: GroupBy) -> String {
    let known = GROUPS.iter().find(|known| known.1 == group);
    known.map_or_else(String::new, |(name, ..)| name.to_uppercase())
}
