//! Plain snapshots for the tests of finders: an idle host of 24 GiB, and a database without files.
//!
//! Everything in them is public, so that a test changes its subject.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::{SeenSync, SyncedFile};
use pagekeeper_catalog::Profile;
use pagekeeper_kernel::pressure::{
    CgroupVersion, DirtyLimit, DirtyParameters, DirtyReport, DirtyThresholds, MemInfo, MemoryCgroup,
    SysRoots, VmStat, Watermarks,
};
use pagekeeper_kernel::{Inode, Residency, ResidencySource};
use pagekeeper_observe::{Database, File, Host, HostChange, Opener, OpenerKind, Snapshot};
use pagekeeper_policy::{DiskProfile, FileClass, MixedProfile};
use pagekeeper_trace::{
    DirtyLevels, EventLosses, MachineCounts, PageCounts, PageFlow, PageTotals, PauseCounts, TaskIdentity,
    TraceCounts,
};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
/// The device of all files.
pub(crate) const DEV: u64 = 0x800;

/// Returns a snapshot of one `MariaDB` server, process 100, with its data in `/var/lib/mysql`: the
/// second of two, 10 s apart, with tracing on and no events.
pub(crate) fn sample() -> Snapshot {
    Snapshot {
        at: SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000),
        host: host(),
        change: Some(change()),
        databases: vec![database("mariadb", 100, "/var/lib/mysql")],
        files: Vec::new(),
        visibility_gaps: Vec::new(),
    }
}

/// Returns an idle host of 24 GiB.
pub(crate) fn host() -> Host {
    let tree = tempfile::tempdir().unwrap();
    std::fs::create_dir(tree.path().join("proc")).unwrap();
    std::fs::write(tree.path().join("proc/vmstat"), "nr_free_pages 1048576\n").unwrap();
    Host {
        memory: MemInfo {
            total: 24 * GIB,
            free: 4 * GIB,
            available: 18 * GIB,
            buffers: 0,
            cached: 14 * GIB,
            dirty: 0,
            writeback: 0,
            shmem: 0,
            active_file: 7 * GIB,
            inactive_file: 7 * GIB,
            swap_total: 0,
            swap_free: 0,
            swap_cached: 0,
        },
        watermarks: Watermarks { min: 64 * MIB, low: 80 * MIB, high: 96 * MIB, reserve: 128 * MIB },
        dirty: DirtyReport {
            parameters: DirtyParameters {
                background: DirtyLimit::Ratio(10),
                limit: DirtyLimit::Ratio(20),
                expire_centisecs: 3000,
                writeback_centisecs: 500,
            },
            dirtyable: 18 * GIB,
            thresholds: DirtyThresholds { background: 1843 * MIB, limit: 3686 * MIB },
            kernel_thresholds: None,
            dirty: 0,
            writeback: 0,
        },
        memory_pressure: None,
        io_pressure: None,
        vmstat: VmStat::read(&SysRoots::at(tree.path())).unwrap(),
        devices: Vec::new(),
    }
}

/// Returns 10 s without any events.
pub(crate) fn change() -> HostChange {
    let period = Duration::from_secs(10);
    let machine = MachineCounts {
        dirtied: Some(0),
        written: Some(0),
        refaulted: Some(0),
        reclaimed_directly: Some(0),
        allocation_stalls: Some(0),
        major_faults: Some(0),
        memory_stalled: Some(Duration::ZERO),
        io_stalled: Some(Duration::ZERO),
    };
    HostChange {
        period,
        machine,
        trace: Some(TraceCounts {
            period,
            pages: Some(Vec::new()),
            pauses: Some(Vec::new()),
            reclaim: Some(Vec::new()),
            block: None,
            machine,
            losses: EventLosses::default(),
        }),
    }
}

/// Returns a database whose process has the name of its profile.
pub(crate) fn database(profile: &str, pid: u32, directory: &str) -> Database {
    let profile = Profile::built_in().into_iter().find(|known| known.name == profile).unwrap();
    Database {
        pid: Some(pid),
        name: profile.name.clone(),
        profile: Arc::new(profile),
        directories: vec![PathBuf::from(directory)],
        command_line: Vec::new(),
        uptime: Some(Duration::from_secs(3600)),
        cgroup: None,
        workers: Vec::new(),
    }
}

