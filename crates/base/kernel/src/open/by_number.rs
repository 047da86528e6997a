//! Opens files by number, for kernel events that name a file only by its numbers.
//!
//! Invariants: those of [`PathHandle`], by which the file is opened. The inode is resolved and
//! inspected first, which calls no driver and breaks no lease. Number, generation and subvolume of
//! the resolved inode are checked again, so exactly that inode is opened. An inode without a name,
//! or with a lease on it, is not opened.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};
use rustix::io::Errno;

use super::{ExpectedFile, Inode, InspectedFile, Links, PathHandle, require_regular};
use crate::block::{device_name, is_device_in_use};
use crate::hang::announce_on_device;
use crate::process::{FileLeases, Mount, ProcRoot};
use crate::sys::file_handle::{FileHandle, handle_of, open_by_handle};
use crate::{Error, Result};

/// A file handle of number and generation in 32 bits each: ext4, and XFS mounted with `inode32`
/// (`enum fid_type` of `linux/exportfs.h`).
const FILEID_INO32_GEN: i32 = 1;
/// A file handle of XFS: number in 64 bits, generation in 32.
const XFS_FILEID_INO64_GEN: i32 = 0x81;
/// A file handle of btrfs: number and subvolume in 64 bits each, generation in 32.
const FILEID_BTRFS: i32 = 0x4d;

/// Number of retries while the number of an inode is being assigned to another one.
const NUMBER_TAKEN_RETRIES: usize = 3;

/// The unique identity of an inode in its file system, distinct also from earlier and later inodes
/// with its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct InodeId {
    /// The inode number.
    pub ino: u64,
    /// The generation.
    pub generation: u32,
    /// The subvolume, on btrfs only.
    pub subvolume: Option<u64>,
}

impl InodeId {
    /// Returns the identity of an open or resolved file; `None` if its file system has no such
    /// numbers, or encodes them differently.
    pub fn of(open: impl AsFd) -> Option<Self> {
        Self::parse(&handle_of(open.as_fd()).ok()?)
    }

    fn parse(handle: &FileHandle) -> Option<Self> {
        let word = |at: usize| Some(u32::from_ne_bytes(*handle.bytes.get(at..)?.first_chunk()?));
        let long = |at: usize| Some(u64::from_ne_bytes(*handle.bytes.get(at..)?.first_chunk()?));
        match handle.kind {
            FILEID_INO32_GEN => Some(Self { ino: word(0)?.into(), generation: word(4)?, subvolume: None }),
            XFS_FILEID_INO64_GEN => Some(Self { ino: long(0)?, generation: word(8)?, subvolume: None }),
            FILEID_BTRFS => Some(Self { ino: long(0)?, generation: word(16)?, subvolume: Some(long(8)?) }),
            _ => None,
        }
    }

    /// Returns the handle in the file system's own form.
    fn handle(&self, form: i32) -> Option<FileHandle> {
        let (number, generation) = (self.ino.to_ne_bytes(), self.generation.to_ne_bytes());
        let bytes = match form {
            FILEID_INO32_GEN => [&u32::try_from(self.ino).ok()?.to_ne_bytes()[..], &generation].concat(),
            XFS_FILEID_INO64_GEN => [&number[..], &generation].concat(),
            _ => [&number[..], &self.subvolume?.to_ne_bytes(), &generation].concat(),
        };
        Some(FileHandle { kind: form, bytes })
    }
}

/// A mounted file system whose files are opened by number: ext4, XFS or btrfs. Needs
/// `CAP_DAC_READ_SEARCH`.
///
/// Nobody can unmount it while this value lives.
#[derive(Debug)]
pub struct OpenMount {
    directory: OwnedFd,
    /// The device number of the file system, which no file shows on btrfs.
    dev: u64,
    form: i32,
    point: PathBuf,
}

