//! The doctor beside a real `MariaDB` that gives memory of its buffer pool away, since `dd` fills
//! its memory cgroup: the finding with the line of the error log, and the setting by which the
//! server disregards the next event.
//!
//! Needs root, Debian's `mariadb-server` (10.11.12 or later) and a memory cgroup; skips with a
//! sentence otherwise. Skips in any case where the kernel or the server observes no memory
//! pressure.

use crate::support;
use crate::support::MIB;
use crate::support::command::run;
use crate::support::doctor_report::{self, finding};
use crate::support::mariadb::{Options, Server};
use crate::support::memory_group::MemoryGroup;
use crate::support::sysbench::LoadedServer as _;
use pagekeeper_testing::skip;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAMS: [&str; 8] =
    ["mariadbd", "mariadb-install-db", "mariadb", "setpriv", "unshare", "mount", "chown", "dd"];
const POOL_BYTES: u64 = 128 * MIB;
const MEMORY_LIMIT_BYTES: u64 = 256 * MIB;
/// The server reacts once a minute at most.
const REACTION_TIME_MAX: Duration = Duration::from_secs(150);
/// A server can end by itself as it gives memory away; then another one is started.
const SERVERS_MAX: usize = 3;
/// Text of the error log after the server has found the group's pressure.
const LISTENS: &str = "Initialized memory pressure event listener";

/// A group of version 2 that the server observes, with its own file of pressure.
struct PressureGroup {
    root: PathBuf,
    directory: PathBuf,
}

impl PressureGroup {
    /// Creates a group. Returns `None` without cgroup v2, or if no pressure is counted.
    fn new() -> Option<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("read the mounts");
        let of_v2 = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let root = PathBuf::from(of_v2.split(' ').nth(4)?);
        let directory = tempfile::Builder::new().prefix("pagekeeper-test-").tempdir_in(&root).ok()?.keep();
        let group = Self { root, directory };
        let pressure = group.directory.join("memory.pressure");
        Command::new("chown").arg("mysql:").arg(pressure).status().ok()?.success().then_some(group)
    }

    /// Returns a command that enters the group, and sees only groups of version 2, as on most
    /// systems: the server reads the first line of `/proc/self/cgroup`.
    fn starter(&self, scratch: &Path) -> Vec<PathBuf> {
        let enter = "echo $$ >\"$0/cgroup.procs\" && if [ \"$1\" != /sys/fs/cgroup ]; then \
                     grep ^0:: /proc/$$/cgroup >\"$2\" && mount --bind \"$2\" /proc/$$/cgroup && \
                     mount --bind \"$1\" /sys/fs/cgroup; fi && shift 2 && exec \"$@\"";
        let words = ["unshare", "--mount", "sh", "-c", enter].map(PathBuf::from);
        let places = [self.directory.clone(), self.root.clone(), scratch.join("cgroup")];
        words.into_iter().chain(places).collect()
    }
}

