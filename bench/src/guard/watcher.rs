//! `pagekeeper guard --json` as a child process: started, observed until it has found its target,
//! and ended with its summary.
//!
//! Ends with its handle, and with the thread that started it. Fails with the guard's output.

use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::mariadb::with_parent;
use crate::peers::InstalledProgram;
use crate::running::RunningChild;

/// A running guard.
pub(super) struct RunningGuard {
    child: RunningChild,
    seen: Arc<Mutex<Option<WatchedLogs>>>,
    lines: std::thread::JoinHandle<std::io::Result<Option<Value>>>,
}

/// The log files that a guard watches, by its last tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WatchedLogs {
    /// Watched log files.
    pub(super) files: u64,
    /// Log files left out.
    pub(super) left_out: u64,
}

/// The guard's use, by its own account.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GuardUsage {
    /// CPU time in percent of a core.
    pub(super) cpu_percent: f64,
    /// Largest memory, in bytes.
    pub(super) memory_bytes: f64,
}

impl RunningGuard {
    /// Starts a guard and returns once it has found the databases that the arguments name.
    pub(super) fn start(pagekeeper: &InstalledProgram, arguments: &[&str]) -> Result<Self> {
        let mut child = with_parent(&pagekeeper.path)
            .args(["guard", "--json"])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("can't start pagekeeper guard")?;
        let mut stdout = BufReader::new(child.stdout.take().context("it has no output")?);
        let found = wait_for_found(&mut stdout);
        // The guard's pipe must not fill.
        let seen = Arc::default();
        let of_ticks = Arc::clone(&seen);
        let lines = std::thread::spawn(move || follow(stdout, &of_ticks));
        let watcher = Self { child: child.into(), seen, lines };
        found?;
        Ok(watcher)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the log files of its last tick; `None` before the first.
    pub(super) fn watched(&self) -> Option<WatchedLogs> {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it by SIGTERM.
    pub(super) fn stop(mut self) -> Result<GuardUsage> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).context("can't stop the guard")?;
        self.child.wait().context("can't wait for the guard")?;
        let lines = std::mem::replace(&mut self.lines, std::thread::spawn(|| Ok(None)));
        let summary = lines.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let summary = summary.context("the guard ended without a summary")?;
        used(&summary).with_context(|| format!("not a summary: {summary}"))
    }
}

fn used(summary: &Value) -> Option<GuardUsage> {
    Some(GuardUsage {
        cpu_percent: summary["cpu_percent"].as_f64()?,
        memory_bytes: summary["memory_peak_bytes"].as_f64()?,
    })
}

fn event_in(line: &str) -> Option<Value> {
    serde_json::from_str(line).ok()
}

fn wait_for_found(stdout: &mut BufReader<ChildStdout>) -> Result<()> {
    let mut said = String::new();
    loop {
        let from = said.len();
        if stdout.read_line(&mut said).context("can't read the guard's output")? == 0 {
            anyhow::bail!("the guard ended before it found anything: {said}");
        }
        if event_in(&said[from..]).is_some_and(|event| event["event"] == "found") {
            return Ok(());
        }
    }
}

fn watched(tick: &Value) -> Option<WatchedLogs> {
    Some(WatchedLogs { files: tick["files"].as_u64()?, left_out: tick["left_out_files"].as_u64()? })
}

/// Reads all output, keeps the last tick, and returns the summary.
fn follow(stdout: impl BufRead, seen: &Mutex<Option<WatchedLogs>>) -> std::io::Result<Option<Value>> {
    let mut summary = None;
    for line in stdout.lines() {
        let Some(event) = event_in(&line?) else { continue };
        if event["event"] == "tick" {
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = watched(&event);
        } else if event["event"] == "summary" {
            summary = Some(event);
        }
    }
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_and_the_last_tick_are_found_among_the_events() {
        let said = "{\"event\":\"tick\",\"files\":3,\"left_out_files\":0}\n\
            {\"event\":\"tick\",\"files\":4096,\"left_out_files\":7}\n\
            {\"event\":\"summary\",\"cpu_percent\":0.25,\"memory_peak_bytes\":4096}\n";
        let seen = Mutex::new(None);
        let summary = follow(said.as_bytes(), &seen).unwrap().unwrap();
        assert_eq!(used(&summary), Some(GuardUsage { cpu_percent: 0.25, memory_bytes: 4096.0 }));
        assert_eq!(seen.into_inner().unwrap(), Some(WatchedLogs { files: 4096, left_out: 7 }));
        let seen = Mutex::new(None);
        assert_eq!(follow("{\"event\":\"start\"}\n".as_bytes(), &seen).unwrap(), None);
        assert_eq!(seen.into_inner().unwrap(), None);
        assert_eq!(used(&serde_json::json!({"cpu_percent": 1.0})), None);
    }
}
