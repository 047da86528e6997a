//! The files that processes hold open and map, read from `/proc`: the evidence of which processes
//! use a file, and how.
//!
//! Invariants: the module only reads `/proc`. It attaches to no process except those that
//! [`ProcessHolds`] stops, and never opens the files it reports (stat follows the links of
//! `/proc/PID/fd`). A process ID is a `u32` and may be reused at any time: keep
//! [`ProcRoot::start_time`] beside it. Errors satisfy [`Error::is_gone`] if the process has ended,
//! and [`Error::is_denied`] if it belongs to another user (ptrace(2), "Ptrace access mode
//! checking": `CAP_SYS_PTRACE` reads them all).
//!
//! ```
//! use pagekeeper_kernel::process::ProcRoot;
//!
//! let proc = ProcRoot::default();
//! let own = std::process::id();
//! for file in proc.open_files(own)? {
//!     println!("{} {} {:?} at {}", file.fd, file.path.display(), file.access, file.position);
//! }
//! # Ok::<(), pagekeeper_kernel::Error>(())
//! ```

mod cgroups;
mod deleted;
mod fd_rounds;
mod fds;
mod hold;
mod leases;
mod maps;
mod mounts;
mod namespace;
mod open_files;
mod origin;
mod own_cost;
mod page_out;
mod peer;
mod reading;
mod status;

use std::path::{Path, PathBuf};

pub use cgroups::CgroupPath;
pub use fd_rounds::{FdRounds, FdVisitor, measured, thread_cpu_time};
pub use fds::{AccessMode, FdInfo, OpenFile};
pub use hold::ProcessHolds;
pub use leases::{AwaitedLocks, FileLeases};
pub use maps::{MappingProcesses, ProcessMapping};
pub use mounts::Mount;
pub use namespace::PathView;
pub use open_files::{
    FileSelection, HeldFile, InodeSet, MappedFile, MappingMode, OpenFiles, OpenFilesScan, ProcessFiles,
};
pub use origin::ProcessOrigin;
pub use own_cost::OwnCost;
use pagekeeper_text::unescaped;
pub use peer::peer_process;
pub(crate) use reading::{malformed, read, read_text};
pub use status::{ProcessIo, ProcessStat, ProcessUsers};

use crate::{Error, Result};

/// The mount point of the process file system.
///
/// A container that watches its host can be given the host's `/proc`; tests use a tree of plain
/// files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcRoot {
    path: PathBuf,
}

impl Default for ProcRoot {
    fn default() -> Self {
        Self::at("/proc")
    }
}

impl ProcRoot {
    /// Creates the root of a process file system mounted at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns its mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the existing processes (thread groups) in ascending order, including this one.
    #[allow(clippy::disallowed_methods, reason = "of /proc")]
    pub fn pids(&self) -> Result<Vec<u32>> {
        let entries = std::fs::read_dir(&self.path).map_err(|e| Error::call("readdir", &self.path, e))?;
        let mut pids = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|e| Error::call("readdir", &self.path, e))?;
            // Numbers only: `/proc` contains much else.
            pids.extend(unescaped(&entry.file_name()).parse::<u32>().ok());
        }
        pids.sort_unstable();
        Ok(pids)
    }

    /// Returns this process's ID in the mounted `/proc`. In a container that was given its host's
    /// `/proc`, it differs from the process's own view.
    pub fn own_pid(&self) -> u32 {
        let link = std::fs::read_link(self.path.join("self")).ok();
        let shown = link.and_then(|link| unescaped(&link).parse().ok());
        shown.unwrap_or_else(std::process::id)
    }

    /// Returns the path of the file `name` of a process.
    fn of(&self, pid: u32, name: &str) -> PathBuf {
        self.path.join(format!("{pid}/{name}"))
    }

    /// Whether the process still has its directory.
    fn exists(&self, pid: u32) -> bool {
        rustix::fs::lstat(self.of(pid, "")).is_ok()
    }

    /// Reads a file that only some kernels have: `Unsupported` if a living process lacks it.
    fn read_optional(&self, pid: u32, name: &str, reason: &'static str) -> Result<Vec<u8>> {
        let path = self.of(pid, name);
        read(&path).map_err(|error| {
            if error.errno() == Some(libc::ENOENT) && self.exists(pid) {
                Error::Unsupported { path, reason }
            } else {
                error
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Inode;

    #[test]
    fn this_process_is_listed() {
        let pids = ProcRoot::default().pids().unwrap();
        assert!(pids.contains(&std::process::id()));
        assert!(pids.is_sorted());
    }

    #[test]
    fn only_numbers_are_processes() {
        let tree = tempfile::tempdir().unwrap();
        for name in ["12", "7", "self", "sys", "1x", "99999999999999"] {
            std::fs::create_dir(tree.path().join(name)).unwrap();
        }
        assert_eq!(ProcRoot::at(tree.path()).pids().unwrap(), [7, 12]);
    }

    #[test]
    fn an_ended_process_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let proc = ProcRoot::default();
        assert!(proc.stat(pid).unwrap_err().is_gone());
        assert!(proc.open_files(pid).unwrap_err().is_gone());
        assert!(proc.mappings(pid).unwrap_err().is_gone());
        assert!(proc.cgroup_paths(pid).unwrap_err().is_gone());
        assert!(proc.mount_namespace(pid).unwrap_err().is_gone());
        assert!(proc.in_namespace(pid, Path::new("/")).unwrap_err().is_gone());
        assert!(proc.open_directory_in_namespace(pid, Path::new("/")).unwrap_err().is_gone());
    }

    #[test]
    fn another_users_process_is_denied() {
        let denied = || {
            let proc = ProcRoot::default();
            assert!(proc.open_files(1).unwrap_err().is_denied());
            assert!(proc.mappings(1).unwrap_err().is_denied());
            assert_eq!(proc.inode_behind(1, 0), None);
            assert!(!proc.name(1).unwrap().is_empty());
            let nowhere = Inode { dev: u64::MAX, ino: u64::MAX };
            let found = proc.mapped_by(nowhere, &(0..u64::MAX)).unwrap();
            assert!(found.pids.is_empty() && found.denied > 0);
        };
        if rustix::process::geteuid().is_root() {
            crate::testing::as_nobody(denied);
        } else {
            denied();
        }
    }

    #[test]
    fn a_file_the_kernel_does_not_have_is_distinguished_from_an_ended_process() {
        let tree = tempfile::tempdir().unwrap();
        std::fs::create_dir(tree.path().join("5")).unwrap();
        let proc = ProcRoot::at(tree.path());
        let error = proc.cgroup_paths(5).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(!error.is_gone());
        assert!(proc.cgroup_paths(6).unwrap_err().is_gone());
    }
}
