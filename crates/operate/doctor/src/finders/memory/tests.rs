use super::*;
use crate::StreamerFile;
use crate::observation::Releasable;
use crate::testing::{DEV, GIB, MIB, cgroup, change, file, pages, residency, sample};
use crate::{FixKind, examine};
use pagekeeper_kernel::Residency;
use pagekeeper_kernel::process::AccessMode;
use pagekeeper_observe::{HostChange, Snapshot};
use pagekeeper_trace::{ReclaimCounts, TaskIdentity};

fn find(observation: &Observation<'_>) -> Vec<Finding> {
    examine(observation).into_iter().filter(|finding| finding.kind == Kind::MemoryShort).collect()
}

fn reclaim(process: u32, name: &str, kind: ReclaimKind, milliseconds: &[u64]) -> ReclaimCounts {
    ReclaimCounts {
        task: TaskIdentity { process, thread: process, name: name.to_owned() },
        kind,
        stalls: milliseconds.iter().copied().map(Duration::from_millis).collect(),
        reclaimed: MIB,
    }
}

/// Returns a snapshot after 10 s with these waits.
fn snapshot_after(waits: Vec<ReclaimCounts>) -> Snapshot {
    let mut change: HostChange = change();
    change.trace.as_mut().unwrap().reclaim = Some(waits);
    Snapshot { change: Some(change), ..sample() }
}

/// Returns the group of a database at its limit, with this many bytes read again.
fn group_with_refaults(bytes: u64) -> MemoryCgroup {
    let pages = bytes / pagekeeper_kernel::page_size();
    MemoryCgroup { file_refaults: Some(pages), ..cgroup(GIB, GIB) }
}

#[test]
fn a_host_at_rest_is_not_short_of_memory() {
    let mut after = snapshot_after(Vec::new());
    after.host.memory.free = after.host.watermarks.low - 1;
    let before = sample();
    assert_eq!(find(&Observation::new(&before, &after)), [], "free memory low, but nobody waits");
    // Rereads are not waits for memory, and 0.3 % of the time is too little.
    let machine = &mut after.change.as_mut().unwrap().machine;
    (machine.refaulted, machine.allocation_stalls) = (Some(GIB), Some(1));
    machine.memory_stalled = Some(Duration::from_millis(30));
    assert_eq!(find(&Observation::new(&before, &after)), []);
    // 90 milliseconds in ten seconds are not reported.
    let after = self::snapshot_after(vec![reclaim(7, "cc1", ReclaimKind::Machine, &[40, 50])]);
    assert_eq!(find(&Observation::new(&before, &after)), []);
}

#[test]
fn waiting_tasks_are_named_with_their_wait() {
    let mut after = snapshot_after(vec![
        reclaim(7, "cc1", ReclaimKind::Machine, &[100, 50]),
        reclaim(100, "mariadbd", ReclaimKind::Machine, &[200, 300, 100]),
        reclaim(9, "other", ReclaimKind::Group, &[9000]),
    ]);
    after.host.memory.free = 70 * MIB;
    after.files = vec![file("/var/lib/mysql/binlog.000001", FileClass::Binlog, GIB, GIB)];
    let before = sample();
    let mut observation = Observation::new(&before, &after);
    observation.releasable = vec![Releasable { file: after.files[0].inode, resident: GIB }];
    let found = find(&observation);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].severity, &found[0].database), (Severity::Warning, &None));
    assert_eq!(
        found[0].evidence[1].text,
        "had to reclaim memory themselves: mariadbd (process 100) 3 times, 600.0 ms in all, 300.0 ms at most; \
         cc1 (process 7) 2 times, 150.0 ms in all, 100.0 ms at most"
    );
    assert!(found[0].evidence[0].text.contains("below what starts background reclaim"), "{found:?}");
    assert_eq!(found[0].cost.text, "Tasks waited for memory 7.5 % of the time.");
    assert!(found[0].pagekeeper.as_ref().unwrap().contains("1 GiB"));
}

#[test]
fn without_tracing_pressure_or_at_least_a_count_is_reported() {
    let mut after = snapshot_after(Vec::new());
    let before = sample();
    let change = after.change.as_mut().unwrap();
    change.trace = None;
    change.machine.memory_stalled = Some(Duration::from_secs(2));
    change.machine.allocation_stalls = Some(41);
    let found = find(&Observation::new(&before, &after));
    assert_eq!(found[0].severity, Severity::Serious);
    assert!(found[0].evidence[1].text.starts_with("2.0 s of 10.0 s"), "{found:?}");
    assert_eq!(found[0].evidence[2].text, "tasks had to reclaim memory themselves 41 times");
    after.change.as_mut().unwrap().machine.memory_stalled = None;
    let found = find(&Observation::new(&before, &after));
    assert_eq!(found[0].severity, Severity::Note);
    assert!(found[0].cost.text.contains("not known"), "{found:?}");
}

