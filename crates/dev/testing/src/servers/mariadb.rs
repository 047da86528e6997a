//! A private `MariaDB` server. Its client commits one large value after the other, into `InnoDB`
//! with a binlog or into `MyRocks` without one. The server is Debian's, or one unpacked in the
//! folder that `PAGEKEEPER_MARIADB_ROOT` names; `scripts/fetch-servers.sh` fetches it.
//!
//! Invariants: logs are synced at every commit; Debian's server, started as root, runs as the user
//! mysql; no port is opened.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::unpacked::{self, INNER_DATA_PATH};
use super::{LoggedServer, MySql, ServerProcess, ValueCount, admit_server_user, files_below};

/// Path of the plugin in Debian's package, below the root.
const MYROCKS_PLUGIN: &str = "usr/lib/mysql/plugin/ha_rocksdb.so";

/// Relative to the data directory, which is the server's working directory: an absolute path may
/// exceed the length limit of a socket's path.
const SOCKET_NAME: &str = "socket";

/// The storage engine whose log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StorageEngine {
    InnoDb,
    MyRocks,
}

/// A running `MariaDB`.
#[derive(Debug)]
pub struct MariaDb {
    home: PathBuf,
    daemon: ServerProcess,
    engine: StorageEngine,
    values: ValueCount,
}

impl MariaDb {
    /// Returns the programs that the server needs. For Debian's server, the first program prints
    /// the version.
    pub fn programs() -> &'static [&'static str] {
        if Self::unpacked().is_some() {
            &MySql::REQUIRED_PROGRAMS
        } else {
            &["mariadbd", "mariadb-install-db", "mariadb", "setpriv"]
        }
    }

    /// Returns the folder of the unpacked server, or `None` for Debian's.
    pub fn unpacked() -> Option<PathBuf> {
        unpacked::folder("PAGEKEEPER_MARIADB_ROOT")
    }

    /// Returns the SQL that creates the system tables of a new server started with `--bootstrap`.
    /// `share` has the server's SQL files.
    ///
    /// # Panics
    ///
    /// If they are missing.
    pub fn system_tables(share: &Path) -> String {
        // The name depends on the version.
        let files = ["mariadb_system_tables.sql", "mysql_system_tables.sql"].map(|name| share.join(name));
        let file = files.iter().find(|path| path.exists()).expect("the SQL of its system tables");
        let tables = std::fs::read_to_string(file).expect("read it");
        format!("create database mysql;\nuse mysql;\n{tables}")
    }

    /// Starts a server on `InnoDB` with a binlog, with its data below `home`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(home: &Path) -> Self {
        Self::start_with(home, StorageEngine::InnoDb)
    }

    /// Starts a server on `MyRocks`, without a binlog.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn with_myrocks(home: &Path) -> Self {
        Self::start_with(home, StorageEngine::MyRocks)
    }

    /// Whether `MyRocks` is installed.
    pub fn has_myrocks() -> bool {
        Self::unpacked().unwrap_or_else(|| "/".into()).join(MYROCKS_PLUGIN).exists()
    }

    /// Flushes the memtable of `MyRocks` to a table file.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub fn flush(&self) {
        let statement = "SET GLOBAL rocksdb_force_flush_memtable_now = true";
        let flushed = client(&self.data()).args(["--execute", statement]).status().expect("run mariadb");
        assert!(flushed.success(), "{statement}: {flushed}");
    }

    fn start_with(home: &Path, engine: StorageEngine) -> Self {
        let data = home.join("data");
        admit_server_user(home);
        match Self::unpacked() {
            Some(unpacked) => bootstrap(&unpacked, home),
            None => install(home),
        }
        let values = ValueCount::default();
        let mut server = Self { home: home.to_owned(), daemon: daemon(home, engine), engine, values };
        server.wait_until_ready();
        server.values.make_table(&mut client(&data), "LONGTEXT CHARACTER SET ascii");
        server
    }

    fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    fn wait_until_ready(&mut self) {
        let data = self.data();
        self.daemon.wait_for("MariaDB answers", || {
            let asked = client(&data).args(["--execute", "SELECT 1"]).output().expect("run mariadb");
            asked.status.success().then_some(())
        });
    }
}

/// Creates the data directory of Debian's server.
fn install(home: &Path) {
    let mut command = Command::new("mariadb-install-db");
    command.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]);
    command.arg("--auth-root-authentication-method=normal").arg(datadir(home)).args(user());
    let output = command.output().expect("run mariadb-install-db");
    assert!(output.status.success(), "mariadb-install-db: {}", String::from_utf8_lossy(&output.stdout));
}

