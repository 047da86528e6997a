//! Files that are used with direct I/O and through the page cache at once: open with `O_DIRECT` in one place and buffered or mapped in another,
//! or open with `O_DIRECT` while pages of them are left in the page cache.
//!
//! Invariants: what it costs is said from what was measured on the file's own file system ([`Observation::disk`]), never from
//! the kernel's version; where nothing was measured, that is said with the command that measures. One finding for each
//! database and kind of use beside direct I/O, the costly kind first; a file is in one of them.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use pagekeeper_catalog::units::Size;
use pagekeeper_kernel::Inode;
use pagekeeper_kernel::process::Access;
use pagekeeper_kernel::text::{shell_quoted, unescaped};
use pagekeeper_observe::{File, Opener, OpenerKind};
use pagekeeper_policy::MixedProfile;

use super::Earlier;
use crate::advice::rocksdb::is_rocksdb;
use crate::attribution::database_of;
use crate::observation::Observation;
use crate::phrases::{file_name, number};
use crate::{Advised, Confidence, Cost, Evidence, Finding, Fix, Goal, Kind, Severity, Terms, advise};

/// Files that are listed of each database and kind, and processes in one sentence.
const NAMED: usize = 5;
/// Stretches of resident pages that are listed of each file.
const STRETCHES: usize = 3;
/// A share of the rate from which on it costs nothing worth a warning.
const CHEAP: f64 = 0.9;
/// A share of the rate below which it makes the database wait.
const DEAR: f64 = 0.7;

/// What direct I/O on a file is mixed with, the costly first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MixedWith {
    /// Somebody may write it through the page cache.
    Writer,
    /// Somebody may read it through the page cache.
    Reader,
    /// Pages that nobody uses.
    Leftover,
}

/// What direct I/O on this file is mixed with; `None` where it is not open with `O_DIRECT`, or nothing else uses it.
///
/// ```
/// # use pagekeeper_doctor::{MixedWith, mixed_with};
/// # fn evict(file: &pagekeeper_observe::File) -> bool {
/// mixed_with(file) == Some(MixedWith::Leftover)
/// # }
/// ```
pub fn mixed_with(file: &File) -> Option<MixedWith> {
    if !file.openers.iter().any(is_direct) {
        return None;
    }
    if file.openers.iter().any(may_write) {
        return Some(MixedWith::Writer);
    }
    if file.openers.iter().any(may_read) {
        return Some(MixedWith::Reader);
    }
    (resident(file) > 0).then_some(MixedWith::Leftover)
}

fn is_direct(opener: &Opener) -> bool {
    matches!(opener.kind, OpenerKind::Direct(access) if access != Access::Neither)
}

/// Whether it may write through the page cache.
fn may_write(opener: &Opener) -> bool {
    matches!(
        opener.kind,
        OpenerKind::Buffered(Access::WriteOnly | Access::ReadWrite) | OpenerKind::Mapped { writable: true }
    )
}

/// Whether it may read through the page cache, and no more.
fn may_read(opener: &Opener) -> bool {
    matches!(opener.kind, OpenerKind::Buffered(Access::ReadOnly) | OpenerKind::Mapped { writable: false })
}

fn resident(file: &File) -> u64 {
    file.residency.map_or(0, |residency| residency.resident)
}

