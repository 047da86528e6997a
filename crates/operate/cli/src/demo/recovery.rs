//! The end of the demo: a page store is killed while it commits, and opened again.
//!
//! Invariant: figures are shown only for a recovery that lost nothing: every commit that was acknowledged before
//! the kill exists, and every byte of every row is as the commits left it. Fails with what was lost or is wrong.

use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, ensure};
use pagekeeper_kernel::text::escaped;
use pagekeeper_store::{Create, Store};
use serde::Serialize;

use super::{config, store};
use crate::output::count;
use crate::size::Size;

/// The results and durations of a recovery.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Recovery {
    /// Bytes of the store's pages.
    pub(super) data_bytes: u64,
    /// Commits that the killed process had reported.
    pub(super) commits_acknowledged: u64,
    /// Commits that exist; those after the acknowledged ones were in progress.
    pub(super) commits_found: u64,
    /// From the call until the store is open for reads and writes.
    pub(super) open_seconds: f64,
    /// Bytes of the journal that were read to open it.
    pub(super) journal_bytes: u64,
    /// Commits in these bytes.
    pub(super) commits_in_journal: u64,
    /// Pages that these commits change.
    pub(super) pages_to_apply: u64,
    /// The first read of a row in one of those pages, from the root page down.
    pub(super) first_read_seconds: f64,
    /// From the opening until the data file has all changes durably.
    pub(super) applied_seconds: f64,
    /// Pages with a correct checksum.
    pub(super) pages_verified: u64,
    /// Rows with correct contents.
    pub(super) rows_checked: u64,
}

/// Opens the store in `dir`, whose process was killed after it had reported `acknowledged` commits.
pub(super) fn recover(dir: &Path, acknowledged: u64) -> anyhow::Result<Recovery> {
    let place = store::place(dir);
    let found = open_and_check(&place, acknowledged);
    found.with_context(|| format!("the store in {} was killed, and its recovery failed", escaped(&place)))
}

fn open_and_check(place: &Path, acknowledged: u64) -> anyhow::Result<Recovery> {
    let options = Store::options().create(Create::Never).memory(config::STORE_MEMORY_BYTES);
    let begun = Instant::now();
    let store = options.open(place)?;
    let opened = Instant::now();
    let read = store.begin_read()?;
    let commits = store::number_of(read.metadata());
    let reading = Instant::now();
    let [row, ..] = store::rows_of(commits);
    store::table(&read, read.root())?.get(&read, &store::key(row))?;
    let first_read = reading.elapsed();
    store.sync()?;
    let synced = Instant::now();
    let opening = store.stat().opening;
    ensure!(
        commits >= acknowledged,
        "commit {acknowledged} was acknowledged, and the store has only {commits}"
    );
    let verified = store.verify()?;
    ensure!(verified.is_sound(), "{verified}");
    store::check(&read, commits)?;
    drop(read);
    let pages = store.stat().pages;
    let data_bytes = pages * store.page_size() as u64;
    store.close()?;
    Ok(Recovery {
        data_bytes,
        commits_acknowledged: acknowledged,
        commits_found: commits,
        open_seconds: (opened - begun).as_secs_f64(),
        journal_bytes: opening.journal_bytes,
        commits_in_journal: opening.commits,
        pages_to_apply: opening.pages,
        first_read_seconds: first_read.as_secs_f64(),
        applied_seconds: (synced - opened).as_secs_f64(),
        pages_verified: pages,
        rows_checked: config::STORE_ROWS,
    })
}

impl Recovery {
    /// Writes a heading, a table and a sentence about the result.
    pub(super) fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let ms = |seconds: f64| format!("{:.2} ms", seconds * 1e3);
        writeln!(out, "A page store with a table of {}, killed while it committed\n", Size(self.data_bytes))?;
        let rows = [
            ("opened for reads and writes in", ms(self.open_seconds)),
            ("  journal read for it", Size(self.journal_bytes).to_string()),
            ("  commits found in it", count(self.commits_in_journal)),
            ("  pages that they change", count(self.pages_to_apply)),
            ("first read of a row in one", ms(self.first_read_seconds)),
            ("all in the data file after", ms(self.applied_seconds)),
            ("pages verified then", count(self.pages_verified)),
            ("  rows in them checked", count(self.rows_checked)),
        ];
        rows.iter().try_for_each(|(name, value)| writeln!(out, "{name:<32}{value:>16}"))?;
        writeln!(
            out,
            "\nNothing was lost: of {} commits the killed process had reported {}, and all rows are as they left them.",
            count(self.commits_found),
            count(self.commits_acknowledged)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_what_was_measured() {
        let recovery = Recovery {
            data_bytes: 64 << 20,
            commits_acknowledged: 5410,
            commits_found: 5412,
            open_seconds: 0.0123,
            journal_bytes: 48 << 20,
            commits_in_journal: 5412,
            pages_to_apply: 11_873,
            first_read_seconds: 0.000_05,
            applied_seconds: 0.25,
            pages_verified: 16_384,
            rows_checked: 65_536,
        };
        let mut text = Vec::new();
        recovery.write_text(&mut text).unwrap();
        let expected = "\
A page store with a table of 64 MiB, killed while it committed

opened for reads and writes in          12.30 ms
  journal read for it                     48 MiB
  commits found in it                      5,412
  pages that they change                  11,873
first read of a row in one               0.05 ms
all in the data file after             250.00 ms
pages verified then                       16,384
  rows in them checked                    65,536

Nothing was lost: of 5,412 commits the killed process had reported 5,410, and all rows are as they left them.
";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
    }

    #[test]
    fn what_was_committed_is_found_and_a_lost_commit_is_an_error() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let made = store::make(&store::place(dir.path())).unwrap();
        for number in 1..=20 {
            assert_eq!(store::commit(&made).unwrap(), number);
        }
        drop(made);
        let found = recover(dir.path(), 19).unwrap();
        assert_eq!((found.commits_acknowledged, found.commits_found), (19, 20));
        assert_eq!((found.commits_in_journal, found.rows_checked), (20, config::STORE_ROWS));
        assert_eq!(found.pages_verified * 4096, found.data_bytes);
        assert!(found.pages_to_apply > 20, "{found:?}");
        let error = format!("{:#}", recover(dir.path(), 21).unwrap_err());
        assert!(error.ends_with("commit 21 was acknowledged, and the store has only 20"), "{error}");
    }

    #[test]
    fn a_store_that_is_not_there_is_reported_with_its_path() {
        let error = format!("{:#}", recover(Path::new("/nonexistent"), 1).unwrap_err());
        assert!(error.contains("/nonexistent/store was killed, and its recovery failed: "), "{error}");
    }
}
