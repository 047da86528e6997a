//! Checkpoints: the position from which crash recovery of a database would read its log, from the
//! database's own files.
//!
//! Foreign bytes are read up to a bound, and nothing panics. Torn or corrupt data and unknown
//! formats are errors, never guesses. A caller that can't know where recovery starts must keep the
//! whole log.

pub mod innodb;
pub mod postgresql;

use std::os::unix::fs::FileExt;

use pagekeeper_kernel::InspectedFile;

/// The reason for which a checkpoint is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// There are fewer bytes than the format needs.
    #[error("it has {found} bytes where {needed} are needed")]
    TooShort {
        /// Bytes present.
        found: usize,
        /// Bytes that the format needs.
        needed: usize,
    },
    /// The format is unknown here.
    #[error("its format {format:#x} is not known")]
    UnknownFormat {
        /// The format's number.
        format: u32,
    },
    /// The checksum differs: a concurrent write tore the data, or it is corrupt.
    #[error("its checksum does not match")]
    Checksum,
    /// The checksum matches, but a value is impossible.
    #[error("its {what} can't be right")]
    Implausible {
        /// The name of the value.
        what: &'static str,
    },
}

/// Returns the bytes at an offset. Callers have checked the length, so they are there.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], CheckpointError> {
    let too_short = CheckpointError::TooShort { found: bytes.len(), needed: at.saturating_add(N) };
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk::<N>());
    part.copied().ok_or(too_short)
}

/// Reads at most the start of a file into `bytes`. Returns how many bytes there are.
pub(crate) fn read_header(file: &InspectedFile, bytes: &mut [u8]) -> Result<usize, String> {
    // Turns off read-ahead for this descriptor alone. If that is refused, a few more pages are
    // read.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
    let mut len = 0;
    while len < bytes.len() {
        match file.file().read_at(&mut bytes[len..], len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("it can't be read: {error}")),
        }
    }
    Ok(len)
}
