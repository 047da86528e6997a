//! Backing devices: their read-ahead, and each one's share of dirty memory
//! (`Documentation/ABI/testing/sysfs-class-bdi`).
//!
//! The kernel names a disk's by `MAJOR:MINOR`; partitions share that of their disk. File systems
//! without their own disk have one under another name, or under the anonymous device number that
//! `st_dev` shows (NFS, FUSE). A file on btrfs shows an anonymous `st_dev` without a backing
//! device: it is found by the mount ([`BackingDevice::for_file`]).

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use pagekeeper_text::unescaped;
use rustix::fs::{FileType, major, minor};

use super::{SysRoots, is_missing, read_number, read_optional};
use crate::hang::announce;
use crate::process::{Mount, malformed, read_text};
use crate::{Error, Result};

/// The settings of one backing device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackingDevice {
    /// The kernel's name: `8:0`, `btrfs-1`, `0:45`.
    pub name: String,
    /// Read-ahead of sequential reads in bytes; also the maximum that one `POSIX_FADV_WILLNEED`
    /// loads.
    pub read_ahead: u64,
    /// The maximum share of dirty memory it may use, in percent.
    pub max_ratio: u64,
    /// `max_ratio` in bytes, if the kernel reports it (since Linux 6.2).
    pub max_bytes: Option<u64>,
    /// Whether its share applies even while total dirty memory is low (since Linux 6.2).
    pub strict_limit: Option<bool>,
    /// Its dirty pages; `None` if debugfs is not mounted or not permitted.
    pub stats: Option<BackingDeviceStats>,
}

/// The dirty pages of a backing device from debugfs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackingDeviceStats {
    /// Under writeback.
    pub writeback: u64,
    /// Dirty, waiting for writeback.
    pub dirty: u64,
    /// Its share of the limit at which writers wait.
    pub dirty_threshold: u64,
    /// Dirtied since boot.
    pub dirtied: u64,
    /// Written since boot.
    pub written: u64,
}

impl BackingDevice {
    /// Returns the backing device of a device number from a stat result; `None` if there is none
    /// (tmpfs, overlayfs, btrfs: see [`Self::for_file`]).
    ///
    /// ```
    /// use pagekeeper_kernel::pressure::{BackingDevice, SysRoots};
    /// use std::os::unix::fs::MetadataExt;
    /// # let _ = || -> Result<(), Box<dyn std::error::Error>> {
    /// let dev = std::fs::metadata("/var/lib/mysql")?.dev();
    /// if let Some(device) = BackingDevice::for_dev(&SysRoots::default(), dev)? {
    ///     println!("{}: reads {} bytes ahead", device.name, device.read_ahead);
    /// }
    /// # Ok(())
    /// # };
    /// ```
    pub fn for_dev(roots: &SysRoots, dev: u64) -> Result<Option<Self>> {
        let number = format!("{}:{}", major(dev), minor(dev));
        if let Some(found) = Self::named(roots, &number)? {
            return Ok(Some(found));
        }
        match disk_of_partition(roots, &number)? {
            Some(disk) => Self::named(roots, &disk),
            None => Ok(None),
        }
    }

    /// Returns the backing device of an open file, also on btrfs; `path` is for errors.
    ///
    /// Returns `None` on overlayfs, where pages belong to the file of the lower layer.
    pub fn for_file(roots: &SysRoots, file: impl AsFd, path: &Path) -> Result<Option<Self>> {
        let file = file.as_fd();
        let stat = rustix::fs::fstat(file).map_err(|e| Error::call("fstat", path, e))?;
        if let Some(found) = Self::for_dev(roots, stat.st_dev)? {
            return Ok(Some(found));
        }
        let Some(id) = roots.proc.fd_info(std::process::id(), file.as_raw_fd())?.mount_id else {
            return Ok(None);
        };
        match roots.proc.own_mounts()?.iter().find(|mount| mount.id == id) {
            Some(mount) => Self::for_mount(roots, mount),
            None => Ok(None),
        }
    }

