//! Reading a snapshot.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use pagekeeper_cache::HeldPage;

use crate::core::Core;
use crate::format::page::{HEADER_BYTES, PageKind};
use crate::handle::StoreHandle;
use crate::page::{FoundPage, Page};
use crate::snapshots::LiveSnapshot;
use crate::{Error, PageNo, Seq};

/// A read transaction: all pages as of one commit, however many commits follow meanwhile.
///
/// Any number of them may exist beside one writer. The previous versions of overwritten pages that
/// they need stay in memory, and beyond their share of the budget on disk
/// ([`snapshot_bytes`](crate::StoreOptions::snapshot_bytes)). At that limit the oldest snapshot is
/// ended, and its reads fail with [`Error::SnapshotTooOld`].
///
/// ```
/// use pagekeeper_store::{Durability, Store};
/// # let temp = tempfile::tempdir_in(".")?;
/// # let dir = &temp.path().join("store");
/// let store = Store::options().open(dir)?;
/// let mut txn = store.begin_write()?;
/// let page = txn.allocate()?;
/// txn.commit(Durability::Sync)?;
///
/// let before = store.begin_read()?;
/// let mut txn = store.begin_write()?;
/// txn.page_mut(page)?[0] = 7;
/// txn.commit(Durability::Sync)?;
/// assert_eq!((before.read(page)?[0], store.begin_read()?.read(page)?[0]), (0, 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReadTxn<'a> {
    core: StoreHandle<'a>,
    live: Arc<LiveSnapshot>,
}

impl<'a> ReadTxn<'a> {
    pub(crate) fn new(core: StoreHandle<'a>) -> Self {
        let live = core.snapshots.begin();
        Self { core, live }
    }

    /// Returns the payload of a page.
    ///
    /// Fails with [`Error::OutOfRange`], [`Error::NotAllocated`] or [`Error::NeverWritten`], and
    /// with [`Error::Damaged`] if the disk does not have what was written.
    pub fn read(&self, page: PageNo) -> Result<Page, Error> {
        self.data(page, |core| core.page_of(&self.live, page)).map(Page::new)
    }

    /// Calls `look` with the payload of a page in place, and returns its result. Unlike
    /// [`read`](Self::read), whose page can be kept, it allocates nothing and writes no memory that
    /// other readers use. The page cannot be evicted while `look` runs, so `look` should be short.
    ///
    /// ```
    /// use pagekeeper_store::{Durability, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// let store = Store::options().open(dir)?;
    /// let mut txn = store.begin_write()?;
    /// let page = txn.allocate()?;
    /// txn.page_mut(page)?[0] = 7;
    /// txn.commit(Durability::Sync)?;
    /// assert_eq!(store.begin_read()?.read_with(page, |payload| payload[0])?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Fails as [`read`](Self::read) does.
    #[inline]
    pub fn read_with<T>(&self, page: PageNo, look: impl FnOnce(&[u8]) -> T) -> Result<T, Error> {
        if let Some(found) = self.settled(page) {
            return Ok(look(&found[HEADER_BYTES..]));
        }
        let found = self.data(page, |core| core.short_page_of(&self.live, page))?;
        Ok(look(found.payload()))
    }

    /// Tells the processor to fetch a page that will be read soon, if it is in the cache.
    #[doc(hidden)]
    #[inline]
    pub fn fetch_page(&self, page: PageNo) {
        self.core.cached.fetch_page(page);
    }

    /// Returns header and payload of the page by the fastest path; `None` if that does not find it.
    #[inline]
    fn settled(&self, page: PageNo) -> Option<HeldPage<'_>> {
        if page.get() < self.live.meta.pages { self.core.settled_page_of(&self.live, page) } else { None }
    }

    fn data<'s, C: Deref<Target = [u8]>>(
        &'s self,
        page: PageNo,
        find: impl FnOnce(&'s Core) -> Result<Option<FoundPage<C>>, Error>,
    ) -> Result<FoundPage<C>, Error> {
        self.core.process.require()?;
        let pages = self.live.meta.pages;
        if page.get() >= pages {
            return Err(Error::OutOfRange { page, pages });
        }
        match find(&self.core)? {
            Some(found) if found.kind() == PageKind::Data => Ok(found),
            Some(_) => Err(Error::NotAllocated { page }),
            None => Err(Error::NeverWritten { page }),
        }
    }

    /// Returns the root page, if one was set.
    pub fn root(&self) -> Option<PageNo> {
        self.live.meta.root
    }

    /// Returns the user's metadata.
    pub fn metadata(&self) -> &[u8] {
        &self.live.meta.user
    }

    /// Returns the commit that the snapshot is of.
    pub fn seq(&self) -> Seq {
        self.live.seq
    }

    /// Returns the number of pages, including free ones. Page numbers are below it.
    pub fn pages(&self) -> u64 {
        self.live.meta.pages
    }
}

impl Drop for ReadTxn<'_> {
    fn drop(&mut self) {
        if !self.core.process.is_current() {
            return;
        }
        self.core.snapshots.end(&self.live);
    }
}

impl fmt::Debug for ReadTxn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadTxn").field("seq", &self.live.seq).finish_non_exhaustive()
    }
}
