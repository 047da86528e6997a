//! What is found of one file.

use std::path::PathBuf;

use pagekeeper_kernel::Residency;

/// One file.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) path: PathBuf,
    pub(super) size: u64,
    /// `None` where the kernel does not show this user.
    pub(super) residency: Option<Residency>,
    /// Boxed, since most rows have none.
    pub(super) picture: Option<Box<Picture>>,
}

/// Which parts of a file are resident.
#[derive(Debug, Clone)]
pub(super) struct Picture {
    /// Bytes each cell stands for.
    pub(super) cell_bytes: u64,
    /// Share of each cell that is resident, 0 to [`FULL`].
    pub(super) cells: Vec<u8>,
}

impl Row {
    /// Resident bytes; 0 where that is unknown.
    pub(super) fn resident(&self) -> u64 {
        self.residency.map_or(0, |counts| counts.resident)
    }
}

/// A cell that is wholly resident.
pub(super) const FULL: u8 = 8;
