//! Errors of the cache. An error is `Clone`, so that one failed load can be reported to all callers
//! that waited for it.

use pagekeeper_text::escaped;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::PageNo;

/// A failure to open or to read a file.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// let cache = pagekeeper_cache::PageCache::options().memory(16 << 20).build()?;
/// let error = cache.open(dir.path()).unwrap_err();
/// assert!(error.to_string().ends_with("a directory, not a regular file"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file can't be opened, or the device failed. The message names the call, the path and the
    /// system's error.
    #[error(transparent)]
    Io(#[from] pagekeeper_io::Error),
    /// The file was closed by [`close`](crate::CachedFile::close).
    #[error("{}: closed", escaped(path))]
    Closed {
        /// The file.
        path: PathBuf,
    },
    /// The file is shorter now than it was at the open.
    #[error(
        "{}: cut to {now} bytes since it was opened with {opened}, found by a read of bytes {}..{}: open it again",
        escaped(path), range.start, range.end
    )]
    Cut {
        /// The file.
        path: PathBuf,
        /// Its length at the open, in bytes.
        opened: u64,
        /// Its length now, in bytes.
        now: u64,
        /// The range that was to be read.
        range: Range<u64>,
    },
    /// The file is longer now than it was at the open, and bytes past the old end were requested.
    #[error("{}: grew to {now} bytes since it was opened with {opened}: open it again", escaped(path))]
    Grew {
        /// The file.
        path: PathBuf,
        /// Its length at the open, in bytes.
        opened: u64,
        /// Its length now, in bytes.
        now: u64,
    },
    /// The file was written to since the open: a page that is loaded now may not match those that
    /// were loaded before.
    #[error("{}: written to since it was opened: open it again", escaped(path))]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The path names another file than the one that was opened, and whose descriptor had made
    /// room for others ([`max_open_files`](crate::CacheOptions::max_open_files)).
    #[error("{}: replaced since it was opened: open it again", escaped(path))]
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// The page's content was rejected by the verifier; it is not cached.
    #[error("page {page} of {}: {reason}", escaped(path))]
    Rejected {
        /// The file.
        path: PathBuf,
        /// The page's number.
        page: PageNo,
        /// The verifier's reason.
        reason: Arc<str>,
    },
    /// A verifier asked for a page of its file that is being loaded, such as the one that it is to
    /// verify, or for an absent page by a future: it could wait for itself.
    #[error("page {page} of {}: a verifier asked for it, and would wait for itself", escaped(path))]
    WithinVerifier {
        /// The file.
        path: PathBuf,
        /// The page's number.
        page: PageNo,
    },
    /// The page is not in the file.
    #[error("{}: no page {page}: it has {pages}", escaped(path))]
    NoSuchPage {
        /// The file.
        path: PathBuf,
        /// The requested page.
        page: PageNo,
        /// The number of the file's pages.
        pages: u64,
    },
    /// The page of an owned file lies past the file's end, wholly or in part.
    #[error("{}: ends before the end of page {page}", escaped(path))]
    PastEnd {
        /// The file.
        path: PathBuf,
        /// The page's number.
        page: PageNo,
    },
    /// The file has more pages than a table can number: 2^32 - 1.
    #[error(
        "{}: {bytes} bytes are too many for pages of {page_size}: choose a larger page size",
        escaped(path)
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// Bytes of a page.
        page_size: usize,
    },
    /// The kernel gave no memory for the file's table.
    #[error("{}: no memory for its table: {}", escaped(path), std::io::Error::from_raw_os_error(*errno))]
    NoMemory {
        /// The file.
        path: PathBuf,
        /// The system's error number.
        errno: i32,
    },
    /// The thread that loaded the page panicked, in a verifier or a back-end.
    #[error("page {page} of {}: the thread that loaded it panicked", escaped(path))]
    LoaderPanicked {
        /// The file.
        path: PathBuf,
        /// The page's number.
        page: PageNo,
    },
}

impl Error {
    /// Returns the same error for a read of this range.
    pub(crate) fn of_range(mut self, read: &Range<u64>) -> Self {
        if let Self::Cut { range, .. } = &mut self {
            range.clone_from(read);
        }
        self
    }

    /// Returns the path of the file that the error is about, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io(error) => error.path(),
            Self::Closed { path }
            | Self::Cut { path, .. }
            | Self::Grew { path, .. }
            | Self::Changed { path }
            | Self::Replaced { path }
            | Self::Rejected { path, .. }
            | Self::WithinVerifier { path, .. }
            | Self::NoSuchPage { path, .. }
            | Self::PastEnd { path, .. }
            | Self::TooLarge { path, .. }
            | Self::NoMemory { path, .. }
            | Self::LoaderPanicked { path, .. } => Some(path),
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind;
        match error {
            Error::Io(error) => error.into(),
            Error::Cut { .. } | Error::PastEnd { .. } => Self::new(ErrorKind::UnexpectedEof, error),
            Error::Rejected { .. } => Self::new(ErrorKind::InvalidData, error),
            Error::NoSuchPage { .. } | Error::TooLarge { .. } => Self::new(ErrorKind::InvalidInput, error),
            Error::NoMemory { .. } => Self::new(ErrorKind::OutOfMemory, error),
            Error::Closed { .. }
            | Error::Grew { .. }
            | Error::Changed { .. }
            | Error::Replaced { .. }
            | Error::WithinVerifier { .. }
            | Error::LoaderPanicked { .. } => Self::other(error),
        }
    }
}

/// A setting of a cache that is impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The page size is not a power of two from 4 KiB to 64 KiB.
    #[error("a page of {given} bytes: give a power of two from 4096 to 65536")]
    PageSize {
        /// The requested page size, in bytes.
        given: usize,
    },
    /// Less memory than a cache can work with.
    #[error("{given} bytes of memory are too few for pages of {page_size}: give {least} or more")]
    TooLittleMemory {
        /// Bytes given.
        given: u64,
        /// Bytes of a page.
        page_size: usize,
        /// The least for this page size, in bytes.
        least: u64,
    },
    /// More pages than the entries of a table can number: 2^28.
    #[error("{given} bytes of memory are too many for pages of {page_size}: choose a larger page size")]
    TooMuchMemory {
        /// Bytes given.
        given: u64,
        /// Bytes of a page.
        page_size: usize,
    },
    /// More memory than the cache was built with was requested while it is in use.
    #[error("{given} bytes of memory: this cache was built with {built}, and can't have more")]
    BeyondBuilt {
        /// Bytes given.
        given: u64,
        /// The budget that it was built with, in bytes.
        built: u64,
    },
    /// The kernel gave no memory.
    #[error("no memory for the frames: {}", std::io::Error::from_raw_os_error(*errno))]
    NoMemory {
        /// The system's error number.
        errno: i32,
    },
    /// Too few huge pages are set aside.
    #[error(
        "{needed} huge pages of 2 MiB are not available ({}): set vm.nr_hugepages to {needed} or \
             more, or use transparent ones",
        std::io::Error::from_raw_os_error(*errno)
    )]
    NoHugePages {
        /// The number of huge pages that the memory takes.
        needed: u64,
        /// The system's error number.
        errno: i32,
    },
    /// The requested back-end is unavailable on this machine.
    #[error("{0}")]
    Backend(pagekeeper_io::Error),
}
