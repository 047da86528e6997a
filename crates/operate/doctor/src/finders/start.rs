//! After a restart: whether the data is as resident as before, and what the next recovery would
//! read.
//!
//! [`journal`](crate::journal) provides the latter. A comparison needs a snapshot from before the
//! restart: without one little can be said, and the text says so. The operator decides how long a
//! recovery may take: without a target a long one is reported, but no setting is named.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use pagekeeper_observe::{Database, File, VisibilityGap};
use pagekeeper_policy::FileClass;
use pagekeeper_text::{ByteSize, duration, escaped, percent, shell_quoted};

use super::EarlierFindings;
use crate::advice::{shorten, step};
use crate::observed::journal::kind_of_log;
use crate::texts::{known, text};
use crate::{Advised, Confidence, Cost, Evidence, Finding, Goal, Kind, Observation, Severity};

/// A database that has run for less than this was just started.
const JUST_STARTED: Duration = Duration::from_secs(15 * 60);
/// Less data than this, in bytes, is loaded before anybody notices.
const COLD_BYTES_MIN: u64 = 16 << 20;
/// A recovery that reads more bytes than this is reported. This is twice the WAL size that
/// `PostgreSQL` allows by default, which is the largest default of any vendor except `TiKV`'s.
const LONG_RECOVERY_BYTES: u64 = 2 << 30;
/// A recovery that takes longer than this is reported.
const LONG_RECOVERY_TIME: Duration = Duration::from_secs(5 * 60);
/// Bytes of journal per page of data that is assumed to be read.
const BYTES_PER_PAGE: u64 = 8 << 10;
/// Maximum number of journal files listed individually.
const LISTED_JOURNALS_MAX: usize = 3;

/// Returns the databases that were started with little of their data resident, and those whose
/// recovery would be long.
pub(super) fn find(observation: &Observation<'_>, _: EarlierFindings<'_>) -> Vec<Finding> {
    observation
        .databases()
        .flat_map(|(index, database)| {
            [cold(observation, index, database), long_recovery(observation, index, database)]
        })
        .flatten()
        .collect()
}

/// Returns the gap for a database that has just started, if there is no snapshot to compare it
/// with.
pub fn missing_snapshot(observation: &Observation<'_>) -> Option<VisibilityGap> {
    let lacks =
        observation.snapshot.is_none() && observation.databases().any(|(_, database)| just_started(database));
    lacks.then(|| VisibilityGap {
        what: "whether as much data is resident as before the start".to_owned(),
        why: "no snapshot to compare with".to_owned(),
        needs: Some(text("cold.needs", &[])),
    })
}

fn just_started(database: &Database) -> bool {
    database.uptime.is_some_and(|uptime| uptime < JUST_STARTED)
}

fn cold(observation: &Observation<'_>, index: usize, database: &Database) -> Option<Finding> {
    let snapshot = observation.snapshot.as_ref()?;
    // A directory without a process has no start: it was named for the comparison.
    if database.uptime.is_some() && !just_started(database) {
        return None;
    }
    let (mut then, mut kept) = (0, 0);
    for file in observation
        .files_of(index)
        .filter(|file| file.class == Some(FileClass::Data) && !file.is_direct_only())
    {
        let Some(residency) = file.residency else { continue };
        let Some(before) = snapshot.resident(file) else { continue };
        then += before;
        kept += before.min(residency.resident);
    }
    let lost = then - kept;
    // Losing a fifth of it makes reads of the hot set wait.
    if lost < COLD_BYTES_MIN || kept > then / 5 * 4 {
        return None;
    }
    let started =
        database.uptime.map_or(String::new(), |uptime| format!("started {} ago, ", duration(uptime)));
    let (path, bytes) = (shell_quoted(&snapshot.path), ByteSize(lost));
    let mut fixes = vec![step("warm-from-snapshot", &[("snapshot", &path), ("lost", &bytes)])];
    let advised = observation.advise(Goal::WarmStart, index);
    fixes.extend(advised.fixes);
    let age = observation.after.at.duration_since(snapshot.pages.created.into()).unwrap_or_default();
    Some(Finding {
        kind: Kind::ColdStart,
        severity: if kept < then / 2 { Severity::Serious } else { Severity::Warning },
        database: Some(observation.subject(index)),
        title: format!("{started}it has {} of its resident data in memory again", percent(kept, then, 0)),
        evidence: vec![
            Evidence::of("cold.evidence")
                .with("snapshot_bytes", then)
                .with("resident_bytes", kept)
                .with("missing_bytes", lost)
                .say("snapshot", escaped(&snapshot.path))
                .say("age", duration(age)),
        ],
        cost: Cost::estimated(text("cold.cost", &[])),
        fixes,
        remarks: advised.remarks,
        pagekeeper: Some(text("cold.pagekeeper", &[("snapshot", &path), ("lost", &bytes)])),
    })
}

