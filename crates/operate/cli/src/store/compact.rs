//! `store compact`: makes the data file of a store smaller.
//!
//! Invariant: this is the only command that writes to a store. Whenever it ends, even early, the
//! store differs from before only in its free pages.

use std::borrow::Cow;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use pagekeeper_store::{Compaction, Create, Store};
use pagekeeper_text::{ByteSize, count, escaped, parse_size, unescaped};
use serde::Serialize;

use super::{MEMORY_BYTES, StorePath, in_use, pages};
use crate::output;

/// Give the room of free pages back to the file system
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper store compact /srv/app/store
  pagekeeper store compact --json /srv/app/store | jq .cut_bytes
  pagekeeper store compact --journal 64M /srv/app/store

Cuts off free pages at the end of the data file, and gives the space of other free pages back to the file system where at least \
    64 KiB are adjacent. No page moves, since the engine knows it by its number. A kill or power cut loses nothing; the next \
    compaction continues from there.

A store that a process has open is refused: have that process call Store::compact.")]
pub(super) struct CompactArgs {
    #[command(flatten)]
    store: StorePath,
    /// Give the journal this limit as well: 64K to 1T. It bounds what a recovery reads, and how
    /// much the commits between two checkpoints may change
    #[arg(long, value_name = "SIZE", value_parser = parse_journal)]
    journal: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct CompactReport<'a> {
    store: Cow<'a, str>,
    /// The last commit of the store.
    seq: u64,
    pages_before: u64,
    pages: u64,
    cut_bytes: u64,
    /// `null` if the file system supports no holes.
    given_back_bytes: Option<u64>,
    /// The journal's limit.
    max_journal_bytes: u64,
    seconds: f64,
}

/// Parses the limit of a journal.
fn parse_journal(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if (64 << 10..=1 << 40).contains(&bytes) { Ok(bytes) } else { Err("give 64K to 1T".to_owned()) }
}

/// Runs the command.
pub(super) fn run(args: &CompactArgs) -> anyhow::Result<ExitCode> {
    let dir = &args.store.dir;
    output::wait_while_frozen(dir);
    let options = Store::options().create(Create::Never).memory(MEMORY_BYTES).warm(false).without_threads();
    let options = if let Some(bytes) = args.journal { options.journal_bytes(bytes) } else { options };
    let store = options.open(dir).map_err(|error| in_use(dir, error))?;
    let max_journal_bytes = store.stats().max_journal_bytes;
    let Compaction { seq, pages_before, pages, cut, given_back, took, .. } = store.compact()?;
    store.close()?;
    let report = CompactReport {
        store: unescaped(dir),
        seq,
        pages_before,
        pages,
        cut_bytes: cut,
        given_back_bytes: given_back,
        max_journal_bytes,
        seconds: took.as_secs_f64(),
    };
    output::show(args.json, || &report, |out| writeln!(out, "{}", report.in_words(dir)))?;
    if let Some(wanted) = args.journal.filter(|wanted| *wanted != max_journal_bytes) {
        bail!(
            "{}: the journal keeps its limit of {}: there is no room for one of {}, or a page is damaged",
            escaped(dir),
            ByteSize(max_journal_bytes),
            ByteSize(wanted)
        );
    }
    Ok(ExitCode::SUCCESS)
}

impl CompactReport<'_> {
    fn in_words(&self, dir: &Path) -> String {
        let given_back = match self.given_back_bytes {
            Some(bytes) => format!("{} of free pages given back", ByteSize(bytes)),
            None => "the file system can't take back the space of free pages".to_owned(),
        };
        format!(
            "{}: {} of {} left: {} cut off, {given_back}",
            escaped(dir),
            pages(self.pages),
            count(self.pages_before),
            ByteSize(self.cut_bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compaction_is_summed_up_in_a_line() {
        let report = |given_back_bytes| CompactReport {
            store: "/s".into(),
            seq: 7,
            pages_before: 65_536,
            pages: 4096,
            cut_bytes: 240 << 20,
            given_back_bytes,
            max_journal_bytes: 64 << 20,
            seconds: 0.5,
        };
        assert_eq!(
            report(Some(1 << 20)).in_words("/s".as_ref()),
            "/s: 4,096 pages of 65,536 left: 240 MiB cut off, 1 MiB of free pages given back"
        );
        assert_eq!(
            report(None).in_words("/s".as_ref()),
            "/s: 4,096 pages of 65,536 left: 240 MiB cut off, the file system can't take back the space of free pages"
        );
    }
}
