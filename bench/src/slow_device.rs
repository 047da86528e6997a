//! A private file system on a device that the kernel holds to a rate. Fails with a plain message
//! where it can't.

use std::fs::File;

use anyhow::{Context, Result};
use pagekeeper_testing::ThrottledDisk;

use crate::scratch::ScratchDirectory;

/// Makes a disk of `bytes` with a new file system of this kind ("xfs") that writes `rate` bytes per
/// second.
pub(crate) fn new(scratch: &ScratchDirectory, kind: &str, bytes: u64, rate: u64) -> Result<ThrottledDisk> {
    scratch.require_space(bytes)?;
    let directory = tempfile::tempdir_in(scratch.path()).context("can't make a directory")?;
    ThrottledDisk::of(directory, kind, bytes, rate).with_context(|| {
        format!("this bench slows a disk down, and needs {}", ThrottledDisk::MISSING_CONTROLLER)
    })
}

/// Makes all writes to the file system durable, so that the next sample begins with nothing dirty.
pub(crate) fn settle(disk: &ThrottledDisk) -> Result<()> {
    let directory = disk.path();
    let open = File::open(directory).with_context(|| format!("can't open {}", directory.display()))?;
    rustix::fs::syncfs(&open).with_context(|| format!("can't sync {}", directory.display()))
}
