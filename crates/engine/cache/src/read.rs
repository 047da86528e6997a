//! Reading at any offset.
//!
//! Invariants: a read gives exactly the bytes of the file as it was opened, fewer than asked for only at its end; a hit takes no
//! lock and makes no system call. Fails where a page that it needs can't be loaded; what the buffer holds then is
//! unspecified.

use crate::frames;
use crate::lookup::Attempt;
use crate::{CachedFile, Error};

impl CachedFile {
    /// Reads from `offset` on, across pages; returns how many bytes, fewer than `buf` holds only at the end of the file.
    /// Pages that are absent are loaded, neighbours and all that one call needs together.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the device fails, [`Error::Cut`], [`Error::Grew`] or [`Error::Changed`] where the file is no longer
    /// what was opened, [`Error::Rejected`] by the verifier, [`Error::Closed`]. The next call tries again.
    #[inline]
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        if self.handle().fast_path.copy(offset, buf) { Ok(buf.len()) } else { self.read_slowly(offset, buf) }
    }

    /// All that the shortest way leaves.
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
        if !frames::copy(handle, page, from, buf, Attempt::First) {
            handle.read_missed(page, from, buf)?;
        }
        Ok(buf.len())
    }

    /// Across pages, or to the end of the file.
    fn read_across(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let handle = &**self.handle();
        let len = handle.len_within(offset, buf.len())?;
        if len > 0 {
            self.read_pieces(offset, &mut buf[..len])?;
        }
        Ok(len)
    }
}
