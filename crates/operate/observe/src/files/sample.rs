//! A sample of one file: its size and residency, or the reason why these are incomplete.

use pagekeeper_kernel::{
    Error, FileSystem, Inode, InspectedFile, Residency, ResidencySource, residency, stat_of_name,
};
use rustix::fs::FileType;

use crate::visibility::{GapKind, reason};

/// Size and residency of a file.
#[derive(Debug, Clone)]
pub(crate) struct FileSample {
    /// The inode in stat(2).
    pub(crate) inode: Inode,
    pub(crate) size: u64,
    pub(crate) residency: Option<Residency>,
}

/// The reason why a sample is incomplete.
#[derive(Debug, Clone)]
pub(crate) struct GapReason {
    pub(crate) kind: GapKind,
    pub(crate) why: String,
}

impl GapReason {
    /// Returns the reason for a failed call.
    pub(crate) fn of(kind: GapKind, error: &Error) -> Self {
        Self { kind: if error.is_denied() { kind } else { GapKind::Other }, why: reason(error) }
    }
}

impl FileSample {
    /// Samples an open file.
    pub(crate) fn of(file: &InspectedFile) -> (Self, Option<GapReason>) {
        let (residency, gap) = match residency(file, 0..u64::MAX) {
            Ok(counts) if counts.source == ResidencySource::Mincore && file.size() > 0 => {
                let (kind, why) = if file.file_system().is_ok_and(|found| found == FileSystem::Overlay) {
                    (GapKind::Overlay, "on overlayfs pages belong to a file of the layer below")
                } else {
                    (GapKind::NoCachestat, "this kernel or a sandbox has no cachestat(2)")
                };
                (Some(counts), Some(GapReason { kind, why: why.to_owned() }))
            }
            Ok(counts) => (Some(counts), None),
            Err(error) => (None, Some(GapReason::of(GapKind::Residency, &error))),
        };
        (Self { inode: file.inode(), size: file.size(), residency }, gap)
    }

    /// Returns the figures of stat(2) for a file that may not be opened; `None` if it is not a
    /// regular file, or for another failure.
    pub(crate) fn without_opening(error: &Error) -> Option<Self> {
        if !error.is_denied() {
            return None;
        }
        let stat = stat_of_name(error.path()).ok()?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        is_file.then_some(Self { inode: Inode::of(&stat), size, residency: None })
    }

    /// Returns whether it has pages that are dirty or under writeback.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.residency.is_some_and(|residency| residency.unwritten() > 0)
    }
}
