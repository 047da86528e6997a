//! The parent's side of a timed child: it requests one batch at a time, so that several children take turns within
//! milliseconds.
//!
//! Invariants: all are on one processor; each ends with its handle, and with the thread that started it. Fails where a
//! child dies or prints something unexpected.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::running::Running;

/// The child.
pub(super) struct Timed {
    child: Running,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Timed {
    /// Starts it on the last of the allowed processors.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("can't start this program again")?;
        let stdin = child.stdin.take().context("it has no input")?;
        let stdout = BufReader::new(child.stdout.take().context("it has no output")?);
        let timed = Self { child: child.into(), stdin, stdout };
        let allowed = sched_getaffinity(None).context("can't tell the processors")?;
        let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| allowed.is_set(*cpu)).context("no processor")?;
        let mut one = CpuSet::new();
        one.set(last);
        sched_setaffinity(Some(Pid::from_child(&timed.child)), &one).context("can't choose a processor")?;
        Ok(timed)
    }

    /// Requests something, `number` times or with that name, and returns the nanoseconds it took.
    pub(super) fn ask(&mut self, what: &str, number: &str) -> Result<f64> {
        let mut line = format!("{what} {number}\n");
        self.stdin.write_all(line.as_bytes()).context("a child process has gone")?;
        line.clear();
        self.stdout.read_line(&mut line).context("a child process does not answer")?;
        line.trim().parse().with_context(|| format!("a child process says {line:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_asked_and_answers_or_it_is_an_error() {
        let shell = |script: &str| Timed::start(Command::new("sh").args(["-c", script])).unwrap();
        let mut child = shell("read what number; echo \"$number\"; read what; echo what?");
        assert!((child.ask("pread", "17").unwrap() - 17.0).abs() < f64::EPSILON);
        let error = child.ask("pread", "17").unwrap_err();
        assert!(error.to_string().contains("what?"), "{error:#}");
        assert!(shell("exit").ask("pread", "17").is_err());
    }
}
