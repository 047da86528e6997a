//! What a look sees of one file, and why not more.

use std::os::unix::fs::MetadataExt;

use pagekeeper_kernel::{Error, FileSystem, Inode, InspectedFile, Residency, Source, residency};

use crate::limits::{Kind, reason};

/// What was seen of a file.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// As stat(2) shows it.
    pub(crate) inode: Inode,
    pub(crate) size: u64,
    pub(crate) residency: Option<Residency>,
}

/// Why not all of it was seen.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    pub(crate) kind: Kind,
    pub(crate) why: String,
}

impl Trouble {
    /// That of a failure.
    pub(crate) fn of(kind: Kind, error: &Error) -> Self {
        Self { kind: if error.is_denied() { kind } else { Kind::Other }, why: reason(error) }
    }
}

impl Seen {
    /// Looks at an open file.
    pub(crate) fn of(file: &InspectedFile) -> (Self, Option<Trouble>) {
        let (residency, trouble) = match residency(file, 0..u64::MAX) {
            Ok(counts) if counts.source == Source::Mincore && file.size() > 0 => {
                let (kind, why) = if file.file_system().is_ok_and(|found| found == FileSystem::Overlay) {
                    (Kind::Overlay, "on overlayfs pages belong to a file of the layer below")
                } else {
                    (Kind::NoCachestat, "this kernel or a sandbox has no cachestat(2)")
                };
                (Some(counts), Some(Trouble { kind, why: why.to_owned() }))
            }
            Ok(counts) => (Some(counts), None),
            Err(error) => (None, Some(Trouble::of(Kind::Residency, &error))),
        };
        (Self { inode: file.inode(), size: file.size(), residency }, trouble)
    }

    /// What can be seen of a file that may not be opened; `None` if it is no file, or another failure.
    pub(crate) fn without_opening(error: &Error) -> Option<Self> {
        if !error.is_denied() {
            return None;
        }
        let meta = std::fs::symlink_metadata(error.path()).ok().filter(std::fs::Metadata::is_file)?;
        Some(Self { inode: Inode { dev: meta.dev(), ino: meta.ino() }, size: meta.len(), residency: None })
    }

    /// Whether anything of it was still to be written.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.residency.is_some_and(|residency| residency.unwritten() > 0)
    }
}
