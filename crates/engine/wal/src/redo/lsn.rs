//! Log sequence numbers.
//!
//! The modules of the redo log compute with plain positions; each call of another crate gives and
//! gets an [`Lsn`].

use std::fmt;
use std::ops::{Add, Sub};

/// A log sequence number: a position in a [`RedoLog`](crate::RedoLog), in bytes since the log was
/// created. It only grows, while the ring wraps around.
///
/// ```
/// use pagekeeper_wal::Lsn;
/// let lsn = Lsn::new(4096) + 8;
/// assert_eq!((lsn.get(), lsn - Lsn::new(4000), lsn.to_string()), (4104, 104, "4104".to_owned()));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(u64);

impl Lsn {
    /// Returns the LSN of this position.
    pub const fn new(position: u64) -> Self {
        Self(position)
    }

    /// Returns the position in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the bytes from `earlier` on, or 0 if it is later.
    pub const fn saturating_sub(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Add<u64> for Lsn {
    type Output = Self;

    /// Returns the LSN this many bytes further on.
    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl Sub for Lsn {
    type Output = u64;

    /// Returns the bytes from `earlier` on.
    fn sub(self, earlier: Self) -> u64 {
        self.0 - earlier.0
    }
}

impl Sub<u64> for Lsn {
    type Output = Self;

    /// Returns the LSN this many bytes back.
    fn sub(self, bytes: u64) -> Self {
        Self(self.0 - bytes)
    }
}
