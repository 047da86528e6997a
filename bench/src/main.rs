//! `pagekeeper-bench`: see the library.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    pagekeeper_bench::run(pagekeeper_bench::Cli::parse())
}
