//! The loads beside a copy: programs that commit on the disk, and the latency of each commit.
//!
//! Invariants: servers sync at each commit, and end with their value. A closed loop waits for a
//! commit before it makes the next; its latency is that of one call. A commit that is due counts
//! from when it was due.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pagekeeper_testing::servers::{Etcd, LoggedServer as _, PostgreSql};

use crate::BenchRun;
use crate::clients::{self, CLIENTS_MAX, COUNTER_TABLE_SQL, CommitClient, TimedCommit, line_buffered};
use crate::mariadb::MariaDbServer;
use crate::peers::{InstalledProgram, run as run_program};

/// Bytes of a commit of the single writer, of an append, and of one of the commits that are due.
const RECORD_BYTES: usize = 4096;
const SMALL_RECORD_BYTES: usize = 512;
/// The pauses between two commits of the single writer, and between two appends.
const COMMIT_PAUSE: Duration = Duration::from_millis(2);
const APPEND_PAUSE: Duration = Duration::from_millis(1);
/// Commits that are due each second, and the number of threads that wait at most.
const DUE_COMMITS_PER_SECOND: u32 = 1500;
const WAITING_COMMITS_MAX: u64 = 64;
/// Bytes of a value in etcd.
const VALUE_BYTES: usize = 2048;

/// The load of a case; servers have [`CLIENTS_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum BesideLoad {
    /// A sync for each 4 KiB
    OneWriter,
    /// 1,500 commits a second are due
    Due,
    Mariadb,
    Postgresql,
    Etcd,
    /// 4 KiB each millisecond, never synced
    Appends,
}

/// A load that is running.
pub(super) enum RunningLoad {
    Log(BesideLoad, PathBuf),
    MariaDb(MariaDbServer),
    PostgreSql { _server: PostgreSql, port: String },
    Etcd(Etcd),
}

impl RunningLoad {
    /// Starts the load's server on a disk, with so many bytes that a backup would copy. Returns
    /// `None` and notes what is missing where it is not installed.
    pub(super) fn start(
        run: &mut BenchRun,
        load: BesideLoad,
        disk: &Path,
        bytes: u64,
    ) -> Result<Option<Self>> {
        let needs: &[&str] = match load {
            BesideLoad::Mariadb => &["mariadbd", "mariadb-install-db", "mariadb", "stdbuf"],
            BesideLoad::Postgresql => &["postgres", "psql", "stdbuf"],
            BesideLoad::Etcd => &["etcd"],
            _ => &[],
        };
        if !run.has(needs) {
            return Ok(None);
        }
        let home = disk.join("server");
        // A server's user has to come here.
        disk.ancestors().take(3).try_for_each(crate::stream::open_to_others)?;
        Ok(Some(match load {
            BesideLoad::OneWriter | BesideLoad::Due | BesideLoad::Appends => {
                Self::Log(load, disk.join("log"))
            }
            BesideLoad::Mariadb => {
                let mariadbd = run.peer("mariadbd").context("mariadbd has gone")?;
                let server = MariaDbServer::with_logs(&mariadbd, disk, &run.stop)?;
                server.make_table("copied", bytes)?;
                server.prepare_committer()?;
                Self::MariaDb(server)
            }
            BesideLoad::Postgresql => {
                let mut server = PostgreSql::start(&home);
                server.put(bytes);
                let said = std::fs::read_to_string(home.join("data/postmaster.pid"))?;
                let port = said.lines().nth(3).context("postgres says no port")?.to_owned();
                run_program(psql(&port)?.args(["-c", COUNTER_TABLE_SQL]))?;
                Self::PostgreSql { _server: server, port }
            }
            BesideLoad::Etcd => Self::Etcd(Etcd::start(&home)),
        }))
    }

    /// Returns the program that backs the server up, and where that finds the server: a socket or a
    /// port.
    pub(super) fn backup(&self) -> (&'static str, String) {
        match self {
            Self::MariaDb(server) => ("mariabackup", server.socket().to_string_lossy().into_owned()),
            Self::PostgreSql { port, .. } => ("pg_basebackup", port.clone()),
            Self::Log(..) | Self::Etcd(_) => ("", String::new()),
        }
    }

