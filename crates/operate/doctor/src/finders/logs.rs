//! Log files in the page cache (redo, binlog, relay, WAL): how much they hold, and how much of it
//! nobody will read again.
//!
//! Invariants: "never read again" means what the guard's own rules would release now
//! ([`Observation::releasable`]). No share is claimed if the rules were not evaluated, or for a log
//! that the next start of a stopped database reads. The cost is memory, never throughput, as
//! measurements showed.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use pagekeeper_observe::{Database, File, OpenerKind};
use pagekeeper_policy::FileClass;
use pagekeeper_text::{ByteSize, counted, percent, shell_quoted};

use super::EarlierFindings;
use super::settings::redo_settings;
use crate::observation::Observation;
use crate::phrases::{file_name, largest};
use crate::texts::{known, text};
use crate::{Advised, Cost, Evidence, Finding, Goal, Kind, Severity};

/// Minimum of bytes that nobody will read again to be reported (16 MiB): the rules themselves keep
/// a few MiB.
pub(crate) const RELEASABLE_MIN: u64 = 16 << 20;
/// Minimum of bytes in log files to be reported if the rules were not evaluated (64 MiB).
const RESIDENT_LEAST: u64 = 64 << 20;
/// Bytes from which the finding is a warning (1 GiB).
const LOG_WARNING_BYTES: u64 = 1 << 30;
/// Percentage of memory from which the finding is a warning.
const WARNING_PERCENT: u64 = 5;
/// Growth below this during the watch is not reported (1 MiB).
const GROWTH_LEAST: u64 = 1 << 20;
/// From one part in this many of a cgroup's limit on, unwritten pages make its allocations wait.
pub(crate) const UNWRITTEN_PART: u64 = 10;
/// Maximum number of files listed per class.
const LISTED_LOG_FILES_MAX: usize = 3;

/// The part of one database's log files in the page cache, in bytes.
#[derive(Debug, Default)]
pub(crate) struct LogPages<'a> {
    pub(crate) files: Vec<&'a File>,
    pub(crate) resident: u64,
    pub(crate) unwritten: u64,
    /// Bytes that nobody will read again; `None` if that was not evaluated.
    pub(crate) releasable: Option<u64>,
    /// The part of these in streams and topics, which readers may come back to.
    older_messages: u64,
    /// Growth of the resident bytes since the watch began.
    growth: u64,
    /// Resident bytes of logs that nobody has open and that the next start reads.
    next_start: u64,
}

impl<'a> LogPages<'a> {
    pub(crate) fn of(observation: &Observation<'a>, database: usize) -> Self {
        let mut logs = Self::default();
        let mut resident_before = 0;
        let runs = observation.after.databases.get(database).is_some_and(|database| database.pid.is_some());
        for file in observation.files_of(database) {
            let (true, Some(residency)) = (file.class.is_some_and(FileClass::is_log), file.residency) else {
                continue;
            };
            let releasable = observation.releasable.iter().find(|releasable| releasable.file == file.inode);
            // Streams and topics are also the data: what the rules keep of them is not wasted.
            if file.class == Some(FileClass::Messages) && releasable.is_none() {
                continue;
            }
            logs.files.push(file);
            logs.resident += residency.resident;
            logs.unwritten += residency.unwritten();
            if !runs && matches!(file.class, Some(FileClass::Redo | FileClass::Wal)) {
                logs.next_start += residency.resident;
            } else if let Some(releasable) = releasable {
                *logs.releasable.get_or_insert(0) += releasable.resident;
                if file.class == Some(FileClass::Messages) {
                    logs.older_messages += releasable.resident;
                }
            }
            let before = observation.before(file.inode).and_then(|before| before.residency);
            resident_before += before.map_or(0, |before| before.resident);
        }
        logs.growth = logs.resident.saturating_sub(resident_before);
        logs
    }

    /// Whether everything to release belongs to streams and topics: by their budget.
    fn is_of_messages(&self) -> bool {
        self.older_messages > 0 && self.releasable == Some(self.older_messages)
    }

    /// Returns the bytes for which the guard may be advised: it would also release what a
    /// database's next start reads.
    pub(crate) fn guard_may_release(&self) -> Option<u64> {
        self.releasable.filter(|_| self.next_start == 0)
    }
}

