//! The guard beside a real `MariaDB` and processes of another user with databases' names, which
//! claim its directory or hold it open: the real server's logs are released as without them.
//!
//! Needs root, Debian's `mariadb-server` and `sysbench`; skips with a sentence otherwise, and fails
//! instead where `PAGEKEEPER_REQUIRE_ALL=1`.

use crate::support;
use crate::support::guard::Guard;
use crate::support::mariadb::{BINLOG_BYTES, Options, REQUIRED_PROGRAMS, Server};
use crate::support::sysbench::{self, Load};
use crate::support::{MIB, resident_bytes, wait_until_resident_below};
use std::io::BufRead as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const RUN_TIMEOUT: Duration = Duration::from_secs(600);
const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// A shell with this name, of the user who owns `directory`, that has run `script` there.
pub(crate) struct FakeServer(Child);

impl FakeServer {
    pub(crate) fn start(name: &str, directory: &Path, script: &str) -> Self {
        let program = directory.join(name);
        symlink("/bin/sh", &program).expect("name a program");
        let status = Command::new("chown").args(["-R", "54321:54321"]).arg(directory).status();
        assert!(status.expect("run chown").success());
        let mut child = Command::new("setpriv")
            .args(["--reuid=54321", "--regid=54321", "--clear-groups", "--pdeathsig=KILL", "--"])
            .arg(program)
            .args(["-c", &format!("{script}; echo ready; while :; do sleep 1; done")])
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a shell");
        let mut ready = String::new();
        let output = child.stdout.take().expect("piped");
        std::io::BufReader::new(output).read_line(&mut ready).expect("read what it says");
        assert_eq!(ready, "ready\n");
        Self(child)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_real_server_is_served_as_without_fakes_of_another_user() {
    if !support::can_run("fakes beside a server", &REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let directory = |name: &str| {
        let path = scratch.path().join(name);
        std::fs::create_dir(&path).expect("make a directory");
        path
    };
    let server = Server::start(scratch.path(), Options::primary());
    sysbench::prepare(&server);
    // One process claims the server's directory, one has a journal that becomes a link to it.
    let linking = directory("linking");
    symlink(server.data(), linking.join("pg_wal")).expect("make a link");
    let postgres = FakeServer::start("postgres", &linking, ":");
    let moving = directory("moving");
    std::fs::create_dir(moving.join("journal")).expect("make a directory");
    let mongod = FakeServer::start("mongod", &moving, "exec 3>>journal/WiredTigerLog.0000000001");

    let pids = [postgres.pid(), mongod.pid(), server.pid()].map(|pid| pid.to_string());
    let guard = Guard::spawn(&["--pid", &pids[0], "--pid", &pids[1], "--pid", &pids[2]]);
    let of = |pid: u32| move |event: &serde_json::Value| event["pid"] == pid;
    let found = guard.wait_for("found", WAIT_TIMEOUT, of(server.pid()));
    assert_eq!(found["profile"], "mariadb", "{found}");
    let refused = guard.wait_for("refused", WAIT_TIMEOUT, of(postgres.pid()));
    assert_eq!(
        (&refused["reason"], &refused["profile"]),
        (&"not-owner".into(), &"postgresql".into()),
        "{refused}"
    );
    guard.wait_for("found", WAIT_TIMEOUT, of(mongod.pid()));
    std::fs::rename(moving.join("journal"), moving.join("was")).expect("rename");
    symlink(server.data(), moving.join("journal")).expect("make a link");
    let refused = guard.wait_for("refused", WAIT_TIMEOUT, of(mongod.pid()));
    assert_eq!(refused["reason"], "directory-changed", "{refused}");

    let mut load = Load::start(&server);
    support::eventually("the load writes binlogs", RUN_TIMEOUT, || {
        load.check();
        guard.assert_bounded(4 * BINLOG_BYTES + 64 * MIB, resident_bytes(&server.log_files()), || {
            resident_bytes(&server.log_files())
        });
        (server.binlogs().len() > 6).then_some(())
    });
    drop(load);
    wait_until_resident_below(&server.log_files(), BINLOG_BYTES, WAIT_TIMEOUT);
    let ended = guard.stop();
    let summary = ended.summary();
    assert!(summary["released_bytes"]["binlog"].as_u64() > Some(4 * BINLOG_BYTES), "{summary}");
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
}
