//! The guard with `[cgroup]` and `reclaim = "file"` beside real databases in a group with
//! `memory.max` and `memory.high`: idle pages go, pages that are read repeatedly stay, and refaults
//! stop a share that leaves no room for them. Figures are those of `memory.stat`.
//!
//! Needs control groups of version 2 and minutes: `make test-cgroup-v2` runs it in a virtual
//! machine.

use super::guard_cgroups::{Group, RUN_TIMEOUT, config};
use crate::support;
use crate::support::MIB;
use crate::support::guard::{EndedGuard, Guard};
use crate::support::idle_tables::{HEADROOM_BYTES, IdleTables, limited};
use crate::support::mariadb;
use crate::support::postgresql;
use std::path::Path;
use std::time::{Duration, Instant};

/// A database in a cgroup, and measurements of both.
struct GroupDatabase<'a> {
    scratch: &'a Path,
    group: Group,
    /// The parent cgroup, which has the limits.
    limited: &'a Path,
    /// Its `memory.max` in bytes, of which the guard's share is a part.
    most: u64,
    pid: u32,
    /// Reads the hot table for this many seconds. Returns the scans per minute.
    scans: &'a dyn Fn(u64) -> f64,
}

/// The guard's work down to one share.
struct GuardWork {
    /// Whether it was done within [`RUN_TIMEOUT`].
    done: bool,
    reclaimed: u64,
    stopped: bool,
    ended: EndedGuard,
}

impl GroupDatabase<'_> {
    fn show(&self, name: &str) {
        let scans = (self.scans)(30);
        let stat = self.group.stat();
        println!(
            "{name}: file {} MiB, active_file {} MiB, inactive_file {} MiB, refaulted {} MiB in all, {scans:.1} scans a minute",
            self.group.file() / MIB,
            stat["active_file"] / MIB,
            stat["inactive_file"] / MIB,
            self.group.refaulted() / MIB
        );
    }

    /// Runs a guard with this share until that `is_done`.
    fn down_to(&self, share: &str, is_done: impl Fn(&Guard) -> bool) -> GuardWork {
        let (config, pid) = (config(self.scratch, &self.group.path, share, "200ms"), self.pid.to_string());
        let guard = Guard::spawn(&["--config", &config, "--pid", &pid, "--duration", "20m"]);
        let (began, mut rounds) = (Instant::now(), Vec::new());
        let mut done = is_done(&guard);
        while !done && began.elapsed() < RUN_TIMEOUT {
            rounds.push((self.scans)(10));
            done = is_done(&guard);
        }
        let stopped = guard.has_event("cgroup", |event| event["news"] == "stopped");
        self.show(&format!("share {share}, done: {done}, stopped: {stopped}"));
        println!("  while it went down: {rounds:.1?} scans a minute");
        let ended = guard.stop();
        let summary = ended.summary();
        let reclaimed = summary["reclaimed_in_cgroups_bytes"][&self.group.path].as_u64().unwrap_or(0);
        println!(
            "  reclaimed {} MiB, released {} MiB of logs; the guard took {:.0} % of a core at ticks of 200 ms",
            reclaimed / MIB,
            summary["released_total_bytes"].as_u64().unwrap_or(0) / MIB,
            summary["cpu_percent"].as_f64().unwrap_or_default()
        );
        GuardWork { done, reclaimed, stopped, ended }
    }

    /// Runs with a share that leaves room for the hot table: other pages go, and few are refaulted.
    /// Then with one that leaves no room: it stops when hot pages are refaulted.
    fn both_ways(&self) {
        assert!(self.group.is_v2, "this test is for version 2");
        self.show("without");
        let (file, refaulted) = (self.group.file(), self.group.refaulted());
        let room = self.most * 3 / 10 + 2 * MIB;
        let first = self.down_to("30%", |_| self.group.file() <= room);
        let again = self.group.refaulted() - refaulted;
        println!("  read again {} MiB", again / MIB);
        let said = || format!("{:?}: {}", first.ended.events.last(), first.ended.stderr);
        assert!(first.reclaimed > 16 * MIB, "{}", said());
        // At the share, or stopped shortly before it by refaults: at most an eighth of the excess
        // is left.
        let (over, left) = (file.saturating_sub(room), self.group.file().saturating_sub(room));
        let near = first.stopped && left <= over / 8;
        assert!(first.done || near, "{left} bytes of {over} are over the share yet: {}", said());
        assert!(again <= first.reclaimed / 4, "{again} of {} came back", first.reclaimed);

        let stopped = |guard: &Guard| guard.has_event("cgroup", |event| event["news"] == "stopped");
        let second = self.down_to("3%", stopped);
        let (again, all) = (self.group.refaulted() - refaulted, first.reclaimed + second.reclaimed);
        println!("  read again {} MiB in all", again / MIB);
        assert!(second.stopped, "{:?}: {}", second.ended.events.last(), second.ended.stderr);
        assert!(again <= all / 4, "{again} of {all} came back");
        let events = std::fs::read_to_string(self.limited.join("memory.events")).expect("version 2 has it");
        println!("  memory.events: {}", events.trim().replace('\n', ", "));
        assert!(events.contains("oom_kill 0"), "{events}");
    }
}

