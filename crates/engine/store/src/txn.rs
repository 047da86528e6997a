//! Writing: the changes of a transaction before its commit.
//!
//! Invariants: nothing that a transaction does is visible, or on disk, before its commit, except
//! that the data file may have grown. The free list is a stack of trunk pages, each with the
//! numbers of free pages; a page is in it at most once.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use pagekeeper_kernel::mutex::lock;

use crate::buffers::PageBuf;
use crate::core::Core;
use crate::data::MAX_PAGES;
use crate::format::page::{HEADER_BYTES, PageKind};
use crate::format::superblock::{MAX_USER_BYTES, StoreMeta};
use crate::format::trunk;
use crate::handle::{StoreHandle, WriterGuard};
use crate::page::{FoundPage, Page};
use crate::version::WholePage;
use crate::writer::BeginWrite;
use crate::{Error, PageNo, Seq};

/// The new state of a page in a transaction. Headers are made at the commit.
#[derive(Debug)]
pub(crate) enum PageEdit {
    /// It has this content.
    Page {
        kind: PageKind,
        bytes: PageBuf,
        /// Whether some of the content is unchanged, so that a diff may be shorter.
        in_part: bool,
    },
    /// It is free.
    Free,
}

/// The measured changes of a transaction.
#[derive(Debug, Default)]
pub(crate) struct MeasuredChanges {
    /// Bytes of each page's change in the entry.
    pub(crate) sizes: BTreeMap<PageNo, usize>,
    /// Pages that may have changed since they were measured.
    pub(crate) due: BTreeSet<PageNo>,
    /// Bytes that all of them took in the journal when they were measured last.
    pub(crate) bytes: u64,
}

/// A write transaction: only one exists at a time. Dropping it discards all its changes. A change
/// fails with [`Error::TransactionTooLarge`] once those before it no longer fit into the journal:
/// then drop it. It may be sent to another thread; begin it by
/// [`Store::begin_write_owned`](crate::Store::begin_write_owned) if this thread then begins the
/// next one.
///
/// ```
/// use pagekeeper_store::{Durability, Store};
/// # let temp = tempfile::tempdir_in(".")?;
/// # let dir = &temp.path().join("store");
/// let store = Store::options().open(dir)?;
/// let mut txn = store.begin_write()?;
/// let (left, right) = (txn.allocate()?, txn.allocate()?);
/// txn.page_mut(left)?[..5].copy_from_slice(b"hello");
/// txn.write(right, &vec![7; store.payload_size()])?;
/// txn.set_root(Some(left));
/// txn.commit(Durability::Sync)?; // both pages and the root, or nothing
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct WriteTxn<'a> {
    pub(crate) core: StoreHandle<'a>,
    pub(crate) room: RunRoom<'a>,
    pub(crate) writer: WriterGuard<'a>,
    /// The meta before the transaction.
    pub(crate) base: Arc<StoreMeta>,
    pub(crate) meta: StoreMeta,
    pub(crate) changed: BTreeMap<PageNo, PageEdit>,
    /// Set once the changes might not fit into the journal.
    pub(crate) measured: Option<Box<MeasuredChanges>>,
}

/// The data file's room for uncommitted runs. Unless it is kept, dropping it gives the room back,
/// under the writer's lock.
pub(crate) struct RunRoom<'a> {
    core: StoreHandle<'a>,
    /// Bytes of the file before the first run.
    pub(crate) before: Option<u64>,
}

impl RunRoom<'_> {
    /// Keeps the room: a commit may use it from now on.
    pub(crate) fn keep(&mut self) {
        self.before = None;
    }
}

impl Drop for RunRoom<'_> {
    fn drop(&mut self) {
        // In a forked child, the file belongs to the parent.
        if let Some(bytes) = self.before.filter(|_| self.core.process.is_current()) {
            self.core.data.shrink(bytes);
        }
    }
}

