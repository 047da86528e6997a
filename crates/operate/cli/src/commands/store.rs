//! `pagekeeper store`: figures, checks and page contents of a page store, and its copies, repair
//! and compaction.
//!
//! Invariant: only `compact` writes to the store or makes files in it. Fails as opening the store
//! does: if it is in use, is not a store, or has a newer version.

mod backup;
mod compact;
mod dump;
mod repair;
mod stat;
mod verify;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::anyhow;
use pagekeeper_store::{Error, Store, StoreOptions};
use pagekeeper_text::{counted, escaped};

use crate::arguments::DirArg;

/// Bytes of memory for an inspection, which keeps nothing for later.
const MEMORY_BYTES: u64 = 64 << 20;

/// Inspect, verify, copy, compact and repair a page store
#[derive(Debug, clap::Args)]
#[command(
    disable_help_subcommand = true,
    arg_required_else_help = false,
    after_help = crate::help::of!("store")
)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    command: StoreCommand,
}

#[derive(Debug, clap::Subcommand)]
enum StoreCommand {
    Stat(stat::StoreStatArgs),
    Verify(verify::VerifyArgs),
    Dump(dump::DumpArgs),
    Backup(backup::BackupArgs),
    Restore(backup::RestoreArgs),
    Compact(compact::CompactArgs),
    Repair(repair::RepairArgs),
}

/// Which store.
#[derive(Debug, clap::Args)]
#[command(mut_arg("place", |place| place.help("The store's directory")))]
struct StorePath {
    #[command(flatten)]
    dir: DirArg,
}

/// Which store, and the new one that is made.
#[derive(Debug, clap::Args)]
struct CopyPaths {
    /// The store's directory
    #[arg(value_name = "SRC", value_hint = clap::ValueHint::DirPath)]
    from: PathBuf,
    /// The directory that is made
    #[arg(value_name = "DST", value_hint = clap::ValueHint::AnyPath)]
    to: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &StoreArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        StoreCommand::Stat(args) => stat::run(args),
        StoreCommand::Verify(args) => verify::run(args),
        StoreCommand::Dump(args) => dump::run(args),
        StoreCommand::Backup(args) => backup::run(args),
        StoreCommand::Restore(args) => backup::restore(args),
        StoreCommand::Compact(args) => compact::run(args),
        StoreCommand::Repair(args) => repair::run(args),
    }
}

/// Opens a store to inspect it: nothing is written, and no thread is started, so nothing is
/// recovered.
fn open(dir: &Path) -> anyhow::Result<Store> {
    options().open(dir).map_err(|error| in_use(dir, error))
}

/// Returns the error that a process has the store open.
fn in_use(dir: &Path, error: Error) -> anyhow::Error {
    match error {
        Error::Io(pagekeeper_io::Error::Locked { .. }) => {
            anyhow!("{}: in use: another process has this store open", escaped(dir))
        }
        error => error.into(),
    }
}

/// Returns options for reading only, with little memory.
fn options() -> StoreOptions {
    Store::options().read_only(true).memory(MEMORY_BYTES).without_threads()
}

/// Returns "1 page", "2 pages".
fn pages(number: u64) -> String {
    counted(number, "page", "pages")
}

/// Returns "1 commit", "2 commits".
fn commits(number: u64) -> String {
    counted(number, "commit", "commits")
}
