//! `store repair`: saves the readable pages of a damaged store as a new store elsewhere, and lists
//! what is lost.
//!
//! Invariant: the damaged store is only read, and existing files at the destination are left as
//! they are.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use pagekeeper_store::{PageFinding, Repair, Store};
use pagekeeper_text::{count, escaped, unescaped};
use serde_json::{Value, json};

use super::{MEMORY_BYTES, pages};
use crate::output;

/// Pages of each kind that are listed in text.
const MAX_LISTED: usize = 100;

/// Save what can be saved of a damaged store, to a new one
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("store-repair"))]
pub(super) struct RepairArgs {
    /// The damaged store's directory
    #[arg(value_name = "SRC", value_hint = clap::ValueHint::DirPath)]
    from: PathBuf,
    /// The directory that is made
    #[arg(value_name = "DST", required_unless_present = "to", value_hint = clap::ValueHint::AnyPath)]
    made: Option<PathBuf>,
    /// The former name of DST
    #[arg(long, hide = true, value_name = "DST", conflicts_with = "made")]
    to: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &RepairArgs) -> anyhow::Result<ExitCode> {
    let RepairArgs { from, made, to, json } = args;
    let to = made.as_deref().or(to.as_deref()).unwrap_or(from);
    output::wait_while_frozen(to);
    let repair = Store::options().memory(MEMORY_BYTES).without_threads().repair(from, to);
    let found = repair.map_err(|error| super::in_use(from, error))?;
    let report = || {
        json!({
            "from": unescaped(from),
            "to": unescaped(to),
            "complete": found.is_complete(),
            "seq": found.seq.get(),
            "pages": found.pages,
            "data_pages": found.data_pages,
            "free_pages": found.free_pages,
            "never_written_pages": found.never_written,
            "lost": lines(&found.lost),
            "doubtful": lines(&found.doubtful),
            "notes": found.notes,
            "seconds": found.took.as_secs_f64(),
        })
    };
    output::show(*json, report, |out| write_text(&found, from, to, out))?;
    Ok(output::code(found.is_complete()))
}

fn lines(findings: &[PageFinding]) -> Vec<Value> {
    findings.iter().map(|finding| json!({ "page": finding.page.get(), "what": finding.what })).collect()
}

fn write_text(found: &Repair, from: &Path, to: &Path, out: &mut impl Write) -> io::Result<()> {
    let from = escaped(from);
    for note in &found.notes {
        writeln!(out, "{from}: {note}")?;
    }
    for (kind, findings) in [("lost", &found.lost), ("doubtful", &found.doubtful)] {
        for finding in findings.iter().take(MAX_LISTED) {
            writeln!(out, "{from}: page {} is {kind}: {}", finding.page, finding.what)?;
        }
        if let Some(more) = findings.len().checked_sub(MAX_LISTED).filter(|more| *more > 0) {
            writeln!(out, "{from}: {} more that are {kind}", pages(more as u64))?;
        }
    }
    write!(out, "{}: {} of data saved, ", escaped(to), pages(found.data_pages))?;
    let [free, unwritten] = [found.free_pages, found.never_written].map(count);
    let [lost, doubtful] = [&found.lost, &found.doubtful].map(|findings| count(findings.len() as u64));
    write!(out, "{free} free, {unwritten} never written, {lost} lost, {doubtful} doubtful; ")?;
    writeln!(out, "as of commit {}", count(found.seq.get()))
}

#[cfg(test)]
mod tests {
    use pagekeeper_store::{PageNo, Seq};

    use super::*;

    #[test]
    fn lost_pages_are_listed_before_the_sum() {
        let line = |page: u64| {
            let mut finding = PageFinding::default();
            (finding.page, finding.what) = (PageNo::new(page), "rotten".to_owned());
            finding
        };
        let mut found = Repair::default();
        (found.seq, found.data_pages, found.free_pages, found.never_written) = (Seq::new(3066), 1800, 7, 91);
        (found.lost, found.doubtful) = ((0..102).map(line).collect(), vec![line(500)]);
        found.notes = vec!["superblock: gone".to_owned()];
        let mut text = Vec::new();
        write_text(&found, "/s".as_ref(), "/d".as_ref(), &mut text).unwrap();
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
