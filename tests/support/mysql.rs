//! A private `MySQL` server for one test, unpacked as `make test-mysql` does it, and `mysqlbinlog`
//! as its follower.
//!
//! Invariants: binlogs are of 16 MiB and synced at every commit, as is the redo log, which is
//! buffered, as by default; neither process outlives its handle or the thread that started it.

use super::{MIB, eventually};
use pagekeeper_testing::servers::MySql;
use pagekeeper_testing::servers::unpacked::{self, enter};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Programs that it needs beside the unpacked ones.
pub(crate) const REQUIRED_PROGRAMS: [&str; 7] =
    ["sysbench", "mariadb", "fincore", "setpriv", "unshare", "mount", "chroot"];

/// Largest size of one binlog, in bytes, except for the end of its last transaction.
pub(crate) const BINLOG_BYTES: u64 = 16 * MIB;

/// Size of the redo log, in bytes.
pub(crate) const REDO_BYTES: u64 = 96 * MIB;

/// The path of its data, as it sees it.
pub(crate) const DATA: &str = MySql::INNER_DATA_PATH;

/// A running server.
pub(crate) struct Server {
    unpacked: PathBuf,
    home: PathBuf,
    child: Child,
}

impl Server {
    /// Makes a data directory under `parent` and starts the server of the `unpacked` folder on it.
    pub(crate) fn start(unpacked: &Path, parent: &Path) -> Self {
        let home = parent.join("mysql");
        unpacked::make_home(&home);
        MySql::initialize(unpacked, &home);
        let child = begin(unpacked, &home);
        let mut server = Self { unpacked: unpacked.to_path_buf(), home, child };
        server.wait_until_it_answers();
        server
    }

    /// Kills it, as a crash of the program does.
    pub(crate) fn crash(&mut self) {
        self.child.kill().expect("kill mysqld");
        self.child.wait().expect("wait for the server");
    }

    /// Starts it again on its data, and waits for its recovery.
    pub(crate) fn start_again(&mut self) {
        self.child = begin(&self.unpacked, &self.home);
        self.wait_until_it_answers();
    }

    fn wait_until_it_answers(&mut self) {
        eventually("the server answers", Duration::from_secs(300), || {
            let ended = self.child.try_wait().expect("wait for the server");
            assert!(ended.is_none(), "mysqld ended: {ended:?}: {}", said(&self.home, "log.err"));
            self.try_query("SELECT 1").ok()
        });
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the values of the first column of all rows.
    pub(crate) fn query(&self, sql: &str) -> Vec<String> {
        self.try_query(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn try_query(&self, sql: &str) -> Result<Vec<String>, String> {
        let output = Command::new("mariadb")
            .args(["--no-defaults", "--batch", "--skip-column-names", "--user=root", "--execute", sql])
            .arg(format!("--socket={}", self.home.join("run/socket").display()))
            .output()
            .expect("run mariadb");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect())
    }

    /// Returns its binlogs, oldest first.
    pub(crate) fn binlogs(&self) -> Vec<PathBuf> {
        let binlog = |name: &str| name.strip_prefix("binlog.").is_some_and(|end| end.parse::<u32>().is_ok());
        files(&self.home.join("data"), binlog)
    }

    /// Returns the files of the redo log, its spares included.
    pub(crate) fn redo(&self) -> Vec<PathBuf> {
        files(&self.home.join("data/#innodb_redo"), |name| name.starts_with("#ib_redo"))
    }

    /// Follows the binlogs from the first one on, in the way of a replica that keeps copies of
    /// them.
    pub(crate) fn follow(&self) -> Follower {
        let child = enter(&self.unpacked, &self.home)
            .args(["/usr/bin/mysqlbinlog", "--no-defaults", "--user=root", "--socket=/run/socket"])
            .args(["--read-from-remote-server", "--raw", "--stop-never", "--result-file=/out/"])
            .arg("binlog.000001")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(self.home.join("run/follower.err")).expect("make a file"))
            .spawn()
            .expect("start mysqlbinlog");
        Follower { home: self.home.clone(), child }
    }

    /// Returns the bytes that the only dump thread has read from a device so far.
    pub(crate) fn dump_thread_device_bytes(&self) -> u64 {
        let threads = self.query(
            "SELECT THREAD_OS_ID FROM performance_schema.threads WHERE PROCESSLIST_COMMAND LIKE 'Binlog Dump%'",
        );
        assert_eq!(threads.len(), 1, "one follower");
        let io = format!("/proc/{}/task/{}/io", self.pid(), threads[0]);
        super::io_counter(Path::new(&io), "read_bytes")
    }
}

impl super::sysbench::LoadedServer for Server {
    fn socket(&self) -> PathBuf {
        self.home.join("run/socket")
    }

    fn execute(&self, sql: &str) {
        self.query(sql);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A running `mysqlbinlog`.
pub(crate) struct Follower {
    home: PathBuf,
    child: Child,
}

impl Follower {
    /// Returns its copies of the binlogs, oldest first.
    pub(crate) fn copies(&mut self) -> Vec<PathBuf> {
        let ended = self.child.try_wait().expect("wait for mysqlbinlog");
        assert!(ended.is_none(), "mysqlbinlog ended: {ended:?}: {}", said(&self.home, "follower.err"));
        files(&self.home.join("out"), |name| name.starts_with("binlog."))
    }

    /// Stops it (SIGSTOP), like a hung peer with an open connection.
    pub(crate) fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Lets it continue.
    pub(crate) fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signal mysqlbinlog");
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the server on its data.
fn begin(unpacked: &Path, home: &Path) -> Child {
    enter(unpacked, home)
        .arg("/usr/sbin/mysqld")
        .args(MySql::COMMON_ARGUMENTS)
        .args(["--skip-networking", "--mysqlx=OFF", "--socket=/run/socket", "--pid-file=/run/pid"])
        .args(["--log-error=/run/log.err", "--server-id=1"])
        .args(["--log-bin=binlog", "--sync-binlog=1", "--net-write-timeout=3600"])
        .arg(format!("--max-binlog-size={BINLOG_BYTES}"))
        .arg(format!("--innodb-redo-log-capacity={REDO_BYTES}"))
        .args(["--innodb-flush-log-at-trx-commit=1", "--innodb-buffer-pool-size=128M"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("start mysqld")
}

fn said(home: &Path, file: &str) -> String {
    std::fs::read_to_string(home.join("run").join(file)).unwrap_or_default()
}

fn files(directory: &Path, matches: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("list a directory of the server")
        .map(|entry| entry.expect("list a directory of the server").path())
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(&matches))
        .collect();
    files.sort();
    files
}