/// Returns a clean file of the first database; `resident` and `size` in bytes. Its inode number is
/// derived from its path.
pub(crate) fn file(path: &str, class: FileClass, size: u64, resident: u64) -> File {
    let inode = Inode {
        dev: DEV,
        ino: path.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte)),
    };
    File {
        inode,
        stat_inode: inode,
        path: PathBuf::from(path),
        reach: PathBuf::from(path),
        size,
        database: Some(0),
        class: Some(class),
        residency: Some(residency(resident, 0)),
        openers: Vec::new(),
    }
}

/// Returns residency with `resident` bytes, of which `dirty` are dirty.
pub(crate) fn residency(resident: u64, dirty: u64) -> Residency {
    Residency {
        resident,
        dirty: Some(dirty),
        writeback: Some(0),
        evicted: Some(0),
        recently_evicted: Some(0),
        source: ResidencySource::Cachestat,
    }
}

/// Returns a memory cgroup with this usage and limit, 600 MiB of it clean page cache.
pub(crate) fn cgroup(usage: u64, limit: u64) -> MemoryCgroup {
    MemoryCgroup {
        version: CgroupVersion::V2,
        directory: PathBuf::from("/sys/fs/cgroup/db"),
        usage,
        limit: Some(limit),
        effective_limit: Some(limit),
        file: 600 * MIB,
        shmem: Some(0),
        dirty: Some(0),
        writeback: Some(0),
        inactive_file: 300 * MIB,
        active_file: 300 * MIB,
        file_refaults: Some(0),
        limited_by: None,
        events: pagekeeper_kernel::pressure::MemoryEvents::default(),
    }
}

/// Returns the measurements of a disk with mixed I/O only.
pub(crate) fn disk(mixed: MixedProfile) -> DiskProfile {
    DiskProfile { mixed: Some(mixed), ..DiskProfile::default() }
}

/// Returns a process that has a file by one descriptor or mapping.
pub(crate) fn opener(pid: u32, name: &str, kind: OpenerKind) -> Opener {
    Opener { pid, name: name.to_owned(), kind, count: 1 }
}

/// Returns the page counts of a process's only thread for a file, in bytes.
pub(crate) fn pages(file: Inode, pid: u32, name: &str, added: u64, removed: u64) -> PageCounts {
    let totals = |bytes| PageTotals { folios: bytes / 4096, bytes };
    PageCounts {
        file,
        task: Some(task(pid, name)),
        flow: PageFlow { added: totals(added), removed: totals(removed) },
    }
}

/// Returns pauses of a process's only thread because of dirty pages on the device of all files,
/// each during its own write.
pub(crate) fn pauses(pid: u32, name: &str, milliseconds: &[u64], levels: DirtyLevels) -> PauseCounts {
    let lengths = milliseconds.iter().map(|length| Duration::from_millis(*length));
    PauseCounts {
        task: task(pid, name),
        device: "8:0".to_owned(),
        pauses: lengths.clone().collect(),
        waits: milliseconds.len() as u64,
        longest_wait: lengths.max().unwrap_or_default(),
        levels,
    }
}

fn task(pid: u32, name: &str) -> TaskIdentity {
    TaskIdentity { process: pid, thread: pid, name: name.to_owned() }
}

/// Returns a sync of a file on the device of all files by a process's only thread; times in
/// milliseconds.
pub(crate) fn sync(pid: u32, path: &str, began: u64, took: u64) -> SeenSync {
    let file = file(path, FileClass::Data, 0, 0);
    SeenSync {
        task: task(pid, "name"),
        call: "fdatasync",
        file: Some(Arc::new(SyncedFile { inode: file.stat_inode, path: file.path })),
        began: Duration::from_millis(began),
        took: Duration::from_millis(took),
        goes_on: false,
    }
}

/// Returns the sources of this crate as one text.
pub(crate) fn sources() -> String {
    let mut sources = String::new();
    let mut directories = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                sources += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    sources
}
