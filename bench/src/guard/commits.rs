//! Commit latency beside the load: a separate client with one thread changes one row of its own table at a time, each
//! in its own transaction.
//!
//! The load's own latencies include some fifty statements per transaction and waits for row locks. This client changes
//! one row that nobody else uses, so its latency is the wait for the sync of redo log and binlog. It is the same in all
//! windows. Times come from sysbench's histogram, whose classes are 2 % wide. It ends with its handle, and with the
//! thread that started it. Fails with the client's output.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::running::Running;

/// The running client.
pub(super) struct Commits(Running);

/// The commit latencies of a window, in µs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CommitTimes {
    /// Median.
    pub(super) median: f64,
    /// 99th percentile.
    pub(super) p99: f64,
    /// Maximum.
    pub(super) longest: f64,
}

impl Commits {
    /// Starts the client of this sysbench command for `window`, in whole seconds.
    pub(super) fn start(mut sysbench: Command, window: Duration) -> Result<Self> {
        let child = sysbench
            .args(["--histogram", &format!("--time={}", window.as_secs())])
            .arg("run")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("can't start sysbench")?;
        Ok(Self(child.into()))
    }

    /// Waits for its end. It prints nothing before that, so its pipe cannot fill.
    pub(super) fn wait(mut self) -> Result<CommitTimes> {
        let mut stdout = self.0.stdout.take().context("it has no output")?;
        let said = std::io::read_to_string(&mut stdout).context("can't read what sysbench says")?;
        let status = self.0.wait().context("can't wait for sysbench")?;
        ensure!(status.success(), "sysbench ended with {status}: {said}");
        times_in(&said).with_context(|| format!("sysbench is not understood: {said}"))
    }
}

/// Parses lines like `0.045 |*** 4280` and the line with `max:`; sysbench's times are in ms.
fn times_in(said: &str) -> Option<CommitTimes> {
    let classes: Vec<(f64, u64)> = said
        .lines()
        .filter_map(|line| {
            let (time, rest) = line.split_once('|')?;
            Some((time.trim().parse().ok()?, rest.split_whitespace().next_back()?.parse().ok()?))
        })
        .collect();
    let all: u64 = classes.iter().map(|(_, count)| count).sum();
    let below = |part: f64| {
        let mut seen = 0;
        let is_there = |(_, count): &&(f64, u64)| {
            seen += count;
            seen as f64 >= all as f64 * part
        };
        classes.iter().find(is_there).map(|(time, _)| time * 1e3)
    };
    let longest =
        said.lines().find_map(|line| line.trim().strip_prefix("max:"))?.trim().parse::<f64>().ok()?;
    Some(CommitTimes { median: below(0.5)?, p99: below(0.99)?, longest: longest * 1e3 })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       0.500 |**************************************** 60
       1.000 |*****                                    38
       4.000 |                                         1
       9.000 |                                         1
 
Latency (ms):
         min:                                    0.42
         avg:                                    0.75
         max:                                    9.13
         95th percentile:                        1.04
";

    #[test]
    fn times_are_those_of_the_histogram() {
        let times = times_in(SAID).unwrap();
        assert_eq!(times, CommitTimes { median: 500.0, p99: 4000.0, longest: 9130.0 });
        assert_eq!(times_in(""), None);
        assert_eq!(times_in("max: 3.00\n"), None, "no commit");
    }
}
