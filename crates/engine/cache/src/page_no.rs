//! Page numbers.
//!
//! The modules of the cache compute with the indexes of page tables, which are `u32`; each call of
//! another crate gives and gets a [`PageNo`].

use std::fmt;
use std::ops::{Add, Range, Sub};

/// The number of a page in its file, from 0: page `n` begins at byte `n` × page size.
///
/// ```
/// use pagekeeper_cache::PageNo;
/// let page = PageNo::new(7) + 2;
/// assert_eq!((page.get(), page - PageNo::new(7), page.to_string()), (9, 2, "9".to_owned()));
/// assert!(PageNo::each(PageNo::new(8)..PageNo::new(10)).eq([PageNo::new(8), page]));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct PageNo(u64);

impl PageNo {
    /// Returns the page with this number.
    #[inline]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the offset in bytes of the page, in a file whose pages have `page_size` bytes.
    #[inline]
    pub const fn offset(self, page_size: u64) -> u64 {
        self.0 * page_size
    }

    /// Returns this page and all behind it, in order.
    #[inline]
    pub fn onward(self) -> impl Iterator<Item = Self> {
        (self.0..).map(Self)
    }

    /// Returns the pages of a range, in order.
    #[inline]
    pub fn each(pages: Range<Self>) -> impl DoubleEndedIterator<Item = Self> + Clone {
        (pages.start.0..pages.end.0).map(Self)
    }
}

impl fmt::Display for PageNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u32> for PageNo {
    #[inline]
    fn from(number: u32) -> Self {
        Self(number.into())
    }
}

impl Add<u64> for PageNo {
    type Output = Self;

    /// Returns the page this many pages further on.
    #[inline]
    fn add(self, pages: u64) -> Self {
        Self(self.0 + pages)
    }
}

impl Sub for PageNo {
    type Output = u64;

    /// Returns the pages from `earlier` on.
    #[inline]
    fn sub(self, earlier: Self) -> u64 {
        self.0 - earlier.0
    }
}
