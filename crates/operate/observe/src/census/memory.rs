//! The machine's memory by use, and how much of `Cached` the files of the census explain.
//!
//! Invariant: the parts of a [`MemoryBreakdown`] add up to its total. Source of the figures:
//! `proc_meminfo(5)`, `/proc/vmstat`.

use pagekeeper_kernel::page_size;
use pagekeeper_kernel::pressure::{MemInfo, VmStat};
use serde::Serialize;

/// The machine's memory by use, in bytes; the parts add up to `total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MemoryBreakdown {
    /// All memory the kernel manages.
    pub total: u64,
    /// Anonymous pages of processes.
    pub processes: u64,
    /// Pages of files that are unchanged since they were read or written.
    #[serde(rename = "files_clean")]
    pub clean: u64,
    /// Changed pages of files that are not being written yet.
    #[serde(rename = "files_dirty")]
    pub dirty: u64,
    /// Pages of files that are being written.
    #[serde(rename = "files_writeback")]
    pub writeback: u64,
    /// tmpfs and shared memory.
    pub shmem: u64,
    /// Pages of block devices, including file system metadata.
    pub buffers: u64,
    /// Kernel objects: mostly names and inodes of files.
    pub slab: u64,
    /// Unused.
    pub free: u64,
    /// Everything else: the kernel's stacks and page tables, huge pages, drivers.
    pub other: u64,
}

impl MemoryBreakdown {
    pub(super) fn of(memory: &MemInfo, vmstat: &VmStat) -> Self {
        let pages = |name: &str| vmstat.get(name).unwrap_or(0).saturating_mul(page_size());
        let slab = pages("nr_slab_reclaimable") + pages("nr_slab_unreclaimable");
        let mut split = Self { total: memory.total, ..Self::default() };
        let mut left = memory.total;
        let mut part = |bytes: u64| {
            // The figures are not from one moment: any excess is cut off.
            let bytes = bytes.min(left);
            left -= bytes;
            bytes
        };
        split.free = part(memory.free);
        split.processes = part(pages("nr_anon_pages"));
        split.shmem = part(memory.shmem);
        split.buffers = part(memory.buffers);
        // Pages of block devices may be dirty too; they are few.
        let files = memory.cached.saturating_sub(memory.shmem);
        split.dirty = part(memory.dirty.min(files));
        split.writeback = part(memory.writeback.min(files - split.dirty.min(files)));
        split.clean = part(files.saturating_sub(split.dirty + split.writeback));
        split.slab = part(slab);
        split.other = left;
        debug_assert_eq!(split.sum(), split.total, "the parts sum up to the total");
        split
    }

    fn sum(&self) -> u64 {
        let Self { total: _, processes, clean, dirty, writeback, shmem, buffers, slab, free, other } = self;
        [processes, clean, dirty, writeback, shmem, buffers, slab, free, other].into_iter().sum()
    }

    /// Returns all pages of files.
    pub fn files(&self) -> u64 {
        self.clean + self.dirty + self.writeback
    }
}

/// The parts of `Cached`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CachedBreakdown {
    /// The kernel's figure `Cached`: pages of files and shmem, without buffers.
    pub cached: u64,
    /// Pages of the files of the census.
    pub files: u64,
    /// tmpfs and shared memory, as the kernel counts it.
    pub shmem: u64,
    /// Whether the census covers only some directories: then `files` leaves out other files.
    pub scoped: bool,
}

impl CachedBreakdown {
    /// Returns the share that is explained: more than 1 if files were counted that left meanwhile,
    /// and 1 if nothing is cached.
    pub fn share(&self) -> f64 {
        if self.cached == 0 { 1.0 } else { (self.files + self.shmem) as f64 / self.cached as f64 }
    }

    /// Returns the bytes that are not explained; negative if more was counted than there is.
    pub fn unexplained(&self) -> i64 {
        self.cached.cast_signed() - (self.files + self.shmem).cast_signed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_kernel::pressure::SysRoots;

    #[test]
    fn the_parts_sum_up_to_all_memory() {
        let roots = SysRoots::default();
        let memory = MemInfo::read(&roots).unwrap();
        let split = MemoryBreakdown::of(&memory, &VmStat::read(&roots).unwrap());
        let sum = split.processes
            + split.files()
            + split.shmem
            + split.buffers
            + split.slab
            + split.free
            + split.other;
        assert_eq!(sum, split.total);
        assert!(split.slab > 0 && split.processes > 0 && split.free > 0);
        assert_eq!(split.files() + split.shmem, memory.cached);
    }

    #[test]
    fn a_share_is_of_cached() {
        let explained = CachedBreakdown { cached: 100, files: 90, shmem: 5, scoped: false };
        assert!((explained.share() - 0.95).abs() < 1e-9);
        assert_eq!(explained.unexplained(), 5);
        assert!((CachedBreakdown::default().share() - 1.0).abs() < 1e-9);
        assert_eq!(CachedBreakdown { files: 110, shmem: 0, ..explained }.unexplained(), -10);
    }
}
