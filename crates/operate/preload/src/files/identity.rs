//! The identity of a file, its device and inode: as a value, and as words that threads or
//! processes share.

use core::sync::atomic::{AtomicU64, Ordering};

/// Identifies a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    /// Its device, as `st_dev` encodes it.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
}

impl FileIdentity {
    /// Returns the identity of the file that `stat` describes.
    pub fn of(stat: &libc::stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }

    /// Returns a hash whose upper bits are mixed best.
    pub fn hash(self) -> u64 {
        (self.inode ^ self.device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// An identity in shared memory. All bits may be zero. A reader during a change may get a
/// mixture.
#[repr(C)]
pub struct SharedIdentity {
    pub(crate) device: AtomicU64,
    pub(crate) inode: AtomicU64,
}

impl SharedIdentity {
    /// Sets it.
    pub fn set(&self, to: FileIdentity) {
        self.device.store(to.device, Ordering::Relaxed);
        self.inode.store(to.inode, Ordering::Relaxed);
    }

    /// Returns it.
    pub fn get(&self) -> FileIdentity {
        let (device, inode) = (&self.device, &self.inode);
        FileIdentity { device: device.load(Ordering::Relaxed), inode: inode.load(Ordering::Relaxed) }
    }
}
