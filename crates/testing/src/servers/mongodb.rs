//! A `MongoDB` of its own, with one collection. Its client is a program of Debian's `python3-pymongo`, which waits for each document
//! until it is in the journal and synced.
//!
//! It is unpacked in the folder that `PAGEKEEPER_MONGODB_ROOT` names, as `scripts/fetch-servers.sh` fetches it. Invariant: it has no
//! port.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::lines::Lines;
use super::unpacked::{self, DATA};
use super::{Daemon, LoggedServer, files_below};

const CLIENT: &str = include_str!("mongodb.py");
/// Debian's: another may not find Debian's modules.
const PYTHON: &str = "/usr/bin/python3";
const SOCKET: &str = "/run/mongodb-27017.sock";

/// A running `mongod`, and its client.
#[derive(Debug)]
pub struct MongoDb {
    unpacked: PathBuf,
    home: PathBuf,
    daemon: Daemon,
    client: Child,
    lines: Lines,
}

impl MongoDb {
    /// Programs that it needs beside the unpacked one.
    pub const PROGRAMS: [&str; 6] = [PYTHON, "setpriv", "unshare", "mount", "chroot", "sh"];

    /// Where it sees its data.
    pub const DATA: &str = DATA;

    /// The folder that it is unpacked in.
    pub fn unpacked() -> Option<PathBuf> {
        unpacked::folder("PAGEKEEPER_MONGODB_ROOT")
    }

    /// Whether what its client speaks with is installed.
    pub fn has_client() -> bool {
        let asked = Command::new(PYTHON).args(["-c", "import pymongo"]).stderr(Stdio::null()).status();
        asked.is_ok_and(|status| status.success())
    }

    /// Starts one, its data below `home`.
    ///
    /// # Panics
    ///
    /// Where it does not start.
    pub fn start(home: &Path) -> Self {
        let unpacked = Self::unpacked().expect("PAGEKEEPER_MONGODB_ROOT names a folder");
        unpacked::make_home(home);
        let daemon = started(&unpacked, home);
        let (client, lines) = client(home, 0);
        Self { unpacked, home: home.to_owned(), daemon, client, lines }
    }
}

impl Drop for MongoDb {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

/// A server that listens.
fn started(unpacked: &Path, home: &Path) -> Daemon {
    let socket = home.join(&SOCKET[1..]);
    // A kill leaves it, and the next server would take it for another's.
    let _ = std::fs::remove_file(&socket);
    let mut command = unpacked::enter(unpacked, home);
    command.args(["/usr/bin/mongod", "--dbpath", DATA, "--wiredTigerCacheSizeGB", "0.25"]);
    command.args(["--bind_ip", SOCKET, "--unixSocketPrefix", "/run"]);
    // With each checkpoint, which comes every minute by default, it removes what of its journal is older: then nothing would be left
    // that shows what the guard does.
    command.args(["--syncdelay", "600"]);
    let mut daemon = Daemon::spawn(home, command);
    daemon.wait_for("MongoDB listens", || UnixStream::connect(&socket).ok());
    daemon
}

fn client(home: &Path, put: u64) -> (Child, Lines) {
    let log = home.join("client");
    let said = std::fs::File::options().create(true).append(true).open(&log).expect("make its log");
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig=KILL", "--", PYTHON, "-c", CLIENT]).arg(&SOCKET[1..]).current_dir(home);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said);
    let mut child = command.spawn().expect("start a client");
    let lines = Lines::of(&mut child, log, put);
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
