//! Files used with direct I/O and through the page cache at the same time: open with `O_DIRECT` in
//! one place and buffered or mapped in another, or open with `O_DIRECT` while pages of them are
//! left in the page cache.
//!
//! Engines such as `ClickHouse` use both on purpose. Resident pages count as leftovers only if the
//! database's profile says that it reads by direct I/O alone
//! ([`Profile::is_direct_only`](pagekeeper_catalog::Profile::is_direct_only)). No database is
//! advised to stop.
//!
//! Invariants: the cost comes from measurements on the file's own file system
//! ([`Observation::disk`]), never from the kernel's version. Without measurements, the text says so
//! and names the command that measures. There is one finding for each database and kind of use
//! beside direct I/O, costliest kind first; a file belongs to one of them.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::AccessMode;
use pagekeeper_observe::{Database, File, Opener, OpenerKind, Snapshot};
use pagekeeper_policy::MixedProfile;
use pagekeeper_text::{ByteSize, counted, listed_up_to, shell_quoted, unescaped};

use super::EarlierFindings;
use crate::advice::rocksdb::{is_rocksdb, reads_directly};
use crate::advice::step;
use crate::observation::Observation;
use crate::observed::attribution::database_of;
use crate::phrases::{file_name, process};
use crate::texts::text;
use crate::{Advised, Cost, Evidence, Finding, Fix, Goal, Kind, Severity, advise};

/// Maximum number of files listed per database and kind, and of processes in one sentence.
const LISTED_PER_KIND_MAX: usize = 5;
/// Maximum number of stretches of resident pages listed per file.
const LISTED_STRETCHES_MAX: usize = 3;
/// From this fraction of the rate on, the cost does not justify a warning.
const CHEAP_RATE_SHARE: f64 = 0.9;
/// Below this fraction of the rate, the database has to wait.
const DEAR_RATE_SHARE: f64 = 0.7;

/// The use that direct I/O on a file is mixed with, costliest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MixedWith {
    /// A program other than its database may write it through the page cache.
    Writer,
    /// A program other than its database may read it through the page cache.
    Reader,
    /// Leftover pages that its database does not read, since it reads by direct I/O alone.
    Leftover,
    /// Its database also uses the page cache, or may.
    OnPurpose,
}

impl MixedWith {
    /// Returns the section with its texts.
    fn section(self) -> &'static str {
        match self {
            Self::Writer => "mixed-writer",
            Self::Reader => "mixed-reader",
            Self::Leftover => "mixed-leftover",
            Self::OnPurpose => "mixed-on-purpose",
        }
    }
}

/// Returns the use that direct I/O on this file of a snapshot is mixed with; `None` if it is not
/// open with `O_DIRECT`, or has no other use.
///
/// ```
/// # use pagekeeper_doctor::{MixedWith, mixed_with};
/// # use pagekeeper_observe::{File, Snapshot};
/// # fn evict(snapshot: &Snapshot, file: &File) -> bool {
/// mixed_with(snapshot, file) == Some(MixedWith::Leftover)
/// # }
/// ```
pub fn mixed_with(snapshot: &Snapshot, file: &File) -> Option<MixedWith> {
    if !file.openers.iter().any(is_direct) {
        return None;
    }
    let by_others = |how: fn(&Opener) -> bool| {
        file.openers.iter().any(|opener| how(opener) && !is_own(snapshot, file, opener))
    };
    if by_others(may_write) {
        return Some(MixedWith::Writer);
    }
    if by_others(may_read) {
        return Some(MixedWith::Reader);
    }
    if !file.openers.iter().any(|opener| is_direct(opener) && is_own(snapshot, file, opener)) {
        // Another program's direct I/O beside a database that uses the page cache.
        return None;
    }
    if file.openers.iter().any(|opener| may_write(opener) || may_read(opener)) {
        return Some(MixedWith::OnPurpose);
    }
    let direct_only = database(snapshot, file).is_some_and(|own| own.profile.is_direct_only(&file.path));
    let mixed_with = if direct_only { MixedWith::Leftover } else { MixedWith::OnPurpose };
    (file.resident() > 0).then_some(mixed_with)
}

