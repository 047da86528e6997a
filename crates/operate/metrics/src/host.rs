//! The host's memory and its limits at one moment, as far as metrics need them. Cheap: a few files
//! of `/proc`.
//!
//! Invariants: sizes are in bytes. A figure that this kernel lacks, or whose file can't be read, is
//! `None`.

use pagekeeper_kernel::page_size;
use pagekeeper_kernel::pressure::{
    DirtyReport, MemInfo, Pressure, PressureResource, SysRoots, VmStat, Watermarks,
};

/// The resources of [`HostFigures::pressure`].
pub(crate) const PRESSURE_RESOURCES: [PressureResource; 2] = [PressureResource::Memory, PressureResource::Io];

/// The host's memory and its limits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct HostFigures {
    pub(crate) memory: Option<MemInfo>,
    pub(crate) watermarks: Option<Watermarks>,
    pub(crate) dirty: Option<DirtyReport>,
    pub(crate) pressure: [Option<Pressure>; 2],
    pub(crate) allocation_stalls: Option<u64>,
    pub(crate) refaulted: Option<u64>,
}

impl HostFigures {
    /// Reads the current state.
    pub(crate) fn read(roots: &SysRoots) -> Self {
        let vmstat = VmStat::read(roots).ok();
        Self {
            memory: MemInfo::read(roots).ok(),
            watermarks: Watermarks::read(roots).ok(),
            dirty: DirtyReport::read(roots).ok(),
            pressure: PRESSURE_RESOURCES.map(|resource| Pressure::read(roots, resource).ok().flatten()),
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
        let host = HostFigures::read(&SysRoots::default());
        let memory = host.memory.unwrap();
        assert!(memory.free > 0 && memory.total > memory.free);
        assert!(host.watermarks.unwrap().low > 0 && host.allocation_stalls.is_some());
        let empty = tempfile::tempdir().unwrap();
        assert_eq!(HostFigures::read(&SysRoots::at(empty.path())), HostFigures::default());
    }
}
