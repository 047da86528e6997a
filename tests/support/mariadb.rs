//! A private `MariaDB` server for one test: own data directory, socket, port and pid; a primary or
//! a real replica.
//!
//! Invariants: binlogs are of 16 MiB and synced at every commit, as is the redo log; a server never
//! outlives the thread that started it (also if that is killed), nor its handle.

use super::command::stdout_of;
use super::sysbench::LoadedServer;
use super::{MIB, eventually};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Programs that a server and its load need.
pub(crate) const REQUIRED_PROGRAMS: [&str; 6] =
    ["mariadbd", "mariadb-install-db", "mariadb", "sysbench", "fincore", "setpriv"];

/// Largest size of one binlog, in bytes, except for the end of its last transaction.
pub(crate) const BINLOG_BYTES: u64 = 16 * MIB;

/// Size of the redo ring, in bytes.
pub(crate) const REDO_BYTES: u64 = 48 * MIB;

/// The library of Debian's galera-4, on which its server depends.
pub(crate) const GALERA: &str = "/usr/lib/galera/libgalera_smm.so";

/// Arguments of `mariadb-install-db`, except for the place.
const INSTALL_ARGUMENTS: [&str; 6] = [
    "--no-defaults",
    "--user=mysql",
    "--skip-test-db",
    "--skip-name-resolve",
    "--auth-root-authentication-method=normal",
    "--innodb-log-file-size=4M",
];

// As /proc/PID/fdinfo shows them, in octal (open(2), x86-64).
const O_ACCMODE: u32 = 0o3;
const O_RDONLY: u32 = 0o0;
const O_DIRECT: u32 = 0o40_000;

/// Options to start a server.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    id: u32,
    redo_buffered: bool,
    replica: bool,
    relay_log: &'static str,
    galera: bool,
    arguments: Vec<String>,
    option_file: Option<PathBuf>,
    starter: Vec<OsString>,
}

impl Options {
    /// Starts a primary with a binlog; its redo log uses `O_DIRECT`, the default.
    pub(crate) fn primary() -> Self {
        Self {
            id: 1,
            redo_buffered: false,
            replica: false,
            relay_log: "relay",
            galera: false,
            arguments: Vec::new(),
            option_file: None,
            starter: Vec::new(),
        }
    }

    /// Starts a replica with relay logs of `BINLOG_BYTES` each, without a binlog.
    ///
    pub(crate) fn replica() -> Self {
        Self { id: 2, replica: true, ..Self::primary() }
    }

    /// Starts the first member of a Galera cluster with a binlog.
    pub(crate) fn galera() -> Self {
        Self { galera: true, ..Self::primary() }
    }

    /// Starts a replica whose relay log has this name.
    pub(crate) fn relay_log(mut self, name: &'static str) -> Self {
        self.relay_log = name;
        self
    }

    /// Gives the server one more argument.
    pub(crate) fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Has the server started by this command.
    pub(crate) fn started_by(mut self, starter: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.starter = starter.into_iter().map(Into::into).collect();
        self
    }

    /// Uses this option file, which must set the redo log's block size.
    pub(crate) fn option_file(mut self, file: PathBuf) -> Self {
        self.option_file = Some(file);
        self
    }

    /// Sets `innodb_log_file_buffering`.
    pub(crate) fn redo_buffered(mut self, on: bool) -> Self {
        self.redo_buffered = on;
        self
    }
}

/// A running server.
pub(crate) struct Server {
    home: PathBuf,
    port: u16,
    options: Options,
    child: Child,
}

/// A file that the server holds open.
#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    flags: u32,
}

impl Server {
    /// Creates a data directory under `parent` and starts a server on it.
    pub(crate) fn start(parent: &Path, options: Options) -> Self {
        let home = parent.join(if options.replica { "replica" } else { "primary" });
        std::fs::create_dir(&home).expect("make the server's directory");
        super::open_to_others(&home);
        install(&home.join("data"));
        // The server's log, socket and pid file are there.
        let run = home.join("run");
        std::fs::create_dir(&run).expect("make the server's directory");
        let status = Command::new("chown").arg("mysql:").arg(&run).status().expect("run chown");
        assert!(status.success(), "there is no user mysql");

        let port = free_port();
        let child = spawn(&home, port, &options);
        let mut server = Self { home, port, options, child };
        server.wait_until_ready();
        server
    }