    /// Removes a log, so that the next sample begins a new one.
    pub(super) fn clean_up(&self) -> Result<()> {
        let Self::Log(_, path) = self else { return Ok(()) };
        std::fs::remove_file(path).context("can't remove a file")
    }

    /// Commits until `stop`.
    pub(super) fn commit_until(&self, stop: &AtomicBool, first: Instant) -> Result<Vec<TimedCommit>> {
        let rows = |client: &dyn Fn() -> Result<Command>| -> Result<Vec<CommitClient<'_>>> {
            (1..=CLIENTS_MAX).map(|row| clients::of_row(client()?, row)).collect()
        };
        match self {
            Self::Log(BesideLoad::Due, path) => commit_what_is_due(stop, path, first),
            Self::Log(load, path) => {
                let mut log = new_log(path)?;
                let is_synced = *load == BesideLoad::OneWriter;
                let pause = if is_synced { COMMIT_PAUSE } else { APPEND_PAUSE };
                let commit = move || write_log(&mut log, &[7; RECORD_BYTES], is_synced);
                clients::commit_until(stop, vec![Box::new(commit)], pause, first)
            }
            Self::MariaDb(server) => {
                clients::commit_until(stop, rows(&|| Ok(server.committer()))?, Duration::ZERO, first)
            }
            Self::PostgreSql { port, .. } => {
                clients::commit_until(stop, rows(&|| psql(port))?, Duration::ZERO, first)
            }
            Self::Etcd(server) => {
                let value = "7".repeat(VALUE_BYTES);
                let client = |key: u32| -> CommitClient<'_> {
                    let value = &value;
                    Box::new(move || {
                        server.put_small(&key.to_string(), value);
                        Ok(())
                    })
                };
                clients::commit_until(stop, (0..CLIENTS_MAX).map(client).collect(), Duration::ZERO, first)
            }
        }
    }
}

fn psql(port: &str) -> Result<Command> {
    let mut command = line_buffered(InstalledProgram::find("psql").context("psql has gone")?.path);
    command.args(["-qAtX", "-h127.0.0.1", "-Upostgres", "-dpostgres", "-p", port]);
    Ok(command)
}

fn new_log(path: &Path) -> Result<File> {
    File::create_new(path).with_context(|| format!("can't make {}", path.display()))
}

fn write_log(log: &mut File, bytes: &[u8], is_synced: bool) -> Result<()> {
    log.write_all(bytes)
        .and_then(|()| if is_synced { log.sync_data() } else { Ok(()) })
        .context("can't commit")
}

/// Commits until `stop`: each sync takes all commits that are due, up to [`WAITING_COMMITS_MAX`].
fn commit_what_is_due(stop: &AtomicBool, path: &Path, first: Instant) -> Result<Vec<TimedCommit>> {
    let mut log = new_log(path)?;
    let mut commits = Vec::new();
    let due_at = |number: u64| number as f64 / f64::from(DUE_COMMITS_PER_SECOND);
    let mut done: u64 = 0;
    while !stop.load(Ordering::Relaxed) {
        let now = first.elapsed().as_secs_f64();
        let waiting = (0..WAITING_COMMITS_MAX).take_while(|more| due_at(done + more) <= now).count();
        if waiting == 0 {
            std::thread::sleep(Duration::from_secs_f64((due_at(done) - now).max(0.0)));
            continue;
        }
        write_log(&mut log, &vec![7; waiting * SMALL_RECORD_BYTES], true)?;
        let end = first.elapsed().as_secs_f64();
        for _ in 0..waiting {
            commits.push(TimedCommit { end, took: Duration::from_secs_f64((end - due_at(done)).max(0.0)) });
            done += 1;
        }
    }
    Ok(commits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_that_is_late_counts_from_when_it_was_due() {
        let dir = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let late = Duration::from_millis(200);
        let first = Instant::now().checked_sub(late).unwrap();
        let commits = std::thread::scope(|scope| {
            let committer = scope.spawn(|| commit_what_is_due(&stop, &dir.path().join("log"), first));
            std::thread::sleep(Duration::from_millis(300));
            stop.store(true, Ordering::Relaxed);
            committer.join().unwrap().unwrap()
        });
        assert!(commits[0].took >= Duration::from_millis(199), "{:?}", commits[0]);
        assert!(commits.windows(2).all(|pair| pair[0].end <= pair[1].end));
    }
}
