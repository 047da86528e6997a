//! Arguments that several commands share: the pace on a disk, lengths of time, and limits.

use std::time::Duration;

use pagekeeper_catalog::units::parse_pace;
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_text::{duration, parse_period};

/// The option, to be flattened into a command's arguments.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct PaceArgs {
    /// How fast to use a disk: "auto" stands back for others, "off" does not, "idle" takes a third
    /// beside others at most; a rate (64M, or 64M/s) is the most on each file system, and stands
    /// back
    #[arg(long, value_name = "PACE", default_value = "auto", value_parser = parse_pace)]
    pub(crate) pace: StreamPace,
}

/// Parses a length of time of at least `least`; a plain number is seconds.
pub(crate) fn parse_time(text: &str, least: Duration) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = seconds.map_or_else(|| parse_period(text), Ok)?;
    if time >= least { Ok(time) } else { Err(format!("give {} or more, like 2s", duration(least))) }
}

/// Parses the largest number of things to show: a number, or "all".
pub(crate) fn parse_limit(text: &str) -> Result<usize, String> {
    if text == "all" {
        return Ok(usize::MAX);
    }
    text.parse().map_err(|_| "give a number, or \"all\"".to_owned())
}
