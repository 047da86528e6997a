//! `store backup` and `store restore`: a copy of a store, whole or as an increment, with each page checked. A
//! store that a process has open is copied by that process, if it serves backups.
//!
//! Invariant: the destination is created, and is a store (or an increment) only when all of it is durable; an
//! existing destination is left as it is. The source is only read.

use std::borrow::Cow;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use pagekeeper_kernel::text::{escaped, unescaped};
use pagekeeper_store::{Backup, Error, Increment, Store};
use serde::Serialize;

use super::pages;
use crate::output::{self, count};
use crate::size::Size;

/// Copy a store, and check each page
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper store backup /srv/app/store /backup/app-monday
  pagekeeper store backup --since /backup/app-monday /srv/app/store /backup/app-tuesday
  pagekeeper store backup --since /backup/app-tuesday /srv/app/store /backup/app-wednesday
  pagekeeper store backup --json /srv/app/store /backup/app-monday | jq .seq

DST is made, must not be there, and is a store like SRC when the command ends with 0, durably: as of SRC's last commit, with nothing \
    to recover. Each page is checked against its own checksum and the page map's; if one is damaged nothing is made, and \
    the command ends with 1: \"pagekeeper store repair\" saves what is left. An interrupted backup leaves a directory that opens as \
    no store: remove it.

With --since, DST is one file, an increment: the pages that commits changed since BASE, which is a backup, or an increment that goes on \
    from one, and of which nothing was committed to. All pages are read and checked; what is saved is writing and room. Restore \
    it with all that it goes on from. After a restore or a repair of SRC begin with a whole backup. An interrupted one leaves \
    DST with \".new\" behind it: remove it.

A store that a process has open is copied by that process, beside its commits, if it was opened with serve_backups(true), for its user     and root; so DST must be where it may write. Otherwise it is refused: have that process call Store::backup or backup_since.")]
pub(super) struct Args {
    /// Write only what changed since this backup or increment, to one file
    #[arg(long, value_name = "BASE", value_hint = clap::ValueHint::AnyPath)]
    since: Option<PathBuf>,
    /// The store's directory
    #[arg(value_name = "SRC", value_hint = clap::ValueHint::DirPath)]
    from: PathBuf,
    /// The directory that is made, or the file with --since
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    to: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Make a store of a backup and its increments, and check each page
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  pagekeeper store restore /backup/app-monday /srv/app/store
  pagekeeper store restore /backup/app-monday /backup/app-tuesday /backup/app-wednesday /srv/app/store
  pagekeeper store restore --json /backup/app-monday /srv/app/store | jq .pages

DST is made, must not be there, and is a store when the command ends with 0, durably. Each page is checked as it is read; if \
    one is damaged nothing is made, and the command ends with 1. A backup is a store itself: it may be opened where it is as well, \
    but whoever commits to it has no backup any more.

Increments are put over the backup in the order given; each must begin at the commit that what comes before it ends at, and be whole.")]
pub(super) struct RestoreArgs {
    /// The backup's directory; behind it increments that go on from it, in order
    #[arg(value_name = "BACKUP", required = true, num_args = 1.., value_hint = clap::ValueHint::AnyPath)]
    chain: Vec<PathBuf>,
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
    /// The commit that an increment begins at.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<u64>,
    /// The increments that a restore applied to the backup.
    #[serde(skip_serializing_if = "Option::is_none")]
    increments: Option<Vec<Cow<'a, str>>>,
    /// The commit that the copy is as of.
    seq: u64,
    /// The pages in an increment.
    pages: u64,
    bytes: u64,
    seconds: f64,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let base = |base| super::options().base(base).map_err(|error| super::in_use(base, error));
    let store = match super::options().open(&args.from) {
        Ok(store) => store,
        Err(Error::Io(pagekeeper_io::Error::Locked { .. })) => return run_elsewhere(args, base),
        Err(error) => return Err(error.into()),
    };
    let page_size = store.page_size();
    let (from, to) = (unescaped(&args.from), unescaped(&args.to));
    let report = match &args.since {
        None => Report::of(from, to, store.backup(&args.to)?),
        Some(since) => {
            let made = store.backup_since(&base(since)?, &args.to).map_err(|error| match error {
                Error::OtherStore { .. } => anyhow!(
                    "{}: no copy of {}, but of another store: make a whole backup",
                    escaped(since),
                    escaped(&args.from)
                ),
                Error::BaseAhead { .. } => anyhow!("{}: {error}", escaped(since)),
                error => error.into(),
            })?;
            Report::of_increment(from, to, made)
        }
    };
    store.close()?;
    report.print(&args.to, page_size, args.json)
}

/// Requests the copy from the process that has the store open.
fn run_elsewhere<'a>(
    args: &'a Args,
    base: impl Fn(&'a Path) -> anyhow::Result<pagekeeper_store::Base>,
) -> anyhow::Result<ExitCode> {
    let (from, to) = (unescaped(&args.from), unescaped(&args.to));
    let explained = |error| match error {
        Error::NoBackupsServed { .. } => anyhow!(
            "{}: in use: another process has this store open, and serves no backups: have it call Store::backup, or close it first",
            escaped(&args.from)
        ),
        error => error.into(),
    };
    let (report, page_size) = match &args.since {
        None => {
            let made = Store::request_backup(&args.from, &args.to).map_err(explained)?;
            (Report::of(from, to, made), made.page_size)
        }
        Some(since) => {
            let made = Store::request_backup_since(&args.from, &base(since)?, &args.to).map_err(explained)?;
            (Report::of_increment(from, to, made), made.page_size)
        }
    };
    report.print(&args.to, page_size, args.json)
}

/// Runs the command.
pub(super) fn restore(args: &RestoreArgs) -> anyhow::Result<ExitCode> {
    let (from, increments) =
        args.chain.split_first().unwrap_or_else(|| unreachable!("there is one at least"));
    let made = super::options().restore(from, increments, &args.to);
    let made = made.map_err(|error| super::in_use(from, error))?;
    let increments = increments.iter().map(|path| unescaped(path)).collect();
    let report = Report::of(unescaped(from), unescaped(&args.to), made);
    Report { increments: Some(increments), ..report }.print(&args.to, made.page_size, args.json)
}

impl<'a> Report<'a> {
    fn of(from: Cow<'a, str>, to: Cow<'a, str>, made: Backup) -> Self {
        let Backup { seq, pages, bytes, took, .. } = made;
        let seconds = took.as_secs_f64();
        Self { from, to, since: None, increments: None, seq, pages, bytes, seconds }
    }