    /// Ends the server by SIGKILL, as a crash does.
    pub(crate) fn kill9(&mut self) {
        self.child.kill().expect("kill the server");
        self.child.wait().expect("wait for the server");
    }

    /// Starts a killed server again on the same data, socket and port.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(&self.home, self.port, &self.options);
        self.wait_until_ready();
    }

    /// Stops the server as its operator does, and starts it on the same data with other options.
    pub(crate) fn restart_with(&mut self, options: Options) {
        self.signal(rustix::process::Signal::TERM);
        self.child.wait().expect("wait for the server");
        self.options = options;
        self.restart();
    }

    /// Stops every thread of the process (SIGSTOP), like a hung peer with open connections.
    pub(crate) fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Lets a frozen process continue.
    pub(crate) fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signal the server");
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the data directory, which has all logs.
    pub(crate) fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// Runs statements of any length by the `mariadb` client, one after the other.
    pub(crate) fn run_script(&self, sql: &str) {
        let mut client = Command::new("mariadb")
            .args(["--no-defaults", "--batch", "--user=root", "--max-allowed-packet=64M"])
            .arg(format!("--socket={}", self.socket().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("run mariadb");
        let mut input = client.stdin.take().expect("piped");
        input.write_all(sql.as_bytes()).expect("write to mariadb");
        drop(input);
        assert!(client.wait().expect("wait for mariadb").success(), "mariadb failed");
    }

    /// Runs one statement by the `mariadb` client; a row is its values by column name.
    pub(crate) fn query(&self, sql: &str) -> Vec<BTreeMap<String, String>> {
        self.try_query(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// Runs one statement like [`Self::query`]. Returns the client's message if the server refuses it
    /// or has ended.
    pub(crate) fn try_query(&self, sql: &str) -> Result<Vec<BTreeMap<String, String>>, String> {
        let output = Command::new("mariadb")
            .args(["--no-defaults", "--batch", "--user=root", "--execute", sql])
            .arg(format!("--socket={}", self.socket().display()))
            .output()
            .expect("run mariadb");
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines = text.lines();
        let names: Vec<&str> = lines.next().unwrap_or_default().split('\t').collect();
        Ok(lines
            .map(|line| {
                names.iter().map(|&name| name.to_owned()).zip(line.split('\t').map(str::to_owned)).collect()
            })
            .collect())
    }

    fn wait_until_ready(&mut self) {
        eventually("the server answers", Duration::from_secs(300), || {
            if let Some(status) = self.child.try_wait().expect("wait for the server") {
                let log = std::fs::read_to_string(self.home.join("run/log.err")).unwrap_or_default();
                panic!("mariadbd ended with {status}:\n{log}");
            }
            self.try_query("SELECT 1").ok()
        });
    }

    /// Makes this server a replica of `primary`, from its first binlog on.
    pub(crate) fn replicate_from(&self, primary: &Server) {
        primary.execute("CREATE USER replica@'127.0.0.1' IDENTIFIED BY 'replica'");
        primary.execute("GRANT REPLICATION SLAVE ON *.* TO replica@'127.0.0.1'");
        self.execute(&format!(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={}, MASTER_USER='replica', \
             MASTER_PASSWORD='replica', MASTER_LOG_FILE='binlog.000001', MASTER_LOG_POS=4, MASTER_CONNECT_RETRY=1",
            primary.port
        ));
        self.execute("START SLAVE");
    }

    /// Returns the position of this primary's next event: binlog name, offset in bytes.
    pub(crate) fn written_to(&self) -> (String, u64) {
        let row = &self.query("SHOW MASTER STATUS")[0];
        (row["File"].clone(), row["Position"].parse().expect("a number"))
    }

    /// Returns the position up to which this replica applied its primary's binlog: name, offset in
    /// bytes.
    pub(crate) fn applied_to(&self) -> (String, u64) {
        let row = &self.query("SHOW SLAVE STATUS")[0];
        assert_eq!(row["Last_Error"], "", "the replica stopped");
        (row["Relay_Master_Log_File"].clone(), row["Exec_Master_Log_Pos"].parse().expect("a number"))
    }

    /// Binlogs by number, oldest first.
    pub(crate) fn binlogs(&self) -> Vec<PathBuf> {
        self.files(|name| name.strip_prefix("binlog.").is_some_and(is_number))
    }

    /// Returns the files of this replica's relay log, oldest first.
    pub(crate) fn relay_logs(&self) -> Vec<PathBuf> {
        let of_log = |name: &str| name.strip_prefix(self.options.relay_log)?.strip_prefix('.').map(is_number);
        self.files(|name| of_log(name) == Some(true))
    }

    /// Returns all log files: redo, binlogs, relay logs, Aria's log.
    pub(crate) fn log_files(&self) -> Vec<PathBuf> {
        let others = self.files(|name| {
            name == "ib_logfile0"
                || ["binlog.", "aria_log."]
                    .iter()
                    .any(|prefix| name.strip_prefix(prefix).is_some_and(is_number))
        });
        [others, self.relay_logs()].concat()
    }

    fn files(&self, matches: impl Fn(&str) -> bool) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.data())
            .expect("list the data directory")
            .map(|entry| entry.expect("list the data directory").path())
            .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(&matches))
            .collect();
        files.sort();
        files
    }

    /// Returns the number of binlogs between each dump thread's open file and the newest: 0 is the
    /// same file.
    pub(crate) fn follower_lags(&self) -> Vec<u64> {
        let newest = self.binlogs().last().and_then(|path| number_of(path));
        self.open_files()
            .into_iter()
            .filter(|file| file.flags & O_ACCMODE == O_RDONLY && is_binlog(&file.path))
            .filter_map(|file| Some(newest?.saturating_sub(number_of(&file.path)?)))
            .collect()
    }

    /// Returns whether the redo log is open for direct I/O.
    pub(crate) fn redo_is_direct(&self) -> bool {
        self.open_files().iter().any(|file| file.path.ends_with("ib_logfile0") && file.flags & O_DIRECT != 0)
    }

    fn open_files(&self) -> Vec<OpenFile> {
        let proc = PathBuf::from(format!("/proc/{}", self.pid()));
        std::fs::read_dir(proc.join("fd"))
            .expect("list the server's descriptors")
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let path = std::fs::read_link(entry.path()).ok()?;
                let info = std::fs::read_to_string(proc.join("fdinfo").join(entry.file_name())).ok()?;
                let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
                Some(OpenFile { path, flags: u32::from_str_radix(flags.trim(), 8).ok()? })
            })
            .collect()
    }

    /// Returns the bytes that the only dump thread has read from a device so far.
    pub(crate) fn dump_thread_device_bytes(&self) -> u64 {
        let rows = self.query("SELECT TID FROM information_schema.PROCESSLIST WHERE COMMAND = 'Binlog Dump'");
        assert_eq!(rows.len(), 1, "one replica follows");
        let path = format!("/proc/{}/task/{}/io", self.pid(), rows[0]["TID"]);
        let text = std::fs::read_to_string(&path).expect("the dump thread runs");
        let bytes = text.lines().find_map(|line| line.strip_prefix("read_bytes:")).expect("always there");
        bytes.trim().parse().expect("a number")
    }
}

