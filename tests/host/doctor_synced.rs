//! The doctor beside a real `PostgreSQL` whose commits wait for a copy to the same disk: each state
//! of the limits on dirty pages, and which fixes are printed in it.
//!
//! Needs root and `PostgreSQL`; skips with a sentence otherwise. Skips in any case on a host
//! without the blkio controller of cgroup version 1. The limits on dirty pages are the whole
//! machine's: they are low while a copy runs, and put back whatever happens.

use crate::support;
use crate::support::MIB;
use crate::support::command::run;
use crate::support::doctor_report::finding;
use crate::support::postgresql::{Server, programs};
use pagekeeper_testing::{LowDirtyLimits, ThrottledDisk};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Write rates of a slow and a quick disk, in bytes per second.
const SLOW_DISK_BYTES_PER_SECOND: u64 = 30_000_000;
const QUICK_DISK_BYTES_PER_SECOND: u64 = 400_000_000;
/// The dirty bytes at which background writeback begins, and at which writers wait.
const DIRTY_LIMITS_BYTES: (u64, u64) = (64 * MIB, 128 * MIB);
/// Bytes of the copy, more than either disk writes while the doctor watches.
const COPY_BYTES: u64 = 3 << 30;
const WATCH_DURATION: &str = "5s";
/// Runs of the doctor, since the machine, and the copy with it, may stall.
const ATTEMPTS_MAX: usize = 3;

/// A process that ends with its handle.
struct ChildProcess(Child);

impl ChildProcess {
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("start a program beside the server"))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the doctor on the server while a file is copied to its disk, and returns the first of some
/// reports for which `is_seen` is true.
fn beside_copy(server: &Server, from: &Path, to: &Path, is_seen: impl Fn(&Value) -> bool) -> Value {
    let mut report = Value::Null;
    for _ in 0..ATTEMPTS_MAX {
        let copy = ChildProcess::start(Command::new("cp").arg("--sparse=never").arg(from).arg(to));
        let outcome =
            run(["doctor", "--pid", &server.pid().to_string(), "--watch", WATCH_DURATION, "--json"]);
        drop(copy);
        std::fs::remove_file(to).expect("remove the copy");
        assert_eq!(outcome.code, 0, "{outcome:?}");
        report = support::doctor_report::of(&outcome);
        if is_seen(&report) {
            break;
        }
    }
    report
}

fn acts(finding: &Value) -> Vec<&str> {
    finding["fixes"]
        .as_array()
        .expect("fixes")
        .iter()
        .map(|fix| fix["act"].as_str().expect("an act"))
        .collect()
}

/// Returns each fix of each finding.
fn all_acts(report: &Value) -> Vec<&str> {
    report["findings"].as_array().expect("findings").iter().flat_map(acts).collect()
}

/// Fixes that would make each sync wait for more data.
fn is_harmful(act: &str) -> bool {
    act.starts_with("sysctl") || act.starts_with("echo 0 >/sys/class/bdi") || act.ends_with("/max_ratio")
}

#[test]
#[ignore = "long: make test-stories"]
fn commits_that_wait_for_a_copy_are_reported_with_fixes_for_each_state() {
    let needed = programs();
    let needed: Vec<&str> = needed
        .iter()
        .map(String::as_str)
        .chain(ThrottledDisk::REQUIRED_PROGRAMS)
        .chain(["cp", "mkfs.xfs"])
        .collect();
    let test = "synced commits on a slow disk";
    if !support::can_run(test, &needed) {
        return;
    }
    let _alone = support::alone();
    for kind in ["ext4", "xfs"] {
        for rate in [SLOW_DISK_BYTES_PER_SECOND, QUICK_DISK_BYTES_PER_SECOND] {
            let Some(disk) = ThrottledDisk::new(kind, test, 4 << 30, rate) else { return };
            support::open_to_others(disk.path());
            on(kind, &disk, rate);
        }
    }
}

