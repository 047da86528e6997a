//! The bytes of frames: the one place where a frame number becomes memory.
//!
//! Everything here rests on the invariants of `pool` (which frame is whose) and of `readers` (who still reads); each block
//! names those it needs. What is handed out are copies, guards that keep their frame, and frames that are their
//! loader's alone.

#![allow(unsafe_code)]

use std::ops::Deref;

use pagekeeper_io::Target;

use crate::Error;
use crate::handle::{Handle, Shared};
use crate::lookup::{self, Attempt, KeptFrame};
use crate::pool::{LoadReason, Ticket};
use crate::readers::Slot;

/// Copies a part of a page, if it can be read. Takes no lock; `from + buf.len()` is at most a page.
#[inline]
pub(crate) fn copy(handle: &Handle, page: u32, from: usize, buf: &mut [u8], attempt: Attempt) -> bool {
    let shared = &*handle.shared;
    let slots = &shared.slots;
    lookup::lookup(
        slots.mine(),
        slots.readers().barrier(),
        &handle.page_table.table,
        page,
        attempt,
        |frame| {
            // SAFETY: the bounds are the caller's promise. The frame was found in a section (invariant 1 of `readers`), so it
            // is not loaded into before the section is left; the entry was acquired, so the frame holds the page.
            unsafe { shared.pool.arena.copy(frame, from, buf) };
        },
    )
    .is_some()
}

/// Keeps the frame of a page that can be read: by the calling thread's slot if it may and can, else by a pin.
#[inline]
pub(crate) fn keep(handle: &Handle, page: u32, by_slot: bool, attempt: Attempt) -> Option<KeptFrame> {
    let shared = &*handle.shared;
    let slot = shared.slots.mine();
    lookup::lookup(slot, shared.slots.readers().barrier(), &handle.page_table.table, page, attempt, |frame| {
        lookup::keep(slot, &shared.pool, frame, by_slot)
    })
}

/// Lets a frame go. `slot` is that of the thread that kept it, if it was kept by the slot.
#[inline]
pub(crate) fn release(shared: &Shared, slot: Option<&Slot>, kept: KeptFrame) {
    lookup::release(slot, &shared.pool, kept);
}

/// The bytes of a frame that is kept.
///
/// # Safety
///
/// The frame was kept when it held a page of `len` bytes or more, and is not released, nor the cache dropped, before the end
/// of `'a`.
pub(crate) unsafe fn bytes<'a>(shared: &Shared, frame: u32, len: usize) -> &'a [u8] {
    // SAFETY: a kept frame is not loaded into (invariant 3 of `pool`), by the caller's promise for all of `'a`.
    unsafe { shared.pool.arena.page(frame, len) }
}

/// A frame that is being loaded into. Dropped unsettled, the load has failed, and who waits for it gets an error.
#[derive(Debug)]
pub(crate) struct Filling<H: Deref<Target = Handle>> {
    handle: H,
    ticket: Option<Ticket>,
}

impl<H: Deref<Target = Handle>> Filling<H> {
    pub(crate) fn new(handle: H, ticket: Ticket) -> Self {
        let shared = &handle.shared;
        shared.clear_ahead.note_use(shared, ticket.frame);
        Self { handle, ticket: Some(ticket) }
    }

    fn ticket(&self) -> &Ticket {
        let Some(ticket) = &self.ticket else { unreachable!("settled once, by value") };
        ticket
    }

    pub(crate) fn page(&self) -> u32 {
        self.ticket().page
    }

    /// The whole frame.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: a loading frame is its ticket holder's alone (invariant 2 of `pool`), and `self` is borrowed mutably;
        // `target` gives the address away only together with `self`.
        unsafe { self.handle.shared.pool.arena.page_mut(self.ticket().frame) }
    }

    /// The first `len` bytes of the frame.
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        // SAFETY: as in `bytes_mut`; `self` is borrowed, so nobody writes.
        unsafe { self.handle.shared.pool.arena.page(self.ticket().frame, len) }
    }

    /// The frame, for a read that fills it while `self` waits for its end: in its `done`, or beside a stream.
    pub(crate) fn target(&mut self) -> Target {
        let page_size = 1 << self.handle.shared.settings.page_shift;
        // SAFETY: the frame is this load's alone (invariant 2 of `pool`), and stays so until `self` is settled; the caller
        // moves `self` into the `done` of the read that the target is for, or keeps it untouched until the stream has learnt
        // of the read's end, so that is not before. The handle keeps the memory, which is initialised: it was mapped zeroed.
        unsafe { Target::new(self.handle.shared.pool.arena.address(self.ticket().frame), page_size) }
    }

    /// Adds one who waits.
    pub(crate) fn join(&self) -> crate::sync::Arc<crate::waiter::Waiter> {
        self.handle.shared.pool.join(&self.handle.page_table, self.ticket())
    }

    /// The page is there, checked and whole.
    pub(crate) fn publish(mut self, reason: LoadReason) {
        if let Some(ticket) = self.ticket.take() {
            let handle = &*self.handle;
            handle.shared.pool.publish(&handle.page_table, ticket, reason, || handle.closed());
        }
    }

    /// The page is there, and is kept for the caller.
    pub(crate) fn publish_kept(self, by_slot: bool) -> KeptFrame {
        let shared = &self.handle.shared;
        let kept = lookup::keep(shared.slots.mine(), &shared.pool, self.ticket().frame, by_slot);
        self.publish(LoadReason::Read);
        kept
    }

    /// What was written to the frame takes the place of what the page had. False if the file was closed meanwhile.
    pub(crate) fn install(mut self, reason: LoadReason) -> bool {
        let Some(ticket) = self.ticket.take() else { return false };
        self.handle.shared.pool.install(&self.handle.page_table, ticket, reason)
    }

    /// The load failed. False if the page was rewritten meanwhile: then the failure says nothing.
    pub(crate) fn abandon(mut self, error: &Error) -> bool {
        let Some(ticket) = self.ticket.take() else { return true };
        self.handle.shared.pool.abandon(&self.handle.page_table, ticket, error)
    }
}

impl<H: Deref<Target = Handle>> Drop for Filling<H> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let error = Error::LoaderPanicked { path: self.handle.path.clone(), page: ticket.page.into() };
            self.handle.shared.pool.abandon(&self.handle.page_table, ticket, &error);
        }
    }
}
