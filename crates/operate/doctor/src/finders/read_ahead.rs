//! Read-ahead that is too large for a database that maps its files, or reads them at random: most
//! bytes that storage reads are not used, and push others out of memory.
//!
//! Invariants: bytes that were read are traced additions to the page cache, and at most the bytes
//! that storage read for the processes, so writes do not count. Bytes that were asked for are an
//! upper bound, so a database that reads in order is not reported. Only processes whose requests
//! are known count: with asynchronous reads only mapped files are reported, and only if page faults
//! waited for storage.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::pressure::BackingDevice;
use pagekeeper_observe::{Database, File, OpenerKind};
use pagekeeper_policy::FileClass;
use pagekeeper_text::{ByteSize, counted, duration, escaped, rate};

use super::EarlierFindings;
use crate::advice::step;
use crate::observed::attribution::device_name;
use crate::phrases::per_second;
use crate::texts::{known, text};
use crate::{AskedReads, Cost, Evidence, Finding, Fix, Kind, Observation, Severity};

/// Minimum bytes that storage read for a finding.
const READ_BYTES_MIN: u64 = 32 << 20;
/// Minimum rate for a finding, in bytes per second.
const READ_RATE_MIN: u64 = 1 << 20;
/// Read-ahead is too large if storage reads at least this many times the bytes asked for.
const WASTE_FACTOR: u64 = 4;
/// Maximum number of files listed.
const LISTED_READ_FILES_MAX: usize = 3;
/// The kernel's default (`VM_READAHEAD_PAGES`), in KiB.
const DEFAULT_READ_AHEAD_KIB: u64 = 128;
/// The upper end of the range that `MongoDB`'s production notes name (32 sectors), in KiB.
const MONGODB_READ_AHEAD_KIB: u64 = 16;

/// A file that storage read.
struct ReadFile<'a> {
    file: &'a File,
    bytes: u64,
    is_mapped: bool,
}

/// Returns the databases for which read-ahead is too large.
pub(super) fn find(observation: &Observation<'_>, _: EarlierFindings<'_>) -> Vec<Finding> {
    observation.databases().filter_map(|(index, database)| too_large(observation, index, database)).collect()
}

fn too_large(observation: &Observation<'_>, index: usize, database: &Database) -> Option<Finding> {
    let asked = observation.asked.get(index)?;
    let files = read_files(observation, index, asked)?;
    let added: u64 = files.iter().map(|read| read.bytes).sum();
    // Pages that are overwritten as a whole are added, too, and their writeback may have ended.
    let read = added.min(asked.storage_bytes);
    let per_second = per_second(read, observation.period())?;
    if read < READ_BYTES_MIN || per_second < READ_RATE_MIN || read / WASTE_FACTOR < asked.bytes_max() {
        return None;
    }
    let unused = read - asked.bytes_max();
    Some(Finding {
        kind: Kind::ReadAhead,
        severity: Severity::Warning,
        database: Some(observation.subject(index)),
        title: text(
            "read-ahead.title",
            &[("read", &ByteSize(read)), ("asked", &ByteSize(asked.bytes_max()))],
        ),
        evidence: evidence(observation, asked, &files, read),
        cost: Cost::measured(text(
            "read-ahead.cost",
            &[("unused", &ByteSize(unused)), ("rate", &rate(per_second))],
        )),
        fixes: fixes(observation, database, &files, unused),
        remarks: Vec::new(),
        pagekeeper: None,
    })
}

/// Returns the files, except logs, that the counted processes had storage read, largest first.
/// Leaves out files whose reads may not have been counted. Returns `None` if pages were not traced.
fn read_files<'a>(
    observation: &Observation<'a>,
    index: usize,
    asked: &AskedReads,
) -> Option<Vec<ReadFile<'a>>> {
    let mut added: HashMap<Inode, u64> = HashMap::new();
    for counts in observation.trace()?.pages.as_ref()? {
        if counts.task.as_ref().is_some_and(|task| asked.processes.contains(&task.process)) {
            *added.entry(counts.file).or_default() += counts.flow.added.bytes;
        }
    }
    let data = observation.files_of(index).filter(|file| !file.class.is_some_and(FileClass::is_log));
    let read = data.filter_map(|file| {
        let size_before = observation.before(file.inode)?.size;
        let written = file.size.saturating_sub(size_before) + file.unwritten();
        let bytes = added.get(&file.inode)?.saturating_sub(written);
        let is_mapped = file.openers.iter().any(|opener| {
            asked.processes.contains(&opener.pid) && matches!(opener.kind, OpenerKind::Mapped { .. })
        });
        let is_counted = !asked.may_lack_calls || (is_mapped && asked.major_faults > 0);
        (bytes > 0 && is_counted).then_some(ReadFile { file, bytes, is_mapped })
    });
    let mut files: Vec<ReadFile<'a>> = read.collect();
    files.sort_by_key(|read| std::cmp::Reverse(read.bytes));
    Some(files)
}

