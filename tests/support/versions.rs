//! Servers of every available version: Debian's packages, and those that `make test-advice`
//! fetched.
//!
//! Invariants: each server's files are below the directory that it is given; a server never
//! outlives its handle.

use super::command::stdout_of;
use super::eventually;
use pagekeeper_testing::servers::MariaDb;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A deadline far longer than a start or a stop should take, also where each sync takes seconds.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    MariaDb,
    MySql,
    PostgreSql,
}

/// A server's programs.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    pub(crate) kind: Kind,
    /// The version, such as "10.11.19".
    pub(crate) number: String,
    /// The source of the programs, for messages.
    pub(crate) from: &'static str,
    /// The root of another distribution, whose own dynamic linker starts the program.
    root: Option<PathBuf>,
    server: PathBuf,
    /// The directory of its messages and the SQL of its system tables.
    share: PathBuf,
}

/// Returns the installed versions.
pub(crate) fn installed() -> Vec<Version> {
    let mut all = Vec::new();
    let postgresql = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    for directory in postgresql.map(|entry| entry.path()) {
        all.extend(Version::of(Kind::PostgreSql, "Debian", None, directory.join("bin/postgres"), "".into()));
    }
    let share = PathBuf::from("/usr/share/mysql");
    all.extend(Version::of(Kind::MariaDb, "Debian", None, "/usr/sbin/mariadbd".into(), share));
    all
}

/// Returns the versions that `make test-advice` fetched, into the directory that it names.
pub(crate) fn fetched() -> Vec<Version> {
    let Some(servers) = std::env::var_os("PAGEKEEPER_SERVERS").map(PathBuf::from) else { return Vec::new() };
    let mut all = Vec::new();
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(&servers).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    folders.sort();
    for folder in folders {
        let program = |name: &str| folder.join(name);
        all.extend(Version::of(Kind::PostgreSql, "npm", None, program("bin/postgres"), "".into()));
        all.extend(Version::of(
            Kind::MariaDb,
            "Maven Central",
            None,
            program("bin/mariadbd"),
            program("share"),
        ));
        for (kind, name, share) in [
            (Kind::MariaDb, "usr/sbin/mariadbd", "usr/share/mariadb"),
            (Kind::MySql, "usr/sbin/mysqld", "usr/share/mysql"),
        ] {
            // MariaDB has the other's name as well.
            if kind == Kind::MySql && program("usr/sbin/mariadbd").exists() {
                continue;
            }
            let root = Some(folder.clone());
            let is_ubuntus =
                folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("mysql-8"));
            let from = match kind {
                Kind::MariaDb => "Debian 13",
                _ if is_ubuntus => "Ubuntu",
                _ => "Debian unstable",
            };
            all.extend(Version::of(kind, from, root, program(name), program(share)));
        }
    }
    all
}

impl Version {
    /// Returns `None` if the program is missing or does not run here.
    fn of(
        kind: Kind,
        from: &'static str,
        root: Option<PathBuf>,
        server: PathBuf,
        share: PathBuf,
    ) -> Option<Self> {
        if !server.exists() {
            return None;
        }
        let mut version = Self { kind, number: String::new(), from, root, server, share };
        let output = version.command().arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_number = |word: &&str| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit());
        let number = text.split_whitespace().find(is_number)?;
        number.split(|c: char| !c.is_ascii_digit() && c != '.').next()?.clone_into(&mut version.number);
        Some(version)
    }

    pub(crate) fn name(&self) -> String {
        let product = match self.kind {
            Kind::MariaDb => "MariaDB",
            Kind::MySql => "MySQL",
            Kind::PostgreSql => "PostgreSQL",
        };
        format!("{product} {}", self.number)
    }

    fn command(&self) -> Command {
        // The server ends with the test, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]);
        let Some(root) = &self.root else {
            command.arg(&self.server);
            return command;
        };
        let libraries = root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH));
        let linkers = std::fs::read_dir(&libraries).into_iter().flatten().flatten().map(|entry| entry.path());
        let linker = linkers.into_iter().find(|path| path.to_string_lossy().contains("/ld-linux-"));
        command.arg(linker.unwrap_or_else(|| "ld-linux".into()));
        command.arg("--library-path").arg(&libraries).arg(&self.server);
        command
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) version: Version,
    home: PathBuf,
    process: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Server {
    /// Starts one with `lines` in its option file.
    pub(crate) fn start(version: &Version, parent: &Path, lines: &[String]) -> Self {
        let home = parent.join(version.name().replace(' ', "-"));
        std::fs::create_dir(&home).expect("make a directory");
        super::open_to_others(&home);
        let data = home.join("data");
        match version.kind {
            Kind::PostgreSql => {
                let status = Command::new("chown").arg("postgres:").arg(&home).status().expect("run chown");
                assert!(status.success(), "there is no user postgres");
                let mut initdb = as_postgres(&version.server.with_file_name("initdb"));
                stdout_of(
                    initdb
                        .args(["--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8", "--pgdata"])
                        .arg(&data),
                );
            }
            Kind::MariaDb => {
                std::fs::create_dir(&data).expect("make a directory");
                let script = home.join("bootstrap.sql");
                std::fs::write(&script, MariaDb::system_tables(&version.share)).expect("write it");
                let input = std::fs::File::open(&script).expect("open it");
                stdout_of(
                    version
                        .command()
                        .arg("--no-defaults")
                        .args(options(version, &home))
                        .arg("--bootstrap")
                        .stdin(input),
                );
            }
            Kind::MySql => {
                let options = options(version, &home);
                stdout_of(version.command().arg("--no-defaults").args(options).arg("--initialize-insecure"));
            }
        }
        write_settings(version, &home, lines);
        let process = spawn(version, &home);
        let mut server = Self { version: version.clone(), home, process };
        server.wait();
        server
    }

    fn wait(&mut self) {
        let log = self.home.join("log");
        let (version, home) = (self.version.clone(), self.home.clone());
        eventually("the server answers", RUN_TIMEOUT, || {
            let ended = self.process.try_wait().expect("wait for the server");
            let said = || std::fs::read_to_string(&log).unwrap_or_default();
            assert!(ended.is_none(), "{} ended: {ended:?}: {}", version.name(), said());
            client(&version, &home, "SELECT 1")
                .output()
                .expect("run the client")
                .status
                .success()
                .then_some(())
        });
    }

    /// Stops it cleanly, calls `meanwhile` with its data directory, and starts it with other
    /// settings.
    pub(crate) fn restart(&mut self, lines: &[String], meanwhile: impl FnOnce(&Path)) {
        let signal = match self.version.kind {
            Kind::PostgreSql => rustix::process::Signal::INT,
            Kind::MariaDb | Kind::MySql => rustix::process::Signal::TERM,
        };
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.process), signal)
            .expect("signal it");
        self.process.wait().expect("wait for the server");
        meanwhile(&self.home.join("data"));
        self.configure(lines);
        self.process = spawn(&self.version, &self.home);
        self.wait();
    }

    /// Writes other settings without a restart.
    pub(crate) fn configure(&self, lines: &[String]) {
        write_settings(&self.version, &self.home, lines);
    }

    /// Returns the value of a statement, if it has one.
    pub(crate) fn query(&self, sql: &str) -> String {
        stdout_of(&mut client(&self.version, &self.home, sql))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Whether the title of one of its processes contains this.
    pub(crate) fn has_child(&self, title: &str) -> bool {
        let own = self.process.id();
        let children =
            std::fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap_or_default();
        let has = |child: &str| {
            std::fs::read_to_string(format!("/proc/{child}/cmdline")).is_ok_and(|line| line.contains(title))
        };
        children.split_whitespace().any(has)
    }

    /// Tells whether it has a file of this name open with `O_DIRECT`; `None` if the file is not
    /// open.
    pub(crate) fn is_direct(&self, name: &str) -> Option<bool> {
        let pid = self.process.id();
        let links = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").flatten();
        let link = links.into_iter().find(|entry| {
            std::fs::read_link(entry.path())
                .is_ok_and(|path| path.file_name().is_some_and(|file| file == name))
        })?;
        let info =
            std::fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", link.file_name().display())).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
        let flags = u32::from_str_radix(flags.trim(), 8).ok()?;
        Some(flags & rustix::fs::OFlags::DIRECT.bits() != 0)
    }
}

