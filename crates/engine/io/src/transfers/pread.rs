//! A blocking read into pieces of memory: preadv(2), in the loop that all back-ends share.

use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::iovec;

use crate::transfers::scatter;
use crate::transfers::transfer::{Transfer, TransferKind};
use crate::{BatchRead, Error, IoFile, OwnedRead};

/// Fills a buffer from `offset`, blocking.
pub(crate) fn read_slice(file: &dyn IoFile, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
    let bufs = [IoSliceMut::new(buf)];
    // SAFETY: the buffer is borrowed exclusively during the call.
    #[expect(unsafe_code, reason = "the memory is a slice")]
    unsafe {
        read(file, offset, scatter::of_slices(&bufs))
    }
}

/// Performs one read of a batch, blocking.
pub(crate) fn read_alone(read: &mut BatchRead<'_>) -> Result<usize, Error> {
    // SAFETY: the buffers are borrowed exclusively during the call.
    #[expect(unsafe_code, reason = "the memory is slices")]
    unsafe {
        self::read(read.file, read.offset, scatter::of_slices(&read.bufs))
    }
}

/// Performs one background read, blocking, and calls its `done`.
pub(crate) fn read_owned(read: OwnedRead) {
    // SAFETY: by the contract of `ReadTarget` the memory belongs to the read until `done` has been
    // called.
    #[expect(unsafe_code, reason = "the promise of ReadTarget is taken up")]
    let result = unsafe { self::read(&*read.file, read.offset, scatter::of_targets(&read.targets)) };
    read.finish(result);
}

/// Fills `pieces` from `offset`, blocking. Returns fewer bytes only at end of file.
///
/// # Safety
///
/// The pieces must be valid for writes, and used by nobody else, until the call returns.
#[expect(unsafe_code, reason = "the kernel writes where it is asked to")]
pub(crate) unsafe fn read(file: &dyn IoFile, offset: u64, pieces: &[iovec]) -> Result<usize, Error> {
    let mut transfer = Transfer::new(TransferKind::Read, offset, scatter::total(pieces));
    if let Some(result) = transfer.before(file) {
        return result;
    }
    let Some(fd) = file.fd() else {
        return Err(Error::Foreign { path: file.path().to_path_buf() });
    };
    loop {
        let rest = scatter::rest(pieces, transfer.done());
        // SAFETY: `rest` is a part of `pieces`, which the caller vouches for.
        let got = unsafe { preadv(fd, &rest, transfer.position()) };
        if let Some(result) = transfer.after(scatter::total(&rest), got, file, pieces) {
            return result;
        }
    }
}

/// Performs one raw read. Returns a byte count or an error number.
///
/// # Safety
///
/// As for [`read`]. With more than [`scatter::PIECES_MAX`] pieces the kernel refuses the call.
#[expect(unsafe_code, reason = "a system call on raw memory")]
unsafe fn preadv(fd: BorrowedFd<'_>, pieces: &[iovec], offset: u64) -> Result<usize, i32> {
    let offset = libc::off_t::try_from(offset).map_err(|_| libc::EINVAL)?;
    let count = match pieces {
        // SAFETY: the descriptor is borrowed, so it is open; the caller guarantees the memory.
        [piece] => unsafe { libc::pread(fd.as_raw_fd(), piece.iov_base, piece.iov_len, offset) },
        pieces => {
            let count = libc::c_int::try_from(pieces.len()).map_err(|_| libc::EINVAL)?;
            // SAFETY: as above; the list itself lives until the call returns.
            unsafe { libc::preadv(fd.as_raw_fd(), pieces.as_ptr(), count, offset) }
        }
    };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
