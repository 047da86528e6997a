//! The demo's processes: this program, started again with a role.
//!
//! Invariants: every child is killed and waited for when its [`Child`] is dropped, and the kernel kills it when
//! this process is killed. Each child is in its own process group, so Ctrl-C reaches only the parent, which then
//! ends the children. Each writes lines of JSON to a pipe, and its errors to a file in the demo's directory. Fails
//! with the last lines that the child wrote as errors.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use pagekeeper_kernel::text::escaped;

use anyhow::{Context, bail};
use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde::Deserialize;

use super::logs::Pages;
use super::{engine, store};

/// This program, even if its file was replaced or removed.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// The role of a child process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Role {
    /// Writes, and leaves its pages to the kernel.
    Engine,
    /// Writes, and releases its pages itself.
    ReleasingEngine,
    /// Keeps the logs out of the page cache.
    Guard,
    /// Commits to a page store.
    Store,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::ReleasingEngine => "releasing-engine",
            Self::Guard => "guard",
            Self::Store => "store",
        }
    }
}

/// A message from a child.
#[derive(Debug)]
pub(super) enum Message {
    /// An engine's report.
    Engine(engine::Report),
    /// A line of `pagekeeper guard --json`.
    Guard(serde_json::Value),
    /// A report of the store's committed changes.
    Store(store::Report),
}

impl Message {
    fn parse(role: Role, line: &str) -> serde_json::Result<Self> {
        fn read<'a, T: Deserialize<'a>>(
            line: &'a str,
            wrap: fn(T) -> Message,
        ) -> serde_json::Result<Message> {
            serde_json::from_str(line).map(wrap)
        }
        match role {
            Role::Engine | Role::ReleasingEngine => read(line, Self::Engine),
            Role::Guard => read(line, Self::Guard),
            Role::Store => read(line, Self::Store),
        }
    }
}

/// Does the work of a child process in its role, until its parent has ended.
pub(super) fn play(role: Role, dir: &Path, pids: &[u32]) -> anyhow::Result<()> {
    // It is kept over execve(2), so it holds for the guard too.
    set_parent_process_death_signal(Some(Signal::KILL)).context("can't tie this process to its parent")?;
    match role {
        Role::Engine => engine::run(dir, Pages::Left),
        Role::ReleasingEngine => engine::run(dir, Pages::Released),
        Role::Store => store::run(dir),
        Role::Guard => {
            let mut guard = Command::new(THIS_PROGRAM);
            guard.arg0("pagekeeper").args(["guard", "--json", "--profile", "generic"]);
            Err(with_pids(&mut guard, pids).exec()).context("can't start the guard")
        }
    }
}

fn with_pids<'a>(command: &'a mut Command, pids: &[u32]) -> &'a mut Command {
    command.args(pids.iter().map(|pid| format!("--pid={pid}")))
}

/// A running child.
pub(super) struct Child {
    role: Role,
    process: std::process::Child,
    errors: PathBuf,
}

impl Child {
    /// Starts a child that works on the files in `dir`, and on `pids` if it is the guard. Its messages go to
    /// `messages`, its errors to a file in `scratch`.
    pub(super) fn start(
        role: Role,
        dir: &Path,
        pids: &[u32],
        scratch: &Path,
        messages: &Sender<Message>,
    ) -> anyhow::Result<Self> {
        let errors = scratch.join(format!("{}.errors", role.name()));
        let errors_file =
            File::create(&errors).with_context(|| format!("can't create {}", escaped(&errors)))?;
        let mut command = Command::new(THIS_PROGRAM);
        command.arg0("pagekeeper").args(["demo", "--role", role.name(), "--dir"]).arg(dir);
        with_pids(&mut command, pids);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors_file).process_group(0);
        let mut process = command.spawn().with_context(|| format!("can't start the {}", role.name()))?;
        let lines = process.stdout.take().map(BufReader::new);
        let messages = messages.clone();
        // The thread ends with the child, or with the receiver of messages. A line that can't be parsed (cut off
        // by a kill) may be ignored.
        thread::spawn(move || {
            for line in lines.into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
                if let Ok(message) = Message::parse(role, &line)
                    && messages.send(message).is_err()
                {
                    return;
                }
            }
        });
        Ok(Self { role, process, errors })
    }

    /// Returns its process ID.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Fails if the child has ended, with the errors that it wrote.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let Some(status) = self.process.try_wait()? else {
            return Ok(());
        };
        let words = std::fs::read_to_string(&self.errors).unwrap_or_default();
        let words = words.trim();
        bail!(
            "the {} ended early ({status}){}{words}",
            self.role.name(),
            if words.is_empty() { "" } else { ": " }
        );
    }

    /// Ends the child by SIGTERM, and waits for it at most for `wait`.
    pub(super) fn end(&mut self, wait: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + wait;
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("no process id")?;
        kill_process(pid, Signal::TERM).with_context(|| format!("can't end the {}", self.role.name()))?;
        while self.process.try_wait()?.is_none() {
            if Instant::now() >= end {
                bail!("the {} did not end within {} s of SIGTERM", self.role.name(), wait.as_secs());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // This fails only if the child has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
