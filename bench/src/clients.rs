//! Clients in closed loops: each waits for its commit before it makes the next.
//!
//! A server's client is its own program. It changes a row that nobody else uses, so its latency is
//! the wait for the sync, and prints a line after each change. It ends with its value, and with the
//! thread that started it. Fails where a client fails.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::drive::join;
use crate::mariadb::with_parent;
use crate::running::RunningChild;

/// Clients of a server, at most.
pub(crate) const CLIENTS_MAX: u32 = 8;
/// Makes a row for each client.
pub(crate) const COUNTER_TABLE_SQL: &str = "CREATE TABLE counted (id INT PRIMARY KEY, n INT);
INSERT INTO counted VALUES (1,0),(2,0),(3,0),(4,0),(5,0),(6,0),(7,0),(8,0)";

/// A commit: when it ended, in seconds since the start, and its latency.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimedCommit {
    pub(crate) end: f64,
    pub(crate) took: Duration,
}

/// Makes one commit.
pub(crate) type CommitClient<'a> = Box<dyn FnMut() -> Result<()> + Send + 'a>;

/// Returns a command whose output comes line by line.
pub(crate) fn line_buffered(program: impl AsRef<OsStr>) -> Command {
    let mut command = with_parent("stdbuf");
    command.arg("--output=L").arg(program);
    command
}

/// Returns a client that changes a row again and again.
pub(crate) fn of_row(mut command: Command, row: u32) -> Result<CommitClient<'static>> {
    let statement = format!("UPDATE counted SET n=n+1 WHERE id={row}; SELECT 1;");
    let yes = with_parent("yes").arg(statement).stdout(Stdio::piped()).spawn();
    let mut yes = RunningChild::from(yes.context("can't start yes")?);
    let statements = yes.stdout.take().context("yes has no output")?;
    let started = command.stdin(statements).stdout(Stdio::piped()).spawn();
    let mut client = RunningChild::from(started.context("can't start a client")?);
    let mut lines = BufReader::new(client.stdout.take().context("the client has no output")?);
    let mut line = String::new();
    Ok(Box::new(move || {
        let _running = (&yes, &client);
        line.clear();
        let count = lines.read_line(&mut line).context("can't read what a client says")?;
        ensure!(count > 0, "a client ended by itself");
        Ok(())
    }))
}

/// Has each client commit until `stop`, with a pause in between. The first commit of each does not
/// count: it connects.
pub(crate) fn commit_until(
    stop: &AtomicBool,
    clients: Vec<CommitClient<'_>>,
    pause: Duration,
    first: Instant,
) -> Result<Vec<TimedCommit>> {
    std::thread::scope(|scope| {
        let threads = clients.into_iter().map(|mut commit| {
            scope.spawn(move || -> Result<Vec<TimedCommit>> {
                let mut commits = Vec::new();
                commit()?;
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(pause);
                    let began = Instant::now();
                    commit()?;
                    commits.push(TimedCommit { end: first.elapsed().as_secs_f64(), took: began.elapsed() });
                }
                Ok(commits)
            })
        });
        let threads: Vec<_> = threads.collect();
        Ok(threads.into_iter().map(join).collect::<Result<Vec<_>>>()?.concat())
    })
}
