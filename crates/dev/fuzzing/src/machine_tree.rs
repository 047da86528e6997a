//! A tree of plain files that stands for a machine's `/proc` and `/sys`, and a reading of all of
//! it.

use std::os::unix::fs::symlink;
use std::path::Path;

use pagekeeper_kernel::pressure::{
    BackingDevice, DirtyReport, MemInfo, MemoryCgroup, Pressure, PressureResource, SysRoots, VmStat,
    Watermarks,
};
use pagekeeper_kernel::process::{FileSelection, MappingMode, ProcRoot};
use pagekeeper_kernel::{Inode, Result};

/// The process that the tree has.
const PID: u32 = 7;

/// Each file and what stands in it, `ROOT` for the tree itself.
pub(crate) const FILES: [(&str, &str); 27] = [
    ("proc/7/stat", "7 (a) S (1) R) S 7 42 42 0 -1 2129984 98 0 0 0 0 0 0 0 20 0 13 0 92206 3133440 388\n"),
    ("proc/7/comm", "a) S (1) R\n"),
    ("proc/7/cmdline", "postgres: walsender repl streaming 0/3000148\0\0\0"),
    (
        "proc/7/maps",
        "7f00-8f00 rw-s 00001000 08:1f 77   /data/a b\\012c  (deleted)\na000-b000 rw-p 00000000 00:00 0   [heap]\n",
    ),
    ("proc/7/fdinfo/12", "pos:\t77\nflags:\t0102001\nmnt_id:\t27\nino:\t99\nlock:\t1: POSIX x\n"),
    ("proc/7/cgroup", "9:name=systemd:/a\n4:memory:/db\n0::/pod:1/x\n"),
    (
        "proc/7/mountinfo",
        "36 35 98:0 /m1 /m\\0402 rw,noatime shared:1 master:2 - ext4 /dev/root rw,errors=continue\n",
    ),
    (
        "proc/self/mountinfo",
        "31 23 0:28 / ROOT/memory rw - cgroup cgroup rw,memory\n32 23 0:29 / ROOT/data rw - btrfs /dev/loop1 rw\n",
    ),
    ("memory/db/memory.usage_in_bytes", "1048576\n"),
    ("memory/db/memory.limit_in_bytes", "9223372036854771712\n"),
    (
        "memory/db/memory.stat",
        "cache 1\nhierarchical_memory_limit 1048576\ntotal_cache 40960\ntotal_shmem 4096\ntotal_dirty 8192\n\
         total_writeback 0\ntotal_workingset_refault_file 7\ntotal_inactive_file 12288\ntotal_active_file 16384\n",
    ),
    (
        "proc/pressure/io",
        "some avg10=1.50 avg60=0.24 avg300=0.00 total=40667\nfull avg10=0 avg60=0 avg300=0 total=4\n",
    ),
    (
        "proc/vmstat",
        "nr_free_pages 1000\nnr_active_file 500\nnr_inactive_file 700\nnr_dirty 3\nnr_writeback 1\npgmajfault 1\n\
         nr_dirty_threshold 9\nnr_dirty_background_threshold 4\npgscan_kswapd_dma 1\npgscan_kswapd_normal 2\n\
         pgscan_direct 5\npgsteal_direct 1\npgsteal_kswapd 1\nallocstall_dma 1\nallocstall_normal 4\n",
    ),
    (
        "proc/zoneinfo",
        "Node 0, zone DMA\n  pages free 3840\n boost 0\n min 57\n low 71\n high 85\n managed 3840\n\
         protection: (0, 3019, 4427)\nNode 0, zone Normal\n min 1\n low 2\n high 3\n managed 9\n protection: (0)\n",
    ),
    (
        "proc/meminfo",
        "MemTotal: 9 kB\nMemFree: 8 kB\nMemAvailable: 7 kB\nBuffers: 1 kB\nCached: 2 kB\nSwapCached: 0 kB\n\
         Active(file): 3 kB\nInactive(file): 4 kB\nMlocked: 0 kB\nSwapTotal: 5 kB\nSwapFree: 5 kB\nDirty: 1 kB\n\
         Writeback: 1 kB\nMapped: 2 kB\nShmem: 1 kB\nSReclaimable: 1 kB\n",
    ),
    ("proc/sys/vm/dirty_background_ratio", "10\n"),
    ("proc/sys/vm/dirty_background_bytes", "0\n"),
    ("proc/sys/vm/dirty_ratio", "0\n"),
    ("proc/sys/vm/dirty_bytes", "1048576\n"),
    ("proc/sys/vm/dirty_expire_centisecs", "3000\n"),
    ("proc/sys/vm/dirty_writeback_centisecs", "500\n"),
    ("sys/class/bdi/8:0/read_ahead_kb", "128\n"),
    ("sys/class/bdi/8:0/min_ratio", "0\n"),
    ("sys/class/bdi/8:0/max_ratio", "100\n"),
    (
        "sys/kernel/debug/bdi/8:0/stats",
        "BdiWriteback: 16 kB\nBdiReclaimable: 260 kB\nBdiDirtyThresh: 3445 kB\nBdiDirtied: 41 kB\nBdiWritten: 39 kB\n\
         BdiWriteBandwidth: 6652 kBps\n",
    ),
    ("data/log", "x"),
    ("proc/7/status", "Name:\ta) S (1) R\nUmask:\t0022\nUid:\t0\t1\t2\t3\nGid:\t0\t0\t0\t0\n"),
];

