//! Pages that were read, for keeping or for a short read.

use std::fmt;
use std::ops::Deref;

use pagekeeper_cache::{HeldPage, PageGuard, PageRef};

use crate::format::page::{HEADER, PageKind};
use crate::version::Whole;

/// The payload of a page as a transaction sees it. It can be kept for long, and sent to other threads: later commits do
/// not change it. While it exists, it keeps a page of memory in use.
#[derive(Clone)]
pub struct Page {
    kind: PageKind,
    source: PageSource,
}

#[derive(Clone)]
enum PageSource {
    /// In memory, since it is not applied yet.
    Version(Whole),
    /// In the cache.
    Cached(std::sync::Arc<PageRef>),
}

impl Page {
    pub(crate) fn version(whole: Whole) -> Self {
        Self { kind: whole.kind, source: PageSource::Version(whole) }
    }

    pub(crate) fn cached(kind: PageKind, page: PageRef) -> Self {
        Self { kind, source: PageSource::Cached(page.into()) }
    }

    pub(crate) fn kind(&self) -> PageKind {
        self.kind
    }

    /// Returns header and payload.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.source {
            PageSource::Version(whole) => whole.bytes(),
            PageSource::Cached(page) => page,
        }
    }
}

/// The payload of a page for a short read by the calling thread. Nothing is allocated for it, and memory that other
/// readers use is not written.
pub struct ShortPage<'a> {
    kind: PageKind,
    source: ShortSource<'a>,
}

enum ShortSource<'a> {
    Version(Whole),
    Cached(PageGuard<'a>),
}

impl<'a> ShortPage<'a> {
    pub(crate) fn version(whole: Whole) -> Self {
        Self { kind: whole.kind, source: ShortSource::Version(whole) }
    }

    pub(crate) fn cached(kind: PageKind, page: PageGuard<'a>) -> Self {
        Self { kind, source: ShortSource::Cached(page) }
    }

    pub(crate) fn kind(&self) -> PageKind {
        self.kind
    }
}

/// Like [`ShortPage`], but only of a page in the data file, found by the fastest path.
pub struct SettledPage<'a>(HeldPage<'a>);

impl<'a> SettledPage<'a> {
    #[inline]
    pub(crate) fn new(page: HeldPage<'a>) -> Self {
        Self(page)
    }
}

impl Deref for SettledPage<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0[HEADER..]
    }
}

impl Deref for ShortPage<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.source {
            ShortSource::Version(whole) => whole.payload(),
            ShortSource::Cached(page) => &page[HEADER..],
        }
    }
}

impl Deref for Page {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes()[HEADER..]
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("kind", &self.kind).field("len", &self.len()).finish_non_exhaustive()
    }
}
