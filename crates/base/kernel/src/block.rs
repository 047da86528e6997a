//! Block devices: their physical block size, their name, their flush requests, and whether they are
//! in use.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use pagekeeper_text::unescaped_bytes;
use rustix::fs::{major, makedev, minor};

use crate::process::{Mount, ProcRoot};
use crate::{Error, Result};

/// Returns the physical block size in bytes of a block device, or of the disk that it is a
/// partition of: `queue/physical_block_size` below `/sys/dev/block` (Linux ABI documentation,
/// sysfs-block).
///
/// `dev` is its device number as in `st_dev`; `sys` is the mount point of sysfs. Returns `None` for
/// a number that is not a block device's: btrfs, overlayfs, NFS.
///
/// ```
/// use std::os::unix::fs::MetadataExt;
/// let dev = std::fs::metadata("/")?.dev();
/// if let Some(bytes) = pagekeeper_kernel::physical_block_size("/sys".as_ref(), dev) {
///     assert!(bytes >= 512);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[allow(clippy::disallowed_methods, reason = "of /sys")]
pub fn physical_block_size(sys: &Path, dev: u64) -> Option<u64> {
    let device = sys.join(format!("dev/block/{}:{}", major(dev), minor(dev)));
    ["queue/physical_block_size", "../queue/physical_block_size"]
        .iter()
        .find_map(|name| std::fs::read_to_string(device.join(name)).ok()?.trim().parse().ok())
}

/// Returns the device number of the disk that a block device is a partition of, or its own number
/// if it is not a partition. `dev` is a device number as in `st_dev`.
///
/// `sys` is the mount point of sysfs. Returns `None` for a number that is not a block device's:
/// btrfs, overlayfs, NFS.
pub fn disk_of(sys: &Path, dev: u64) -> Option<u64> {
    let device = sys.join(format!("dev/block/{}:{}", major(dev), minor(dev)));
    if !device.join("partition").exists() {
        return device.exists().then_some(dev);
    }
    number_in(&device.join("../dev"))
}

/// Returns the disks that a disk lies on, directly or not: those of a logical volume, of an array,
/// of a loop device's file. Requests to the disk may also occupy them.
///
/// `sys` is the mount point of sysfs. Returns `None` if one of them is not known, as for a loop
/// device's file on btrfs. A file of another mount namespace is taken for one of its path here.
pub fn disks_below(sys: &Path, disk: u64) -> Option<BTreeSet<u64>> {
    let (mut found, mut unread) = (BTreeSet::new(), vec![disk]);
    while let Some(disk) = unread.pop() {
        for device in devices_below(sys, disk)? {
            let below = disk_of(sys, device)?;
            if found.insert(below) {
                unread.push(below);
            }
        }
    }
    Some(found)
}

/// Returns the devices directly below a disk; `None` if one of them is not known. The file system of
/// a loop device's file is found by the table of mounts, since a hung one would not answer.
#[allow(clippy::disallowed_methods, reason = "of /sys")]
fn devices_below(sys: &Path, disk: u64) -> Option<Vec<u64>> {
    let directory = sys.join(format!("dev/block/{}:{}", major(disk), minor(disk)));
    if directory.join("loop").exists() {
        let file = std::fs::read(directory.join("loop/backing_file")).ok()?;
        let mounts = ProcRoot::default().own_mounts().ok()?;
        let mount = Mount::of_path(&mounts, Path::new(OsStr::from_bytes(file.trim_ascii_end())))?;
        return Some(vec![mount.dev]);
    }
    let slaves = std::fs::read_dir(directory.join("slaves")).into_iter().flatten();
    slaves.map(|slave| number_in(&slave.ok()?.path().join("dev"))).collect()
}

