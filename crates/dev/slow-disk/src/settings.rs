//! The settings of a slow disk: the options of `slowdisk`.

use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;
use std::time::Duration;

use super::schedule::DiskModel;
use pagekeeper_text::{ByteSize, HumanDuration, parse_size};

/// The kind of disk, and what is made of it.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct DiskSettings {
    /// Time that each request takes, like 2ms or 0.1ms
    #[arg(long, value_name = "TIME", value_parser = parse_latency)]
    pub latency: Duration,
    /// Requests that it serves at once
    #[arg(long, value_name = "N")]
    pub width: NonZero<u16>,
    /// Requests that it serves per second, at most [default: no cap]
    #[arg(long, value_name = "N")]
    pub iops: Option<NonZero<u64>>,
    /// Bytes of requests that it serves per second, at most, like 500M [default: no cap]
    #[arg(long, value_name = "SIZE", value_parser = parse_bandwidth)]
    pub bandwidth: Option<NonZero<u64>>,
    /// Bytes that it holds
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = parse_size)]
    pub size: u64,
    /// Keep its files in this directory, which gives the size, too [default: in memory, gone at the
    /// end]
    #[arg(long, value_name = "DIR")]
    pub backing: Option<PathBuf>,
    /// Make an XFS on a loop device over it, of the given size, and mount that at DIR
    #[arg(long, value_name = "DIR")]
    pub xfs: Option<PathBuf>,
    /// Keep a file's cached pages when it is opened, as other file systems do [default: each open
    /// begins cold]
    #[arg(long)]
    pub keep_cache: bool,
}

impl DiskSettings {
    /// Creates the settings of a disk of this latency and width, in memory, without caps or XFS.
    pub fn new(latency: Duration, width: NonZero<u16>) -> Self {
        let (size, keep_cache) = (4 << 30, false);
        Self { latency, width, iops: None, bandwidth: None, size, backing: None, xfs: None, keep_cache }
    }

    /// Returns arguments with the same settings.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        let nanos = self.latency.as_nanos();
        let mut arguments: Vec<OsString> = vec![
            // All digits, so that a latency is read back exactly.
            format!("--latency={}.{:06}ms", nanos / 1_000_000, nanos % 1_000_000).into(),
            format!("--width={}", self.width).into(),
            format!("--size={}", self.size).into(),
        ];
        arguments.extend(self.iops.map(|iops| format!("--iops={iops}").into()));
        arguments.extend(self.bandwidth.map(|bandwidth| format!("--bandwidth={bandwidth}").into()));
        for (name, path) in [("--backing", &self.backing), ("--xfs", &self.xfs)] {
            if let Some(path) = path {
                arguments.extend([name.into(), path.into()]);
            }
        }
        arguments.extend(self.keep_cache.then(|| "--keep-cache".into()));
        arguments
    }

    pub(super) fn model(&self) -> DiskModel {
        DiskModel {
            latency: self.latency,
            width: self.width.get().into(),
            iops: self.iops.map(NonZero::get),
            bandwidth: self.bandwidth.map(NonZero::get),
        }
    }
}

/// Text for people: "2ms, 64 wide, at most 20000 requests and 500 MiB per second".
impl std::fmt::Display for DiskSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}, {} wide", self.latency, self.width)?;
        let bandwidth = self.bandwidth.map(|bandwidth| ByteSize(bandwidth.get()));
        match (self.iops, bandwidth) {
            (None, None) => Ok(()),
            (Some(iops), None) => write!(f, ", at most {iops} requests per second"),
            (None, Some(bandwidth)) => write!(f, ", at most {bandwidth} per second"),
            (Some(iops), Some(bandwidth)) => {
                write!(f, ", at most {iops} requests and {bandwidth} per second")
            }
        }
    }
}

fn parse_latency(text: &str) -> Result<Duration, String> {
    text.parse::<HumanDuration>().map(|period| period.0)
}

fn parse_bandwidth(text: &str) -> Result<NonZero<u64>, String> {
    NonZero::new(parse_size(text)?).ok_or_else(|| "a disk without bandwidth serves nothing".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<DiskSettings, clap::Error> {
        let command = DiskSettings::augment_args(clap::Command::new("slowdisk").no_binary_name(true));
        DiskSettings::from_arg_matches(&command.try_get_matches_from(arguments)?)
    }

    #[test]
    fn settings_are_read_back_from_their_arguments() {
        let plain = DiskSettings::new(Duration::from_micros(1_234_567), NonZero::new(64).unwrap());
        let full = DiskSettings {
            iops: NonZero::new(5),
            bandwidth: NonZero::new(500 << 20),
            size: 1 << 30,
            backing: Some("/a b".into()),
            xfs: Some("/c".into()),
            keep_cache: true,
            ..DiskSettings::new(Duration::from_micros(1), NonZero::new(1).unwrap())
        };
        assert_eq!(full.to_string(), "1µs, 1 wide, at most 5 requests and 500 MiB per second");
        for settings in [plain, full] {
            assert_eq!(parse(settings.arguments()).unwrap(), settings);
        }
    }

    #[test]
    fn text_that_describes_no_disk_is_refused() {
        for bad in ["--latency=2", "--latency=0ms", "--width=0", "--iops=0", "--bandwidth=0", "--size=x"] {
            let good = ["--latency=2ms", "--width=64"].into_iter().filter(|good| good[..5] != bad[..5]);
            assert!(parse(good.chain([bad]).map(OsString::from)).is_err(), "{bad}");
        }
        assert!(parse(["--latency=2ms".into()]).is_err());
    }
}
