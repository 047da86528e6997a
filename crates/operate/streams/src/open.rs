//! Opens files that events name.
//!
//! Invariants: the opened file is the very inode that the event named. Mounts and leases are kept
//! for a moment while there is work, and no longer.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::{FileLeases, ProcRoot};
use pagekeeper_kernel::{
    Error, ExpectedFile, Inode, InodeId, InspectedFile, Links, OpenMount, PathHandle, Result,
    is_device_in_use,
};
use pagekeeper_trace::page_events::EventFile;

/// Maximum number of descriptors of a process that are checked to find a file.
const DESCRIPTORS_MAX: usize = 4096;

/// The lowest inode number of files on btrfs (`BTRFS_FIRST_FREE_OBJECTID`).
const BTRFS_FIRST_FILE: u64 = 256;
/// The answer to whether a block device is mounted is kept for this long.
const IN_USE_AGE_MAX: Duration = Duration::from_secs(1);
/// Maximum number of block devices whose answers are kept.
const DEVICES_MAX: usize = 1024;

/// Distinguishes metadata of mounted file systems from files: metadata comes in through the block
/// device, or through an inode of its own.
#[derive(Default)]
pub(crate) struct Metadata {
    proc: ProcRoot,
    /// The answer for each device, and its time.
    devices: HashMap<u64, (bool, Duration)>,
}

impl Metadata {
    /// Returns whether an event concerns a file system's metadata.
    pub(crate) fn includes(&mut self, file: &EventFile, now: Duration) -> bool {
        if !file.is_block_device {
            return file.subvolume.is_some() && file.ino < BTRFS_FIRST_FILE;
        }
        match self.devices.get(&file.dev) {
            Some((is_in_use, since)) if now.saturating_sub(*since) < IN_USE_AGE_MAX => return *is_in_use,
            None if self.devices.len() >= DEVICES_MAX => self.devices.clear(),
            _ => {}
        }
        // If that can't be found out, its pages are left alone.
        let is_in_use = is_device_in_use(&self.proc, Path::new("/sys"), file.dev).unwrap_or(true);
        self.devices.insert(file.dev, (is_in_use, now));
        is_in_use
    }
}

/// The set of leases is assumed not to change for this long. Reading it takes some milliseconds,
/// and slows down everyone who takes locks meanwhile.
const LEASES_AGE_MAX: Duration = Duration::from_millis(50);
/// A mount is kept open for this long while there is work, so that the mounts are read once for
/// many small files. The answer to whether a block device has users is kept for as long.
const MOUNT_OPEN_TIME_MAX: Duration = Duration::from_millis(100);

/// Opens the files of jobs.
pub(crate) struct Opener {
    proc: ProcRoot,
    leases: Option<(FileLeases, Instant)>,
    /// The device whose mount was opened last, and its mount, if it has one.
    mount: Option<(u64, Option<OpenMount>, Instant)>,
    /// A block device, and whether any process had it open then.
    device: Option<(u64, bool, Instant)>,
}

impl Opener {
    pub(crate) fn new() -> Self {
        Self { proc: ProcRoot::default(), leases: None, mount: None, device: None }
    }

    /// Closes everything.
    pub(crate) fn rest(&mut self) {
        (self.leases, self.mount, self.device) = (None, None, None);
    }

    /// Returns whether some process has a block device open.
    pub(crate) fn has_users(&mut self, device: u64) -> bool {
        let now = Instant::now();
        match self.device {
            Some((known, has_users, since))
                if known == device && now.duration_since(since) <= MOUNT_OPEN_TIME_MAX =>
            {
                has_users
            }
            _ => {
                let is_user = |pid: &u32| self.proc.has_device_open(*pid, device, DESCRIPTORS_MAX);
                let has_users = self.proc.pids().is_ok_and(|pids| pids.iter().any(is_user));
                self.device = Some((device, has_users, now));
                has_users
            }
        }
    }

    /// Opens a file that these processes use; `known` is the path by which it was opened before.
    pub(crate) fn open(
        &mut self,
        file: &EventFile,
        users: &[u32],
        known: Option<&Path>,
    ) -> Result<InspectedFile> {
        if file.is_block_device {
            return InspectedFile::open_device_by_number(&self.proc, Path::new("/sys"), file.dev);
        }
        let now = Instant::now();
        if self.leases.as_ref().is_none_or(|(_, since)| now.duration_since(*since) > LEASES_AGE_MAX) {
            self.leases = Some((self.proc.leases()?, now));
        }
        let is_stale = |(dev, _, since): &(u64, _, Instant)| {
            *dev != file.dev || now.duration_since(*since) > MOUNT_OPEN_TIME_MAX
        };
        if self.mount.as_ref().is_none_or(is_stale) {
            let pid = users.first().copied().unwrap_or(1);
            let mount = match OpenMount::of_device(&self.proc, file.dev, pid) {
                Ok(mount) => Some(mount),
                Err(Error::Unsupported { .. }) => None,
                Err(error) => return Err(error),
            };
            self.mount = Some((file.dev, mount, now));
        }
        let (Some((leases, _)), Some((_, mount, _))) = (&self.leases, &self.mount) else {
            unreachable!("both were just looked up")
        };
        let inode = Inode { dev: file.dev, ino: file.ino };
        match mount {
            Some(mount) => {
                let EventFile { ino, generation, subvolume, .. } = *file;
                mount.open(&InodeId { ino, generation, subvolume }, leases)
            }
            None if leases.is_on(inode) => {
                let path = known.unwrap_or(Path::new("a file")).to_path_buf();
                Err(Error::Unsupported { path, reason: "another program has a lease on it" })
            }
            None => self.open_by_descriptor(inode, users, known),
        }
    }

    /// Opens a file of another file system, through a descriptor of a process that uses it, or by
    /// its path from before.
    fn open_by_descriptor(&self, inode: Inode, users: &[u32], known: Option<&Path>) -> Result<InspectedFile> {
        for pid in users {
            let mut found: Option<(RawFd, std::path::PathBuf)> = None;
            let listed = self.proc.first_fd_links(*pid, DESCRIPTORS_MAX, |fd, path| {
                if found.is_none() && path.is_absolute() && self.proc.inode_behind(*pid, fd) == Some(inode) {
                    found = Some((fd, path.to_path_buf()));
                }
            });
            if let (Ok(()), Some((fd, path))) = (listed, found) {
                let link = self.proc.fd_path(*pid, fd);
                return InspectedFile::open_magic_link(&link, ExpectedFile::Inode(inode), path);
            }
        }
        match known {
            Some(path) => PathHandle::at(path, Links::RefuseAll)?.open(ExpectedFile::Inode(inode)),
            None => Err(Error::Unsupported {
                path: format!("inode {} of another file system", inode.ino).into(),
                reason: "no followed process has it open any more",
            }),
        }
    }
}
