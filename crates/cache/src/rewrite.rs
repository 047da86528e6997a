//! Pages that their owner has written anew: taken out, or put in place of what was there.
//!
//! An owner writes a page to the device, and then has its old content go, by [`Pool::discard`] or [`Pool::install`]. A load that
//! is under way then may have read either content, or some of both. It is *superseded*: the entry is taken from
//! it, those who wait for it are told to look again, and whoever looks from then on loads anew, into another frame. What the
//! load brings is its loader's alone, who began to read before.
//!
//! Invariants: when one of these has returned, the entry names no frame that was filled from the device before the call
//! began, so that nobody who looks at it after that finds such a frame; readers who found one before go on with it, as
//! with one that is evicted. Nothing fails; where no frame is free there is nothing to install into.

use super::pool::{Book, Pool, Ticket, Wish};
use super::queues::Place;
use super::sync::{Arc, Ordering};
use super::translation::Translation;
use super::waiter::Waiter;
use super::word::{Queue, State, Word};

/// Pages that are discarded under one lock.
const AT_ONCE: usize = 256;

impl Pool {
    /// Has pages of a file found no more with the content that they have had up to now.
    pub(crate) fn discard(&self, file: &Translation, pages: &[u32]) {
        for pages in pages.chunks(AT_ONCE) {
            let mut told = Vec::new();
            let mut book = self.book();
            for &page in pages {
                match Word(file.table.any_entry(page).load(Ordering::Relaxed)).state() {
                    State::Loading { frame } => told.append(&mut book.supersede(file, page, frame)),
                    _ => book.take_out_page(file, page),
                }
            }
            drop(book);
            Self::look_again(told);
        }
    }

    /// Takes a frame for new content of a page, which [`install`](Self::install) puts in place of the old; the entry knows
    /// nothing of it until then. `None` if no frame is free, or the file is closed.
    pub(crate) fn begin_install(&self, file: &Translation, page: u32) -> Option<Ticket> {
        let mut book = self.book();
        let book = &mut *book;
        file.table.entry(page)?;
        let frame = book.free.pop()?;
        book.queues.set(frame, Place::Apart, Some((file.number, page)));
        let short = self.is_short(book);
        // Which queue it goes to and what the entry was are known when it is installed.
        Some(Ticket { page, frame, queue: Queue::Small, before: Word::NEVER_SEEN, short })
    }

    /// Puts the content that was written to a ticket's frame in place of what the page had. A page that was resident stays as
    /// hot as it was; any other comes as if loaded. False if the file was closed meanwhile.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is settled once")]
    pub(crate) fn install(&self, file: &Translation, ticket: Ticket, wish: Wish) -> bool {
        let Ticket { page, frame, .. } = ticket;
        let mut guard = self.book();
        let book = &mut *guard;
        if !file.table.is_open() {
            self.free(book, frame);
            return false;
        }
        let entry = file.table.any_entry(page);
        let mut told = Vec::new();
        let mut before = Word(entry.load(Ordering::Relaxed)).state();
        if let State::Loading { frame } = before {
            told = book.supersede(file, page, frame);
            before = State::Absent(None);
        }
        let unread = || if wish == Wish::Read { Word::resident(frame, 0) } else { Word::unread(frame) };
        let (queue, word) = match before {
            State::Resident { frame: old, frequency } => {
                (book.replace(old), Word::resident(frame, frequency))
            }
            State::Unread { frame: old } => (book.replace(old), unread()),
            State::Absent(evicted) => {
                let queue = book.rule.admit(evicted, book.queues.len(Queue::Small));
                if file.enters(page) {
                    self.populate(book, file, page);
                }
                (queue, unread())
            }
            State::Loading { .. } => unreachable!("superseded just now"),
        };
        book.queues.push(queue, frame);
        book.counts.installed += 1;
        // Released, as what is published. A hit that raises the old frequency at the same time fails to.
        entry.store(word.0, Ordering::Release);
        drop(guard);
        Self::look_again(told);
        true
    }

    fn look_again(waiters: Vec<Arc<Waiter>>) {
        for waiter in waiters {
            waiter.settle(Ok(()));
        }
    }
}

impl Book {
    /// Takes the entry from the load into `frame` that is under way. Those who waited for it are to look again.
    fn supersede(&mut self, file: &Translation, page: u32, frame: u32) -> Vec<Arc<Waiter>> {
        self.queues.set(frame, Place::Apart, None);
        file.table.any_entry(page).store(Word::NEVER_SEEN.0, Ordering::Relaxed);
        file.leaves(page);
        self.take_waiters(file.number, page)
    }

    /// Takes a frame out of its queue for one that takes its place in the entry; which queue that was.
    fn replace(&mut self, old: u32) -> Queue {
        let queue = self.queues.remove(old);
        self.out.push(old);
        queue
    }
}
