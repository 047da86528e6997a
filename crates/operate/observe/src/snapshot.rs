//! The content of one snapshot.
//!
//! Invariants: sizes are in bytes; unknown values are `None`, never zero; indices into
//! [`Snapshot::databases`] are valid within one snapshot only.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::pressure::{
    BackingDevice, DirtyReport, MemInfo, MemoryCgroup, Pressure, VmStat, Watermarks,
};
use pagekeeper_kernel::process::AccessMode;
use pagekeeper_kernel::{ExpectedFile, Inode, InspectedFile, Links, PathHandle, Residency};
use pagekeeper_policy::FileClass;
use pagekeeper_trace::{MachineCounts, TraceCounts};

use crate::VisibilityGap;

/// A host and its databases at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The time of the snapshot.
    pub at: SystemTime,
    /// The host's memory and its limits.
    pub host: Host,
    /// The changes since the snapshot before; `None` in the first.
    pub change: Option<HostChange>,
    /// The databases.
    pub databases: Vec<Database>,
    /// Their files: those in their directories, and those that their processes have open or share a
    /// mapping of. Each appears once, in no order.
    pub files: Vec<File>,
    /// Everything that could not be seen, and what would show it.
    pub visibility_gaps: Vec<VisibilityGap>,
}

/// The host's memory and its limits at one moment.
#[derive(Debug, Clone)]
pub struct Host {
    /// `/proc/meminfo`.
    pub memory: MemInfo,
    /// The watermarks of free memory below which the kernel reclaims.
    pub watermarks: Watermarks,
    /// The limits on dirty pages, and the usage of each.
    pub dirty: DirtyReport,
    /// Waiting for memory; `None` where the kernel does not measure it.
    pub memory_pressure: Option<Pressure>,
    /// Waiting for storage.
    pub io_pressure: Option<Pressure>,
    /// All counters.
    pub vmstat: VmStat,
    /// The devices under the files, ascending by `st_dev` of their whole file systems: the `dev` of
    /// [`File::inode`].
    pub devices: Vec<(u64, BackingDevice)>,
}

/// The changes between two snapshots.
#[derive(Debug, Clone)]
pub struct HostChange {
    /// The time between them.
    pub period: Duration,
    /// The machine's counters.
    pub machine: MachineCounts,
    /// The counts of tracing; `None` without tracing.
    pub trace: Option<TraceCounts>,
}

/// A running database, or a directory that was named.
#[derive(Debug, Clone)]
pub struct Database {
    /// Its process; `None` for a directory without a known process.
    pub pid: Option<u32>,
    /// The process's name, as in `/proc/PID/comm`; empty without one.
    pub name: String,
    /// The kind of database.
    pub profile: Arc<Profile>,
    /// The directories of its files, as it sees them itself.
    pub directories: Vec<PathBuf>,
    /// Its command line; empty without a process.
    pub command_line: Vec<std::ffi::OsString>,
    /// The running time of its process.
    pub uptime: Option<Duration>,
    /// Its memory cgroup below the root, with limits and contents; `None` in the root group.
    pub cgroup: Option<MemoryCgroup>,
    /// Its workers: child processes of the same database (PostgreSQL), ascending.
    pub workers: Vec<u32>,
}

impl Database {
    /// Whether a process is its server or a worker of it.
    pub fn has_process(&self, pid: u32) -> bool {
        self.pid == Some(pid) || self.workers.contains(&pid)
    }
}

/// A file of a database, or one that a process has open.
#[derive(Debug, Clone)]
pub struct File {
    /// The inode as tracing names it ([`traced_inode`](pagekeeper_trace::traced_inode)).
    pub inode: Inode,
    /// The inode in stat(2), which differs only on btrfs. The file is opened by this one.
    pub stat_inode: Inode,
    /// Its path as the database sees it, or the process that has it open.
    pub path: PathBuf,
    /// The path by which this process reaches it (below `/proc/PID/root` in a container), without
    /// links except those of `/proc/PID` itself. Use [`File::open`] to open it.
    pub reach: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Its database: an index into [`Snapshot::databases`].
    pub database: Option<usize>,
    /// Its class in the database; `None` if the profile names no class for it.
    pub class: Option<FileClass>,
    /// Its pages in the page cache; `None` if these could not be seen.
    pub residency: Option<Residency>,
    /// The processes that have it open or mapped.
    pub openers: Vec<Opener>,
}

