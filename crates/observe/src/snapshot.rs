//! What one snapshot holds.
//!
//! Invariants: sizes are bytes; what is not known is `None`, never zero; indices into [`Snapshot::databases`] hold within
//! one snapshot only.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pagekeeper_catalog::Profile;
use pagekeeper_kernel::pressure::{
    BackingDevice, DirtyReport, MemInfo, MemoryCgroup, Pressure, VmStat, Watermarks,
};
use pagekeeper_kernel::process::Access;
use pagekeeper_kernel::{Expected, Handle, Inode, InspectedFile, Links, Residency};
use pagekeeper_policy::FileClass;
use pagekeeper_trace::{MachineCounts, TraceCounts};

use crate::VisibilityGap;

/// A host and its databases at one moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// When.
    pub at: SystemTime,
    /// The host's memory and its limits.
    pub host: Host,
    /// What changed since the snapshot before; `None` in the first.
    pub change: Option<HostChange>,
    /// The databases.
    pub databases: Vec<Database>,
    /// Their files: those in their directories and those that their processes have open, or share a mapping of. Each
    /// once, in no order.
    pub files: Vec<File>,
    /// What could not be seen, and what would show it.
    pub visibility_gaps: Vec<VisibilityGap>,
}

/// The host's memory and its limits at one moment.
#[derive(Debug, Clone)]
pub struct Host {
    /// `/proc/meminfo`.
    pub memory: MemInfo,
    /// Below which free memory the kernel reclaims.
    pub watermarks: Watermarks,
    /// The limits on dirty pages, and how full they are.
    pub dirty: DirtyReport,
    /// Who waits for memory; `None` where the kernel does not measure it.
    pub memory_pressure: Option<Pressure>,
    /// Who waits for storage.
    pub io_pressure: Option<Pressure>,
    /// All counters.
    pub vmstat: VmStat,
    /// The devices under the files, ascending by `st_dev` of their file systems as a whole: the
    /// `dev` of [`File::inode`].
    pub devices: Vec<(u64, BackingDevice)>,
}

/// What changed between two snapshots.
#[derive(Debug, Clone)]
pub struct HostChange {
    /// How long that was.
    pub period: Duration,
    /// The machine's counters.
    pub machine: MachineCounts,
    /// What tracing counted; `None` without tracing.
    pub trace: Option<TraceCounts>,
}

/// A running database, or a directory that was named.
#[derive(Debug, Clone)]
pub struct Database {
    /// Its process; `None` for a directory that no process was found for.
    pub pid: Option<u32>,
    /// What the process is called, as `/proc/PID/comm` has it; empty without one.
    pub name: String,
    /// What kind of database it is.
    pub profile: Arc<Profile>,
    /// Where its files are, as it sees them itself.
    pub directories: Vec<PathBuf>,
    /// Its command line; empty without a process.
    pub command_line: Vec<std::ffi::OsString>,
    /// How long its process has been running.
    pub uptime: Option<Duration>,
    /// Its memory cgroup below the root, with limits and contents; `None` in the root group.
    pub cgroup: Option<MemoryCgroup>,
    /// Its workers: child processes of the same database (PostgreSQL), ascending.
    pub workers: Vec<u32>,
}

/// A file of a database, or one that a process has open.
#[derive(Debug, Clone)]
pub struct File {
    /// Which file, as tracing names it ([`traced_inode`](pagekeeper_trace::traced_inode)).
    pub inode: Inode,
    /// Which file, as stat(2) shows it: the same but on btrfs. By this one it is opened.
    pub stat_inode: Inode,
    /// Its path, as the database sees it, or as the process that has it open does.
    pub path: PathBuf,
    /// The path by which this process reaches it (below `/proc/PID/root` in a container), without links but those of
    /// `/proc/PID` itself. To open it: [`File::open`].
    pub reach: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// Whose it is: an index into [`Snapshot::databases`].
    pub database: Option<usize>,
    /// What it is to its database; `None` if the profile names no class for it.
    pub class: Option<FileClass>,
    /// What of it is in the page cache; `None` if that could not be seen.
    pub residency: Option<Residency>,
    /// Who has it open or mapped.
    pub openers: Vec<Opener>,
}

impl File {
    /// Opens this very file, whatever has its name by now, or nothing.
    ///
    /// Fails with [`Error::OtherFile`](pagekeeper_kernel::Error::OtherFile) or
    /// [`Error::SymbolicLink`](pagekeeper_kernel::Error::SymbolicLink) where something else is there.
    pub fn open(&self) -> pagekeeper_kernel::Result<InspectedFile> {
        Handle::at(&self.reach, Links::RefuseAll)?.open(Expected::Inode(self.stat_inode))
    }

    /// The directory that it lies in, by the path by which this process reaches that; `None` where the file has no name any
    /// more, or another has it, and it is reached through a descriptor.
    pub fn directory(&self) -> Option<&Path> {
        self.reach.parent().filter(|_| !is_of_process(&self.reach))
    }
}

/// Whether a path is that of a descriptor or a mapping of a process, whose name is no file's: `/proc/PID/fd/N`.
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
    /// What it is called.
    pub name: String,
    /// How it has it.
    pub kind: OpenerKind,
    /// By how many descriptors or mappings.
    pub count: usize,
}

/// How a process has a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenerKind {
    /// By a descriptor whose reads and writes go through the page cache.
    Buffered(Access),
    /// By a descriptor with `O_DIRECT`.
    Direct(Access),
    /// Mapped.
    Mapped {
        /// It may write through the mapping, and that changes the file.
        writable: bool,
    },
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
