//! The command line of pagekeeper.
//!
//! Every command has `Args` and `run`. A command prints its own problems path by path and returns 0
//! or 1, or fails with an error that is printed here. Usage errors exit with 2. A broken pipe is
//! silent.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(not(target_os = "linux"))]
compile_error!("pagekeeper needs Linux: its rules are about the Linux page cache");

mod arguments;
mod completions;
#[cfg(feature = "demo")]
mod demo;
mod devices;
mod doctor;
mod evict;
mod guard;
mod hint;
mod listen_address;
mod manuals;
mod output;
mod part;
mod paths;
mod probe;
mod problems;
mod run;
mod service;
mod signals;
mod snapshot;
mod stat;
#[cfg(feature = "store")]
mod store;
mod top;
mod warm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pagekeeper_kernel::frozen;

/// The output of `--version`, whose first line is that of `-V`: a static build also says how it
/// differs.
const LONG_VERSION: &str = if pagekeeper_launch::IS_LIBRARY_OF_ANOTHER_BUILD {
    concat!(
        env!("CARGO_PKG_VERSION"),
        "\nlinked statically: `run` loads its library into programs that use glibc; it loads none itself, and asks no name service"
    )
} else if cfg!(target_env = "musl") {
    concat!(
        env!("CARGO_PKG_VERSION"),
        "\nlinked statically: it carries no library for `run`, and asks no name service"
    )
} else {
    env!("CARGO_PKG_VERSION")
};

/// Keeps a database's log files out of the page cache, and shows, evicts, warms and restores what
/// is in it
#[derive(Debug, Parser)]
#[command(
    name = "pagekeeper",
    version,
    long_version = LONG_VERSION,
    max_term_width = 100,
    after_help = "Examples:
  pagekeeper                          databases found on this host, and what to type next
  pagekeeper guard                    keep log files of running databases out of the page cache
  pagekeeper run -- pg_dump shop      run a backup without evicting the database
  pagekeeper probe /var/lib/mysql     measure the disk and file system there, in a minute
  pagekeeper doctor                   find what the page cache costs databases, and the fix
  pagekeeper top                      which files are in the page cache, live
  pagekeeper stat /var/lib/mysql      how much of each file is in the page cache
  pagekeeper evict /backup/dump.sql   release a file's pages, and report what stayed and why
  pagekeeper warm /var/lib/mysql      load the pages that are not in the page cache
  pagekeeper store verify /srv/store  check every page of a page store

Exit codes: 0 success, 1 something failed, 2 wrong usage.
Help on a command, with examples: pagekeeper help COMMAND"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<CliCommand>,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Stat(stat::StatArgs),
    Evict(evict::EvictArgs),
    Warm(warm::WarmArgs),
    Snapshot(snapshot::SnapshotArgs),
    Guard(guard::GuardArgs),
    Run(run::RunArgs),
    Top(top::TopArgs),
    Doctor(doctor::DoctorArgs),
    Probe(probe::ProbeArgs),
    #[cfg(feature = "store")]
    Store(store::StoreArgs),
    #[cfg(feature = "demo")]
    Demo(demo::DemoArgs),
    Completions(completions::CompletionsArgs),
    Man(manuals::ManualsArgs),
}

fn main() -> ExitCode {
    pagekeeper_launch::stack::with_room(work)
}

/// Reads the arguments. Help, the version and mistakes end the program.
fn arguments() -> Cli {
    Cli::try_parse().unwrap_or_else(|error| {
        let text = error.render().to_string();
        let Some(mistake) = text.strip_prefix("error: ") else { error.exit() };
        output::complain(mistake.trim_end());
        std::process::exit(2)
    })
}

fn work() -> ExitCode {
    if frozen::play_child() {
        return ExitCode::SUCCESS;
    }
    let Some(command) = arguments().command else {
        return hint::run().unwrap_or_else(|error| output::exit_code(&error));
    };
    let done = match command {
        CliCommand::Stat(args) => stat::run(&args),
        CliCommand::Evict(args) => evict::run(&args),
        CliCommand::Warm(args) => warm::run(&args),
        CliCommand::Snapshot(args) => snapshot::run(&args),
        CliCommand::Guard(args) => guard::run(&args),
        CliCommand::Run(args) => run::run(&args),
        CliCommand::Top(args) => top::run(&args),
        CliCommand::Doctor(args) => doctor::run(&args),
        CliCommand::Probe(args) => probe::run(&args),
        #[cfg(feature = "store")]
        CliCommand::Store(args) => store::run(&args),
        #[cfg(feature = "demo")]
        CliCommand::Demo(args) => demo::run(args),
        CliCommand::Completions(args) => completions::run(&args),
        CliCommand::Man(args) => manuals::man(&args),
    };
    done.unwrap_or_else(|error| output::exit_code(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_all_commands_are_sound() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }
}
