use super::*;
use crate::settings::{Engine, Settings};
use crate::testing::{DEV, MIB, database, file, opener, pages, pauses, residency, sample};
use crate::{FixKind, Streamer};
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::AccessMode;
use pagekeeper_observe::{OpenerKind, Snapshot};

fn find(observation: &Observation<'_>) -> Vec<Finding> {
    super::find(observation, EarlierFindings(&[]))
}

const LEVELS: DirtyLevels = DirtyLevels {
    dirty: 31 * MIB,
    setpoint: 28 * MIB,
    limit: 32 * MIB,
    device_dirty: 30 * MIB,
    device_setpoint: 27 * MIB,
};

/// Returns a RocksDB whose log and tables are written to one device.
fn rocksdb() -> (Snapshot, Snapshot) {
    let mut before = sample();
    before.databases = vec![database("rocksdb", 100, "/data")];
    let mut after = before.clone();
    let own = |name: &str, class| {
        let mut file = file(name, class, 64 * MIB, 0);
        file.openers.push(opener(100, "db_bench", OpenerKind::Buffered(AccessMode::WriteOnly)));
        file
    };
    after.files = vec![own("/data/000007.log", FileClass::Wal), own("/data/000009.sst", FileClass::Data)];
    let (log, table) = (after.files[0].inode, after.files[1].inode);
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pauses = Some(vec![
        pauses(100, "db_bench", &[20, 40, 10], LEVELS),
        pauses(100, "rocksdb:low", &[200, 200], LEVELS),
        pauses(55, "cp", &[200; 9], LEVELS),
    ]);
    trace.pages = Some(vec![
        pages(log, 100, "db_bench", 20 * MIB, 0),
        pages(table, 100, "rocksdb:low", 60 * MIB, 0),
        pages(Inode { dev: table.dev, ino: 1 }, 55, "cp", 20 * MIB, 0),
    ]);
    (before, after)
}

fn find_in(before: &Snapshot, after: &Snapshot) -> Vec<Finding> {
    let mut observation = Observation::new(before, after);
    observation.settings = vec![Settings::new(Engine::RocksDb)];
    find(&observation)
}

fn text(finding: &Finding) -> String {
    finding.evidence.iter().map(|evidence| evidence.text.clone() + "\n").collect()
}

#[test]
fn a_writer_that_waits_for_its_own_tables_is_reported() {
    let (before, after) = rocksdb();
    let findings = find_in(&before, &after);
    let kinds: Vec<Kind> = findings.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::SharedDevice, Kind::WritersThrottled]);
    let throttled = &findings[1];
    // 70 ms in 10 s, and none of 50 ms.
    assert_eq!(throttled.severity, Severity::Warning);
    assert_eq!(throttled.title, "its writers were throttled 3 times for dirty pages, for 70.0 ms in 10.0 s");
    assert!(throttled.cost.text.contains("the longest write 40.0 ms"), "{}", throttled.cost.text);
    let said = text(throttled);
    for part in [
        "db_bench (thread 100) was throttled 3 times, in 3 writes, for 70.0 ms in all, the longest write for \
         40.0 ms; on device \
         8:0, which holds /data",
        "31 MiB were dirty, 7 MiB over the 24 MiB where throttling begins; the limit is 32 MiB",
        "of 100 MiB written to device 8:0: 60 % by rocksdb (process 100) to its data files",
        "20 % by rocksdb (process 100) to its log (wal)",
        "20 % by cp (process 55)",
    ] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    // The writer comes first, however long its background threads were throttled.
    assert_eq!(throttled.evidence[0].figures["task"], "db_bench");
    assert_eq!(throttled.evidence[1].figures["background"], true);
    assert_eq!(throttled.fixes[0].act, "use_direct_io_for_flush_and_compaction=true");
    // The fix for throttling is reported once, and the one that moves the log is reported with the
    // log.
    let acts = |finding: &Finding| finding.fixes.iter().map(|fix| fix.act.clone()).collect::<Vec<_>>();
    assert_eq!(acts(&findings[0]), ["wal_dir=/ANOTHER/DISK"]);
    assert!(!acts(throttled).iter().any(|act| act.starts_with("sysctl")), "{:?}", throttled.fixes);
    let shared = text(&findings[0]);
    for part in [
        "20 MiB of log were written to device 8:0, which holds /data (such as 000007.log)",
        "60 MiB, 60 % of what was written there, were written by rocksdb (process 100) to its data files, such as \
         000009.sst",
        "20 MiB, 20 % of what was written there, were written by cp (process 55)",
    ] {
        assert!(shared.contains(part), "{part:?} in {shared}");
    }
}