/// One finding for each database and kind of use beside direct I/O.
pub(super) fn find(observation: &Observation<'_>, _: Earlier<'_>) -> Vec<Finding> {
    let mut groups: BTreeMap<(Option<usize>, MixedWith), Vec<&File>> = BTreeMap::new();
    for file in &observation.after.files {
        if let Some(mixed_with) = mixed_with(file) {
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
    files.sort_by(|a, b| resident(b).cmp(&resident(a)).then_with(|| a.path.cmp(&b.path)));
    let all_resident: u64 = files.iter().map(|file| resident(file)).sum();
    let count = number(files.len(), "file", "files");
    let title = match mixed_with {
        MixedWith::Writer => {
            format!("{count} open with O_DIRECT and by a writer through the page cache at once")
        }
        MixedWith::Reader => {
            format!("{count} open with O_DIRECT and by a reader through the page cache at once")
        }
        MixedWith::Leftover => {
            format!("{} left in the page cache of {count} used with O_DIRECT", Size(all_resident))
        }
    };
    let database = index.and_then(|index| observation.after.databases.get(index));
    let mut evidence: Vec<Evidence> =
        files.iter().take(NAMED).map(|file| file_evidence(observation, file, mixed_with)).collect();
    if files.len() > NAMED {
        let rest = &files[NAMED..];
        let sum: u64 = rest.iter().map(|file| resident(file)).sum();
        evidence.push(
            Evidence::new(format!("{} more, {} resident", number(rest.len(), "file", "files"), Size(sum)))
                .with("files", rest.len())
                .with("resident_bytes", sum),
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
        index.map(|index| settings_for(observation, index, &files)).unwrap_or_default();
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
            MixedWith::Leftover => Some(format!(
                "`pagekeeper doctor{scope} --fix` evicts them, and reports what stayed and why; it leaves files \
                 alone that a process writes through \
                 the page cache."
            )),
            MixedWith::Writer | MixedWith::Reader => None,
        },
    }
}

/// The settings that fix it; those of `MyRocks` only where a file is its own.
fn settings_for(observation: &Observation<'_>, index: usize, files: &[&File]) -> Advised {
    let Some(settings) = observation.settings_of(index) else { return Advised::default() };
    if settings.myrocks && !files.iter().any(|file| is_rocksdb(file)) {
        let mut without = settings.clone();
        without.myrocks = false;
        return advise(Goal::NoMixedIo, &without);
    }
    advise(Goal::NoMixedIo, settings)
}

/// One file: who has it and how, and where its pages are.
fn file_evidence(observation: &Observation<'_>, file: &File, mixed_with: MixedWith) -> Evidence {
    let who = |wanted: &dyn Fn(&Opener) -> bool| -> Vec<String> {
        let named = file.openers.iter().filter(|opener| wanted(opener));
        let mut named: Vec<String> =
            named.map(|opener| format!("{} (process {})", opener.name, opener.pid)).collect();
        named.sort();
        named.dedup();
        named
    };
    let mut parts = vec![format!("O_DIRECT by {}", listed(who(&is_direct)))];
    for (wanted, how) in [(may_write as fn(&Opener) -> bool, "written"), (may_read, "read")] {
        let mapped = who(&|opener| wanted(opener) && matches!(opener.kind, OpenerKind::Mapped { .. }));
        let buffered = who(&|opener| wanted(opener) && matches!(opener.kind, OpenerKind::Buffered(_)));
        if !buffered.is_empty() {
            parts.push(format!("may be {how} through the page cache by {}", listed(buffered)));
        }
        if !mapped.is_empty() {
            let how = if how == "written" { " for writing" } else { "" };
            parts.push(format!("mapped{how} by {}", listed(mapped)));
        }
    }
    if mixed_with == MixedWith::Writer && is_written(observation, file) {
        parts.push("written so while watching".to_owned());
    }
    if mixed_with == MixedWith::Leftover {
        let named: Vec<String> = brought_in_by(observation, &[file]).iter().map(Reader::named).collect();
        if !named.is_empty() {
            parts.push(format!("brought in through the page cache while watching by {}", listed(named)));
        }
    }
    let stretches = observation.stretches.iter().find(|(inode, _)| *inode == file.inode).map(|(_, all)| all);
    let place = match stretches.filter(|all| !all.is_empty() && resident(file) > 0) {
        Some(all) => {
            let named: Vec<String> = all
                .iter()
                .take(STRETCHES)
                .map(|range| format!("{} from {}", Size(range.end - range.start), Size(range.start)))
                .collect();
            let more = if all.len() > STRETCHES { " and further" } else { "" };
            format!(" ({}{more})", named.join(", "))
        }
        None => String::new(),
    };
    parts.push(match file.residency {
        Some(residency) => format!("{} resident{place}", Size(residency.resident)),
        None => "how much is resident can't be seen".to_owned(),
    });
    let openers: Vec<serde_json::Value> = file.openers.iter().map(shown).collect();
    let mut evidence = Evidence::new(format!("{}: {}", file_name(&file.path), parts.join("; ")))
        .with("path", unescaped(&file.path))
        .with("openers", openers);
    if let Some(residency) = file.residency {
        evidence = evidence.with("resident_bytes", residency.resident);
    }
    if let Some(all) = stretches {
        let all: Vec<[u64; 2]> = all.iter().map(|range| [range.start, range.end]).collect();
        evidence = evidence.with("stretches_bytes", serde_json::json!(all));
    }
    evidence
}

/// An opener for programs.
fn shown(opener: &Opener) -> serde_json::Value {
    let how = match opener.kind {
        OpenerKind::Direct(_) => "direct",
        OpenerKind::Buffered(_) => "buffered",
        OpenerKind::Mapped { .. } => "mapped",
    };
    let writes =
        may_write(opener) || matches!(opener.kind, OpenerKind::Direct(Access::WriteOnly | Access::ReadWrite));
    serde_json::json!({"pid": opener.pid, "name": opener.name, "how": how, "writes": writes})
}

/// Whether it was seen that somebody wrote it through the page cache while watching: dirty pages, or pages brought in by
/// one who may write so.
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

/// Who brought pages of files in that nobody has open through the page cache by now.
struct Reader<'a> {
    name: &'a str,
    pids: BTreeSet<u32>,
    bytes: u64,
}

impl Reader<'_> {
    /// "cat (process 7)", "cat (12 processes)".
    fn named(&self) -> String {
        match (self.pids.first(), self.pids.len()) {
            (Some(pid), 1) => format!("{} (process {pid})", self.name),
            (_, many) => format!("{} ({many} processes)", self.name),
        }
    }
}

