//! `store repair`: saves the readable pages of a damaged store as a new store elsewhere, and lists
//! what is lost.
//!
//! Invariant: the damaged store is only read, and existing files at the destination are left as
//! they are.

use std::borrow::Cow;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pagekeeper_store::{PageFinding, Repair, Store};
use pagekeeper_text::{count, escaped, unescaped};
use serde::Serialize;

use super::{MEMORY_BYTES, pages};
use crate::output;

/// Pages of each kind that are listed in text.
const MAX_LISTED: usize = 100;

/// Save what can be saved of a damaged store, to a new one
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper store repair /srv/app/store --to /srv/app/repaired
  pagekeeper store repair --json /srv/app/store --to /srv/app/repaired | jq '.lost[].page'

SRC is only read, and must not be open. DST is made, must not be there, and is a store when the command ends with 0 or 1 and says so. \
    It has each page that is whole by its own checksum, as the newest commit left it that can be read. Reading a page that is lost \
    fails there, until it is written as a whole. Superblock, page map and free list are made again where they are damaged.

A page that is \"doubtful\" is whole, but older than its last write, or of a commit that is lost otherwise: pages of different commits \
    may not go together. Restore a backup where there is one.

Exits with 0 if all is there that was committed, as far as can be known, and with 1 if not. It lists at most a hundred pages of each \
    kind; all of them with --json.")]
pub(super) struct RepairArgs {
    /// The damaged store's directory
    #[arg(value_name = "SRC", value_hint = clap::ValueHint::DirPath)]
    from: PathBuf,
    /// The directory that is made
    #[arg(long, value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    to: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct RepairReport<'a> {
    from: Cow<'a, str>,
    to: Cow<'a, str>,
    complete: bool,
    /// The newest commit of any page.
    seq: u64,
    pages: u64,
    data_pages: u64,
    free_pages: u64,
    never_written_pages: u64,
    lost: Vec<PageLine<'a>>,
    doubtful: Vec<PageLine<'a>>,
    /// Other damage, in words.
    notes: &'a [String],
    seconds: f64,
}

#[derive(Debug, Serialize)]
struct PageLine<'a> {
    page: u64,
    what: &'a str,
}

fn lines(findings: &[PageFinding]) -> Vec<PageLine<'_>> {
    findings.iter().map(|finding| PageLine { page: finding.page, what: &finding.what }).collect()
}

impl<'a> RepairReport<'a> {
    fn new(from: &'a Path, to: &'a Path, found: &'a Repair) -> Self {
        Self {
            from: unescaped(from),
            to: unescaped(to),
            complete: found.is_complete(),
            seq: found.seq,
            pages: found.pages,
            data_pages: found.data_pages,
            free_pages: found.free_pages,
            never_written_pages: found.never_written,
            lost: lines(&found.lost),
            doubtful: lines(&found.doubtful),
            notes: &found.notes,
            seconds: found.took.as_secs_f64(),
        }
    }

    fn write_text(&self, from: &Path, to: &Path, out: &mut impl Write) -> io::Result<()> {
        let from = escaped(from);
        for note in self.notes {
            writeln!(out, "{from}: {note}")?;
        }
        for (kind, findings) in [("lost", &self.lost), ("doubtful", &self.doubtful)] {
            for PageLine { page, what } in findings.iter().take(MAX_LISTED) {
                writeln!(out, "{from}: page {page} is {kind}: {what}")?;
            }
            if let Some(more) = findings.len().checked_sub(MAX_LISTED).filter(|more| *more > 0) {
                writeln!(out, "{from}: {} more that are {kind}", pages(more as u64))?;
            }
        }
        let Self { data_pages, free_pages, never_written_pages, seq, .. } = self;
        write!(out, "{}: {} of data saved, {} free, ", escaped(to), pages(*data_pages), count(*free_pages))?;
        writeln!(
            out,
            "{} never written, {} lost, {} doubtful; as of commit {}",
            count(*never_written_pages),
            count(self.lost.len() as u64),
            count(self.doubtful.len() as u64),
            count(*seq)
        )
    }
}

/// Runs the command.
pub(super) fn run(args: &RepairArgs) -> anyhow::Result<ExitCode> {
    let RepairArgs { from, to, json } = args;
    output::wait_while_frozen(to);
    let repair = Store::options().memory(MEMORY_BYTES).without_threads().repair(from, to);
    let found = repair.map_err(|error| super::in_use(from, error))?;
    let report = RepairReport::new(from, to, &found);
    output::show(*json, || &report, |out| report.write_text(from, to, out))?;
    Ok(output::code(report.complete))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_pages_are_listed_before_the_sum() {
        let line = |page| PageLine { page, what: "rotten" };
        let report = RepairReport {
            from: "/s".into(),
            to: "/d".into(),
            complete: false,
            seq: 3066,
            pages: 2000,
            data_pages: 1800,
            free_pages: 7,
            never_written_pages: 91,
            lost: (0..102).map(line).collect(),
            doubtful: vec![line(500)],
            notes: &["superblock: gone".to_owned()],
            seconds: 1.0,
        };
        let mut text = Vec::new();
        report.write_text("/s".as_ref(), "/d".as_ref(), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 101 + 1 + 1);
        assert_eq!(lines[..2], ["/s: superblock: gone", "/s: page 0 is lost: rotten"]);
        assert_eq!(
            lines[101..],
            [
                "/s: 2 pages more that are lost",
                "/s: page 500 is doubtful: rotten",
                "/d: 1,800 pages of data saved, 7 free, 91 never written, 102 lost, 1 doubtful; as of commit 3,066"
            ]
        );
    }
}
