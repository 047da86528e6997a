//! How long a commit takes beside the load: a client of its own, one thread that changes one row of a table of its own at a time, each
//! time in a transaction of its own.
//!
//! The load's own latencies are those of transactions of some fifty statements, most of it the statements' time, and waits for rows that
//! others hold. Of this client a statement is one row, which nobody else wants, and the commit: what is left is the wait for the redo
//! log's and the binlog's sync. It is the same in all windows. Times are sysbench's, in classes that are 2 % wide.
//! Ends with its handle, and with the thread that started it. Fails with what it said.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::running::Running;

/// The running client.
pub(super) struct Commits(Running);

/// What the commits of a window took, in µs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Latencies {
    /// Half of them took no longer.
    pub(super) median: f64,
    /// 99 of 100 took no longer.
    pub(super) p99: f64,
    /// None took longer.
    pub(super) longest: f64,
}

impl Commits {
    /// Starts the client that this sysbench command is about, for so long: whole seconds.
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

    /// Waits for its end. It says nothing before that, so its pipe has room.
    pub(super) fn wait(mut self) -> Result<Latencies> {
        let mut stdout = self.0.stdout.take().context("it has no output")?;
        let said = std::io::read_to_string(&mut stdout).context("can't read what sysbench says")?;
        let status = self.0.wait().context("can't wait for sysbench")?;
        ensure!(status.success(), "sysbench ended with {status}: {said}");
        latencies_in(&said).with_context(|| format!("sysbench is not understood: {said}"))
    }
}

/// From lines like `0.045 |*** 4280`, and that with `max:`; sysbench's times are in ms.
fn latencies_in(said: &str) -> Option<Latencies> {
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
    Some(Latencies { median: below(0.5)?, p99: below(0.99)?, longest: longest * 1e3 })
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
        let latencies = latencies_in(SAID).unwrap();
        assert_eq!(latencies, Latencies { median: 500.0, p99: 4000.0, longest: 9130.0 });
        assert_eq!(latencies_in(""), None);
        assert_eq!(latencies_in("max: 3.00\n"), None, "no commit");
    }

    #[test]
    fn who_fails_is_not_taken_for_fast() {
        let mut fails = Command::new("sh");
        fails.args(["-c", "exit 3"]);
        assert!(Commits::start(fails, Duration::from_secs(1)).unwrap().wait().is_err());
    }
}