/// Returns one finding for each database whose logs hold much for nobody.
pub(super) fn find(observation: &Observation<'_>, _: EarlierFindings<'_>) -> Vec<Finding> {
    observation.databases().filter_map(|(index, database)| find_in(observation, index, database)).collect()
}

fn is_much(observation: &Observation<'_>, logs: &LogPages<'_>) -> bool {
    let much_releasable = logs.releasable.is_some_and(|releasable| releasable >= RELEASABLE_MIN);
    let resident_much = logs.resident >= RESIDENT_LEAST;
    much_releasable || (resident_much && (logs.releasable.is_none() || !kept(observation, logs).is_empty()))
}

fn find_in(observation: &Observation<'_>, index: usize, database: &Database) -> Option<Finding> {
    let logs = LogPages::of(observation, index);
    if !is_much(observation, &logs) {
        return None;
    }
    let much_releasable = logs.releasable.is_some_and(|releasable| releasable >= RELEASABLE_MIN);
    let share = match logs.releasable {
        Some(releasable) if logs.is_of_messages() => {
            format!(", {} of it beyond its budget", percent(releasable, logs.resident, 0))
        }
        Some(releasable) => format!(", {} of it never read again", percent(releasable, logs.resident, 0)),
        None if logs.next_start > 0 => ", and no process has them open".to_owned(),
        None => String::new(),
    };
    let wasted = logs.releasable.unwrap_or(logs.resident - logs.next_start);
    let elsewhere = OutsideGroup::of(observation, &logs, database);
    let wasted = wasted.min(logs.resident - elsewhere.logs);
    let memory = memory_of(observation, database);
    let severity = if wasted >= LOG_WARNING_BYTES || wasted >= memory / 100 * WARNING_PERCENT {
        Severity::Warning
    } else {
        Severity::Note
    };
    let mut evidence = by_class(&logs);
    evidence.extend(judged(&logs));
    evidence.extend(read_at_start(&logs));
    if logs.growth >= GROWTH_LEAST {
        let seconds = observation.period().as_secs_f64();
        let growth =
            Evidence::of("logs.growth").with("growth_bytes", logs.growth).with("watched_seconds", seconds);
        evidence.push(growth.say("seconds", format!("{seconds:.0}")));
    }
    evidence.extend(kept(observation, &logs).into_iter().map(Evidence::new));
    evidence.extend(observation.settings_of(index).map(redo_settings).into_iter().flatten());
    // There is nothing to fix about the logs that the next start reads.
    let advised = if logs.next_start == 0 {
        observation.advise(Goal::LogsOutOfCache, index)
    } else {
        Advised::default()
    };
    Some(Finding {
        kind: Kind::LogsInCache,
        severity,
        database: Some(observation.subject(index)),
        title: format!("log files hold {} of page cache{share}", ByteSize(logs.resident)),
        evidence,
        cost: Cost::measured(cost(&logs, database, elsewhere, memory)),
        fixes: advised.fixes,
        remarks: advised.remarks,
        pagekeeper: logs.guard_may_release().filter(|_| much_releasable).map(|_| {
            let id = if logs.is_of_messages() { "logs.pagekeeper-messages" } else { "logs.pagekeeper" };
            text(id, &[("guard", &guard_command(database))])
        }),
    })
}

/// Returns the guard command for this database alone, in backticks.
pub(crate) fn guard_command(database: &Database) -> String {
    match (database.pid, database.directories.first()) {
        (Some(pid), _) => format!("`pagekeeper guard --pid {pid}`"),
        (None, Some(directory)) => format!("`pagekeeper guard --dir {}`", shell_quoted(directory)),
        (None, None) => "`pagekeeper guard`".to_owned(),
    }
}

/// Returns the memory that the database's pages are charged to: that of its cgroup, or of the host.
fn memory_of(observation: &Observation<'_>, database: &Database) -> u64 {
    let limit = database.cgroup.as_ref().and_then(|group| group.effective_limit);
    let total = observation.after.host.memory.total;
    limit.map_or(total, |limit| limit.min(total))
}

