//! Servers that read their settings from files, and can be stopped, reconfigured and
//! restarted.
//!
//! Invariants: their files are below the directory that they are given; a server never outlives its
//! handle, nor the thread that started it.

use super::command::stdout_of;
use super::eventually;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A deadline far longer than a start or a stop should take, also where each sync takes seconds.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);

/// A process that is stopped by SIGTERM, and killed with its handle.
struct ServerProcess(Child);

impl ServerProcess {
    fn start(command: &mut Command, log: &Path) -> Self {
        let log = std::fs::File::create(log).expect("make a log");
        let second = log.try_clone().expect("a second handle");
        let child = command.stdin(Stdio::null()).stdout(second).stderr(log).spawn();
        Self(child.unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    fn stop(&mut self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).expect("signal the server");
        self.0.wait().expect("wait for the server");
    }

    fn wait_until_answering(&mut self, log: &Path, mut ask: impl FnMut() -> bool) {
        eventually("the server answers", RUN_TIMEOUT, || {
            let ended = self.0.try_wait().expect("wait for the server");
            let said = || std::fs::read_to_string(log).unwrap_or_default();
            assert!(ended.is_none(), "the server ended: {ended:?}: {}", said());
            ask().then_some(())
        });
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn own(path: &Path, user: &str) {
    let status = Command::new("chown").arg(format!("{user}:")).arg(path).status().expect("run chown");
    assert!(status.success(), "there is no user {user}");
}

fn as_user(user: &str, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}"));
    command.args(["--clear-groups", "--pdeathsig=KILL", "--"]).arg(program);
    command
}

/// A `MariaDB` server of `my.cnf`, which includes all of `conf.d/`.
pub(crate) struct MariaDb {
    home: PathBuf,
    process: ServerProcess,
}

/// Programs that it needs.
pub(crate) const MARIADB: [&str; 4] = ["mariadbd", "mariadb-install-db", "mariadb", "setpriv"];

impl MariaDb {
    /// Starts one under `parent` with `settings` in `conf.d/50-test.cnf`.
    pub(crate) fn start(parent: &Path, settings: &str) -> Self {
        let home = parent.join("mariadb");
        let run = home.join("run");
        std::fs::create_dir_all(home.join("conf.d")).expect("make a directory");
        std::fs::create_dir(&run).expect("make a directory");
        super::open_to_others(&home);
        super::mariadb::install(&home.join("data"));
        own(&run, "mysql");
        let main = format!(
            "[mysqld]\nskip-networking\nskip-name-resolve\ndatadir={0}/data\nsocket={0}/run/socket\n\
             pid-file={0}/run/pid\ninnodb-buffer-pool-size=64M\n!includedir {0}/conf.d\n",
            home.display()
        );
        std::fs::write(home.join("my.cnf"), main).expect("write settings");
        std::fs::write(home.join("conf.d/50-test.cnf"), settings).expect("write settings");
        let process = Self::spawn(&home);
        let mut server = Self { home, process };
        server.wait();
        server
    }

    fn spawn(home: &Path) -> ServerProcess {
        let mut command = as_user("mysql", Path::new("mariadbd"));
        command.arg(format!("--defaults-file={}", home.join("my.cnf").display()));
        ServerProcess::start(&mut command, &home.join("log"))
    }

    fn wait(&mut self) {
        let (home, log) = (self.home.clone(), self.home.join("log"));
        self.process.wait_until_answering(&log, || {
            client(&home, "SELECT 1").output().expect("run mariadb").status.success()
        });
    }

    pub(crate) fn restart(&mut self) {
        self.process.stop(rustix::process::Signal::TERM);
        self.process = Self::spawn(&self.home);
        self.wait();
    }

    pub(crate) fn query(&self, sql: &str) -> String {
        stdout_of(&mut client(&self.home, sql))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Returns the file with the test's settings.
    pub(crate) fn settings(&self) -> PathBuf {
        self.home.join("conf.d/50-test.cnf")
    }
}

fn client(home: &Path, sql: &str) -> Command {
    let mut command = Command::new("mariadb");
    command.args(["--no-defaults", "--batch", "--skip-column-names", "--user=root", "--execute", sql]);
    command.arg(format!("--socket={}", home.join("run/socket").display()));
    command
}

/// A `PostgreSQL` server of `postgresql.conf`, which includes `test.conf`.
pub(crate) struct PostgreSql {
    home: PathBuf,
    process: ServerProcess,
}

/// Returns the programs that the server needs.
pub(crate) fn postgresql() -> Vec<String> {
    let own = ["initdb", "postgres", "psql"].map(|name| postgresql_program(name).display().to_string());
    own.into_iter().chain(["setpriv".to_owned()]).collect()
}

/// Returns a program of the newest installed server: Debian keeps them out of `PATH`.
fn postgresql_program(name: &str) -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    newest.map_or_else(|| name.into(), |version| format!("/usr/lib/postgresql/{version}/bin/{name}").into())
}

impl PostgreSql {
    /// Starts one under `parent` with `settings` in `test.conf`.
    pub(crate) fn start(parent: &Path, settings: &str) -> Self {
        let home = parent.join("postgresql");
        std::fs::create_dir(&home).expect("make a directory");
        own(&home, "postgres");
        stdout_of(
            as_user("postgres", &postgresql_program("initdb"))
                .args(["--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8", "--pgdata"])
                .arg(home.join("data")),
        );
        let main = home.join("data/postgresql.conf");
        let mut text = std::fs::read_to_string(&main).expect("initdb made it");
        text.push_str("\nlisten_addresses = ''\nautovacuum = off\ninclude 'test.conf'\n");
        std::fs::write(&main, text).expect("write settings");
        std::fs::write(home.join("data/test.conf"), settings).expect("write settings");
        let process = Self::spawn(&home);
        let mut server = Self { home, process };
        server.wait();
        server
    }

    fn spawn(home: &Path) -> ServerProcess {
        let mut command = as_user("postgres", &postgresql_program("postgres"));
        command.arg("-D").arg(home.join("data")).arg("-k").arg(home);
        ServerProcess::start(&mut command, &home.join("log"))
    }

    fn wait(&mut self) {
        let (home, log) = (self.home.clone(), self.home.join("log"));
        self.process.wait_until_answering(&log, || {
            psql(&home, "SELECT 1").output().expect("run psql").status.success()
        });
    }

    /// Stops it cleanly, calls `meanwhile`, and starts it again.
    pub(crate) fn restart(&mut self, meanwhile: impl FnOnce()) {
        self.process.stop(rustix::process::Signal::INT);
        meanwhile();
        self.process = Self::spawn(&self.home);
        self.wait();
    }

    /// Returns the value of a query that has one.
    pub(crate) fn query(&self, sql: &str) -> String {
        stdout_of(&mut psql(&self.home, sql))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Returns its data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// Returns the file with the test's settings.
    pub(crate) fn settings(&self) -> PathBuf {
        self.home.join("data/test.conf")
    }
}

fn psql(home: &Path, sql: &str) -> Command {
    let mut command = Command::new(postgresql_program("psql"));
    command.args(["-X", "-A", "-t", "-q", "-U", "postgres", "-d", "postgres", "-c", sql]).arg("-h").arg(home);
    command
}

/// A `db_bench` with random puts, and the given lines in the options of its database and its column
/// family.
pub(crate) struct DbBench {
    database: PathBuf,
    process: ServerProcess,
}

impl DbBench {
    /// Starts one under `parent`.
    pub(crate) fn start(parent: &Path, options: &str, family: &str, rate: u64) -> Self {
        let database = parent.join("database");
        let file = parent.join("options.ini");
        let text = format!(
            "[Version]\n  rocksdb_version=7.8.3\n  options_file_version=1.1\n[DBOptions]\n  \
             create_if_missing=true\n{options}\n[CFOptions \"default\"]\n{family}\n  \
             compression=kNoCompression\n[TableOptions/BlockBasedTable \"default\"]\n"
        );
        std::fs::write(&file, text).expect("write options");
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--", "db_bench", "--benchmarks=fillrandom", "--value_size=1000"]);
        command.args(["--num=1000000000", "--duration=600"]);
        command.arg(format!("--benchmark_write_rate_limit={rate}"));
        command.arg(format!("--options_file={}", file.display())).arg(format!("--db={}", database.display()));
        let mut process = ServerProcess::start(&mut command, &parent.join("db_bench.log"));
        process.wait_until_answering(&parent.join("db_bench.log"), || {
            std::fs::read_dir(&database).into_iter().flatten().flatten().any(|entry| {
                entry.file_name().to_string_lossy().ends_with(".log")
                    && entry.metadata().is_ok_and(|file| file.len() > 0)
            })
        });
        Self { database, process }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.0.id()
    }

    /// Returns bytes of its WAL.
    pub(crate) fn wal(&self) -> u64 {
        self.bytes_of("log")
    }

    /// Returns bytes of its tables.
    pub(crate) fn tables(&self) -> u64 {
        self.bytes_of("sst")
    }

    fn bytes_of(&self, ending: &str) -> u64 {
        let entries = std::fs::read_dir(&self.database).expect("list the database").flatten();
        entries
            .filter(|entry| entry.path().extension().is_some_and(|found| found == ending))
            .filter_map(|entry| Some(entry.metadata().ok()?.len()))
            .sum()
    }
}
