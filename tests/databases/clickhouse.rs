//! `ClickHouse`, which reads the same parts of tables through the page cache or by direct I/O,
//! depending on the query. A direct scan under `pagekeeper run`, and the doctor beside it, leave
//! the parts in memory that other queries read there.
//!
//! Needs root, Debian's `clickhouse-server` and `util-linux`; skips with a sentence otherwise, and
//! fails instead where `PAGEKEEPER_REQUIRE_ALL=1`.

use crate::bulk::{ended, under_run};
use crate::support;
use crate::support::command::{finish, pagekeeper};
use crate::support::{MIB, doctor_report, kept_bytes, size_bytes};
use pagekeeper_testing::servers::{ClickHouse, LoggedServer as _};
use rustix::process::Signal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A deadline far longer than the doctor takes.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the parts after reading all of them through the page cache.
fn hot_parts(server: &ClickHouse) -> Vec<PathBuf> {
    server.scan(false);
    let parts = server.others().expect("it has data");
    let (kept, size) = (kept_bytes(&parts), size_bytes(&parts));
    assert!(size >= 64 * MIB && kept >= size, "{kept} bytes of {size} are resident");
    parts
}

#[test]
fn a_direct_scan_leaves_the_hot_parts_of_clickhouse_resident() {
    if !support::can_run("ClickHouse under run", &[&ClickHouse::REQUIRED_PROGRAMS[..], &["fincore"]].concat())
    {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let report = scratch.path().join("report");
    let mut server =
        ClickHouse::start_by(&scratch.path().join("clickhouse"), under_run("clickhouse", &report));
    server.put(80 * MIB);
    server.merge();
    let parts = hot_parts(&server);
    server.scan(true);
    let (kept, size) = (kept_bytes(&parts), size_bytes(&parts));
    assert!(kept >= size, "{kept} bytes of {size} are left by a direct scan");
    let run = server.pid();
    let said = ended(run, Signal::TERM, &report);
    assert_eq!(said["total"]["mixed_released_bytes"], 0, "{said:#}");
    assert!(said["total"]["mixed_kept_opens"].as_u64() > Some(0), "{said:#}");
    server.stop_and_restart();
    server.check_all();
}

#[test]
fn the_doctor_leaves_the_parts_of_clickhouse_to_it() {
    if !support::can_run(
        "the doctor beside ClickHouse",
        &[&ClickHouse::REQUIRED_PROGRAMS[..], &["fincore"]].concat(),
    ) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut server = ClickHouse::start(&scratch.path().join("clickhouse"));
    server.put(80 * MIB);
    server.merge();
    let parts = hot_parts(&server);
    let ends = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    server.scan(true);
                }
            });
        }
        let pid = server.pid().to_string();
        let report = support::eventually("the doctor sees a direct scan", WAIT_TIMEOUT, || {
            let doctor = ["doctor", "--json", "--fix", "--watch", "500ms", "--pid", &pid];
            let outcome = finish(pagekeeper().args(doctor));
            assert!(outcome.code == 0 && outcome.stderr.is_empty(), "{outcome:#?}");
            let report = doctor_report::of(&outcome);
            let is_seen = doctor_report::finding(&report, "mixed-io").is_some()
                && !report["fixed"].as_array()?.is_empty();
            is_seen.then_some(report)
        });
        ends.store(true, Ordering::Relaxed);
        report
    });
    let (kept, size) = (kept_bytes(&parts), size_bytes(&parts));
    assert!(kept >= size, "{kept} bytes of {size} are left by --fix: {report:#}");
    let mixed = doctor_report::finding(&report, "mixed-io").expect("found");
    assert!(mixed["title"].as_str().expect("text").contains("uses both on purpose"), "{mixed:#}");
    assert_eq!((&mixed["severity"], &mixed["fixes"]), (&"note".into(), &serde_json::json!([])), "{mixed:#}");
    for fixed in report["fixed"].as_array().expect("a list") {
        let why = fixed["left_alone"].as_str().unwrap_or_default();
        assert!(why.contains("through the page cache"), "{report:#}");
    }
}
