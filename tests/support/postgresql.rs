//! A private `PostgreSQL` server for one test: own data directory and socket, a load, and
//! `pg_receivewal` as its follower.
//!
//! Invariants: segments are of 16 MiB, as by default, and few enough that they are recycled often;
//! all commits are synced; no process outlives its handle.

use super::memory_group::MemoryGroup;
use super::{MIB, eventually};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Size of a WAL segment, in bytes.
pub(crate) const SEGMENT_BYTES: u64 = 16 * MIB;

/// Size of all WAL segments between two checkpoints, in bytes: about as much is kept and recycled.
pub(crate) const WAL_BYTES: u64 = 256 * MIB;

/// A deadline far longer than a disk needs for what is waited for here.
const RUN_TIMEOUT: Duration = Duration::from_secs(600);

/// Returns the programs that a server needs.
pub(crate) fn programs() -> Vec<String> {
    let own = ["initdb", "postgres", "psql", "pgbench", "pg_receivewal", "pg_basebackup"];
    let own = own.iter().map(|name| program(name).display().to_string());
    own.chain(["fincore", "setpriv"].map(str::to_owned)).collect()
}

/// Returns a program of the fetched server that `PAGEKEEPER_POSTGRESQL_ROOT` names, which has no
/// client, or of the newest installed one: Debian keeps them out of `PATH`.
pub(crate) fn program(name: &str) -> PathBuf {
    let fetched =
        std::env::var_os("PAGEKEEPER_POSTGRESQL_ROOT").map(|root| Path::new(&root).join("bin").join(name));
    if let Some(fetched) = fetched.filter(|program| program.exists()) {
        return fetched;
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
    newest.map_or_else(|| name.into(), |version| format!("/usr/lib/postgresql/{version}/bin/{name}").into())
}

/// A running server.
pub(crate) struct Server {
    home: PathBuf,
    /// Launchers, with their arguments, for the server's programs.
    starter: Vec<OsString>,
    /// Further settings: `name=value`.
    settings: Vec<String>,
    child: Child,
}

impl Server {
    /// Makes a data directory under `parent`, starts a server on it and fills a table.
    pub(crate) fn start(parent: &Path) -> Self {
        Self::start_by(parent, Vec::new())
    }

    /// Starts it with `initdb` and the server under a launcher, such as
    /// `pagekeeper run --`.
    pub(crate) fn start_by(parent: &Path, starter: Vec<OsString>) -> Self {
        let server = Self::start_empty(parent, starter, &[]);
        finish(server.client("pgbench").args(["--initialize", "--quiet", "--scale=5", "postgres"]));
        server
    }

    /// Creates a data directory under `parent` and starts a server on it with these settings:
    /// `name=value`.
    pub(crate) fn start_with(parent: &Path, settings: &[&str]) -> Self {
        Self::start_empty(parent, Vec::new(), settings)
    }

    fn start_empty(parent: &Path, starter: Vec<OsString>, settings: &[&str]) -> Self {
        let home = home_in(parent, "postgresql");
        finish(
            as_owner("initdb", &starter)
                .args(["--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8", "--pgdata"])
                .arg(home.join("data")),
        );
        Self::serve(home, starter, settings)
    }

    /// Starts a standby of this server under `parent`, with these settings.
    pub(crate) fn standby(&self, parent: &Path, settings: &[&str]) -> Self {
        let home = home_in(parent, "standby");
        finish(
            as_owner("pg_basebackup", &[])
                .args(["--checkpoint=fast", "--no-sync", "--write-recovery-conf", "-U", "postgres", "-h"])
                .arg(&self.home)
                .arg("--pgdata")
                .arg(home.join("data")),
        );
        Self::serve(home, Vec::new(), settings)
    }

    /// Starts a server on the data directory in `home`.
    fn serve(home: PathBuf, starter: Vec<OsString>, settings: &[&str]) -> Self {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let child = serve(&home, &starter, &settings);
        let mut server = Self { home, starter, settings, child };
        server.wait_until_ready();
        server
    }

    /// Ends the first process by SIGKILL, as a crash does, and restarts the server on its data.
    ///
    pub(crate) fn crash(&mut self) {
        self.crash_then(|| {});
    }

    /// Ends the server as [`Self::crash`] does, and calls `then` before it is started again.
    pub(crate) fn crash_then(&mut self, then: impl FnOnce()) {
        self.child.kill().expect("kill the server");
        self.child.wait().expect("wait for the server");
        then();
        // Its children end when they notice; a new server does not wait for them, but refuses to
        // start beside them.
        eventually("a crashed server is up again", RUN_TIMEOUT, || {
            if self.child.try_wait().expect("wait for the server").is_some() {
                self.child = serve(&self.home, &self.starter, &self.settings);
            }
            self.try_query("SELECT 1").ok()
        });
    }

    fn wait_until_ready(&mut self) {
        eventually("the server answers", RUN_TIMEOUT, || {
            let ended = self.child.try_wait().expect("wait for the server");
            let log = || std::fs::read_to_string(self.home.join("log")).unwrap_or_default();
            assert!(ended.is_none(), "postgres ended: {ended:?}: {}", log());
            self.try_query("SELECT 1").ok()
        });
    }

    /// Checks every table and index by `pg_amcheck`; panics with its findings.
    pub(crate) fn check(&self) {
        self.query("CREATE EXTENSION IF NOT EXISTS amcheck");
        finish(self.client("pg_amcheck").args(["--heapallindexed", "--parent-check", "postgres"]));
    }

    /// Returns a `pgbench` command, not started yet.
    pub(crate) fn pgbench(&self, arguments: &[&str]) -> Command {
        let mut command = self.client("pgbench");
        command.args(arguments).arg("postgres");
        command
    }

    /// Moves its processes into a memory cgroup. Later children, which read tables, will be in it,
    /// too.
    pub(crate) fn enter(&self, group: &MemoryGroup) {
        for pid in self.device_bytes_read().keys() {
            group.add(*pid);
        }
    }

    /// Creates the tables of `pgbench` at this scale, charges all further pages to a memory cgroup,
    /// and lets two clients read them.
    pub(crate) fn read_in(&self, group: &MemoryGroup, scale: &str) -> Load {
        self.enter(group);
        let made = self.pgbench(&["--initialize", "--quiet", scale]).output().expect("start pgbench");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        self.query("CHECKPOINT");
        let mut load = self.pgbench(&["--no-vacuum", "--select-only", "--client=2", "--time=600"]);
        let load = load.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Load(load.spawn().expect("start pgbench"))
    }

    /// Process id of the server's first process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the directory in which it and its tests keep their files.
    pub(crate) fn home(&self) -> &Path {
        &self.home
    }

    /// Returns the directory of its WAL segments.
    pub(crate) fn wal(&self) -> PathBuf {
        self.home.join("data/pg_wal")
    }

    /// Returns its WAL segments, including recycled ones for later.
    pub(crate) fn segments(&self) -> Vec<PathBuf> {
        segments_in(&self.wal())
    }

    /// Returns the value of a query that has one.
    pub(crate) fn query(&self, sql: &str) -> String {
        self.try_query(sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn try_query(&self, sql: &str) -> Result<String, String> {
        let mut command = self.client("psql");
        let output =
            command.args(["-X", "-A", "-t", "-d", "postgres", "-c", sql]).output().expect("run psql");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    fn client(&self, name: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig=KILL", "--"]).arg(program(name)).arg("-h").arg(&self.home);
        command.args(["-U", "postgres"]);
        command
    }

    /// Returns the bytes of WAL written since the server was created.
    pub(crate) fn wal_written(&self) -> u64 {
        self.query("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')").parse().expect("a number")
    }

    /// Writes this many MiB of WAL, in as many transactions without table changes, with a pause
    /// after each.
    pub(crate) fn write_records(&self, mib: u32, pause: Duration) {
        let one = "PERFORM pg_logical_emit_message(true, 'load', repeat('x', 1048576)); COMMIT;";
        let pause = pause.as_secs_f64();
        self.query(&format!(
            "DO $$ BEGIN FOR number IN 1..{mib} LOOP {one} PERFORM pg_sleep({pause}); END LOOP; END $$"
        ));
    }

    /// Lets a load write this many bytes of WAL more, and calls `sample` meanwhile. A `rate` is in
    /// transactions a second, of some 100 KiB of WAL.
    pub(crate) fn write(&self, bytes: u64, rate: Option<u32>, mut sample: impl FnMut()) {
        let script = self.home.join("load.sql");
        let updates = "\\set first random(1, 499000)\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid BETWEEN :first AND :first + 200;\n";
        std::fs::write(&script, updates).expect("write a script");
        let mut command = self.client("pgbench");
        command.args(["--no-vacuum", "--client=4", "--time=600"]);
        command.args(rate.map(|rate| format!("--rate={rate}")));
        let load = command.arg("--file").arg(&script).arg("postgres");
        let mut load = EndedChild(
            load.stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("start pgbench"),
        );
        let until = self.wal_written() + bytes;
        eventually("the load writes", RUN_TIMEOUT, || {
            let ended = load.0.try_wait().expect("wait for pgbench");
            assert!(ended.is_none(), "pgbench ended by itself: {ended:?}");
            sample();
            (self.wal_written() >= until).then_some(())
        });
    }

    /// Returns the bytes that each of its processes read from a device so far.
    pub(crate) fn device_bytes_read(&self) -> BTreeMap<u32, u64> {
        let pid = self.pid();
        let children =
            std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).expect("the server runs");
        let pids = children.split_whitespace().map(|pid| pid.parse::<u32>().expect("a pid")).chain([pid]);
        // A backend may end at any time.
        let running = pids.filter(|pid| Path::new(&format!("/proc/{pid}/io")).exists());
        running
            .filter_map(|pid| {
                let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
                let bytes = text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?;
                Some((pid, bytes.parse().ok()?))
            })
            .collect()
    }

    /// Returns the bytes that all its processes have read, including ended ones, whose counts
    /// their parent takes over.
    pub(crate) fn all_device_bytes_read(&self) -> u64 {
        self.device_bytes_read().values().sum()
    }

    /// Follows the WAL from now on, and copies it. The server keeps WAL that is not yet sent.
    ///
    pub(crate) fn follow(&self) -> Follower {
        let copies = self.home.join("copies");
        std::fs::create_dir(&copies).expect("make a directory");
        let receive = |arguments: &[&str]| {
            let mut command = self.client("pg_receivewal");
            command.arg("-D").arg(&copies).args(["--slot=follower", "--no-loop"]).args(arguments);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command
        };
        finish(&mut receive(&["--create-slot"]));
        let child = receive(&["--status-interval=1"]).spawn().expect("start pg_receivewal");
        eventually("it streams", RUN_TIMEOUT, || {
            (self.query("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == "1")
                .then_some(())
        });
        Follower { copies, child }
    }

    /// Returns the bytes of WAL that were not yet sent to the follower.
    pub(crate) fn lag(&self) -> u64 {
        let lag = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), sent_lsn) FROM pg_stat_replication";
        self.query(lag).parse().expect("one follower")
    }

    /// Process id of the only WAL sender.
    pub(crate) fn wal_sender(&self) -> u32 {
        self.query("SELECT pid FROM pg_stat_replication").parse().expect("one follower")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGQUIT, on which it ends its children; otherwise they would continue for a while.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
        let _ = self.child.wait();
    }
}

/// A running `pg_receivewal`.
pub(crate) struct Follower {
    copies: PathBuf,
    child: Child,
}

impl Follower {
    /// Returns its complete copies of segments.
    pub(crate) fn copies(&self) -> Vec<PathBuf> {
        segments_in(&self.copies)
    }

    /// Stops it (SIGSTOP), like a hung peer with an open connection.
    pub(crate) fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Lets it continue.
    pub(crate) fn thaw(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("signal pg_receivewal");
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A child that is killed with its handle.
struct EndedChild(Child);

impl Drop for EndedChild {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn segments_in(directory: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(directory)
        .expect("list segments")
        .map(|entry| entry.expect("list segments").path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.len() == 24 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
        .collect();
    files.sort();
    files
}

/// Makes a directory that the servers' user owns.
fn home_in(parent: &Path, name: &str) -> PathBuf {
    let home = parent.join(name);
    std::fs::create_dir(&home).expect("make the server's directory");
    let owned = Command::new("chown").arg("postgres:").arg(&home).status().expect("run chown");
    assert!(owned.success(), "there is no user postgres");
    home
}

/// Starts a server on an existing data directory.
fn serve(home: &Path, starter: &[OsString], settings: &[String]) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(home.join("log")).expect("make a file");
    let wal = WAL_BYTES / MIB;
    as_owner("postgres", starter)
        .arg("-D")
        .arg(home.join("data"))
        .arg("-k")
        .arg(home)
        .args(["-c", "listen_addresses=", "-c", "shared_buffers=64MB", "-c", "autovacuum=off"])
        .args(["-c", "wal_level=replica", "-c", "wal_sender_timeout=0"])
        .args(["-c", &format!("max_wal_size={wal}MB"), "-c", &format!("min_wal_size={wal}MB")])
        .args(settings.iter().flat_map(|setting| ["-c", setting]))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle"))
        .stderr(log)
        .spawn()
        .expect("start postgres")
}

/// Returns a command for a program of the server that must not run as root, by a launcher if one
/// is given.
fn as_owner(name: &str, starter: &[OsString]) -> Command {
    let mut command = super::started_by(starter, "setpriv");
    command
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL", "--"])
        .arg(program(name));
    command
}

fn finish(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A load that runs until dropped.
pub(crate) struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
