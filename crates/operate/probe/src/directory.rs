//! The directory to measure: its file system, its disk, and whether it can be measured at all.
//!
//! Fails with a plain sentence before anything is written if the path is not a directory, or if its
//! file system is in memory, read-only, full or forbidden.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::pressure::{BackingDevice, MemInfo, SysRoots};
use pagekeeper_kernel::process::Mount;
use pagekeeper_kernel::{FileSystem, Links, open_directory};
use rustix::fs::{StatVfsMountFlags, major, minor};

use crate::{Error, Result};

/// Bytes that stay free on the disk.
const SPARE_DISK_BYTES: u64 = 64 << 20;
/// Memory that is needed in addition to the dirty pages of bulk output, in bytes.
const SPARE_MEMORY_BYTES: u64 = 128 << 20;

/// A directory, its file system and its disk.
#[derive(Debug)]
pub(crate) struct TestDirectory {
    pub(crate) directory: PathBuf,
    pub(crate) roots: SysRoots,
    /// The type of the file system, as in the mount table: `ext4`.
    pub(crate) file_system: String,
    /// The device, `st_dev` as "MAJOR:MINOR".
    pub(crate) device: String,
    /// `f_fsid`; 0 if there is none.
    pub(crate) number: u64,
    /// The file system's device as tracepoints report it.
    pub(crate) traced: Option<u64>,
    /// The disk below, as tracepoints of block devices report it.
    pub(crate) disk: Option<u64>,
    pub(crate) read_ahead: Option<u64>,
}

impl TestDirectory {
    /// Opens the directory. Nothing is written.
    pub(crate) fn open(directory: &Path) -> Result<Self> {
        let roots = SysRoots::default();
        let metadata = std::fs::metadata(directory).map_err(|error| Error::call("stat", directory, error))?;
        if !metadata.is_dir() {
            return Err(Error::NotADirectory { path: directory.to_path_buf() });
        }
        let open = open_directory(directory, Links::Follow)?;
        let kind = FileSystem::of(&open, directory)?;
        if let Some(reason) = kind.release_refusal() {
            return Err(Error::NoDisk { path: directory.to_path_buf(), reason });
        }
        let stat = rustix::fs::fstatvfs(&open).map_err(|errno| Error::call("statfs", directory, errno))?;
        if stat.f_flag.contains(StatVfsMountFlags::RDONLY) {
            return Err(Error::ReadOnly { path: directory.to_path_buf() });
        }
        let mount = roots.proc.own_mount_of(&open);
        let backing = backing_device(&roots, metadata.dev(), mount.as_ref());
        Ok(Self {
            directory: directory.to_path_buf(),
            file_system: mount.as_ref().map_or_else(|| kind.to_string(), |mount| mount.kind.clone()),
            device: format!("{}:{}", major(metadata.dev()), minor(metadata.dev())),
            number: stat.f_fsid,
            traced: mount.as_ref().filter(|mount| mount.kind != "overlay").map(|mount| mount.dev),
            disk: disk_of(&roots, metadata.dev(), mount.as_ref()),
            read_ahead: backing.map(|backing| backing.read_ahead),
            roots,
        })
    }

    /// Fails unless this many bytes fit on the disk.
    pub(crate) fn require_space(&self, bytes: u64) -> Result<()> {
        let stat = rustix::fs::statvfs(&self.directory)
            .map_err(|errno| Error::call("statfs", &self.directory, errno))?;
        let (free, needed) =
            (stat.f_bavail.saturating_mul(stat.f_frsize), bytes.saturating_add(SPARE_DISK_BYTES));
        if free < needed {
            return Err(Error::NoSpace { path: self.directory.clone(), free, needed });
        }
        Ok(())
    }

    /// Returns how many bytes may be made dirty without harm to others, at most `wanted`. Fails if
    /// that is less than a quarter of `wanted`.
    pub(crate) fn dirty_allowance(&self, wanted: u64) -> Result<u64> {
        let available = MemInfo::read(&self.roots)?.available;
        let allowed = (available.saturating_sub(SPARE_MEMORY_BYTES) / 4).min(wanted);
        if allowed < wanted / 4 {
            return Err(Error::NoMemory { available, needed: SPARE_MEMORY_BYTES.saturating_add(wanted) });
        }
        Ok(allowed)
    }

    /// Creates a file without a name in the directory. It is freed when it is closed, however its
    /// process ends. On file systems without `O_TMPFILE` it has a name for a moment.
    pub(crate) fn unnamed(&self) -> Result<File> {
        unnamed(&self.directory)
    }

    /// Returns the file system's ID in the form of a disk profile.
    pub(crate) fn file_system_id(&self) -> String {
        format!("{:016x}", self.number)
    }
}

/// Creates a file as [`TestDirectory::unnamed`] does.
pub(crate) fn unnamed(directory: &Path) -> Result<File> {
    tempfile::tempfile_in(directory).map_err(|error| Error::making(directory, error))
}

fn backing_device(roots: &SysRoots, dev: u64, mount: Option<&Mount>) -> Option<BackingDevice> {
    match mount {
        Some(mount) => BackingDevice::for_mount(roots, mount).ok()?,
        None => BackingDevice::for_dev(roots, dev).ok()?,
    }
}

/// Returns the disk, never a partition.
fn disk_of(roots: &SysRoots, dev: u64, mount: Option<&Mount>) -> Option<u64> {
    let of = |dev| {
        let name = BackingDevice::for_dev(roots, dev).ok()??.name;
        let (major, minor) = name.split_once(':')?;
        let (major, minor) = (major.parse::<u32>().ok()?, minor.parse().ok()?);
        // File systems without a disk have the major number 0.
        (major > 0).then(|| rustix::fs::makedev(major, minor))
    };
    // btrfs reports an anonymous device. Its mount names the disk, or the first of several.
    let source = || rustix::fs::stat(Path::new(&mount?.source)).ok().map(|stat| stat.st_rdev);
    of(dev).or_else(|| of(source()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagekeeper_testing::disk_dir;

    #[test]
    fn a_directory_that_cannot_be_measured_is_refused_in_a_sentence() {
        let error_of = |path: &str| TestDirectory::open(Path::new(path)).unwrap_err().to_string();
        assert!(error_of("/dev/shm").contains("tmpfs"), "{}", error_of("/dev/shm"));
        assert!(error_of("/proc").contains("keeps no data"));
        assert!(error_of("/etc/passwd").contains("not a directory"));
        assert_eq!(error_of("/nowhere"), "stat /nowhere: No such file or directory (os error 2)");
        let dir = disk_dir();
        let directory = TestDirectory::open(dir.path()).unwrap();
        let error = directory.require_space(u64::MAX / 2).unwrap_err().to_string();
        assert!(error.contains("MiB are free") && error.contains("smaller file"), "{error}");
        let error = directory.dirty_allowance(u64::MAX / 2).unwrap_err().to_string();
        assert!(error.contains("of memory are available"), "{error}");
    }

    #[test]
    fn a_nameless_file_leaves_no_name() {
        let dir = disk_dir();
        let directory = TestDirectory::open(dir.path()).unwrap();
        let file = directory.unnamed().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        assert!(!directory.file_system.is_empty() && directory.device.contains(':'));
        assert_eq!(directory.file_system_id().len(), 16);
    }
}
