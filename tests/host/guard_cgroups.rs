//! The guard with `[cgroup]` beside real memory cgroups: idle file pages of a group that is named go down to the share, those of another
//! stay; on version 1, and in a dry run, it is said what is not done.
//!
//! Needs root and a memory cgroup; skips with a sentence otherwise, and fails instead where `PAGEKEEPER_REQUIRE_ALL=1`. The test beside
//! `PostgreSQL` needs version 2 and minutes: `make test-cgroup-v2` runs it in a virtual machine.

use crate::support;
use crate::support::MIB;
use crate::support::command::run;
use crate::support::doctor_report;
use crate::support::guard::Guard;
use crate::support::memory_group::MemoryGroup;
use crate::support::postgresql::{Server, programs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The limit of the groups, and what is read into each.
const LIMIT: u64 = 200 * MIB;
const COLD: u64 = 64 * MIB;
/// A page here and there is charged to who wrote the file.
const LEAST: u64 = COLD - 4 * MIB;
/// The share of the limit that is asked for: 20 MiB.
const SHARE: &str = "10%";
/// Far longer than the steps take.
const DEADLINE: Duration = Duration::from_secs(300);

/// A program with a log open for writing, that has read a file which nobody reads again, in a group of its own.
struct Reader {
    child: Child,
    /// Goes with it, once it has ended.
    _group: MemoryGroup,
    directory: PathBuf,
}

impl Reader {
    fn start(test: &str, scratch: &Path, name: &str, limit: u64) -> Option<Self> {
        let group = MemoryGroup::new(test, limit)?;
        let directory = scratch.join(name);
        std::fs::create_dir(&directory).expect("make a directory");
        std::fs::write(directory.join("cold"), vec![7; usize::try_from(COLD).expect("it fits")])
            .expect("write");
        std::fs::File::open(directory.join("cold")).and_then(|file| file.sync_all()).expect("sync");
        support::evict(&directory.join("cold"));
        let script = "cat cold >/dev/null; exec 3>>binlog.000001; echo x >&3; echo ready; exec sleep 600";
        let mut command = group.command("sh");
        command.args(["-c", script]).current_dir(&directory).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("start a reader");
        let mut said = String::new();
        let output = child.stdout.take().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut said)
            .expect("read its output");
        assert_eq!(said, "ready\n");
        Some(Self { child, _group: group, directory })
    }

    fn group(&self) -> Group {
        Group::of(self.child.id())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The memory cgroup that a process is in: read here by the kernel's own names, not by what is tested.
struct Group {
    is_v2: bool,
    /// In the hierarchy.
    path: String,
    directory: PathBuf,
}

impl Group {
    fn of(pid: u32) -> Self {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
        let v1 = groups.lines().find_map(|line| line.split_once(":memory:"));
        let path = v1.or_else(|| groups.lines().find_map(|line| line.split_once("0::")));
        let path = path.expect("a memory cgroup").1.to_owned();
        let top = if v1.is_some() { "/sys/fs/cgroup/memory" } else { "/sys/fs/cgroup" };
        Self { is_v2: v1.is_none(), directory: PathBuf::from(format!("{top}{path}")), path }
    }

    fn stat(&self) -> BTreeMap<String, u64> {
        let text = std::fs::read_to_string(self.directory.join("memory.stat")).expect("a memory cgroup");
        let line = |line: &str| {
            let (name, figure) = line.split_once(' ').expect("a name and a figure");
            (name.to_owned(), figure.parse().expect("a number"))
        };
        text.lines().map(line).collect()
    }

    /// Page cache without shared memory, in bytes.
    fn file(&self) -> u64 {
        let stat = self.stat();
        if self.is_v2 { stat["file"] - stat["shmem"] } else { stat["total_cache"] - stat["total_shmem"] }
    }

    /// Bytes read again after they had been reclaimed.
    fn refaulted(&self) -> u64 {
        self.stat()["workingset_refault_file"] * 4096
    }
}

fn config(directory: &Path, group: &str, share: &str) -> String {
    let config = directory.join("guard.toml");
    let text = format!(
        "tick = \"200ms\"\nidle_tick = \"200ms\"\n[cgroup]\ngroups = [{group:?}]\nshare = \"{share}\"\nreclaim = \"file\"\ntick = \"200ms\"\n"
    );
    std::fs::write(&config, text).expect("write a configuration");
    config.to_str().expect("it is UTF-8").to_owned()
}

#[test]
fn a_group_that_is_named_goes_down_to_its_share_and_no_other() {
    let test = "[cgroup] in memory cgroups";
    if !support::can_run(test, &["setpriv"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let Some(named) = Reader::start(test, scratch.path(), "named", LIMIT) else { return };
    let Some(other) = Reader::start(test, scratch.path(), "other", LIMIT + MIB) else { return };
    let (group, bystander) = (named.group(), other.group());
    let config = config(scratch.path(), &group.path, SHARE);
    let pids = [named.child.id().to_string(), other.child.id().to_string()];
    let arguments = [
        "--config",
        &config,
        "--pid",
        &pids[0],
        "--pid",
        &pids[1],
        "--profile",
        "generic",
        "--duration",
        "10m",
    ];
    let before = (group.file(), bystander.file());
    assert!(before.0 >= LEAST && before.1 >= LEAST, "{before:?}");

    // In a dry run it is said, and nothing is done.
    let dry = Guard::spawn(&[&arguments[..], &["--dry-run"]].concat());
    let over = dry.wait_for("cgroup", DEADLINE, |event| event["news"] == "over");
    assert_eq!((&over["path"], &over["limit_bytes"]), (&group.path.clone().into(), &LIMIT.into()));
    assert!(over["file_bytes"].as_u64().is_some_and(|bytes| bytes.abs_diff(before.0) < 4 * MIB), "{over}");
    dry.wait_for("cgroup", DEADLINE, |event| event["news"] == "would_reclaim");
    assert!(
        dry.stop().summary()["reclaimed_in_cgroups_bytes"].as_object().is_some_and(serde_json::Map::is_empty)
    );
    assert!(group.file() >= LEAST);

    let guard = Guard::spawn(&arguments);
    if group.is_v2 {
        guard.wait_for("cgroup", DEADLINE, |event| event["news"] == "reclaimed");
        support::eventually("the group is at its share", DEADLINE, || {
            (group.file() <= LIMIT / 10 + 2 * MIB).then_some(())
        });
        let ended = guard.stop();
        let reclaimed = &ended.summary()["reclaimed_in_cgroups_bytes"];
        assert!(reclaimed[&group.path].as_u64() > Some(COLD / 2), "{reclaimed}");
        assert_eq!(reclaimed.as_object().map(serde_json::Map::len), Some(1), "{reclaimed}");
        assert!(!ended.events.iter().any(|event| event["event"] == "cgroup" && event["path"] != *group.path));
    } else {
        let problem = guard.wait_for("problem", DEADLINE, |event| event["path"] == *group.path);
        assert_eq!(
            problem["problem"],
            "control groups of version 1 have no memory.reclaim; version 2 has, since Linux 5.19"
        );
        let ended = guard.stop();
        assert!(group.file() >= LEAST);
        let problems =
            ended.events.iter().filter(|event| event["event"] == "problem" && event["path"] == *group.path);
        assert_eq!(problems.count(), 1, "said once");
    }
    assert!(bystander.file() >= LEAST, "a group that nobody named was touched");
    assert_eq!(std::fs::metadata(named.directory.join("cold")).expect("it is there").len(), COLD);
}

/// Has the hot table scanned for so many seconds, by a ring of few buffers, so that it comes from the page cache each time: scans
/// a minute.
fn throughput(server: &Server, script: &str, seconds: u32) -> f64 {
    let time = format!("--time={seconds}");
    let mut scans = server.pgbench(&["--no-vacuum", "--client=1", &time, "--file", script]);
    let output = scans.output().expect("start pgbench");
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("tps = ")).unwrap_or_else(|| panic!("{text}"));
    60.0 * line.split(' ').next().and_then(|figure| figure.parse::<f64>().ok()).expect("a number")
}

fn figures(name: &str, group: &Group, tps: f64) {
    let stat = group.stat();
    let mib = |name: &str| stat[name] / MIB;
    println!(
        "{name}: file {} MiB, active_file {} MiB, inactive_file {} MiB, refaulted {} MiB in all, {tps:.1} scans a minute",
        group.file() / MIB,
        mib("active_file"),
        mib("inactive_file"),
        group.refaulted() / MIB
    );
}

#[test]
#[ignore = "minutes, and version 2: make test-cgroup-v2"]
fn beside_postgresql_idle_tables_go_and_the_hot_one_stays() {
    let test = "[cgroup] beside PostgreSQL";
    let programs = programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run(test, &programs) {
        return;
    }
    let _alone = support::alone();
    let limit = 360 * MIB;
    let Some(memory) = MemoryGroup::new(test, limit) else { return };
    std::fs::write(memory.path().join("memory.high"), (340 * MIB).to_string()).expect("set memory.high");
    let scratch = support::scratch();
    let server = Server::start(scratch.path());
    for pid in server.device_bytes_read().keys() {
        memory.add(*pid);
    }
    let group = Group::of(server.pid());
    assert!(group.is_v2, "this test is for version 2");
    // The hot table, of 64 MiB, anew: what was brought in before is charged elsewhere. Then one that is written and read once.
    let made = server.pgbench(&["--initialize", "--quiet", "--scale=5"]).output().expect("start pgbench");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    server.query(
        "CREATE TABLE cold AS SELECT g, repeat('x', 900) AS filler FROM generate_series(1, 120000) AS g",
    );
    server.query("CHECKPOINT");
    server.query("SELECT count(*) FROM cold");
    let script = scratch.path().join("scan.sql");
    std::fs::write(&script, "SELECT sum(abalance) FROM pgbench_accounts;\n").expect("write a script");
    let script = script.to_str().expect("it is UTF-8");
    throughput(&server, script, 20);
    figures("without", &group, throughput(&server, script, 30));
    let (file, refaulted) = (group.file(), group.refaulted());

    // To a share that leaves room for what is hot: the rest goes, and next to nothing comes back.
    let pid = server.pid().to_string();
    let below = |share: &str, is_done: &dyn Fn(&Guard) -> bool| {
        let config = config(scratch.path(), &group.path, share);
        let guard = Guard::spawn(&["--config", &config, "--pid", &pid, "--duration", "20m"]);
        let (began, mut rounds) = (Instant::now(), Vec::new());
        while !is_done(&guard) && began.elapsed() < DEADLINE {
            rounds.push(throughput(&server, script, 10));
        }
        let stopped = guard.has_said("cgroup", |event| event["news"] == "stopped");
        figures(&format!("share {share}, stopped: {stopped}"), &group, throughput(&server, script, 30));
        println!("  while it went down: {rounds:.1?} scans a minute");
        let ended = guard.stop();
        let reclaimed = ended.summary()["reclaimed_in_cgroups_bytes"][&group.path].as_u64().unwrap_or(0);
        let cpu = ended.summary()["cpu_percent"].as_f64().unwrap_or_default();
        println!(
            "  reclaimed {} MiB; the guard took {cpu:.0} % of a core at ticks of 200 ms",
            reclaimed / MIB
        );
        (reclaimed, stopped, ended)
    };
    let (reclaimed, _, ended) = below("30%", &|_| group.file() <= limit * 3 / 10 + 2 * MIB);
    let again = group.refaulted() - refaulted;
    println!("  read again {} MiB", again / MIB);
    assert!(reclaimed > 16 * MIB, "{:?}: {}", ended.events.last(), ended.stderr);
    assert!(group.file() < file, "{} {file}", group.file());
    assert!(again <= reclaimed / 4, "{again} of {reclaimed} came back");

    // To one that leaves none: it stops where what is read again comes back. What the server has in its own buffers, too, may go.
    let (more, stopped, ended) =
        below("3%", &|guard| guard.has_said("cgroup", |event| event["news"] == "stopped"));
    let again = group.refaulted() - refaulted;
    println!("  read again {} MiB in all", again / MIB);
    assert!(stopped, "{:?}: {}", ended.events.last(), ended.stderr);
    assert!(again <= (reclaimed + more) / 4, "{again} of {reclaimed} and {more} came back");
    let events = std::fs::read_to_string(memory.path().join("memory.events")).expect("version 2 has it");
    assert!(events.contains("oom_kill 0"), "{events}");
    // Nothing is lost of what the table holds.
    assert_eq!(server.query("SELECT count(*) FROM cold"), "120000");
}

#[test]
fn the_doctors_figures_of_a_group_are_the_kernels() {
    let test = "the doctor on a group full of page cache";
    if !support::can_run(test, &["setpriv"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    // 64 MiB of page cache and little else, of 72: near the limit because of it.
    let limit = 72 * MIB;
    let Some(reader) = Reader::start(test, scratch.path(), "near", limit) else { return };
    let group = reader.group();
    let pid = reader.child.id().to_string();
    let outcome = run(["doctor", "--pid", &pid, "--watch", "1s", "--json"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let stat = group.stat();
    let usage = if group.is_v2 { "memory.current" } else { "memory.usage_in_bytes" };
    let usage: u64 = std::fs::read_to_string(group.directory.join(usage))
        .expect("it is there")
        .trim()
        .parse()
        .expect("a number");
    let report = doctor_report::of(&outcome);
    let findings = report["findings"].as_array().expect("findings");
    let found = findings
        .iter()
        .find(|finding| finding["kind"] == "cgroup-cache")
        .unwrap_or_else(|| panic!("{report:#}"));
    let figures = &found["evidence"][0]["figures"];
    let inactive = if group.is_v2 { "inactive_file" } else { "total_inactive_file" };
    let near = |name: &str, expected: u64| {
        let figure = figures[name].as_u64().unwrap_or_else(|| panic!("{name}: {found:#}"));
        // The kernel counts in batches for each processor, and the program itself is charged a little.
        assert!(figure.abs_diff(expected) <= 2 * MIB, "{name}: {figure}, not {expected}");
    };
    near("limit_bytes", limit);
    near("usage_bytes", usage);
    near("page_cache_bytes", group.file());
    near("inactive_file_bytes", stat[inactive]);
    near("working_set_bytes", usage - stat[inactive]);
}