#[test]
#[ignore = "minutes, and version 2: make test-cgroup-v2"]
fn beside_postgresql_idle_tables_go_and_the_hot_one_stays() {
    let test = "[cgroup] beside PostgreSQL";
    let programs = postgresql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run(test, &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let Some(tables) = IdleTables::start(test, scratch.path(), 340 * MIB) else { return };
    let scans = |seconds| tables.scans(seconds);
    let (group, pid) = (Group::of(tables.server.pid()), tables.server.pid());
    let limited = tables.memory.path();
    GroupDatabase { scratch: scratch.path(), group, limited, most: tables.memory_max(), pid, scans: &scans }
        .both_ways();
    tables.assert_nothing_is_lost();
}

#[test]
#[ignore = "minutes, and version 2: make test-cgroup-v2"]
fn beside_mariadb_binlogs_and_idle_tables_go_and_the_hot_one_stays() {
    let test = "[cgroup] beside MariaDB";
    if !support::can_run(test, &mariadb::REQUIRED_PROGRAMS) {
        return;
    }
    let _alone = support::alone();
    let limit = 400 * MIB;
    let Some(memory) = limited(test, limit) else { return };
    let scratch = support::scratch();
    let server = mariadb::Server::start(scratch.path(), mariadb::Options::primary());
    memory.add(server.pid());
    // MyISAM reads tables through the page cache; InnoDB has its own cache. The hot table has 64
    // MiB and is in no binlog; the other one has 100 MiB and is in a binlog, too.
    let make = |name: &str, rows: u64| {
        format!(
            "USE d; CREATE TABLE {name} (id INT, v CHAR(240) CHARACTER SET latin1 NOT NULL) ENGINE=MyISAM; \
             INSERT INTO {name} SELECT seq, REPEAT('x', 240) FROM seq_1_to_{rows}"
        )
    };
    server.query("CREATE DATABASE d");
    server.query(&format!("SET SESSION sql_log_bin = 0; {}", make("hot", 270_000)));
    server.query(&make("cold", 420_000));
    server.query("FLUSH TABLES; FLUSH BINARY LOGS");
    let count =
        |table: &str| server.query(&format!("SELECT COUNT(DISTINCT v) AS n FROM d.{table}"))[0]["n"].clone();
    assert_eq!((count("hot"), count("cold")), ("1".to_owned(), "1".to_owned()));
    let scans = |seconds: u64| {
        let (began, mut scans) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_secs(seconds) {
            server.query("SELECT MAX(v) AS v FROM d.hot");
            scans += 1;
        }
        f64::from(scans) * 60.0 / began.elapsed().as_secs_f64()
    };
    scans(20);
    let group = Group::of(server.pid());
    let limited = memory.path();
    GroupDatabase {
        scratch: scratch.path(),
        group,
        limited,
        most: limit + HEADROOM_BYTES,
        pid: server.pid(),
        scans: &scans,
    }
    .both_ways();
    assert_eq!(server.query("SELECT COUNT(*) AS n FROM d.cold")[0]["n"], "420000");
    let checked = server.query("CHECK TABLE d.hot, d.cold EXTENDED");
    assert!(checked.iter().all(|row| row["Msg_text"] == "OK"), "{checked:?}");
}
