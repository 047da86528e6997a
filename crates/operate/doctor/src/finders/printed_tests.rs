//! Tests which fixes for writeback are printed with and without syncs on a device: each state once,
//! against the book's table.
//!
//! The effect of a fix on the longest commit is shown by the benchmarks and by the end-to-end test
//! on a slow disk. Here it is only a word, since tests assert no times.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::pressure::{BackingDevice, DirtyLimit, MemoryCgroup};
use pagekeeper_observe::Snapshot;
use pagekeeper_policy::FileClass;
use pagekeeper_trace::DirtyLevels;

use super::examine;
use crate::settings::{Engine, Settings};
use crate::testing::{DEV, GIB, MIB, cgroup, database, file, pages, pauses, sample, sync};
use crate::{Kind, Observation, Streamer, Syncs};

/// Findings whose fixes change what is dirty, or when it is written.
const KINDS: [Kind; 6] = [
    Kind::SyncedLog,
    Kind::WritersThrottled,
    Kind::SharedDevice,
    Kind::DirtyLimits,
    Kind::CgroupCache,
    Kind::MemoryShort,
];
const LOG: &str = "/data/000007.log";

/// The effect of each fix on the longest commit if somebody syncs on that device.
const EFFECTS: [(&str, &str); 9] = [
    ("sysctl -w vm.dirty_bytes=N", "longer"),
    ("echo N >/sys/class/bdi/N:N/strict_limit", "longer"),
    ("echo N >/sys/class/bdi/N:N/max_ratio", "longer"),
    ("echo N >/sys/class/bdi/N:N/max_bytes && echo N >/sys/class/bdi/N:N/strict_limit", "shorter"),
    ("pagekeeper run -- cp ...", "shorter"),
    ("wal_dir=/ANOTHER/DISK", "as without the others' data"),
    ("use_direct_io_for_flush_and_compaction=true", "not measured"),
    ("bytes_per_sync=N", "not measured"),
    ("wal_bytes_per_sync=N", "not measured"),
];

/// Returns a `RocksDB` beside a `cp` on one device and in one memory cgroup, both throttled there
/// at these levels.
fn state(levels: DirtyLevels, strict: bool) -> Snapshot {
    let mut after = sample();
    let mut own = database("rocksdb", 100, "/data");
    own.cgroup = Some(group());
    after.databases = vec![own];
    after.files = vec![file(LOG, FileClass::Wal, 64 * MIB, 0)];
    let dirty = &mut after.host.dirty;
    (dirty.parameters.background, dirty.parameters.limit) =
        (DirtyLimit::Bytes(16 * MIB), DirtyLimit::Bytes(32 * MIB));
    dirty.thresholds = dirty.parameters.thresholds(dirty.dirtyable);
    let device = BackingDevice {
        name: "8:0".to_owned(),
        read_ahead: 0,
        max_ratio: if strict { 1 } else { 100 },
        max_bytes: Some(5 * GIB),
        strict_limit: Some(strict),
        stats: None,
    };
    after.host.devices = vec![(DEV, device)];
    let change = after.change.as_mut().unwrap();
    (change.machine.dirtied, change.machine.written) = (Some(400 * MIB), Some(380 * MIB));
    let trace = change.trace.as_mut().unwrap();
    trace.pauses = Some(vec![pauses(100, "db", &[60], levels), pauses(55, "cp", &[60], levels)]);
    let log = after.files[0].inode;
    trace.pages = Some(vec![
        pages(log, 100, "db", 20 * MIB, 0),
        pages(Inode { dev: DEV, ino: 1 }, 55, "cp", 300 * MIB, 0),
    ]);
    after
}

/// Returns a group that is mostly dirty, and at its limit.
fn group() -> MemoryCgroup {
    MemoryCgroup { dirty: Some(500 * MIB), ..cgroup(1020 * MIB, GIB) }
}

/// Returns the acts of all fixes, with numbers as "N".
fn acts(after: &Snapshot, syncs: Option<Syncs>) -> BTreeSet<String> {
    let mut before = after.clone();
    before.files.clear();
    let mut observation = Observation::new(&before, after);
    observation.settings = vec![Settings::new(Engine::RocksDb)];
    observation.streamers = vec![Streamer {
        pid: 55,
        title: "cp a b".to_owned(),
        cgroup: Some(group()),
        group_beside: None,
        has_ended: false,
        files: Vec::new(),
    }];
    let found = examine(&observation.with_syncs(syncs));
    let found = found.into_iter().filter(|finding| KINDS.contains(&finding.kind));
    found.flat_map(|finding| finding.fixes).map(|fix| without_numbers(&fix.act)).collect()
}

fn without_numbers(act: &str) -> String {
    let mut text = String::new();
    for letter in act.chars() {
        match letter {
            '0'..='9' if text.ends_with('N') => {}
            '0'..='9' => text.push('N'),
            other => text.push(other),
        }
    }
    text
}

/// Returns the acts in either state: the global limits full, or the device's own.
fn in_any_state(syncs: impl Fn() -> Syncs) -> BTreeSet<String> {
    let whole =
        DirtyLevels { dirty: 31 * MIB, setpoint: 28 * MIB, limit: 32 * MIB, ..DirtyLevels::default() };
    let own = DirtyLevels { dirty: 5 * MIB, ..whole };
    let states = [state(whole, false), state(own, true)];
    states.iter().flat_map(|state| acts(state, Some(syncs()))).collect()
}

#[test]
fn the_book_shows_which_fixes_are_printed_where_somebody_syncs() {
    let looked = Duration::from_secs(10);
    let without = in_any_state(|| Syncs { looked, ..Syncs::default() });
    let with = in_any_state(|| Syncs { looked, calls: vec![sync(100, LOG, 0, 3000)], lost: 0 });
    let printed =
        |acts: &BTreeSet<String>, act: &str| if acts.contains(act) { "printed" } else { "not printed" };
    let row = |(act, effect): &(&str, &str)| {
        let (alone, beside) = (printed(&without, act), printed(&with, act));
        format!("| `{act}` | {alone} | {beside} | {effect} |")
    };
    let expected: Vec<String> = EFFECTS.iter().map(row).collect();
    for (act, effect) in EFFECTS {
        assert!(effect != "longer" || !with.contains(act), "{act} has each sync wait for more");
        assert!(with.contains(act) || without.contains(act), "{act} is printed nowhere: {with:?}");
    }
    let named: BTreeSet<String> = EFFECTS.iter().map(|(act, _)| (*act).to_owned()).collect();
    let missing: Vec<&String> = with.union(&without).filter(|act| !named.contains(*act)).collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/src/reference/doctor.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let lines = page.lines().skip_while(|line| !line.starts_with("| fix | where nobody syncs |"));
    let shown: Vec<&str> = lines.skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(shown == expected, "the table of fixes in the book should be\n{}\n", expected.join("\n"));
}