fn database<'a>(snapshot: &'a Snapshot, file: &File) -> Option<&'a Database> {
    file.database.and_then(|index| snapshot.databases.get(index))
}

/// Whether an opener is the file's database. If no process of that is known: whether it has the
/// file open with `O_DIRECT`.
fn is_own(snapshot: &Snapshot, file: &File, opener: &Opener) -> bool {
    match database(snapshot, file) {
        Some(database) if database.pid.is_some() => database.has_process(opener.pid),
        _ => file.openers.iter().any(|other| other.pid == opener.pid && is_direct(other)),
    }
}

/// Whether a program other than its database brought in pages of a file during the watch, or may
/// have: without tracing, whether more of it became resident.
pub(crate) fn was_read_through_cache(observation: &Observation<'_>, file: &File) -> bool {
    if observation.trace().is_some_and(|trace| trace.pages.is_some()) {
        return !brought_in_by(observation, &[file]).is_empty();
    }
    observation.before(file.inode).is_none_or(|before| before.resident() < file.resident())
}

fn is_direct(opener: &Opener) -> bool {
    matches!(opener.kind, OpenerKind::Direct(access) if access != AccessMode::Neither)
}

/// Whether an opener may write through the page cache.
fn may_write(opener: &Opener) -> bool {
    matches!(
        opener.kind,
        OpenerKind::Buffered(AccessMode::WriteOnly | AccessMode::ReadWrite)
            | OpenerKind::Mapped { writable: true }
    )
}

/// Whether an opener may only read through the page cache.
fn may_read(opener: &Opener) -> bool {
    matches!(opener.kind, OpenerKind::Buffered(AccessMode::ReadOnly) | OpenerKind::Mapped { writable: false })
}

/// Returns one finding for each database and kind of use beside direct I/O.
pub(super) fn find(observation: &Observation<'_>, _: EarlierFindings<'_>) -> Vec<Finding> {
    let mut groups: BTreeMap<(Option<usize>, MixedWith), Vec<&File>> = BTreeMap::new();
    for file in &observation.after.files {
        if let Some(mixed_with) = mixed_with(observation.after, file) {
            groups.entry((file.database, mixed_with)).or_default().push(file);
        }
    }
    groups
        .into_iter()
        .map(|((database, mixed_with), files)| found(observation, database, mixed_with, files))
        .collect()
}

fn found(
    observation: &Observation<'_>,
    index: Option<usize>,
    mixed_with: MixedWith,
    mut files: Vec<&File>,
) -> Finding {
    files.sort_by(|a, b| b.resident().cmp(&a.resident()).then_with(|| a.path.cmp(&b.path)));
    let all_resident: u64 = files.iter().map(|file| file.resident()).sum();
    let count = counted(files.len(), "file", "files");
    let title = text(
        &format!("{}.title", mixed_with.section()),
        &[("count", &count), ("resident", &ByteSize(all_resident))],
    );
    let database = index.and_then(|index| observation.after.databases.get(index));
    let mut evidence: Vec<Evidence> = files
        .iter()
        .take(LISTED_PER_KIND_MAX)
        .map(|file| file_evidence(observation, file, mixed_with))
        .collect();
    if files.len() > LISTED_PER_KIND_MAX {
        let rest = &files[LISTED_PER_KIND_MAX..];
        let sum: u64 = rest.iter().map(|file| file.resident()).sum();
        evidence.push(
            Evidence::of("mixed.more")
                .with("files", rest.len())
                .with("resident_bytes", sum)
                .say("count", counted(rest.len(), "file", "files")),
        );
    }
    let measured = files.iter().find_map(|file| observation.disk(file)?.mixed);
    let (severity, cost) = cost(observation, mixed_with, &files, measured);
    let scope = match database {
        Some(database) => match (database.pid, database.directories.first()) {
            (Some(pid), _) => format!(" --pid {pid}"),
            (None, Some(directory)) => format!(" {}", shell_quoted(directory)),
            (None, None) => String::new(),
        },
        None => String::new(),
    };
    let Advised { mut fixes, remarks } =
        index.map(|index| settings_for(observation, index, mixed_with, &files)).unwrap_or_default();
    fixes.extend(fix(observation, mixed_with, &files));
    Finding {
        kind: Kind::MixedIo,
        severity,
        database: index.map(|index| observation.subject(index)),
        title,
        evidence,
        cost,
        fixes,
        remarks,
        pagekeeper: match mixed_with {
            MixedWith::Leftover => Some(text("mixed-leftover.pagekeeper", &[("scope", &scope)])),
            MixedWith::OnPurpose => Some(text("mixed-on-purpose.pagekeeper", &[])),
            MixedWith::Writer | MixedWith::Reader => None,
        },
    }
}