fn device_of<'a>(observation: &Observation<'a>, file: &File) -> Option<&'a BackingDevice> {
    let devices = &observation.after.host.devices;
    devices.iter().find(|(dev, _)| *dev == file.inode.dev).map(|(_, device)| device)
}

fn evidence(
    observation: &Observation<'_>,
    asked: &AskedReads,
    files: &[ReadFile<'_>],
    read: u64,
) -> Vec<Evidence> {
    let faults = |number| counted(number, "page fault", "page faults");
    let all = Evidence::of("read-ahead.all")
        .with("read_bytes", read)
        .with("asked_most_bytes", asked.bytes_max())
        .say("period", duration(observation.period()))
        .say("calls", ByteSize(asked.call_bytes))
        .say("major", faults(asked.major_faults))
        .say("minor", faults(asked.minor_faults));
    let of_file = |of: &ReadFile<'_>| {
        Evidence::of("read-ahead.file")
            .with("read_bytes", of.bytes.min(read))
            .with("device", device_name(observation, of.file.inode.dev))
            .say("name", escaped(&of.file.path))
            .say("how", if of.is_mapped { "mapped" } else { "read by calls" })
            .say("ahead", known(device_of(observation, of.file).map(|device| ByteSize(device.read_ahead))))
    };
    std::iter::once(all).chain(files.iter().take(LISTED_READ_FILES_MAX).map(of_file)).collect()
}

