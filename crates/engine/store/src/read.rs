//! Reading a snapshot.

use std::fmt;
use std::sync::Arc;

use crate::core::{Core, is_data};
use crate::format::page::PageKind;
use crate::handle::Handle;
use crate::page::{Page, SettledPage, ShortPage};
use crate::snapshots::Live;
use crate::{Error, PageNo, Seq};

/// A read transaction: all pages as one commit left them, however many commits come meanwhile.
///
/// Any number of them live beside one writer. What they need of pages that are overwritten stays in memory; where that gets
/// beyond its share of the budget the oldest of them is ended, and its reads fail with [`Error::SnapshotTooOld`].
///
/// ```
/// use pagekeeper_store::{Durability, Store};
/// # let temp = tempfile::tempdir_in(".")?;
/// # let dir = &temp.path().join("store");
/// let store = Store::options().open(dir)?;
/// let mut txn = store.begin()?;
/// let page = txn.allocate()?;
/// txn.commit(Durability::Sync)?;
///
/// let before = store.begin_read()?;
/// let mut txn = store.begin()?;
/// txn.page_mut(page)?[0] = 7;
/// txn.commit(Durability::Sync)?;
/// assert_eq!((before.read(page)?[0], store.begin_read()?.read(page)?[0]), (0, 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReadTxn<'a> {
    core: Handle<'a>,
    live: Arc<Live>,
}

impl<'a> ReadTxn<'a> {
    pub(crate) fn new(core: Handle<'a>) -> Self {
        let live = core.snapshots.begin();
        Self { core, live }
    }

    /// The payload of a page.
    ///
    /// Fails with [`Error::OutOfRange`], [`Error::NotAllocated`], [`Error::NeverWritten`]; with [`Error::Damaged`] where the disk
    /// does not have what was written.
    pub fn read(&self, page: PageNo) -> Result<Page, Error> {
        self.data(page, Core::page_of, Page::kind)
    }

    /// Gives `look` the payload of a page where it is, and returns what that returns. Nothing is allocated, and no memory is written to that other
    /// readers use, as [`read`](Self::read) does for a page that can be kept. While `look` runs the page can't be evicted, so it should not
    /// take long.
    ///
    /// ```
    /// use pagekeeper_store::{Durability, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// let store = Store::options().open(dir)?;
    /// let mut txn = store.begin()?;
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
        match self.read_settled(page) {
            Some(found) => Ok(look(&found)),
            None => self.read_short(page).map(|found| look(&found)),
        }
    }

    /// As [`read_short`](Self::read_short) by the shortest way, where that finds the page.
    #[inline]
    pub(crate) fn read_settled(&self, page: PageNo) -> Option<SettledPage<'_>> {
        if page < self.live.meta.pages { self.core.settled_page_of(&self.live, page) } else { None }
    }

    /// As [`read`](Self::read), for a short read.
    pub(crate) fn read_short(&self, page: PageNo) -> Result<ShortPage<'_>, Error> {
        self.data(page, Core::short_page_of, ShortPage::kind)
    }

    fn data<'s, T>(
        &'s self,
        page: PageNo,
        find: impl FnOnce(&'s Core, &'s Live, PageNo) -> Result<Option<T>, Error>,
        kind: impl FnOnce(&T) -> PageKind,
    ) -> Result<T, Error> {
        self.core.process.require()?;
        let pages = self.live.meta.pages;
        if page >= pages {
            return Err(Error::OutOfRange { page, pages });
        }
        match find(&self.core, &self.live, page)? {
            Some(found) if is_data(kind(&found)) => Ok(found),
            Some(_) => Err(Error::NotAllocated { page }),
            None => Err(Error::NeverWritten { page }),
        }
    }

    /// The root page, if one was set.
    pub fn root(&self) -> Option<PageNo> {
        self.live.meta.root
    }

    /// The user's metadata.
    pub fn metadata(&self) -> &[u8] {
        &self.live.meta.user
    }

    /// The commit that is seen.
    pub fn seq(&self) -> Seq {
        self.live.seq
    }

    /// How many pages there are, free ones among them: page numbers are below it.
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
