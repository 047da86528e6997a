//! Streams and databases as plain data.

use super::*;
use crate::StreamerFile;
use crate::settings::{Engine, Settings};
use crate::testing::{DEV, GIB, MIB, database, file, pages, sample};
use crate::{Kind, Severity};
use pagekeeper_kernel::pressure::CgroupVersion;
use pagekeeper_kernel::process::AccessMode;
use pagekeeper_observe::Snapshot;
use pagekeeper_policy::FileClass;
use pagekeeper_trace::{ReclaimCounts, ReclaimKind};
use std::path::PathBuf;

fn find(observation: &Observation<'_>) -> Vec<Finding> {
    super::find(observation, EarlierFindings(&[]))
}

const SERVER: u32 = 100;
const BACKEND: u32 = 101;
const TAR: u32 = 77;
const BIG: Inode = Inode { dev: DEV, ino: 1 };

fn group(directory: &str, limit: Option<u64>) -> MemoryCgroup {
    MemoryCgroup {
        version: CgroupVersion::V1,
        directory: PathBuf::from(directory),
        usage: 0,
        limit,
        effective_limit: limit,
        file: 0,
        shmem: None,
        dirty: None,
        writeback: None,
        inactive_file: 0,
        active_file: 0,
        file_refaults: Some(1000),
        limited_by: None,
        events: pagekeeper_kernel::pressure::MemoryEvents::default(),
    }
}

/// A server and a stream in one group: 300 MiB of its table left, and 200 MiB of it came back.
struct Host {
    before: Snapshot,
    after: Snapshot,
    streamers: Vec<Streamer>,
}

impl Host {
    fn new() -> Self {
        let mut before = sample();
        let mut server = database("postgresql", SERVER, "/pg");
        server.workers = vec![BACKEND];
        server.cgroup = Some(group("/m/db", Some(GIB)));
        before.databases = vec![server];
        before.files = vec![
            file("/pg/base/1", FileClass::Data, 500 * MIB, 500 * MIB),
            file("/pg/pg_wal/1", FileClass::Wal, 16 * MIB, 16 * MIB),
        ];
        let mut after = before.clone();
        after.databases[0].cgroup.as_mut().unwrap().file_refaults = Some(1000 + 25_600);
        after.files[0].residency.as_mut().unwrap().evicted = Some(100 * MIB);
        let streamer = Streamer {
            pid: TAR,
            title: "tar -cf - /big".to_owned(),
            cgroup: Some(group("/m/db", Some(GIB))),
            group_beside: Some("/m/stream-77".into()),
            has_ended: false,
            files: vec![StreamerFile { inode: BIG, path: "/big/1".into(), access: AccessMode::ReadOnly }],
        };
        let mut host = Self { before, after, streamers: vec![streamer] };
        let table = host.table();
        let trace = host.trace();
        trace.pages = Some(vec![
            pages(BIG, TAR, "tar", 2000 * MIB, 1700 * MIB),
            pages(table, TAR, "tar", 0, 250 * MIB),
            pages(table, BACKEND, "postgres", 200 * MIB, 50 * MIB),
        ]);
        trace.reclaim = Some(vec![ReclaimCounts {
            task: trace.pages.as_ref().unwrap()[0].task.clone().unwrap(),
            kind: ReclaimKind::Group,
            stalls: [].into_iter().collect(),
            reclaimed: 1950 * MIB,
        }]);
        host
    }

    fn table(&self) -> Inode {
        self.after.files[0].inode
    }

    fn trace(&mut self) -> &mut TraceCounts {
        self.after.change.as_mut().unwrap().trace.as_mut().unwrap()
    }

    fn pages(&mut self) -> &mut Vec<PageCounts> {
        self.trace().pages.as_mut().unwrap()
    }

    /// Makes the host short of memory.
    fn host_reclaims(&mut self) {
        self.after.change.as_mut().unwrap().machine.reclaimed_directly = Some(500 * MIB);
    }

