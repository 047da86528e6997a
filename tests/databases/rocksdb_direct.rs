//! `RocksDB` whose flushes and compactions write tables by direct I/O, while all reads go through
//! the page cache: neither `pagekeeper run` nor the doctor removes pages of tables that were read.
//!
//! Needs root, Debian's librocksdb-dev and a C++ compiler; skips with a sentence otherwise, and
//! fails instead where `PAGEKEEPER_REQUIRE_ALL=1`.

use crate::bulk::{ended, under_run};
use crate::rocksdb_driver::{Driver, Role, can_run};
use crate::support;
use crate::support::command::run;
use crate::support::{MIB, doctor_report, kept_bytes, size_bytes};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

fn tables(database: &Driver) -> Vec<PathBuf> {
    database.files(|name| name.split('.').nth(1) == Some("sst"))
}

/// Tables that were written by direct I/O and then read through the page cache, with their resident
/// bytes. They have second names, since a compaction removes RocksDB's, and a file without a name
/// loses its pages.
fn hot_tables(database: &mut Driver, scratch: &Path) -> (Vec<PathBuf>, u64) {
    database.ask("put", 64 * MIB);
    database.ask("read", 0);
    let hot = scratch.join("hot");
    std::fs::create_dir(&hot).expect("make a directory");
    for table in tables(database) {
        std::fs::hard_link(&table, hot.join(table.file_name().expect("a name"))).expect("link a table");
    }
    let hot = support::files_in(&hot);
    let (kept, size) = (kept_bytes(&hot), size_bytes(&hot));
    assert!(size >= 64 * MIB && kept >= size / 10 * 9, "{kept} bytes of {size} are resident");
    (hot, kept)
}

#[test]
#[ignore = "long: make test-stories"]
fn direct_compactions_under_run_leave_the_hot_tables_of_rocksdb_resident() {
    if !can_run("RocksDB with direct compactions under run") {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let report = scratch.path().join("report");
    let mut database = Driver::start_by(&under_run("rocksdb", &report), scratch.path(), Role::Direct);
    let (hot, before) = hot_tables(&mut database, scratch.path());
    database.ask("compact", 0);
    let merged = tables(&database);
    let (written, size) = (kept_bytes(&merged), size_bytes(&merged));
    assert!(size >= 64 * MIB && written < size / 2, "{written} bytes of {size}: not written by direct I/O");
    let after = kept_bytes(&hot);
    assert!(after >= before, "{after} bytes of {before} are left by a direct compaction");
    let said = ended(database.pid(), Signal::TERM, &report);
    assert_eq!(said["total"]["mixed_released_bytes"], 0, "{said:#}");
    assert_eq!(said["total"]["bulk_released_bytes"], 0, "{said:#}");
}

#[test]
#[ignore = "long: make test-stories"]
fn the_doctor_leaves_the_hot_tables_of_rocksdb_to_it() {
    if !can_run("the doctor beside RocksDB with direct compactions") {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut database = Driver::start(scratch.path(), Role::Direct);
    let (hot, before) = hot_tables(&mut database, scratch.path());
    let pid = database.pid().to_string();
    let ends = AtomicBool::new(false);
    let report = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                database.ask("put", 16 * MIB);
                database.ask("compact", 0);
            }
        });
        let outcome = run(["doctor", "--json", "--fix", "--watch", "4s", "--pid", &pid]);
        ends.store(true, Ordering::Relaxed);
        outcome
    });
    assert!(report.code == 0 && report.stderr.is_empty(), "{report:#?}");
    let report = doctor_report::of(&report);
    let after = kept_bytes(&hot);
    assert!(after >= before, "{after} bytes of {before} are left by --fix: {report:#}");
    if let Some(mixed) = doctor_report::finding(&report, "mixed-io") {
        assert!(mixed["title"].as_str().expect("text").contains("uses both on purpose"), "{mixed:#}");
        assert_eq!(
            (&mixed["severity"], &mixed["fixes"]),
            (&"note".into(), &serde_json::json!([])),
            "{mixed:#}"
        );
    }
    println!("{:#}", report["findings"]);
}
