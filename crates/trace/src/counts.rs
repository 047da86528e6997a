//! What tracing counted.
//!
//! Invariants: sizes are bytes, lengths of time are `Duration`s; what was not traced is `None`, never zero.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

use super::{Durations, MachineCounts};
use pagekeeper_kernel::Inode;

/// A thread that an event happened in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Task {
    /// Its process (thread group). As the first pid namespace numbers it, which a container's `/proc` does not show.
    /// The same as `thread` where the thread had ended before its process could be looked up ([`TraceSource::Tracefs`]
    /// only).
    ///
    /// [`TraceSource::Tracefs`]: super::TraceSource::Tracefs
    pub process: u32,
    /// Its own number, in the same namespace.
    pub thread: u32,
    /// Its name (`comm`), at most 15 bytes.
    pub name: String,
}

/// Pages that entered, or left, the page cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageTotals {
    /// In how many pieces: folios of one page or more.
    pub folios: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// What entered the page cache, and what left it, for whatever cause: reclaim, advice, truncation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PageFlow {
    /// Came: by reading, read-ahead or writing.
    pub added: PageTotals,
    /// Left.
    pub removed: PageTotals,
}

impl PageFlow {
    /// Adds another to this.
    pub fn merge(&mut self, other: &Self) {
        for (to, from) in [(&mut self.added, other.added), (&mut self.removed, other.removed)] {
            to.folios += from.folios;
            to.bytes += from.bytes;
        }
    }
}

/// What one task did to one file's pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageCounts {
    /// The file, as [`traced_inode`](super::traced_inode) finds it.
    pub file: Inode,
    /// Who added or removed: `kswapd0` where the kernel reclaimed in the background. `None` where it is not known
    /// ([`TraceSource::Counters`](super::TraceSource::Counters)).
    pub task: Option<Task>,
    /// What came and left.
    pub flow: PageFlow,
}

/// How full the kernel's limits on dirty pages were, in bytes: means over the pauses, at their beginnings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DirtyLevels {
    /// What was dirty on all devices (of the writer's memory cgroup where it has limits of its own).
    pub dirty: u64,
    /// What the kernel steers towards: halfway between where pauses begin and the limit.
    pub setpoint: u64,
    /// The limit.
    pub limit: u64,
    /// What was dirty on the device.
    pub device_dirty: u64,
    /// The device's share of the set point.
    pub device_setpoint: u64,
}

impl DirtyLevels {
    /// Where pauses begin: halfway between background writeback and the limit (`dirty_freerun_ceiling`). A device that
    /// has a limit of its own (`strict_limit`) pauses its writers earlier.
    pub fn threshold(&self) -> u64 {
        self.setpoint.saturating_mul(2).saturating_sub(self.limit)
    }

    /// How much more than the threshold was dirty; 0 where pauses came from a device's own limit.
    pub fn over(&self) -> u64 {
        self.dirty.saturating_sub(self.threshold())
    }
}

/// How one task was throttled for the dirty pages of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PauseCounts {
    /// Who had to wait.
    pub task: Task,
    /// For which backing device, by the kernel's name: `8:0`, `btrfs-1`, `0:45`.
    pub device: String,
    /// The pauses. One has 200 ms at most; a write may have to take several.
    pub pauses: Durations,
    /// How many writes (more exactly: calls of `balance_dirty_pages`) had to pause.
    pub waits: u64,
    /// The longest that one of them waited.
    pub longest_wait: Duration,
    /// How full the limits were.
    pub levels: DirtyLevels,
}

/// For what memory was reclaimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReclaimKind {
    /// The machine was short of it.
    Machine,
    /// A memory cgroup was at its limit.
    Group,
}

/// How one task had to reclaim memory before it got some: direct reclaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReclaimCounts {
    /// Who had to.
    pub task: Task,
    /// For what.
    pub kind: ReclaimKind,
    /// How long, each time.
    pub stalls: Durations,
    /// How much was reclaimed, in bytes.
    pub reclaimed: u64,
}

