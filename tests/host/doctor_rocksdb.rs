//! The doctor beside a real `RocksDB` whose writer is throttled for dirty pages: found, fixed,
//! gone.
//!
//! Needs root and Debian's rocksdb-tools; skips with a sentence otherwise, and fails instead where
//! `PAGEKEEPER_REQUIRE_ALL=1`. Skips in any case on a host without the blkio controller of cgroup
//! version 1. The limits on dirty pages are the whole machine's: they are low while a load runs,
//! some ten seconds each, and put back whatever happens.

use crate::support;
use crate::support::MIB;
use crate::support::command::run;
use crate::support::doctor_report::finding;
use pagekeeper_testing::{LowDirtyLimits, ThrottledDisk};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Maximum bytes per second of the disk, and the rate of puts. Each byte goes to the log, to a
/// table, and through one or two merges: far more than the disk can write.
const DISK_RATE: u64 = 40_000_000;
const PUT_PART: (u64, u64) = (5, 8);
/// The dirty bytes at which background writeback begins, and at which writers wait.
const DIRTY_LIMITS_BYTES: (u64, u64) = (16 * MIB, 32 * MIB);
const WATCH_DURATION: &str = "6s";
/// Attempts to see a fixed database undisturbed: other programs write on this machine, too.
const ATTEMPTS_MAX: usize = 3;

/// A running `db_bench` that ends with its handle.
struct DbBenchLoad(Child);

impl DbBenchLoad {
    /// Starts puts at a limited rate with an unsynced log; only the rate limits them, not the
    /// levels.
    fn start(database: &Path, output: &Path, rate: u64, more: &[&str]) -> Self {
        let output = std::fs::File::create(output).expect("make a file");
        let child = Command::new("setpriv")
            .args(["--pdeathsig=KILL", "--", "db_bench", "--benchmarks=fillrandom", "--value_size=1000"])
            .args(["--num=1000000000", "--duration=600", "--compression_type=none"])
            .arg(format!("--benchmark_write_rate_limit={rate}"))
            .args(["--write_buffer_size=33554432", "--max_write_buffer_number=20"])
            .args(["--level0_file_num_compaction_trigger=4", "--level0_slowdown_writes_trigger=1000"])
            .args(["--level0_stop_writes_trigger=1000", "--max_background_jobs=4"])
            .args(["--target_file_size_base=33554432", "--max_bytes_for_level_base=134217728"])
            .arg(format!("--db={}", database.display()))
            .args(more)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output)
            .spawn()
            .expect("start db_bench");
        let mut load = Self(child);
        let io = PathBuf::from(format!("/proc/{}/io", load.0.id()));
        support::eventually("db_bench puts", Duration::from_secs(300), || {
            let ended = load.0.try_wait().expect("wait for db_bench");
            assert!(ended.is_none(), "db_bench ended by itself: {ended:?}");
            // The first tables have been written.
            (support::io_counter(&io, "wchar") > 64 * MIB).then_some(())
        });
        load
    }

    fn examine(&self) -> Value {
        let pid = self.0.id().to_string();
        let outcome = run(["doctor", "--pid", &pid, "--watch", WATCH_DURATION, "--json"]);
        assert_eq!(outcome.code, 0, "{outcome:?}");
        support::doctor_report::of(&outcome)
    }
}