#[test]
fn a_cgroup_at_its_limit_full_of_dirty_logs_is_reported() {
    let mut after = snapshot_after(vec![
        reclaim(101, "mariadbd", ReclaimKind::Group, &[20]),
        reclaim(5, "neighbour", ReclaimKind::Group, &[9000]),
    ]);
    after.databases[0].workers = vec![101];
    after.databases[0].cgroup =
        Some(MemoryCgroup { dirty: Some(100 * MIB), writeback: Some(50 * MIB), ..cgroup(1020 * MIB, GIB) });
    let mut log = file("/var/lib/mysql/binlog.000001", FileClass::Binlog, 400 * MIB, 400 * MIB);
    log.residency = Some(residency(400 * MIB, 90 * MIB));
    after.files.push(log);
    let before = sample();
    let mut observation = Observation::new(&before, &after);
    observation.releasable = vec![Releasable { file: after.files[0].inode, resident: 300 * MIB }];
    let found = find(&observation);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].severity, Severity::Warning);
    assert_eq!(found[0].title, "its memory cgroup is at its limit of 1 GiB");
    assert!(found[0].evidence[0].text.ends_with("150 MiB of that dirty or being written"), "{found:?}");
    assert_eq!(found[0].evidence[1].figures["log_releasable_bytes"], 300 * MIB);
    assert!(found[0].evidence[2].text.contains("mariadbd (process 101) 1 time"), "{found:?}");
    assert!(!found[0].evidence[2].text.contains("neighbour"));
    assert!(found[0].pagekeeper.as_ref().unwrap().contains("300 MiB"));
}

#[test]
fn waits_at_a_cgroups_limit_do_not_count_for_the_host() {
    let mut after = snapshot_after(Vec::new());
    let mut before = sample();
    let machine = &mut after.change.as_mut().unwrap().machine;
    machine.memory_stalled = Some(Duration::from_secs(3));
    machine.allocation_stalls = Some(0);
    assert_eq!(find(&Observation::new(&before, &after)), [], "nobody had to reclaim the host's memory");

    before.databases[0].cgroup = Some(cgroup(GIB, GIB));
    let pages = 20 * MIB / pagekeeper_kernel::page_size();
    after.databases[0].cgroup = Some(MemoryCgroup { file_refaults: Some(pages), ..cgroup(GIB, GIB) });
    // Nobody was seen to bring its files in, so the rereads are not its own.
    let found = find(&Observation::new(&before, &after));
    assert_eq!((found.len(), found[0].severity), (1, Severity::Note));
    let table = file("/var/lib/mysql/db/t.ibd", FileClass::Data, 8 * GIB, 0);
    let brought = crate::testing::pages(table.inode, 100, "mariadbd", 3 * GIB, 0);
    after.change.as_mut().unwrap().trace.as_mut().unwrap().pages = Some(vec![brought]);
    after.files = vec![table];
    let found = find(&Observation::new(&before, &after));
    assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
    assert!(found[0].evidence[2].text.starts_with("3.0 s of 10.0 s at least one task"), "{found:?}");
    assert_eq!(found[0].evidence[3].figures["refaulted_bytes"], 20 * MIB);
    assert_eq!(found[0].cost.text, "2 MiB/s are read from storage again because the data does not fit.");
    assert!(found[0].remarks.last().unwrap().starts_with("`pagekeeper size --cgroup "), "{found:?}");
    let more = found[0].fixes.last().unwrap();
    assert_eq!(more.kind, FixKind::System);
    assert!(more.act.starts_with(&format!("echo {} > ", GIB + 256 * MIB)), "{more:?}");

    // Memory for the pages it misses, not for everything reclaimed since the files were created,
    // nor for logs.
    let mut table = file("/var/lib/mysql/db/t.ibd", FileClass::Data, 8 * GIB, 0);
    let taken = |evicted, recently| {
        Some(Residency { evicted: Some(evicted), recently_evicted: Some(recently), ..residency(0, 0) })
    };
    table.residency = taken(7 * GIB, 448 * MIB);
    let mut log = file("/var/lib/mysql/binlog.000001", FileClass::Binlog, 8 * GIB, 0);
    log.residency = taken(7 * GIB, 7 * GIB);
    after.files = vec![table, log];
    let found = find(&Observation::new(&before, &after));
    let more = found[0].fixes.last().unwrap();
    assert!(more.act.starts_with(&format!("echo {} > ", GIB + 448 * MIB)), "{more:?}");
    assert!(more.does.contains("room for 448 MiB of its files"), "{more:?}");
    let again = &mut after.databases[0].cgroup.as_mut().unwrap().file_refaults;
    *again = Some(2 * GIB / pagekeeper_kernel::page_size());
    let found = find(&Observation::new(&before, &after));
    assert!(found[0].fixes.last().unwrap().act.starts_with(&format!("echo {} > ", 3 * GIB)), "{found:?}");
    *after.databases[0].cgroup.as_mut().unwrap() =
        MemoryCgroup { file_refaults: Some(pages), ..cgroup(GIB, GIB) };

    // A little is reread whatever the limit.
    after.databases[0].cgroup.as_mut().unwrap().file_refaults = Some(pages / 20);
    let found = find(&Observation::new(&before, &after));
    assert_eq!(found[0].severity, Severity::Note);
    assert!(found[0].cost.text.starts_with("Little now"), "{found:?}");

    after.change.as_mut().unwrap().machine.allocation_stalls = None;
    let found = find(&Observation::new(&before, &after));
    assert_eq!(found[0].database, None, "the cgroup they waited for is unknown: {found:?}");
}