    fn find(&self) -> Vec<Finding> {
        let mut observation = Observation::new(&self.before, &self.after);
        observation.settings = vec![Settings::new(Engine::PostgreSql)];
        observation.streamers.clone_from(&self.streamers);
        find(&observation)
    }
}

fn text(finding: &Finding) -> String {
    finding.evidence.iter().map(|evidence| evidence.text.clone() + "\n").collect()
}

#[test]
fn a_stream_in_the_same_group_is_reported() {
    let findings = Host::new().find();
    assert_eq!(findings.len(), 1);
    let found = &findings[0];
    assert_eq!((found.kind, found.severity), (Kind::Stream, Severity::Serious));
    assert_eq!(
        found.title,
        "tar (process 77) reads 200 MiB/s through the page cache and pushes its pages out"
    );
    let said = text(found);
    for part in [
        "tar (process 77, \"tar -cf - /big\") brought 2.0 GiB into the page cache in 10.0 s, 200 MiB/s, most of it of /big/1",
        "300 MiB of its data left the page cache, 30 MiB/s; 100 MiB more than before were missing",
        "its own processes brought 200 MiB in, 20 MiB/s",
        "counted 100 MiB read in again after it had been pushed out, 10 MiB/s, in its memory cgroup",
        "both are in the memory cgroup /m/db, with 1 GiB in all",
    ] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    assert_eq!(found.evidence[0].figures["added_bytes_per_second"], 200 * MIB);
    assert_eq!(found.fixes[0].act, "pagekeeper run -- tar ...");
    assert_eq!(
        found.fixes[1].act,
        "mkdir /m/stream-77 && echo 256M >/m/stream-77/memory.limit_in_bytes && echo 77 >/m/stream-77/cgroup.procs"
    );
    let now = found.pagekeeper.as_ref().unwrap();
    assert!(
        now.contains("`pagekeeper evict /big/1`") && now.contains("`pagekeeper guard --streams`"),
        "{now}"
    );
}

#[test]
fn a_stream_that_evicts_nothing_is_no_finding() {
    let mut host = Host::new();
    let table = host.table();
    host.pages().retain(|counts| counts.file != table);
    assert_eq!(host.find(), []);
    // Logs and truncated pages are no loss.
    let mut host = Host::new();
    host.after.files[0].size -= MIB;
    assert_eq!(host.find(), []);
    // Another file has its number.
    let mut host = Host::new();
    host.after.files[0].path = "/pg/base/2".into();
    assert_eq!(host.find(), []);
    // The database dropped it: the kernel did not reclaim it.
    let mut host = Host::new();
    host.after.files[0].residency.as_mut().unwrap().evicted = Some(0);
    host.after.databases[0].cgroup.as_mut().unwrap().file_refaults = Some(1000);
    assert_eq!(host.find(), []);
    let mut host = Host::new();
    host.after.files[0].class = Some(FileClass::Wal);
    assert_eq!(host.find(), []);
    let mut host = Host::new();
    host.after.change.as_mut().unwrap().trace = None;
    assert_eq!(host.find(), []);
}

#[test]
fn a_stream_in_a_group_of_its_own_is_not_blamed() {
    let mut host = Host::new();
    host.streamers[0].cgroup = Some(group("/m/stream-77", Some(256 * MIB)));
    let table = host.table();
    // The stream's own reclaim takes its own pages.
    host.pages().retain(|counts| counts.file != table || counts.task.as_ref().unwrap().process != TAR);
    assert_eq!(host.find(), []);
    // The database has no limit, but the stream has one.
    host.after.databases[0].cgroup = Some(group("/m", None));
    assert_eq!(host.find(), []);
    // Neither has one: that matters if the host is short of memory.
    host.streamers[0].cgroup = Some(group("/m/backup", None));
    assert_eq!(host.find(), []);
    host.host_reclaims();
    assert_eq!(host.find().len(), 1);
    host.after.change.as_mut().unwrap().machine.reclaimed_directly = Some(0);
    // Groups below one that has a limit.
    let below = |name: &str| MemoryCgroup { limit: None, ..group(name, Some(GIB)) };
    host.streamers[0].cgroup = Some(below("/m/pod/backup"));
    host.after.databases[0].cgroup = Some(below("/m/pod/db"));
    assert_eq!(host.find().len(), 1);
}

