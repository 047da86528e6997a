//! `store backup` and `store restore`: a copy of a store, each page of it checked. A store that a
//! process has open is copied by that process, if it serves backups; the copy is checked here.
//!
//! Invariant: the destination is made, and is a store only when all of it is durable; what is there
//! already is left as it is. The source is only read.

use std::borrow::Cow;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use pagekeeper_store::{Backup, Error, Store};
use pagekeeper_text::{ByteSize, count, escaped, unescaped};
use serde::Serialize;

use super::pages;
use crate::arguments::PaceArgs;
use crate::output::{self, wait_while_frozen};

/// Copy a store, and check each page
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper store backup /srv/app/store /backup/app-monday
  pagekeeper store backup --json /srv/app/store /backup/app-monday | jq .seq

DST is made, must not be there, and is a store like SRC when the command ends with 0, durably: as of SRC's last commit, with nothing \
    to recover. Each page is checked against its own checksum and the page map's; if one is damaged nothing is made, and \
    the command ends with 1: \"pagekeeper store repair\" saves what is left. An interrupted backup leaves a directory that opens as \
    no store: remove it.

A store that a process has open is copied by that process, beside its commits, if it was opened with serve_backups(true), for its user \
    and root; so DST must be where it may write. This command then opens DST and checks it as \"store verify\" does, and ends with 1 \
    if it is not that copy: DST must be the same directory for both, in a container too. \
    A process that serves no backups is refused: have it call Store::backup.")]
pub(super) struct BackupArgs {
    /// The store's directory
    #[arg(value_name = "SRC", value_hint = clap::ValueHint::DirPath)]
    from: PathBuf,
    /// The directory that is made
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    to: PathBuf,
    #[command(flatten)]
    pace: PaceArgs,
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
struct CopyReport<'a> {
    from: Cow<'a, str>,
    to: Cow<'a, str>,
    /// The commit whose state it has.
    seq: u64,
    pages: u64,
    bytes: u64,
    seconds: f64,
}

/// Runs `store backup`.
pub(super) fn run(args: &BackupArgs) -> anyhow::Result<ExitCode> {
    wait_while_frozen(&args.to);
    let made = match super::options().open(&args.from) {
        Ok(store) => {
            let made = store.backup_paced(&args.to, args.pace.pace)?;
            store.close()?;
            made
        }
        Err(Error::Io(pagekeeper_io::Error::Locked { .. })) => request_backup(args)?,
        Err(error) => return Err(error.into()),
    };
    show(&args.from, &args.to, made, args.json)
}

/// Has the process that has the store open make the copy.
fn request_backup(args: &BackupArgs) -> anyhow::Result<Backup> {
    Store::request_backup_paced(&args.from, &args.to, args.pace.pace).map_err(|error| match error {
        Error::NoBackupsServed { .. } => anyhow!(
            "{}: in use: another process has this store open, and serves no backups: have it call Store::backup, or close it first",
            escaped(&args.from)
        ),
        error => error.into(),
    })
}

/// Runs `store restore`.
pub(super) fn restore(args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    wait_while_frozen(&args.to);
    let made = super::options().restore(&args.from, &args.to);
    let made = made.map_err(|error| super::in_use(&args.from, error))?;
    show(&args.from, &args.to, made, args.json)
}

fn show(from: &Path, to: &Path, made: Backup, is_json: bool) -> anyhow::Result<ExitCode> {
    let Backup { seq, pages, bytes, took, page_size, .. } = made;
    let (from, shown) = (unescaped(from), unescaped(to));
    let report = CopyReport { from, to: shown, seq, pages, bytes, seconds: took.as_secs_f64() };
    output::show(is_json, || &report, |out| writeln!(out, "{}", report.in_words(to, page_size)))?;
    Ok(ExitCode::SUCCESS)
}

impl CopyReport<'_> {
    fn in_words(&self, to: &Path, page_size: usize) -> String {
        let Self { seq, bytes, seconds, .. } = self;
        format!(
            "{}: {} of {}, as of commit {}, each checked: {} written in {seconds:.1} s",
            escaped(to),
            pages(self.pages),
            ByteSize(page_size as u64),
            count(*seq),
            ByteSize(*bytes),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_summed_up_in_a_line() {
        let report = CopyReport {
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
