//! Compares a file with its cached pages, for a change that only its inode shows
//! ([`crate::inode_change`]).

use std::ops::Range;

use pagekeeper_io::{AlignedBuf, FileStat, IoFile};

use crate::PageNo;
use crate::frames;
use crate::handle::FileHandle;
use crate::inode_change::links;
use crate::lookup::LookupAttempt;

/// Bytes that are read at once for the comparison.
const COMPARED_BYTES: u64 = 1 << 20;

impl FileHandle {
    /// Whether the content is that of the open, as far as the cache can know. Length and time of
    /// the last write are unchanged.
    pub(crate) fn is_content_unchanged(&self, io: &dyn IoFile, now: &FileStat) -> bool {
        if now.changed == self.stat.changed {
            return true;
        }
        let links = links(io);
        if let Some(known) = self.inode_change.is_known(now, links) {
            return known;
        }
        let is_same = self.has_file_cached_pages(io);
        self.inode_change.note(now, is_same);
        is_same
    }

    /// Whether the file still has the content of all its cached pages.
    fn has_file_cached_pages(&self, io: &dyn IoFile) -> bool {
        let pages_at_once = COMPARED_BYTES >> self.shared.settings.page_shift;
        let mut read = AlignedBuf::new(to_len(COMPARED_BYTES));
        for cached in self.page_table.readable() {
            let mut first = cached.start;
            while first < cached.end {
                let end = cached.end.min(first + pages_at_once);
                if !self.has_file_pages(io, first..end, &mut read) {
                    return false;
                }
                first = end;
            }
        }
        true
    }

    /// Like `has_file_cached_pages`, for a few pages. A page that is no longer in the cache counts
    /// as equal.
    fn has_file_pages(&self, io: &dyn IoFile, pages: Range<PageNo>, read: &mut [u8]) -> bool {
        let shift = self.shared.settings.page_shift;
        let bytes = to_len((pages.end - pages.start) << shift);
        let Ok(got) = io.read_at(pages.start.get() << shift, &mut read[..bytes]) else { return true };
        self.shared.device.add(got);
        let mut cached = vec![0; 1 << shift];
        for (page, in_file) in PageNo::each(pages).zip(read[..got].chunks(1 << shift)) {
            let Ok(page) = self.page_number(page) else { return true };
            let cached = &mut cached[..self.page_len(page)];
            if frames::copy(self, page, 0, cached, LookupAttempt::Again) && cached != in_file {
                return false;
            }
        }
        true
    }
}

/// Converts a length that is at most [`COMPARED_BYTES`].
fn to_len(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}
