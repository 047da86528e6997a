//! Pages that their owner has rewritten: they are discarded, or new content replaces the old.
//!
//! An owner writes a page to the device, and then removes its old content by [`FramePool::discard`]
//! or [`FramePool::install`]. A load in flight at that time may have read either content, or parts
//! of both. It becomes *superseded*: the entry is taken from it, its waiters retry, and later
//! lookups load the page again into another frame. Only its loader, which began to read before,
//! gets the content that it loaded.
//!
//! Invariants: when one of these calls has returned, the entry names no frame that was filled from
//! the device before the call began, so no later lookup finds such a frame. Readers that found one
//! before continue with it, as with an evicted frame. Nothing fails; if no frame is free, nothing
//! is installed.

use super::entry::{EntryState, PageEntry, QueueKind};
use super::page_table::PageTable;
use super::pool::{FramePool, LoadReason, LoadTicket, PoolState};
use super::queues::FramePlace;
use super::sync::{Arc, Ordering};
use super::waiter::LoadWaiter;

/// Pages that are discarded under one lock.
const DISCARD_BATCH_PAGES: usize = 256;

impl FramePool {
    /// Discards pages of a file: their present content is not found any more.
    pub(crate) fn discard(&self, file: &PageTable, pages: &[u32]) {
        for pages in pages.chunks(DISCARD_BATCH_PAGES) {
            let mut superseded = Vec::new();
            let mut state = self.lock();
            for &page in pages {
                match PageEntry(file.table.any_entry(page).load(Ordering::Relaxed)).state() {
                    EntryState::Loading { frame } => {
                        superseded.append(&mut state.supersede(file, page, frame));
                    }
                    EntryState::Resident { .. } | EntryState::Unread { .. } | EntryState::Absent(_) => {
                        state.take_out_page(file, page);
                    }
                }
            }
            drop(state);
            Self::settle_for_retry(superseded);
        }
    }

    /// Takes a frame for new content of a page, which [`install`](Self::install) puts in place of
    /// the old. The entry does not change until then. `None` if no frame is free, or the file is
    /// closed.
    pub(crate) fn begin_install(&self, file: &PageTable, page: u32) -> Option<LoadTicket> {
        let mut state = self.lock();
        let state = &mut *state;
        file.table.entry(page)?;
        let frame = state.free.take(state.limit)?;
        state.queues.set(frame, FramePlace::Detached, Some((file.number, page)));
        let short = self.is_short(state);
        // The queue and the old entry are determined when the page is installed.
        Some(LoadTicket { page, frame, queue: QueueKind::Small, before: PageEntry::NEVER_SEEN, short })
    }

    /// Puts the content in a ticket's frame in place of the page's old content. A resident page
    /// that somebody has read keeps its queue and frequency; any other page is treated as if
    /// loaded. Returns false if the file was closed meanwhile.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is settled once")]
    pub(crate) fn install(&self, file: &PageTable, ticket: LoadTicket, reason: LoadReason) -> bool {
        let LoadTicket { page, frame, .. } = ticket;
        let mut guard = self.lock();
        let state = &mut *guard;
        if !file.table.is_open() {
            self.free(state, frame);
            return false;
        }
        let entry = file.table.any_entry(page);
        let mut superseded = Vec::new();
        let mut before = PageEntry(entry.load(Ordering::Relaxed)).state();
        if let EntryState::Loading { frame } = before {
            superseded = state.supersede(file, page, frame);
            before = EntryState::Absent(None);
        }
        let unread = || {
            if reason == LoadReason::Read { PageEntry::resident(frame, 0) } else { PageEntry::unread(frame) }
        };
        let (queue, value) = match before {
            EntryState::Resident { frame: old, frequency } => {
                (state.replace(old), PageEntry::resident(frame, frequency))
            }
            EntryState::Unread { frame: old } => (state.replace(old), unread()),
            EntryState::Absent(evicted) => {
                let queue = state.admit(file, evicted);
                if file.enters(page) {
                    self.populate(state, file, page);
                }
                (queue, unread())
            }
            EntryState::Loading { .. } => unreachable!("superseded just now"),
        };
        state.queues.push(queue, frame);
        state.counts.installed += 1;
        // Released, like a published page. A hit that raises the old frequency at the same time
        // fails to.
        entry.store(value.0, Ordering::Release);
        drop(guard);
        Self::settle_for_retry(superseded);
        true
    }

    fn settle_for_retry(waiters: Vec<Arc<LoadWaiter>>) {
        for waiter in waiters {
            waiter.settle(Ok(()));
        }
    }
}

impl PoolState {
    /// Takes the entry from the load into `frame` that is in flight. Returns its waiters, which
    /// must retry.
    fn supersede(&mut self, file: &PageTable, page: u32, frame: u32) -> Vec<Arc<LoadWaiter>> {
        self.queues.set(frame, FramePlace::Detached, None);
        file.table.any_entry(page).store(PageEntry::NEVER_SEEN.0, Ordering::Relaxed);
        file.leaves(page);
        self.take_waiters(file.number, page)
    }

    /// Takes a frame out of its queue, in favour of the frame that replaces it in the entry.
    /// Returns the queue.
    fn replace(&mut self, old: u32) -> QueueKind {
        let queue = self.queues.remove(old);
        self.removed.push(old);
        queue
    }
}
