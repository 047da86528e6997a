//! The swap of each database before and after the doctor's watch.
//!
//! Invariants: the watch only reads. Without swap space on the host it reads nothing. A figure that
//! can't be read is a visibility gap, not an error. The figures by process count as
//! growth only for processes that ran throughout the watch: fork(2) counts swapped memory of the
//! parent for the child, too. A group's growth includes all its processes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagekeeper_kernel::pressure::{GroupSwap, Swappiness, SysRoots};
use pagekeeper_observe::{Database, Snapshot, VisibilityGap};
use pagekeeper_text::listed_up_to;

use crate::observation::called;

/// Maximum number of databases named in the gap.
const LISTED_DATABASES_MAX: usize = 3;

/// The swap of one database at the end of a watch, and its change since the beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DatabaseSwap {
    /// The time between the two readings.
    pub period: Duration,
    /// Bytes of its processes in swap; without shared memory, unless the group's figure shows it.
    pub swapped: u64,
    /// The growth of that in bytes.
    pub grown: u64,
    /// Its processes with memory in swap.
    pub processes: usize,
    /// Its memory cgroup's figures; `None` without a group.
    pub group: Option<GroupSwap>,
    /// Bytes that came back from swap meanwhile, in its memory cgroup; `None` if not counted.
    pub came_back: Option<u64>,
    /// Whether its memory cgroup holds no other processes, so that the group's figures are its own.
    pub is_group_own: bool,
    /// The swappiness in force.
    pub swappiness: Option<Swappiness>,
}

/// The swap of one database at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SwapSample {
    /// Bytes in swap, by process and its start time.
    processes: BTreeMap<(u32, u64), u64>,
    group: Option<(PathBuf, GroupSwap)>,
    is_group_own: bool,
    swappiness: Option<Swappiness>,
    /// The reason why a process could not be read.
    unseen: Option<String>,
}

/// The swap of the databases when a watch began.
#[derive(Debug)]
pub struct SwapWatch {
    roots: SysRoots,
    /// By main process.
    before: BTreeMap<u32, SwapSample>,
    /// The time when these were read.
    read_at: Instant,
}

impl SwapWatch {
    /// Begins the watch.
    pub fn start(before: &Snapshot, roots: &SysRoots) -> Self {
        let before = samples(before, roots).into_iter().flatten().collect();
        Self { roots: roots.clone(), before, read_at: Instant::now() }
    }

    /// Returns the swap of each database of `after`, in its order, and a gap if some could not be
    /// seen. Empty without swap space.
    pub fn finish(self, after: &Snapshot) -> (Vec<Option<DatabaseSwap>>, Option<VisibilityGap>) {
        let samples = samples(after, &self.roots);
        let period = self.read_at.elapsed();
        let none = SwapSample::default();
        let mut unseen: Vec<(String, String)> = Vec::new();
        let swaps = samples.into_iter().enumerate().map(|(index, sample)| {
            let (pid, sample) = sample?;
            if let Some(why) = &sample.unseen {
                unseen.push((called(&after.databases[index]), why.clone()));
                return None;
            }
            let swap = DatabaseSwap::between(self.before.get(&pid).unwrap_or(&none), sample);
            Some(DatabaseSwap { period, ..swap })
        });
        (swaps.collect(), gap(unseen))
    }
}

/// Returns one gap for all databases whose swap could not be seen, with the first reason.
fn gap(unseen: Vec<(String, String)>) -> Option<VisibilityGap> {
    let why = unseen.first()?.1.clone();
    let names: Vec<String> = unseen.into_iter().map(|(name, _)| name).collect();
    let what = format!("the memory in swap of {}", listed_up_to(&names, LISTED_DATABASES_MAX));
    Some(VisibilityGap { what, why, needs: None })
}

/// Returns a sample for each database with a process, by its main process; none without swap space.
fn samples(snapshot: &Snapshot, roots: &SysRoots) -> Vec<Option<(u32, SwapSample)>> {
    if snapshot.host.memory.swap_total == 0 {
        return Vec::new();
    }
    let of = |database: &Database| Some((database.pid?, SwapSample::of(database, roots)));
    snapshot.databases.iter().map(of).collect()
}

