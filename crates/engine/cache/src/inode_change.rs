//! Handles a time of change (ctime) that moved while the length and the time of the last write stayed as they
//! were.
//!
//! A link, a rename, chmod(2) and the like have this effect and leave the content as it was. So does a write
//! whose time is set back, as by `rsync --inplace --times`. No system call tells them apart: statx(2) gives its
//! change counter (`STATX_CHANGE_COOKIE`) to no program (Linux 6.18), and that counter also counts changes of
//! the inode. Therefore:
//!
//! - A changed number of links accounts for the change: engines link and remove whole sets of files for each
//!   checkpoint.
//! - Otherwise the pages that the cache has are compared with the file. If one differs, the file was written to.
//!
//! Invariants: a file that was found written to stays so for as long as it is open. No lock is held over I/O,
//! so several loads may compare at the same time. Nothing fails: pages that can't be read again are not
//! compared.

use std::ops::Range;
use std::sync::Mutex;

use pagekeeper_io::{AlignedBuf, FileStat, IoFile};
use pagekeeper_kernel::mutex::lock;
use rustix::fs::{AtFlags, StatxFlags};

use crate::frames;
use crate::handle::Handle;
use crate::lookup::Attempt;

/// Bytes that are read at once for the comparison.
const COMPARED_BYTES: u64 = 1 << 20;

/// The state of the inode at the last change that left the content as it was.
#[derive(Debug)]
struct KnownInode {
    changed: (i64, u32),
    links: Option<u32>,
    is_rewritten: bool,
}

/// The known changes of a file's inode.
#[derive(Debug)]
pub(crate) struct InodeChange(Mutex<KnownInode>);

impl InodeChange {
    /// Records the file's state at the open.
    pub(crate) fn new(io: &dyn IoFile, stat: &FileStat) -> Self {
        Self(Mutex::new(KnownInode { changed: stat.changed, links: links(io), is_rewritten: false }))
    }

    /// Whether the content is unchanged, if that is known without reading the file.
    fn is_known(&self, now: &FileStat, links: Option<u32>) -> Option<bool> {
        let mut known = lock(&self.0);
        if known.is_rewritten || known.changed == now.changed {
            return Some(!known.is_rewritten);
        }
        if known.links == links {
            return None;
        }
        (known.changed, known.links) = (now.changed, links);
        Some(true)
    }

    fn note(&self, now: &FileStat, is_same: bool) {
        let mut known = lock(&self.0);
        known.changed = now.changed;
        known.is_rewritten |= !is_same;
    }
}

/// Returns the number of links; `None` on a simulated disk.
fn links(io: &dyn IoFile) -> Option<u32> {
    let stat = rustix::fs::statx(io.fd()?, "", AtFlags::EMPTY_PATH, StatxFlags::NLINK);
    Some(stat.ok()?.stx_nlink)
}

impl Handle {
    /// Whether the content is that of the open, as far as the cache can know. Length and time of the last write
    /// are unchanged.
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

    /// Like `has_file_cached_pages`, for a few pages. A page that is no longer in the cache counts as equal.
    fn has_file_pages(&self, io: &dyn IoFile, pages: Range<u64>, read: &mut [u8]) -> bool {
        let shift = self.shared.settings.page_shift;
        let bytes = to_len((pages.end - pages.start) << shift);
        let Ok(got) = io.read_at(pages.start << shift, &mut read[..bytes]) else { return true };
        self.shared.device.add(got);
        let mut cached = vec![0; 1 << shift];
        for (page, in_file) in pages.zip(read[..got].chunks(1 << shift)) {
            let Ok(page) = self.page_number(page) else { return true };
            let cached = &mut cached[..self.page_len(page)];
            if frames::copy(self, page, 0, cached, Attempt::Again) && cached != in_file {
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
