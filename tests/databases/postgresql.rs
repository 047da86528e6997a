//! The guard beside a real `PostgreSQL`: WAL segments that are recycled, and a follower that is in
//! step, hangs, and catches up.
//!
//! Needs root and Debian's `postgresql`; skips with a sentence otherwise, and fails instead where
//! `PAGEKEEPER_REQUIRE_ALL=1`. Residency is `fincore`'s, reads are the kernel's own counts.

use crate::support;
use crate::support::guard::Guard;
use crate::support::postgresql::{Follower, SEGMENT_BYTES, Server, WAL_BYTES};
use crate::support::{MIB, eventually, kept_bytes, resident_bytes, wait_until_resident_below};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Segments may hold this much of the page cache while a load runs: the one being written, the
/// three that a follower may still be reading, and a margin for what one tick writes.
const BUSY_LIMIT: u64 = (3 + 1) * SEGMENT_BYTES + 64 * MIB;

/// Maximum soon after the load.
const IDLE_LIMIT: u64 = SEGMENT_BYTES + MIB;

/// Device reads of processes whose log pages are resident: only those of a new process or the
/// system tables.
const FEW_READS: u64 = 4 * MIB;

/// Transactions a second, of some 100 KiB of WAL each.
const TRANSACTIONS_PER_SECOND: Option<u32> = Some(300);

const WAIT_TIMEOUT: Duration = Duration::from_secs(180);

const RUN_TIMEOUT: Duration = Duration::from_secs(400);

fn assert_bounded(server: &Server, guard: &Guard) {
    let resident = || resident_bytes(&server.segments());
    guard.assert_bounded(BUSY_LIMIT, resident(), resident);
}

fn wait_until_in_step(server: &Server) {
    eventually("the follower is in step", RUN_TIMEOUT, || (server.lag() == 0).then_some(()));
}

/// Compares the segments that are still there with the follower's copies. Reads past the page
/// cache: the guard would take pages that come there for a follower's.
fn assert_copied(server: &Server, follower: &Follower) {
    let mut compared = 0;
    for copy in follower.copies() {
        let segment = server.wal().join(copy.file_name().expect("a name"));
        if segment.exists() {
            let script = "dd if=\"$1\" bs=1M iflag=direct status=none | cmp - \"$2\"";
            let mut command = Command::new("sh");
            let done = command.args(["-c", script, "sh"]).arg(&segment).arg(&copy).status();
            assert!(done.expect("start sh").success(), "{} is not its copy", segment.display());
            compared += 1;
        }
    }
    assert!(compared >= 6, "only {compared} segments could be compared");
}

#[test]
fn the_wal_of_postgresql_stays_out_of_the_page_cache() {
    let programs = support::postgresql::programs();
    let programs: Vec<&str> = programs.iter().map(String::as_str).collect();
    if !support::can_run("PostgreSQL with a follower", &programs) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let server = Server::start(scratch.path());

    // Without a guard all segments stay, including recycled ones.
    server.write(WAL_BYTES, None, || ());
    let resident = kept_bytes(&server.segments());
    assert!(resident > BUSY_LIMIT, "only {resident} bytes of WAL are resident without a guard");

    let guard = Guard::spawn(&["--tick", "250ms"]);
    let found = guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == server.pid());
    assert_eq!(found["profile"], "postgresql");
    assert_eq!(found["directories"][0].as_str().map(Path::new), Some(server.wal().as_path()));
    let follower = server.follow();
    wait_until_in_step(&server);
    guard.wait_for_ticks(4);

    // With a near follower no read goes to the device, neither the follower's nor a recycling one.
    let sender = server.wal_sender();
    let before = server.device_bytes_read();
    server.write(WAL_BYTES * 3 / 2, TRANSACTIONS_PER_SECOND, || assert_bounded(&server, &guard));
    let read: u64 = server
        .device_bytes_read()
        .iter()
        .map(|(pid, bytes)| bytes - before.get(pid).copied().unwrap_or_default())
        .sum();
    assert!(read < FEW_READS, "{read} bytes were read from the device");
    assert_eq!(server.wal_sender(), sender, "the follower lost its connection, so this run shows nothing");

    // A follower that hangs holds nothing forever.
    follower.freeze();
    server.write(6 * SEGMENT_BYTES, TRANSACTIONS_PER_SECOND, || assert_bounded(&server, &guard));
    assert!(server.lag() > 3 * SEGMENT_BYTES, "the follower did not fall behind");
    follower.thaw();
    wait_until_in_step(&server);
    // A checkpoint recycles them.
    assert_copied(&server, &follower);
    // Until the server saves its slot, the slot shows the follower's old position.
    let restarts_in_last = "SELECT pg_current_wal_lsn() - restart_lsn < 16 << 20 FROM pg_replication_slots";
    eventually("the follower has its copies", WAIT_TIMEOUT, || {
        (server.query(restarts_in_last) == "t").then_some(())
    });
    server.query("CHECKPOINT");
    wait_until_resident_below(&server.segments(), IDLE_LIMIT, WAIT_TIMEOUT);

    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
    let troubles: Vec<_> = ended
        .events
        .iter()
        .filter(|event| event["event"] == "problem" || event["event"] == "warning")
        .filter(|event| {
            event["path"].as_str().is_some_and(|path| Path::new(path).starts_with(scratch.path()))
        })
        .collect();
    assert!(troubles.is_empty(), "{troubles:#?}");
    let released = ended.summary()["released_bytes"]["wal"].as_u64();
    assert!(released > Some(2 * WAL_BYTES), "{}", ended.summary());
    println!("{} bytes read; {}", read, ended.summary());
}
