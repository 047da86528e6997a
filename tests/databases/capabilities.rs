//! The guard, its metrics and the doctor with exactly the capabilities that the shipped unit gives,
//! beside a real `MariaDB` and a real `PostgreSQL` of other users. They suffice, and if one is
//! missing the programs name it.
//!
//! Needs root and Debian's `mariadb-server`, `sysbench` and `postgresql`; skips with a sentence
//! otherwise, and fails instead where `PAGEKEEPER_REQUIRE_ALL=1`. Residency is `fincore`'s.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::guard::Guard;
use crate::support::postgresql::SEGMENT_BYTES;
use crate::support::prometheus::{ask, free_port};
use crate::support::sysbench::{self, Load};
use crate::support::unit::{USER_ID, capabilities, confined, mask, sets_of};
use crate::support::{self, MIB, command, eventually, kept_bytes, mariadb, postgresql};

const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
const UNIT: &str = "pagekeeper-guard.service";
const WITH_METRICS: &str = "pagekeeper-guard.service.d/metrics.conf";
const WITH_STREAMS: &str = "pagekeeper-guard.service.d/streams.conf";
/// Maximum resident bytes of the current binlog: twice the profile's slack. How far the
/// load is in that file is random.
const BINLOG_LIMIT: u64 = 8 * MIB;

/// Both servers, with full logs, and a copy of the program that others may start.
struct Servers {
    mariadb: mariadb::Server,
    postgresql: postgresql::Server,
    program: PathBuf,
    _scratch: tempfile::TempDir,
}

impl Servers {
    fn start(what: &str) -> Option<Self> {
        let programs = postgresql::programs();
        let programs: Vec<&str> =
            programs.iter().map(String::as_str).chain(mariadb::REQUIRED_PROGRAMS).collect();
        if !support::can_run(what, &programs) {
            return None;
        }
        let scratch = support::scratch();
        let program = scratch.path().join("pagekeeper");
        support::copy_program(&support::guard::program(), &program);
        let mariadb = mariadb::Server::start(scratch.path(), mariadb::Options::primary());
        sysbench::prepare(&mariadb);
        let mut load = Load::start(&mariadb);
        eventually("some binlogs are full", Duration::from_secs(600), || {
            load.check();
            (mariadb.binlogs().len() > 3).then_some(())
        });
        drop(load);
        let postgresql = postgresql::Server::start(scratch.path());
        postgresql.write(64 * MIB, None, || ());
        Some(Self { mariadb, postgresql, program, _scratch: scratch })
    }

    fn pids(&self) -> [u32; 2] {
        [self.mariadb.pid(), self.postgresql.pid()]
    }

    fn guard(&self, capabilities: &BTreeSet<String>, arguments: &[&str]) -> Guard {
        let mut command = confined(&self.program, capabilities);
        command.args(["guard", "--json", "--tick", "250ms"]).args(arguments);
        for pid in self.pids() {
            command.args(["--pid", &pid.to_string()]);
        }
        Guard::spawn_command(&mut command)
    }
}

fn released(summary: &Value, class: &str) -> u64 {
    summary["released_bytes"][class].as_u64().unwrap_or_default()
}

/// Returns the messages of a guard or a doctor about things it can't see or do that name a
/// capability.
fn capability_messages<'a>(events: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    events.into_iter().map(ToString::to_string).filter(|said| said.contains("CAP_")).collect()
}

#[test]
fn the_units_capabilities_are_enough_for_the_guard_and_each_is_needed() {
    let _alone = support::alone();
    let Some(servers) = Servers::start("the guard with the unit's capabilities") else { return };
    let given = capabilities(&[UNIT]);
    let (binlogs, segments) = (servers.mariadb.binlogs(), servers.postgresql.segments());

    for missing in &given {
        let mut fewer = given.clone();
        fewer.remove(missing);
        let guard = servers.guard(&fewer, &["--dry-run"]);
        let names = |event: &Value| event.to_string().contains(missing.as_str());
        eventually(&format!("that {missing} is missing is said"), WAIT_TIMEOUT, || {
            ["visibility_gap", "problem", "warning", "start"].iter().find(|name| guard.has_event(name, names))
        });
        let summary = guard.stop().summary().clone();
        let would = (released(&summary, "binlog"), released(&summary, "wal"));
        assert_eq!(would, (0, 0), "without {missing}: {summary}");
    }

    let kept = [kept_bytes(&binlogs), kept_bytes(&segments)];
    assert!(kept.iter().all(|bytes| *bytes > SEGMENT_BYTES + 32 * MIB), "{kept:?}");
    let guard = servers.guard(&given, &[]);
    for pid in servers.pids() {
        guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == pid);
    }
    assert_eq!(sets_of(guard.pid()), BTreeSet::from([mask(&given)]), "exactly these");
    for (files, limit) in [(&binlogs, BINLOG_LIMIT), (&segments, SEGMENT_BYTES + MIB)] {
        support::wait_until_resident_below(files, limit, WAIT_TIMEOUT);
    }
    let ended = guard.stop();
    let summary = ended.summary();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(released(summary, "binlog") > 32 * MIB && released(summary, "wal") > 32 * MIB, "{summary}");
    assert_eq!(capability_messages(&ended.events), [""; 0]);
}