impl LoadedServer for Server {
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

/// Makes a data directory of the user `mysql`: a copy of one that `mariadb-install-db` made.
pub(crate) fn install(data: &Path) {
    copy(&installed(), data);
    // Where the target directory was kept, `mysql` may have had another number at the installation.
    stdout_of(Command::new("chown").args(["--recursive", "mysql:mysql"]).arg(data));
    // The server writes these by direct I/O, so no page of them is resident after an installation.
    let is_of_innodb = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("ib") || name.starts_with("undo") || path.extension().is_some_and(|end| end == "ibd")
    };
    super::evict_all(&super::files_in(data).into_iter().filter(is_of_innodb).collect::<Vec<_>>());
}

/// Returns a data directory of the server on the `PATH`. Making one takes seconds, so it is made once
/// for each version and set of arguments, and stays in the target directory.
fn installed() -> PathBuf {
    static INSTALLING: Mutex<()> = Mutex::new(());
    let _installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let version = stdout_of(Command::new("mariadbd").arg("--version"));
    let mut hasher = DefaultHasher::new();
    (&version, INSTALL_ARGUMENTS).hash(&mut hasher);
    let (target, made) = (Path::new(env!("CARGO_TARGET_TMPDIR")), super::scratch());
    let kept = target.join(format!("mariadb-{:016x}", hasher.finish()));
    if !kept.exists() {
        let data = made.path().join("data");
        stdout_of(
            Command::new("mariadb-install-db")
                .args(INSTALL_ARGUMENTS)
                .arg(format!("--datadir={}", data.display())),
        );
        let copied = tempfile::tempdir_in(target).expect("make a directory");
        copy(&data, &copied.path().join("data"));
        // Fails where another test program was quicker.
        let _ = std::fs::rename(copied.path().join("data"), &kept);
    }
    kept
}

