//! A `MariaDB` of its own, whose client commits one large value after the other: into `InnoDB` with a binlog, or into
//! `MyRocks` without one.
//!
//! Invariants: logs are synced at every commit; as root the server runs as the user mysql, and it has no port.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::{Daemon, LoggedServer, Values, files_below, let_in};

/// Where Debian's package has the plugin.
const MYROCKS: &str = "/usr/lib/mysql/plugin/ha_rocksdb.so";

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
    /// Programs that it needs.
    pub const PROGRAMS: [&str; 4] = ["mariadbd", "mariadb-install-db", "mariadb", "setpriv"];

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
        Path::new(MYROCKS).exists()
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
        let mut install = Command::new("mariadb-install-db");
        install.args(["--no-defaults", "--skip-test-db", "--skip-name-resolve"]);
        install.arg("--auth-root-authentication-method=normal").arg(datadir(home));
        let output = install.args(user()).output().expect("run mariadb-install-db");
        assert!(output.status.success(), "mariadb-install-db: {}", String::from_utf8_lossy(&output.stdout));
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
    Daemon::start(home, "mariadbd", |command| {
        command.args(["--no-defaults", "--skip-networking", "--skip-name-resolve", "--socket", SOCKET]);
        command.args(["--pid-file=pid", "--innodb-log-file-size=48M", "--innodb-buffer-pool-size=64M"]);
        command.arg("--innodb-flush-method=O_DIRECT").arg(datadir(home)).args(user());
        match engine {
            Engine::InnoDb => command.args(["--log-bin=binlog", "--sync-binlog=1", "--max-binlog-size=16M"]),
            Engine::MyRocks => command.args([
                "--plugin-load-add=ha_rocksdb",
                "--plugin-maturity=unknown",
                "--default-storage-engine=ROCKSDB",
                "--rocksdb-flush-log-at-trx-commit=1",
            ]),
        };
    })
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
        match self.engine {
            // It reads and writes its tables by direct I/O, as it is set to.
            Engine::InnoDb => None,
            Engine::MyRocks => {
                Some(files_below(&self.data(), |path| path.extension().is_some_and(|end| end == "sst")))
            }
        }
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