/// Returns why the guard's rules keep these logs' pages.
fn kept(observation: &Observation<'_>, logs: &LogPages<'_>) -> Vec<String> {
    let own = |path: &Path| logs.files.iter().any(|file| file.path == path);
    let kept = observation.kept.iter().filter(|(path, _)| own(path));
    kept.map(|(path, why)| format!("{}: {why}", file_name(path))).collect()
}

fn by_class(logs: &LogPages<'_>) -> Vec<Evidence> {
    let mut classes: BTreeMap<FileClass, Vec<&File>> = BTreeMap::new();
    for file in &logs.files {
        if let Some(class) = file.class {
            classes.entry(class).or_default().push(file);
        }
    }
    let mut classes: Vec<_> = classes
        .into_iter()
        .map(|(class, files)| (class, files.iter().map(|file| file.resident()).sum::<u64>(), files))
        .filter(|(_, sum, _)| *sum > 0)
        .collect();
    classes.sort_by_key(|(class, sum, _)| (std::cmp::Reverse(*sum), *class));
    let evidence = |(class, sum, files): (FileClass, u64, Vec<&File>)| {
        let size: u64 = files.iter().map(|file| file.size).sum();
        let named: Vec<(String, u64)> = files
            .iter()
            .filter(|file| file.resident() > 0)
            .map(|file| (file_name(&file.path), file.resident()))
            .collect();
        Evidence::of("logs.class")
            .with("class", class.to_string())
            .with("resident_bytes", sum)
            .with("size_bytes", size)
            .with("files", files.len())
            // The last page of a file is counted whole.
            .say("resident", ByteSize(sum.min(size)))
            .say("count", counted(files.len(), "file", "files"))
            .say("largest", largest(named, LISTED_LOG_FILES_MAX))
    };
    classes.into_iter().map(evidence).collect()
}

/// Returns the bytes never read again, and how that was determined.
fn judged(logs: &LogPages<'_>) -> Option<Evidence> {
    let releasable = logs.releasable?;
    let reading = |file: &&&File| file.class.is_some_and(|class| class.is_log() && class != FileClass::Redo);
    let readers: usize = logs
        .files
        .iter()
        .filter(reading)
        .flat_map(|file| &file.openers)
        .filter(|opener| {
            opener.kind == OpenerKind::Buffered(pagekeeper_kernel::process::AccessMode::ReadOnly)
        })
        .map(|opener| opener.count)
        .sum();
    let followers = match readers {
        0 => "; nobody has one open for reading".to_owned(),
        1 => " and behind its one reader".to_owned(),
        many => format!(" and behind all {many} readers"),
    };
    let id = if logs.is_of_messages() { "logs.judged-messages" } else { "logs.judged" };
    let evidence = Evidence::of(id)
        .with("releasable_bytes", releasable)
        .with("resident_bytes", logs.resident)
        .with("unwritten_bytes", logs.unwritten)
        .with("readers", readers);
    Some(evidence.say("followers", followers))
}

/// Returns what the next start reads; which logs it needs is not examined.
fn read_at_start(logs: &LogPages<'_>) -> Option<Evidence> {
    let bytes = Some(logs.next_start).filter(|bytes| *bytes > 0)?;
    Some(Evidence::of("logs.next-start").with("next_start_bytes", bytes))
}

fn cost(logs: &LogPages<'_>, database: &Database, elsewhere: OutsideGroup, memory: u64) -> String {
    let limited = database.cgroup.as_ref().and_then(|group| group.effective_limit);
    let limit = limited.filter(|limit| logs.unwritten >= limit / UNWRITTEN_PART).map(ByteSize);
    let of_logs = Some(ByteSize(elsewhere.logs)).filter(|_| elsewhere.logs > 0);
    let is_much = elsewhere.logs == 0 && elsewhere.files >= RELEASABLE_MIN;
    let values: &[(&str, &dyn Display)] = &[
        ("share", &percent(logs.resident - elsewhere.logs, memory, 0)),
        ("logs", &known(of_logs)),
        ("files", &known(is_much.then_some(ByteSize(elsewhere.files)))),
        ("limit", &known(limit)),
        ("unwritten", &ByteSize(logs.unwritten)),
    ];
    text("logs.cost", values)
}