/// Returns the settings that fix it; those of `MyRocks` only if a file is its own. Intentional use
/// needs none, unless the settings make all reads direct: pages written through the page cache are
/// then useless.
fn settings_for(
    observation: &Observation<'_>,
    index: usize,
    mixed_with: MixedWith,
    files: &[&File],
) -> Advised {
    let Some(settings) = observation.settings_of(index) else { return Advised::default() };
    if mixed_with == MixedWith::OnPurpose && !reads_directly(settings) {
        return Advised::default();
    }
    if settings.myrocks && !files.iter().any(|file| is_rocksdb(file)) {
        let mut without = settings.clone();
        without.myrocks = false;
        return advise(Goal::NoMixedIo, &without);
    }
    advise(Goal::NoMixedIo, settings)
}

/// Describes one file: the processes that have it open and how, and the positions of its pages.
fn file_evidence(observation: &Observation<'_>, file: &File, mixed_with: MixedWith) -> Evidence {
    let who = |wanted: &dyn Fn(&Opener) -> bool| -> Vec<String> {
        let named = file.openers.iter().filter(|opener| wanted(opener));
        let mut named: Vec<String> = named
            .map(|opener| {
                let buffered = !is_direct(opener) && is_own(observation.after, file, opener);
                let itself = if buffered { ", the database itself" } else { "" };
                format!("{} (process {}{itself})", opener.name, opener.pid)
            })
            .collect();
        named.sort();
        named.dedup();
        named
    };
    let mut parts = vec![format!("O_DIRECT by {}", listed_up_to(&who(&is_direct), LISTED_PER_KIND_MAX))];
    for (wanted, how) in [(may_write as fn(&Opener) -> bool, "written"), (may_read, "read")] {
        let mapped = who(&|opener| wanted(opener) && matches!(opener.kind, OpenerKind::Mapped { .. }));
        let buffered = who(&|opener| wanted(opener) && matches!(opener.kind, OpenerKind::Buffered(_)));
        if !buffered.is_empty() {
            parts.push(format!(
                "may be {how} through the page cache by {}",
                listed_up_to(&buffered, LISTED_PER_KIND_MAX)
            ));
        }
        if !mapped.is_empty() {
            let how = if how == "written" { " for writing" } else { "" };
            parts.push(format!("mapped{how} by {}", listed_up_to(&mapped, LISTED_PER_KIND_MAX)));
        }
    }
    if mixed_with == MixedWith::Writer && is_written(observation, file) {
        parts.push("written so while watching".to_owned());
    }
    if mixed_with == MixedWith::Leftover {
        let named: Vec<String> = brought_in_by(observation, &[file]).iter().map(CacheReader::named).collect();
        if !named.is_empty() {
            parts.push(format!(
                "brought in through the page cache while watching by {}",
                listed_up_to(&named, LISTED_PER_KIND_MAX)
            ));
        }
    }
    let stretches = observation.stretches.iter().find(|(inode, _)| *inode == file.inode).map(|(_, all)| all);
    let place = match stretches.filter(|all| !all.is_empty() && file.resident() > 0) {
        Some(all) => {
            let named: Vec<String> = all
                .iter()
                .take(LISTED_STRETCHES_MAX)
                .map(|range| format!("{} from {}", ByteSize(range.end - range.start), ByteSize(range.start)))
                .collect();
            let more = if all.len() > LISTED_STRETCHES_MAX { " and further" } else { "" };
            format!(" ({}{more})", named.join(", "))
        }
        None => String::new(),
    };
    parts.push(match file.residency {
        Some(residency) => format!("{} resident{place}", ByteSize(residency.resident)),
        None => "the resident bytes can't be seen".to_owned(),
    });
    let openers: Vec<serde_json::Value> = file.openers.iter().map(shown).collect();
    let mut evidence = Evidence::new(format!("{}: {}", file_name(&file.path), parts.join("; ")))
        .with("path", unescaped(&file.path))
        .with("openers", openers)
        .with_known("resident_bytes", file.residency.map(|residency| residency.resident));
    if let Some(all) = stretches {
        let all: Vec<[u64; 2]> = all.iter().map(|range| [range.start, range.end]).collect();
        evidence = evidence.with("stretches_bytes", serde_json::json!(all));
    }
    evidence
}

