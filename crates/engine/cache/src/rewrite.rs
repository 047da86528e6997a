//! Pages that their owner has rewritten: taken out, or put in place of what was there.
//!
//! An owner writes a page to the device, and then has its old content go, by [`Pool::discard`] or [`Pool::install`]. A load that
//! is under way then may have read either content, or some of both. It is *superseded*: the entry is taken from
//! it, those who wait for it retry, and whoever looks the page up from then on loads again, into another frame. What the
//! load brings is its loader's alone, who began to read before.
//!
//! Invariants: when one of these has returned, the entry names no frame that was filled from the device before the call
//! began, so that no lookup after that finds such a frame; readers who found one before go on with it, as
//! with one that is evicted. Nothing fails; where no frame is free there is nothing to install into.

use super::entry::{EntryState, PageEntry, Queue};
use super::page_table::PageTable;
use super::pool::{LoadReason, Pool, PoolState, Ticket};
use super::queues::FramePlace;
use super::sync::{Arc, Ordering};
use super::waiter::Waiter;

/// Pages that are discarded under one lock.
const AT_ONCE: usize = 256;

impl Pool {
    /// Has pages of a file found no more with the content that they have had up to now.
    pub(crate) fn discard(&self, file: &PageTable, pages: &[u32]) {
        for pages in pages.chunks(AT_ONCE) {
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

    /// Takes a frame for new content of a page, which [`install`](Self::install) puts in place of the old; the entry knows
    /// nothing of it until then. `None` if no frame is free, or the file is closed.
    pub(crate) fn begin_install(&self, file: &PageTable, page: u32) -> Option<Ticket> {
        let mut state = self.lock();
        let state = &mut *state;
        file.table.entry(page)?;
        let frame = state.free.take(state.limit)?;
        state.queues.set(frame, FramePlace::Detached, Some((file.number, page)));
        let short = self.is_short(state);
        // Which queue it goes to and what the entry was are known when it is installed.
        Some(Ticket { page, frame, queue: Queue::Small, before: PageEntry::NEVER_SEEN, short })
    }

    /// Puts the content that was written to a ticket's frame in place of what the page had. A page that was resident stays as
    /// hot as it was; any other comes as if loaded. False if the file was closed meanwhile.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is settled once")]
    pub(crate) fn install(&self, file: &PageTable, ticket: Ticket, reason: LoadReason) -> bool {
        let Ticket { page, frame, .. } = ticket;
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
                let queue = state.s3fifo.admit(evicted, state.queues.len(Queue::Small));
                if file.enters(page) {
                    self.populate(state, file, page);
                }
                (queue, unread())
            }
            EntryState::Loading { .. } => unreachable!("superseded just now"),
        };
        state.queues.push(queue, frame);
        state.counts.installed += 1;
        // Released, as what is published. A hit that raises the old frequency at the same time fails to.
        entry.store(value.0, Ordering::Release);
        drop(guard);
        Self::settle_for_retry(superseded);
        true
    }

    fn settle_for_retry(waiters: Vec<Arc<Waiter>>) {
        for waiter in waiters {
            waiter.settle(Ok(()));
        }
    }
}

impl PoolState {
    /// Takes the entry from the load into `frame` that is under way. Those who waited for it are to retry.
    fn supersede(&mut self, file: &PageTable, page: u32, frame: u32) -> Vec<Arc<Waiter>> {
        self.queues.set(frame, FramePlace::Detached, None);
        file.table.any_entry(page).store(PageEntry::NEVER_SEEN.0, Ordering::Relaxed);
        file.leaves(page);
        self.take_waiters(file.number, page)
    }

    /// Takes a frame out of its queue for one that takes its place in the entry; which queue that was.
    fn replace(&mut self, old: u32) -> Queue {
        let queue = self.queues.remove(old);
        self.removed.push(old);
        queue
    }
}
