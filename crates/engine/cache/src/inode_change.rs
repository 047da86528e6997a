//! Handles a time of change (ctime) that moved while the length and the time of the last write
//! stayed as they were.
//!
//! A link, a rename, chmod(2) and the like have this effect and leave the content as it was. So
//! does a write whose time is set back, as by `rsync --inplace --times`. No system call tells them
//! apart: statx(2) gives its change counter (`STATX_CHANGE_COOKIE`) to no program (Linux 6.18), and
//! that counter also counts changes of the inode. Therefore:
//!
//! - A changed number of links accounts for the change: engines link and remove whole sets of files
//!   for each checkpoint.
//! - Otherwise the pages that the cache has are compared with the file ([`crate::content_check`]).
//!   If one differs, the file was written to.
//!
//! Invariants: a file that was found written to stays so for as long as it is open. No lock is held
//! over I/O, so several loads may compare at the same time. Nothing fails: pages that can't be read
//! again are not compared.

use std::sync::Mutex;

use pagekeeper_io::{FileStat, IoFile};
use pagekeeper_kernel::mutex::lock;
use rustix::fs::{AtFlags, StatxFlags};

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

    /// Returns whether the content is unchanged. `None` if only reading the file can tell.
    pub(crate) fn is_known(&self, now: &FileStat, links: Option<u32>) -> Option<bool> {
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

    /// Records the outcome of a comparison of the cached pages with the file.
    pub(crate) fn note(&self, now: &FileStat, is_same: bool) {
        let mut known = lock(&self.0);
        known.changed = now.changed;
        known.is_rewritten |= !is_same;
    }
}

/// Returns the number of links; `None` on a simulated disk.
pub(crate) fn links(io: &dyn IoFile) -> Option<u32> {
    let stat = rustix::fs::statx(io.fd()?, "", AtFlags::EMPTY_PATH, StatxFlags::NLINK);
    Some(stat.ok()?.stx_nlink)
}