    fn of_increment(from: Cow<'a, str>, to: Cow<'a, str>, made: Increment) -> Self {
        let Increment { since, seq, pages, bytes, took, .. } = made;
        let (since, seconds) = (Some(since), took.as_secs_f64());
        Self { from, to, since, increments: None, seq, pages, bytes, seconds }
    }

    fn print(&self, to: &Path, page_size: usize, json: bool) -> anyhow::Result<ExitCode> {
        if json {
            output::json(self)?;
        } else {
            let mut out = output::stdout();
            writeln!(out, "{}", self.in_words(to, page_size))?;
            out.flush()?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn in_words(&self, to: &Path, page_size: usize) -> String {
        let Self { seq, bytes, seconds, .. } = self;
        if let Some(since) = self.since {
            return format!(
                "{}: {} of {} changed since commit {}, as of commit {}, each checked: {} written in {seconds:.1} s",
                escaped(to),
                pages(self.pages),
                Size(page_size as u64),
                count(since),
                count(*seq),
                Size(*bytes),
            );
        }
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
            since: None,
            increments: None,
            seq: 3066,
            pages: 65_536,
            bytes: 256 << 20,
            seconds: 1.25,
        };
        assert_eq!(
            report.in_words("/d".as_ref(), 4096),
            "/d: 65,536 pages of 4 KiB, as of commit 3,066, each checked: 256 MiB written in 1.2 s"
        );
        let report = Report { since: Some(3000), pages: 1, bytes: 16 << 10, ..report };
        assert_eq!(
            report.in_words("/d".as_ref(), 4096),
            "/d: 1 page of 4 KiB changed since commit 3,000, as of commit 3,066, each checked: 16 KiB written in 1.2 s"
        );
    }
}