/// The estimated duration of a recovery.
#[derive(Debug, Clone, Copy, PartialEq)]
struct RecoveryEstimate {
    time: Duration,
    /// Latency of one cold read in microseconds, as measured on the disk.
    read_us: f64,
}

impl RecoveryEstimate {
    /// Estimates the recovery of a journal of `bytes`; `None` if the disk of the database's files
    /// was not measured.
    fn of(observation: &Observation<'_>, index: usize, bytes: u64) -> Option<Self> {
        let mut disks = observation.files_of(index).filter_map(|file| observation.disk(file));
        let read_us = disks.find_map(|disk| disk.reads.first())?.p50_us;
        let microseconds = (bytes / BYTES_PER_PAGE) as f64 * read_us;
        Some(Self { time: Duration::try_from_secs_f64(microseconds / 1e6).ok()?, read_us })
    }

    /// Returns how much of a journal can be recovered within `target`, in bytes.
    fn bytes_in(self, target: Duration) -> u64 {
        let read = Duration::from_secs_f64(self.read_us / 1e6).as_nanos().max(1);
        let pages = u64::try_from(target.as_nanos() / read).unwrap_or(u64::MAX);
        pages.saturating_mul(BYTES_PER_PAGE)
    }

    fn evidence(self) -> Evidence {
        Evidence::of("recovery.time")
            .known(Confidence::Estimated)
            .with("recovery_seconds", self.time.as_secs_f64())
            .with("read_microseconds", self.read_us)
            .say("page", ByteSize(BYTES_PER_PAGE))
            .say("read", duration(Duration::from_secs_f64(self.read_us / 1e6)))
    }
}

fn long_recovery(observation: &Observation<'_>, index: usize, database: &Database) -> Option<Finding> {
    let journal = observation.journals.get(index)?.as_ref()?;
    let estimate = RecoveryEstimate::of(observation, index, journal.bytes);
    let target = observation.recovery_target;
    let is_long = match (target, estimate) {
        (Some(target), Some(estimate)) => estimate.time > target,
        (None, Some(estimate)) => journal.bytes > LONG_RECOVERY_BYTES || estimate.time > LONG_RECOVERY_TIME,
        (_, None) => journal.bytes > LONG_RECOVERY_BYTES,
    };
    if !is_long {
        return None;
    }
    let most = if journal.exact { "" } else { "at most " };
    let amount = Evidence::new(format!("{most}{}: {}", ByteSize(journal.bytes), journal.how))
        .with("journal_bytes", journal.bytes)
        .with("exact", journal.exact);
    let values: &[(&str, &dyn Display)] = &[
        ("most", &most),
        ("bytes", &ByteSize(journal.bytes)),
        ("takes", &known(estimate.map(|estimate| duration(estimate.time)))),
        ("target", &known(target.map(duration))),
    ];
    let Advised { fixes, remarks } = bounds(observation, index, estimate);
    Some(Finding {
        kind: Kind::LongRecovery,
        severity: if target.is_some() && estimate.is_some() { Severity::Warning } else { Severity::Note },
        database: Some(observation.subject(index)),
        title: text("recovery.title", values),
        evidence: [amount].into_iter().chain(estimate.map(RecoveryEstimate::evidence)).collect(),
        cost: Cost::estimated(text("recovery.cost", &[])),
        fixes,
        remarks,
        pagekeeper: warmed(observation, index, database),
    })
}

