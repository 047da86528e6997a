//! Numbers of commits.

use std::fmt;
use std::ops::{Add, Sub};

/// The number of a commit, from 1; 0 stands for the state before the first one. Later commits have
/// larger numbers.
///
/// ```
/// use pagekeeper_store::Seq;
/// let seq = Seq::new(7) + 2;
/// assert_eq!((seq.get(), seq - Seq::new(7), seq.to_string()), (9, 2, "9".to_owned()));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Seq(u64);

impl Seq {
    /// The state before the first commit.
    pub(crate) const NONE: Self = Self(0);
    /// Not before any commit: a page as of this one is the page now.
    pub(crate) const MAX: Self = Self(u64::MAX);

    /// Returns the commit with this number.
    #[inline]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Add<u64> for Seq {
    type Output = Self;

    /// Returns the commit this many commits later.
    #[inline]
    fn add(self, commits: u64) -> Self {
        Self(self.0 + commits)
    }
}

impl Sub for Seq {
    type Output = u64;

    /// Returns the number of commits after `earlier`, up to this one.
    #[inline]
    fn sub(self, earlier: Self) -> u64 {
        self.0 - earlier.0
    }
}
