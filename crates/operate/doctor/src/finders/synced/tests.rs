use super::*;
use crate::settings::{Engine, Settings};
use crate::testing::{DEV, MIB, database, file, pages, sample, sync};
use crate::{Streamer, Syncs};
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::pressure::{BackingDevice, BackingDeviceStats};
use pagekeeper_observe::Snapshot;

const LOG: &str = "/data/0000000000000001.raftlog";

/// Returns a `RocksDB` with a log on the device of all files, and a `cp` that wrote `written` MiB
/// there.
fn beside_cp(written: u64) -> Snapshot {
    let mut after = sample();
    after.databases = vec![database("rocksdb", 100, "/data")];
    after.files = vec![file(LOG, FileClass::Wal, 64 * MIB, 0)];
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages = Some(vec![pages(Inode { dev: DEV, ino: 1 }, 55, "cp", written * MIB, 0)]);
    after
}

fn device(unwritten: u64) -> BackingDevice {
    BackingDevice {
        name: "8:0".to_owned(),
        read_ahead: 0,
        max_ratio: 100,
        max_bytes: Some(5000 * MIB),
        strict_limit: Some(false),
        stats: Some(BackingDeviceStats {
            writeback: 0,
            dirty: unwritten,
            dirty_threshold: 0,
            dirtied: 0,
            written: 0,
        }),
    }
}

/// Returns the findings on syncs of the log with these durations in milliseconds, one after the
/// other.
fn find(after: &Snapshot, lengths: &[u64]) -> Vec<Finding> {
    let mut observation = Observation::new(after, after);
    let mut began = 0;
    let calls = lengths.iter().map(|took| {
        let call = sync(100, LOG, began, *took);
        began += took;
        call
    });
    observation.syncs = Some(Syncs { looked: Duration::from_secs(10), calls: calls.collect(), lost: 0 });
    observation.settings = vec![Settings::new(Engine::TiKv)];
    observation.settings[0].version = Some("8.1.0".to_owned());
    observation.streamers = vec![Streamer {
        pid: 55,
        title: "cp a b".to_owned(),
        cgroup: None,
        group_beside: None,
        has_ended: false,
        files: Vec::new(),
    }];
    super::find(&observation, EarlierFindings(&[]))
}

fn acts(finding: &Finding) -> Vec<&str> {
    finding.fixes.iter().map(|fix| fix.act.as_str()).collect()
}

#[test]
fn syncs_that_wait_for_a_copy_are_reported_with_it_and_its_fixes() {
    let mut after = beside_cp(800);
    after.host.devices = vec![(DEV, device(240 * MIB))];
    let found = find(&after, &[2, 3000, 5000, 1]);
    assert_eq!(found.len(), 1);
    let found = &found[0];
    assert_eq!((found.kind, found.severity), (Kind::SyncedLog, Severity::Serious));
    assert_eq!(
        found.title,
        "syncs of its log (wal) took 8.0 s of 10.0 s, p99 5.0 s, the longest 5.0 s: they wait for data that cp wrote to the \
         same device"
    );
    let said: String = found.evidence.iter().map(|evidence| evidence.text.clone() + "\n").collect();
    for part in [
        "4 syncs by 1 thread, the longest a fdatasync of 0000000000000001.raftlog",
        "240 MiB were dirty or under writeback for device 8:0",
        "100 % by cp (process 55)",
    ] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    assert_eq!(
        acts(found),
        [
            "pagekeeper run -- cp ...",
            "echo 16777216 >/sys/class/bdi/8:0/max_bytes && echo 1 >/sys/class/bdi/8:0/strict_limit",
            "[raft-engine] dir = \"/ANOTHER/DISK\"",
        ]
    );
}

#[test]
fn short_syncs_are_no_finding() {
    assert_eq!(find(&beside_cp(800), &[99; 90]), []);
    assert_eq!(find(&beside_cp(800), &[100]).len(), 1);
    assert_eq!(find(&beside_cp(800), &[]), []);
}

#[test]
fn a_sync_without_data_of_others_is_a_finding_only_if_very_long() {
    assert_eq!(find(&beside_cp(0), &[900]), []);
    let found = find(&beside_cp(0), &[1000]);
    assert!(!found[0].title.contains("they wait for"), "{found:?}");
    assert!(found[0].remarks[0].starts_with("nobody was seen to write much"), "{found:?}");
    assert_eq!(acts(&found[0]), ["[raft-engine] dir = \"/ANOTHER/DISK\""]);
}

#[test]
fn data_that_was_dirty_before_has_no_known_writer() {
    let mut after = beside_cp(0);
    after.host.devices = vec![(DEV, device(240 * MIB))];
    let found = find(&after, &[500]);
    assert_eq!(found[0].severity, Severity::Warning);
    assert!(found[0].title.ends_with("data that was written to the same device before"), "{found:?}");
}

#[test]
fn compactions_count_as_the_databases_own_writes() {
    let mut after = beside_cp(0);
    let table = file("/data/000009.sst", FileClass::Data, 64 * MIB, 0);
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages = Some(vec![pages(table.inode, 100, "rocksdb:low", 60 * MIB, 0)]);
    after.files.push(table);
    let before = beside_cp(0);
    let mut observation = Observation::new(&before, &after);
    observation.syncs =
        Some(Syncs { looked: Duration::from_secs(10), calls: vec![sync(100, LOG, 0, 2000)], lost: 0 });
    observation.settings = vec![Settings::new(Engine::RocksDb)];
    let found = super::find(&observation, EarlierFindings(&[]));
    assert!(found[0].title.ends_with("other data that it wrote to the same device"), "{found:?}");
    assert!(acts(&found[0]).contains(&"bytes_per_sync=1048576"), "{found:?}");
}
