//! The command line of pagekeeper.
//!
//! Every command has `Args` and `run`. A command prints its own problems path by path and returns 0
//! or 1, or fails with an error that is printed here. Wrong usage exits with 64, a wrong
//! configuration with 2. A broken pipe is silent. `conventions_tests` holds what commands share.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(not(target_os = "linux"))]
compile_error!("pagekeeper needs Linux: its rules are about the Linux page cache");

mod arguments;
mod commands;
#[cfg(test)]
mod conventions_tests;
mod devices;
mod help;
mod output;
mod part;
mod paths;
mod problems;
mod service;
mod signals;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pagekeeper_kernel::frozen;

#[cfg(feature = "demo")]
use commands::demo;
#[cfg(feature = "store")]
use commands::store;
use commands::{
    completions, doctor, evict, guard, hint, manuals, probe, run, size, snapshot, stat, top, warm,
};

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

/// Keeps database logs out of the page cache, and shows and changes what is in it
#[derive(Debug, Parser)]
#[command(
    name = "pagekeeper",
    version,
    long_version = LONG_VERSION,
    max_term_width = 100,
    after_help = crate::help::of!("pagekeeper")
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
    Size(size::SizeArgs),
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
        if !error.use_stderr() {
            error.exit()
        }
        let text = error.render().to_string();
        output::complain(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
        std::process::exit(output::WRONG_USAGE.into())
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
        CliCommand::Size(args) => size::run(&args),
        #[cfg(feature = "store")]
        CliCommand::Store(args) => store::run(&args),
        #[cfg(feature = "demo")]
        CliCommand::Demo(args) => demo::run(args),
        CliCommand::Completions(args) => completions::run(&args),
        CliCommand::Man(args) => manuals::man(&args),
    };
    done.unwrap_or_else(|error| output::exit_code(&error))
}