/// Returns an opener in the form for programs.
fn shown(opener: &Opener) -> serde_json::Value {
    let how = match opener.kind {
        OpenerKind::Direct(_) => "direct",
        OpenerKind::Buffered(_) => "buffered",
        OpenerKind::Mapped { .. } => "mapped",
    };
    let writes = may_write(opener)
        || matches!(opener.kind, OpenerKind::Direct(AccessMode::WriteOnly | AccessMode::ReadWrite));
    serde_json::json!({"pid": opener.pid, "name": opener.name, "how": how, "writes": writes})
}

/// Whether the file was seen to be written through the page cache during the watch: it has dirty
/// pages, or an opener that may write brought pages in.
fn is_written(observation: &Observation<'_>, file: &File) -> bool {
    let unwritten = |file: &File| file.residency.is_some_and(|residency| residency.unwritten() > 0);
    let brought_in = || {
        let pages = observation.trace().and_then(|trace| trace.pages.as_ref());
        pages.into_iter().flatten().filter(|counts| counts.file == file.inode).any(|counts| {
            counts.flow.added.bytes > 0
                && counts.task.as_ref().is_some_and(|task| {
                    file.openers.iter().any(|opener| opener.pid == task.process && may_write(opener))
                })
        })
    };
    unwritten(file) || observation.before(file.inode).is_some_and(unwritten) || brought_in()
}

/// A program that brought in pages of files, and that has none of them open through the page cache
/// any more.
struct CacheReader<'a> {
    name: &'a str,
    pids: BTreeSet<u32>,
    bytes: u64,
}

impl CacheReader<'_> {
    /// Formats its name: "cat (process 7)", "cat (12 processes)".
    fn named(&self) -> String {
        match (self.pids.first(), self.pids.len()) {
            (Some(pid), 1) => process(self.name, *pid),
            (_, many) => format!("{} ({many} processes)", self.name),
        }
    }
}

/// Returns the programs that brought in pages of these files during the watch, as traced, largest
/// first. Programs that start and end in a loop are in no list of openers. The database that a file
/// belongs to is excluded.
fn brought_in_by<'a>(observation: &Observation<'a>, files: &[&File]) -> Vec<CacheReader<'a>> {
    let pages = observation.trace().and_then(|trace| trace.pages.as_ref());
    let inodes: HashSet<Inode> = files.iter().map(|file| file.inode).collect();
    let owner = files.first().and_then(|file| file.database);
    let mut readers: BTreeMap<&str, CacheReader<'_>> = BTreeMap::new();
    for counts in pages.into_iter().flatten().filter(|counts| counts.flow.added.bytes > 0) {
        let Some(task) = &counts.task else { continue };
        if !inodes.contains(&counts.file) || owner.is_some() && database_of(observation, task) == owner {
            continue;
        }
        let reader = readers.entry(&task.name).or_insert_with(|| CacheReader {
            name: &task.name,
            pids: BTreeSet::new(),
            bytes: 0,
        });
        reader.pids.insert(task.process);
        reader.bytes += counts.flow.added.bytes;
    }
    let mut readers: Vec<CacheReader<'_>> = readers.into_values().collect();
    readers.sort_by_key(|reader| (std::cmp::Reverse(reader.bytes), reader.name));
    readers
}

