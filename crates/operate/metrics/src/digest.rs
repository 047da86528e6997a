//! The digest of a sample: figures by database and class, out of very many files.
//!
//! Invariant: figures are kept per file only for the requested number of files.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

use pagekeeper_doctor::{MixedWith, mixed_with};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_observe::{File, Snapshot, VisibilityGap};
use pagekeeper_text::escaped;
use pagekeeper_trace::{EventLosses, TaskIdentity, TraceCounts};

use crate::names::{DatabaseName, names};
use crate::totals::{FileTotals, OTHER_CLASS, TaskWaits, class_label};

/// A database in a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DatabaseFigures {
    pub(crate) name: DatabaseName,
    pub(crate) pid: Option<u32>,
    /// Its user; root if it has no process, since it was named explicitly then.
    pub(crate) user: u32,
    pub(crate) directories: Vec<PathBuf>,
    pub(crate) classes: BTreeMap<&'static str, FileTotals>,
    /// Number of files that are open with direct I/O, and through the page cache by a program other
    /// than their database.
    pub(crate) mixed: u64,
}

impl DatabaseFigures {
    /// Whether its profile knows some of its files, and they are not empty.
    pub(crate) fn holds_logs(&self) -> bool {
        self.classes.iter().any(|(class, files)| *class != OTHER_CLASS && files.size > 0)
    }
}

/// The counts of the trace since the previous sample.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TracedWaits {
    /// Whether pauses and stalls were counted.
    pub(crate) pauses: bool,
    pub(crate) stalls: bool,
    /// By index into [`SampleDigest::databases`].
    pub(crate) databases: HashMap<usize, TaskWaits>,
    /// Waits of all tasks of the host.
    pub(crate) everyone: TaskWaits,
    pub(crate) losses: EventLosses,
}

/// One of the files with the most resident bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopFile {
    pub(crate) name: DatabaseName,
    pub(crate) class: &'static str,
    pub(crate) path: String,
    pub(crate) resident: u64,
}

/// The result of a sample.
#[derive(Debug, Clone, Default)]
pub(crate) struct SampleDigest {
    pub(crate) databases: Vec<DatabaseFigures>,
    pub(crate) traced: Option<TracedWaits>,
    pub(crate) top: Vec<TopFile>,
    /// One sentence each.
    pub(crate) visibility_gaps: Vec<String>,
}

impl SampleDigest {
    /// Extracts what metrics need from a snapshot, with the paths of the `top` largest files.
    pub(crate) fn of(snapshot: &Snapshot, proc: &ProcRoot, top: usize) -> Self {
        let databases = snapshot.databases.iter().zip(names(snapshot, proc));
        let mut databases: Vec<DatabaseFigures> = databases
            .map(|(database, name)| DatabaseFigures {
                name,
                pid: database.pid,
                user: database.pid.and_then(|pid| proc.users(pid).ok()).map_or(0, |users| users.real),
                directories: database.directories.clone(),
                classes: BTreeMap::new(),
                mixed: 0,
            })
            .collect();
        for file in &snapshot.files {
            if let Some(figures) = file.database.and_then(|index| databases.get_mut(index)) {
                let is_mixed =
                    matches!(mixed_with(snapshot, file), Some(MixedWith::Writer | MixedWith::Reader));
                figures.mixed += u64::from(is_mixed);
                figures.classes.entry(class_label(file.class)).or_default().add(&FileTotals::of(file));
            }
        }
        let counts = snapshot.change.as_ref().and_then(|change| change.trace.as_ref());
        Self {
            top: most_resident(&snapshot.files, &databases, top),
            traced: counts.map(|counts| count_waits(counts, snapshot)),
            visibility_gaps: snapshot.visibility_gaps.iter().map(format_gap).collect(),
            databases,
        }
    }
}

/// Formats a visibility gap: what, why, and what would show it.
fn format_gap(gap: &VisibilityGap) -> String {
    let needs = gap.needs.as_ref().map(|needs| format!("; {needs} would show it")).unwrap_or_default();
    format!("can't see {}: {}{needs}", gap.what, gap.why)
}