/// Returns the settings that make its recovery fit the target; none without a target.
fn bounds(observation: &Observation<'_>, index: usize, estimate: Option<RecoveryEstimate>) -> Advised {
    let remark = |id| Advised { remarks: vec![text(id, &[])], ..Advised::default() };
    match (observation.recovery_target, estimate, observation.settings_of(index)) {
        (Some(target), Some(estimate), Some(settings)) => shorten(settings, estimate.bytes_in(target)),
        (Some(_), Some(_), None) => Advised::default(),
        (Some(_), None, _) => remark("recovery.remark-unmeasured"),
        (None, _, _) => remark("recovery.remark"),
    }
}

/// Returns what can be warmed for a recovery: everything that it reads through the page cache;
/// `None` if there is nothing.
fn warmed(observation: &Observation<'_>, index: usize, database: &Database) -> Option<String> {
    let is_data = |file: &&File| file.class == Some(FileClass::Data);
    if observation.files_of(index).filter(is_data).any(File::is_direct_only) {
        let journal = buffered_journal(observation, index)?;
        return Some(text("recovery.pagekeeper-direct", &[("journal", &journal)]));
    }
    let directory = known(database.directories.first().map(shell_quoted));
    Some(text("recovery.pagekeeper", &[("directory", &directory)]))
}

