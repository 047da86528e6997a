//! `stat --json`: every figure in bytes, unknown ones null.

use pagekeeper_kernel::ResidencySource;
use pagekeeper_text::unescaped;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::columns::COLUMNS;
use super::row::Row;
use super::totals::Totals;
use crate::problems::Problem;

/// The one object that is printed.
#[derive(Debug, Serialize)]
pub(super) struct StatReport<'a> {
    files: Vec<File<'a>>,
    total: Total<'a>,
    errors: &'a [Problem],
}

#[derive(Debug)]
struct File<'a>(&'a Row);

/// The picture of `--map`.
#[derive(Debug, Serialize)]
struct Map<'a> {
    cell_bytes: u64,
    /// Eighths of each cell that are resident: 0 is none, 8 is all.
    eighths: &'a [u8],
}

#[derive(Debug)]
struct Total<'a>(&'a Totals);

impl<'a> StatReport<'a> {
    /// Returns the report of rows that are already sorted and cut.
    pub(super) fn new(rows: &'a [Row], totals: &'a Totals, errors: &'a [Problem]) -> Self {
        Self { files: rows.iter().map(File).collect(), total: Total(totals), errors }
    }
}

impl Serialize for File<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let row = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("path", &unescaped(&row.path))?;
        for column in &COLUMNS {
            map.serialize_entry(column.key, &(column.value)(row))?;
        }
        let source = match row.residency.map(|counts| counts.source) {
            Some(ResidencySource::Cachestat) => "cachestat",
            Some(ResidencySource::Mincore) => "mincore",
            None => "unknown",
        };
        map.serialize_entry("source", source)?;
        if let Some(picture) = &row.picture {
            map.serialize_entry("map", &Map { cell_bytes: picture.cell_bytes, eighths: &picture.cells })?;
        }
        map.end()
    }
}

impl Serialize for Total<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("files", &self.0.files)?;
        for (column, sum) in self.0.of_columns() {
            map.serialize_entry(column.key, &sum)?;
        }
        map.serialize_entry("unknown_files", &self.0.unknown_files)?;
        map.end()
    }
}