impl OpenMount {
    /// Opens the mount point of a file system by its device number: one that this process sees, or
    /// else one that the process `pid` sees.
    ///
    /// Fails with [`Error::Unsupported`] if the file system is not mounted, or has another type.
    pub fn of_device(proc: &ProcRoot, dev: u64, pid: u32) -> Result<Self> {
        let own = proc.own_mounts()?;
        let theirs = || proc.mounts(pid).unwrap_or_default();
        let below_their_root = |mount: Mount| {
            let root = proc.path().join(format!("{pid}/root"));
            let below = mount.point.strip_prefix("/").map(|below| root.join(below)).unwrap_or(root);
            Mount { point: below, ..mount }
        };
        let of_device = |mounts: Vec<Mount>| {
            let mut mounts: Vec<Mount> = mounts.into_iter().filter(|mount| mount.dev == dev).collect();
            // A mount of the file system's root shows whole paths.
            mounts.sort_by_key(|mount| mount.root.as_os_str().len());
            mounts
        };
        let reason = "its file system is not mounted where it could be opened by number";
        let mut failed = Error::Unsupported { path: PathBuf::from(device_text(dev)), reason };
        for mount in of_device(own).into_iter().chain(of_device(theirs()).into_iter().map(below_their_root)) {
            match Self::at_mount(mount) {
                Ok(opened) => return Ok(opened),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    fn at_mount(mount: Mount) -> Result<Self> {
        let path = mount.point;
        let form = match mount.kind.as_str() {
            "ext2" | "ext3" | "ext4" => FILEID_INO32_GEN,
            "xfs" => XFS_FILEID_INO64_GEN,
            "btrfs" => FILEID_BTRFS,
            _ => {
                let reason = "files of this file system are not opened by number";
                return Err(Error::Unsupported { path, reason });
            }
        };
        let directory = PathHandle::at(&path, Links::RefuseAll)?;
        // Another file system may be mounted over it.
        if mount_id(directory.as_fd()) != Some(mount.id) {
            return Err(Error::MountPoint { path });
        }
        let directory = directory.open_directory(ExpectedFile::Any)?;
        Ok(Self { directory, dev: mount.dev, form, point: path })
    }

    /// Opens a regular file that has a name. Its path is the name that the kernel knows, or its
    /// number if the kernel knows none.
    ///
    /// Fails with an error that [is gone](Error::is_gone) if the inode was removed, even if a new
    /// one has its number. Fails with [`Error::Unsupported`] if the inode is among the `leases`.
    pub fn open(&self, id: &InodeId, leases: &FileLeases) -> Result<InspectedFile> {
        const CALL_NAME: &str = "open_by_handle_at";
        let shown = self.point.join(format!("#{}", id.ino));
        let _call = announce_on_device(self.dev, &shown)?;
        if self.form == FILEID_BTRFS && id.subvolume.is_none() {
            let reason = "the kernel does not say in which subvolume it is";
            return Err(Error::Unsupported { path: shown, reason });
        }
        let handle = id.handle(self.form).ok_or_else(|| Error::call(CALL_NAME, &shown, Errno::STALE))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = || open_by_handle(self.directory.as_fd(), &handle, flags);
        let mut found = resolve();
        // ext4 returns this for a moment while it creates a new inode with that number.
        for _ in 0..NUMBER_TAKEN_RETRIES {
            if found.as_ref().err() != Some(&Errno::NOMEM) {
                break;
            }
            std::thread::yield_now();
            found = resolve();
        }
        let found = found.map_err(|errno| Error::call(CALL_NAME, &shown, errno))?;
        let path = name_of(found.as_fd()).unwrap_or(shown);
        let found = PathHandle::of(found, path)?;
        require_regular(found.stat(), found.path())?;
        // ext4 accepts a generation of 0 as any.
        if found.stat().st_nlink == 0 || InodeId::of(&found) != Some(*id) {
            return Err(Error::call(CALL_NAME, found.path(), Errno::STALE));
        }
        if leases.is_on(Inode { dev: self.dev, ino: id.ino }) {
            let reason = "another program has a lease on it, and would be interrupted";
            return Err(Error::Unsupported { path: found.path().to_path_buf(), reason });
        }
        let expected = ExpectedFile::Inode(found.inode());
        found.open(expected)
    }
}

impl InspectedFile {
    /// Opens the block device with this number, unless a file system on it is mounted, which owns
    /// its pages.
    ///
    /// Fails with [`Error::Unsupported`] if it is mounted, and with [`Error::OtherFile`] if `/dev`
    /// leads to another device.
    pub fn open_device_by_number(proc: &ProcRoot, sys: &Path, device: u64) -> Result<Self> {
        let path = Path::new("/dev").join(device_name(sys, device)?);
        if is_device_in_use(proc, sys, device)? {
            let reason = "a block device that is mounted or in use: its pages are left alone";
            return Err(Error::Unsupported { path, reason });
        }
        let found = PathHandle::at(&path, Links::Refuse)?;
        if found.kind() != FileType::BlockDevice || found.stat().st_rdev != device {
            return Err(Error::OtherFile { path });
        }
        found.open_file_or_device(ExpectedFile::Any)
    }
}

/// Returns the ID of the mount that a descriptor leads into.
fn mount_id(open: BorrowedFd<'_>) -> Option<u64> {
    let found = rustix::fs::statx(open, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

/// Returns the path of an open file, if the kernel knows one: an inode that was looked up by its
/// number alone may have none.
fn name_of(open: BorrowedFd<'_>) -> Option<PathBuf> {
    let link = format!("/proc/thread-self/fd/{}", open.as_raw_fd());
    let path = std::fs::read_link(link).ok()?;
    (path.is_absolute() && path.parent().is_some()).then_some(path)
}

fn device_text(dev: u64) -> String {
    format!("device {}:{}", rustix::fs::major(dev), rustix::fs::minor(dev))
}