/// Those who brought in pages of these files while watching, as tracing saw it, the most first: programs that come and go in a
/// loop are in no list of who has a file open. Not the database that a file is of.
fn brought_in_by<'a>(observation: &Observation<'a>, files: &[&File]) -> Vec<Reader<'a>> {
    let pages = observation.trace().and_then(|trace| trace.pages.as_ref());
    let inodes: HashSet<Inode> = files.iter().map(|file| file.inode).collect();
    let owner = files.first().and_then(|file| file.database);
    let mut readers: BTreeMap<&str, Reader<'_>> = BTreeMap::new();
    for counts in pages.into_iter().flatten().filter(|counts| counts.flow.added.bytes > 0) {
        let Some(task) = &counts.task else { continue };
        if !inodes.contains(&counts.file) || owner.is_some() && database_of(observation, task) == owner {
            continue;
        }
        let reader = readers.entry(&task.name).or_insert_with(|| Reader {
            name: &task.name,
            pids: BTreeSet::new(),
            bytes: 0,
        });
        reader.pids.insert(task.process);
        reader.bytes += counts.flow.added.bytes;
    }
    let mut readers: Vec<Reader<'_>> = readers.into_values().collect();
    readers.sort_by_key(|reader| (std::cmp::Reverse(reader.bytes), reader.name));
    readers
}

/// The first of these in a sentence, and how many more there are: whoever starts very many programs does not fill the report.
fn listed(mut named: Vec<String>) -> String {
    let more = named.len().saturating_sub(NAMED);
    named.truncate(NAMED);
    let named = named.join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

/// How much it matters, and what it costs in a sentence.
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
        MixedWith::Leftover => (mixed.leftover_read, mixed.leftover_write),
    };
    // One of them was not measured: the other alone does not show all of the cost.
    let is_half = mixed_with != MixedWith::Reader && (read.is_none() || write.is_none());
    let Some(worst) = least(read, write).filter(|worst| !is_half || *worst < CHEAP) else {
        let (severity, text) = unmeasured(mixed_with, files);
        return (severity, Cost::estimated(text));
    };
    let beside = match mixed_with {
        MixedWith::Writer => "beside a buffered writer",
        MixedWith::Reader => "beside a buffered reader",
        MixedWith::Leftover => "while unused pages are resident",
    };
    let rates: Vec<String> = [(read, "reads"), (write, "writes")]
        .into_iter()
        .filter_map(|(rate, what)| Some(format!("direct {what} ran at {} of their rate", share(rate)?)))
        .collect();
    let nothing = if worst >= CHEAP { "Next to nothing: " } else { "" };
    let text = format!(
        "{nothing}{} {beside}, as pagekeeper probe measured on this file system.",
        rates.join(" and ")
    );
    let busy = mixed_with != MixedWith::Writer || files.iter().any(|file| is_written(observation, file));
    let severity = if worst >= CHEAP {
        Severity::Note
    } else if worst < DEAR && busy {
        Severity::Serious
    } else {
        Severity::Warning
    };
    (severity, Cost::measured(sentence(&text)))
}

/// With a capital letter at its start.
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
    let (severity, elsewhere) = match mixed_with {
        MixedWith::Writer => {
            (Severity::Warning, "direct reads and writes ran at half their rate beside a buffered writer")
        }
        MixedWith::Reader => {
            (Severity::Note, "direct reads ran at 75 to 100 % of their rate beside a buffered reader")
        }
        MixedWith::Leftover => (
            Severity::Note,
            "they cost nothing but the memory; on XFS of old kernels each direct read waited for the others",
        ),
    };
    (
        severity,
        format!(
            "Not measured on this file system; {command} does that. On ext4 and XFS of Linux 6.18 {elsewhere}."
        ),
    )
}

