//! Checkpoints: where crash recovery of a database would start to read its log, by what the database itself keeps on disk.
//!
//! Pure functions over bytes that others wrote: bounded, and nothing panics. What is torn, rotten or of a format that is not known is
//! an error, never a guess: who can't know where recovery starts has to keep all of the log.

pub mod innodb;
pub mod postgresql;

/// Why a checkpoint is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// There are fewer bytes than the format has.
    #[error("it has {found} bytes where {needed} are needed")]
    TooShort {
        /// Bytes that there are.
        found: usize,
        /// Bytes that the format has.
        needed: usize,
    },
    /// It says that it has a format that is not known here.
    #[error("its format {format:#x} is not known")]
    UnknownFormat {
        /// The number of the format.
        format: u32,
    },
    /// The checksum is another: it was torn by a write at the same time, or is rotten.
    #[error("its checksum does not match")]
    Checksum,
    /// The checksum matches, and yet a figure can't be.
    #[error("its {what} can't be right")]
    Implausible {
        /// Which figure.
        what: &'static str,
    },
}

/// The bytes at a place; a module's own check of the length has made sure that they are there.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], CheckpointError> {
    let too_short = CheckpointError::TooShort { found: bytes.len(), needed: at.saturating_add(N) };
    let part = bytes.get(at..).and_then(|rest| rest.first_chunk::<N>());
    part.copied().ok_or(too_short)
}