impl SwapSample {
    fn of(database: &Database, roots: &SysRoots) -> Self {
        let group = database.cgroup.as_ref();
        let mut sample = Self {
            group: group.map(|group| (group.directory.clone(), GroupSwap::of(group))),
            swappiness: Swappiness::of(roots, group),
            ..Self::default()
        };
        let pids: BTreeSet<u32> = database.pid.iter().chain(&database.workers).copied().collect();
        for pid in &pids {
            match roots.proc.start_time(*pid).and_then(|started| Ok((started, roots.proc.swapped(*pid)?))) {
                Ok((started, Some(bytes))) => drop(sample.processes.insert((*pid, started), bytes)),
                Ok((_, None)) => {}
                // A process that ends meanwhile has no memory.
                Err(error) if error.is_gone() => {}
                Err(error) => sample.unseen = Some(error.to_string()),
            }
        }
        sample.is_group_own = group.is_some_and(|group| is_alone(&group.directory, &pids));
        sample
    }
}

/// Whether a group, which has none below, holds none but these processes.
#[allow(clippy::disallowed_methods, reason = "a directory of the kernel's own")]
fn is_alone(directory: &Path, pids: &BTreeSet<u32>) -> bool {
    let Ok(text) = std::fs::read_to_string(directory.join("cgroup.procs")) else { return false };
    let mut inside = text.lines().filter_map(|line| line.parse().ok());
    has_none_below(directory) && inside.all(|pid| pids.contains(&pid))
}

/// Whether a group is known to have no groups below.
#[allow(clippy::disallowed_methods, reason = "a directory of the kernel's own")]
fn has_none_below(directory: &Path) -> bool {
    let Ok(mut entries) = std::fs::read_dir(directory) else { return false };
    entries.all(|entry| entry.and_then(|entry| entry.file_type()).is_ok_and(|kind| !kind.is_dir()))
}

