//! `--pace`: how fast a command may use a disk. All commands that have the option share it.

use pagekeeper_policy::stream_pace::StreamPace;

use pagekeeper_catalog::units::parse_pace;

/// The option, to be flattened into a command's arguments.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct PaceArgs {
    /// How fast to use a disk: "auto" stands back for others, "off" does not, "idle" takes a third beside others at
    /// most; a rate (64M, or 64M/s) is the most on each file system, and stands back
    #[arg(long, value_name = "PACE", default_value = "auto", value_parser = parse_pace)]
    pub(crate) pace: StreamPace,
}