/// Whether a file is certainly not shared memory: its file system is on a device. (btrfs and
/// overlays have no device number either.)
fn is_on_disk(file: &File) -> bool {
    rustix::fs::major(file.stat_inode.dev) != 0
}

/// Resident bytes of files beyond all the page cache that is charged to their database's memory
/// cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct OutsideGroup {
    /// Minimum for the logs of one database.
    logs: u64,
    /// Minimum for all files of the databases in the group: the kernel does not say for which.
    files: u64,
}

impl OutsideGroup {
    fn of(observation: &Observation<'_>, logs: &LogPages<'_>, database: &Database) -> Self {
        let limited = database.cgroup.as_ref().filter(|group| group.effective_limit.is_some());
        let Some(group) = limited else { return Self::default() };
        let disks = observation.databases_in(group).flat_map(|(index, _)| observation.files_of(index));
        let all: u64 = disks.filter(|file| is_on_disk(file)).map(File::resident).sum();
        let of_logs: u64 =
            logs.files.iter().filter(|file| is_on_disk(file)).map(|file| file.resident()).sum();
        // The group's `file` includes shared memory, which belongs to no file on a disk.
        let cache = group.page_cache();
        let beyond_all = logs.resident.saturating_sub(group.file);
        Self { logs: of_logs.saturating_sub(cache).max(beyond_all), files: all.saturating_sub(cache) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::Releasable;
    use crate::settings::{Engine, Settings};
    use crate::testing::{GIB, MIB, file, opener, residency, sample};
    use pagekeeper_kernel::process::AccessMode;
    use pagekeeper_observe::Snapshot;

    fn find(observation: &Observation<'_>) -> Vec<Finding> {
        super::find(observation, EarlierFindings(&[]))
    }

    /// Creates binlogs of 128 MiB, all resident, and a redo log that is not.
    fn logs_of(count: u64) -> (Snapshot, Snapshot) {
        let mut after = sample();
        for number in 1..=count {
            let path = format!("/var/lib/mysql/binlog.{number:06}");
            after.files.push(file(&path, FileClass::Binlog, 128 * MIB, 128 * MIB));
        }
        after.files.push(file("/var/lib/mysql/ib_logfile0", FileClass::Redo, 96 * MIB, 0));
        after.files.push(file("/var/lib/mysql/ibdata1", FileClass::Data, 4 * GIB, 4 * GIB));
        let mut before = after.clone();
        before.change = None;
        (before, after)
    }

    fn releasable(snapshot: &Snapshot, share: u64) -> Vec<Releasable> {
        let logs = snapshot.files.iter().filter(|file| file.class.is_some_and(FileClass::is_log));
        logs.map(|file| {
            let resident = file.residency.unwrap().resident * share / 100;
            Releasable { file: file.inode, resident }
        })
        .collect()
    }

    #[test]
    fn older_messages_of_topics_may_be_read_again() {
        let (mut before, mut after) = logs_of(10);
        for snapshot in [&mut before, &mut after] {
            snapshot.files.retain(|file| file.class == Some(FileClass::Binlog));
            snapshot.files.iter_mut().for_each(|file| file.class = Some(FileClass::Messages));
        }
        let mut observation = Observation::new(&before, &after);
        observation.releasable = releasable(&after, 50);
        let [found] = &find(&observation)[..] else { panic!("one finding") };
        assert!(found.title.ends_with("50 % of it beyond its budget"), "{}", found.title);
        let said = format!("{:?} {:?}", found.evidence, found.pagekeeper);
        assert!(said.contains("from the disk") && !said.contains("behind the writer"), "{said}");
    }

    #[test]
    fn logs_that_nobody_reads_again_are_reported_with_their_share() {
        let (mut before, mut after) = logs_of(10);
        before.files[0].residency = Some(residency(28 * MIB, 0));
        after.files[9].openers.push(opener(100, "mariadbd", OpenerKind::Buffered(AccessMode::ReadOnly)));
        let mut observation = Observation::new(&before, &after);
        observation.releasable = releasable(&after, 90);
        let found = find(&observation);
        assert_eq!(found.len(), 1);
        let found = &found[0];
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(found.title, "log files hold 1.3 GiB of page cache, 90 % of it never read again");
        let texts: Vec<&str> = found.evidence.iter().map(|evidence| evidence.text.as_str()).collect();
        assert_eq!(
            texts[0],
            "binlog: 1.3 GiB of 1.3 GiB resident in 10 files: binlog.000001 (128 MiB), binlog.000002 (128 MiB), \
             binlog.000003 (128 MiB) and 7 more"
        );
        assert_eq!(texts[1], "by the guard's rules 1.1 GiB lie behind the writer and behind its one reader");
        assert_eq!(texts[2], "100 MiB more than 10 s before");
        assert_eq!(found.evidence[1].figures["releasable_bytes"], 10 * (128 * MIB * 90 / 100));
        assert!(found.pagekeeper.as_ref().unwrap().starts_with("`pagekeeper guard --pid 100` "));
        assert!(found.cost.text.contains("No throughput"));
    }

    #[test]
    fn pages_that_are_still_needed_are_no_finding() {
        let (before, after) = logs_of(10);
        let mut observation = Observation::new(&before, &after);
        observation.releasable = releasable(&after, 0);
        assert_eq!(find(&observation), []);
        // One file of 12 MiB that nobody reads is not reported.
        observation.releasable[0].resident = 12 * MIB;
        assert_eq!(find(&observation), []);
    }

    #[test]
    fn streams_and_topics_are_counted_where_the_rules_release_them() {
        let (before, mut after) = logs_of(3);
        after.files.iter_mut().for_each(|file| file.class = Some(FileClass::Messages));
        assert_eq!(find(&Observation::new(&before, &after)), [], "it is the data");
        let mut observation = Observation::new(&before, &after);
        observation.releasable = releasable(&after, 90);
        assert_eq!(find(&observation).len(), 1);
    }

    #[test]
    fn no_share_is_claimed_without_the_guards_decisions() {
        let (before, after) = logs_of(1);
        let found = find(&Observation::new(&before, &after));
        assert_eq!(found[0].title, "log files hold 128 MiB of page cache");
        assert_eq!((found[0].severity, &found[0].pagekeeper), (Severity::Note, &None));
        assert_eq!(found[0].evidence.len(), 1);
    }

    #[test]
    fn logs_that_the_next_start_reads_are_not_called_unneeded() {
        let (before, mut after) = logs_of(1);
        after.databases[0].pid = None;
        after.files.push(file("/var/lib/mysql/ib_logfile1", FileClass::Redo, 96 * MIB, 96 * MIB));
        // The rules report it for all: without a process nothing is known about a writer.
        let mut observation = Observation::new(&before, &after);
        observation.releasable = releasable(&after, 100);
        let found = find(&observation);
        assert_eq!(found[0].title, "log files hold 224 MiB of page cache, 57 % of it never read again");
        assert_eq!(found[0].evidence[2].figures["releasable_bytes"], 128 * MIB, "of the binlog alone");
        assert_eq!(found[0].evidence[3].figures["next_start_bytes"], 96 * MIB);
        assert_eq!(found[0].pagekeeper, None);

        after.files.remove(0);
        let mut observation = Observation::new(&before, &after);
        observation.releasable = releasable(&after, 100);
        observation.settings = vec![Settings::new(Engine::MariaDb)];
        let found = find(&observation);
        assert_eq!(found[0].fixes, []);
        assert_eq!(found[0].title, "log files hold 96 MiB of page cache, and no process has them open");
        assert_eq!((found[0].severity, &found[0].pagekeeper), (Severity::Note, &None));
        let texts: Vec<&str> = found[0].evidence.iter().map(|evidence| evidence.text.as_str()).collect();
        assert!(texts[1].starts_with("no process has the database open: its next start reads"), "{texts:?}");
        assert!(!texts.iter().any(|text| text.contains("behind the writer")), "{texts:?}");

        after.files.pop();
        after.files.push(file("/var/lib/mysql/binlog.000001", FileClass::Binlog, 128 * MIB, 128 * MIB));
        let mut observation = Observation::new(&before, &after);
        observation.releasable = releasable(&after, 100);
        let guard = find(&observation)[0].pagekeeper.clone();
        assert!(
            guard.unwrap().starts_with("`pagekeeper guard --dir /var/lib/mysql` "),
            "binlogs are no start's"
        );
    }

    #[test]
    fn resident_bytes_are_at_most_the_files_size() {
        let (before, mut after) = logs_of(1);
        after.files[0].size -= 4000;
        after.files[0].size -= 60 * MIB;
        after.files[0].residency = Some(residency(68 * MIB + 100_000, 0));
        let found = find(&Observation::new(&before, &after));
        assert!(found[0].evidence[0].text.starts_with("binlog: 68.0 MiB of 68.0 MiB resident"), "{found:?}");
    }

    #[test]
    fn a_log_that_is_kept_says_why() {
        let (before, after) = logs_of(1);
        let mut observation = Observation::new(&before, &after);
        observation.releasable = releasable(&after, 0);
        observation.kept = vec![
            (after.files[0].path.clone(), "recycled log written in parts of pages".to_owned()),
            ("/elsewhere/binlog.000001".into(), "not this one".to_owned()),
        ];
        let found = find(&observation);
        let last = &found[0].evidence.last().unwrap().text;
        assert_eq!(last, "binlog.000001: recycled log written in parts of pages");
        assert_eq!(found[0].pagekeeper, None);
    }

    #[test]
    fn pages_charged_to_another_group_do_not_count_in_this_one() {
        let (before, mut after) = logs_of(10);
        // Of 1280 MiB of logs the group has at most 100 MiB: the rest was brought in before its
        // creation.
        let group = crate::testing::cgroup(400 * MIB, GIB);
        after.databases[0].cgroup =
            Some(pagekeeper_kernel::pressure::MemoryCgroup { file: 100 * MIB, ..group });
        let mut observation = Observation::new(&before, &after);
        observation.releasable = releasable(&after, 100);
        let found = find(&observation);
        let cost = &found[0].cost.text;
        assert!(cost.starts_with("10 % of the memory"), "{cost}");
        assert!(cost.contains("1.2 GiB of it at least are charged to another memory cgroup"), "{cost}");
        let of_group = |file, shmem| {
            let group = crate::testing::cgroup(400 * MIB, 8 * GIB);
            Some(pagekeeper_kernel::pressure::MemoryCgroup { file, shmem: Some(shmem), ..group })
        };
        let cost_in = |group, after: &mut Snapshot| {
            after.databases[0].cgroup = group;
            let mut observation = Observation::new(&before, after);
            observation.releasable = releasable(after, 100);
            find(&observation)[0].cost.text.clone()
        };
        for file in &mut after.files {
            file.stat_inode.dev = rustix::fs::makedev(8, 1);
        }
        // Shared memory is not page cache of these files.
        let cost = cost_in(of_group(1380 * MIB, 1280 * MIB), &mut after);
        assert!(cost.contains("1.2 GiB of it at least are charged to another"), "{cost}");
        // Enough for the logs, but not for tables of 4 GiB as well.
        let cost = cost_in(of_group(2304 * MIB, 0), &mut after);
        assert!(cost.starts_with("at most 16 % of the memory"), "{cost}");
        assert!(cost.contains("hold 3 GiB at least are charged to another one"), "{cost}");
        for group in [of_group(6 * GIB, 0), None] {
            let cost = cost_in(group, &mut after);
            assert!(!cost.contains("charged to another") && !cost.contains("at most"), "{cost}");
        }
        // Files that are shared memory themselves are not counted twice in the group.
        for file in &mut after.files {
            file.stat_inode.dev = 25;
        }
        let cost = cost_in(of_group(6 * GIB, 6 * GIB), &mut after);
        assert!(!cost.contains("charged to another"), "{cost}");
    }

    #[test]
    fn dirty_logs_in_a_small_cgroup_make_allocations_wait() {
        let (before, mut after) = logs_of(2);
        after.databases[0].cgroup = Some(crate::testing::cgroup(GIB, GIB));
        after.files[0].residency = Some(residency(128 * MIB, 110 * MIB));
        let mut observation = Observation::new(&before, &after);
        observation.releasable = releasable(&after, 100);
        let found = find(&observation);
        assert_eq!(found[0].severity, Severity::Warning, "a quarter of the cgroup");
        assert!(found[0].cost.text.contains("110 MiB of it are not written yet"), "{}", found[0].cost.text);
    }
}