impl DatabaseSwap {
    /// Returns the change between two samples.
    fn between(before: &SwapSample, after: SwapSample) -> Self {
        let grown_of = |(process, bytes): (&(u32, u64), &u64)| {
            bytes.saturating_sub(before.processes.get(process).copied().unwrap_or(*bytes))
        };
        let mut swap = Self {
            swapped: after.processes.values().sum(),
            grown: after.processes.iter().map(grown_of).sum(),
            processes: after.processes.values().filter(|bytes| **bytes > 0).count(),
            is_group_own: after.is_group_own && before.is_group_own,
            swappiness: after.swappiness,
            ..Self::default()
        };
        let Some((directory, now)) = after.group else { return swap };
        let then = before.group.as_ref().filter(|(other, _)| *other == directory).map(|(_, then)| then);
        let change = |of: fn(&GroupSwap) -> Option<u64>| Some(of(&now)?.saturating_sub(of(then?)?));
        let pages = change(|group| group.refaults);
        swap.came_back = pages.map(|pages| pages.saturating_mul(pagekeeper_kernel::page_size()));
        if let (true, Some(used), Some(grown)) = (swap.is_group_own, now.used, change(|group| group.used)) {
            // Includes shared memory, and counts memory that processes share once.
            (swap.swapped, swap.grown) = (used, grown);
        }
        swap.group = Some(now);
        swap
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{MIB, sample};
    use pagekeeper_kernel::page_size;

    fn swap_sample(processes: &[(u32, u64)], group: Option<u64>) -> SwapSample {
        let group = group.map(|used| {
            let refaults = Some(used / page_size());
            (PathBuf::from("/g"), GroupSwap { used: Some(used), refaults, ..GroupSwap::default() })
        });
        let processes = processes.iter().map(|(pid, bytes)| ((*pid, 1), *bytes)).collect();
        SwapSample { processes, group, is_group_own: true, ..SwapSample::default() }
    }

    #[test]
    fn only_processes_that_ran_all_the_time_have_growth() {
        let before = swap_sample(&[(1, 5), (2, 9)], None);
        let swap = DatabaseSwap::between(&before, swap_sample(&[(1, 8), (3, 100)], None));
        assert_eq!((swap.swapped, swap.grown, swap.processes), (108, 3, 2));
        let mut reused = swap_sample(&[], None);
        reused.processes.insert((1, 2), 50);
        assert_eq!(DatabaseSwap::between(&before, reused).grown, 0, "another process");
    }

    #[test]
    fn a_groups_figures_count_where_it_holds_nobody_else() {
        let before = swap_sample(&[(1, MIB)], Some(2 * MIB));
        let after = swap_sample(&[(1, 2 * MIB)], Some(6 * MIB));
        let swap = DatabaseSwap::between(&before, after.clone());
        assert_eq!((swap.swapped, swap.grown, swap.came_back), (6 * MIB, 4 * MIB, Some(4 * MIB)));
        let shared = SwapSample { is_group_own: false, ..after.clone() };
        let swap = DatabaseSwap::between(&before, shared);
        assert_eq!((swap.swapped, swap.grown), (2 * MIB, MIB));
        let elsewhere = SwapSample { group: Some((PathBuf::from("/h"), GroupSwap::default())), ..after };
        let swap = DatabaseSwap::between(&before, elsewhere);
        assert_eq!((swap.swapped, swap.grown, swap.came_back), (2 * MIB, MIB, None));
    }

    /// Returns a tree of `/proc` with process 100 of [`sample`], whose status is this.
    fn tree(status: &str) -> (tempfile::TempDir, SysRoots) {
        let tree = tempfile::tempdir().unwrap();
        let process = tree.path().join("proc/100");
        std::fs::create_dir_all(&process).unwrap();
        std::fs::write(process.join("stat"), format!("100 (db) S {}", "1 ".repeat(40))).unwrap();
        std::fs::write(process.join("status"), status).unwrap();
        let roots = SysRoots::at(tree.path());
        (tree, roots)
    }

    #[test]
    fn nothing_is_read_without_swap_space_and_a_process_that_ended_is_no_gap() {
        let (tree, roots) = tree("VmSwap:\t 4 kB\n");
        let none = sample();
        assert_eq!(SwapWatch::start(&none, &roots).finish(&none), (Vec::new(), None));
        let mut swaps = sample();
        swaps.host.memory.swap_total = MIB;
        let (found, gap) = SwapWatch::start(&swaps, &roots).finish(&swaps);
        assert_eq!((found[0].as_ref().map(|swap| swap.swapped), gap), (Some(4096), None));
        std::fs::remove_dir_all(tree.path().join("proc/100")).unwrap();
        let (found, gap) = SwapWatch::start(&swaps, &roots).finish(&swaps);
        assert_eq!((found[0].as_ref().map(|swap| swap.swapped), gap), (Some(0), None));
    }

    #[test]
    fn the_period_is_the_time_between_its_own_readings() {
        let (_tree, roots) = tree("VmSwap:\t 4 kB\n");
        let mut swaps = sample();
        swaps.host.memory.swap_total = MIB;
        let mut watch = SwapWatch::start(&swaps, &roots);
        let earlier = Duration::from_millis(700);
        watch.read_at = watch.read_at.checked_sub(earlier).unwrap();
        let (found, _) = watch.finish(&swaps);
        let period = found[0].as_ref().unwrap().period;
        assert!(period >= earlier && period < Duration::from_secs(8), "not 10 s: {period:?}");
    }

    #[test]
    fn a_database_is_alone_only_in_a_group_that_is_known_to_hold_nobody_else() {
        let tree = tempfile::tempdir().unwrap();
        let procs = tree.path().join("cgroup.procs");
        std::fs::write(&procs, "1\n2\n").unwrap();
        let is_alone = |pids: &[u32]| is_alone(tree.path(), &pids.iter().copied().collect());
        assert!(is_alone(&[1, 2, 3]));
        assert!(!is_alone(&[1]));
        std::fs::create_dir(tree.path().join("below")).unwrap();
        assert!(!is_alone(&[1, 2]));
        assert!(!has_none_below(&procs), "a directory that can't be read may have groups");
    }

    #[test]
    fn a_process_that_cannot_be_read_is_a_gap() {
        let (tree, roots) = tree("");
        std::fs::remove_file(tree.path().join("proc/100/status")).unwrap();
        std::fs::create_dir(tree.path().join("proc/100/status")).unwrap();
        let mut swaps = sample();
        swaps.host.memory.swap_total = MIB;
        let (found, gap) = SwapWatch::start(&swaps, &roots).finish(&swaps);
        assert_eq!(found, [None]);
        assert!(gap.unwrap().what.ends_with("in swap of mariadb (process 100)"));
    }
}
