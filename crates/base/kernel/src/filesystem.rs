//! The file system of a file, and whether its pages can be released at all.
//!
//! Source of the facts: fstatfs(2) and its magic numbers (`linux/magic.h`). On tmpfs and similar
//! file systems the page cache *is* the file: `POSIX_FADV_DONTNEED` and `sync_file_range` succeed
//! without effect (measured on Linux 6.18).

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;

use crate::hang::{announce, announce_from};
use crate::{Error, Result};

/// File system types that differ in page caching.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileSystem {
    /// ext2, ext3 or ext4.
    Ext,
    /// XFS.
    Xfs,
    /// btrfs.
    Btrfs,
    /// overlayfs: pages belong to the file of the layer below.
    Overlay,
    /// A file system in user space.
    Fuse,
    /// NFS.
    Nfs,
    /// ZFS, which caches in its own ARC.
    Zfs,
    /// tmpfs (also /dev/shm).
    Tmpfs,
    /// ramfs.
    Ramfs,
    /// hugetlbfs.
    Hugetlbfs,
    /// None: the pages of a block device itself.
    BlockDevice,
    /// A file system without stored data: proc, sysfs, cgroup and the like.
    Pseudo,
    /// Any other, by its magic number.
    Other(u64),
}

impl FileSystem {
    /// Returns the file system of an open file.
    ///
    /// `path` is used in errors only.
    pub fn of(file: impl AsFd, path: &Path) -> Result<Self> {
        let _call = announce_from(file.as_fd(), path)?;
        let stat = rustix::fs::fstatfs(&file).map_err(|e| Error::call("fstatfs", path, e))?;
        #[allow(
            clippy::cast_sign_loss,
            reason = "the kernel's f_type is a 32-bit magic number in a wider signed field"
        )]
        let magic = stat.f_type as u64 & 0xffff_ffff;
        Ok(Self::from_magic(magic))
    }

    fn from_magic(magic: u64) -> Self {
        match magic {
            0xef53 => Self::Ext,
            0x5846_5342 => Self::Xfs,
            0x9123_683e => Self::Btrfs,
            0x794c_7630 => Self::Overlay,
            0x6573_5546 => Self::Fuse,
            0x6969 => Self::Nfs,
            0x2fc1_2fc1 => Self::Zfs,
            0x0102_1994 => Self::Tmpfs,
            0x8584_58f6 => Self::Ramfs,
            0x9584_58f6 => Self::Hugetlbfs,
            // proc, sysfs, cgroup, cgroup2, debugfs, tracefs, devpts, securityfs, configfs
            0x9fa0 | 0x6265_6572 | 0x0027_e0eb | 0x6367_7270 | 0x6462_6720 | 0x7472_6163 | 0x1cd1
            | 0x7363_6673 | 0x6265_6570 => Self::Pseudo,
            other => Self::Other(other),
        }
    }

    /// Returns why pages of this file system can't be released, if they can't.
    pub fn release_refusal(self) -> Option<&'static str> {
        match self {
            Self::Tmpfs | Self::Ramfs => Some(
                "on tmpfs or ramfs the page cache is the file itself: its pages can't be released, only deleted",
            ),
            Self::Hugetlbfs => Some("hugetlbfs pages are reserved memory: they can't be released"),
            Self::Pseudo => Some("a pseudo file system keeps no data in the page cache"),
            Self::Zfs => {
                Some("ZFS caches in its ARC, not in the page cache: set primarycache on the dataset instead")
            }
            _ => None,
        }
    }
}

/// Returns the ID of the file system of a path, as 16 hexadecimal digits (`f_fsid` of statfs(2));
/// `None` if it has none.
///
/// ext4 and btrfs derive it from their UUID, so it survives a mount elsewhere; XFS uses the device
/// number.
///
/// ```
/// let id = pagekeeper_kernel::file_system_id("/var/tmp".as_ref())?;
/// assert!(id.is_none_or(|id| id.len() == 16));
/// # Ok::<(), pagekeeper_kernel::Error>(())
/// ```
pub fn file_system_id(path: &Path) -> Result<Option<String>> {
    let _call = announce(path)?;
    let stat = rustix::fs::statvfs(path).map_err(|e| Error::call("statfs", path, e))?;
    Ok((stat.f_fsid != 0).then(|| format!("{:016x}", stat.f_fsid)))
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ext => f.write_str("ext4"),
            Self::Xfs => f.write_str("xfs"),
            Self::Btrfs => f.write_str("btrfs"),
            Self::Overlay => f.write_str("overlay"),
            Self::Fuse => f.write_str("fuse"),
            Self::Nfs => f.write_str("nfs"),
            Self::Zfs => f.write_str("zfs"),
            Self::Tmpfs => f.write_str("tmpfs"),
            Self::Ramfs => f.write_str("ramfs"),
            Self::Hugetlbfs => f.write_str("hugetlbfs"),
            Self::BlockDevice => f.write_str("block device"),
            Self::Pseudo => f.write_str("pseudo"),
            Self::Other(magic) => write!(f, "file system 0x{magic:x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tmpfs_is_recognised_and_refused() {
        let shm = Path::new("/dev/shm");
        let kind = FileSystem::of(std::fs::File::open(shm).unwrap(), shm).unwrap();
        assert_eq!(kind, FileSystem::Tmpfs);
        assert!(kind.release_refusal().unwrap().contains("tmpfs"));
    }

    #[test]
    fn proc_is_a_pseudo_file_system() {
        let path = Path::new("/proc/self/status");
        let kind = FileSystem::of(std::fs::File::open(path).unwrap(), path).unwrap();
        assert_eq!(kind, FileSystem::Pseudo);
        assert!(kind.release_refusal().is_some());
        assert_eq!(FileSystem::from_magic(0x6265_6570), FileSystem::Pseudo, "configfs");
    }

    #[test]
    fn stored_file_systems_are_not_refused() {
        for kind in
            [FileSystem::Ext, FileSystem::Xfs, FileSystem::Btrfs, FileSystem::Overlay, FileSystem::Other(1)]
        {
            assert_eq!(kind.release_refusal(), None);
        }
    }
}
