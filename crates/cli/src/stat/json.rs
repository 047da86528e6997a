//! `stat --json`: every figure in bytes, unknown ones null.

use pagekeeper_kernel::{Residency, Source};
use serde::Serialize;

use super::scan::Row;
use super::totals::Totals;
use crate::problems::Problem;

/// The one object that is printed.
#[derive(Debug, Serialize)]
pub(super) struct Report<'a> {
    files: Vec<File<'a>>,
    total: Total,
    errors: &'a [Problem],
}

#[derive(Debug, Serialize)]
struct File<'a> {
    path: std::borrow::Cow<'a, str>,
    size: u64,
    resident: Option<u64>,
    dirty: Option<u64>,
    writeback: Option<u64>,
    evicted: Option<u64>,
    recently_evicted: Option<u64>,
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    map: Option<Map<'a>>,
}

/// The picture of `--map`.
#[derive(Debug, Serialize)]
struct Map<'a> {
    cell_bytes: u64,
    /// Eighths of each cell that are resident: 0 is none, 8 is all.
    eighths: &'a [u8],
}

#[derive(Debug, Serialize)]
struct Total {
    files: u64,
    size: u64,
    resident: Option<u64>,
    dirty: Option<u64>,
    writeback: Option<u64>,
    evicted: Option<u64>,
    recently_evicted: Option<u64>,
    unknown_files: u64,
}

impl<'a> Report<'a> {
    /// The report of rows that are sorted and cut already.
    pub(super) fn new(rows: &'a [Row], totals: &Totals, errors: &'a [Problem]) -> Self {
        let total = Total {
            files: totals.files,
            size: totals.size,
            resident: totals.resident_known(),
            dirty: totals.dirty.get(),
            writeback: totals.writeback.get(),
            evicted: totals.evicted.get(),
            recently_evicted: totals.recently_evicted.get(),
            unknown_files: totals.unknown_files,
        };
        Self { files: rows.iter().map(File::new).collect(), total, errors }
    }
}

impl<'a> File<'a> {
    fn new(row: &'a Row) -> Self {
        let figure = |of: fn(Residency) -> Option<u64>| row.residency.and_then(of);
        Self {
            path: row.path.to_string_lossy(),
            size: row.size,
            resident: row.residency.map(|counts| counts.resident),
            dirty: figure(|counts| counts.dirty),
            writeback: figure(|counts| counts.writeback),
            evicted: figure(|counts| counts.evicted),
            recently_evicted: figure(|counts| counts.recently_evicted),
            source: match row.residency.map(|counts| counts.source) {
                Some(Source::Cachestat) => "cachestat",
                Some(Source::Mincore) => "mincore",
                None => "unknown",
            },
            map: row
                .picture
                .as_ref()
                .map(|picture| Map { cell_bytes: picture.cell_bytes, eighths: &picture.cells }),
        }
    }
}