#[test]
fn long_waits_are_critical_except_of_background_threads() {
    let (before, mut after) = rocksdb();
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pauses = Some(vec![pauses(100, "db_bench", &[60], LEVELS)]);
    assert!(find_in(&before, &after).iter().all(|finding| finding.severity == Severity::Serious));
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pauses = Some(vec![pauses(100, "rocksdb:low", &[200; 20], LEVELS)]);
    let findings = find_in(&before, &after);
    assert!(findings.iter().all(|finding| finding.severity == Severity::Note), "{findings:?}");
    assert!(findings[1].title.starts_with("its background threads were throttled 20 times"), "{findings:?}");
}

#[test]
fn pauses_of_other_programs_do_not_count_for_the_database() {
    let (before, mut after) = rocksdb();
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pauses.as_mut().unwrap().retain(|pause| pause.task.name == "cp");
    assert_eq!(find_in(&before, &after), []);
    after.databases[0].workers = vec![55];
    assert_eq!(find_in(&before, &after).len(), 2);
}

#[test]
fn a_log_on_another_device_shares_no_throttling() {
    let (before, mut after) = rocksdb();
    after.files[0].inode.dev += 1;
    let elsewhere = after.files[0].inode;
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages.as_mut().unwrap()[0].file = elsewhere;
    let findings = find_in(&before, &after);
    assert_eq!(findings.len(), 1);
    assert_eq!(findings[0].kind, Kind::WritersThrottled);
    // A log that is written directly does not count either.
    let (before, mut after) = rocksdb();
    after.files[0].openers[0].kind = OpenerKind::Direct(AccessMode::WriteOnly);
    assert_eq!(find_in(&before, &after).len(), 1);
}

#[test]
fn no_higher_global_limit_is_named_for_a_device_with_its_own() {
    let (before, mut after) = rocksdb();
    let machine = &mut after.change.as_mut().unwrap().machine;
    (machine.dirtied, machine.written) = (Some(100 * MIB), Some(90 * MIB));
    let named = |after: &Snapshot| {
        let found = find_in(&before, after).into_iter().find(|found| found.kind == Kind::WritersThrottled);
        let remarks = found.unwrap().remarks.into_iter();
        remarks.filter(|remark| remark.contains("see the finding")).collect::<Vec<_>>()
    };
    assert!(named(&after)[0].starts_with("a higher limit"), "{:?}", named(&after));
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pauses.as_mut().unwrap().iter_mut().for_each(|pause| pause.levels.dirty = 5 * MIB);
    assert_eq!(named(&after), ["the device has a limit of its own: see the finding on it"]);
}

#[test]
fn a_log_without_writes_shares_no_throttling() {
    let (before, mut after) = rocksdb();
    let log = after.files[0].inode;
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages.as_mut().unwrap().retain(|counts| counts.file != log);
    assert!(find_in(&before, &after).iter().all(|found| found.kind == Kind::WritersThrottled));
    // The log is overwritten in place.
    after.files[0].residency = Some(residency(MIB, 8192));
    let found = find_in(&before, &after);
    assert!(text(&found[0]).starts_with("8 KiB of log are dirty, for device 8:0"), "{}", text(&found[0]));
}

#[test]
fn pagekeeper_is_offered_for_the_largest_writer() {
    let (before, mut after) = rocksdb();
    after.databases[0].name = "db_bench".to_owned();
    let throttled = |after: &Snapshot| {
        let mut found = find_in(&before, after);
        found.pop().unwrap()
    };
    let own = throttled(&after);
    let now = own.pagekeeper.unwrap();
    assert!(now.starts_with("`pagekeeper run --profile rocksdb -- db_bench ...`"), "{now}");
    assert!(own.fixes.iter().all(|fix| fix.kind != FixKind::Command), "{:?}", own.fixes);
    // Another program writes more.
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages.as_mut().unwrap().push(pages(Inode { dev: DEV, ino: 2 }, 56, "dd", 900 * MIB, 0));
    let other = throttled(&after);
    let acts: Vec<&str> =
        other.fixes.iter().filter(|fix| fix.kind == FixKind::Command).map(|fix| fix.act.as_str()).collect();
    assert_eq!(acts, ["pagekeeper run -- dd ...", "dd oflag=direct bs=1M ..."]);
    assert!(other.pagekeeper.unwrap().contains("before dd"));
    // A program into which no library can be preloaded is not named.
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages.as_mut().unwrap().last_mut().unwrap().task.as_mut().unwrap().name = "kworker/u8:1".to_owned();
    assert!(throttled(&after).fixes.iter().all(|fix| fix.kind != FixKind::Command));
}