#[test]
fn a_small_stream_is_not_blamed_for_a_database_that_is_too_large() {
    let mut host = Host::new();
    host.pages()[0].flow.added.bytes = 40 * MIB;
    assert_eq!(host.find(), [], "200 MiB came back in the same time");
    host.pages()[0].flow.added.bytes = 20 * MIB;
    host.pages()[2].flow.added.bytes = MIB;
    assert_eq!(host.find(), [], "too little for a stream");
}

#[test]
fn a_backup_that_drops_its_pages_is_told_from_a_stream() {
    let mut host = Host::new();
    let table = host.table();
    host.trace().reclaim = Some(Vec::new());
    *host.pages() =
        vec![pages(table, TAR, "mariabackup", 0, 300 * MIB), pages(table, SERVER, "server", 5 * MIB, 0)];
    // In whatever group it runs.
    host.streamers[0].cgroup = Some(group("/m/other", Some(MIB)));
    let findings = host.find();
    assert_eq!(findings[0].severity, Severity::Warning);
    assert_eq!(findings[0].title, "mariabackup (process 77) drops its pages from the page cache, 30 MiB/s");
    assert!(text(&findings[0]).contains("it dropped 300 MiB of the database's data itself"));
    assert!(findings[0].fixes[1].act.starts_with("mariabackup --backup --throttle"));
}

#[test]
fn a_worker_that_sends_a_backup_is_a_stream_and_others_are_not() {
    let mut host = Host::new();
    let table = host.table();
    host.trace().reclaim = Some(Vec::new());
    *host.pages() = vec![
        pages(BIG, BACKEND, "postgres", 2000 * MIB, 1700 * MIB),
        pages(table, SERVER, "postgres", 50 * MIB, 300 * MIB),
    ];
    host.streamers[0].pid = BACKEND;
    assert_eq!(host.find(), []);
    host.streamers[0].title = "postgres: walsender postgres [local] sending backup \"base\"".to_owned();
    let findings = host.find();
    assert_eq!(findings.len(), 1);
    assert!(findings[0].fixes.iter().any(|fix| fix.act.starts_with("pg_basebackup --max-rate")));
    let elsewhere = |act: &str| act.contains("cgroup") || act.contains("pagekeeper run");
    assert!(findings[0].fixes.iter().all(|fix| !elsewhere(&fix.act)), "{findings:?}");
    assert!(findings[0].pagekeeper.as_ref().unwrap().contains("does not help here"));
}

#[test]
fn an_ended_stream_is_reported_by_its_name() {
    let mut host = Host::new();
    host.streamers.clear();
    let findings = host.find();
    assert!(findings[0].title.starts_with("tar (process 77) brings in 200 MiB/s"), "{findings:?}");
    assert!(text(&findings[0]).contains("names are not known"));
    assert!(findings[0].fixes[1].act.starts_with("systemd-run --scope -p MemoryHigh=256M -- tar"));
    // A stream that took none of the database's pages may have run anywhere.
    let table = host.table();
    host.pages().retain(|counts| counts.file != table || counts.task.as_ref().unwrap().process != TAR);
    host.pages()[1].flow.removed.bytes = 300 * MIB;
    assert_eq!(host.find(), []);
    host.after.databases[0].cgroup = None;
    assert_eq!(host.find(), [], "there was memory enough");
    host.host_reclaims();
    assert_eq!(host.find().len(), 1);
}

