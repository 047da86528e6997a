//! The slow disk as a program, with the arguments that `pagekeeper-bench` takes.

use std::process::ExitCode;

use clap::Parser;
use pagekeeper_slow_disk::SlowDiskArguments;

#[derive(Debug, Parser)]
#[command(name = "pagekeeper-slow-disk", version, max_term_width = 100)]
enum Cli {
    /// A disk that is slow but wide, until Ctrl-C; as root
    Slowdisk(SlowDiskArguments),
}

fn main() -> ExitCode {
    let Cli::Slowdisk(arguments) = Cli::parse();
    match pagekeeper_slow_disk::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pagekeeper-slow-disk: {error:#}");
            ExitCode::FAILURE
        }
    }
}