#[test]
#[ignore = "long: make test-stories"]
fn the_units_capabilities_are_enough_for_metrics_and_the_doctor() {
    let _alone = support::alone();
    let Some(servers) = Servers::start("metrics and the doctor with the unit's capabilities") else { return };
    let given = capabilities(&[UNIT, WITH_METRICS]);
    let port = free_port();
    let guard = servers.guard(&given, &["--dry-run", "--metrics", &port.to_string()]);
    for (database, class) in [("mariadb", "binlog"), ("postgresql", "wal")] {
        let is_meant = |line: &&str| {
            let of_database = format!("pagekeeper_resident_bytes{{engine=\"{database}\"");
            line.starts_with(&of_database) && line.contains(&format!("class=\"{class}\""))
        };
        eventually(&format!("metrics know {class}"), WAIT_TIMEOUT, || {
            let body = ask(port, "GET", "/metrics", &[])?.body;
            let (_, value) = body.lines().find(is_meant)?.rsplit_once(' ')?;
            (value.parse::<f64>().ok()? > 0.0).then_some(())
        });
    }
    let body = ask(port, "GET", "/metrics", &[]).expect("it answers").body;
    assert!(body.contains("pagekeeper_trace_source{source=\"bpf\"} 1"), "{body}");
    assert_eq!(sets_of(guard.pid()), BTreeSet::from([mask(&given)]), "exactly these");
    assert_eq!(capability_messages(&guard.stop().events), [""; 0]);

    let mut doctor = confined(&servers.program, &given);
    doctor.args(["doctor", "--json", "--watch", "2s"]);
    for pid in servers.pids() {
        doctor.args(["--pid", &pid.to_string()]);
    }
    let report = command::finish(&mut doctor).json();
    let databases = report["inspected"]["databases"].as_array().expect("a list");
    let names: Vec<&str> = databases.iter().filter_map(|database| database["name"].as_str()).collect();
    assert!(names.len() == 2, "{names:?}");
    let gaps = report["visibility_gaps"].as_array().expect("a list");
    assert_eq!(capability_messages(gaps), [""; 0]);
}

#[test]
fn the_units_capabilities_suffice_for_streams_and_missing_ones_are_reported() {
    if !support::can_run("streams with the unit's capabilities", &["cp", "fincore", "setpriv"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let program = scratch.path().join("pagekeeper");
    support::copy_program(&support::guard::program(), &program);
    let (from, to, config) =
        (scratch.path().join("private"), scratch.path().join("copy"), scratch.path().join("guard.toml"));
    // A name that no other program on this machine has.
    let copier = scratch.path().join("units-copier");
    std::os::unix::fs::symlink("/bin/cp", &copier).expect("make a link");
    // Like the directory of RuntimeDirectory=.
    let runtime = scratch.path().join("runtime");
    std::fs::create_dir(&runtime).expect("make a directory");
    std::os::unix::fs::chown(&runtime, Some(USER_ID), Some(USER_ID)).expect("give it to the unit's user");
    let socket = runtime.join("streams.sock");
    std::fs::write(
        &config,
        format!(
            "directories = [\"{}\"]\n[streams]\nprocesses = [\"units-copier\"]\nsocket = \"{}\"\n",
            scratch.path().display(),
            socket.display()
        ),
    )
    .expect("write the configuration");
    std::fs::write(&from, vec![7; 32 << 20]).expect("write a file");
    std::fs::set_permissions(&from, PermissionsExt::from_mode(0o600)).expect("close a file to others");
    let files = [from.clone(), to.clone()];
    let start = |capabilities: &BTreeSet<String>| {
        let mut command = confined(&program, capabilities);
        command.args(["guard", "--json", "--profile", "generic", "--tick", "250ms", "--config"]).arg(&config);
        let guard = Guard::spawn_command(&mut command);
        guard.wait_for("tick", WAIT_TIMEOUT, |_| true);
        guard
    };
    let copy = || {
        support::evict(&from);
        assert!(Command::new(&copier).args([&from, &to]).status().expect("start cp").success());
    };

    let unit = capabilities(&[UNIT]);
    let guard = start(&unit);
    let gap = guard.wait_for("visibility_gap", WAIT_TIMEOUT, |event| {
        event["gap"].as_str().is_some_and(|gap| gap.contains("streams are not followed"))
    });
    let gap = gap.to_string();
    assert!(gap.contains("CAP_BPF") && gap.contains("CAP_PERFMON"), "{gap}");
    copy();
    guard.wait_for_ticks(8);
    assert_eq!(kept_bytes(&files), 64 * MIB);
    assert!(guard.stop().status.success());

    let given = capabilities(&[UNIT, WITH_STREAMS]);
    let guard = start(&given);
    assert_eq!(sets_of(guard.pid()), BTreeSet::from([mask(&given)]), "exactly these");
    copy();
    support::wait_until_resident_below(&files, MIB, WAIT_TIMEOUT);
    std::fs::set_permissions(&to, PermissionsExt::from_mode(0o644)).expect("open a file to others");
    let mut request = Command::new("setpriv");
    request.args(["--reuid=1001", "--regid=1001", "--clear-groups", "--"]).arg(&program);
    request.args(["run", "--json", "--as", "stream", "--", "fincore"]).arg(&to);
    let said = command::finish(request.env("PAGEKEEPER_STREAM_SOCKET", &socket));
    assert!(said.code == 0 && said.stderr.contains("\"by_guard\":true"), "{said:#?}");
    let ended = guard.stop();
    let released = &ended.summary()["released_behind_streams_bytes"]["units-copier"];
    // The kernel may reclaim some of it by itself.
    assert!(released.as_u64() >= Some(60 * MIB), "{}", ended.summary());
    assert_eq!(capability_messages(&ended.events), [""; 0]);
}
