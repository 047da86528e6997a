//! A file to warm, and what of it.

use std::ops::Range;
use std::path::PathBuf;

use pagekeeper_kernel::Inode;

use super::restore::Remembered;

/// Files up to this many bytes are read by one thread, beside others.
const SMALL: u64 = 16 << 20;

/// A file to warm.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) path: PathBuf,
    /// Estimate of the bytes to read.
    pub(super) bytes: u64,
    pub(super) wanted: Wanted,
}

/// The wanted part of it.
#[derive(Debug)]
pub(super) enum Wanted {
    /// A range of the same file that was listed.
    Range { range: Range<u64>, inode: Inode },
    /// The extents in a snapshot.
    Remembered(Remembered),
}

impl Item {
    pub(super) fn is_small(&self) -> bool {
        self.bytes <= SMALL
    }
}