    /// Returns the backing device of a mounted file system.
    pub fn for_mount(roots: &SysRoots, mount: &Mount) -> Result<Option<Self>> {
        if let Some(found) = Self::for_dev(roots, mount.dev)? {
            return Ok(Some(found));
        }
        if mount.kind != "btrfs" {
            return Ok(None);
        }
        match btrfs_name(roots, Path::new(&mount.source))? {
            Some(name) => Self::named(roots, &name),
            None => Ok(None),
        }
    }

    /// Returns the backing device with the kernel's name `name`.
    fn named(roots: &SysRoots, name: &str) -> Result<Option<Self>> {
        let directory = roots.sys.join("class/bdi").join(name);
        let Some(read_ahead) = optional_number(&directory.join("read_ahead_kb"))? else {
            return Ok(None);
        };
        Ok(Some(Self {
            name: name.to_string(),
            read_ahead: read_ahead.saturating_mul(1024),
            max_ratio: read_number(&directory.join("max_ratio"))?,
            max_bytes: optional_number(&directory.join("max_bytes"))?,
            strict_limit: optional_number(&directory.join("strict_limit"))?.map(|value| value != 0),
            stats: BackingDeviceStats::read(roots, name)?,
        }))
    }
}

impl BackingDeviceStats {
    fn read(roots: &SysRoots, name: &str) -> Result<Option<Self>> {
        let path = roots.sys.join("kernel/debug/bdi").join(name).join("stats");
        let text = match read_optional(&path) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(None),
            Err(error) if error.is_denied() => return Ok(None),
            Err(error) => return Err(error),
        };
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let number = value.and_then(|value| value.split_ascii_whitespace().next()?.parse::<u64>().ok());
            // Both "kB" and "kBps".
            number.map(|kib| kib.saturating_mul(1024)).ok_or_else(|| malformed(&path, name))
        };
        Ok(Some(Self {
            writeback: field("BdiWriteback")?,
            dirty: field("BdiReclaimable")?,
            dirty_threshold: field("BdiDirtyThresh")?,
            dirtied: field("BdiDirtied")?,
            written: field("BdiWritten")?,
        }))
    }
}

/// Returns the number of the disk, if `number` is a partition's.
fn disk_of_partition(roots: &SysRoots, number: &str) -> Result<Option<String>> {
    // A link to the device's own directory; a partition's is inside its disk's.
    let Ok(device) = std::fs::canonicalize(roots.sys.join("dev/block").join(number)) else {
        return Ok(None);
    };
    if read_optional(&device.join("partition"))?.is_none() {
        return Ok(None);
    }
    let disk = device.parent().map(|disk| disk.join("dev")).unwrap_or_default();
    Ok(Some(read_text(&disk)?.trim().to_string()))
}

/// Returns the backing device of the btrfs file system on the block device `source`.
#[allow(clippy::disallowed_methods, reason = "of /sys")]
fn btrfs_name(roots: &SysRoots, source: &Path) -> Result<Option<String>> {
    // `source` may be a link (`/dev/mapper/…`) to a device with another name in sysfs.
    let call = announce(source)?;
    let real = rustix::fs::stat(source)
        .ok()
        .filter(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice)
        .map(|stat| format!("{}:{}", major(stat.st_rdev), minor(stat.st_rdev)))
        .and_then(|number| std::fs::canonicalize(roots.sys.join("dev/block").join(number)).ok());
    drop(call);
    let names: Vec<&OsStr> =
        [Some(source), real.as_deref()].into_iter().flatten().filter_map(Path::file_name).collect();
    let all = roots.sys.join("fs/btrfs");
    let entries = match std::fs::read_dir(&all) {
        Ok(entries) => entries,
        Err(_) if !all.exists() => return Ok(None),
        Err(error) => return Err(Error::call("readdir", all, error)),
    };
    for entry in entries {
        let directory = entry.map_err(|e| Error::call("readdir", &all, e))?.path();
        if names.iter().any(|name| directory.join("devices").join(name).symlink_metadata().is_ok()) {
            let link = directory.join("bdi");
            let target = std::fs::read_link(&link).map_err(|e| Error::call("readlink", &link, e))?;
            return Ok(target.file_name().map(|name| unescaped(name).into_owned()));
        }
    }
    Ok(None)
}

