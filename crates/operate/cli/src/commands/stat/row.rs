//! The results for one file.

use std::path::PathBuf;

use pagekeeper_kernel::Residency;

/// One file.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// `None` if the kernel does not show it to this user.
    pub(super) residency: Option<Residency>,
    /// Boxed, since most rows have none.
    pub(super) picture: Option<Box<Picture>>,
}

/// The resident parts of a file.
#[derive(Debug, Clone)]
pub(super) struct Picture {
    /// Bytes of each cell.
    pub(super) cell_bytes: u64,
    /// Resident share of each cell, 0 to [`FULL`].
    pub(super) cells: Vec<u8>,
}

impl Row {
    /// Returns the resident bytes; 0 if unknown.
    pub(super) fn resident(&self) -> u64 {
        self.residency.map_or(0, |counts| counts.resident)
    }
}

/// Value of a cell that is entirely resident.
pub(super) const FULL: u8 = 8;
