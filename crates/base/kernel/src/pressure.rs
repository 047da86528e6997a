//! Memory pressure, and the kernel's limits of dirty pages: read from `/proc` and `/sys`.
//!
//! Invariants: this module only reads, except for [`HeldGroup::reclaim_file`]. Every function takes
//! the roots it reads from, so that tests and containers can pass others. Figures are bytes unless
//! a name says otherwise. A figure that this kernel lacks is `None`, never zero. Fails with the
//! read's own error, or [`Error::Malformed`] naming the line.
//!
//! ```
//! use pagekeeper_kernel::pressure::{DirtyReport, MemInfo, SysRoots};
//!
//! let roots = SysRoots::default();
//! let memory = MemInfo::read(&roots)?;
//! println!("{} bytes of file pages, {} bytes free", memory.cached - memory.shmem, memory.free);
//! println!("{} bytes are dirty", DirtyReport::read(&roots)?.dirty);
//! # Ok::<(), pagekeeper_kernel::Error>(())
//! ```

mod bdi;
mod cgroup;
mod dirty;
mod events;
mod group;
mod meminfo;
mod place;
mod psi;
mod swap;
mod vmstat;
mod zones;

use std::path::{Path, PathBuf};

pub use bdi::{BackingDevice, BackingDeviceStats};
pub use cgroup::{CgroupVersion, MemoryCgroup};
pub use dirty::{DirtyLimit, DirtyParameters, DirtyReport, DirtyThresholds};
pub use events::MemoryEvents;
pub use group::{HeldGroup, ReclaimResult};
pub use meminfo::MemInfo;
pub use place::MemoryPlace;
pub use psi::{Pressure, PressureResource, StallStats};
pub use swap::{GroupSwap, Swappiness};
pub use vmstat::VmStat;
pub use zones::Watermarks;

use crate::process::{ProcRoot, malformed, read_text};
use crate::{Error, Result};

/// The mount points of the kernel's file systems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SysRoots {
    /// The process file system: `/proc`.
    pub proc: ProcRoot,
    /// The system file system: `/sys`.
    pub sys: PathBuf,
}

impl Default for SysRoots {
    fn default() -> Self {
        Self { proc: ProcRoot::default(), sys: PathBuf::from("/sys") }
    }
}

impl SysRoots {
    /// Returns the roots in a tree with `proc` and `sys`: another machine's, or a test's.
    pub fn at(root: impl AsRef<Path>) -> Self {
        let root = root.as_ref();
        Self { proc: ProcRoot::at(root.join("proc")), sys: root.join("sys") }
    }

    fn proc_file(&self, name: &str) -> PathBuf {
        self.proc.path().join(name)
    }
}

/// Reads a file that not every kernel has.
fn read_optional(path: &Path) -> Result<Option<String>> {
    match read_text(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads a file that contains one number.
fn read_number(path: &Path) -> Result<u64> {
    let text = read_text(path)?;
    text.trim().parse().map_err(|_| malformed(path, text.trim()))
}

/// Whether a read failed because this kernel lacks the file, or has the feature switched off
/// (`psi=0`).
fn is_missing(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENODEV | libc::EOPNOTSUPP))
}

#[cfg(test)]
mod testing {
    use super::SysRoots;

    /// Creates a fake tree of `/proc` and `/sys` with these files.
    pub(super) fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, SysRoots) {
        let tree = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = tree.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let roots = SysRoots::at(tree.path());
        (tree, roots)
    }
}
