//! The counts of any source since the last [`take`](super::Tracer::take).
//!
//! Invariant: each table has at most `entries` entries; events without room are counted as lost.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use super::{
    BlockCounts, BlockOp, DirtyLevels, DurationStats, EventLosses, PageCounts, PageFlow, PauseCounts,
    ReclaimCounts, ReclaimKind, TaskIdentity,
};
use pagekeeper_kernel::{Inode, page_size};

/// Sums over pauses, in pages, from which [`DirtyLevels`] computes means.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LevelSums {
    pub(super) dirty: u64,
    pub(super) setpoint: u64,
    pub(super) limit: u64,
    pub(super) device_dirty: u64,
    pub(super) device_setpoint: u64,
}

/// Pauses of one task for one device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PauseSums {
    pub(super) lengths: DurationStats,
    pub(super) waits: u64,
    pub(super) longest_wait: Duration,
    pub(super) levels: LevelSums,
}

impl PauseSums {
    pub(super) fn merge(&mut self, other: &Self) {
        self.lengths.merge(&other.lengths);
        self.waits += other.waits;
        self.longest_wait = self.longest_wait.max(other.longest_wait);
        let (to, from) = (&mut self.levels, &other.levels);
        to.dirty += from.dirty;
        to.setpoint += from.setpoint;
        to.limit += from.limit;
        to.device_dirty += from.device_dirty;
        to.device_setpoint += from.device_setpoint;
    }

    fn levels(&self) -> DirtyLevels {
        let mean = |pages: u64| (pages / self.lengths.count().max(1)).saturating_mul(page_size());
        DirtyLevels {
            dirty: mean(self.levels.dirty),
            setpoint: mean(self.levels.setpoint),
            limit: mean(self.levels.limit),
            device_dirty: mean(self.levels.device_dirty),
            device_setpoint: mean(self.levels.device_setpoint),
        }
    }
}

/// Stalls of one task.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StallSums {
    pub(super) lengths: DurationStats,
    pub(super) reclaimed: u64,
}

impl StallSums {
    pub(super) fn merge(&mut self, other: &Self) {
        self.lengths.merge(&other.lengths);
        self.reclaimed += other.reclaimed;
    }
}

/// Requests of one kind to one device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RequestSums {
    pub(super) latency: DurationStats,
    pub(super) bytes: u64,
}

impl RequestSums {
    pub(super) fn merge(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        self.bytes += other.bytes;
    }
}

/// All counts.
#[derive(Debug)]
pub(super) struct PeriodSums {
    entries: usize,
    pages: HashMap<(Inode, Option<TaskIdentity>), PageFlow>,
    pauses: HashMap<(TaskIdentity, String), PauseSums>,
    reclaim: HashMap<(TaskIdentity, ReclaimKind), StallSums>,
    block: HashMap<(u64, BlockOp), RequestSums>,
    pub(super) losses: EventLosses,
}

/// Returns the entry of a table that may be full.
fn room_for<'a, K: Hash + Eq, V: Default>(
    table: &'a mut HashMap<K, V>,
    key: K,
    entries: usize,
    lost: &mut u64,
    events: u64,
) -> Option<&'a mut V> {
    if table.len() >= entries && !table.contains_key(&key) {
        *lost += events;
        return None;
    }
    Some(table.entry(key).or_default())
}

impl PeriodSums {
    pub(super) fn new(entries: u32) -> Self {
        Self {
            entries: entries as usize,
            pages: HashMap::new(),
            pauses: HashMap::new(),
            reclaim: HashMap::new(),
            block: HashMap::new(),
            losses: EventLosses::default(),
        }
    }

    pub(super) fn add_pages(&mut self, file: Inode, task: Option<TaskIdentity>, flow: &PageFlow) {
        let events = flow.added.folios + flow.removed.folios;
        let lost = &mut self.losses.no_room;
        if let Some(sum) = room_for(&mut self.pages, (file, task), self.entries, lost, events) {
            sum.merge(flow);
        }
    }

    pub(super) fn add_pauses(&mut self, task: TaskIdentity, device: String, pauses: &PauseSums) {
        let (lost, events) = (&mut self.losses.no_room, pauses.lengths.count());
        if let Some(sum) = room_for(&mut self.pauses, (task, device), self.entries, lost, events) {
            sum.merge(pauses);
        }
    }

