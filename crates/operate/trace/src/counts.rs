//! The counts of tracing.
//!
//! Invariants: sizes are in bytes, times are `Duration`s. A value that was not traced is `None`,
//! never zero.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use super::{DurationStats, MachineCounts};
use pagekeeper_kernel::Inode;

/// A thread in which an event happened.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskIdentity {
    /// Its process (thread group). As the first pid namespace numbers it, which a container's
    /// `/proc` does not show.
    pub process: u32,
    /// Its own number, in the same namespace.
    pub thread: u32,
    /// Its name (`comm`), at most 15 bytes.
    pub name: String,
}

/// Pages that entered or left the page cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageTotals {
    /// The number of folios, of one page or more.
    pub folios: u64,
    /// Their size in bytes.
    pub bytes: u64,
}

/// Pages that entered the page cache, and pages that left it for whatever cause: reclaim, advice,
/// truncation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageFlow {
    /// Pages that entered: by reading, read-ahead or writing.
    pub added: PageTotals,
    /// Pages that left.
    pub removed: PageTotals,
}

impl PageFlow {
    /// Adds another flow to this one.
    pub fn merge(&mut self, other: &Self) {
        for (to, from) in [(&mut self.added, other.added), (&mut self.removed, other.removed)] {
            to.folios += from.folios;
            to.bytes += from.bytes;
        }
    }
}

/// The flow of one file's pages caused by one task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageCounts {
    /// The file, as [`traced_inode`](super::traced_inode) finds it.
    pub file: Inode,
    /// The task that added or removed: `kswapd0` if the kernel reclaimed in the background. `None`
    /// if it is not known ([`TraceSource::Counters`](super::TraceSource::Counters)).
    pub task: Option<TaskIdentity>,
    /// The pages that entered and left.
    pub flow: PageFlow,
}

/// The usage of the kernel's limits on dirty pages, in bytes: means over the pauses, at their
/// beginnings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirtyLevels {
    /// Dirty bytes on all devices (of the writer's memory cgroup if it has limits of its own).
    pub dirty: u64,
    /// The kernel's set point: halfway between the level at which pauses begin and the limit.
    pub setpoint: u64,
    /// The limit.
    pub limit: u64,
    /// Dirty bytes on the device.
    pub device_dirty: u64,
    /// The device's share of the set point.
    pub device_setpoint: u64,
}

impl DirtyLevels {
    /// Returns the level at which pauses begin: halfway between background writeback and the limit
    /// (`dirty_freerun_ceiling`). A device that has a limit of its own (`strict_limit`) pauses its
    /// writers earlier.
    pub fn threshold(&self) -> u64 {
        self.setpoint.saturating_mul(2).saturating_sub(self.limit)
    }

    /// Returns the dirty bytes above the threshold; 0 if pauses came from a device's own limit.
    pub fn over(&self) -> u64 {
        self.dirty.saturating_sub(self.threshold())
    }
}

/// The throttling of one task for the dirty pages of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseCounts {
    /// The task that was throttled.
    pub task: TaskIdentity,
    /// The backing device, by the kernel's name: `8:0`, `btrfs-1`, `0:45`.
    pub device: String,
    /// The pauses. One takes at most 200 ms; a write may have several.
    pub pauses: DurationStats,
    /// The number of writes (more exactly: calls of `balance_dirty_pages`) that had to pause.
    pub waits: u64,
    /// The longest wait of one of them.
    pub longest_wait: Duration,
    /// The usage of the limits.
    pub levels: DirtyLevels,
}

/// The cause of a reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReclaimKind {
    /// The machine was short of memory.
    Machine,
    /// A memory cgroup was at its limit.
    Group,
}

/// The direct reclaim of one task: memory that it had to reclaim before it got some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReclaimCounts {
    /// The task.
    pub task: TaskIdentity,
    /// The cause.
    pub kind: ReclaimKind,
    /// The duration of each stall.
    pub stalls: DurationStats,
    /// Bytes that were reclaimed.
    pub reclaimed: u64,
}

/// An operation of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockOp {
    /// A read, including read-ahead.
    Read,
    /// A write.
    Write,
    /// A flush of its cache.
    Flush,
    /// A discard of blocks, or writing zeros.
    Discard,
    /// Any other operation.
    Other,
}

impl BlockOp {
    /// Returns the operation for the first letters of the kernel's `rwbs` (`blk_fill_rwbs`).
    pub(super) fn of_letters(first: u8, second: u8) -> Self {
        match (first, second) {
            (b'R', _) => Self::Read,
            // A write may request a flush before it.
            (b'W', _) | (b'F', b'W') => Self::Write,
            (b'F', _) => Self::Flush,
            (b'D', _) => Self::Discard,
            _ => Self::Other,
        }
    }
}

/// The latency of a block device, from the time when a request goes to the driver to its
/// completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockCounts {
    /// The disk, as `st_rdev` encodes it; never a partition.
    pub dev: u64,
    /// The operation.
    pub op: BlockOp,
    /// The latencies.
    pub latency: DurationStats,
    /// Bytes transferred.
    pub bytes: u64,
}

/// Events that are not in the counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventLosses {
    /// Events without room for their file, task or device:
    /// [`TraceOptions::entries`](super::TraceOptions::entries).
    pub no_room: u64,
    /// Events for which the kernel did not run the program because another one was running on that
    /// processor. Kernels before Linux 6.7 do not count these. On all kernels requests to disks
    /// without a completion for a minute are included.
    pub skipped: u64,
}

