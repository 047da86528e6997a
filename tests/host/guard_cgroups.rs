//! The guard with `[cgroup]` beside real memory cgroups: idle file pages of a named group shrink
//! to the share, those of another group stay. On version 1, and in a dry run, the guard reports
//! what it does not do.
//!
//! Needs root and a memory cgroup; skips with a sentence otherwise, and fails instead where
//! `PAGEKEEPER_REQUIRE_ALL=1`. Beside databases: `guard_cgroups_databases`.

use crate::support;
use crate::support::MIB;
use crate::support::command::run;
use crate::support::doctor_report;
use crate::support::guard::Guard;
use crate::support::memory_group::MemoryGroup;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// The limit of the groups, and the bytes that are read into each.
const GROUP_LIMIT_BYTES: u64 = 200 * MIB;
const COLD_BYTES: u64 = 64 * MIB;
/// Anonymous memory that the program does not touch again.
const PROGRAM_MEMORY_BYTES: u64 = 32 * MIB;
/// Tolerance: a few pages are charged to the file's writer.
const COLD_BYTES_MIN: u64 = COLD_BYTES - 4 * MIB;
/// The configured share of the limit: 20 MiB.
const SHARE_PERCENT_TEXT: &str = "10%";
/// A deadline far longer than the steps take.
pub(crate) const RUN_TIMEOUT: Duration = Duration::from_secs(300);

/// A program in its own cgroup that has a log open for writing and has read a file once.
///
struct GroupReader {
    child: Child,
    /// Its cgroup, which is removed once the program has ended.
    _group: MemoryGroup,
    directory: PathBuf,
}

