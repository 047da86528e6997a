//! Atomic writes, which are on the disk completely or not at all: the sizes that a file supports,
//! whether the device guarantees them, and whether they work.
//!
//! Invariant: no file of the caller is changed, since test writes go to an unnamed scratch file. A
//! limit that cannot be read counts as unsupported. If a test is not possible now,
//! [`AtomicWrites::try_probe`] reports an error, and all other functions report no support.

use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

use crate::files::atomic_limits::statx;
use crate::files::open::DiskFile;
use crate::{Access, AlignedBuf, Create, Error, IoFile, WriteMode};

/// The support of atomic writes ([`WriteMode::Atomic`]) of some size on files like a given one.
///
/// ```
/// use pagekeeper_io::{Access, AtomicWrites, Create, Io};
/// use pagekeeper_simdisk::SimDisk;
///
/// let disk = SimDisk::builder().atomic_writes(16_384).build();
/// let file = disk.open_writable("/data".as_ref(), Access::Direct, Create::New)?;
/// assert_eq!(AtomicWrites::probe(&*file, 16_384), AtomicWrites::InPlace);
/// assert_eq!(AtomicWrites::probe(&*file, 32_768), AtomicWrites::Refused);
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtomicWrites {
    /// Not supported, or not testable.
    Refused,
    /// Supported, but not known to be done by the device: the file system may write to new blocks
    /// and remap the file (XFS, Linux 6.16). That takes space and a transaction, and fragments the
    /// file. Any write can fail with `ENOSPC`, even if the file's blocks are allocated and most of
    /// the space is free (Linux 6.18, XFS on a loop device). A write that fails like this has
    /// written nothing.
    Elsewhere,
    /// Supported by the device itself: as cheap as other writes, and without additional failures.
    InPlace,
}

impl AtomicWrites {
    /// Checks statx(2) and the device's limits in /sys, and tests such writes. The reported limits
    /// alone are not enough: an overlay passes on the limits of its upper file system and refuses
    /// the write (Linux 6.18).
    ///
    /// The file itself is not touched. The test writes go to a file without a name in its
    /// directory, which must be on the same device and support the same sizes: once to a hole, once
    /// over that. They are read back, and the file is freed. Returns [`Self::Refused`] if the test
    /// is not possible, for lack of permission to create files there or of space. A simulated disk
    /// is trusted if it has room.
    pub fn probe(file: &dyn IoFile, bytes: u64) -> Self {
        Self::try_probe(file, bytes).unwrap_or(Self::Refused)
    }

    /// As [`Self::probe`], but fails if the test is not possible now: on a full disk, without
    /// permission to create files there, without free descriptors. Such an error says nothing about
    /// a later test.
    pub fn try_probe(file: &dyn IoFile, bytes: u64) -> Result<Self, Error> {
        let Some(reported) = file.atomic_write_bytes() else { return Ok(Self::Refused) };
        if !bytes.is_power_of_two() || !reported.contains(&bytes) {
            return Ok(Self::Refused);
        }
        if file.fd().is_none() {
            file.has_room()?;
            return Ok(Self::InPlace);
        }
        Ok(match works_beside(file, &reported, bytes)? {
            true if is_in_place(file, bytes).unwrap_or(false) => Self::InPlace,
            true => Self::Elsewhere,
            false => Self::Refused,
        })
    }
}

/// Whether atomic writes of this many bytes are reliable on a file like this one:
/// [`AtomicWrites::InPlace`].
///
/// ```
/// use pagekeeper_io::{Access, Create, Io, writes_atomically};
/// use pagekeeper_simdisk::SimDisk;
///
/// let disk = SimDisk::builder().atomic_writes(16_384).build();
/// let file = disk.open_writable("/data".as_ref(), Access::Direct, Create::New)?;
/// assert!(writes_atomically(&*file, 4096));
/// assert!(!writes_atomically(&*file, 32_768));
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
pub fn writes_atomically(file: &dyn IoFile, bytes: u64) -> bool {
    AtomicWrites::probe(file, bytes) == AtomicWrites::InPlace
}