fn fix(observation: &Observation<'_>, mixed_with: MixedWith, files: &[&File]) -> Option<Fix> {
    let openers = |wanted: fn(&Opener) -> bool| {
        let openers = files.iter().flat_map(|file| &file.openers).filter(|opener| wanted(opener));
        let named: BTreeSet<String> =
            openers.map(|opener| format!("{} (process {})", opener.name, opener.pid)).collect();
        named.into_iter().collect()
    };
    let named: Vec<String> = match mixed_with {
        MixedWith::Writer => openers(may_write),
        MixedWith::Reader => openers(may_read),
        MixedWith::Leftover => brought_in_by(observation, files).iter().map(Reader::named).collect(),
    };
    if named.is_empty() {
        return None;
    }
    Some(Fix::advice(
        format!("let {} use O_DIRECT too, or stop it", listed(named)),
        match mixed_with {
            MixedWith::Writer => "at once; what it leaves resident is evicted by pagekeeper doctor --fix",
            MixedWith::Reader | MixedWith::Leftover => "at once; a backup can read a snapshot instead",
        },
        Terms::anywhere(
            Confidence::Measured,
            "it was seen to use the same file through the page cache",
            "it reads and writes at the speed of the disk",
            "start it again as before",
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DEV, MIB, change, disk, file, opener, residency, sample};
    use pagekeeper_observe::Snapshot;
    use pagekeeper_policy::FileClass;
    use pagekeeper_trace::{PageCounts, PageFlow, PageTotals, Task};

    fn find(observation: &Observation<'_>) -> Vec<Finding> {
        super::find(observation, Earlier(&[]))
    }

    const DIRECT: OpenerKind = OpenerKind::Direct(Access::ReadWrite);

    /// A table file held with `O_DIRECT` by the server, 64 KiB of it resident, with further openers.
    fn table(name: &str, others: Vec<Opener>) -> File {
        let mut table = file(&format!("/var/lib/mysql/test/{name}"), FileClass::Data, 64 * MIB, 64 << 10);
        table.openers.push(opener(100, "mariadbd", DIRECT));
        table.openers.extend(others);
        table
    }

    fn sample_of(files: Vec<File>) -> Snapshot {
        Snapshot { files, ..sample() }
    }

    fn find_in(snapshot: &Snapshot, measured: Option<MixedProfile>) -> Vec<Finding> {
        let before = crate::testing::sample();
        let mut observation = Observation::new(&before, snapshot);
        if let Some(mixed) = measured {
            observation.disks.push((DEV, disk(mixed)));
        }
        find(&observation)
    }

    #[test]
    fn only_files_with_direct_io_and_another_use_are_reported() {
        let mut alone = table("alone.ibd", Vec::new());
        alone.residency = Some(residency(0, 0));
        let mut buffered = table("buffered.ibd", Vec::new());
        buffered.openers[0].kind = OpenerKind::Buffered(Access::ReadWrite);
        let mut shown = table("shown.ibd", Vec::new());
        shown.residency = Some(residency(0, 0));
        shown.openers.push(opener(7, "lsof", OpenerKind::Buffered(Access::Neither)));
        let closed = file("/var/lib/mysql/test/closed.ibd", FileClass::Data, MIB, MIB);
        assert_eq!(find_in(&sample_of(vec![alone, buffered, shown, closed]), None), []);
    }

    #[test]
    fn each_kind_of_use_is_distinguished() {
        for (kind, mixed_with) in [
            (OpenerKind::Buffered(Access::WriteOnly), MixedWith::Writer),
            (OpenerKind::Buffered(Access::ReadWrite), MixedWith::Writer),
            (OpenerKind::Mapped { writable: true }, MixedWith::Writer),
            (OpenerKind::Buffered(Access::ReadOnly), MixedWith::Reader),
            (OpenerKind::Mapped { writable: false }, MixedWith::Reader),
            (DIRECT, MixedWith::Leftover),
            (OpenerKind::Buffered(Access::Neither), MixedWith::Leftover),
        ] {
            let table = table("t.ibd", vec![opener(7, "other", kind)]);
            assert_eq!(super::mixed_with(&table), Some(mixed_with), "{kind:?}");
        }
    }

    #[test]
    fn leftovers_are_reported_with_their_place_and_cost_what_was_measured() {
        let after = sample_of(vec![table("a.ibd", Vec::new()), table("b.ibd", Vec::new())]);
        let before = sample();
        let mut observation = Observation::new(&before, &after);
        observation.stretches.push((after.files[0].inode, vec![0..16 << 10, MIB..MIB + (48 << 10)]));
        let found = find(&observation);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].title, "128 KiB left in the page cache of 2 files used with O_DIRECT");
        assert_eq!(found[0].severity, Severity::Note);
        assert_eq!(
            found[0].evidence[0].text,
            "a.ibd: O_DIRECT by mariadbd (process 100); 64 KiB resident (16 KiB from 0 B, 48 KiB from 1 MiB)"
        );
        assert!(
            found[0].cost.text.contains("`pagekeeper probe --save /var/lib/mysql/test` does that"),
            "{found:?}"
        );
        assert!(found[0].pagekeeper.as_ref().unwrap().contains("doctor --pid 100 --fix`"), "{found:?}");
        let half = MixedProfile { leftover_write: Some(1.0), ..MixedProfile::default() };
        assert!(
            find_in(&after, Some(half))[0].cost.text.starts_with("Not measured"),
            "of reads nothing is known"
        );
        for (read, write, severity, words) in [
            (1.0, 0.99, Severity::Note, "Next to nothing: direct reads ran at 100 %"),
            (0.8, 1.0, Severity::Warning, "Direct reads ran at 80 % of their rate"),
            (0.2, 1.0, Severity::Serious, "Direct reads ran at 20 % of their rate"),
        ] {
            let mixed = MixedProfile {
                leftover_read: Some(read),
                leftover_write: Some(write),
                ..MixedProfile::default()
            };
            let found = find_in(&after, Some(mixed));
            assert_eq!(found[0].severity, severity, "{found:?}");
            assert!(found[0].cost.text.starts_with(words), "{found:?}");
        }
    }

    #[test]
    fn who_reads_leftovers_and_is_gone_is_named() {
        let after = sample_of(vec![table("a.ibd", Vec::new()), table("b.ibd", Vec::new())]);
        let mut change = change();
        let (a, b) = (after.files[0].inode, after.files[1].inode);
        let counts = |file, pid| crate::testing::pages(file, pid, "cat", 64 << 10, 0);
        // Five of them, one after the other, and none has the file open now.
        let of_b = crate::testing::pages(b, 900, "scrub", MIB, 0);
        change.trace.as_mut().unwrap().pages =
            Some((800..805).map(|pid| counts(a, pid)).chain([of_b]).collect());
        let found = find_in(&Snapshot { change: Some(change), ..after }, None);
        let texts: Vec<&str> = found[0].evidence.iter().map(|evidence| evidence.text.as_str()).collect();
        assert!(texts[0].contains("brought in through the page cache while watching by cat (5 processes);"));
        assert!(texts[1].contains("while watching by scrub (process 900);"), "{texts:?}");
        assert_eq!(
            found[0].fixes[0].act,
            "let scrub (process 900), cat (5 processes) use O_DIRECT too, or stop it"
        );
    }

    #[test]
    fn of_many_who_read_leftovers_few_are_named_and_never_the_database() {
        let mut one = table("a.ibd", Vec::new());
        one.database = Some(0);
        let inode = one.inode;
        let after = sample_of(vec![one]);
        let mut change = change();
        let hostile = (0..200).map(|pid| crate::testing::pages(inode, 800 + pid, &format!("x{pid}"), MIB, 0));
        let own = crate::testing::pages(inode, 100, "mariadbd", 9 * MIB, 0);
        change.trace.as_mut().unwrap().pages = Some(hostile.chain([own]).collect());
        let found = find_in(&Snapshot { change: Some(change.clone()), ..after.clone() }, None);
        let fix = &found[0].fixes[0].act;
        assert!(fix.starts_with("let x0 (process 800), "), "{fix}");
        assert!(fix.ends_with(" and 195 more use O_DIRECT too, or stop it"), "{fix}");
        assert!(found[0].evidence[0].text.contains(" and 195 more;"), "{found:?}");
        // Where nobody else did there is nobody to stop.
        change.trace.as_mut().unwrap().pages.as_mut().unwrap().drain(..200);
        let found = find_in(&Snapshot { change: Some(change), ..after }, None);
        assert!(!found[0].fixes.iter().any(|fix| fix.act.contains("or stop it")), "{found:?}");
    }

    #[test]
    fn a_buffered_writer_is_the_costly_case() {
        let writer = opener(77, "dd", OpenerKind::Buffered(Access::WriteOnly));
        let mixed = MixedProfile {
            buffered_writer_read: Some(0.42),
            buffered_writer_write: Some(0.48),
            ..MixedProfile::default()
        };
        let mut after = sample_of(vec![table("a.ibd", vec![writer.clone()]), table("b.ibd", Vec::new())]);
        // Open for writing, but nothing was seen to be written.
        let found = find_in(&after, Some(mixed));
        assert_eq!(found.len(), 2, "the writer's file, and the leftovers of the other");
        assert_eq!(found[0].severity, Severity::Warning);
        // Dirty pages.
        after.files[0].residency = Some(residency(64 << 10, 4096));
        let found = find_in(&after, Some(mixed));
        assert_eq!(found[0].severity, Severity::Serious);
        assert_eq!(
            found[0].cost.text,
            "Direct reads ran at 42 % of their rate and direct writes ran at 48 % of their rate beside a buffered \
             writer, as pagekeeper probe measured on this file system."
        );
        assert_eq!(
            found[0].evidence[0].text,
            "a.ibd: O_DIRECT by mariadbd (process 100); may be written through the page cache by dd (process 77); \
             written so while watching; 64 KiB resident"
        );
        assert_eq!(found[0].fixes[0].act, "let dd (process 77) use O_DIRECT too, or stop it");
        assert_eq!(found[0].pagekeeper, None);
        let found = find_in(&after, None);
        assert_eq!(found[0].severity, Severity::Warning);
        assert!(found[0].cost.text.starts_with("Not measured on this file system; "), "{found:?}");
    }

    #[test]
    fn fixes_of_myrocks_are_for_its_own_files() {
        use crate::settings::{Engine, Origin, Settings};
        let acts = |name: &str| {
            let after = sample_of(vec![table(name, Vec::new())]);
            let before = sample();
            let mut observation = Observation::new(&before, &after);
            let mut settings = Settings::new(Engine::MariaDb);
            settings.myrocks = true;
            let direct = "rocksdb_use_direct_io_for_flush_and_compaction";
            for (name, value) in [(direct, "ON"), ("rocksdb_use_direct_reads", "OFF")] {
                settings.add(name, value, Origin::CommandLine);
            }
            observation.settings = vec![settings];
            find(&observation)[0].fixes.iter().map(|fix| fix.act.clone()).collect::<Vec<_>>()
        };
        assert_eq!(acts("t.ibd"), [""; 0]);
        assert_eq!(acts("000012.sst"), ["rocksdb_use_direct_reads=ON"]);
    }

    #[test]
    fn a_writer_is_seen_by_the_pages_it_brings_in() {
        let writer = opener(77, "dd", OpenerKind::Buffered(Access::WriteOnly));
        let mut after = sample_of(vec![table("a.ibd", vec![writer])]);
        let mut change = change();
        let counts = |process| PageCounts {
            file: after.files[0].inode,
            task: Some(Task { process, thread: process, name: "dd".to_owned() }),
            flow: PageFlow { added: PageTotals { folios: 1, bytes: 4096 }, removed: PageTotals::default() },
        };
        // First by another, who only reads it.
        for (process, severity) in [(78, Severity::Warning), (77, Severity::Serious)] {
            change.trace.as_mut().unwrap().pages = Some(vec![counts(process)]);
            let snapshot = Snapshot { change: Some(change.clone()), ..after.clone() };
            let mixed = MixedProfile { buffered_writer_read: Some(0.4), ..MixedProfile::default() };
            assert_eq!(find_in(&snapshot, Some(mixed))[0].severity, severity, "{process}");
        }
        after.files.clear();
        assert_eq!(find_in(&after, None), []);
    }

    #[test]
    fn many_files_are_listed_by_the_largest_and_a_sum() {
        let files = (0..20).map(|number| {
            let mut table = table(&format!("{number:02}.ibd"), Vec::new());
            table.residency = Some(residency((number + 1) * 4096, 0));
            table
        });
        let found = find_in(&sample_of(files.collect()), None);
        assert_eq!(found[0].evidence.len(), NAMED + 1);
        assert!(found[0].evidence[0].text.starts_with("19.ibd: "), "{found:?}");
        assert_eq!(found[0].evidence[NAMED].text, "15 files more, 480 KiB resident");
    }
}