impl<'a> WriteTxn<'a> {
    pub(crate) fn new(core: StoreHandle<'a>, begin: BeginWrite) -> Result<Self, Error> {
        core.process.require()?;
        core.check_writable()?;
        core.wait_for_room(0, begin)?;
        let writer = WriterGuard::lock(core.clone(), begin)?;
        core.check()?;
        let base = Arc::clone(&lock(&core.tail).meta);
        let meta = (*base).clone();
        let room = RunRoom { core: core.clone(), before: None };
        Ok(Self { core, room, writer, base, meta, changed: BTreeMap::new(), measured: None })
    }

    /// Allocates a page, and returns its number. The page reads as zeros.
    pub fn allocate(&mut self) -> Result<PageNo, Error> {
        self.core.process.require()?;
        self.check_size()?;
        let page = if let Some(head) = self.meta.free_head {
            self.take_free(head)?
        } else {
            self.grow(self.meta.pages + 1, false)?;
            self.meta.pages += 1;
            PageNo::new(self.meta.pages - 1)
        };
        let bytes = self.core.buffers.zeroed();
        self.touch(page);
        self.changed.insert(page, PageEdit::Page { kind: PageKind::Data, bytes, in_part: false });
        Ok(page)
    }

    /// Allocates consecutive pages behind all others, and returns the first. A page of the run
    /// cannot be read before it was written as a whole, and takes no space in the journal or on the
    /// device until then. Dropping the transaction gives the run back. If the device is full when
    /// pages are written, the store cannot apply those commits until there is space again.
    pub fn allocate_run(&mut self, pages: u64) -> Result<PageNo, Error> {
        self.core.process.require()?;
        let first = self.meta.pages;
        let Some(end) = first.checked_add(pages).filter(|end| *end <= MAX_PAGES) else {
            return Err(Error::Setting {
                what: "a run of pages",
                given: pages,
                wanted: "give fewer: a store has at most 2^32 - 2",
            });
        };
        self.room.before.get_or_insert(self.core.data.bytes());
        self.grow(end, true)?;
        self.meta.pages = end;
        Ok(PageNo::new(first))
    }

    /// Makes room in the data file. After a failed sync of the file, nothing that was written to it
    /// can be trusted.
    pub(crate) fn grow(&self, pages: u64, sparse: bool) -> Result<(), Error> {
        if pages > MAX_PAGES {
            let wanted = "a store has at most 2^32 - 2";
            return Err(Error::Setting { what: "a number of pages", given: pages, wanted });
        }
        if pages > self.core.cached.max_pages() {
            let wanted =
                "there is no address space for more: raise its limit (ulimit -v), and open the store again";
            return Err(Error::Setting { what: "a number of pages", given: pages, wanted });
        }
        // Remains of a compaction are not pages of a run.
        let new = PageNo::new(self.meta.pages)..PageNo::new(pages);
        self.core.clear_behind(self.base.pages, new)?;
        let grown = self.core.data.grow(pages, sparse);
        let is_passing =
            |error: &Error| error.is_no_space() && !injected!(self.core.config.options, RefusedRoomPoisons);
        grown.map_err(|error| if is_passing(&error) { error } else { self.core.poison(error) })
    }

    fn take_free(&mut self, head: PageNo) -> Result<PageNo, Error> {
        let payload = self.trunk_mut(head)?;
        if let Some(page) = trunk::pop(payload) {
            if let Err(error) = self.core.make_room(page) {
                let is_back = trunk::push(self.trunk_mut(head)?, page);
                debug_assert!(is_back, "there was room for it");
                return Err(error);
            }
            self.meta.free_pages -= 1;
            return Ok(page);
        }
        // The trunk lists no more pages, so it is allocated itself.
        self.meta.free_head = trunk::next(payload);
        self.meta.free_pages -= 1;
        Ok(head)
    }

