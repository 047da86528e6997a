//! What `top` sorts by, and what each of its rows is: as options, and in the order in which keys go through them.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use pagekeeper_observe::{Group, Sort};

/// A value of an option: its name, what it stands for, and its help.
pub(super) type NamedValue<T> = (&'static str, T, &'static str);

/// The values of `--sort`.
pub(super) const SORTS: [NamedValue<Sort>; 4] = [
    ("resident", Sort::Resident, "What is in memory"),
    ("growth", Sort::Growth, "How fast that grows"),
    ("dirty", Sort::Dirty, "What is changed and not yet on disk"),
    ("evicted", Sort::Evicted, "What the kernel took away under memory pressure"),
];

/// The values of `--group`.
pub(super) const GROUPS: [NamedValue<Group>; 4] = [
    ("file", Group::File, "Each file"),
    ("class", Group::Class, "What files are to their database: redo, binlog, data"),
    ("process", Group::Process, "Who brought them in or has them open"),
    ("cgroup", Group::Cgroup, "The same by control group or container"),
];

/// Returns a parser of the names.
pub(super) fn one_of<T: Copy + Send + Sync>(
    all: &'static [NamedValue<T>],
) -> impl TypedValueParser<Value = T> {
    let names = all.iter().map(|(name, _, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(names).try_map(move |given| {
        all.iter().find(|(name, ..)| *name == given).map(|known| known.1).ok_or("unknown")
    })
}

/// Returns the value that is `step` places behind this one, in a circle.
pub(super) fn next<T: Copy + PartialEq>(all: &[NamedValue<T>], now: T, step: usize) -> T {
    let at = all.iter().position(|known| known.1 == now).unwrap_or(0);
    all[(at + step) % all.len()].1
}

/// Returns the heading of the column of names.
pub(super) fn heading(group: Group) -> String {
    let known = GROUPS.iter().find(|known| known.1 == group);
    known.map_or_else(String::new, |(name, ..)| name.to_uppercase())
}
