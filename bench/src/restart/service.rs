//! A service whose restart is measured, and its process.
//!
//! Invariants: a service is killed, never stopped, unless it is a program that ends by itself
//! (`db_bench`). It ends with its handle, and with the thread that started it. Fails with the
//! program's status.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::engines::{RocksDbStart, SqliteStart, WiredTigerStart};
use super::servers::{EtcdStart, MariaDbStart, PostgreSqlStart};
use super::{LEARNED_NAME, RestartServer, START_TIMEOUT};
use crate::mariadb::with_parent;
use crate::running::RunningChild;
use crate::scratch::StopRequest;

/// Interval of asking a server whether it accepts queries.
const READY_INTERVAL: Duration = Duration::from_millis(20);

/// A service whose restart is measured.
pub(super) trait RestartedService {
    fn name(&self) -> &'static str;
    /// The name of its figure.
    fn ratio(&self) -> &'static str;
    /// The means that its page in the book recommends.
    fn means(&self) -> &'static str {
        LEARNED_NAME
    }
    fn programs(&self) -> &'static [&'static str];
    /// A header that it is built with.
    fn header(&self) -> Option<&'static str> {
        None
    }
    /// Creates an empty state in `dir`.
    fn prepare(&self, dir: &Path, stop: &StopRequest) -> Result<()>;
    /// Starts it behind these words; returns once it accepts queries.
    fn start(&self, dir: &Path, prefix: &[OsString], stop: &StopRequest) -> Result<RunningService>;
    /// Has it write what the next start recovers.
    fn write(&self, dir: &Path, running: &mut RunningService) -> Result<()>;
}

/// Returns a service that recovers about this many bytes.
pub(super) fn of(server: RestartServer, bytes: u64) -> Box<dyn RestartedService> {
    match server {
        RestartServer::Sqlite => Box::new(SqliteStart { bytes }),
        RestartServer::Postgresql => Box::new(PostgreSqlStart { bytes }),
        RestartServer::Etcd => Box::new(EtcdStart { bytes }),
        RestartServer::Wiredtiger => Box::new(WiredTigerStart { bytes }),
        RestartServer::Rocksdb => Box::new(RocksDbStart { bytes }),
        RestartServer::Mariadb => Box::new(MariaDbStart { bytes, is_direct: false }),
        RestartServer::MariadbDirect => Box::new(MariaDbStart { bytes, is_direct: true }),
    }
}

/// A running service.
pub(super) struct RunningService {
    child: RunningChild,
    /// The streams of a program that is driven line by line.
    lines: Option<(ChildStdin, BufReader<ChildStdout>)>,
    /// The port of a server that is asked by HTTP.
    pub(super) port: u16,
}

impl RunningService {
    /// Starts a server, and waits until it answers.
    pub(super) fn server(
        command: &mut Command,
        port: u16,
        stop: &StopRequest,
        answers: impl Fn() -> bool,
    ) -> Result<Self> {
        let mut running = Self { child: spawn(command.stdin(Stdio::null()))?, lines: None, port };
        let began = Instant::now();
        while !answers() {
            if let Some(status) = running.child.try_wait()? {
                bail!("the server ended with {status}");
            }
            ensure!(began.elapsed() < START_TIMEOUT, "the server does not answer");
            stop.sleep(READY_INTERVAL)?;
        }
        Ok(running)
    }

    /// Runs a program to its end.
    pub(super) fn finished(command: &mut Command) -> Result<Self> {
        let mut child = spawn(command.stdin(Stdio::null()))?;
        let status = child.wait()?;
        ensure!(status.success(), "it ended with {status}");
        Ok(Self { child, lines: None, port: 0 })
    }

    /// Starts a program that is driven line by line.
    pub(super) fn driven(command: &mut Command) -> Result<Self> {
        let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let lines = child.stdin.take().zip(child.stdout.take().map(BufReader::new));
        Ok(Self { child, lines, port: 0 })
    }

    /// Gives the program these lines, and waits for its line `answer`.
    pub(super) fn drive(&mut self, lines: &str, answer: &str) -> Result<()> {
        let (stdin, stdout) = self.lines.as_mut().context("it has no input")?;
        writeln!(stdin, "{lines}").context("it does not read")?;
        for line in stdout.lines() {
            if line.context("it does not answer")? == answer {
                return Ok(());
            }
        }
        bail!("the program has ended");
    }
}

fn spawn(command: &mut Command) -> Result<RunningChild> {
    Ok(command.spawn().context("can't start the service")?.into())
}

/// Returns a command behind these words that says nothing.
pub(super) fn behind(prefix: &[OsString], program: impl AsRef<OsStr>) -> Command {
    let mut command = match prefix {
        [] => with_parent(program),
        [first, rest @ ..] => {
            let mut command = with_parent(first);
            command.args(rest).arg(program);
            command
        }
    };
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Returns a command of a server that runs as its own user, and ends with the thread that starts it.
pub(super) fn as_user(prefix: &[OsString], user: &str, program: &Path) -> Command {
    let mut command = behind(prefix, "setpriv");
    let ids = [format!("--reuid={user}"), format!("--regid={user}")];
    command.args(ids).args(["--clear-groups", "--pdeathsig=KILL", "--"]).arg(program);
    command
}