fn copy(from: &Path, to: &Path) {
    stdout_of(Command::new("cp").args(["--archive", "--no-target-directory"]).args([from, to]));
}

fn spawn(home: &Path, port: u16, options: &Options) -> Child {
    // setpriv: the signal at its parent's death would be lost if the server itself changed its
    // user.
    let mut command = super::started_by(&options.starter, "setpriv");
    let defaults = match &options.option_file {
        Some(file) => format!("--defaults-file={}", file.display()),
        None => "--no-defaults".to_owned(),
    };
    command
        .args(["--reuid=mysql", "--regid=mysql", "--clear-groups", "--pdeathsig=KILL", "--"])
        .args(["mariadbd", &defaults, "--bind-address=127.0.0.1", "--skip-name-resolve"])
        .arg(format!("--datadir={}", home.join("data").display()))
        .arg(format!("--socket={}", home.join("run/socket").display()))
        .arg(format!("--pid-file={}", home.join("run/pid").display()))
        .arg(format!("--log-error={}", home.join("run/log.err").display()))
        .arg(format!("--port={port}"))
        .arg(format!("--server-id={}", options.id))
        .args(["--innodb-buffer-pool-size=128M", "--innodb-flush-log-at-trx-commit=1"])
        .arg(format!("--innodb-log-file-size={REDO_BYTES}"))
        .arg(format!("--innodb-log-file-buffering={}", if options.redo_buffered { "ON" } else { "OFF" }));
    if options.option_file.is_none() {
        // Whole pages even on a device with 512-byte blocks; otherwise released pages of the ring
        // would be read back.
        command.arg("--innodb-log-write-ahead-size=4096");
    }
    if options.replica {
        command
            .args(["--slave-parallel-threads=2", "--slave-parallel-mode=optimistic"])
            .arg(format!("--relay-log={}", options.relay_log))
            .arg(format!("--max-relay-log-size={BINLOG_BYTES}"))
            .arg("--innodb-flush-log-at-trx-commit=2");
    } else {
        command
            .args(["--log-bin=binlog", "--binlog-format=ROW", "--sync-binlog=1"])
            // A replica that hangs keeps its connection.
            .arg("--net-write-timeout=3600")
            .arg(format!("--max-binlog-size={BINLOG_BYTES}"));
    }
    if options.galera {
        command
            .args(["--wsrep-on=ON", "--wsrep-cluster-address=gcomm://", "--wsrep-node-address=127.0.0.1"])
            .arg(format!("--wsrep-provider={GALERA}"))
            .arg(format!("--wsrep-provider-options=base_port={}", free_port()));
    }
    command.args(&options.arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("start mariadbd")
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("bind to a free port");
    listener.local_addr().expect("bound").port()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_binlog(path: &Path) -> bool {
    path.file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_prefix("binlog."))
        .is_some_and(is_number)
}

fn number_of(path: &Path) -> Option<u64> {
    path.extension()?.to_str()?.parse().ok()
}
