//! `store backup` and `store restore`: a copy of a store, each page of it checked. A store that a
//! process has open is copied by that process, if it serves backups; the copy is checked here.
//!
//! Invariant: the destination is made, and is a store only when all of it is durable; what is there
//! already is left as it is. The source is only read.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::anyhow;
use pagekeeper_store::{Backup, Error, Store};
use pagekeeper_text::{ByteSize, count, escaped, unescaped};
use serde_json::json;

use super::{CopyPaths, pages};
use crate::arguments::PaceArgs;
use crate::output::{self, wait_while_frozen};

/// Copy a store, and check each page
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("store-backup"))]
pub(super) struct BackupArgs {
    #[command(flatten)]
    paths: CopyPaths,
    #[command(flatten)]
    pace: PaceArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Make a store of a backup, and check each page
#[derive(Debug, clap::Args)]
#[command(after_help = crate::help::of!("store-restore"))]
pub(super) struct RestoreArgs {
    #[command(flatten)]
    paths: CopyPaths,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `store backup`.
pub(super) fn run(args: &BackupArgs) -> anyhow::Result<ExitCode> {
    let CopyPaths { from, to } = &args.paths;
    wait_while_frozen(to);
    let made = match super::options().open(from) {
        Ok(store) => {
            let made = store.backup_paced(to, args.pace.pace)?;
            store.close()?;
            made
        }
        Err(Error::Io(pagekeeper_io::Error::Locked { .. })) => request_backup(args)?,
        Err(error) => return Err(error.into()),
    };
    show(from, to, made, args.json)
}

/// Has the process that has the store open make the copy.
fn request_backup(args: &BackupArgs) -> anyhow::Result<Backup> {
    let CopyPaths { from, to } = &args.paths;
    Store::request_backup_paced(from, to, args.pace.pace).map_err(|error| match error {
        Error::NoBackupsServed { .. } => anyhow!(
            "{}: in use: another process has this store open, and serves no backups: have it call Store::backup, or close it first",
            escaped(from)
        ),
        error => error.into(),
    })
}

/// Runs `store restore`.
pub(super) fn restore(args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    let CopyPaths { from, to } = &args.paths;
    wait_while_frozen(to);
    let made = super::options().restore(from, to);
    let made = made.map_err(|error| super::in_use(from, error))?;
    show(from, to, made, args.json)
}

fn show(from: &Path, to: &Path, made: Backup, is_json: bool) -> anyhow::Result<ExitCode> {
    let seconds = made.took.as_secs_f64();
    let report = || {
        json!({
            "from": unescaped(from),
            "to": unescaped(to),
            "seq": made.seq.get(),
            "pages": made.pages,
            "bytes": made.bytes,
            "seconds": seconds,
        })
    };
    let size = ByteSize(made.page_size as u64);
    let said = in_words(made.pages, size, made.seq.get(), made.bytes, seconds);
    output::show(is_json, report, |out| writeln!(out, "{}: {said}", escaped(to)))?;
    Ok(ExitCode::SUCCESS)
}

fn in_words(number: u64, size: ByteSize, seq: u64, bytes: u64, seconds: f64) -> String {
    let (number, seq, bytes) = (pages(number), count(seq), ByteSize(bytes));
    format!("{number} of {size}, as of commit {seq}, each checked: {bytes} written in {seconds:.1} s")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_summed_up_in_a_line() {
        assert_eq!(
            in_words(65_536, ByteSize(4096), 3066, 256 << 20, 1.25),
            "65,536 pages of 4 KiB, as of commit 3,066, each checked: 256 MiB written in 1.2 s"
        );
    }
}
