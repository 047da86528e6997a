//! The bytes of frames: the one place where a frame number becomes memory.
//!
//! This module rests on the invariants of `pool` (the owner of each frame) and of `readers` (the
//! frames still being read); each block names those it needs. Callers get copies, guards that keep
//! their frame, and frames that only their loader may access.

#![allow(unsafe_code)]

use std::ops::Deref;

use pagekeeper_io::ReadTarget;

use crate::Error;
use crate::handle::{CacheState, FileHandle};
use crate::lookup::{self, KeptFrame, LookupAttempt};
use crate::pool::{LoadReason, LoadTicket};
use crate::readers::ReaderSlot;

/// Copies a part of a page, if the page can be read. Takes no lock; `from + buf.len()` is at most a
/// page.
#[inline]
pub(crate) fn copy(
    handle: &FileHandle,
    page: u32,
    from: usize,
    buf: &mut [u8],
    attempt: LookupAttempt,
) -> bool {
    let shared = &*handle.shared;
    let slots = &shared.slots;
    lookup::lookup(
        slots.mine(),
        slots.readers().barrier(),
        &handle.page_table.table,
        page,
        attempt,
        |frame| {
            // SAFETY: the bounds are the caller's promise. The frame was found in a section
            // (invariant 1 of `readers`), so it is not loaded into before the section is left; the
            // entry was acquired, so the frame holds the page.
            unsafe { shared.pool.arena.copy(frame, from, buf) };
        },
    )
    .is_some()
}

/// Keeps the frame of a page that can be read: by the calling thread's slot if possible, otherwise
/// by a pin.
#[inline]
pub(crate) fn keep(
    handle: &FileHandle,
    page: u32,
    by_slot: bool,
    attempt: LookupAttempt,
) -> Option<KeptFrame> {
    let shared = &*handle.shared;
    let slot = shared.slots.mine();
    lookup::lookup(slot, shared.slots.readers().barrier(), &handle.page_table.table, page, attempt, |frame| {
        lookup::keep(slot, &shared.pool, frame, by_slot)
    })
}

/// Releases a frame. `slot` is that of the thread that kept it, if the frame was kept by the slot.
#[inline]
pub(crate) fn release(shared: &CacheState, slot: Option<&ReaderSlot>, kept: KeptFrame) {
    lookup::release(slot, &shared.pool, kept);
}

/// Returns the bytes of a kept frame.
///
/// # Safety
///
/// The frame held a page of `len` bytes or more when it was kept. It is not released, nor the cache
/// dropped, before the end of `'a`.
pub(crate) unsafe fn bytes<'a>(shared: &CacheState, frame: u32, len: usize) -> &'a [u8] {
    // SAFETY: a kept frame is not loaded into (invariant 3 of `pool`), by the caller's promise for
    // all of `'a`.
    unsafe { shared.pool.arena.page(frame, len) }
}

/// A frame that is being loaded into. Dropping it unsettled fails the load, and waiting callers get
/// an error.
#[derive(Debug)]
pub(crate) struct LoadingFrame<H: Deref<Target = FileHandle>> {
    handle: H,
    ticket: Option<LoadTicket>,
}

impl<H: Deref<Target = FileHandle>> LoadingFrame<H> {
    pub(crate) fn new(handle: H, ticket: LoadTicket) -> Self {
        let shared = &handle.shared;
        shared.clear_ahead.note_use(shared, ticket.frame);
        Self { handle, ticket: Some(ticket) }
    }

    fn ticket(&self) -> &LoadTicket {
        let Some(ticket) = &self.ticket else { unreachable!("settled once, by value") };
        ticket
    }

    pub(crate) fn page(&self) -> u32 {
        self.ticket().page
    }

    /// Returns the whole frame.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: a loading frame is its ticket holder's alone (invariant 2 of `pool`), and `self`
        // is borrowed mutably; `target` gives the address away only together with `self`.
        unsafe { self.handle.shared.pool.arena.page_mut(self.ticket().frame) }
    }

    /// Returns the first `len` bytes of the frame.
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: as in `bytes_mut`; `self` is borrowed, so nobody writes.
        unsafe { self.handle.shared.pool.arena.page(self.ticket().frame, len) }
    }

    /// Returns the frame, for a read that fills it while `self` waits for the read's end: in the
    /// read's `done`, or beside a stream.
    pub(crate) fn target(&mut self) -> ReadTarget {
        let page_size = 1 << self.handle.shared.settings.page_shift;
        // SAFETY: the frame belongs to this load alone (invariant 2 of `pool`) until `self` is
        // settled. The caller moves `self` into the `done` of the read that the target is for, or
        // leaves it untouched until the stream has learnt of the read's end, so it is not settled
        // earlier. The handle keeps the memory, which is initialised: it was mapped zeroed.
        unsafe { ReadTarget::new(self.handle.shared.pool.arena.address(self.ticket().frame), page_size) }
    }

    /// Adds a waiter for the page.
    pub(crate) fn join(&self) -> crate::sync::Arc<crate::waiter::LoadWaiter> {
        self.handle.shared.pool.join(&self.handle.page_table, self.ticket())
    }

    /// Publishes the page, which is checked and whole.
    pub(crate) fn publish(mut self, reason: LoadReason) {
        if let Some(ticket) = self.ticket.take() {
            let handle = &*self.handle;
            handle.shared.pool.publish(&handle.page_table, ticket, reason, || handle.closed());
        }
    }

    /// Publishes the page, and keeps it for the caller.
    pub(crate) fn publish_kept(self, by_slot: bool) -> KeptFrame {
        let shared = &self.handle.shared;
        let kept = lookup::keep(shared.slots.mine(), &shared.pool, self.ticket().frame, by_slot);
        self.publish(LoadReason::Read);
        kept
    }

    /// Puts the content of the frame in place of the page's old content. Returns false if the file
    /// was closed meanwhile.
    pub(crate) fn install(mut self, reason: LoadReason) -> bool {
        let Some(ticket) = self.ticket.take() else { return false };
        self.handle.shared.pool.install(&self.handle.page_table, ticket, reason)
    }

    /// Fails the load. Returns false if the page was rewritten meanwhile: then the failure means
    /// nothing.
    pub(crate) fn abandon(mut self, error: &Error) -> bool {
        let Some(ticket) = self.ticket.take() else { return true };
        self.handle.shared.pool.abandon(&self.handle.page_table, ticket, error)
    }
}

impl<H: Deref<Target = FileHandle>> Drop for LoadingFrame<H> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let error = Error::LoaderPanicked { path: self.handle.path.clone(), page: ticket.page.into() };
            self.handle.shared.pool.abandon(&self.handle.page_table, ticket, &error);
        }
    }
}