    /// Frees a page. Live snapshots still read it.
    ///
    /// Fails with [`Error::OutOfRange`] and [`Error::NotAllocated`].
    pub fn free(&mut self, page: PageNo) -> Result<(), Error> {
        self.core.process.require()?;
        match self.read(page) {
            Ok(_) | Err(Error::NeverWritten { .. }) => {}
            Err(error) => return Err(error),
        }
        self.check_size()?;
        self.touch(page);
        if let Some(head) = self.meta.free_head
            && trunk::push(self.trunk_mut(head)?, page)
        {
            self.changed.insert(page, PageEdit::Free);
        } else {
            let mut bytes = self.core.buffers.zeroed();
            trunk::set_next(&mut bytes.make_mut()[HEADER_BYTES..], self.meta.free_head);
            self.changed.insert(page, PageEdit::Page { kind: PageKind::Trunk, bytes, in_part: false });
            self.meta.free_head = Some(page);
        }
        self.meta.free_pages += 1;
        Ok(())
    }

    fn trunk_mut(&mut self, page: PageNo) -> Result<&mut [u8], Error> {
        let (core, pages) = (self.core.clone(), self.meta.pages);
        let payload = self.change(page, PageKind::Trunk)?;
        match trunk::check(payload, pages) {
            Ok(()) => Ok(payload),
            Err(fault) => {
                Err(core.page_id(page, Seq::NONE).damaged(format!("a trunk of the free list: {fault}")))
            }
        }
    }

    /// Returns the payload of a page, as this transaction leaves it.
    ///
    /// Fails with [`Error::OutOfRange`], [`Error::NotAllocated`], [`Error::NeverWritten`] and
    /// [`Error::Damaged`].
    pub fn read(&self, page: PageNo) -> Result<Page, Error> {
        self.data(page, |core| core.page_at(page, Seq::MAX)).map(Page::new)
    }

    /// Calls `look` with the payload of a page in place, as this transaction leaves it, and returns
    /// its result. The page cannot be evicted while `look` runs, so `look` should be short.
    ///
    /// ```
    /// # use pagekeeper_store::{Durability, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().open(temp.path().join("store"))?;
    /// let mut txn = store.begin_write()?;
    /// let page = txn.allocate()?;
    /// txn.page_mut(page)?[0] = 7;
    /// assert_eq!(txn.read_with(page, |payload| payload[0])?, 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Fails as [`read`](Self::read) does.
    pub fn read_with<T>(&self, page: PageNo, look: impl FnOnce(&[u8]) -> T) -> Result<T, Error> {
        let found = self.data(page, |core| core.short_page_at(page, Seq::MAX))?;
        Ok(look(found.payload()))
    }

    /// Tells the processor to fetch a page that will be read soon, if it is in the cache.
    #[doc(hidden)]
    #[inline]
    pub fn fetch_page(&self, page: PageNo) {
        self.core.cached.fetch_page(page);
    }

    fn data<'s, C: Deref<Target = [u8]>>(
        &'s self,
        page: PageNo,
        before: impl FnOnce(&'s Core) -> Result<Option<FoundPage<C>>, Error>,
    ) -> Result<FoundPage<C>, Error> {
        self.core.process.require()?;
        let found = match self.changed.get(&page) {
            Some(PageEdit::Page { kind, bytes, .. }) => {
                FoundPage::version(WholePage::new(*kind, bytes.clone()))
            }
            Some(PageEdit::Free) => return Err(Error::NotAllocated { page }),
            None => {
                self.check_range(page)?;
                before(&self.core)?.map_or_else(|| Err(self.nothing_in(page)?), Ok)?
            }
        };
        if found.kind() == PageKind::Data { Ok(found) } else { Err(Error::NotAllocated { page }) }
    }

    /// Returns why a page without content cannot be read.
    fn nothing_in(&self, page: PageNo) -> Result<Error, Error> {
        let is_free = self.core.is_given_back(&self.base, page)?;
        Ok(if is_free { Error::NotAllocated { page } } else { Error::NeverWritten { page } })
    }

    fn check_range(&self, page: PageNo) -> Result<(), Error> {
        let pages = self.meta.pages;
        if page.get() < pages { Ok(()) } else { Err(Error::OutOfRange { page, pages }) }
    }