#[test]
fn pages_reclaimed_as_idle_are_not_blamed_on_a_stream() {
    let mut host = Host::new();
    host.after.databases[0].cgroup = None;
    host.streamers[0].cgroup = None;
    let table = host.table();
    host.trace().reclaim = Some(Vec::new());
    *host.pages() = vec![
        pages(BIG, TAR, "dd", 510 * MIB, 0),
        pages(table, 57, "kdamond.0", 0, 39 * MIB),
        pages(table, BACKEND, "postgres", 480 * MIB, 0),
    ];
    let machine = &mut host.after.change.as_mut().unwrap().machine;
    machine.refaulted = Some(4 * MIB);
    let findings = host.find();
    assert_eq!(findings.len(), 1, "{findings:?}");
    let found = &findings[0];
    assert_eq!((found.kind, found.severity), (Kind::IdleReclaim, Severity::Note));
    assert!(
        found.title.starts_with("kdamond.0 (process 57) takes idle pages of its data"),
        "{}",
        found.title
    );
    assert!(text(found).contains("removed 39 MiB of the database's data"), "{}", text(found));
    // Not everything its processes brought in, including first reads, but what the kernel knows to
    // have come back.
    assert!(found.cost.text.starts_with("409.6 KiB/s"), "{}", found.cost.text);
    assert!(found.fixes[0].act.contains("/sys/kernel/mm/damon/admin/kdamonds"), "{:?}", found.fixes);
    assert!(found.fixes[0].does.contains("whose pid is 57"), "{:?}", found.fixes);
    // A program with the same name.
    host.streamers[0].title = "kdamond --from user space".to_owned();
    host.streamers[0].pid = 57;
    assert!(host.find().iter().all(|found| found.kind == Kind::Stream), "{:?}", host.find());
}

#[test]
fn the_kernels_background_reclaim_is_no_stream() {
    let mut host = Host::new();
    host.after.databases[0].cgroup = None;
    host.streamers[0].cgroup = None;
    host.host_reclaims();
    let table = host.table();
    *host.pages() = vec![
        pages(BIG, TAR, "dd", 510 * MIB, 0),
        pages(table, 58, "kswapd0", 0, 600 * MIB),
        pages(table, BACKEND, "postgres", 200 * MIB, 0),
    ];
    let findings = host.find();
    assert_eq!(findings.len(), 1);
    assert!(findings[0].title.starts_with("dd (process 77) reads"), "{findings:?}");
    // Of 200 MiB that its processes brought in, the kernel had reclaimed half.
    host.after.change.as_mut().unwrap().machine.refaulted = Some(100 * MIB);
    assert!(host.find()[0].cost.text.starts_with("10 MiB/s"), "{}", host.find()[0].cost.text);
}

#[test]
fn a_backend_that_has_ended_is_no_stream() {
    let mut host = Host::new();
    for counts in host.pages() {
        counts.task.as_mut().unwrap().name = "postgres".to_owned();
    }
    host.streamers[0].title.clear();
    assert_eq!(host.find().len(), 1, "another's process that had the name");
    host.after.databases[0].name = "postgres".to_owned();
    assert_eq!(host.find(), []);
}

#[test]
fn a_tools_own_option_is_the_first_fix() {
    let mut host = Host::new();
    host.pages()[0].task.as_mut().unwrap().name = "dd".to_owned();
    assert!(host.find()[0].fixes[1].act.starts_with("dd iflag=direct"), "{:?}", host.find());
}

#[test]
fn programs_that_cannot_run_under_pagekeeper_are_not_offered_it() {
    let named = |name: &str| {
        let mut host = Host::new();
        host.pages()[0].task.as_mut().unwrap().name = name.to_owned();
        let found = host.find().remove(0);
        (found.fixes[0].act.clone(), found.pagekeeper.unwrap())
    };
    assert_eq!(named("my-backup").0, "pagekeeper run --as stream -- my-backup ...");
    assert!(named("my-backup").1.contains("processes = [\"my-backup\"]"));
    let (act, now) = named("restic");
    assert!(!act.contains("pagekeeper run") && now.contains("guard --streams"), "{act} {now}");
}
