//! A private `MongoDB` server with one collection. Its client is a program with Debian's
//! `python3-pymongo`; it waits until each document is in the journal and synced.
//!
//! `PAGEKEEPER_MONGODB_ROOT` names the folder of the unpacked server; `scripts/fetch-servers.sh`
//! fetches it. Invariant: no port is opened.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::lines::LineClient;
use super::unpacked::{self, INNER_DATA_PATH};
use super::{LoggedServer, ServerProcess, files_below};

const CLIENT_PROGRAM: &str = include_str!("mongodb.py");
/// Debian's: another Python may not find Debian's modules.
const PYTHON_PATH: &str = "/usr/bin/python3";
const SERVER_SOCKET: &str = "/run/mongodb-27017.sock";
/// Its text log, as it sees it.
const SERVER_LOG: &str = "/run/mongod.log";

/// A running `mongod`, and its client.
#[derive(Debug)]
pub struct MongoDb {
    unpacked: PathBuf,
    home: PathBuf,
    daemon: ServerProcess,
    client: Child,
    lines: LineClient,
}

impl MongoDb {
    /// Programs that it needs besides the unpacked one.
    pub const REQUIRED_PROGRAMS: [&str; 6] = [PYTHON_PATH, "setpriv", "unshare", "mount", "chroot", "sh"];

    /// The path of the data as the server sees it.
    pub const INNER_DATA_PATH: &str = INNER_DATA_PATH;

    /// Returns the folder of the unpacked server.
    pub fn unpacked() -> Option<PathBuf> {
        unpacked::folder("PAGEKEEPER_MONGODB_ROOT")
    }

    /// Whether the client's driver is installed.
    pub fn has_client() -> bool {
        let asked = Command::new(PYTHON_PATH).args(["-c", "import pymongo"]).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    }

    /// Starts a server with its data below `home`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(home: &Path) -> Self {
        let unpacked = Self::unpacked().expect("PAGEKEEPER_MONGODB_ROOT names a folder");
        unpacked::make_home(home);
        let daemon = started(&unpacked, home);
        let (client, lines) = client(home, 0);
        Self { unpacked, home: home.to_owned(), daemon, client, lines }
    }

    /// Returns its text log.
    pub fn text_log(&self) -> PathBuf {
        self.home.join(&SERVER_LOG[1..])
    }

    /// Has it write about this many bytes there.
    pub fn log(&mut self, bytes: u64) {
        self.lines.log(bytes);
    }
}

impl Drop for MongoDb {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

/// Starts a server and waits until it listens.
fn started(unpacked: &Path, home: &Path) -> ServerProcess {
    let socket = home.join(&SERVER_SOCKET[1..]);
    // A killed server leaves its socket behind, and the next one would take it for another
    // server's.
    let _ = std::fs::remove_file(&socket);
    let mut command = unpacked::enter(unpacked, home);
    command.args(["/usr/bin/mongod", "--dbpath", INNER_DATA_PATH, "--wiredTigerCacheSizeGB", "0.25"]);
    command.args(["--bind_ip", SERVER_SOCKET, "--unixSocketPrefix", "/run"]);
    command.args(["--logpath", SERVER_LOG, "--logappend"]);
    // Each checkpoint, by default every minute, removes the older part of the journal. Then nothing
    // would be left that shows the guard's effect.
    command.args(["--syncdelay", "600"]);
    let mut daemon = ServerProcess::spawn(home, command);
    daemon.wait_for("MongoDB listens", || UnixStream::connect(&socket).ok());
    daemon
}

fn client(home: &Path, put: u64) -> (Child, LineClient) {
    let log = home.join("client");
    let said = std::fs::File::options().create(true).append(true).open(&log).expect("make its log");
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig=KILL", "--", PYTHON_PATH, "-c", CLIENT_PROGRAM])
        .arg(&SERVER_SOCKET[1..])
        .current_dir(home);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said);
    let mut child = command.spawn().expect("start a client");
    let lines = LineClient::of(&mut child, log, put);
    (child, lines)
}

impl LoggedServer for MongoDb {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        files_below(&self.home.join("data/journal"), |path| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("WiredTigerLog."))
        })
    }

    fn others(&self) -> Option<Vec<PathBuf>> {
        Some(files_below(&self.home.join("data"), |path| path.extension().is_some_and(|end| end == "wt")))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        self.lines.put(bytes)
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.client.kill().expect("end its client");
        self.client.wait().expect("wait for its client");
        self.daemon = started(&self.unpacked, &self.home);
        (self.client, self.lines) = client(&self.home, self.lines.values());
    }

    fn check_all(&mut self) {
        self.lines.check();
    }
}