/// What a block device was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockOp {
    /// To read, read-ahead included.
    Read,
    /// To write.
    Write,
    /// To write its cache out.
    Flush,
    /// To forget blocks, or to zero them.
    Discard,
    /// Something else.
    Other,
}

impl BlockOp {
    /// What the first letters of the kernel's `rwbs` mean (`blk_fill_rwbs`).
    pub(super) fn of_letters(first: u8, second: u8) -> Self {
        match (first, second) {
            (b'R', _) => Self::Read,
            // A write may ask for a flush before it.
            (b'W', _) | (b'F', b'W') => Self::Write,
            (b'F', _) => Self::Flush,
            (b'D', _) => Self::Discard,
            _ => Self::Other,
        }
    }
}

/// How long a block device took, from the request's way to the driver to its completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockCounts {
    /// The disk, as `st_rdev` encodes it; never a partition.
    pub dev: u64,
    /// What for.
    pub op: BlockOp,
    /// How long.
    pub latency: Durations,
    /// How much, in bytes.
    pub bytes: u64,
}

/// Events that are not in the counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Losses {
    /// There was no room left for their file, task or device: [`TraceOptions::entries`](super::TraceOptions::entries).
    pub no_room: u64,
    /// The kernel did not run the program, since another one was running on that processor. On kernels that don't count that
    /// (before Linux 6.7), only requests to disks of which no completion was seen for a minute; these are among them on all.
    pub skipped: u64,
    /// The kernel's buffer was full: [`TraceOptions::buffer_bytes`](super::TraceOptions::buffer_bytes).
    pub overrun: u64,
    /// They could not be understood.
    pub unread: u64,
}

impl Losses {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.no_room + self.skipped + self.overrun + self.unread
    }
}

impl fmt::Display for Losses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.total() == 0 {
            return f.write_str("no event was lost");
        }
        let causes = [
            (self.no_room, "for want of room in the tables"),
            (self.skipped, "skipped by the kernel"),
            (self.overrun, "for want of room in the buffer"),
            (self.unread, "not understood"),
        ];
        let causes: Vec<String> = causes
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, cause)| format!("{count} {cause}"))
            .collect();
        write!(f, "{} events were lost: {}", self.total(), causes.join(", "))
    }
}

/// What was counted in a period.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceCounts {
    /// How long the period was.
    pub period: Duration,
    /// Page-cache adds and removals by file and task.
    pub pages: Option<Vec<PageCounts>>,
    /// Pauses for dirty pages by task and device.
    pub pauses: Option<Vec<PauseCounts>>,
    /// Direct reclaim by task.
    pub reclaim: Option<Vec<ReclaimCounts>>,
    /// Block I/O by device.
    pub block: Option<Vec<BlockCounts>>,
    /// What the machine's plain counters say of the same period; always there.
    pub machine: MachineCounts,
    /// What is missing.
    pub losses: Losses,
}

impl TraceCounts {
    /// What came and left of one file, by whomever; `None` where pages were not traced.
    pub fn of_file(&self, file: Inode) -> Option<PageFlow> {
        let mut sum = PageFlow::default();
        for counts in self.pages.as_ref()?.iter().filter(|counts| counts.file == file) {
            sum.merge(&counts.flow);
        }
        Some(sum)
    }

    /// What came and left by file, largest addition first.
    pub fn by_file(&self) -> Vec<(Inode, PageFlow)> {
        self.grouped(|counts| Some(counts.file))
    }

    /// What came and left by task, largest addition first. A thread that changed its name is one for each name.
    pub fn by_task(&self) -> Vec<(Task, PageFlow)> {
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
        let task = Task { process: 7, thread, name: "reader".into() };
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
            losses: Losses::default(),
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
    fn losses_are_said_with_their_causes() {
        assert_eq!(Losses::default().to_string(), "no event was lost");
        let losses = Losses { no_room: 2, overrun: 3, ..Losses::default() };
        assert_eq!(
            losses.to_string(),
            "5 events were lost: 2 for want of room in the tables, 3 for want of room in the buffer"
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