/// Returns the severity, and the cost in one sentence.
fn cost(
    observation: &Observation<'_>,
    mixed_with: MixedWith,
    files: &[&File],
    measured: Option<MixedProfile>,
) -> (Severity, Cost) {
    let share = |share: Option<f64>| share.map(|share| format!("{:.0} %", share * 100.0));
    let least = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (one, other) => one.or(other),
    };
    let mixed = measured.unwrap_or_default();
    let (read, write) = match mixed_with {
        MixedWith::Writer => (mixed.buffered_writer_read, mixed.buffered_writer_write),
        MixedWith::Reader => (mixed.buffered_reader_read, None),
        MixedWith::Leftover | MixedWith::OnPurpose => (mixed.leftover_read, mixed.leftover_write),
    };
    // One of them was not measured: the other alone does not show the full cost.
    let is_half = mixed_with != MixedWith::Reader && (read.is_none() || write.is_none());
    let Some(worst) = least(read, write).filter(|worst| !is_half || *worst < CHEAP_RATE_SHARE) else {
        let (severity, text) = unmeasured(mixed_with, files);
        return (severity, Cost::estimated(text));
    };
    let rates: Vec<String> = [(read, "reads"), (write, "writes")]
        .into_iter()
        .filter_map(|(rate, what)| Some(format!("direct {what} ran at {} of their rate", share(rate)?)))
        .collect();
    let nothing = if worst >= CHEAP_RATE_SHARE { "Next to nothing: " } else { "" };
    let beside = text(&format!("{}.beside", mixed_with.section()), &[]);
    let text = format!(
        "{nothing}{} {beside}, as pagekeeper probe measured on this file system.",
        rates.join(" and ")
    );
    let busy = mixed_with != MixedWith::Writer || files.iter().any(|file| is_written(observation, file));
    let severity = if worst >= CHEAP_RATE_SHARE {
        Severity::Note
    } else if worst < DEAR_RATE_SHARE && busy && mixed_with != MixedWith::OnPurpose {
        Severity::Serious
    } else {
        Severity::Warning
    };
    (severity, Cost::measured(sentence(&text)))
}

/// Capitalises the first letter.
fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

fn unmeasured(mixed_with: MixedWith, files: &[&File]) -> (Severity, String) {
    let directory = files.iter().find_map(|file| file.directory());
    let command = directory.map_or_else(
        || "`pagekeeper probe --save DIR`".to_owned(),
        |directory| format!("`pagekeeper probe --save {}`", shell_quoted(directory)),
    );
    let severity = if mixed_with == MixedWith::Writer { Severity::Warning } else { Severity::Note };
    let elsewhere = text(&format!("{}.elsewhere", mixed_with.section()), &[]);
    (severity, text("mixed.unmeasured", &[("command", &command), ("elsewhere", &elsewhere)]))
}

fn fix(observation: &Observation<'_>, mixed_with: MixedWith, files: &[&File]) -> Option<Fix> {
    let openers = |wanted: fn(&Opener) -> bool| {
        let of = |file: &&File| {
            let others = file.openers.iter().filter(|opener| !is_own(observation.after, file, opener));
            let others = others.filter(|opener| wanted(opener));
            others.map(|opener| process(&opener.name, opener.pid)).collect::<Vec<_>>()
        };
        let named: BTreeSet<String> = files.iter().flat_map(of).collect();
        named.into_iter().collect()
    };
    let named: Vec<String> = match mixed_with {
        MixedWith::Writer => openers(may_write),
        MixedWith::Reader => openers(may_read),
        MixedWith::Leftover => brought_in_by(observation, files).iter().map(CacheReader::named).collect(),
        MixedWith::OnPurpose => Vec::new(),
    };
    if named.is_empty() {
        return None;
    }
    let programs = listed_up_to(&named, LISTED_PER_KIND_MAX);
    let hint = if mixed_with == MixedWith::Writer { "mixed.hint-writer" } else { "mixed.hint" };
    Some(step("direct-io-too", &[("programs", &programs), ("hint", &text(hint, &[]))]))
}

#[cfg(test)]
mod tests;
