//! `store verify`: finds every fault of a store, and names each.

use std::borrow::Cow;
use std::io::{self, Write};
use std::process::ExitCode;

use pagekeeper_store::Verification;
use pagekeeper_text::{count, escaped, unescaped};
use serde::Serialize;

use super::{StorePath, pages};
use crate::output;

/// Check every page's checksum, the free list, both superblocks and the journal
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper store verify /srv/app/store
  pagekeeper store verify --json /srv/app/store | jq '.faults'

Reads the whole data file and the journal; pages that are committed but not yet in the data file are checked in the journal. \
    Exits with 0 if all is sound and with 1 if not; it lists at most a hundred faults.")]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    place: StorePath,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct VerifyReport<'a> {
    path: Cow<'a, str>,
    sound: bool,
    data_pages: u64,
    free_pages: u64,
    never_written_pages: u64,
    whole_superblocks: u64,
    faults: u64,
    /// The first faults, in words.
    named: &'a [String],
}

impl<'a> VerifyReport<'a> {
    fn new(path: Cow<'a, str>, found: &'a Verification) -> Self {
        Self {
            path,
            sound: found.is_sound(),
            data_pages: found.data_pages,
            free_pages: found.free_pages,
            never_written_pages: found.never_written,
            whole_superblocks: found.superblocks,
            faults: found.faults,
            named: &found.named,
        }
    }

    fn write_text(&self, path: &std::path::Path, out: &mut impl Write) -> io::Result<()> {
        let shown = escaped(path);
        for fault in self.named {
            writeln!(out, "{shown}: {fault}")?;
        }
        let more = self.faults - self.named.len() as u64;
        if more > 0 {
            writeln!(out, "{shown}: {} more that are not named", count(more))?;
        }
        let verdict = match self.faults {
            0 => "sound".to_owned(),
            1 => "1 fault".to_owned(),
            faults => format!("{} faults", count(faults)),
        };
        let Self { data_pages, free_pages, never_written_pages, whole_superblocks, .. } = self;
        write!(out, "{shown}: {verdict}: {} of data, {} free, ", pages(*data_pages), count(*free_pages))?;
        writeln!(
            out,
            "{} never written, {whole_superblocks} of 2 superblocks whole",
            count(*never_written_pages)
        )
    }
}

/// Runs the command.
pub(super) fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let path = &args.place.dir;
    let store = super::open(path)?;
    let found = store.verify()?;
    store.close()?;
    let report = VerifyReport::new(unescaped(path), &found);
    output::show(args.json, || &report, |out| report.write_text(path, out))?;
    Ok(output::code(report.sound))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_first_and_the_verdict_last() {
        let named = ["page 7: rotten".to_owned(), "no superblock is whole".to_owned()];
        let report = VerifyReport {
            path: "/s".into(),
            sound: false,
            data_pages: 1,
            free_pages: 2000,
            never_written_pages: 3,
            whole_superblocks: 0,
            faults: 1002,
            named: &named,
        };
        let text = |report: &VerifyReport<'_>| {
            let mut text = Vec::new();
            report.write_text("/s".as_ref(), &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let counts = "1 page of data, 2,000 free, 3 never written, 0 of 2 superblocks whole";
        assert_eq!(
            text(&report),
            format!(
                "/s: page 7: rotten\n/s: no superblock is whole\n/s: 1,000 more that are not named\n/s: 1,002 faults: {counts}\n"
            )
        );
        let sound = VerifyReport { sound: true, faults: 0, named: &[], ..report };
        assert_eq!(text(&sound), format!("/s: sound: {counts}\n"));
    }
}