fn write_settings(version: &Version, home: &Path, lines: &[String]) {
    let (path, head) = match version.kind {
        Kind::PostgreSql => (home.join("data/test.conf"), ""),
        Kind::MariaDb | Kind::MySql => (home.join("my.cnf"), "[mysqld]\n"),
    };
    std::fs::write(&path, format!("{head}{}\n", lines.join("\n"))).expect("write settings");
    let main = home.join("data/postgresql.conf");
    if version.kind == Kind::PostgreSql {
        let text = std::fs::read_to_string(&main).expect("initdb made it");
        if !text.contains("test.conf") {
            std::fs::write(&main, format!("{text}\ninclude 'test.conf'\n")).expect("write settings");
        }
    }
}

fn spawn(version: &Version, home: &Path) -> Child {
    let mut command = match version.kind {
        Kind::PostgreSql => {
            let mut command = as_postgres(&version.server);
            command.arg("-D").arg(home.join("data")).arg("-k").arg(home).args(["-c", "listen_addresses="]);
            command
        }
        Kind::MariaDb => {
            let mut command = version.command();
            command.arg(format!("--defaults-file={}", home.join("my.cnf").display()));
            command.args(options(version, home)).arg("--skip-grant-tables");
            command
        }
        Kind::MySql => {
            let mut command = version.command();
            command.arg(format!("--defaults-file={}", home.join("my.cnf").display()));
            command.args(options(version, home)).args(["--mysqlx=OFF", "--secure-file-priv="]);
            command
        }
    };
    let log = std::fs::File::create(home.join("log")).expect("make a log");
    let second = log.try_clone().expect("a second handle");
    // Its own process group, so that a terminal's signal does not reach it before the test ends.
    command.stdin(Stdio::null()).stdout(second).stderr(log).process_group(0);
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn options(version: &Version, home: &Path) -> Vec<String> {
    let share = version.share.display();
    vec![
        "--user=root".to_owned(),
        format!("--lc-messages-dir={share}"),
        format!("--character-sets-dir={share}/charsets"),
        format!("--datadir={}", home.join("data").display()),
        format!("--socket={}", home.join("socket").display()),
        format!("--pid-file={}", home.join("pid").display()),
        "--skip-networking".to_owned(),
        "--innodb-buffer-pool-size=64M".to_owned(),
    ]
}

fn client(version: &Version, home: &Path, sql: &str) -> Command {
    match version.kind {
        Kind::PostgreSql => {
            let mut command = Command::new("psql");
            command
                .args(["-X", "-A", "-t", "-q", "-U", "postgres", "-d", "postgres", "-c", sql])
                .arg("-h")
                .arg(home);
            command
        }
        Kind::MariaDb | Kind::MySql => {
            let mut command = Command::new("mariadb");
            command.args([
                "--no-defaults",
                "--batch",
                "--skip-column-names",
                "--user=root",
                "--execute",
                sql,
            ]);
            command.arg(format!("--socket={}", home.join("socket").display()));
            command
        }
    }
}

fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL", "--"])
        .arg(program);
    command
}