/// Returns the content of a file of the tree at `root`.
pub(crate) fn content(root: &Path, file: usize) -> String {
    FILES[file].1.replace("ROOT", root.to_str().unwrap())
}

/// Makes the tree.
pub(crate) fn make(root: &Path) {
    for (file, (name, _)) in FILES.iter().enumerate() {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content(root, file)).unwrap();
    }
    for dir in ["proc/7/fd", "proc/7/root"] {
        std::fs::create_dir(root.join(dir)).unwrap();
    }
    symlink(root.join("data/log"), root.join("proc/7/fd/12")).unwrap();
}

/// Reads all there is; the first error, if there are any.
pub(crate) fn read_all(root: &Path) -> Result<()> {
    let proc = ProcRoot::at(root.join("proc"));
    let roots = SysRoots::at(root);
    let selection = FileSelection { mappings: MappingMode::Resolved, ..FileSelection::default() };
    let results = [
        proc.stat(PID).map(drop),
        proc.name(PID).map(drop),
        proc.command_line(PID).map(drop),
        proc.users(PID).map(drop),
        proc.mappings(PID).map(drop),
        proc.mapped_by(Inode { dev: 1, ino: 77 }, &(0..u64::MAX)).map(drop),
        proc.fd_info(PID, 12).map(drop),
        proc.open_files(PID).map(drop),
        proc.files_of(PID, &selection).error.map_or(Ok(()), Err),
        proc.cgroup_paths(PID).map(drop),
        proc.mounts(PID).map(drop),
        proc.own_mounts().and_then(|mounts| {
            mounts.iter().try_for_each(|mount| BackingDevice::for_mount(&roots, mount).map(drop))
        }),
        MemoryCgroup::of(&roots, PID).map(drop),
        Pressure::read(&roots, PressureResource::Io).map(drop),
        Watermarks::read(&roots).map(drop),
        MemInfo::read(&roots).map(drop),
        BackingDevice::for_dev(&roots, rustix::fs::makedev(8, 0)).map(drop),
        VmStat::read(&roots).map(|vmstat| {
            let _ = (vmstat.file_refaults(), vmstat.major_faults(), vmstat.allocation_stalls());
            let _ = (vmstat.reclaimed_in_background(), vmstat.reclaimed_directly());
        }),
        DirtyReport::read(&roots).map(drop),
    ];
    results.into_iter().collect()
}