/// Whether the device does such writes by itself; `None` if unknown.
///
/// A file system with both ways also reports the device's limit (`stx_atomic_write_unit_max_opt`).
/// Below the limit it still uses the other way if blocks are not contiguous or not aligned: then
/// only a single block is certain.
fn is_in_place(file: &dyn IoFile, bytes: u64) -> Option<bool> {
    let stat = statx(file.fd()?)?;
    let is_sure =
        stat.stx_atomic_write_unit_max_opt == 0 || u64::from(stat.stx_atomic_write_unit_min) == bytes;
    let device = file.stat().ok()?.device;
    let node = PathBuf::from(format!("/sys/dev/block/{}:{}", major(device), minor(device)));
    Some(is_sure && device_takes(&node, bytes)?)
}

/// Reads the limits from the sysfs directory of a device or partition
/// (Documentation/ABI/stable/sysfs-block). A partition must begin at a valid offset for such a
/// write, or the kernel assumes no support for its device.
fn device_takes(node: &Path, bytes: u64) -> Option<bool> {
    let number = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let (queue, start) = match node.join("queue") {
        queue if queue.is_dir() => (queue, 0),
        _ => (node.join("../queue"), number(node.join("start"))?.checked_mul(512)?),
    };
    let limit = |name: &str| number(queue.join(name));
    let least = limit("atomic_write_unit_min_bytes")?;
    let most = limit("atomic_write_unit_max_bytes")?;
    let unit = least.max(limit("atomic_write_boundary_bytes")?).max(bytes);
    Some(least > 0 && (least..=most).contains(&bytes) && start.is_multiple_of(unit))
}

/// Tests atomic writes in the file's directory.
fn works_beside(file: &dyn IoFile, reported: &RangeInclusive<u64>, bytes: u64) -> Result<bool, Error> {
    let dir = match file.path().parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let scratch = tempfile::tempfile_in(dir).map_err(|error| Error::Call {
        call: "create a file in",
        path: dir.to_path_buf(),
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    })?;
    let link = PathBuf::from(format!("/proc/self/fd/{}", scratch.as_raw_fd()));
    let scratch = match DiskFile::open_writable(&link, Access::Direct, Create::Never) {
        Err(Error::NoDirect { .. }) => return Ok(false),
        opened => opened?,
    };
    let is_alike = scratch.stat()?.device == file.stat()?.device
        && scratch.atomic_write_bytes().is_some_and(|of_scratch| of_scratch == *reported);
    let Some(len) = usize::try_from(bytes).ok().filter(|_| is_alike) else { return Ok(false) };
    let (mut written, mut read) = (AlignedBuf::new(len), AlignedBuf::new(len));
    for byte in 1..=2 {
        written.fill(byte);
        match scratch.write_at(0, &written, WriteMode::Atomic) {
            Err(error) if matches!(error.errno(), Some(libc::EOPNOTSUPP | libc::EINVAL)) => return Ok(false),
            written => written?,
        }
        if scratch.read_at(0, &mut read)? != len || read[..] != written[..] {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_a_device_are_its_partitions_too() {
        let root = tempfile::tempdir().unwrap();
        let disk = root.path().join("disk");
        std::fs::create_dir_all(disk.join("queue")).unwrap();
        for (name, bytes) in [("unit_min", 4096), ("unit_max", 16_384), ("boundary", 0)] {
            let path = disk.join(format!("queue/atomic_write_{name}_bytes"));
            std::fs::write(path, format!("{bytes}\n")).unwrap();
        }
        for (name, sector) in [("aligned", 2048), ("odd", 2056)] {
            std::fs::create_dir(disk.join(name)).unwrap();
            std::fs::write(disk.join(name).join("start"), format!("{sector}\n")).unwrap();
        }
        for node in [disk.clone(), disk.join("aligned")] {
            let taken = [2048, 4096, 16_384, 32_768].map(|bytes| device_takes(&node, bytes));
            assert_eq!(taken, [Some(false), Some(true), Some(true), Some(false)]);
        }
        let odd = disk.join("odd");
        assert_eq!([4096, 16_384].map(|bytes| device_takes(&odd, bytes)), [Some(true), Some(false)]);
        std::fs::write(disk.join("queue/atomic_write_boundary_bytes"), "65536").unwrap();
        assert_eq!(device_takes(&odd, 4096), Some(false));
        std::fs::write(disk.join("queue/atomic_write_unit_min_bytes"), "0").unwrap();
        assert_eq!(device_takes(&disk, 4096), Some(false), "zero is none");
        assert_eq!(device_takes(&root.path().join("none"), 4096), None);
    }
}
