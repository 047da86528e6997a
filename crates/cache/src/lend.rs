//! Frames lent to tables: what the tables of open files take up is taken from the frames, so that both together stay
//! within the budget.
//!
//! A file's table is counted in full when the file is opened, and no more when it is closed and swept. Tables that come to
//! more than their share of the budget are not counted in full: then parts of them are forgotten as others are
//! taken up ([`Pool::populate`]), those in which nothing is live first, then the oldest.
//!
//! Invariants: frames from the book's `limit` on are lent, or will be once they are free; the lowest frames are never
//! lent. Nothing fails.

#![allow(unsafe_code)]

use super::pool::{Book, Pool};
use super::queues::Place;
use super::readers::Readers;
use super::table::PART;
use super::translation::Translation;

/// Frames looked at under one lock when many are lent.
const AT_ONCE: u32 = 1024;

/// Parts looked at for one in which nothing is live.
const LOOKS: usize = 16;

impl Pool {
    /// From now on `frames` frames are to be used; the rest is lent.
    pub(crate) fn set_limit(&self, frames: u32, readers: &Readers) {
        while !self.step_to_limit(frames) {
            self.retire(readers);
            self.collect(&mut self.book(), readers);
        }
    }

    /// The frames that are to be used.
    pub(crate) fn limit(&self) -> u32 {
        self.book().limit
    }

    /// One step of [`set_limit`](Self::set_limit); true when there is nothing left to do.
    fn step_to_limit(&self, frames: u32) -> bool {
        let mut book = self.book();
        let book = &mut *book;
        let before = book.limit;
        if frames > before {
            book.limit = before.saturating_add(AT_ONCE).min(frames);
            for frame in (before..book.limit).rev() {
                if book.queues.frame(frame).place == Place::Lent {
                    book.queues.set(frame, Place::Free, None);
                    book.free.push(frame);
                }
            }
        } else if frames < before {
            let end = before.saturating_sub(AT_ONCE).max(frames);
            book.limit = end;
            book.free.retain(|&frame| frame < end);
            for frame in end..before {
                self.lend(book, frame);
            }
        }
        book.rule.set_frames(book.limit);
        frames == before
    }

    /// Lends a frame, now or when it is free.
    fn lend(&self, book: &mut Book, frame: u32) {
        let record = *book.queues.frame(frame);
        match record.place {
            Place::Free => {
                self.give_back(frame);
                book.queues.set(frame, Place::Lent, None);
            }
            Place::Queued(_) => {
                if let Some(file) = book.files.get(&record.file).cloned() {
                    book.take_out_page(&file, record.page);
                }
            }
            // Comes back through `free`, which lends it.
            Place::Loading | Place::Limbo | Place::Lent => {}
        }
    }

    /// A part of a table is taken up: if tables are at their limit, another is forgotten.
    pub(super) fn populate(&self, book: &mut Book, file: &Translation, page: u32) {
        book.populated.push_back((file.number, page / PART));
        let mut looks = LOOKS;
        while book.populated.len() > self.parts_max && looks > 0 {
            let Some((number, part)) = book.populated.pop_front() else { return };
            let Some(other) = book.files.get(&number).cloned() else { continue };
            looks -= 1;
            if looks == 0 {
                book.take_out(&other, part);
            }
            if other.live(part) == 0 {
                other.forget(part);
            } else {
                book.populated.push_back((number, part));
            }
        }
    }

    /// Gives a frame's memory back to the kernel. The frame is in no entry, and nobody looks at it.
    pub(super) fn give_back(&self, frame: u32) {
        // SAFETY: only called for a frame that is free, or is becoming free (invariant 3 of the pool), under the lock:
        // nobody reads it, and nobody can begin to load into it.
        unsafe { self.arena.drop_memory(frame) };
    }
}
