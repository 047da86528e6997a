//! A blocking write: pwrite(2), in the loop that all back-ends share.

use libc::iovec;
use rustix::io::{Errno, ReadWriteFlags};

use crate::transfers::transfer::{Transfer, TransferKind};
use crate::{Error, IoFile, OwnedWrite, WriteMode};

/// Returns the flags of pwritev2(2) for a mode. rustix lacks `RWF_DONTCACHE` (Linux 6.14) and
/// `RWF_ATOMIC` (6.11).
pub(crate) fn flags(mode: WriteMode) -> ReadWriteFlags {
    match mode {
        WriteMode::Plain => ReadWriteFlags::empty(),
        WriteMode::Uncached => ReadWriteFlags::from_bits_retain(0x80),
        WriteMode::Durable => ReadWriteFlags::DSYNC,
        WriteMode::Atomic => ReadWriteFlags::from_bits_retain(0x40),
    }
}

/// Writes all of `buf` at `offset`, blocking.
pub(crate) fn write(file: &dyn IoFile, offset: u64, buf: &[u8], mode: WriteMode) -> Result<(), Error> {
    let mut transfer = Transfer::new(TransferKind::Write(mode), offset, buf.len());
    if let Some(result) = transfer.before(file) {
        return result.map(|_| ());
    }
    let Some(fd) = file.fd() else {
        return Err(Error::Foreign { path: file.path().to_path_buf() });
    };
    let pieces = [iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() }];
    loop {
        let rest = &buf[transfer.done()..];
        let got = match mode {
            WriteMode::Plain => rustix::io::pwrite(fd, rest, transfer.position()),
            mode => {
                let rest = [std::io::IoSlice::new(rest)];
                rustix::io::pwritev2(fd, &rest, transfer.position(), flags(mode))
            }
        };
        let got = got.map_err(Errno::raw_os_error);
        if let Some(result) = transfer.after(rest.len(), got, file, &pieces) {
            return result.map(|_| ());
        }
    }
}

/// Performs one background write, blocking, and calls its `done`.
pub(crate) fn write_owned(write: OwnedWrite) {
    let result = self::write(&*write.file, write.offset, &write.buf, write.mode);
    write.finish(result);
}
