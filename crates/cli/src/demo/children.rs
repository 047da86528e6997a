//! The demo's processes: this same program, started anew with a role.
//!
//! Invariants: every child is killed and waited for when its [`Child`] is dropped, and by the kernel when this process
//! is killed. Children are in process groups of their own, so that Ctrl-C reaches the parent alone, which then ends
//! them. Each writes lines of JSON to a pipe, and its errors to a file in the demo's directory.
//! Fails with the child's own last words.

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

/// This program, whatever became of its file.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// What a child is.
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

/// What a child says.
#[derive(Debug)]
pub(super) enum Message {
    /// An engine's report.
    Engine(engine::Report),
    /// A line of `pagekeeper guard --json`.
    Guard(serde_json::Value),
    /// What the store's process has committed.
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

/// What a child process does: its role, until its parent is gone.
pub(super) fn play(role: Role, dir: &Path, pids: &[u32]) -> anyhow::Result<()> {
    // Kept over execve(2), so it holds for the guard too.
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
    /// Starts a child that works on the files in `dir`, and on `pids` if it is the guard; its messages go to
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
        // Ends with the child, or with the listener. A line that is no message (cut off by a kill) is no loss.
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

    /// Its process id.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Fails if the child has ended, with its last words.
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

    /// Asks the child to end by SIGTERM, and waits for it until `wait` has passed.
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
        // Fails only for a child that has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
