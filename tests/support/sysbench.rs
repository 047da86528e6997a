//! sysbench's `oltp_read_write` against a private server: tables, and a load that runs until it is
//! stopped.
//!
//! A load is a child process that ends with its handle.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Tables of the load, `sbtest1` and up, in the schema `load`.
pub(crate) const TABLES: usize = 4;
const ROWS: usize = 10_000;
const THREADS: usize = 8;

/// A server that accepts a load, as root without a password.
pub(crate) trait LoadedServer {
    /// Returns its socket.
    fn socket(&self) -> PathBuf;

    /// Runs statements that return nothing.
    fn execute(&self, sql: &str);
}

/// Makes the schema and fills its tables.
pub(crate) fn prepare(server: &impl LoadedServer) {
    server.execute("CREATE DATABASE `load`");
    let output = sysbench(server).arg("prepare").output().expect("run sysbench");
    assert!(output.status.success(), "sysbench prepare: {}", String::from_utf8_lossy(&output.stdout));
}

/// Returns the table names in the syntax of `CHECKSUM TABLE`.
pub(crate) fn tables() -> String {
    (1..=TABLES).map(|number| format!("`load`.sbtest{number}")).collect::<Vec<_>>().join(", ")
}

fn sysbench(server: &impl LoadedServer) -> Command {
    let mut command = Command::new("sysbench");
    command
        .arg("oltp_read_write")
        .arg(format!("--mysql-socket={}", server.socket().display()))
        .args(["--mysql-user=root", "--mysql-db=load", "--db-ps-mode=disable", "--rand-type=uniform"])
        .arg(format!("--tables={TABLES}"))
        .arg(format!("--table-size={ROWS}"))
        .arg(format!("--threads={THREADS}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// A running load.
pub(crate) struct Load {
    child: Child,
}

impl Load {
    /// Starts `oltp_read_write` with more writes per transaction than by default, so that
    /// binlogs of 16 MiB fill within seconds even if synced commits are slow.
    pub(crate) fn start(server: &impl LoadedServer) -> Self {
        Self::start_with(server, &["--time=600"])
    }

    /// Runs at up to this many transactions per second, with about 20 KiB of binlog each, for
    /// up to an hour.
    pub(crate) fn at_rate(server: &impl LoadedServer, rate: u32) -> Self {
        Self::start_with(server, &["--time=3600", &format!("--rate={rate}")])
    }

    fn start_with(server: &impl LoadedServer, arguments: &[&str]) -> Self {
        let child = sysbench(server)
            .args(arguments)
            .args(["--range-selects=off", "--point-selects=2"])
            .args(["--index-updates=15", "--non-index-updates=15", "--delete-inserts=10"])
            .arg("run")
            .spawn()
            .expect("start sysbench");
        Self { child }
    }

    /// Returns a function that stops it (true: SIGSTOP) or lets it continue.
    pub(crate) fn pause(&self) -> impl Fn(bool) + use<> {
        let pid = rustix::process::Pid::from_child(&self.child);
        move |stop| {
            let signal = if stop { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
            rustix::process::kill_process(pid, signal).expect("signal sysbench");
        }
    }

    /// Panics if the load has ended, which means that the server refused it.
    pub(crate) fn check(&mut self) {
        let ended = self.child.try_wait().expect("wait for sysbench");
        assert!(ended.is_none(), "sysbench ended by itself: {ended:?}");
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
