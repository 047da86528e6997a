//! The host's memory and its limits at one moment, as far as metrics need them. Cheap: a few files of `/proc`.
//!
//! Invariants: sizes are in bytes. A figure that this kernel lacks, or whose file can't be read, is `None`.

use std::time::Duration;

use pagekeeper_kernel::page_size;
use pagekeeper_kernel::pressure::{DirtyReport, MemInfo, Pressure, Resource, SysRoots, VmStat, Watermarks};

/// The host's memory and its limits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Host {
    pub(super) memory: Option<MemInfo>,
    pub(super) watermarks: Option<Watermarks>,
    pub(super) dirty: Option<DirtyReport>,
    pub(super) waits: [Waits; 2],
    pub(super) allocation_stalls: Option<u64>,
    pub(super) refaulted: Option<u64>,
}

/// Time that tasks have waited for a resource since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Waits {
    /// At least one task waited.
    pub(super) some: Option<Duration>,
    /// All tasks waited at once.
    pub(super) full: Option<Duration>,
}

/// The resources of [`Host::waits`].
pub(super) const RESOURCES: [Resource; 2] = [Resource::Memory, Resource::Io];

impl Host {
    /// Reads the current state.
    pub(super) fn read(roots: &SysRoots) -> Self {
        let vmstat = VmStat::read(roots).ok();
        let waits = RESOURCES.map(|resource| {
            let pressure = Pressure::read(roots, resource).ok().flatten();
            Waits {
                some: pressure.map(|pressure| pressure.some.total),
                full: pressure.and_then(|pressure| pressure.full).map(|full| full.total),
            }
        });
        Self {
            memory: MemInfo::read(roots).ok(),
            watermarks: Watermarks::read(roots).ok(),
            dirty: DirtyReport::read(roots).ok(),
            waits,
            allocation_stalls: vmstat.as_ref().and_then(VmStat::allocation_stalls),
            refaulted: vmstat.as_ref().and_then(VmStat::file_refaults).map(|pages| pages * page_size()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_read_and_an_empty_tree_gives_nothing() {
        let host = Host::read(&SysRoots::default());
        let memory = host.memory.unwrap();
        assert!(memory.free > 0 && memory.total > memory.free);
        assert!(host.watermarks.unwrap().low > 0 && host.allocation_stalls.is_some());
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(Host::read(&SysRoots::at(empty.path())), Host::default());
    }
}
