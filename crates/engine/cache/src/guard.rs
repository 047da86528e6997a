//! Guards: access to a page's bytes in place, without a copy.
//!
//! Invariants: while a guard lives its frame is not loaded into, whatever is evicted, closed or
//! dropped meanwhile. A guard shows exactly the bytes of its page, less than a page at the end of
//! the file. Reading through a guard can't fail.

#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::bypass_buffer::BypassBuffer;
use crate::frames;
use crate::handle::{CacheState, FileHandle};
use crate::lookup::{KeptFrame, LookupAttempt};
use crate::readers::{FrameHold, ReaderSlot};
use crate::{CachedFile, Error, OwnedFile, PageNo};

/// The place of a guard's bytes.
#[derive(Debug)]
enum PageBytes {
    /// In a kept frame; taken out when the guard is dropped.
    Frame(Option<KeptFrame>),
    /// Beside the cache, since no frame was available.
    Bypass(BypassBuffer),
}

impl PageBytes {
    fn bytes(&self, shared: &CacheState, len: usize) -> &[u8] {
        match self {
            Self::Frame(Some(kept)) => {
                // SAFETY: kept since it held the page of `len` bytes (the guards are made that
                // way), and released only when `self` is dropped; the guards keep the cache. The
                // borrow of `self` bounds the lifetime.
                unsafe { frames::bytes(shared, kept.frame, len) }
            }
            Self::Frame(None) => &[],
            Self::Bypass(buffer) => buffer.bytes(len),
        }
    }

    fn release(&mut self, shared: &CacheState, slot: Option<&ReaderSlot>) {
        if let Self::Frame(kept) = self
            && let Some(kept) = kept.take()
        {
            frames::release(shared, slot, kept);
        }
    }
}

/// A page in place, for a short read: on one thread, and no longer than the file's handle is
/// borrowed.
///
/// It costs two plain stores. A thread can have 16 such guards at once; further ones cost a pin
/// each. Dereferences to the page's bytes.
///
/// ```compile_fail
/// fn must_be_send<T: Send>() {}
/// must_be_send::<pagekeeper_cache::PageGuard<'static>>();
/// ```
pub struct PageGuard<'a> {
    handle: &'a FileHandle,
    place: PageBytes,
    len: usize,
    /// The slot of the thread that made the guard.
    slot: &'a ReaderSlot,
    /// Only the thread whose slot holds the frame may release it.
    not_send: PhantomData<*const ()>,
}

impl Deref for PageGuard<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.place.bytes(&self.handle.shared, self.len)
    }
}

impl Drop for PageGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.place.release(&self.handle.shared, Some(self.slot));
    }
}

impl fmt::Debug for PageGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageGuard")
            .field("path", &self.handle.path)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// An owned page in place: it can be kept for long, sent to other threads, and outlives handles,
/// closes and evictions.
///
/// It pins its frame, which costs an atomic addition; the page's memory stays in use while it
/// lives. Dereferences to the page's bytes.
pub struct PageRef {
    handle: Arc<FileHandle>,
    place: PageBytes,
    len: usize,
}

impl Deref for PageRef {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.place.bytes(&self.handle.shared, self.len)
    }
}

impl Drop for PageRef {
    fn drop(&mut self) {
        self.place.release(&self.handle.shared, None);
    }
}

impl AsRef<[u8]> for PageRef {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for PageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageRef")
            .field("path", &self.handle.path)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Like [`PageGuard`], for a page that the shortest way of a hit has found.
pub struct HeldPage<'a> {
    /// Not a reference: during the drop these may already be another page's bytes.
    bytes: NonNull<[u8]>,
    /// The slot of the thread that made the guard.
    slot: &'a ReaderSlot,
    /// Taken out when the guard is dropped.
    hold: Option<FrameHold>,
    /// Only the thread whose slot holds the frame may release it.
    not_send: PhantomData<*const ()>,
}

impl Deref for HeldPage<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: a page's initialised bytes, which `hold` protects from being loaded into until
        // `self` is dropped. The file's handle, from which `slot` is borrowed, keeps the memory for
        // longer. The borrow of `self` bounds the lifetime.
        unsafe { self.bytes.as_ref() }
    }
}

impl Drop for HeldPage<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.slot.release(hold);
        }
    }
}

impl fmt::Debug for HeldPage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldPage").field("len", &self.bytes.len()).finish_non_exhaustive()
    }
}

fn keep(handle: &FileHandle, page: u32, by_slot: bool) -> Result<PageBytes, Error> {
    handle.shared.require_own_process()?;
    let found = frames::keep(handle, page, by_slot, LookupAttempt::First);
    Ok(match found {
        Some(kept) => PageBytes::Frame(Some(kept)),
        None => match handle.keep_missed(page, by_slot)? {
            Ok(kept) => PageBytes::Frame(Some(kept)),
            Err(buffer) => PageBytes::Bypass(buffer),
        },
    })
}

impl CachedFile {
    /// Returns a page in place, for a short read. Loads it if it is absent.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPage`], and those of [`read_at`](Self::read_at).
    #[inline]
    pub fn page(&self, page: PageNo) -> Result<PageGuard<'_>, Error> {
        let handle = &**self.handle();
        let page = handle.page_number(page)?;
        let place = keep(handle, page, true)?;
        let slot = handle.shared.slots.mine();
        Ok(PageGuard { handle, place, len: handle.page_len(page), slot, not_send: PhantomData })
    }

    /// Returns an owned page in place. Loads it if it is absent.
    ///
    /// # Errors
    ///
    /// As for [`page`](Self::page).
    pub fn page_ref(&self, page: PageNo) -> Result<PageRef, Error> {
        let handle = Arc::clone(self.handle());
        let page = handle.page_number(page)?;
        let place = keep(&handle, page, false)?;
        Ok(PageRef { place, len: handle.page_len(page), handle })
    }
}

impl OwnedFile {
    /// Like [`page`](Self::page), if the shortest way of a hit finds the page: resident and read
    /// several times. `None` tells nothing about the page. For an engine's own shortest way.
    #[doc(hidden)]
    #[inline]
    pub fn page_shortest(&self, page: PageNo) -> Option<HeldPage<'_>> {
        let fast_path = &self.handle().fast_path;
        let (first, slot, hold) = fast_path.keep(page.get())?;
        let bytes = NonNull::slice_from_raw_parts(first, fast_path.page_size());
        Some(HeldPage { bytes, slot, hold: Some(hold), not_send: PhantomData })
    }

    /// Tells the processor to fetch a page that will be read soon, if it is resident.
    #[doc(hidden)]
    #[inline]
    pub fn fetch_page(&self, page: PageNo) {
        self.handle().fast_path.fetch_page(page.get());
    }
}