/// Returns the device number in a file of sysfs.
#[allow(clippy::disallowed_methods, reason = "of /sys")]
fn number_in(path: &Path) -> Option<u64> {
    let number = std::fs::read_to_string(path).ok()?;
    let (major, minor) = number.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Flush requests that a disk has completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlushCounts {
    /// Their number.
    pub done: u64,
    /// Their total latency in milliseconds.
    pub waited_ms: u64,
}

/// Counts the flush requests of a disk: a sync ends with one, where the disk has a write cache.
#[derive(Debug)]
pub struct FlushCounter(File);

impl FlushCounter {
    /// Opens the counts of the disk with the number `dev`, as in `st_dev`. `sys` is the mount point
    /// of sysfs. Returns `None` for a number that is not a block device's, and before Linux 5.5,
    /// which does not count (Linux documentation, block/stat). The counts of a partition stay 0.
    ///
    /// ```
    /// use std::os::unix::fs::MetadataExt;
    /// let dev = std::fs::metadata("/")?.dev();
    /// if let Some(counter) = pagekeeper_kernel::FlushCounter::open("/sys".as_ref(), dev) {
    ///     assert!(counter.counts().is_some());
    /// }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[allow(clippy::disallowed_methods, reason = "of /sys")]
    pub fn open(sys: &Path, dev: u64) -> Option<Self> {
        let stat = File::open(sys.join(format!("dev/block/{}:{}/stat", major(dev), minor(dev)))).ok()?;
        let counter = Self(stat);
        counter.counts()?;
        Some(counter)
    }

    /// Reads the counts. Returns `None` for a disk that has gone.
    pub fn counts(&self) -> Option<FlushCounts> {
        let mut text = [0; 512];
        let length = self.0.read_at(&mut text, 0).ok()?;
        let text = unescaped_bytes(text.get(..length)?);
        let mut fields = text.split_ascii_whitespace().skip(15).map(|field| field.parse().ok());
        Some(FlushCounts { done: fields.next()??, waited_ms: fields.next()?? })
    }
}

/// Returns the name in `/dev` of the device with the number `dev`.
pub(crate) fn device_name(sys: &Path, dev: u64) -> Result<OsString> {
    let link = sys.join(format!("dev/block/{}:{}", major(dev), minor(dev)));
    let target = std::fs::read_link(&link).map_err(|error| Error::call("readlink", &link, error))?;
    let name = target.file_name().map(OsStr::to_owned);
    name.ok_or_else(|| Error::Malformed { path: link, what: "its target".to_owned() })
}

/// Whether a block device's pages have another owner: a file system on it is mounted (in any
/// namespace for ext4, XFS and btrfs), or another block device is stacked on it.
#[allow(clippy::disallowed_methods, reason = "of /sys")]
pub fn is_device_in_use(proc: &ProcRoot, sys: &Path, dev: u64) -> Result<bool> {
    let name = device_name(sys, dev)?;
    let holders = sys.join(format!("dev/block/{}:{}/holders", major(dev), minor(dev)));
    let is_held = std::fs::read_dir(holders).is_ok_and(|mut holders| holders.next().is_some());
    let is_named = |kind: &str| sys.join("fs").join(kind).join(&name).exists();
    let has_btrfs = || {
        let all = std::fs::read_dir(sys.join("fs/btrfs")).ok();
        all.into_iter().flatten().flatten().any(|one| one.path().join("devices").join(&name).exists())
    };
    Ok(is_held
        || is_named("ext4")
        || is_named("xfs")
        || has_btrfs()
        || !proc.mount_points_of(dev)?.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_are_counted_where_the_kernel_does() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("dev/block/8:0");
        std::fs::create_dir_all(&disk).unwrap();
        let counts = || FlushCounter::open(sys.path(), makedev(8, 0))?.counts();
        assert_eq!(counts(), None, "no such file");
        let old = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15";
        std::fs::write(disk.join("stat"), old).unwrap();
        assert_eq!(counts(), None, "a kernel before 5.5");
        std::fs::write(disk.join("stat"), format!("{old}       16   17\n")).unwrap();
        assert_eq!(counts(), Some(FlushCounts { done: 16, waited_ms: 17 }));
        std::fs::write(disk.join("stat"), format!("{old} 16 -17\n")).unwrap();
        assert_eq!(counts(), None, "no number");
    }

    #[test]
    fn partitions_ask_their_disk() {
        let sys = tempfile::tempdir().unwrap();
        let disk = sys.path().join("devices/sda");
        std::fs::create_dir_all(disk.join("queue")).unwrap();
        std::fs::create_dir_all(disk.join("sda1")).unwrap();
        std::fs::create_dir_all(sys.path().join("dev/block")).unwrap();
        std::fs::write(disk.join("queue/physical_block_size"), "4096\n").unwrap();
        std::os::unix::fs::symlink("../../devices/sda", sys.path().join("dev/block/8:0")).unwrap();
        std::os::unix::fs::symlink("../../devices/sda/sda1", sys.path().join("dev/block/8:1")).unwrap();
        let size = |minor| physical_block_size(sys.path(), rustix::fs::makedev(8, minor));
        assert_eq!((size(0), size(1), size(2)), (Some(4096), Some(4096), None));
        std::fs::write(disk.join("dev"), "8:0\n").unwrap();
        std::fs::write(disk.join("sda1/partition"), "1\n").unwrap();
        let whole = |minor| disk_of(sys.path(), makedev(8, minor));
        assert_eq!([whole(0), whole(1), whole(2)], [Some(makedev(8, 0)), Some(makedev(8, 0)), None]);
    }

    #[test]
    fn disks_below_are_found_through_partitions_and_files() {
        let sys = tempfile::tempdir().unwrap();
        let block = sys.path().join("dev/block");
        // 253:1 lies on 253:0, and that on the partition 8:1 of 8:0.
        for path in ["8:0", "253:0/slaves", "253:1/slaves", "sda/sda1", "7:0/loop"] {
            std::fs::create_dir_all(block.join(path)).unwrap();
        }
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, block.join(at)).unwrap();
        let write = |at: &str, text: &str| std::fs::write(block.join(at), text).unwrap();
        write("sda/dev", "8:0\n");
        write("sda/sda1/dev", "8:1\n");
        write("sda/sda1/partition", "1\n");
        write("253:0/dev", "253:0\n");
        link("sda/sda1", "8:1");
        link("../../sda/sda1", "253:0/slaves/sda1");
        link("../../253:0", "253:1/slaves/dm-0");
        let below = |major, minor| disks_below(sys.path(), makedev(major, minor));
        let lower = BTreeSet::from([makedev(8, 0)]);
        let both = BTreeSet::from([makedev(8, 0), makedev(253, 0)]);
        assert_eq!(
            [below(8, 0), below(253, 0), below(253, 1)],
            [Some(BTreeSet::new()), Some(lower), Some(both)]
        );

        assert_eq!(below(7, 0), None, "no file");
        write("7:0/loop/backing_file", &format!("{}\n", sys.path().display()));
        assert_eq!(below(7, 0), None, "a file on no known disk");
        let dev = Mount::of_path(&ProcRoot::default().own_mounts().unwrap(), sys.path()).unwrap().dev;
        std::fs::create_dir_all(block.join(format!("{}:{}", major(dev), minor(dev)))).unwrap();
        assert_eq!(below(7, 0), Some(BTreeSet::from([dev])));
    }
}
