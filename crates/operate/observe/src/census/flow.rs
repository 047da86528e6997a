//! Traced page-cache activity of each file: bytes that entered and left, the causes, and the
//! processes.
//!
//! Invariants: totals are since the census began. For each file the few processes that brought in
//! most are remembered. The number of files is bounded.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use pagekeeper_kernel::Inode;
use pagekeeper_trace::{PageCounts, ReclaimCounts};

/// Maximum number of files whose flows are remembered; beyond that, those that were quiet longest
/// are forgotten.
const FLOW_FILES_MAX: usize = 65_536;
/// Maximum number of processes that are remembered per file.
const SOURCE_PROCESSES_MAX: usize = 4;

/// Bytes that entered and left a file's pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct FlowBytes {
    /// Entered: read, read ahead or written.
    pub added: u64,
    /// Reclaimed by the kernel under memory pressure: in the background (`kswapd`; `kdamond` where
    /// DAMON reclaims proactively), or by a task that had to reclaim for itself.
    pub reclaimed: u64,
    /// Left for another cause: advice, truncation, removal.
    pub dropped: u64,
}

impl FlowBytes {
    fn merge(&mut self, other: Self) {
        self.added += other.added;
        self.reclaimed += other.reclaimed;
        self.dropped += other.dropped;
    }

    /// Returns all bytes that left.
    pub fn removed(&self) -> u64 {
        self.reclaimed + self.dropped
    }
}

/// The flow of one file.
#[derive(Debug, Clone, Default)]
pub(super) struct FileFlow {
    pub(super) total: FlowBytes,
    pub(super) last: FlowBytes,
    pub(super) tick: u32,
    /// The processes that brought it in, largest first.
    pub(super) sources: Vec<SourceProcess>,
}

/// A process that brought pages in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SourceProcess {
    pub(super) pid: u32,
    pub(super) bytes: u64,
    /// The name that tracing reported: the process may have ended before it could be inspected.
    pub(super) name: Arc<str>,
}

/// The flows of all files.
#[derive(Debug, Default)]
pub(super) struct FlowTable {
    by_file: HashMap<Inode, FileFlow>,
}

/// Returns how many of this task's removals are the kernel's: in the background, or because the
/// task had to reclaim. `direct` holds the bytes that each thread reclaimed itself and that are not
/// assigned to a file yet. The task dropped anything beyond that.
fn reclaimed(counts: &PageCounts, direct: &mut HashMap<u32, u64>) -> u64 {
    const RECLAIM_THREADS: [&str; 2] = ["kswapd", "kdamond"];
    let removed = counts.flow.removed.bytes;
    let Some(task) = &counts.task else { return 0 };
    if RECLAIM_THREADS.iter().any(|name| task.name.starts_with(name)) {
        return removed;
    }
    direct.get_mut(&task.thread).map_or(0, |left| {
        let reclaimed = removed.min(*left);
        *left -= reclaimed;
        reclaimed
    })
}

impl FlowTable {
    /// Adds the counts of a tick. `file` returns the file that an event belongs to, if the census
    /// covers it. Returns the flow of each file, and the processes involved.
    pub(super) fn add(
        &mut self,
        tick: u32,
        pages: &[PageCounts],
        reclaim: &[ReclaimCounts],
        file: impl Fn(Inode) -> Option<Inode>,
    ) -> HashMap<Inode, (FlowBytes, Vec<u32>)> {
        let mut direct: HashMap<u32, u64> = HashMap::new();
        for counts in reclaim {
            *direct.entry(counts.task.thread).or_default() += counts.reclaimed;
        }
        let mut now: HashMap<Inode, (FlowBytes, Vec<u32>)> = HashMap::new();
        for counts in pages {
            let Some(inode) = file(counts.file) else { continue };
            let reclaimed = reclaimed(counts, &mut direct);
            let dropped = counts.flow.removed.bytes - reclaimed;
            let flow = FlowBytes { added: counts.flow.added.bytes, reclaimed, dropped };
            let of_file = self.by_file.entry(inode).or_default();
            if of_file.tick != tick {
                (of_file.tick, of_file.last) = (tick, FlowBytes::default());
            }
            of_file.total.merge(flow);
            of_file.last.merge(flow);
            let (sum, by) = now.entry(inode).or_default();
            sum.merge(flow);
            if let Some(task) = counts.task.as_ref().filter(|_| flow.added > 0) {
                of_file.add_source(task.process, &task.name, flow.added);
                by.push(task.process);
            }
        }
        self.forget_quiet_files(tick);
        now
    }

