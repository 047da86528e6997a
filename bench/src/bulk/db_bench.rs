//! `db_bench` as a process: starts it with output to files, waits for it, and parses numbers from
//! its lines.
//!
//! Invariant: it is killed with its handle. Fails with the end of its output.

use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::running::RunningChild;
use crate::scratch::StopRequest;

/// A `db_bench` that has ended.
pub(super) struct DbBenchOutput {
    pub(super) status: ExitStatus,
    pub(super) out: String,
    pub(super) err: String,
}

/// Runs a command to its end and checks for that every `interval`. Its output goes to `output` with
/// the extensions `.out` and `.err`.
pub(super) fn run(
    mut command: Command,
    output: &Path,
    interval: Duration,
    stop: &StopRequest,
) -> Result<DbBenchOutput> {
    let file = |kind: &str| {
        let path = output.with_extension(kind);
        File::create(&path).with_context(|| format!("can't make {}", path.display()))
    };
    command.stdin(Stdio::null()).stdout(file("out")?).stderr(file("err")?);
    let mut running = RunningChild::from(command.spawn().context("can't start db_bench")?);
    let status = loop {
        if let Some(status) = running.try_wait().context("can't wait for db_bench")? {
            break status;
        }
        stop.sleep(interval)?;
    };
    let said = |kind: &str| {
        String::from_utf8_lossy(&std::fs::read(output.with_extension(kind)).unwrap_or_default()).into_owned()
    };
    Ok(DbBenchOutput { status, out: said("out"), err: said("err") })
}

/// Returns the end of a text.
pub(super) fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// Returns the number before `unit` in a line.
pub(super) fn number_before(line: &str, unit: &str) -> Option<f64> {
    line.split(unit).next()?.split_whitespace().last()?.parse().ok()
}

/// Returns the number after `name`, with or without a comma behind it.
pub(super) fn number_behind(text: &str, name: &str) -> Option<f64> {
    text.split_once(name)?.1.split_whitespace().next()?.trim_end_matches(',').parse().ok()
}