fn most_resident(files: &[File], databases: &[DatabaseFigures], count: usize) -> Vec<TopFile> {
    if count == 0 {
        return Vec::new();
    }
    let resident = |file: &File| file.residency.map_or(0, |residency| residency.resident);
    let mut files: Vec<&File> =
        files.iter().filter(|file| file.database.is_some() && resident(file) > 0).collect();
    files.sort_by(|a, b| resident(b).cmp(&resident(a)).then_with(|| a.path.cmp(&b.path)));
    let top = files.into_iter().filter_map(|file| {
        Some(TopFile {
            name: databases.get(file.database?)?.name.clone(),
            class: class_label(file.class),
            path: escaped(&file.path).into_cow().into_owned(),
            resident: resident(file),
        })
    });
    // Removed files may have the name of others; a series must be unique.
    let mut named = HashSet::new();
    let once = |top: &TopFile| named.insert((top.name.clone(), top.class, top.path.clone()));
    top.filter(once).take(count).collect()
}

fn count_waits(counts: &TraceCounts, snapshot: &Snapshot) -> TracedWaits {
    let mut owners: HashMap<u32, usize> = HashMap::new();
    for (index, database) in snapshot.databases.iter().enumerate() {
        owners.extend(database.pid.iter().chain(&database.workers).map(|pid| (*pid, index)));
    }
    let mut traced = TracedWaits {
        pauses: counts.pauses.is_some(),
        stalls: counts.reclaim.is_some(),
        losses: counts.losses,
        ..TracedWaits::default()
    };
    let mut note = |task: &TaskIdentity, waits: TaskWaits| {
        traced.everyone.add(&waits);
        if let Some(index) = owners.get(&task.process) {
            traced.databases.entry(*index).or_default().add(&waits);
        }
    };
    for counts in counts.pauses.iter().flatten() {
        let (pauses, throttled) = (counts.pauses.count(), counts.pauses.total());
        note(&counts.task, TaskWaits { pauses, throttled, ..TaskWaits::default() });
    }
    for counts in counts.reclaim.iter().flatten() {
        let (stalls, stalled) = (counts.stalls.count(), counts.stalls.total());
        note(&counts.task, TaskWaits { stalls, stalled, ..TaskWaits::default() });
    }
    traced
}

#[cfg(test)]
mod tests {
    use super::*;

    use pagekeeper_kernel::{Inode, Residency, ResidencySource};

    #[test]
    fn a_path_is_among_the_files_with_most_resident_once() {
        let database = DatabaseFigures {
            name: DatabaseName::others(),
            pid: Some(1),
            user: 0,
            directories: Vec::new(),
            classes: BTreeMap::new(),
            mixed: 0,
        };
        let file = |path: &str, resident, database| File {
            inode: Inode { dev: 1, ino: resident },
            stat_inode: Inode { dev: 1, ino: resident },
            path: path.into(),
            reach: PathBuf::new(),
            size: resident,
            database,
            class: None,
            residency: Some(Residency {
                resident,
                dirty: None,
                writeback: None,
                evicted: None,
                recently_evicted: None,
                source: ResidencySource::Mincore,
            }),
            openers: Vec::new(),
        };
        let files = [
            file("/tmp/removed", 4096, Some(0)),
            file("/tmp/removed", 8192, Some(0)),
            file("/nobodys", 9 << 20, None),
            file("/empty", 0, Some(0)),
            file("/small", 1024, Some(0)),
        ];
        let top = most_resident(&files, &[database], 2);
        let listed: Vec<_> = top.iter().map(|top| (top.path.as_str(), top.resident)).collect();
        assert_eq!(listed, [("/tmp/removed", 8192), ("/small", 1024)]);
    }

    #[test]
    fn limits_are_reported_in_one_sentence() {
        let of = |needs: Option<&str>| {
            format_gap(&VisibilityGap {
                what: "pauses".to_owned(),
                why: "no tracefs".to_owned(),
                needs: needs.map(str::to_owned),
            })
        };
        assert_eq!(of(None), "can't see pauses: no tracefs");
        assert_eq!(of(Some("CAP_BPF")), "can't see pauses: no tracefs; CAP_BPF would show it");
    }
}
