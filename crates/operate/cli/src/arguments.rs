//! Arguments that several commands share: directories, the pace on a disk, lengths of time, and
//! limits.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueHint;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use pagekeeper_catalog::units::parse_pace;
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_text::{duration, parse_period};

/// The directories of a command, to be flattened into its arguments.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct DirArgs {
    /// Only files in and below this directory; may be given several times
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    dirs: Vec<PathBuf>,
    /// The same as the argument DIR
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    dir: Vec<PathBuf>,
}

impl DirArgs {
    /// Returns all directories.
    pub(crate) fn all(&self) -> Vec<PathBuf> {
        [self.dirs.as_slice(), &self.dir].concat()
    }
}

/// The one directory of a command.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct DirArg {
    /// The directory
    #[arg(value_name = "DIR", required_unless_present = "dir", value_hint = ValueHint::DirPath)]
    place: Option<PathBuf>,
    /// The same as the argument DIR
    #[arg(long, value_name = "DIR", conflicts_with = "place", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

impl DirArg {
    /// Returns the directory.
    pub(crate) fn path(&self) -> &Path {
        self.place.as_deref().or(self.dir.as_deref()).unwrap_or(Path::new("."))
    }
}

/// The pace of a command.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct PaceArgs {
    /// How fast to use a disk: "auto" stands back for others, "off" does not, "idle" takes at most
    /// a third beside others; a rate (64M, or 64M/s) limits each file system, and stands back
    #[arg(long, value_name = "PACE", default_value = "auto", value_parser = parse_pace)]
    pub(crate) pace: StreamPace,
}

/// A value of an option: its name, what it stands for, and its help.
pub(crate) type NamedValue<T> = (&'static str, T, &'static str);

/// Returns a parser of the names.
pub(crate) fn one_of<T: Copy + Send + Sync>(
    all: &'static [NamedValue<T>],
) -> impl TypedValueParser<Value = T> {
    let names = all.iter().map(|(name, _, help)| PossibleValue::new(*name).help(*help));
    PossibleValuesParser::new(names).try_map(move |given| {
        all.iter().find(|(name, ..)| *name == given).map(|known| known.1).ok_or("unknown")
    })
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
