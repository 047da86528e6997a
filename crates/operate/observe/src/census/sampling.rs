//! Samples files that have events, have dirty pages or are on the screen, within a tick's time.
//!
//! Invariants: a file for which there is no time is estimated from events, and is first in the next
//! tick. A file that takes long to count is counted rarely, so that it takes at most a twentieth of
//! the time.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use pagekeeper_kernel::process::thread_cpu_time;
use pagekeeper_kernel::{Error, ExpectedFile, Inode, InspectedFile, Links, page_size};
use pagekeeper_trace::TraceCounts;

use super::table::{CachedPages, FileName};
use super::walk::count;
use super::{Census, FlowBytes};

/// Counting one file may take 1/`FILE_TIME_DIVISOR` of the time between two ticks.
const FILE_TIME_DIVISOR: u32 = 20;

/// The processor time a tick has left.
#[derive(Debug)]
pub(super) struct TickBudget {
    until: Duration,
    asked: u32,
    over: bool,
}

impl TickBudget {
    pub(super) fn of(time: Duration) -> Self {
        Self { until: thread_cpu_time() + time, asked: 0, over: false }
    }

    /// Returns whether it is used up.
    pub(super) fn over(&mut self) -> bool {
        self.asked += 1;
        // Reading the clock costs a system call.
        if self.asked.is_multiple_of(8) {
            self.over = thread_cpu_time() > self.until;
        }
        self.over
    }
}

/// The flow of each file, and the processes that brought pages in.
pub(super) type TickEvents = HashMap<Inode, (FlowBytes, Vec<u32>)>;

impl Census {
    /// Applies traced events, and samples the files that they concern.
    pub(super) fn apply(&mut self, counts: &TraceCounts, budget: &mut TickBudget) {
        let mut flows = std::mem::take(&mut self.files.flows);
        let pages = counts.pages.as_deref().unwrap_or_default();
        let reclaim = counts.reclaim.as_deref().unwrap_or_default();
        let events = flows.add(self.clock.tick, pages, reclaim, |inode| self.own_inode(inode));
        self.files.flows = flows;
        let mut unlisted = HashSet::new();
        for (inode, (flow, _)) in &events {
            if !self.estimate(*inode, *flow) {
                unlisted.insert(*inode);
            }
        }
        for pid in events.values().flat_map(|(_, pids)| pids) {
            if !self.processes.known.contains_key(pid)
                && let Some(process) = super::processes::process(&self.options.roots.proc, *pid)
            {
                self.processes.known.insert(*pid, process);
            }
        }
        self.find_names(&events, &unlisted, budget);
        let mut due: HashSet<u32> = events.keys().filter_map(|inode| self.files.table.id(*inode)).collect();
        if self.dirty_elsewhere {
            due.extend(self.processes.openers.written().filter_map(|inode| self.files.table.id(inode)));
        }
        self.sample(due, budget);
    }

    /// Samples open files, dirty files and those on the screen, where there are no events.
    pub(super) fn sample_without_events(&mut self, budget: &mut TickBudget) {
        let open: HashSet<u32> =
            self.processes.openers.files().filter_map(|inode| self.files.table.id(inode)).collect();
        self.sample(open, budget);
    }

    /// Estimates a file's pages in memory from its flow. Returns `false` if the file is not a known
    /// one.
    fn estimate(&mut self, inode: Inode, flow: FlowBytes) -> bool {
        let pages = |bytes: u64| u32::try_from(bytes / page_size()).unwrap_or(u32::MAX);
        if let Some(id) = self.files.table.id(inode) {
            let Some(entry) = self.files.table.get(id) else { return false };
            let then = entry.pages;
            let resident =
                then.resident.saturating_add(pages(flow.added)).saturating_sub(pages(flow.removed()));
            let evicted = then.evicted.saturating_add(pages(flow.reclaimed));
            // A file with a name will be sampled. A nameless one ends with its pages.
            let least = u32::from(entry.name != FileName::Unknown);
            let now = CachedPages { resident: resident.max(least), evicted, ..then };
            if !self.files.table.set_pages(id, now) {
                self.forget(id);
            }
            return true;
        }
        if flow.added <= flow.removed() {
            return true;
        }
        let known = self.files.directories.directory(inode).is_some();
        let Some(file_system) = self.scope.file_system_of(inode.dev) else { return true };
        if !known && self.scope.file_systems.scoped {
            // Most likely a file of another directory.
            return false;
        }
        let id = self.files.table.insert_unknown(
            inode,
            file_system,
            pages(flow.added - flow.removed()),
            self.clock.rescan,
        );
        self.files.nameless.insert(id, 0);
        true
    }

    /// Samples these files, dirty files and those on the screen. Files that were not sampled for
    /// longest come first.
    fn sample(&mut self, mut due: HashSet<u32>, budget: &mut TickBudget) {
        due.extend(&self.files.unwritten);
        due.extend(&self.files.shown);
        let mut due: Vec<(u32, u32)> =
            due.into_iter().filter_map(|id| Some((self.files.table.get(id)?.counted, id))).collect();
        due.sort_unstable();
        for (counted, id) in due {
            if budget.over() {
                break;
            }
            let expensive = self.files.table.get(id).is_some_and(|entry| {
                // The units are ticks of about a second, since only the share of the time matters.
                entry.cost > 2000
                    && self.clock.tick.saturating_sub(counted) * (1_000_000 / FILE_TIME_DIVISOR) < entry.cost
            });
            if !expensive {
                self.sample_file(id);
            }
        }
    }

    /// Counts the pages of one file.
    pub(super) fn sample_file(&mut self, id: u32) {
        let Some(entry) = self.files.table.get(id) else {
            self.forget(id);
            return;
        };
        let (inode, file_system) = (entry.inode, entry.file_system);
        let opened = match (self.files.reach.get(&inode), entry.path(&self.scope.directories())) {
            (Some(reach), path) => {
                let shown = path.unwrap_or_else(|| reach.clone());
                InspectedFile::open_magic_link(reach, ExpectedFile::Inode(inode), shown)
            }
            (None, Some(path)) if !matches!(entry.name, FileName::Deleted(_)) => {
                InspectedFile::open(path, Links::RefuseAll)
            }
            _ => return,
        };
        match opened {
            Ok(file) if file.inode() == inode => match count(&file, FileName::Unknown, file_system) {
                Ok(Some(found)) => {
                    self.take_found(found);
                }
                Ok(None) => {
                    self.files.table.remove(id);
                    self.forget(id);
                }
                Err(_) => {}
            },
            Ok(file) => {
                // Another file has its name now.
                let name = entry.name.clone();
                if let Ok(Some(found)) = count(&file, name, file_system) {
                    self.take_found(found);
                }
                self.lost_name(id);
            }
            Err(Error::OtherFile { .. }) => self.lost_name(id),
            Err(error) if error.is_gone() => self.lost_name(id),
            Err(_) => {}
        }
    }

    /// Handles a file whose name is gone: it exists only as long as some process has it open.
    fn lost_name(&mut self, id: u32) {
        let Some(entry) = self.files.table.get(id) else { return };
        let inode = entry.inode;
        self.files.reach.remove(&inode);
        let path = entry.path(&self.scope.directories()).unwrap_or_default();
        if self.processes.openers.of(inode).is_empty() || matches!(entry.name, FileName::Deleted(_)) {
            self.files.table.remove(id);
            self.forget(id);
        } else {
            // The next snapshot of the processes that have it finds a path to it.
            self.files.table.set_name(id, FileName::Deleted(path.into()));
        }
    }
}
