//! The machine's plain counters: per machine rather than per file or task, and readable by
//! everybody.

use std::time::Duration;

use pagekeeper_kernel::Result;
use pagekeeper_kernel::page_size;
use pagekeeper_kernel::pressure::{Pressure, PressureResource, SysRoots, VmStat};

/// The counts of `/proc/vmstat` and `/proc/pressure` in a period. A value that this kernel does not
/// count is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MachineCounts {
    /// Bytes of files made dirty.
    pub dirtied: Option<u64>,
    /// Bytes of files written back.
    pub written: Option<u64>,
    /// Bytes of files that had been reclaimed and were read in again.
    pub refaulted: Option<u64>,
    /// Bytes that tasks reclaimed for themselves.
    pub reclaimed_directly: Option<u64>,
    /// Number of times that a task had to reclaim for itself.
    pub allocation_stalls: Option<u64>,
    /// Page faults that had to read from storage.
    pub major_faults: Option<u64>,
    /// Time that at least one task waited for memory.
    pub memory_stalled: Option<Duration>,
    /// Time that at least one task waited for storage.
    pub io_stalled: Option<Duration>,
}

impl MachineCounts {
    /// Reads the counts since boot. The difference of two readings is the counts of a period:
    /// [`Self::since`].
    pub fn read(roots: &SysRoots) -> Result<Self> {
        let vmstat = VmStat::read(roots)?;
        let bytes = |pages: Option<u64>| pages.map(|pages| pages.saturating_mul(page_size()));
        let stalled = |resource| -> Result<Option<Duration>> {
            Ok(Pressure::read(roots, resource)?.map(|pressure| pressure.some.total))
        };
        Ok(Self {
            dirtied: bytes(vmstat.get("nr_dirtied")),
            written: bytes(vmstat.get("nr_written")),
            refaulted: bytes(vmstat.file_refaults()),
            reclaimed_directly: bytes(vmstat.reclaimed_directly()),
            allocation_stalls: vmstat.allocation_stalls(),
            major_faults: vmstat.major_faults(),
            memory_stalled: stalled(PressureResource::Memory)?,
            io_stalled: stalled(PressureResource::Io)?,
        })
    }

    /// Returns the counts since an earlier reading.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let number = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let time = |now: Option<Duration>, then: Option<Duration>| Some(now?.saturating_sub(then?));
        Self {
            dirtied: number(self.dirtied, earlier.dirtied),
            written: number(self.written, earlier.written),
            refaulted: number(self.refaulted, earlier.refaulted),
            reclaimed_directly: number(self.reclaimed_directly, earlier.reclaimed_directly),
            allocation_stalls: number(self.allocation_stalls, earlier.allocation_stalls),
            major_faults: number(self.major_faults, earlier.major_faults),
            memory_stalled: time(self.memory_stalled, earlier.memory_stalled),
            io_stalled: time(self.io_stalled, earlier.io_stalled),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(dirtied: u64, pressure: &str) -> (tempfile::TempDir, MachineCounts) {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(tree.path().join("proc/pressure")).unwrap();
        std::fs::write(tree.path().join("proc/vmstat"), format!("nr_dirtied {dirtied}\nallocstall_dma 3\n"))
            .unwrap();
        let line = format!("some avg10=0.00 avg60=0.00 avg300=0.00 total={pressure}\n");
        std::fs::write(tree.path().join("proc/pressure/io"), line).unwrap();
        let counts = MachineCounts::read(&SysRoots::at(tree.path())).unwrap();
        (tree, counts)
    }

    #[test]
    fn counters_are_subtracted_and_missing_ones_stay_missing() {
        let (_before, before) = machine(10, "500");
        let (_after, after) = machine(14, "1500");
        let counts = after.since(&before);
        assert_eq!(counts.dirtied, Some(4 * page_size()));
        assert_eq!(counts.allocation_stalls, Some(0));
        assert_eq!(counts.io_stalled, Some(Duration::from_millis(1)));
        assert_eq!((counts.written, counts.memory_stalled), (None, None));
    }
}