impl GroupReader {
    /// Starts the program; `own` is its anonymous memory in bytes.
    fn start(test: &str, scratch: &Path, name: &str, limit: u64, own: u64) -> Option<Self> {
        let group = MemoryGroup::new(test, limit)?;
        let directory = scratch.join(name);
        std::fs::create_dir(&directory).expect("make a directory");
        std::fs::write(directory.join("cold"), vec![7; usize::try_from(COLD_BYTES).expect("it fits")])
            .expect("write");
        std::fs::File::open(directory.join("cold")).and_then(|file| file.sync_all()).expect("sync");
        support::evict(&directory.join("cold"));
        let script = format!(
            "own=$(head -c {own} /dev/zero | tr '\\0' x); cat cold cold >/dev/null; exec 3>>binlog.000001; echo x >&3; echo ready; \
             kill -STOP $$"
        );
        let mut command = group.command("sh");
        command.args(["-c", &script]).current_dir(&directory).stdin(Stdio::null()).stdout(Stdio::piped());
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

impl Drop for GroupReader {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process's memory cgroup, read directly rather than by the tested code.
///
pub(crate) struct Group {
    pub(crate) is_v2: bool,
    /// Its path in the hierarchy.
    pub(crate) path: String,
    pub(crate) directory: PathBuf,
}

impl Group {
    pub(crate) fn of(pid: u32) -> Self {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("it runs");
        let v1 = groups.lines().find_map(|line| line.split_once(":memory:"));
        let path = v1.or_else(|| groups.lines().find_map(|line| line.split_once("0::")));
        let path = path.expect("a memory cgroup").1.to_owned();
        let top = if v1.is_some() { "/sys/fs/cgroup/memory" } else { "/sys/fs/cgroup" };
        Self { is_v2: v1.is_none(), directory: PathBuf::from(format!("{top}{path}")), path }
    }

    pub(crate) fn stat(&self) -> BTreeMap<String, u64> {
        let text = std::fs::read_to_string(self.directory.join("memory.stat")).expect("a memory cgroup");
        let line = |line: &str| {
            let (name, figure) = line.split_once(' ').expect("a name and a figure");
            (name.to_owned(), figure.parse().expect("a number"))
        };
        text.lines().map(line).collect()
    }

    /// Returns a number from a file whose name differs between versions 1 and 2.
    fn number(&self, v1: &str, v2: &str) -> u64 {
        let file = self.directory.join(if self.is_v2 { v2 } else { v1 });
        let text =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        text.trim().parse().expect("a number")
    }

    pub(crate) fn limit(&self) -> u64 {
        self.number("memory.limit_in_bytes", "memory.max")
    }

    pub(crate) fn usage(&self) -> u64 {
        self.number("memory.usage_in_bytes", "memory.current")
    }

    /// Returns the page cache without shared memory, in bytes.
    pub(crate) fn file(&self) -> u64 {
        let stat = self.stat();
        if self.is_v2 { stat["file"] - stat["shmem"] } else { stat["total_cache"] - stat["total_shmem"] }
    }

    /// Returns the time for which tasks in the group waited for memory: "some" of
    /// `memory.pressure`, in seconds. For version 2.
    pub(crate) fn waited(&self) -> f64 {
        let text =
            std::fs::read_to_string(self.directory.join("memory.pressure")).expect("pressure is measured");
        let total = text.lines().find_map(|line| line.strip_prefix("some ")?.split_once("total="));
        total.and_then(|(_, micros)| micros.parse::<f64>().ok()).expect("a total") / 1e6
    }

    /// Returns the bytes that were reclaimed and read again.
    pub(crate) fn refaulted(&self) -> u64 {
        self.stat()["workingset_refault_file"] * 4096
    }
}

/// Returns a configuration that keeps this cgroup to this share, with a step every `tick`.
pub(crate) fn config(directory: &Path, group: &str, share: &str, tick: &str) -> String {
    let config = directory.join("guard.toml");
    let text = format!(
        "tick = {tick:?}\nidle_tick = {tick:?}\n[cgroup]\ngroups = [{group:?}]\nshare = {share:?}\nreclaim = \"file\"\ntick = {tick:?}\n"
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
    let Some(named) =
        GroupReader::start(test, scratch.path(), "named", GROUP_LIMIT_BYTES, PROGRAM_MEMORY_BYTES)
    else {
        return;
    };
    let Some(other) = GroupReader::start(test, scratch.path(), "other", GROUP_LIMIT_BYTES + MIB, 0) else {
        return;
    };
    let (group, bystander) = (named.group(), other.group());
    let config = config(scratch.path(), &group.path, SHARE_PERCENT_TEXT, "200ms");
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
    assert!(before.0 >= COLD_BYTES_MIN && before.1 >= COLD_BYTES_MIN, "{before:?}");

    // In a dry run it is only reported.
    let dry = Guard::spawn(&[&arguments[..], &["--dry-run"]].concat());
    let over = dry.wait_for("cgroup", RUN_TIMEOUT, |event| event["news"] == "over");
    assert_eq!(
        (&over["path"], &over["limit_bytes"]),
        (&group.path.clone().into(), &GROUP_LIMIT_BYTES.into())
    );
    assert!(over["file_bytes"].as_u64().is_some_and(|bytes| bytes.abs_diff(before.0) < 4 * MIB), "{over}");
    dry.wait_for("cgroup", RUN_TIMEOUT, |event| event["news"] == "would_reclaim");
    assert!(
        dry.stop().summary()["reclaimed_in_cgroups_bytes"].as_object().is_some_and(serde_json::Map::is_empty)
    );
    assert!(group.file() >= COLD_BYTES_MIN);

    let guard = Guard::spawn(&arguments);
    if group.is_v2 {
        guard.wait_for("cgroup", RUN_TIMEOUT, |event| event["news"] == "reclaimed");
        support::eventually("the group is at its share", RUN_TIMEOUT, || {
            (group.file() <= GROUP_LIMIT_BYTES / 10 + 2 * MIB).then_some(())
        });
        let ended = guard.stop();
        let reclaimed = &ended.summary()["reclaimed_in_cgroups_bytes"];
        assert!(reclaimed[&group.path].as_u64() > Some(COLD_BYTES / 2), "{reclaimed}");
        assert_eq!(reclaimed.as_object().map(serde_json::Map::len), Some(1), "{reclaimed}");
        assert!(!ended.events.iter().any(|event| event["event"] == "cgroup" && event["path"] != *group.path));
        assert!(
            group.stat()["anon"] >= PROGRAM_MEMORY_BYTES,
            "the program's own memory stays: {:?}",
            group.stat()
        );
        let swapped = std::fs::read_to_string(group.directory.join("memory.swap.current"));
        assert_eq!(swapped.as_deref().map_or("0", str::trim), "0", "swapped out");
    } else {
        let problem = guard.wait_for("problem", RUN_TIMEOUT, |event| event["path"] == *group.path);
        assert_eq!(
            problem["problem"],
            "control groups of version 1 have no memory.reclaim; version 2 has, since Linux 5.19"
        );
        let ended = guard.stop();
        assert!(group.file() >= COLD_BYTES_MIN);
        let problems =
            ended.events.iter().filter(|event| event["event"] == "problem" && event["path"] == *group.path);
        assert_eq!(problems.count(), 1, "said once");
    }
    assert!(bystander.file() >= COLD_BYTES_MIN, "a group that nobody named was touched");
    assert_eq!(std::fs::metadata(named.directory.join("cold")).expect("it is there").len(), COLD_BYTES);
}

#[test]
fn the_doctors_figures_of_a_group_are_the_kernels() {
    let test = "the doctor on a group full of page cache";
    if !support::can_run(test, &["setpriv"]) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    // 64 MiB of page cache of a limit of 72: near the limit because of the page cache.
    let limit = 72 * MIB;
    let Some(reader) = GroupReader::start(test, scratch.path(), "near", limit, 0) else { return };
    let group = reader.group();
    let pid = reader.child.id().to_string();
    let outcome = run(["doctor", "--pid", &pid, "--watch", "1s", "--json"]);
    assert_eq!(outcome.code, 0, "{outcome:?}");
    let stat = group.stat();
    let usage = group.usage();
    let report = doctor_report::of(&outcome);
    let found = doctor_report::finding(&report, "cgroup-cache").unwrap_or_else(|| panic!("{report:#}"));
    let evidence = found["evidence"].as_array().expect("evidence");
    let inactive = if group.is_v2 { "inactive_file" } else { "total_inactive_file" };
    let near = |name: &str, expected: u64| {
        let figure = evidence.iter().find_map(|part| part["figures"][name].as_u64());
        let figure = figure.unwrap_or_else(|| panic!("{name}: {found:#}"));
        // The kernel counts in batches for each processor, and the program itself is charged a
        // little.
        assert!(figure.abs_diff(expected) <= 2 * MIB, "{name}: {figure}, not {expected}");
    };
    near("limit_bytes", limit);
    near("usage_bytes", usage);
    near("page_cache_bytes", group.file());
    near("inactive_file_bytes", stat[inactive]);
    near("working_set_bytes", usage - stat[inactive]);
}