impl EventLosses {
    /// Returns the number of all lost events.
    pub fn total(&self) -> u64 {
        self.no_room + self.skipped
    }
}

impl fmt::Display for EventLosses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.total() == 0 {
            return f.write_str("no event was lost");
        }
        let causes =
            [(self.no_room, "for want of room in the tables"), (self.skipped, "skipped by the kernel")];
        let causes: Vec<String> = causes
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, cause)| format!("{count} {cause}"))
            .collect();
        write!(f, "{} events were lost: {}", self.total(), causes.join(", "))
    }
}

/// The counts of a period.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceCounts {
    /// The length of the period.
    pub period: Duration,
    /// Page-cache adds and removals by file and task.
    pub pages: Option<Vec<PageCounts>>,
    /// Pauses for dirty pages by task and device.
    pub pauses: Option<Vec<PauseCounts>>,
    /// Direct reclaim by task.
    pub reclaim: Option<Vec<ReclaimCounts>>,
    /// Block I/O by device.
    pub block: Option<Vec<BlockCounts>>,
    /// The machine's plain counters for the same period; always present.
    pub machine: MachineCounts,
    /// Events that are missing.
    pub losses: EventLosses,
}

impl TraceCounts {
    /// Returns the pages of one file that entered and left, by any task; `None` if pages were not
    /// traced.
    pub fn of_file(&self, file: Inode) -> Option<PageFlow> {
        let mut sum = PageFlow::default();
        for counts in self.pages.as_ref()?.iter().filter(|counts| counts.file == file) {
            sum.merge(&counts.flow);
        }
        Some(sum)
    }

    /// Returns the pages that entered and left by file, largest addition first.
    pub fn by_file(&self) -> Vec<(Inode, PageFlow)> {
        self.grouped(|counts| Some(counts.file))
    }

    /// Returns the pages that entered and left by task, largest addition first. A thread that
    /// changed its name counts once for each name.
    pub fn by_task(&self) -> Vec<(TaskIdentity, PageFlow)> {
        self.grouped(|counts| counts.task.clone())
    }

    fn grouped<K: Hash + Ord + Clone>(&self, key: impl Fn(&PageCounts) -> Option<K>) -> Vec<(K, PageFlow)> {
        let mut groups: HashMap<K, PageFlow> = HashMap::new();
        for counts in self.pages.iter().flatten() {
            if let Some(key) = key(counts) {
                groups.entry(key).or_default().merge(&counts.flow);
            }
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by(|a, b| b.1.added.bytes.cmp(&a.1.added.bytes).then_with(|| a.0.cmp(&b.0)));
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(ino: u64, thread: u32, added: u64) -> PageCounts {
        let flow = PageFlow { added: PageTotals { folios: 1, bytes: added }, ..PageFlow::default() };
        let task = TaskIdentity { process: 7, thread, name: "reader".into() };
        PageCounts { file: Inode { dev: 1, ino }, task: Some(task), flow }
    }

    #[test]
    fn pages_are_summed_by_file_and_by_task() {
        let counts = TraceCounts {
            period: Duration::ZERO,
            pages: Some(vec![counts(1, 8, 10), counts(2, 8, 5), counts(1, 9, 20)]),
            pauses: None,
            reclaim: None,
            block: None,
            machine: MachineCounts::default(),
            losses: EventLosses::default(),
        };
        let files: Vec<_> =
            counts.by_file().iter().map(|(file, flow)| (file.ino, flow.added.bytes)).collect();
        assert_eq!(files, [(1, 30), (2, 5)]);
        let tasks: Vec<_> =
            counts.by_task().iter().map(|(task, flow)| (task.thread, flow.added.bytes)).collect();
        assert_eq!(tasks, [(9, 20), (8, 15)]);
        let flow = counts.of_file(Inode { dev: 1, ino: 1 }).unwrap();
        assert_eq!((flow.added.folios, flow.removed.folios), (2, 0));
        assert_eq!(TraceCounts { pages: None, ..counts }.of_file(Inode { dev: 1, ino: 1 }), None);
    }

    #[test]
    fn pauses_begin_halfway_between_background_and_limit() {
        let levels = DirtyLevels { dirty: 90, setpoint: 85, limit: 100, ..DirtyLevels::default() };
        assert_eq!((levels.threshold(), levels.over()), (70, 20));
    }

    #[test]
    fn losses_are_reported_with_their_causes() {
        assert_eq!(EventLosses::default().to_string(), "no event was lost");
        let losses = EventLosses { no_room: 2, skipped: 3 };
        assert_eq!(
            losses.to_string(),
            "5 events were lost: 2 for want of room in the tables, 3 skipped by the kernel"
        );
    }

    #[test]
    fn letters_of_requests() {
        for (letters, op) in [
            (b"RA", BlockOp::Read),
            (b"WS", BlockOp::Write),
            (b"FW", BlockOp::Write),
            (b"FF", BlockOp::Flush),
            (b"F\0", BlockOp::Flush),
            (b"DS", BlockOp::Discard),
            (b"N\0", BlockOp::Other),
        ] {
            assert_eq!(BlockOp::of_letters(letters[0], letters[1]), op);
        }
    }
}
