//! A child process of this program that takes part in a measurement: it reports readiness, begins on request, and ends
//! with one line of JSON.
//!
//! Invariants: it ends with its handle, and with the thread that started it; it enters its cgroup before anything else.
//! Fails where it dies or prints something unexpected; its standard error is passed on.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::running::Running;
use crate::scratch::Stop;

const READY: &str = "ready";
const GO: &[u8] = b"go\n";

/// The parent's handle of the child.
pub(super) struct Helper {
    child: Running,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Helper {
    /// Starts the child.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("can't start this program again")?;
        let stdin = child.stdin.take().context("it has no input")?;
        let stdout = BufReader::new(child.stdout.take().context("it has no output")?);
        let (send, lines) = channel();
        // Ends when the child has ended, or when nobody reads any more.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
        Ok(Self { child: child.into(), stdin, lines })
    }

    /// Waits until it is ready.
    pub(super) fn wait_ready(&mut self, stop: &Stop) -> Result<()> {
        let line = self.line(stop)?;
        anyhow::ensure!(line == READY, "a child process says {line:?}");
        Ok(())
    }

    /// Lets it begin.
    pub(super) fn go(&mut self) -> Result<()> {
        self.stdin.write_all(GO).context("can't tell a child process to begin")
    }

    /// Waits for its result.
    pub(super) fn result<T: DeserializeOwned>(&mut self, stop: &Stop) -> Result<T> {
        let line = self.line(stop)?;
        serde_json::from_str(&line).with_context(|| format!("a child process says {line:?}"))
    }

    fn line(&mut self, stop: &Stop) -> Result<String> {
        loop {
            stop.check()?;
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait().context("can't wait for a child process")?;
                    bail!("a child process ended with {status}");
                }
            }
        }
    }
}

/// The common arguments of a child process.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Part {
    /// `cgroup.procs` of the cgroup to be in.
    #[arg(long)]
    cgroup: PathBuf,
    /// How long to measure, in ms.
    #[arg(long)]
    pub(super) window_ms: u64,
}

impl Part {
    /// Returns the arguments of a child's part.
    pub(super) fn arguments(cgroup: &Path, window: Duration) -> Vec<String> {
        vec![format!("--cgroup={}", cgroup.display()), format!("--window-ms={}", window.as_millis())]
    }

    /// Runs in the child: enters the cgroup, and ties its life to its parent's. Must come before anything that takes
    /// memory.
    pub(super) fn enter(&self) -> Result<()> {
        set_parent_process_death_signal(Some(Signal::KILL)).context("can't be tied to the parent's life")?;
        std::fs::write(&self.cgroup, "0").with_context(|| format!("can't enter {}", self.cgroup.display()))
    }

    /// Returns the time to measure.
    pub(super) fn window(&self) -> Duration {
        Duration::from_millis(self.window_ms)
    }
}

/// Runs in the child: reports readiness, and waits until it may begin.
pub(super) fn say_ready() -> Result<()> {
    println!("{READY}");
    let mut measured = vec![0; GO.len()];
    std::io::stdin().read_exact(&mut measured).context("the parent has gone")
}

/// Runs in the child: prints its result.
pub(super) fn say_result(result: &impl Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(result)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Helper {
        Helper::start(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn a_child_begins_when_asked_and_gives_its_result() {
        let stop = Stop::never();
        let mut helper = shell("echo ready; read word; echo \"[\\\"$word\\\", 5]\"");
        helper.wait_ready(&stop).unwrap();
        helper.go().unwrap();
        assert_eq!(helper.result::<(String, u32)>(&stop).unwrap(), ("go".to_owned(), 5));
    }

    #[test]
    fn a_child_that_dies_is_an_error() {
        let error = shell("kill -9 $$").wait_ready(&Stop::never()).unwrap_err().to_string();
        assert!(error.contains("signal: 9"), "{error}");
        assert!(shell("echo x").wait_ready(&Stop::never()).is_err());
    }

    #[test]
    fn a_child_ends_with_its_handle() {
        let helper = shell("exec sleep 1000");
        let pid = helper.child.id();
        drop(helper);
        assert!(!Path::new(&format!("/proc/{pid}")).exists());
    }
}
