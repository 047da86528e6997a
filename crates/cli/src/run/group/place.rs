//! Where the command's group is made: below this process's own, in the hierarchy of version 1 that has the memory controller.
//!
//! On version 2 a group with processes can't have groups below it that count memory ("no internal processes", `cgroup-v2.rst`), so that
//! the host's manager has to make one: that is refused here. Invariant: what can't be used is not left behind.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::pressure::{CgroupVersion, MemoryPlace, SysRoots};

/// Why there is no group.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The host has no memory cgroups, or they are not mounted here.
    NoCgroups,
    /// The memory controller is in the hierarchy of version 2.
    Version2,
    /// Processes whose parent has ended become this one's children, which the command would not know.
    Inherits,
    /// This process may not make one.
    Denied(io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCgroups => f.write_str("no memory cgroup can be seen here"),
            Self::Version2 => f.write_str("memory cgroups are of version 2 here, in which none is made yet"),
            Self::Inherits => f.write_str("no memory cgroup is made for the first process of a container"),
            Self::Denied(error) => write!(f, "no memory cgroup can be made: {error}"),
        }
    }
}

/// Makes the directory of a group.
pub(super) fn make() -> Result<PathBuf, Refusal> {
    if std::process::id() == 1
        || rustix::process::child_subreaper().is_ok_and(|subreaper| subreaper.is_some())
    {
        return Err(Refusal::Inherits);
    }
    let place = MemoryPlace::of(&SysRoots::default(), std::process::id());
    let place = place.ok().flatten().ok_or(Refusal::NoCgroups)?;
    match place.version {
        CgroupVersion::V1 => below(&place.directory),
        CgroupVersion::V2 => Err(Refusal::Version2),
    }
}

fn below(own: &Path) -> Result<PathBuf, Refusal> {
    let directory = own.join(format!("pagekeeper-run-{}", std::process::id()));
    match std::fs::create_dir(&directory) {
        Ok(()) => Ok(directory),
        // One of a process that had the same id, and whose governor was killed.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && super::is_unused(&directory, None) => {
            Ok(directory)
        }
        Err(error) => Err(Refusal::Denied(error)),
    }
}
