//! The table of existing processes, kept up to date at little cost.
//!
//! One listing of `/proc` shows new processes. The others are checked in turns, all within
//! [`CHECK_PERIOD`], since exec may replace a process's program and process IDs are reused. Fails
//! only if the processes can't be listed. A process that has ended meanwhile, or can't be seen, is
//! left out.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::ops::Bound;
use std::time::{Duration, Instant};

use pagekeeper_kernel::Result;
use pagekeeper_kernel::process::ProcRoot;

/// Period within which each process is checked.
pub(crate) const CHECK_PERIOD: Duration = Duration::from_secs(15);

/// The facts about a process that need no inspection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessEntry {
    /// Its parent.
    pub parent: u32,
    /// Its start time, in clock ticks since boot.
    pub started: u64,
    /// Its name.
    pub name: OsString,
    /// Whether it is a kernel thread, which has no files.
    pub kernel_thread: bool,
}

/// The existing processes.
#[derive(Debug, Default)]
pub struct ProcessTable {
    processes: BTreeMap<u32, ProcessEntry>,
    /// The process checked last, and the time of the check.
    checked: Option<(u32, Instant)>,
}

impl ProcessTable {
    /// Returns whether a database of this kind is a worker: its parent is one, too. `kind_of`
    /// returns the kind of a process that is a database.
    pub fn is_worker<'a>(&self, pid: u32, kind: &str, kind_of: impl Fn(u32) -> Option<&'a str>) -> bool {
        self.get(pid).is_some_and(|process| kind_of(process.parent) == Some(kind))
    }

    /// Lists the processes and checks those due by `now`. Returns those that are new or run another
    /// program than before.
    pub fn update(&mut self, proc: &ProcRoot, now: Instant) -> Result<Vec<u32>> {
        let pids = proc.pids()?;
        self.processes.retain(|pid, _| pids.binary_search(pid).is_ok());
        let due = self.due(now);
        let mut changed = Vec::new();
        for pid in pids {
            if !due.contains(&pid) && self.processes.contains_key(&pid) {
                continue;
            }
            let Ok(stat) = proc.stat(pid) else {
                self.processes.remove(&pid);
                continue;
            };
            let process = ProcessEntry {
                parent: stat.parent,
                started: stat.start_time,
                name: stat.name,
                kernel_thread: stat.kernel_thread,
            };
            let is_same =
                |known: &ProcessEntry| known.started == process.started && known.name == process.name;
            if !self.processes.get(&pid).is_some_and(is_same) {
                changed.push(pid);
            }
            self.processes.insert(pid, process);
        }
        Ok(changed)
    }

    /// Has every process checked at the next update.
    pub fn check_all(&mut self) {
        self.checked = None;
    }

    /// Returns all processes except kernel threads, by ID.
    pub fn programs(&self) -> impl Iterator<Item = (u32, &ProcessEntry)> {
        let all = self.processes.iter().map(|(pid, process)| (*pid, process));
        all.filter(|(_, process)| !process.kernel_thread)
    }

    /// Returns a process by its ID.
    pub fn get(&self, pid: u32) -> Option<&ProcessEntry> {
        self.processes.get(&pid)
    }

    /// Returns the processes whose turn it is, ascending.
    fn due(&mut self, now: Instant) -> std::collections::BTreeSet<u32> {
        let count = self.processes.len();
        let Some((last, at)) = self.checked.replace((0, now)) else {
            return self.processes.keys().copied().collect();
        };
        let share = now.saturating_duration_since(at).as_secs_f64() / CHECK_PERIOD.as_secs_f64();
        // Rounded up: fractions would never add up to one.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a number of processes"
        )]
        let wanted = ((count as f64 * share).ceil() as usize).min(count);
        let after = self.processes.range((Bound::Excluded(last), Bound::Unbounded));
        let turn = after.chain(self.processes.range(..=last)).map(|(pid, _)| *pid);
        let due: Vec<u32> = turn.take(wanted).collect();
        self.checked = Some((due.last().copied().unwrap_or(last), now));
        due.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fake_process;

    #[test]
    fn new_and_changed_processes_are_known() {
        let tree = tempfile::tempdir().unwrap();
        let proc = ProcRoot::at(tree.path());
        for pid in 1..=30 {
            fake_process(tree.path(), pid, "sh", 1, &[]);
        }
        let mut table = ProcessTable::default();
        let begin = Instant::now();
        assert_eq!(table.update(&proc, begin).unwrap().len(), 30);
        assert_eq!(table.update(&proc, begin).unwrap(), [0; 0]);
        fake_process(tree.path(), 31, "sh", 1, &[]);
        assert_eq!(table.update(&proc, begin).unwrap(), [31], "at once");
        fake_process(tree.path(), 17, "mariadbd", 1, &[]);
        std::fs::remove_dir_all(tree.path().join("5")).unwrap();
        let changed = (1..=16).find_map(|second| {
            let changed = table.update(&proc, begin + Duration::from_secs(second)).unwrap();
            (!changed.is_empty()).then_some((second, changed))
        });
        let (second, changed) = changed.unwrap();
        assert_eq!(changed, [17]);
        assert!(second > 1, "few at a time");
        assert!(table.get(5).is_none() && table.programs().count() == 30);
        fake_process(tree.path(), 18, "mariadbd", 1, &[]);
        table.check_all();
        assert_eq!(table.update(&proc, begin).unwrap(), [18]);
    }
}
