//! A follower of Cassandra's commit log: Cassandra's `archive_command`, which copies each segment
//! once it is full and closed.
//!
//! Needs root and Cassandra; skips with a sentence otherwise, and fails instead where
//! `PAGEKEEPER_REQUIRE_ALL=1`.

use crate::logged::can_run_jars;
use crate::support;
use crate::support::guard::Guard;
use crate::support::{MIB, eventually, resident_bytes};
use pagekeeper_testing::servers::{Cassandra, LoggedServer};
use std::path::{Path, PathBuf};
use std::time::Duration;

const WAIT_TIMEOUT: Duration = Duration::from_secs(120);
/// Bytes of a segment.
const SEGMENT_BYTES: u64 = 8 * MIB;

/// An archiver that opens a segment and reads it half a second later; a line in `reads` has the
/// bytes that it read from the device.
const ARCHIVER: &str =
    "exec 3<\"$1\"; sleep 0.5; cat <&3 >archive/\"$2.new\" && mv archive/\"$2.new\" archive/\"$2\" || exit 1
sed -n 's/^read_bytes: //p' /proc/$$/io >>reads\n";

fn archived(home: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(home.join("archive")).expect("a directory").flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "log"))
        .collect()
}

#[test]
#[ignore = "make test-databases fetches Cassandra"]
fn an_archiver_of_cassandra_that_lags_reads_nothing_from_the_disk() {
    if !can_run_jars("Cassandra", &Cassandra::REQUIRED_PROGRAMS, Cassandra::jars().as_ref()) {
        return;
    }
    let _alone = support::alone();
    let scratch = support::scratch();
    let home = scratch.path().join("cassandra");
    std::fs::create_dir_all(home.join("archive")).expect("make a directory");
    std::fs::write(home.join("archiver"), ARCHIVER).expect("write a script");
    let command = format!("archive_command=/bin/sh {} %path %name\n", home.join("archiver").display());
    std::fs::write(home.join("commitlog_archiving.properties"), command).expect("write its settings");
    let mut server = Cassandra::start(&home);
    server.put(SEGMENT_BYTES);
    let only = format!("dir:{}", scratch.path().to_str().expect("a path of this test's own"));
    let config = scratch.path().join("guard.toml");
    std::fs::write(&config, Cassandra::GUARD_RULES).expect("write rules");
    let config = config.to_str().expect("a path of this test's own");
    let guard = Guard::spawn(&["--tick", "100ms", "--only", &only, "--config", config]);
    let pid = server.pid();
    guard.wait_for("found", WAIT_TIMEOUT, |event| event["pid"] == pid && event["profile"] == "cassandra");
    // The archiver keeps up: a segment is full each second.
    for _ in 0..12 {
        server.put(SEGMENT_BYTES);
        std::thread::sleep(Duration::from_secs(1));
    }
    let reads = eventually("segments are archived", WAIT_TIMEOUT, || {
        let reads = std::fs::read_to_string(home.join("reads")).ok()?;
        let reads: Vec<u64> = reads.lines().map(|line| line.parse().expect("a number")).collect();
        (reads.len() >= 10).then_some(reads)
    });
    let copies = archived(&home);
    assert!(copies.len() >= 10, "{copies:?}");
    // Segments that the server still has equal their copies; and no page of the copies stays.
    for copy in &copies {
        let segment = home.join("data/commitlog").join(copy.file_name().expect("a name"));
        if let Ok(bytes) = std::fs::read(&segment) {
            assert!(bytes == std::fs::read(copy).expect("read a copy"), "{} differs", copy.display());
        }
    }
    // A program's own pages may have to be read.
    let from_disk = reads.iter().filter(|bytes| **bytes > MIB).count();
    assert!(
        reads.len() >= 10 && from_disk == 0,
        "{from_disk} of {} segments were read again: {reads:?}",
        reads.len()
    );
    eventually("segments that were archived are released", WAIT_TIMEOUT, || {
        (resident_bytes(&server.logs()) <= 5 * SEGMENT_BYTES).then_some(())
    });
    server.check_all();
    let ended = guard.stop();
    assert!(ended.status.success(), "{} {}", ended.status, ended.stderr);
}