impl Drop for DbBenchLoad {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a load on an empty database, inspects it, and removes everything.
fn with_load<T>(disk: &ThrottledDisk, more: &[&str], inspect: impl FnOnce(&DbBenchLoad) -> T) -> T {
    let database = disk.path().join("database");
    let rate = disk.pace(DISK_RATE) * PUT_PART.0 / PUT_PART.1;
    let limits = LowDirtyLimits::new(DIRTY_LIMITS_BYTES.0, DIRTY_LIMITS_BYTES.1);
    let load = DbBenchLoad::start(&database, &disk.path().with_extension("out"), rate, more);
    let seen = inspect(&load);
    drop(load);
    drop(limits);
    std::fs::remove_dir_all(&database).expect("remove the database");
    seen
}

#[test]
fn a_writer_that_waits_for_compaction_is_found_and_fixed() {
    let programs: Vec<&str> = [&ThrottledDisk::REQUIRED_PROGRAMS[..], &["db_bench", "setpriv"]].concat();
    let test = "RocksDB on a slow disk";
    if !support::can_run(test, &programs) {
        return;
    }
    let _alone = support::alone();
    let Some(disk) = ThrottledDisk::new("ext4", test, 4 << 30, DISK_RATE) else { return };

    // Uses a watch during which the machine did not stall.
    let examine = |load: &DbBenchLoad| {
        let reported = |report: &Value| {
            finding(report, "writers-throttled").is_some_and(|throttled| throttled["severity"] == "serious")
                && ["shared-device", "dirty-limits"].iter().all(|kind| finding(report, kind).is_some())
        };
        let mut report = load.examine();
        for _ in 1..ATTEMPTS_MAX {
            if reported(&report) {
                break;
            }
            report = load.examine();
        }
        report
    };
    let report = with_load(&disk, &[], examine);
    let throttled = finding(&report, "writers-throttled").unwrap_or_else(|| panic!("not found: {report:#}"));
    assert_eq!(throttled["severity"], "serious", "{throttled:#}");
    let writer = &throttled["evidence"][0]["figures"];
    assert_eq!(writer["task"], "db_bench", "{throttled:#}");
    assert_eq!(writer["background"], false);
    assert_eq!(writer["device"], disk.device());
    assert!(writer["pauses"].as_u64() > Some(0) && writer["throttled_seconds"].as_f64() > Some(0.0));
    let evidence = |name: &str| {
        let all = throttled["evidence"].as_array().expect("evidence");
        all.iter().map(|one| &one["figures"][name]).find(|figure| !figure.is_null()).cloned()
    };
    assert!(evidence("over_bytes").is_some_and(|over| over.as_u64() > Some(0)), "{throttled:#}");
    assert_eq!(evidence("limit_bytes"), Some(DIRTY_LIMITS_BYTES.1.into()), "{throttled:#}");
    let owners = evidence("shares").expect("the owner of the pages");
    assert!(owners[0]["owner"].as_str().is_some_and(|owner| owner.contains("db_bench")), "{owners:#}");
    assert!(
        owners.as_array().expect("shares").iter().any(|share| share["class"] == "data"),
        "tables are among what was written: {owners:#}"
    );
    let direct = "use_direct_io_for_flush_and_compaction";
    let fixes = throttled["fixes"].as_array().expect("fixes");
    assert!(
        fixes.iter().any(|fix| fix["act"].as_str().is_some_and(|act| act.starts_with(direct))),
        "{throttled:#}"
    );
    let together = finding(&report, "shared-device").unwrap_or_else(|| panic!("not found: {report:#}"));
    assert_eq!(together["evidence"][0]["figures"]["device"], disk.device());
    let limits = finding(&report, "dirty-limits").unwrap_or_else(|| panic!("not found: {report:#}"));
    let forms = &limits["evidence"][0]["figures"];
    assert_eq!(forms["limit_bytes"], DIRTY_LIMITS_BYTES.1, "{limits:#}");
    assert!(
        limits["fixes"][0]["act"].as_str().is_some_and(|act| act.starts_with("sysctl -w vm.dirty_bytes=")),
        "{limits:#}"
    );

    // The reported fix.
    let gone = || {
        let option = format!("--{direct}=true");
        let report = with_load(&disk, &[&option], DbBenchLoad::examine);
        let left = ["writers-throttled", "shared-device"].map(|kind| finding(&report, kind).cloned());
        if left.iter().all(Option::is_none) { Ok(()) } else { Err(left) }
    };
    let tries: Vec<_> = (0..ATTEMPTS_MAX).map_while(|_| gone().err()).collect();
    assert!(tries.len() < ATTEMPTS_MAX, "it still waits: {:#?}", tries.last());
}
