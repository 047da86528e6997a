//! Block devices: the size of the blocks a device writes at once.

use std::path::Path;

use rustix::fs::{major, minor};

/// The physical block size in bytes of the device with the number `dev` (as `st_dev` gives it), or of the disk that
/// it is a partition of: `queue/physical_block_size` below `/sys/dev/block` (Linux ABI documentation, sysfs-block).
///
/// `sys` is where sysfs is mounted. `None` for what is no block device of its own: btrfs, overlayfs, NFS.
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

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
