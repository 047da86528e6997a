//! Why a snapshot failed as a whole. Parts that can't be seen are no error, but a [`VisibilityGap`](crate::VisibilityGap).

use std::path::PathBuf;

use pagekeeper_kernel::text::escaped;

/// Why a snapshot failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserveError {
    /// A process that was named does not exist.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Its number.
        pid: u32,
    },
    /// A directory that was named can't be read.
    #[error("{}: {source}", escaped(path))]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The options have no profile at all.
    #[error("no profile of a database is known")]
    NoProfile,
    /// `/proc` or `/sys` can't be read.
    #[error(transparent)]
    Kernel(#[from] pagekeeper_kernel::Error),
    /// Tracing failed: a file that was to be traced can't be opened, or its buffers can't be read.
    #[error(transparent)]
    Trace(#[from] pagekeeper_trace::TraceError),
}
