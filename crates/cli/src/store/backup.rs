//! `store backup` and `store restore`: a copy of a store that is not open, each page of it checked.
//!
//! Invariant: the destination is made, and is a store only when all of it is durable; what is there already is left as it is. The
//! source is only read.

use std::borrow::Cow;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use pagekeeper_kernel::text::{escaped, unescaped};
use pagekeeper_store::{Backup, Error};
use serde::Serialize;

use super::pages;
use crate::output::{self, count};
use crate::size::Size;

/// Copy a store that is not open, and check each page
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper store backup /srv/app/store /backup/app-monday
  pagekeeper store backup --json /srv/app/store /backup/app-monday | jq .seq

DST is made, must not be there, and is a store like SRC when the command ends with 0, durably: as of SRC's last commit, with nothing \
    to recover. Each page is checked against its own checksum and the page map's; if one is damaged nothing is made, and \
    the command ends with 1: \"pagekeeper store repair\" saves what is left. An interrupted backup leaves a directory that opens as \
    no store: remove it.

A store that a process has open is refused: have that process call Store::backup, which holds up no commit.")]
pub(super) struct Args {
    /// The store's directory
    #[arg(value_name = "SRC", value_hint = clap::ValueHint::DirPath)]
    from: PathBuf,
    /// The directory that is made
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    to: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Make a store of a backup, and check each page
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper store restore /backup/app-monday /srv/app/store
  pagekeeper store restore --json /backup/app-monday /srv/app/store | jq .pages

DST is made, must not be there, and is a store when the command ends with 0, durably. Each page is checked as it is read; if \
    one is damaged nothing is made, and the command ends with 1. A backup is a store itself: it may be opened where it is as well, \
    but whoever commits to it has no backup any more.")]
pub(super) struct RestoreArgs {
    /// The backup's directory
    #[arg(value_name = "BACKUP", value_hint = clap::ValueHint::DirPath)]
    from: PathBuf,
    /// The directory that is made
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    to: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    from: Cow<'a, str>,
    to: Cow<'a, str>,
    /// The commit that it is as of.
    seq: u64,
    pages: u64,
    bytes: u64,
    seconds: f64,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    copy(&args.from, &args.to, args.json)
}

/// Runs the command.
pub(super) fn restore(args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    copy(&args.from, &args.to, args.json)
}

fn copy(from: &Path, to: &Path, json: bool) -> anyhow::Result<ExitCode> {
    let store = super::open_or(from, |error| match error {
        Error::Io(pagekeeper_io::Error::Locked { .. }) => anyhow!(
            "{}: in use: another process has this store open: have it call Store::backup, or close it first",
            escaped(from)
        ),
        error => error.into(),
    })?;
    let page_size = store.page_size();
    let Backup { seq, pages, bytes, took, .. } = store.backup(to)?;
    store.close()?;
    let seconds = took.as_secs_f64();
    let report = Report { from: unescaped(from), to: unescaped(to), seq, pages, bytes, seconds };
    if json {
        output::json(&report)?;
    } else {
        let mut out = output::stdout();
        writeln!(out, "{}", report.in_words(to, page_size))?;
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Report<'_> {
    fn in_words(&self, to: &Path, page_size: usize) -> String {
        let Self { seq, bytes, seconds, .. } = self;
        format!(
            "{}: {} of {}, as of commit {}, each checked: {} written in {seconds:.1} s",
            escaped(to),
            pages(self.pages),
            Size(page_size as u64),
            count(*seq),
            Size(*bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_summed_up_in_a_line() {
        let report = Report {
            from: "/s".into(),
            to: "/d".into(),
            seq: 3066,
            pages: 65_536,
            bytes: 256 << 20,
            seconds: 1.25,
        };
        assert_eq!(
            report.in_words("/d".as_ref(), 4096),
            "/d: 65,536 pages of 4 KiB, as of commit 3,066, each checked: 256 MiB written in 1.2 s"
        );
    }
}