fn optional_number(path: &Path) -> Result<Option<u64>> {
    match read_number(path) {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;
    use rustix::fs::makedev;
    use std::os::unix::fs::{MetadataExt, symlink};

    const STATS: &str = "BdiWriteback:               16 kB\nBdiReclaimable:            260 kB\n\
        BdiDirtyThresh:        3445752 kB\nDirtyThresh:           4650244 kB\nBackgroundThresh:      2322284 kB\n\
        BdiDirtied:            4191000 kB\nBdiWritten:            3915264 kB\nBdiWriteBandwidth:        6652 kBps\n\
        b_dirty:                    20\nstate:                       5\n";

    /// Returns a disk 8:0 with a partition 8:1 on an older kernel, and a btrfs on loop1.
    fn machine() -> (tempfile::TempDir, SysRoots) {
        let (tree, roots) = tree(&[
            ("sys/class/bdi/8:0/read_ahead_kb", "128\n"),
            ("sys/class/bdi/8:0/min_ratio", "0\n"),
            ("sys/class/bdi/8:0/max_ratio", "100\n"),
            ("sys/kernel/debug/bdi/8:0/stats", STATS),
            ("sys/devices/pci/block/sda/dev", "8:0\n"),
            ("sys/devices/pci/block/sda/sda1/dev", "8:1\n"),
            ("sys/devices/pci/block/sda/sda1/partition", "1\n"),
            ("sys/devices/virtual/bdi/btrfs-1/read_ahead_kb", "4096\n"),
            ("sys/devices/virtual/bdi/btrfs-1/min_ratio", "1\n"),
            ("sys/devices/virtual/bdi/btrfs-1/max_ratio", "50\n"),
            ("sys/devices/virtual/bdi/btrfs-1/strict_limit", "1\n"),
            ("sys/devices/virtual/bdi/btrfs-1/max_bytes", "4096\n"),
            ("sys/fs/btrfs/features/x", "0\n"),
            ("sys/fs/btrfs/1-2-3/devices/loop1/x", "0\n"),
        ]);
        let sys = tree.path().join("sys");
        std::fs::create_dir_all(sys.join("dev/block")).unwrap();
        symlink("../../devices/pci/block/sda", sys.join("dev/block/8:0")).unwrap();
        symlink("../../devices/pci/block/sda/sda1", sys.join("dev/block/8:1")).unwrap();
        symlink("../../../devices/virtual/bdi/btrfs-1", sys.join("fs/btrfs/1-2-3/bdi")).unwrap();
        symlink("../../devices/virtual/bdi/btrfs-1", sys.join("class/bdi/btrfs-1")).unwrap();
        (tree, roots)
    }

    #[test]
    fn a_partition_has_its_disks() {
        let (_tree, roots) = machine();
        let disk = BackingDevice::for_dev(&roots, makedev(8, 0)).unwrap().unwrap();
        let partition = BackingDevice::for_dev(&roots, makedev(8, 1)).unwrap().unwrap();
        assert_eq!(disk, partition);
        assert_eq!((disk.name.as_str(), disk.read_ahead, disk.max_ratio), ("8:0", 128 << 10, 100));
        assert_eq!((disk.strict_limit, disk.max_bytes), (None, None));
        let stats = disk.stats.unwrap();
        assert_eq!((stats.writeback, stats.dirty), (16 << 10, 260 << 10));
        assert_eq!(BackingDevice::for_dev(&roots, makedev(8, 2)).unwrap(), None);
    }

    #[test]
    fn btrfs_is_found_by_its_mount() {
        let (_tree, roots) = machine();
        let mount = |kind: &str, source: &str| Mount {
            id: 69,
            dev: makedev(0, 39),
            root: "/".into(),
            point: "/mnt".into(),
            kind: kind.to_string(),
            source: source.into(),
            options: std::ffi::OsString::new(),
        };
        let found = BackingDevice::for_mount(&roots, &mount("btrfs", "/dev/loop1")).unwrap().unwrap();
        assert_eq!(
            (found.name.as_str(), found.strict_limit, found.max_bytes),
            ("btrfs-1", Some(true), Some(4096))
        );
        assert_eq!(found.stats, None);
        assert_eq!(BackingDevice::for_mount(&roots, &mount("btrfs", "/dev/loop2")).unwrap(), None);
        assert_eq!(BackingDevice::for_mount(&roots, &mount("tmpfs", "none")).unwrap(), None);
    }

    #[test]
    fn malformed_figures_are_named() {
        let (tree, roots) = machine();
        std::fs::write(tree.path().join("sys/class/bdi/8:0/max_ratio"), "all\n").unwrap();
        assert!(BackingDevice::for_dev(&roots, makedev(8, 0)).unwrap_err().to_string().contains("all"));
        std::fs::write(tree.path().join("sys/class/bdi/8:0/max_ratio"), "100\n").unwrap();
        std::fs::write(tree.path().join("sys/kernel/debug/bdi/8:0/stats"), "BdiWriteback: x kB\n").unwrap();
        assert!(
            BackingDevice::for_dev(&roots, makedev(8, 0)).unwrap_err().to_string().contains("BdiWriteback")
        );
    }

    #[test]
    fn this_machines_root_file_system() {
        let roots = SysRoots::default();
        let root = std::fs::File::open("/").unwrap();
        let found = BackingDevice::for_file(&roots, &root, Path::new("/")).unwrap();
        match found {
            Some(device) => assert!(device.max_ratio <= 100),
            None => crate::testing::skip(
                "this_machines_root_file_system: the root file system has no backing device (a container?)",
            ),
        }
        let proc = std::fs::File::open("/proc/self").unwrap();
        assert_eq!(BackingDevice::for_file(&roots, &proc, Path::new("/proc/self")).unwrap(), None);
        assert_eq!(BackingDevice::for_dev(&roots, proc.metadata().unwrap().dev()).unwrap(), None);
    }

    /// Unmounts even when the test fails.
    struct Mounted<'a>(&'a Path);

    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            assert!(done("umount", &["--lazy".as_ref(), self.0.as_ref()]));
        }
    }

    fn done(program: &str, args: &[&OsStr]) -> bool {
        std::process::Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
    }

    #[test]
    fn a_real_btrfs_file_in_spite_of_its_device_number() {
        let dir = tempfile::tempdir().unwrap();
        let (image, point) = (dir.path().join("image"), dir.path().join("point"));
        std::fs::File::create(&image).unwrap().set_len(150 << 20).unwrap();
        std::fs::create_dir(&point).unwrap();
        let mounted = rustix::process::geteuid().is_root()
            && done("mkfs.btrfs", &["-q".as_ref(), image.as_ref()])
            && done("mount", &["-o".as_ref(), "loop".as_ref(), image.as_ref(), point.as_ref()]);
        if !mounted {
            crate::testing::skip(
                "a_real_btrfs_file_in_spite_of_its_device_number: needs root, mkfs.btrfs, btrfs and loop devices",
            );
            return;
        }
        let _mounted = Mounted(&point);
        let roots = SysRoots::default();
        std::fs::write(point.join("file"), [1; 4096]).unwrap();
        let file = std::fs::File::open(point.join("file")).unwrap();
        let found = BackingDevice::for_file(&roots, &file, &point).unwrap().unwrap();
        assert!(found.name.starts_with("btrfs-"), "{found:?}");

        // Mappings of the file are found as well, though the maps show yet another device number.
        let inode = crate::Inode::of(&rustix::fs::fstat(&file).unwrap());
        let _mapping = crate::sys::mapping::FileMapping::new(&file, 0, 4096).unwrap();
        let own = std::process::id();
        let shown = roots.proc.mappings(own).unwrap();
        let shown = shown.iter().find(|mapping| mapping.path == point.join("file")).unwrap();
        assert_ne!(shown.inode.dev, inode.dev);
        assert!(roots.proc.mapped_by(inode, &(0..u64::MAX)).unwrap().pids.contains(&own));
    }
}