#[test]
fn background_processes_of_postgresql_serve_no_client() {
    let (before, mut after) = rocksdb();
    after.databases = vec![database("postgresql", 100, "/data")];
    after.databases[0].workers = vec![101, 102];
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pauses =
        Some(vec![pauses(101, "postgres", &[200; 9], LEVELS), pauses(102, "postgres", &[10], LEVELS)]);
    let mut observation = Observation::new(&before, &after);
    let titled = |pid, title: &str| Streamer {
        pid,
        title: title.to_owned(),
        cgroup: None,
        group_beside: None,
        has_ended: false,
        files: Vec::new(),
    };
    observation.streamers = vec![
        titled(101, "postgres: 15/main: background writer"),
        titled(102, "postgres: app app [local] INSERT"),
    ];
    let title = |observation: &Observation<'_>| find(observation).pop().unwrap().title;
    assert_eq!(title(&observation), "its writers were throttled once for dirty pages, for 10.0 ms in 10.0 s");
    observation.streamers[1].title = "postgres: checkpointer ".to_owned();
    assert!(
        title(&observation).starts_with("its background threads were throttled 10 times"),
        "{}",
        title(&observation)
    );
}

#[test]
fn lost_events_are_reported() {
    let (before, mut after) = rocksdb();
    after.change.as_mut().unwrap().trace.as_mut().unwrap().losses.no_room = 3;
    let findings = find_in(&before, &after);
    assert!(text(&findings[1]).contains("3 events were lost"), "{}", text(&findings[1]));
}

#[test]
fn the_fix_moves_the_log_that_is_written() {
    let mut before = sample();
    before.databases = vec![database("mariadb", 100, "/data")];
    let mut after = before.clone();
    let own = |name: &str, class, kind| {
        let mut file = file(name, class, 64 * MIB, 0);
        file.openers.push(opener(100, "mariadbd", kind));
        file
    };
    let (buffered, direct) =
        (OpenerKind::Buffered(AccessMode::ReadWrite), OpenerKind::Direct(AccessMode::ReadWrite));
    after.files = vec![
        own("/data/ib_logfile0", FileClass::Redo, direct),
        own("/data/aria_log.00000001", FileClass::Redo, buffered),
        own("/data/mysql-bin.000003", FileClass::Binlog, buffered),
        own("/data/t.MYD", FileClass::Data, buffered),
    ];
    let [_, aria, binlog, table] = [0, 1, 2, 3].map(|index| after.files[index].inode);
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pauses = Some(vec![pauses(100, "mariadbd", &[20], LEVELS)]);
    trace.pages = Some(vec![
        pages(aria, 100, "mariadbd", 8192, 0),
        pages(binlog, 100, "mariadbd", 20 * MIB, 0),
        pages(table, 100, "mariadbd", 60 * MIB, 0),
    ]);
    let mut observation = Observation::new(&before, &after);
    observation.settings = vec![Settings::new(Engine::MariaDb)];
    let shared = |observation: &Observation<'_>| {
        let found = find(observation).into_iter().find(|finding| finding.kind == Kind::SharedDevice).unwrap();
        (found.fixes[0].act.clone(), found.fixes.len(), found.evidence[0].figures["log_path"].clone())
    };
    let all = shared(&observation);
    assert_eq!((all.0.as_str(), all.1), ("log_bin=/ANOTHER/DISK/mysql-bin", 1));
    assert_eq!(all.2, "/data/mysql-bin.000003");
    // If as much goes to another log, that one is to be moved, too.
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages.as_mut().unwrap()[0] = pages(aria, 100, "mariadbd", 10 * MIB, 0);
    let mut observation = Observation::new(&before, &after);
    observation.settings = vec![Settings::new(Engine::MariaDb)];
    assert_eq!(shared(&observation).1, 2);
}
