//! `store compact`: makes the data file of a store smaller.
//!
//! Invariant: this is the only command that writes to a store, or to its copy. Whenever it ends,
//! even early, that store differs from before only in its free pages.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use pagekeeper_store::{Create, Store};
use pagekeeper_text::{ByteSize, count, escaped, parse_size, unescaped};
use serde_json::json;

use super::{MEMORY_BYTES, in_use, pages};
use crate::output;

/// Give the room of free pages back to the file system
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("store-compact"))]
pub(super) struct CompactArgs {
    /// The store's directory
    #[arg(value_name = "SRC", value_hint = clap::ValueHint::DirPath)]
    from: PathBuf,
    /// Compact a copy that is made here, and only read SRC
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    to: Option<PathBuf>,
    /// Give the journal this limit as well: 64K to 1T. It bounds what a recovery reads, and how
    /// much the commits between two checkpoints may change
    #[arg(long, value_name = "SIZE", value_parser = parse_journal)]
    journal: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Parses the limit of a journal.
fn parse_journal(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if (64 << 10..=1 << 40).contains(&bytes) { Ok(bytes) } else { Err("give 64K to 1T".to_owned()) }
}

/// Runs the command.
pub(super) fn run(args: &CompactArgs) -> anyhow::Result<ExitCode> {
    let dir = args.to.as_deref().unwrap_or(&args.from);
    output::wait_while_frozen(dir);
    if args.to.is_some() {
        let source = super::open(&args.from)?;
        source.backup(dir)?;
        source.close()?;
    }
    let options = Store::options().create(Create::Never).memory(MEMORY_BYTES).warm(false).without_threads();
    let options = if let Some(bytes) = args.journal { options.journal_bytes(bytes) } else { options };
    let compacted = || -> anyhow::Result<_> {
        let store = options.open(dir).map_err(|error| in_use(dir, error))?;
        let max_journal_bytes = store.stats().max_journal_bytes;
        let made = store.compact()?;
        store.close()?;
        Ok((max_journal_bytes, made))
    };
    let (max_journal_bytes, made) = compacted().map_err(|error| match &args.to {
        Some(to) => error.context(format!("{} is a whole copy, not compacted yet", escaped(to))),
        None => error,
    })?;
    let report = || {
        json!({
            "store": unescaped(dir),
            "seq": made.seq.get(),
            "pages_before": made.pages_before,
            "pages": made.pages,
            "cut_bytes": made.cut,
            // `null` if the file system supports no holes.
            "given_back_bytes": made.given_back,
            "max_journal_bytes": max_journal_bytes,
            "seconds": made.took.as_secs_f64(),
        })
    };
    output::show(args.json, report, |out| {
        writeln!(
            out,
            "{}: {}",
            escaped(dir),
            in_words([made.pages, made.pages_before], made.cut, made.given_back)
        )
    })?;
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

fn in_words([left, before]: [u64; 2], cut: u64, given_back: Option<u64>) -> String {
    let given_back = match given_back {
        Some(bytes) => format!("{} of free pages given back", ByteSize(bytes)),
        None => "the file system can't take back the space of free pages".to_owned(),
    };
    format!("{} of {} left: {} cut off, {given_back}", pages(left), count(before), ByteSize(cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compaction_is_summed_up_in_a_line() {
        let said = |given_back| in_words([4096, 65_536], 240 << 20, given_back);
        assert_eq!(
            said(Some(1 << 20)),
            "4,096 pages of 65,536 left: 240 MiB cut off, 1 MiB of free pages given back"
        );
        assert_eq!(
            said(None),
            "4,096 pages of 65,536 left: 240 MiB cut off, the file system can't take back the space of free pages"
        );
    }
}
