//! Followers of a log that no descriptor shows to the guard: `RocksDB`'s `GetUpdatesSince`, which
//! opens the log, reads it from its beginning and closes it again, for each request, and a
//! secondary instance in another process. The guard notices them by read-backs, and keeps the log.
//!
//! Needs root, Debian's librocksdb-dev and a C++ compiler; skips with a sentence otherwise, and
//! fails instead where `PAGEKEEPER_REQUIRE_ALL=1`. Reads are the kernel's own counts.

use crate::rocksdb_driver::{Driver, Role, can_run};
use crate::support;
use crate::support::guard::Guard;
use crate::support::{MIB, eventually, resident_bytes};
use std::time::Duration;

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

/// Other reads of the kernel, such as metadata.
const FEW_READS: u64 = 4 * MIB;

/// Bytes of log written beside a guard: at least six times the bytes that a follower reads at
/// once.
const LOG_BYTES: u64 = 96 * MIB;

#[test]
fn a_log_that_its_own_process_reads_back_is_kept() {
    if !can_run("the guard beside RocksDB's GetUpdatesSince") {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    check_log_is_kept(&mut Driver::start(scratch.path(), Role::Followed), None);
}

#[test]
#[ignore = "long: make test-stories"]
fn a_log_that_a_secondary_instance_reads_back_is_kept() {
    if !can_run("the guard beside a secondary instance of RocksDB") {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let mut primary = Driver::start(scratch.path(), Role::Primary);
    // The secondary needs a database to open.
    primary.ask("put", MIB);
    let secondary = primary.secondary();
    check_log_is_kept(&mut primary, Some(&secondary));
}

/// Puts while the log is followed, perhaps by another process. Each released byte is read from the
/// device once, and later bytes never.
fn check_log_is_kept(database: &mut Driver, other: Option<&Driver>) {
    let device_bytes_read = |database: &Driver| other.unwrap_or(database).device_bytes_read();
    let log = |database: &Driver| database.files(|name| name.split('.').nth(1) == Some("log"));
    database.ask("put", LOG_BYTES / 4);
    let alone = device_bytes_read(database);
    assert!(
        alone < 2 * FEW_READS,
        "{alone} bytes are read even without a guard: nothing can be concluded here"
    );

    let pid = database.pid();
    let guard = Guard::spawn(&["--tick", "100ms", "--pid", &pid.to_string()]);
    guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == pid);
    database.ask("put", LOG_BYTES);
    let read = device_bytes_read(database) - alone;
    // All later bytes stay.
    let before = resident_bytes(&log(database));
    database.ask("put", LOG_BYTES / 4);
    eventually("written pages stay", WAIT_TIMEOUT, || {
        (resident_bytes(&log(database)) >= before + LOG_BYTES / 4 - MIB).then_some(())
    });
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let summary = ended.summary();
    let released = summary["released_bytes"]["wal"].as_u64().expect("a first release shows it the reader");
    let read_back = summary["read_back_bytes"]["wal"].as_u64().unwrap_or(0);
    println!("released {released} bytes, read back {read_back}; {read} bytes were read from the device");
    // Each released byte is read back once, and at most the threshold and one tick's reads twice.
    //
    assert!(read <= released + FEW_READS, "{read} bytes were read, {released} released: {summary}");
    assert!(released <= LOG_BYTES, "the log was released more than once: {summary}");
    assert!(0 < read_back && read_back <= released, "{summary}");
    let warned = ended.events.iter().filter(|event| {
        event["event"] == "warning"
            && event["warning"].as_str().is_some_and(|said| said.contains("read back"))
    });
    assert_eq!(warned.count(), 1, "{:#?}", ended.events);
}