    pub(super) fn add_reclaim(&mut self, task: TaskIdentity, kind: ReclaimKind, stalls: &StallSums) {
        let (lost, events) = (&mut self.losses.no_room, stalls.lengths.count());
        if let Some(sum) = room_for(&mut self.reclaim, (task, kind), self.entries, lost, events) {
            sum.merge(stalls);
        }
    }

    pub(super) fn add_block(&mut self, dev: u64, op: BlockOp, requests: &RequestSums) {
        let (lost, events) = (&mut self.losses.no_room, requests.latency.count());
        if let Some(sum) = room_for(&mut self.block, (dev, op), self.entries, lost, events) {
            sum.merge(requests);
        }
    }

    pub(super) fn page_counts(&self) -> Vec<PageCounts> {
        let count = |((file, task), flow): (&(Inode, Option<TaskIdentity>), &PageFlow)| PageCounts {
            file: *file,
            task: task.clone(),
            flow: *flow,
        };
        let mut counts: Vec<_> = self.pages.iter().map(count).collect();
        counts.sort_by(|a, b| {
            let order = b.flow.added.bytes.cmp(&a.flow.added.bytes);
            order.then_with(|| (a.file, &a.task).cmp(&(b.file, &b.task)))
        });
        counts
    }

    pub(super) fn pause_counts(&self) -> Vec<PauseCounts> {
        let count = |((task, device), pauses): (&(TaskIdentity, String), &PauseSums)| PauseCounts {
            task: task.clone(),
            device: device.clone(),
            pauses: pauses.lengths,
            waits: pauses.waits,
            longest_wait: pauses.longest_wait,
            levels: pauses.levels(),
        };
        let mut counts: Vec<_> = self.pauses.iter().map(count).collect();
        counts.sort_by(|a, b| {
            let order = b.pauses.total().cmp(&a.pauses.total());
            order.then_with(|| (&a.task, &a.device).cmp(&(&b.task, &b.device)))
        });
        counts
    }

    pub(super) fn reclaim_counts(&self) -> Vec<ReclaimCounts> {
        let count = |((task, kind), stalls): (&(TaskIdentity, ReclaimKind), &StallSums)| ReclaimCounts {
            task: task.clone(),
            kind: *kind,
            stalls: stalls.lengths,
            reclaimed: stalls.reclaimed,
        };
        let mut counts: Vec<_> = self.reclaim.iter().map(count).collect();
        counts.sort_by(|a, b| {
            let order = b.stalls.total().cmp(&a.stalls.total());
            order.then_with(|| (&a.task, a.kind).cmp(&(&b.task, b.kind)))
        });
        counts
    }

    pub(super) fn block_counts(&self) -> Vec<BlockCounts> {
        let count = |((dev, op), requests): (&(u64, BlockOp), &RequestSums)| BlockCounts {
            dev: *dev,
            op: *op,
            latency: requests.latency,
            bytes: requests.bytes,
        };
        let mut counts: Vec<_> = self.block.iter().map(count).collect();
        counts.sort_by_key(|counts| (counts.dev, counts.op));
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PageTotals;

    #[test]
    fn events_without_space_are_counted_as_lost() {
        let mut sums = PeriodSums::new(2);
        let flow = PageFlow { added: PageTotals { folios: 3, bytes: 12288 }, ..PageFlow::default() };
        for ino in [1, 2, 3, 2, 4] {
            sums.add_pages(Inode { dev: 1, ino }, None, &flow);
        }
        assert_eq!(sums.losses.no_room, 6);
        let counts = sums.page_counts();
        assert_eq!(counts.iter().map(|counts| counts.file.ino).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(counts[0].flow.added, PageTotals { folios: 6, bytes: 24576 });
    }

    #[test]
    fn levels_are_means_over_pauses() {
        let mut sums = PeriodSums::new(10);
        let task = TaskIdentity { process: 1, thread: 1, name: "a".into() };
        for dirty in [100, 300] {
            let mut pauses = PauseSums {
                waits: 1,
                levels: LevelSums { dirty, ..LevelSums::default() },
                ..PauseSums::default()
            };
            pauses.lengths.add(Duration::from_millis(dirty));
            pauses.longest_wait = Duration::from_millis(dirty);
            sums.add_pauses(task.clone(), "8:0".into(), &pauses);
        }
        let counts = sums.pause_counts();
        assert_eq!(counts[0].levels.dirty, 200 * page_size());
        assert_eq!((counts[0].waits, counts[0].longest_wait), (2, Duration::from_millis(300)));
    }
}
