//! Errors of a snapshot as a whole. A part that can't be seen is not an error but a
//! [`VisibilityGap`](crate::VisibilityGap).

use std::path::PathBuf;

use pagekeeper_text::escaped;

/// The reason why a snapshot failed.
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
        /// The system's error.
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