#[test]
fn refaults_of_a_neighbour_do_not_count_for_the_database() {
    const BIG: Inode = Inode { dev: DEV, ino: 1 };
    let mut before = sample();
    before.databases[0].cgroup = Some(group_with_refaults(0));
    let table = file("/var/lib/mysql/db/t.MYD", FileClass::Data, GIB, 500 * MIB);
    let mut after = snapshot_after(Vec::new());
    after.databases[0].cgroup = Some(group_with_refaults(520 * MIB));
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages = Some(vec![
        pages(BIG, 77, "tar", 2000 * MIB, 1700 * MIB),
        pages(table.inode, 100, "mariadbd", 2 * MIB, 0),
    ]);
    after.files = vec![table];
    let mut observation = Observation::new(&before, &after);
    observation.streamers = vec![Streamer {
        pid: 77,
        title: "tar -cf - /big".to_owned(),
        cgroup: Some(group_with_refaults(0)),
        group_beside: None,
        has_ended: false,
        files: vec![StreamerFile { inode: BIG, path: "/big/1".into(), access: AccessMode::ReadOnly }],
    }];
    let found = find(&observation);
    assert_eq!(found[0].severity, Severity::Note, "{found:#?}");
    assert!(!found[0].fixes.iter().any(|fix| fix.kind == FixKind::System), "{found:#?}");
    let by = "not the database's, by tar (process 77), which brought in";
    assert!(found[0].cost.text.contains(by), "{found:#?}");
    let last = &found[0].evidence.last().unwrap();
    assert!(last.text.contains("of those, 2 MiB at most are of the database's"), "{last:?}");
    // If some events were lost, the owner is unknown.
    after.change.as_mut().unwrap().trace.as_mut().unwrap().losses.skipped = 1;
    let found = find(&Observation::new(&before, &after));
    assert!(found[0].evidence.last().unwrap().text.ends_with("were not traced"), "{found:#?}");
    assert_eq!(found[0].severity, Severity::Warning);
}

#[test]
fn refaults_of_unlisted_files_count_for_the_database_that_reads_them() {
    const LIBRARY: Inode = Inode { dev: DEV, ino: 7 };
    let mut before = sample();
    before.databases[0].cgroup = Some(group_with_refaults(0));
    let mut after = snapshot_after(Vec::new());
    after.databases[0].cgroup = Some(group_with_refaults(520 * MIB));
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages = Some(vec![pages(LIBRARY, 100, "mariadbd", 600 * MIB, 500 * MIB)]);
    let found = find(&Observation::new(&before, &after));
    assert_eq!(found[0].severity, Severity::Warning, "{found:#?}");
    assert!(!found[0].cost.text.contains("its own data fits"), "{found:#?}");
    assert_eq!(found[0].fixes.last().unwrap().kind, FixKind::System, "{found:#?}");
    // Without tasks, the owner of such a file's pages is unknown.
    after.change.as_mut().unwrap().trace.as_mut().unwrap().pages.as_mut().unwrap()[0].task = None;
    let found = find(&Observation::new(&before, &after));
    assert!(found[0].evidence.last().unwrap().text.ends_with("were not traced"), "{found:#?}");
    assert_eq!(found[0].severity, Severity::Warning);
}

