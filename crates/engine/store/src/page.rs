//! A page that was read: to be kept, or for a moment.

use std::fmt;
use std::ops::Deref;

use pagekeeper_cache::{HeldPage, PageGuard, PageRef};

use crate::format::page::{HEADER, PageKind};
use crate::version::Whole;

/// The payload of a page as a transaction sees it. It can be kept for long, and sent to other threads: it stays as it is whatever
/// is committed. While it lives, it keeps a page of memory in use.
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

    /// Header and payload.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.source {
            PageSource::Version(whole) => whole.bytes(),
            PageSource::Cached(page) => page,
        }
    }
}

/// The payload of a page for a short read by the thread that asked for it: nothing is allocated for it, and other readers' memory is not
/// written to.
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

/// As [`ShortPage`], of the data file's page alone, found by the shortest way.
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
