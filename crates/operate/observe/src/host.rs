//! The host's memory and its limits at one moment.

use pagekeeper_kernel::Result;
use pagekeeper_kernel::pressure::{
    BackingDevice, DirtyReport, MemInfo, Pressure, PressureResource, SysRoots, VmStat, Watermarks,
};

use crate::Host;

/// Reads all figures; `devices` were found with the files.
pub(crate) fn read(roots: &SysRoots, devices: Vec<(u64, BackingDevice)>) -> Result<Host> {
    Ok(Host {
        memory: MemInfo::read(roots)?,
        watermarks: Watermarks::read(roots)?,
        dirty: DirtyReport::read(roots)?,
        memory_pressure: Pressure::read(roots, PressureResource::Memory)?,
        io_pressure: Pressure::read(roots, PressureResource::Io)?,
        vmstat: VmStat::read(roots)?,
        devices,
    })
}