    /// Replaces the payload of a page by [`Store::payload_size`](crate::Store::payload_size) bytes.
    ///
    /// While no page is free, the previous content is not read for this. Fails with
    /// [`Error::OutOfRange`], [`Error::PayloadSize`] and [`Error::NotAllocated`].
    pub fn write(&mut self, page: PageNo, payload: &[u8]) -> Result<(), Error> {
        self.core.process.require()?;
        let wanted = self.core.payload_size();
        if payload.len() != wanted {
            return Err(Error::PayloadSize { given: payload.len(), wanted });
        }
        self.check_range(page)?;
        self.check_size()?;
        self.touch(page);
        match self.changed.get_mut(&page) {
            Some(PageEdit::Page { kind, bytes, .. }) if *kind == PageKind::Data => {
                bytes.make_mut()[HEADER_BYTES..].copy_from_slice(payload);
                return Ok(());
            }
            Some(PageEdit::Page { .. } | PageEdit::Free) => return Err(Error::NotAllocated { page }),
            None => {}
        }
        let in_part = self.core.index.get(page, Seq::MAX).is_some();
        if self.base.free_pages > 0 {
            match self.core.page_at(page, Seq::MAX) {
                Ok(None) if self.core.is_given_back(&self.base, page)? => {
                    return Err(Error::NotAllocated { page });
                }
                // A damaged page can be rewritten.
                Ok(None) | Err(Error::Damaged { .. }) => {}
                Ok(Some(before)) if before.kind() == PageKind::Data => {}
                Ok(Some(_)) => return Err(Error::NotAllocated { page }),
                Err(error) => return Err(error),
            }
        }
        let mut bytes = self.core.buffers.zeroed();
        bytes.make_mut()[HEADER_BYTES..].copy_from_slice(payload);
        self.changed.insert(page, PageEdit::Page { kind: PageKind::Data, bytes, in_part });
        Ok(())
    }

    /// Returns the payload of a page, for changing parts of it.
    ///
    /// Fails as [`Self::read`] does.
    pub fn page_mut(&mut self, page: PageNo) -> Result<&mut [u8], Error> {
        self.change(page, PageKind::Data)
    }

    fn change(&mut self, page: PageNo, wanted: PageKind) -> Result<&mut [u8], Error> {
        self.core.process.require()?;
        self.check_size()?;
        self.touch(page);
        if !self.changed.contains_key(&page) {
            self.check_range(page)?;
            let before = self.core.page_at(page, Seq::MAX)?;
            let before = before.map_or_else(|| Err(self.nothing_in(page)?), Ok)?;
            if before.kind() != wanted {
                return Err(Error::NotAllocated { page });
            }
            let bytes = self.core.buffers.copy(before.bytes());
            self.changed.insert(page, PageEdit::Page { kind: before.kind(), bytes, in_part: true });
        }
        match self.changed.get_mut(&page) {
            Some(PageEdit::Page { kind, bytes, .. }) if *kind == wanted => {
                Ok(&mut bytes.make_mut()[HEADER_BYTES..])
            }
            Some(PageEdit::Page { .. } | PageEdit::Free) | None => Err(Error::NotAllocated { page }),
        }
    }

    /// Returns the root page, if one was set.
    pub fn root(&self) -> Option<PageNo> {
        self.meta.root
    }

    /// Sets the root page: any number that is useful to the user.
    pub fn set_root(&mut self, page: Option<PageNo>) {
        self.meta.root = page;
    }

    /// Returns the number of pages, including free ones. Page numbers are below it.
    pub fn pages(&self) -> u64 {
        self.meta.pages
    }

    /// Returns the user's metadata.
    pub fn metadata(&self) -> &[u8] {
        &self.meta.user
    }

    /// Sets the user's metadata, of at most 1024 bytes.
    pub fn set_metadata(&mut self, metadata: &[u8]) -> Result<(), Error> {
        if metadata.len() > MAX_USER_BYTES {
            return Err(Error::MetadataTooLong { given: metadata.len(), max: MAX_USER_BYTES });
        }
        self.meta.user = metadata.to_vec();
        Ok(())
    }
}

impl fmt::Debug for WriteTxn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteTxn").field("changed", &self.changed.len()).finish_non_exhaustive()
    }
}
