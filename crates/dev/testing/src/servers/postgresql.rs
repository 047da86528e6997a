//! A private `PostgreSQL` server. Its client commits one large value after the other. The server is
//! Debian's, or the one in the folder that `PAGEKEEPER_POSTGRESQL_ROOT` names;
//! `scripts/fetch-servers.sh` fetches it.
//!
//! Invariants: the WAL is synced at every commit; started as root, the server runs as the user
//! postgres.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use super::{LoggedServer, ServerProcess, ValueCount, admit_server_user, files_below, unpacked};
use crate::http::free_port;

/// A running `PostgreSQL`.
#[derive(Debug)]
pub struct PostgreSql {
    home: PathBuf,
    daemon: ServerProcess,
    port: u16,
    values: ValueCount,
}

impl PostgreSql {
    /// Returns the programs that a test needs: those of the server, and `psql` of the newest
    /// installed version, which Debian keeps out of `PATH`.
    pub fn programs() -> Vec<String> {
        let own = [servers("postgres"), servers("initdb"), installed("psql")];
        own.into_iter()
            .map(|path| path.to_string_lossy().into_owned())
            .chain(["setpriv".to_owned()])
            .collect()
    }

    /// Starts a server with its data below `home`.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn start(home: &Path) -> Self {
        admit_server_user(home);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(home, Some(id("-u")), Some(id("-g"))).expect("give a directory away");
        }
        let mut install = Command::new("setpriv");
        install.args(owner()).arg(servers("initdb"));
        install.args([
            "--auth=trust",
            "--no-sync",
            "--no-locale",
            "--encoding=UTF8",
            "--username=postgres",
            "--pgdata",
        ]);
        let output = install.arg(home.join("data")).current_dir(home).output().expect("run initdb");
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
        let port = free_port();
        let mut server =
            Self { home: home.to_owned(), daemon: daemon(home, port), port, values: ValueCount::default() };
        server.wait_until_ready();
        server.values.make_table(&mut client(port), "TEXT");
        server
    }

    fn wait_until_ready(&mut self) {
        let port = self.port;
        self.daemon.wait_for("PostgreSQL answers", || {
            let asked = client(port).args(["--command", "SELECT 1"]).output().expect("run psql");
            asked.status.success().then_some(())
        });
    }
}

/// Returns the path of a program of the server's version. The fetched server has no client.
fn servers(name: &str) -> PathBuf {
    unpacked::folder("PAGEKEEPER_POSTGRESQL_ROOT")
        .map_or_else(|| installed(name), |root| root.join("bin").join(name))
}

/// Returns the path of a program of Debian's newest installed version.
fn installed(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    newest.map_or_else(|| name.into(), |version| format!("/usr/lib/postgresql/{version}/bin/{name}").into())
}

fn id(which: &str) -> u32 {
    let output = Command::new("id").args([which, "postgres"]).output().expect("run id");
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("there is a user postgres")
}

/// Returns arguments of `setpriv`, since the server refuses to run as root. A change of the user
/// clears the parent-death signal, so it is set again.
fn owner() -> &'static [&'static str] {
    if rustix::process::geteuid().is_root() {
        &["--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig=KILL", "--"]
    } else {
        &["--pdeathsig=KILL", "--"]
    }
}

fn daemon(home: &Path, port: u16) -> ServerProcess {
    ServerProcess::start(home, "setpriv", |command| {
        command.args(owner()).arg(servers("postgres")).arg("-D").arg(home.join("data"));
        for setting in
            ["listen_addresses=127.0.0.1", "unix_socket_directories=", "max_wal_size=1GB", "autovacuum=off"]
        {
            command.args(["-c", setting]);
        }
        command.args(["-p", &port.to_string()]);
    })
}

fn client(port: u16) -> Command {
    let mut command = Command::new(installed("psql"));
    command.args([
        "--no-psqlrc",
        "--quiet",
        "--tuples-only",
        "--no-align",
        "--set=ON_ERROR_STOP=1",
        "--set=FETCH_COUNT=8",
    ]);
    command.args([
        "--host=127.0.0.1",
        "--username=postgres",
        "--dbname=postgres",
        "--port",
        &port.to_string(),
    ]);
    command
}

impl LoggedServer for PostgreSql {
    fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    fn logs(&self) -> Vec<PathBuf> {
        let is_segment = |path: &Path| path.file_name().is_some_and(|name| name.len() == 24);
        files_below(&self.home.join("data/pg_wal"), is_segment)
    }

    fn others(&self) -> Option<Vec<PathBuf>> {
        // Files of tables and indexes have numeric names. Temporary files of sorts do not; small
        // files belong to the system catalogs.
        let is_table = |path: &Path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with(|one: char| one.is_ascii_digit()))
                && path.metadata().is_ok_and(|table| table.len() >= 1 << 20)
        };
        Some(files_below(&self.home.join("data/base"), is_table))
    }

    fn put(&mut self, bytes: u64) -> u64 {
        self.values.put(&mut client(self.port), bytes)
    }

    fn restart_after(&mut self, signal: Signal) {
        // The children of a killed server end once they notice, and until then no new server
        // starts.
        let path = format!("/proc/{0}/task/{0}/children", self.pid());
        let children = std::fs::read_to_string(path).expect("a running server");
        self.daemon.end(signal);
        let is_left = |pid| Path::new("/proc").join(pid).exists();
        while children.split_whitespace().any(is_left) {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.daemon = daemon(&self.home, self.port);
        self.wait_until_ready();
    }

    fn check_all(&mut self) {
        self.values.check(&mut client(self.port));
    }
}