/// Returns the journal's files that are read through the page cache, as arguments: their
/// directories, if there are many.
fn buffered_journal(observation: &Observation<'_>, index: usize) -> Option<String> {
    let is_journal = |file: &File| kind_of_log(file).is_some();
    let files: Vec<&File> =
        observation.files_of(index).filter(|file| is_journal(file) && !file.is_direct_only()).collect();
    let mut names: Vec<String> = files.iter().map(|file| shell_quoted(&file.path).to_string()).collect();
    if names.len() > LISTED_JOURNALS_MAX {
        let parents: BTreeSet<&Path> = files.iter().filter_map(|file| file.path.parent()).collect();
        let alone = |parent: &Path| {
            observation.files_of(index).all(|file| !file.path.starts_with(parent) || is_journal(file))
        };
        let endings = |parent: &Path| -> BTreeSet<String> {
            let inside = files.iter().filter(|file| file.path.parent() == Some(parent));
            inside.filter_map(|file| Some(shell_quoted(file.path.extension()?).to_string())).collect()
        };
        names = parents
            .into_iter()
            .flat_map(|parent| {
                let shown = shell_quoted(parent);
                if alone(parent) {
                    vec![shown.to_string()]
                } else {
                    endings(parent).iter().map(|ending| format!("{shown}/*.{ending}")).collect()
                }
            })
            .collect();
    }
    names.sort_unstable();
    (!names.is_empty()).then(|| names.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Engine, SettingOrigin, Settings};
    use crate::testing::{DEV, GIB, MIB, file, opener, sample};
    use crate::{Journal, SavedSnapshot};
    use pagekeeper_kernel::process::AccessMode;
    use pagekeeper_observe::saved_pages::{SavedFile, SavedPages, SavedTime};
    use pagekeeper_observe::{OpenerKind, Snapshot};
    use pagekeeper_policy::{DepthProfile, DiskProfile};

    fn find(observation: &Observation<'_>) -> Vec<Finding> {
        super::find(observation, EarlierFindings(&[]))
    }

    fn snapshot(files: &[File], resident: u64) -> SavedSnapshot {
        let created = SavedTime { seconds: 999_400, nanos: 0 };
        let file = |file: &File| SavedFile {
            path: file.path.clone(),
            inode: file.inode,
            size: file.size,
            changed: created,
            last_used: created,
            extents: std::iter::once(0..resident.min(file.size) / 4096).collect(),
        };
        let pages = SavedPages { created, page_size: 4096, files: files.iter().map(file).collect() };
        SavedSnapshot { path: "/s/my.snapshot".into(), pages }
    }

    fn just_started_with(files: Vec<File>) -> Snapshot {
        let mut snapshot = sample();
        snapshot.databases[0].uptime = Some(Duration::from_secs(40));
        snapshot.files = files;
        snapshot
    }

    fn table(resident: u64) -> File {
        file("/var/lib/mysql/db/t.MYD", FileClass::Data, GIB, resident)
    }

    #[test]
    fn a_cold_start_is_reported_against_the_snapshot() {
        let after = just_started_with(vec![table(100 * MIB)]);
        let mut observation = Observation::new(&after, &after);
        assert_eq!(find(&observation), []);
        assert!(missing_snapshot(&observation).is_some());
        observation.snapshot = Some(snapshot(&after.files, 800 * MIB));
        assert_eq!(missing_snapshot(&observation), None);
        let found = find(&observation);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].kind, found[0].severity), (Kind::ColdStart, Severity::Serious));
        assert_eq!(found[0].evidence[0].figures["missing_bytes"], 700 * MIB);
        assert_eq!(found[0].fixes[0].act, "pagekeeper warm --from /s/my.snapshot");
        assert!(found[0].title.starts_with("started 40.0 s ago, it has 12 % of"), "{}", found[0].title);
    }

    #[test]
    fn warm_running_and_direct_servers_are_left_alone() {
        let warm = just_started_with(vec![table(790 * MIB)]);
        let mut observation = Observation::new(&warm, &warm);
        observation.snapshot = Some(snapshot(&warm.files, 800 * MIB));
        assert_eq!(find(&observation), []);
        let mut old = just_started_with(vec![table(0)]);
        old.databases[0].uptime = Some(Duration::from_secs(3600));
        let mut observation = Observation::new(&old, &old);
        observation.snapshot = Some(snapshot(&old.files, 800 * MIB));
        assert_eq!(find(&observation), []);
        assert_eq!(missing_snapshot(&Observation::new(&old, &old)), None);
        let mut direct = table(0);
        direct.openers = vec![opener(100, "mariadbd", OpenerKind::Direct(AccessMode::ReadWrite))];
        let direct = just_started_with(vec![direct]);
        let mut observation = Observation::new(&direct, &direct);
        observation.snapshot = Some(snapshot(&direct.files, 800 * MIB));
        assert_eq!(find(&observation), []);
    }

    /// Returns a disk with this latency of a cold read, in microseconds.
    fn reads_in(p50_us: f64) -> DiskProfile {
        let reads = vec![DepthProfile { depth: 1, per_second: 1e6 / p50_us, p50_us, p99_us: p50_us }];
        DiskProfile { reads, ..DiskProfile::default() }
    }

    #[test]
    fn a_long_journal_is_reported_without_a_setting() {
        let after = sample();
        let mut observation = Observation::new(&after, &after);
        let journal = |bytes, exact| vec![Some(Journal { bytes, exact, how: "how".to_owned() })];
        let mut settings = Settings::new(Engine::PostgreSql);
        settings.add("max_wal_size", "2GB", SettingOrigin::CommandLine);
        observation.settings = vec![settings];
        // Servers at the default, or at twice the default, give no finding.
        for bytes in [100 * MIB, 612 * MIB, GIB, 2 * GIB] {
            observation.journals = journal(bytes, true);
            assert_eq!(find(&observation), []);
        }
        for exact in [false, true] {
            observation.journals = journal(5 * GIB, exact);
            let found = find(&observation);
            let most = if exact { "" } else { "at most " };
            assert_eq!(found[0].title, format!("a recovery would read {most}5 GiB of its journal"));
            assert_eq!((found[0].severity, &found[0].fixes), (Severity::Note, &Vec::new()));
            assert!(found[0].remarks[0].contains("--recovery-target"), "{:?}", found[0].remarks);
        }
        observation.journals = vec![None];
        assert_eq!(find(&observation), []);
    }

    #[test]
    fn a_recovery_is_shortened_for_a_target_alone_and_never_below_a_default() {
        let mut after = sample();
        after.files = vec![file("/var/lib/postgresql/base/1", FileClass::Data, GIB, 0)];
        let mut observation = Observation::new(&after, &after);
        observation.journals = vec![Some(Journal { bytes: 4 * GIB, exact: true, how: "how".to_owned() })];
        let mut settings = Settings::new(Engine::PostgreSql);
        settings.add("max_wal_size", "8GB", SettingOrigin::CommandLine);
        observation.settings = vec![settings];
        observation.recovery_target = Some(Duration::from_secs(60));
        let unmeasured = find(&observation);
        assert_eq!((unmeasured[0].severity, &unmeasured[0].fixes), (Severity::Note, &Vec::new()));
        assert!(unmeasured[0].remarks[0].contains("probe --save"), "{:?}", unmeasured[0].remarks);
        // 524,288 pages at 200 µs.
        observation.disks = vec![(DEV, reads_in(200.0))];
        let found = find(&observation);
        assert_eq!(found[0].severity, Severity::Warning);
        assert_eq!(
            found[0].title,
            "a recovery would read 4 GiB of its journal, about 104.9 s; the target is 60.0 s"
        );
        assert_eq!(found[0].evidence[1].confidence, Confidence::Estimated);
        assert_eq!(found[0].evidence[1].figures["read_microseconds"], 200.0);
        // 300,000 pages of 8 KiB, in whole segments.
        assert_eq!(found[0].fixes[0].act, "max_wal_size = '2336MB'");
        observation.recovery_target = Some(Duration::from_secs(1));
        assert_eq!(find(&observation)[0].fixes[0].act, "max_wal_size = '1GB'");
        observation.recovery_target = Some(Duration::from_secs(110));
        assert_eq!(find(&observation), []);
        observation.recovery_target = None;
        assert_eq!(find(&observation)[0].fixes, []);
    }

    #[test]
    fn only_files_that_a_recovery_reads_buffered_are_warmed() {
        let direct = vec![opener(100, "mariadbd", OpenerKind::Direct(AccessMode::ReadWrite))];
        let buffered = vec![opener(100, "mariadbd", OpenerKind::Buffered(AccessMode::ReadWrite))];
        let with = |path: &str, class, openers: &Vec<_>| File {
            openers: openers.clone(),
            ..file(path, class, GIB, 0)
        };
        let advised = |files: Vec<File>| {
            let after = Snapshot { files, ..sample() };
            let mut observation = Observation::new(&after, &after);
            observation.journals =
                vec![Some(Journal { bytes: 3 * GIB, exact: false, how: "how".to_owned() })];
            find(&observation).remove(0).pagekeeper
        };
        let table = |openers| with("/var/lib/mysql/db/t.ibd", FileClass::Data, openers);
        let redo = |openers| with("/var/lib/mysql/ib_logfile0", FileClass::Redo, openers);
        let all = advised(vec![table(&buffered), redo(&buffered)]).unwrap();
        assert!(
            all.contains("`pagekeeper warm /var/lib/mysql` reads the journal and the data in parallel"),
            "{all}"
        );
        // Nobody has this one open now.
        let closed = with("/var/lib/mysql/db/u.ibd", FileClass::Data, &Vec::new());
        let log = advised(vec![table(&direct), closed, redo(&buffered)]).unwrap();
        assert!(
            log.contains("`pagekeeper warm /var/lib/mysql/ib_logfile0` reads the journal in parallel;"),
            "{log}"
        );
        assert_eq!(advised(vec![table(&direct), redo(&direct)]), None);
        let many = |place: &str, ending: &str| -> Vec<File> {
            let names = (0..5).map(|n| format!("/var/lib/mysql/{place}{n}{ending}"));
            names.map(|name| with(&name, FileClass::Redo, &buffered)).chain([table(&direct)]).collect()
        };
        let log = advised(many("#innodb_redo/#ib_redo", "")).unwrap();
        assert!(log.contains("`pagekeeper warm /var/lib/mysql/#innodb_redo` reads the journal"), "{log}");
        let mut wal = many("db/", ".log");
        wal.iter_mut().take(5).for_each(|file| file.class = Some(FileClass::Wal));
        let log = advised(wal).unwrap();
        assert!(log.contains("`pagekeeper warm /var/lib/mysql/db/*.log` reads the journal"), "{log}");
    }
}