/// Creates the data directory of an unpacked server, without the installation script, which needs a
/// shell.
fn bootstrap(unpacked: &Path, home: &Path) {
    unpacked::make_home(home);
    let script = home.join("out/bootstrap.sql");
    std::fs::write(&script, MariaDb::system_tables(&unpacked.join("usr/share/mariadb"))).expect("write SQL");
    let mut command = enter(unpacked, home);
    command.arg("--bootstrap").stdin(std::fs::File::open(&script).expect("open SQL"));
    let output = command.output().expect("run mariadbd");
    assert!(output.status.success(), "mariadbd --bootstrap: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns a command for an unpacked server with the arguments of every run: no accounts, and no
/// user except root.
fn enter(unpacked: &Path, home: &Path) -> Command {
    let mut command = unpacked::enter(unpacked, home);
    command.args(["/usr/sbin/mariadbd", "--no-defaults", "--user=root", "--skip-grant-tables"]);
    command.arg(format!("--datadir={INNER_DATA_PATH}"));
    command
}

/// Returns the option that makes the server switch to another user; it refuses to run as root.
fn user() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("--user=mysql")
}

/// Returns the option as one argument, since the installation script accepts no other form.
fn datadir(home: &Path) -> OsString {
    let mut argument = OsString::from("--datadir=");
    argument.push(home.join("data"));
    argument
}

fn daemon(home: &Path, engine: StorageEngine) -> ServerProcess {
    let set_up = |command: &mut Command| {
        command.args(["--skip-networking", "--skip-name-resolve", "--socket", SOCKET_NAME]);
        command.args(["--pid-file=pid", "--innodb-log-file-size=48M", "--innodb-buffer-pool-size=64M"]);
        command.arg("--innodb-flush-method=O_DIRECT");
        match engine {
            StorageEngine::InnoDb => {
                command.args(["--log-bin=binlog", "--sync-binlog=1", "--max-binlog-size=16M"])
            }
            StorageEngine::MyRocks => command.args([
                "--plugin-load-add=ha_rocksdb",
                "--plugin-maturity=unknown",
                "--default-storage-engine=ROCKSDB",
                "--rocksdb-flush-log-at-trx-commit=1",
            ]),
        };
    };
    let Some(unpacked) = MariaDb::unpacked() else {
        return ServerProcess::start(home, "mariadbd", |command| {
            command.arg("--no-defaults").arg(datadir(home)).args(user());
            set_up(command);
        });
    };
    let mut command = enter(&unpacked, home);
    set_up(&mut command);
    ServerProcess::spawn(home, command)
}

fn client(data: &Path) -> Command {
    let mut command = Command::new("mariadb");
    command.current_dir(data).args([
        "--no-defaults",
        "--user=root",
        "--batch",
        "--skip-column-names",
        "--quick",
    ]);
    command.args(["--socket", SOCKET_NAME, "--database=mysql"]);
    command
}

impl LoggedServer for MariaDb {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        let is_log = |path: &Path| {
            let (name, end) = (path.file_stem().unwrap_or_default(), path.extension().unwrap_or_default());
            match self.engine {
                StorageEngine::InnoDb => name == "binlog" && end != "index",
                StorageEngine::MyRocks => {
                    end == "log" && path.parent().is_some_and(|parent| parent.ends_with("#rocksdb"))
                }
            }
        };
        files_below(&self.data(), is_log)
    }

    fn others(&self) -> Option<Vec<PathBuf>> {
        // InnoDB's files use direct I/O, as configured. Those of Aria, which has the server's own
        // tables, do not.
        let ends: &[&str] = match self.engine {
            StorageEngine::InnoDb => &["MAD", "MAI"],
            StorageEngine::MyRocks => &["sst"],
        };
        let is_table =
            |path: &Path| path.extension().is_some_and(|end| ends.iter().any(|wanted| end == *wanted));
        Some(files_below(&self.data(), is_table))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        self.values.put(&mut client(&self.home.join("data")), bytes)
    }

    fn restart_after(&mut self, signal: Signal) {
        self.daemon.end(signal);
        self.daemon = daemon(&self.home, self.engine);
        self.wait_until_ready();
    }

    fn check_all(&mut self) {
        self.values.check(&mut client(&self.data()));
    }
}
