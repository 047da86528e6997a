//! The figures that `stat` shows for each file.
//!
//! To add one, add an entry to [`COLUMNS`]. The table, `--sort`, the total and the JSON follow from
//! it.

use super::row::Row;

/// One figure of a file: a column of the table, a key of the JSON, and a sum in the total.
#[derive(Debug)]
pub(super) struct Column {
    /// Its head in the table.
    pub(super) head: &'static str,
    /// Its key in the JSON, and its name for `--sort`.
    pub(super) key: &'static str,
    /// Its name in the total; empty if the figure needs none.
    pub(super) total: &'static str,
    /// In bytes; `None` if unknown.
    pub(super) value: fn(&Row) -> Option<u64>,
    /// The value that `--sort` sorts by, 0 if unknown; `None` if this figure can't be sorted by.
    pub(super) sort: Option<fn(&Row) -> u64>,
    /// Its share of the file has its own column, and so has its change with `--interval`; only one
    /// figure has this.
    pub(super) shared: bool,
    /// 0 is usual, and is drawn as a dash.
    pub(super) quiet: bool,
    /// Drawn only with `--wide`.
    pub(super) wide: bool,
}

/// All figures, in the order in which they are shown.
pub(super) const COLUMNS: [Column; 6] = [
    Column {
        value: |row| Some(row.size),
        sort: Some(|row| row.size),
        quiet: false,
        ..state("SIZE", "size", "")
    },
    Column {
        value: |row| Some(row.residency?.resident),
        sort: Some(Row::resident),
        shared: true,
        quiet: false,
        ..state("RESIDENT", "resident", "resident")
    },
    Column {
        value: |row| row.residency?.dirty,
        sort: Some(|row| row.residency.map_or(0, |counts| counts.unwritten())),
        ..state("DIRTY", "dirty", "dirty")
    },
    Column { value: |row| row.residency?.writeback, ..state("WRITEBACK", "writeback", "writeback") },
    Column {
        value: |row| row.residency?.evicted,
        sort: Some(|row| row.residency.and_then(|counts| counts.evicted).unwrap_or(0)),
        ..state("EVICTED", "evicted", "evicted")
    },
    Column {
        value: |row| row.residency?.recently_evicted,
        wide: true,
        ..state("RECENTLY", "recently_evicted", "recently evicted")
    },
];

/// Returns the column of a page state that is rare.
const fn state(head: &'static str, key: &'static str, total: &'static str) -> Column {
    Column { head, key, total, value: |_| None, sort: None, shared: false, quiet: true, wide: false }
}

/// The sort order.
#[derive(Debug, Clone, Copy)]
pub(super) enum Sort {
    /// By a figure, which this function returns.
    Figure(fn(&Row) -> u64),
    Path,
}

impl Sort {
    const PATH: &'static str = "path";

    /// Returns the names that `--sort` takes.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        COLUMNS.iter().filter(|column| column.sort.is_some()).map(|column| column.key).chain([Self::PATH])
    }

    /// Returns the order for one of [`Self::names`]; by path for any other name.
    pub(super) fn named(name: &str) -> Self {
        let column = COLUMNS.iter().find(|column| column.key == name);
        column.and_then(|column| column.sort).map_or(Self::Path, Self::Figure)
    }

    /// Returns this figure of a row, the resident bytes if rows are sorted by path; 0 if unknown.
    pub(super) fn of(self, row: &Row) -> u64 {
        match self {
            Self::Figure(of) => of(row),
            Self::Path => row.resident(),
        }
    }
}
