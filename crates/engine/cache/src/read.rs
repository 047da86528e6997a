//! Reading at any offset.
//!
//! Invariants: a read returns exactly the bytes of the file as it was opened, fewer than requested
//! only at its end. A hit takes no lock and makes no system call. A read fails if a page that it
//! needs can't be loaded; the buffer's content is then unspecified.

use crate::frames;
use crate::lookup::LookupAttempt;
use crate::{CachedFile, Error};

impl CachedFile {
    /// Reads from `offset` on, across pages. Returns the number of bytes, fewer than `buf` holds
    /// only at the end of the file. Absent pages are loaded, neighbours and all pages of one call
    /// together.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the device fails, [`Error::Cut`], [`Error::Grew`] or [`Error::Changed`] if
    /// the file changed since it was opened, [`Error::Rejected`] by the verifier,
    /// [`Error::Closed`]. The next call tries again.
    #[inline]
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        if self.handle().fast_path.copy(offset, buf) { Ok(buf.len()) } else { self.read_slowly(offset, buf) }
    }

    /// Makes a read that the fast path does not serve.
    #[cold]
    fn read_slowly(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let handle = &**self.handle();
        handle.shared.require_own_process()?;
        let shift = handle.shared.settings.page_shift;
        let from = handle.offset_in_page(offset);
        let end = offset.checked_add(buf.len() as u64);
        let within = from + buf.len() <= 1 << shift && end.is_some_and(|end| end <= handle.stat.size);
        if !within || buf.is_empty() {
            return self.read_across(offset, buf);
        }
        #[expect(clippy::cast_possible_truncation, reason = "files have fewer than 2^32 pages")]
        let page = (offset >> shift) as u32;
        if !frames::copy(handle, page, from, buf, LookupAttempt::First) {
            handle.read_missed(page, from, buf)?;
        }
        Ok(buf.len())
    }

    /// Reads across pages, or to the end of the file.
    fn read_across(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let handle = &**self.handle();
        let len = handle.len_within(offset, buf.len())?;
        if len > 0 {
            self.read_pieces(offset, &mut buf[..len])?;
        }
        Ok(len)
    }
}
