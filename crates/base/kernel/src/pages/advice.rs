//! `posix_fadvise(2)`: the six kinds of advice on byte ranges, with typed errors.
//!
//! The effects in the kernel (Linux 6.18, `mm/fadvise.c`):
//!
//! * `Normal`, `Random` and `Sequential` set the read-ahead of the whole *open file description*,
//!   whatever the range, and of no other one.
//! * `NoReuse` only keeps mapped accesses from activating pages.
//! * `WillNeed` starts reading at most about one read-ahead.
//! * `DontNeed` starts writeback of dirty pages without waiting, and drops only pages that are
//!   clean, unmapped and wholly inside the range. To drop pages reliably use [`crate::release()`].

use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use pagekeeper_text::escaped;
use rustix::io::Errno;

use crate::Error;

/// The expected use of a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Advice {
    /// No advice: the default read-ahead.
    Normal,
    /// Random access: read-ahead off.
    Random,
    /// Sequential access: read-ahead doubled.
    Sequential,
    /// Used once.
    NoReuse,
    /// Needed soon: start reading.
    WillNeed,
    /// Not needed soon: drop clean pages.
    DontNeed,
}

/// The reason why advice was rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdviceError {
    /// EBADF: the descriptor is not open for reading or writing (`O_PATH`).
    #[error("posix_fadvise {}: the descriptor can't take advice (EBADF)", escaped(path))]
    BadDescriptor {
        /// The file.
        path: PathBuf,
    },
    /// EINVAL: the advice or the range is unknown to the kernel.
    #[error("posix_fadvise {}: unknown advice or range (EINVAL)", escaped(path))]
    Invalid {
        /// The file.
        path: PathBuf,
    },
    /// ESPIPE: the descriptor is a pipe or FIFO.
    #[error("posix_fadvise {}: a pipe has no page cache (ESPIPE)", escaped(path))]
    Pipe {
        /// The file.
        path: PathBuf,
    },
    /// Any other error.
    #[error("posix_fadvise {}: {source}", escaped(path))]
    Other {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl From<AdviceError> for Error {
    fn from(error: AdviceError) -> Self {
        let (path, source) = match error {
            AdviceError::BadDescriptor { path } => (path, Errno::BADF.into()),
            AdviceError::Invalid { path } => (path, Errno::INVAL.into()),
            AdviceError::Pipe { path } => (path, Errno::SPIPE.into()),
            AdviceError::Other { path, source } => (path, source),
        };
        Self::Call { call: "posix_fadvise", path, source }
    }
}

/// Gives `advice` on a byte range; an end of `u64::MAX` means the end of the file (the system
/// call's length 0).
///
/// `path` is used in errors only.
///
/// ```
/// use pagekeeper_kernel::{Advice, advise};
/// let path = std::path::Path::new("/etc/passwd");
/// advise(std::fs::File::open(path)?, Advice::Sequential, 0..u64::MAX, path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn advise(file: impl AsFd, advice: Advice, range: Range<u64>, path: &Path) -> Result<(), AdviceError> {
    // Length 0 would mean "to the end of the file", the opposite of an empty range.
    let len = match range.end.saturating_sub(range.start) {
        0 => return Ok(()),
        _ if range.end == u64::MAX => None,
        len => std::num::NonZeroU64::new(len),
    };
    rustix::fs::fadvise(file, range.start, len, advice.into()).map_err(|errno| {
        let path = path.to_path_buf();
        match errno {
            Errno::BADF => AdviceError::BadDescriptor { path },
            Errno::INVAL => AdviceError::Invalid { path },
            Errno::SPIPE => AdviceError::Pipe { path },
            other => AdviceError::Other { path, source: other.into() },
        }
    })
}

impl From<Advice> for rustix::fs::Advice {
    fn from(advice: Advice) -> Self {
        match advice {
            Advice::Normal => Self::Normal,
            Advice::Random => Self::Random,
            Advice::Sequential => Self::Sequential,
            Advice::NoReuse => Self::NoReuse,
            Advice::WillNeed => Self::WillNeed,
            Advice::DontNeed => Self::DontNeed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{Mode, OFlags};

    const ALL_ADVICE: [Advice; 6] = [
        Advice::Normal,
        Advice::Random,
        Advice::Sequential,
        Advice::NoReuse,
        Advice::WillNeed,
        Advice::DontNeed,
    ];

    #[test]
    fn all_kinds_of_advice_are_accepted_on_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for advice in ALL_ADVICE {
            advise(&file, advice, 0..u64::MAX, file.path()).unwrap();
            advise(&file, advice, 4096..8192, file.path()).unwrap();
        }
    }

    #[test]
    fn a_pipe_is_an_error_of_its_own() {
        let (read, _write) = rustix::pipe::pipe().unwrap();
        for advice in ALL_ADVICE {
            let error = advise(&read, advice, 0..1, Path::new("pipe")).unwrap_err();
            assert!(matches!(error, AdviceError::Pipe { .. }), "{error}");
        }
    }

    #[test]
    fn a_path_descriptor_is_an_error_of_its_own() {
        let fd = rustix::fs::open("/etc/passwd", OFlags::PATH, Mode::empty()).unwrap();
        let error = advise(&fd, Advice::Normal, 0..1, Path::new("/etc/passwd")).unwrap_err();
        assert!(matches!(error, AdviceError::BadDescriptor { .. }), "{error}");
    }

    #[test]
    fn a_range_the_kernel_can_not_represent_is_invalid() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = advise(&file, Advice::Normal, 0..u64::MAX - 1, file.path()).unwrap_err();
        assert!(matches!(error, AdviceError::Invalid { .. }), "{error}");
    }

    #[test]
    fn an_empty_range_is_not_the_whole_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![1; 1 << 16]).unwrap();
        file.as_file().sync_all().unwrap();
        advise(&file, Advice::DontNeed, 4096..4096, file.path()).unwrap();
        let file = crate::InspectedFile::open(file.path(), crate::Links::Refuse).unwrap();
        assert_eq!(crate::residency(&file, 0..u64::MAX).unwrap().resident, 1 << 16);
    }
}