#[test]
fn an_ended_reader_does_not_prove_that_the_data_fits() {
    const BIG: Inode = Inode { dev: DEV, ino: 1 };
    let mut before = sample();
    before.databases[0].cgroup = Some(group_with_refaults(0));
    let mut after = snapshot_after(Vec::new());
    after.databases[0].cgroup = Some(group_with_refaults(520 * MIB));
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages =
        Some(vec![pages(BIG, 77, "tar", 20 * MIB, 0), pages(BIG, 78, "cat", 2000 * MIB, 1700 * MIB)]);
    let mut observation = Observation::new(&before, &after);
    let streamer = |pid, title: &str, cgroup| Streamer {
        pid,
        title: title.to_owned(),
        cgroup,
        group_beside: None,
        has_ended: false,
        files: Vec::new(),
    };
    observation.streamers =
        vec![streamer(77, "tar -cf - /big", Some(group_with_refaults(0))), streamer(78, "", None)];
    let found = find(&observation);
    let text = &found[0].cost.text;
    assert!(!text.contains("its own data fits"), "{text}");
    assert!(text.contains("by tar (process 77), which brought in 20 MiB"), "{text}");
    let ended = "cat (process 78) brought in 2 GiB, has ended meanwhile, and its cgroup is not known";
    assert!(text.contains(&ended.replace("2 GiB", &ByteSize(2000 * MIB).to_string())), "{text}");
    assert!(!found[0].fixes.iter().any(|fix| fix.kind == FixKind::System), "{found:#?}");
}

#[test]
fn a_stream_is_fixed_before_a_limit_is_raised() {
    const BIG: Inode = Inode { dev: DEV, ino: 1 };
    let mut before = sample();
    before.databases[0].cgroup = Some(group_with_refaults(0));
    let mut table = file("/var/lib/mysql/db/t.MYD", FileClass::Data, GIB, 500 * MIB);
    before.files = vec![table.clone()];
    table.residency.as_mut().unwrap().evicted = Some(400 * MIB);
    let mut after = snapshot_after(Vec::new());
    after.databases[0].cgroup = Some(group_with_refaults(520 * MIB));
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages = Some(vec![
        pages(BIG, 77, "tar", 2000 * MIB, 1700 * MIB),
        pages(table.inode, 100, "mariadbd", 200 * MIB, 300 * MIB),
    ]);
    after.files = vec![table];
    let mut observation = Observation::new(&before, &after);
    observation.streamers = vec![Streamer {
        pid: 77,
        title: "tar -cf - /big".to_owned(),
        cgroup: Some(group_with_refaults(0)),
        group_beside: None,
        has_ended: false,
        files: vec![StreamerFile { inode: BIG, path: "/big/1".into(), access: AccessMode::ReadOnly }],
    }];
    let streams = examine(&observation).into_iter().filter(|finding| finding.kind == Kind::Stream);
    assert_eq!(streams.count(), 1);
    let found = find(&observation);
    assert_eq!(found[0].cost.text, "20 MiB/s are read from storage again because a stream took its memory.");
    assert!(!found[0].fixes.iter().any(|fix| fix.kind == FixKind::System), "{found:?}");
    let first = found[0].remarks.last().unwrap();
    assert!(first.starts_with("first fix the stream (tar (process 77) reads"), "{first:?}");
    observation.streamers.clear();
    let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
    trace.pages.as_mut().unwrap().remove(0);
    let found = find(&Observation::new(&before, &after));
    assert_eq!(found[0].fixes.last().unwrap().kind, FixKind::System);
}

#[test]
fn a_cgroup_below_its_limit_or_without_one_is_not() {
    let before = sample();
    for group in [cgroup(900 * MIB, GIB), MemoryCgroup { effective_limit: None, ..cgroup(GIB, GIB) }] {
        let mut after = snapshot_after(Vec::new());
        after.databases[0].cgroup = Some(group);
        assert_eq!(find(&Observation::new(&before, &after)), []);
    }
    let mut after = snapshot_after(Vec::new());
    after.databases[0].cgroup = Some(cgroup(GIB, GIB));
    let found = find(&Observation::new(&before, &after));
    assert_eq!(found[0].severity, Severity::Note, "full of clean pages");
}
