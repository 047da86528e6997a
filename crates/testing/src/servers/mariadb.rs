//! A `MariaDB` of its own, whose client commits one large value after the other: into `InnoDB` with a binlog, or into
//! `MyRocks` without one. It is Debian's, or the one that is unpacked in the folder that `PAGEKEEPER_MARIADB_ROOT` names, as
//! `scripts/fetch-servers.sh` fetches it.
//!
//! Invariants: logs are synced at every commit; as root Debian's runs as the user mysql; it has no port.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::unpacked::{self, DATA};
use super::{Daemon, LoggedServer, MySql, Values, files_below, let_in};

/// Where Debian's package has the plugin, below the root.
const MYROCKS: &str = "usr/lib/mysql/plugin/ha_rocksdb.so";

/// Relative to the data directory, which the server goes to: a whole path may be longer than a socket's may be.
const SOCKET: &str = "socket";

/// Whose log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Engine {
    InnoDb,
    MyRocks,
}

/// A running `MariaDB`.
#[derive(Debug)]
pub struct MariaDb {
    home: PathBuf,
    daemon: Daemon,
    engine: Engine,
    values: Values,
}

impl MariaDb {
    /// Programs that it needs, the first of them with its version where it is Debian's.
    pub fn programs() -> &'static [&'static str] {
        if Self::unpacked().is_some() {
            &MySql::PROGRAMS
        } else {
            &["mariadbd", "mariadb-install-db", "mariadb", "setpriv"]
        }
    }

    /// The folder that it is unpacked in, if it is not Debian's.
    pub fn unpacked() -> Option<PathBuf> {
        unpacked::folder("PAGEKEEPER_MARIADB_ROOT")
    }

    /// The SQL by which a new one, started with `--bootstrap`, makes its system tables; `share` has the server's files of SQL.
    ///
    /// # Panics
    ///
    /// Where they are not there.
    pub fn system_tables(share: &Path) -> String {
        // By its version.
        let files = ["mariadb_system_tables.sql", "mysql_system_tables.sql"].map(|name| share.join(name));
        let file = files.iter().find(|path| path.exists()).expect("the SQL of its system tables");
        let tables = std::fs::read_to_string(file).expect("read it");
        format!("create database mysql;\nuse mysql;\n{tables}")
    }

    /// Starts one on `InnoDB` that keeps a binlog, its data below `home`.
    ///
    /// # Panics
    ///
    /// Where it does not start.
    pub fn start(home: &Path) -> Self {
        Self::start_with(home, Engine::InnoDb)
    }

    /// Starts one on `MyRocks`, without a binlog.
    ///
    /// # Panics
    ///
    /// Where it does not start.
    pub fn with_myrocks(home: &Path) -> Self {
        Self::start_with(home, Engine::MyRocks)
    }

    /// Whether `MyRocks` is installed.
    pub fn has_myrocks() -> bool {
        Self::unpacked().unwrap_or_else(|| "/".into()).join(MYROCKS).exists()
    }

    /// Has `MyRocks` write what it has in memory to a file of its tables.
    ///
    /// # Panics
    ///
    /// Where it does not.
    pub fn flush(&self) {
        let statement = "SET GLOBAL rocksdb_force_flush_memtable_now = true";
        let flushed = client(&self.data()).args(["--execute", statement]).status().expect("run mariadb");
        assert!(flushed.success(), "{statement}: {flushed}");
    }

    fn start_with(home: &Path, engine: Engine) -> Self {
        let data = home.join("data");
        let_in(home);
        match Self::unpacked() {
            Some(unpacked) => bootstrap(&unpacked, home),
            None => install(home),
        }
        let values = Values::default();
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

/// Has Debian's make its data.
fn install(home: &Path) {
    let mut command = Command::new("mariadb-install-db");
    command.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]);
    command.arg("--auth-root-authentication-method=normal").arg(datadir(home)).args(user());
    let output = command.output().expect("run mariadb-install-db");
    assert!(output.status.success(), "mariadb-install-db: {}", String::from_utf8_lossy(&output.stdout));
}

/// The same of an unpacked one, whose script for it would need a shell in there.
fn bootstrap(unpacked: &Path, home: &Path) {
    unpacked::make_home(home);
    let script = home.join("out/bootstrap.sql");
    std::fs::write(&script, MariaDb::system_tables(&unpacked.join("usr/share/mariadb"))).expect("write SQL");
    let mut command = enter(unpacked, home);
    command.arg("--bootstrap").stdin(std::fs::File::open(&script).expect("open SQL"));
    let output = command.output().expect("run mariadbd");
    assert!(output.status.success(), "mariadbd --bootstrap: {}", String::from_utf8_lossy(&output.stderr));
}

/// An unpacked server, with what each run of it begins with: there are no accounts, and no user but root.
fn enter(unpacked: &Path, home: &Path) -> Command {
    let mut command = unpacked::enter(unpacked, home);
    command.args(["/usr/sbin/mariadbd", "--no-defaults", "--user=root", "--skip-grant-tables"]);
    command.arg(format!("--datadir={DATA}"));
    command
}

/// Who the server is to become; root is refused.
fn user() -> Option<&'static str> {
    rustix::process::geteuid().is_root().then_some("--user=mysql")
}

/// One argument: the script that installs takes it in no other form.
fn datadir(home: &Path) -> OsString {
    let mut argument = OsString::from("--datadir=");
    argument.push(home.join("data"));
    argument
}

fn daemon(home: &Path, engine: Engine) -> Daemon {
    let set_up = |command: &mut Command| {
        command.args(["--skip-networking", "--skip-name-resolve", "--socket", SOCKET]);
        command.args(["--pid-file=pid", "--innodb-log-file-size=48M", "--innodb-buffer-pool-size=64M"]);
        command.arg("--innodb-flush-method=O_DIRECT");
        match engine {
            Engine::InnoDb => command.args(["--log-bin=binlog", "--sync-binlog=1", "--max-binlog-size=16M"]),
            Engine::MyRocks => command.args([
                "--plugin-load-add=ha_rocksdb",
                "--plugin-maturity=unknown",
                "--default-storage-engine=ROCKSDB",
                "--rocksdb-flush-log-at-trx-commit=1",
            ]),
        };
    };
    let Some(unpacked) = MariaDb::unpacked() else {
        return Daemon::start(home, "mariadbd", |command| {
            command.arg("--no-defaults").arg(datadir(home)).args(user());
            set_up(command);
        });
    };
    let mut command = enter(&unpacked, home);
    set_up(&mut command);
    Daemon::spawn(home, command)
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
    command.args(["--socket", SOCKET, "--database=mysql"]);
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
                Engine::InnoDb => name == "binlog" && end != "index",
                Engine::MyRocks => {
                    end == "log" && path.parent().is_some_and(|parent| parent.ends_with("#rocksdb"))
                }
            }
        };
        files_below(&self.data(), is_log)
    }

    fn others(&self) -> Option<Vec<PathBuf>> {
        // InnoDB's own by direct I/O, as it is set to; those of Aria, in which the server's own tables are, are not.
        let ends: &[&str] = match self.engine {
            Engine::InnoDb => &["MAD", "MAI"],
            Engine::MyRocks => &["sst"],
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