/// Returns the step by which the program itself reads a file without read-ahead.
fn engine_step(database: &Database, read: &ReadFile<'_>) -> Option<&'static str> {
    let is_lmdb = read.file.path.extension().is_some_and(|ending| ending == "mdb");
    match database.profile.name.as_str() {
        _ if read.is_mapped && is_lmdb => Some("lmdb-random-reads"),
        "opensearch" if read.is_mapped => Some("lucene-random-reads"),
        "generic" => Some("random-reads-in-source"),
        _ => None,
    }
}

fn fixes(
    observation: &Observation<'_>,
    database: &Database,
    files: &[ReadFile<'_>],
    unused: u64,
) -> Vec<Fix> {
    let unused = ByteSize(unused);
    let of_engine = files.first().and_then(|most| engine_step(database, most));
    let of_engine = of_engine.map(|id| step(id, &[("unused", &unused)]));
    let is_mongodb = database.profile.name == "mongodb";
    let wanted = if is_mongodb { MONGODB_READ_AHEAD_KIB } else { DEFAULT_READ_AHEAD_KIB };
    let devices: BTreeMap<&str, u64> = files
        .iter()
        .filter_map(|read| device_of(observation, read.file))
        .map(|device| (device.name.as_str(), device.read_ahead >> 10))
        .filter(|(_, read_ahead)| *read_ahead > wanted)
        .collect();
    let of_devices = devices.into_iter().map(|(device, before)| {
        let values: &[(&str, &dyn Display)] =
            &[("wanted", &wanted), ("device", &device), ("before", &before), ("unused", &unused)];
        step("small-read-ahead", values)
    });
    of_engine.into_iter().chain(of_devices).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Restart;
    use crate::testing::{DEV, GIB, MIB, cgroup, database, file, opener, pages, sample};
    use pagekeeper_kernel::process::AccessMode;
    use pagekeeper_observe::Snapshot;

    /// Returns a host on which a program has this file mapped, on a device with a read-ahead of
    /// 8 MiB, and brought 1 GiB of it in.
    fn mapped(profile: &str, path: &str) -> Snapshot {
        let mut after = sample();
        after.databases = vec![database(profile, 100, "/data")];
        let mut data = file(path, FileClass::Data, 4 * GIB, GIB);
        data.openers = vec![opener(100, "db", OpenerKind::Mapped { writable: false })];
        let trace = after.change.as_mut().unwrap().trace.as_mut().unwrap();
        trace.pages = Some(vec![pages(data.inode, 100, "db", GIB, GIB)]);
        after.files = vec![data];
        let device = BackingDevice {
            name: "8:0".to_owned(),
            read_ahead: 8 * MIB,
            max_ratio: 100,
            max_bytes: None,
            strict_limit: None,
            stats: None,
        };
        after.host.devices = vec![(DEV, device)];
        after
    }

    fn faults(major_faults: u64, minor_faults: u64) -> AskedReads {
        let processes = [100].into();
        AskedReads { processes, major_faults, minor_faults, storage_bytes: GIB, ..AskedReads::default() }
    }

    fn find_in(before: &Snapshot, after: &Snapshot, asked: AskedReads) -> Option<Finding> {
        let mut observation = Observation::new(before, after);
        observation.asked = vec![asked];
        find(&observation, EarlierFindings(&[])).pop()
    }

    #[test]
    fn random_reads_of_a_mapped_file_are_told_from_reads_in_order() {
        let after = mapped("generic", "/data/data.mdb");
        let found = find_in(&after, &after, faults(1000, 1000)).unwrap();
        assert_eq!(found.severity, Severity::Warning);
        assert_eq!(found.title, "read-ahead brings in 1 GiB where it asks for 66.4 MiB at most");
        assert!(
            found.evidence[1].text.ends_with("mapped, on device 8:0, whose read-ahead is 8 MiB"),
            "{found:?}"
        );
        // As a scan makes them: one for each stretch of 64 KiB.
        assert_eq!(find_in(&after, &after, faults(130, GIB / (64 << 10))), None);
        let by_calls = AskedReads { call_bytes: GIB / 2, ..faults(0, 0) };
        assert_eq!(find_in(&after, &after, by_calls), None);
        let unknown = AskedReads { processes: [7].into(), ..faults(0, 0) };
        assert_eq!(find_in(&after, &after, unknown), None, "another process read it");
    }

    #[test]
    fn written_pages_do_not_count_as_read() {
        let mut after = mapped("generic", "/data/data.mdb");
        let mut before = after.clone();
        before.files[0].size = 3 * GIB;
        assert_eq!(find_in(&before, &after, faults(1, 1)), None, "it grew by as much");
        after.files[0].class = Some(FileClass::Wal);
        assert_eq!(find_in(&after, &after, faults(1, 1)), None);
        // Whole pages were overwritten and synced: storage read next to nothing.
        let after = mapped("generic", "/data/data.mdb");
        let written = AskedReads { storage_bytes: 20 * MIB, ..faults(100, 100) };
        assert_eq!(find_in(&after, &after, written), None);
        let partly = AskedReads { storage_bytes: 300 * MIB, ..faults(100, 100) };
        let found = find_in(&after, &after, partly).unwrap();
        assert!(found.title.starts_with("read-ahead brings in 300 MiB"), "{found:?}");
        assert!(found.evidence[1].text.starts_with("at most 300 MiB of"), "{found:?}");
    }

    #[test]
    fn asynchronous_reads_are_not_taken_for_read_ahead() {
        let mut after = mapped("generic", "/data/data.mdb");
        let lacks = |major_faults| AskedReads { may_lack_calls: true, ..faults(major_faults, 0) };
        assert!(find_in(&after, &after, lacks(1000)).is_some(), "faults read the mapped file");
        assert_eq!(find_in(&after, &after, lacks(0)), None);
        after.files[0].openers[0].kind = OpenerKind::Buffered(AccessMode::ReadOnly);
        assert_eq!(find_in(&after, &after, lacks(1000)), None);
        assert!(find_in(&after, &after, faults(1000, 0)).is_some());
    }

    #[test]
    fn each_engine_has_its_own_fix_and_each_fix_an_undo() {
        let acts = |profile: &str, path: &str| -> Vec<String> {
            let after = mapped(profile, path);
            let found = find_in(&after, &after, faults(1000, 0)).unwrap();
            for fix in &found.fixes {
                assert!(!fix.terms.undo.is_empty() && fix.terms.risk.durability.is_none(), "{fix:?}");
                assert_eq!(fix.terms.risk.restart, Restart::Database);
            }
            found.fixes.into_iter().map(|fix| fix.act).collect()
        };
        let device = "echo 128 >/sys/class/bdi/8:0/read_ahead_kb";
        let lmdb = acts("generic", "/data/data.mdb");
        assert!(lmdb[0].starts_with("MDB_NORDAHEAD") && lmdb[1] == device, "{lmdb:?}");
        let lucene = acts("opensearch", "/data/_0.cfs");
        assert!(lucene[0].contains("defaultReadAdvice=RANDOM") && lucene[1] == device, "{lucene:?}");
        assert_eq!(acts("mongodb", "/data/c.wt"), ["echo 16 >/sys/class/bdi/8:0/read_ahead_kb"]);
        assert_eq!(acts("postgresql", "/data/base/1/1"), [device]);
        assert!(acts("generic", "/data/x")[0].starts_with("madvise(MADV_RANDOM)"));
    }

    #[test]
    fn more_memory_is_not_advised_before_less_read_ahead() {
        let mut after = mapped("generic", "/data/data.mdb");
        let group = |refaults| pagekeeper_kernel::pressure::MemoryCgroup {
            file_refaults: Some(refaults),
            ..cgroup(GIB, GIB)
        };
        let mut before = after.clone();
        before.databases[0].cgroup = Some(group(0));
        after.databases[0].cgroup = Some(group(100_000));
        let found = |asked| {
            let mut observation = Observation::new(&before, &after);
            observation.asked = vec![asked];
            let found = crate::examine(&observation);
            found.into_iter().find(|finding| finding.kind == Kind::MemoryShort).unwrap()
        };
        let short = found(faults(1000, 0));
        assert!(!short.fixes.iter().any(|fix| fix.act.starts_with("echo")), "{short:?}");
        assert!(
            short.remarks.iter().any(|remark| remark.starts_with("first fix the read-ahead")),
            "{short:?}"
        );
        let fits_not = found(faults(0, GIB / (64 << 10)));
        assert!(fits_not.fixes.iter().any(|fix| fix.act.starts_with("echo")), "{fits_not:?}");
    }
}