impl File {
    /// Whether it is open, and with `O_DIRECT` alone.
    pub fn is_direct_only(&self) -> bool {
        let is_direct = |opener: &Opener| matches!(opener.kind, OpenerKind::Direct(_));
        !self.openers.is_empty() && self.openers.iter().all(is_direct)
    }

    /// Returns its resident bytes; 0 if unknown.
    pub fn resident(&self) -> u64 {
        self.residency.map_or(0, |counts| counts.resident)
    }

    /// Returns its bytes that are dirty or under writeback; 0 if unknown.
    pub fn unwritten(&self) -> u64 {
        self.residency.map_or(0, |counts| counts.unwritten())
    }

    /// Opens this very file, or nothing, whatever has its name by now.
    ///
    /// Fails with [`Error::OtherFile`](pagekeeper_kernel::Error::OtherFile) or
    /// [`Error::SymbolicLink`](pagekeeper_kernel::Error::SymbolicLink) if something else is there.
    pub fn open(&self) -> pagekeeper_kernel::Result<InspectedFile> {
        PathHandle::at(&self.reach, Links::RefuseAll)?.open(ExpectedFile::Inode(self.stat_inode))
    }

    /// Returns its directory, by the path by which this process reaches it. `None` if the file has
    /// lost its name to removal or to another file, and is reached through a descriptor.
    pub fn directory(&self) -> Option<&Path> {
        self.reach.parent().filter(|_| !is_of_process(&self.reach))
    }
}

/// Returns whether a path is that of a process's descriptor or mapping, which is not the name of a
/// file: `/proc/PID/fd/N`.
fn is_of_process(reach: &Path) -> bool {
    let mut names = reach.components().map(Component::as_os_str);
    let at = |names: &mut dyn Iterator<Item = &OsStr>, wanted: &[&str]| {
        names.next().is_some_and(|name| wanted.iter().any(|wanted| name == *wanted))
    };
    at(&mut names, &["/"])
        && at(&mut names, &["proc"])
        && names.next().is_some_and(|pid| pid.as_encoded_bytes().iter().all(u8::is_ascii_digit))
        && at(&mut names, &["fd", "map_files"])
        && names.count() == 1
}

/// A process that has a file open, or mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opener {
    /// The process.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The kind of its use.
    pub kind: OpenerKind,
    /// The number of descriptors or mappings.
    pub count: usize,
}

/// The way in which a process uses a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenerKind {
    /// Through a descriptor whose reads and writes use the page cache.
    Buffered(AccessMode),
    /// Through a descriptor with `O_DIRECT`.
    Direct(AccessMode),
    /// Mapped.
    Mapped {
        /// Whether writes through the mapping are possible and change the file.
        writable: bool,
    },
}

impl OpenerKind {
    /// Returns whether the process may change the file so.
    pub fn writes(self) -> bool {
        match self {
            Self::Buffered(access) | Self::Direct(access) => access.writes(),
            Self::Mapped { writable } => writable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_no_name_even_where_the_file_is_called_by_a_number() {
        for of_process in ["/proc/7/fd/112", "/proc/7/map_files/1-2"] {
            assert!(is_of_process(Path::new(of_process)), "{of_process}");
        }
        for named in ["/var/lib/fd/112", "/proc/7/root/fd/112", "/proc/self/fd/1", "fd/112", "/proc/7/fd"] {
            assert!(!is_of_process(Path::new(named)), "{named}");
        }
    }
}
