//! Pages that were read, for keeping or for a short read.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use pagekeeper_cache::PageRef;

use crate::format::page::{HEADER_BYTES, PageKind};
use crate::version::WholePage;

/// A page of any kind that was found in a version, or in the cache as `C`.
pub(crate) struct FoundPage<C> {
    kind: PageKind,
    source: PageSource<C>,
}

enum PageSource<C> {
    /// In memory, since it is not applied yet.
    Version(WholePage),
    Cached(C),
}

impl<C: Deref<Target = [u8]>> FoundPage<C> {
    pub(crate) fn version(whole: WholePage) -> Self {
        Self { kind: whole.kind, source: PageSource::Version(whole) }
    }

    pub(crate) fn cached(kind: PageKind, page: C) -> Self {
        Self { kind, source: PageSource::Cached(page) }
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

    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes()[HEADER_BYTES..]
    }
}

/// The payload of a page as a transaction sees it. It can be kept for long, and sent to other
/// threads: later commits do not change it. While it exists, it keeps a page of memory in use.
#[derive(Clone)]
pub struct Page(Arc<FoundPage<PageRef>>);

impl Page {
    pub(crate) fn new(found: FoundPage<PageRef>) -> Self {
        Self(Arc::new(found))
    }
}

impl Deref for Page {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.payload()
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Page").field("len", &self.len()).finish_non_exhaustive()
    }
}
