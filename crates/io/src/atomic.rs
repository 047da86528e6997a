//! Writes that are there as a whole or not at all: which sizes a file takes, and whether one works.
//!
//! Invariant: no file of a caller's is changed; a write is tried on a file of its own, without a name. What can't be tried
//! is not believed.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, StatxFlags};

use crate::open::DiskFile;
use crate::{Access, AlignedBuf, Create, Error, IoFile, WriteMode};

/// `STATX_WRITE_ATOMIC`: of Linux 6.11, and not among rustix's flags.
const STATX_WRITE_ATOMIC: u32 = 0x1_0000;

/// What statx(2) says of a file (`stx_atomic_write_unit_min` and `max`): zeros, or no answer, for "none".
pub(crate) fn told(file: impl AsFd) -> Option<RangeInclusive<u64>> {
    let asked = StatxFlags::from_bits_retain(STATX_WRITE_ATOMIC);
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, asked).ok()?;
    let (least, most) = (stat.stx_atomic_write_unit_min, stat.stx_atomic_write_unit_max);
    let is_told = stat.stx_mask & STATX_WRITE_ATOMIC != 0 && least > 0 && least <= most;
    is_told.then(|| u64::from(least)..=u64::from(most))
}

/// Whether atomic writes ([`WriteMode::Atomic`]) of so many bytes work on files like this one: the size is a power of two
/// among those that the file is said to take ([`IoFile::atomic_write_bytes`]), and such writes did work. The word alone is
/// not enough: an overlay passes on what its upper file system says, and refuses the write (Linux 6.18).
///
/// The file itself is not touched. The writes go to a file without a name in its directory, which must be on the same
/// device and take the same sizes: once to where nothing is yet, once over that; they are read back, and it goes again.
/// False where that can't be done: without the right to make files there, without room. A simulated disk is believed.
///
/// ```
/// use pagekeeper_io::{Access, Create, Io, SimDisk, writes_atomically};
///
/// let disk = SimDisk::builder().atomic_writes(16_384).build();
/// let file = disk.open_writable("/data".as_ref(), Access::Direct, Create::New)?;
/// assert!(writes_atomically(&*file, 4096));
/// assert!(!writes_atomically(&*file, 32_768));
/// # Ok::<(), pagekeeper_io::Error>(())
/// ```
pub fn writes_atomically(file: &dyn IoFile, bytes: u64) -> bool {
    let Some(told) = file.atomic_write_bytes() else { return false };
    if !bytes.is_power_of_two() || !told.contains(&bytes) {
        return false;
    }
    file.fd().is_none() || works_beside(file, &told, bytes).unwrap_or(false)
}

/// Tries it in the file's directory.
fn works_beside(file: &dyn IoFile, told: &RangeInclusive<u64>, bytes: u64) -> Result<bool, Error> {
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
    let scratch = DiskFile::open_writable(&link, Access::Direct, Create::Never)?;
    let is_alike = scratch.stat()?.device == file.stat()?.device
        && scratch.atomic_write_bytes().is_some_and(|of_scratch| of_scratch == *told);
    let Some(len) = usize::try_from(bytes).ok().filter(|_| is_alike) else { return Ok(false) };
    let (mut written, mut read) = (AlignedBuf::new(len), AlignedBuf::new(len));
    for byte in 1..=2 {
        written.fill(byte);
        scratch.write_at(0, &written, WriteMode::Atomic)?;
        if scratch.read_at(0, &mut read)? != len || read[..] != written[..] {
            return Ok(false);
        }
    }
    Ok(true)
}
