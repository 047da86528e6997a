//! `store verify`: finds every fault of a store, and names each.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use pagekeeper_store::Verification;
use pagekeeper_text::{count, counted, escaped, unescaped};
use serde_json::json;

use super::{StorePath, pages};
use crate::output;

/// Check every page, the free list, the superblocks and the journal
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("store-verify"))]
pub(super) struct VerifyArgs {
    #[command(flatten)]
    place: StorePath,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let path = args.place.dir.path();
    let store = super::open(path)?;
    let found = store.verify()?;
    store.close()?;
    let report = || {
        json!({
            "path": unescaped(path),
            "sound": found.is_sound(),
            "data_pages": found.data_pages,
            "free_pages": found.free_pages,
            "never_written_pages": found.never_written,
            "whole_superblocks": found.superblocks,
            "faults": found.faults,
            "named": found.named,
        })
    };
    output::show(args.json, report, |out| write_text(&found, path, out))?;
    Ok(output::code(found.is_sound()))
}

fn write_text(found: &Verification, path: &Path, out: &mut impl Write) -> io::Result<()> {
    let shown = escaped(path);
    for fault in &found.named {
        writeln!(out, "{shown}: {fault}")?;
    }
    let more = found.faults - found.named.len() as u64;
    if more > 0 {
        writeln!(out, "{shown}: {} more that are not named", count(more))?;
    }
    let verdict =
        if found.is_sound() { "sound".to_owned() } else { counted(found.faults, "fault", "faults") };
    let (free, unwritten) = (count(found.free_pages), count(found.never_written));
    write!(out, "{shown}: {verdict}: {} of data, {free} free, ", pages(found.data_pages))?;
    writeln!(out, "{unwritten} never written, {} of 2 superblocks whole", found.superblocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_come_first_and_the_verdict_last() {
        let mut found = Verification::default();
        (found.data_pages, found.free_pages, found.never_written, found.faults) = (1, 2000, 3, 1002);
        found.named = ["page 7: rotten", "no superblock is whole"].map(str::to_owned).to_vec();
        let text = |found: &Verification| {
            let mut text = Vec::new();
            write_text(found, "/s".as_ref(), &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let counts = "1 page of data, 2,000 free, 3 never written, 0 of 2 superblocks whole";
        assert_eq!(
            text(&found),
            format!(
                "/s: page 7: rotten\n/s: no superblock is whole\n/s: 1,000 more that are not named\n/s: 1,002 faults: {counts}\n"
            )
        );
        (found.faults, found.named) = (0, Vec::new());
        assert_eq!(text(&found), format!("/s: sound: {counts}\n"));
    }
}