impl Drop for PressureGroup {
    fn drop(&mut self) {
        for _ in 0..50 {
            if std::fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("{} is left behind", self.directory.display());
    }
}

/// Fills the server's group with dirty pages until its log has one more of these lines; false if it
/// never has.
fn press(server: &Server, groups: (&MemoryGroup, &PressureGroup), scratch: &Path, line: &str) -> bool {
    let before = lines(server, line);
    let began = Instant::now();
    while began.elapsed() < REACTION_TIME_MAX {
        let to = format!("of={}", scratch.join("file").display());
        let mut command = groups.0.command_with(server.pid(), "sh");
        command.args(["-c", "echo $$ >\"$0/cgroup.procs\" && exec \"$@\""]).arg(&groups.1.directory);
        command.args(["dd", "if=/dev/zero", &to, "bs=1M", "count=1500"]).stderr(Stdio::null());
        assert!(command.status().expect("start dd").success());
        if lines(server, line) > before {
            return true;
        }
    }
    false
}

/// Returns how many lines of the server's log have this text.
fn lines(server: &Server, text: &str) -> usize {
    let log = std::fs::read_to_string(server.data().with_file_name("run").join("log.err"));
    log.expect("read the error log").lines().filter(|line| line.contains(text)).count()
}

/// Returns the size of the pool, or the client's message.
fn pool_bytes(server: &Server) -> Result<u64, String> {
    let rows = server.try_query("SELECT @@innodb_buffer_pool_size AS size")?;
    Ok(rows[0]["size"].parse().expect("a number"))
}

fn examine(server: &Server) -> Option<Value> {
    let outcome = run(["doctor", "--json", "--duration", "1s", "--pid", &server.pid().to_string()]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    finding(&doctor_report::of(&outcome), "pool-pressure").cloned()
}

#[test]
#[ignore = "long: make test-stories"]
fn a_buffer_pool_that_memory_pressure_made_smaller_is_named_and_its_setting_keeps_it() {
    let test = "MariaDB under memory pressure";
    if !support::can_run(test, &PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let Some(pressure) = PressureGroup::new() else {
        return skip(format!("{test} needs pressure stall information and cgroups of version 2."));
    };
    let Some(group) = MemoryGroup::new(test, MEMORY_LIMIT_BYTES) else { return };
    for _ in 0..SERVERS_MAX {
        let scratch = support::scratch();
        let options = Options::primary()
            .started_by(pressure.starter(scratch.path()))
            .argument(format!("--innodb-buffer-pool-size={POOL_BYTES}"))
            .argument("--innodb-buffer-pool-size-auto-min=32M");
        let server = Server::start(scratch.path(), options);
        if lines(&server, LISTENS) == 0 {
            return skip(format!("{test}: this server observes none here."));
        }
        group.add(server.pid());
        fill(&server);
        let groups = (&group, &pressure);
        assert!(press(&server, groups, scratch.path(), "event shrunk"), "it never reacted");
        match pool_bytes(&server) {
            Ok(smaller) => return is_named_and_kept(&server, groups, scratch.path(), smaller),
            Err(error) => eprintln!("it ended as it gave memory away: {error}"),
        }
    }
    panic!("each of {SERVERS_MAX} servers ended as it gave memory away");
}

/// Fills the pool.
fn fill(server: &Server) {
    server.execute("CREATE DATABASE d");
    server.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v VARBINARY(1000)) ENGINE=InnoDB");
    server.execute("SET sql_log_bin=0; INSERT INTO d.t SELECT seq, RANDOM_BYTES(1000) FROM d.seq_1_to_90000");
    assert_eq!(examine(server), None);
}

/// Checks the finding about a pool that has become `smaller`, and the setting by which the server
/// disregards the next event.
fn is_named_and_kept(server: &Server, groups: (&MemoryGroup, &PressureGroup), scratch: &Path, smaller: u64) {
    assert!(smaller < POOL_BYTES, "{smaller}");
    let found = examine(server).expect("a finding");
    let log = found["evidence"][0]["text"].as_str().expect("a text");
    assert!(log.contains("Memory pressure event shrunk innodb_buffer_pool_size="), "{found:#}");
    let fixes = found["fixes"].as_array().expect("fixes");
    let act = fixes.last().expect("a fix")["act"].as_str().expect("an act");
    assert!(act.starts_with("innodb_buffer_pool_size_auto_min"), "{found:#}");

    // The setting: the pool is as large as before, and stays so.
    server.execute(&format!("SET GLOBAL innodb_buffer_pool_size={POOL_BYTES}"));
    server.execute(&format!("SET GLOBAL innodb_buffer_pool_size_auto_min={POOL_BYTES}"));
    assert!(press(server, groups, scratch, "event disregarded"), "it never reacted");
    let kept = pool_bytes(server);
    println!("the pool: {POOL_BYTES} bytes, {smaller} after an event; by the setting {kept:?}");
    assert_eq!(kept, Ok(POOL_BYTES));
}