fn on(kind: &str, disk: &ThrottledDisk, rate: u64) {
    let scratch = support::scratch();
    let from = scratch.path().join("from");
    std::fs::File::create(&from).and_then(|file| file.set_len(COPY_BYTES)).expect("make a file to copy");
    let server = Server::start_with(disk.path(), &[]);
    let made = server.pgbench(&["--initialize", "--quiet", "--scale=1"]).output().expect("start pgbench");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let _load = ChildProcess::start(&mut server.pgbench(&[
        "--no-vacuum",
        "--skip-some-updates",
        "--client=4",
        "--time=600",
    ]));
    let limits = LowDirtyLimits::new(DIRTY_LIMITS_BYTES.0, DIRTY_LIMITS_BYTES.1);
    let to = disk.path().join("copy");
    if rate == QUICK_DISK_BYTES_PER_SECOND {
        // The server's commits may wait too little to be reported; no fix may make them wait
        // longer.
        let report = beside_copy(&server, &from, &to, |report| finding(report, "dirty-limits").is_some());
        assert!(finding(&report, "dirty-limits").is_some(), "{kind}: {report:#}");
        assert!(!all_acts(&report).into_iter().any(is_harmful), "{kind}: {report:#}");
        return;
    }

    // The global limits are reached.
    let report = beside_copy(&server, &from, &to, |report| {
        finding(report, "synced-log").is_some() && finding(report, "dirty-limits").is_some()
    });
    let synced = finding(&report, "synced-log").unwrap_or_else(|| panic!("{kind}: not found: {report:#}"));
    assert!(
        synced["title"].as_str().expect("a title").contains("they wait for data that cp wrote"),
        "{synced:#}"
    );
    let figures = &synced["evidence"][0]["figures"];
    assert_eq!(figures["device"], disk.device(), "{kind}: {synced:#}");
    let path = figures["path"].as_str().expect("the file");
    assert!(path.contains("/pg_wal/"), "{kind}: {path}");
    let seconds = |name: &str| figures[name].as_f64().expect("a time");
    assert!(
        seconds("longest_seconds") <= seconds("synced_seconds")
            && seconds("synced_seconds") <= seconds("watched_seconds"),
        "{synced:#}"
    );
    let cap = format!(
        "echo 16777216 >/sys/class/bdi/{0}/max_bytes && echo 1 >/sys/class/bdi/{0}/strict_limit",
        disk.device()
    );
    let own = acts(synced);
    assert_eq!(own[0], "pagekeeper run -- cp ...", "{kind}: {synced:#}");
    let bdi = PathBuf::from(format!("/sys/class/bdi/{}", disk.device()));
    let can_bound = bdi.join("max_bytes").exists() && bdi.join("strict_limit").exists();
    assert_eq!(own.contains(&cap.as_str()), can_bound, "{kind}: {synced:#}");
    assert!(own.iter().any(|act| act.starts_with("move pg_wal")), "{kind}: {synced:#}");
    assert!(!all_acts(&report).into_iter().any(is_harmful), "{kind}: {report:#}");
    let limited = finding(&report, "dirty-limits").unwrap_or_else(|| panic!("{kind}: no limits: {report:#}"));
    assert!(limited["remarks"].to_string().contains("no higher limit is named"), "{kind}: {limited:#}");

    // With the bound, the device's own limit is reached: no fix lifts it, and none is named twice.
    //
    drop(limits);
    if can_bound {
        with_bound(&bdi, || {
            let report = beside_copy(&server, &from, &to, |report| finding(report, "dirty-limits").is_some());
            let acts = all_acts(&report);
            assert!(!acts.iter().any(|act| is_harmful(act) || *act == cap), "{kind}: {report:#}");
        });
    }
}

/// Runs the doctor while the device's dirty pages are bounded.
fn with_bound(bdi: &Path, act: impl FnOnce()) {
    struct RestoredLimits<'a>(&'a Path);
    impl Drop for RestoredLimits<'_> {
        fn drop(&mut self) {
            set(self.0, "strict_limit", "0");
            set(self.0, "max_ratio", "100");
        }
    }
    fn set(bdi: &Path, name: &str, value: &str) {
        std::fs::write(bdi.join(name), value).expect("set a limit of a device");
    }
    let _unbound = RestoredLimits(bdi);
    set(bdi, "max_bytes", &(16 * MIB).to_string());
    set(bdi, "strict_limit", "1");
    act();
}