    fn forget_quiet_files(&mut self, tick: u32) {
        let mut keep = 600_u32;
        while self.by_file.len() > FLOW_FILES_MAX && keep > 0 {
            self.by_file.retain(|_, flow| tick.saturating_sub(flow.tick) < keep);
            keep /= 2;
        }
    }

    pub(super) fn of(&self, inode: Inode) -> Option<&FileFlow> {
        self.by_file.get(&inode)
    }

    /// Returns every process that brought in pages.
    pub(super) fn processes(&self) -> HashSet<u32> {
        self.by_file.values().flat_map(|flow| flow.sources.iter().map(|source| source.pid)).collect()
    }
}

impl FileFlow {
    fn add_source(&mut self, pid: u32, name: &str, bytes: u64) {
        match self.sources.iter_mut().find(|source| source.pid == pid) {
            Some(source) => {
                source.bytes += bytes;
                // Tracing may not have had the name of a thread that had ended before.
                if *source.name != *name && !name.is_empty() {
                    source.name = name.into();
                }
            }
            None => self.sources.push(SourceProcess { pid, bytes, name: name.into() }),
        }
        self.sources.sort_by_key(|source| std::cmp::Reverse(source.bytes));
        self.sources.truncate(SOURCE_PROCESSES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_trace::{DurationStats, PageFlow, PageTotals, ReclaimKind, TaskIdentity};

    fn task(process: u32, name: &str) -> TaskIdentity {
        TaskIdentity { process, thread: process + 1, name: name.into() }
    }

    fn counts(ino: u64, task: TaskIdentity, added: u64, removed: u64) -> PageCounts {
        let totals = |bytes| PageTotals { folios: 1, bytes };
        let flow = PageFlow { added: totals(added), removed: totals(removed) };
        PageCounts { file: Inode { dev: 1, ino }, task: Some(task), flow }
    }

    #[test]
    fn reclaimed_pages_are_distinguished_from_dropped_ones() {
        let mut flows = FlowTable::default();
        let stall = ReclaimCounts {
            task: task(7, "reader"),
            kind: ReclaimKind::Machine,
            stalls: DurationStats::default(),
            reclaimed: 15,
        };
        let events = [
            counts(5, task(1, "kswapd0"), 0, 4),
            counts(5, task(2, "kdamond.0"), 0, 6),
            counts(5, task(7, "reader"), 100, 20),
            counts(5, task(8, "rm"), 0, 40),
            counts(6, task(8, "cp"), 1, 0),
        ];
        let ours = |inode: Inode| (inode.ino == 5).then_some(inode);
        let now = flows.add(1, &events, &[stall], ours);
        // The reader dropped what it removed beyond what it reclaimed.
        let expected = FlowBytes { added: 100, reclaimed: 25, dropped: 45 };
        let inode = Inode { dev: 1, ino: 5 };
        assert_eq!(now, HashMap::from([(inode, (expected, vec![7]))]));
        let flow = flows.of(inode).unwrap();
        let reader = SourceProcess { pid: 7, bytes: 100, name: "reader".into() };
        assert_eq!((flow.total, flow.last, flow.sources.as_slice()), (expected, expected, &[reader][..]));
        flows.add(2, &[counts(5, task(9, "b"), 200, 0)], &[], ours);
        let flow = flows.of(inode).unwrap();
        assert_eq!((flow.total.added, flow.last.added, flow.sources[0].pid), (300, 200, 9));
        assert_eq!(flows.processes(), HashSet::from([7, 9]));
    }

    #[test]
    fn the_history_is_bounded() {
        let mut flows = FlowTable::default();
        for tick in 1..4 {
            let events: Vec<_> =
                (0..40_000).map(|ino| counts(u64::from(tick) << 32 | ino, task(1, "a"), 1, 0)).collect();
            flows.add(tick, &events, &[], Some);
        }
        assert!(flows.by_file.len() <= FLOW_FILES_MAX);
        assert!(flows.of(Inode { dev: 1, ino: 3 << 32 }).is_some());
    }
}
