//! A private `MySQL` server. Its client commits one large value after the other. Both its redo log
//! and its binlog go through the page cache.
//!
//! `PAGEKEEPER_MYSQL_ROOT` names the folder of the unpacked server (8.0, 8.4 or 9);
//! `scripts/fetch-servers.sh` fetches it. Invariants: logs are synced at every commit; no port is
//! opened.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::unpacked::{self, INNER_DATA_PATH};
use super::{LoggedServer, ServerProcess, ValueCount, files_below};

/// A running `MySQL`.
#[derive(Debug)]
pub struct MySql {
    unpacked: PathBuf,
    home: PathBuf,
    daemon: ServerProcess,
    values: ValueCount,
}

impl MySql {
    /// Programs that it needs besides the unpacked ones.
    pub const REQUIRED_PROGRAMS: [&str; 6] = ["mariadb", "setpriv", "unshare", "mount", "chroot", "sh"];

    /// The arguments that each run of the server begins with.
    pub const COMMON_ARGUMENTS: [&str; 4] =
        ["--no-defaults", "--user=root", "--datadir=/data", "--secure-file-priv=NULL"];

    /// The path of the data as the server sees it.
    pub const INNER_DATA_PATH: &str = INNER_DATA_PATH;

    /// Returns the folder of the unpacked server.
    pub fn unpacked() -> Option<PathBuf> {
        unpacked::folder("PAGEKEEPER_MYSQL_ROOT")
    }

    /// Starts a server with a binlog, with its data below `home`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(home: &Path) -> Self {
        let unpacked = Self::unpacked().expect("PAGEKEEPER_MYSQL_ROOT names a folder");
        unpacked::make_home(home);
        Self::initialize(&unpacked, home);
        let daemon = daemon(&unpacked, home);
        let mut server = Self { unpacked, home: home.to_owned(), daemon, values: ValueCount::default() };
        server.wait_until_ready();
        server.values.make_table(&mut client(home), "LONGTEXT CHARACTER SET ascii");
        server
    }

    /// Creates the data directory of a new server, which is unpacked in that folder.
    ///
    /// # Panics
    ///
    /// If it cannot be created.
    pub fn initialize(unpacked: &Path, home: &Path) {
        let mut command = unpacked::enter(unpacked, home);
        command.arg("/usr/sbin/mysqld").args(Self::COMMON_ARGUMENTS);
        command.args(["--initialize-insecure", "--log-error=/run/initialize.err"]);
        let made = command.status().expect("run mysqld");
        let said = || std::fs::read_to_string(home.join("run/initialize.err")).unwrap_or_default();
        assert!(made.success(), "mysqld --initialize-insecure: {made}: {}", said());
    }

    fn wait_until_ready(&mut self) {
        let home = &self.home;
        self.daemon.wait_for("MySQL answers", || {
            let asked = client(home).args(["--execute", "SELECT 1"]).output().expect("run mariadb");
            asked.status.success().then_some(())
        });
    }
}

fn daemon(unpacked: &Path, home: &Path) -> ServerProcess {
    let mut command = unpacked::enter(unpacked, home);
    command.arg("/usr/sbin/mysqld").args(MySql::COMMON_ARGUMENTS);
    command.args(["--skip-networking", "--mysqlx=OFF", "--socket=/run/socket", "--pid-file=/run/pid"]);
    command.args(["--log-bin=binlog", "--sync-binlog=1", "--max-binlog-size=16M", "--server-id=1"]);
    command.args(["--innodb-redo-log-capacity=48M", "--innodb-buffer-pool-size=64M"]);
    command.args(["--innodb-flush-log-at-trx-commit=1", "--innodb-flush-method=O_DIRECT"]);
    ServerProcess::spawn(home, command)
}

/// Debian's client, which works with it as well.
fn client(home: &Path) -> Command {
    let mut command = Command::new("mariadb");
    command.current_dir(home).args([
        "--no-defaults",
        "--user=root",
        "--batch",
        "--skip-column-names",
        "--quick",
    ]);
    command.args(["--socket=run/socket", "--database=mysql"]);
    command
}

impl LoggedServer for MySql {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Returns the ring of the redo log, followed by the binlogs.
    fn logs(&self) -> Vec<PathBuf> {
        let data = self.home.join("data");
        let is = |path: &Path, start: &str| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(start) && !name.ends_with(".index")
        };
        let mut logs = files_below(&data.join("#innodb_redo"), |path| is(path, "#ib_redo"));
        logs.extend(files_below(&data, |path| is(path, "binlog.")));
        logs
    }

    /// Returns `None`: `InnoDB` uses direct I/O for its tables, as configured.
    fn others(&self) -> Option<Vec<PathBuf>> {
        None
    }

    fn put(&mut self, bytes: u64) -> u64 {
        self.values.put(&mut client(&self.home), bytes)
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.daemon = daemon(&self.unpacked, &self.home);
        self.wait_until_ready();
    }

    fn check_all(&mut self) {
        self.values.check(&mut client(&self.home));
    }
}
