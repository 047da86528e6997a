//! Frames lent to tables: what the tables of open files take up is taken from the frames, so that both together stay
//! within the budget. So is what a file takes up beside its table, which counts where there are thousands.
//!
//! The parts of tables that are taken up are counted, from the first page of a part that is loaded until the part is
//! forgotten, or its file closed and swept. When they come to more than tables may have, parts are forgotten as others are
//! taken up ([`Pool::populate`]), those in which nothing is live first, then the oldest.
//!
//! Invariants: frames from the book's `limit` on are lent, or will be once they are free; the lowest frames are never
//! lent. Nothing fails.

#![allow(unsafe_code)]

use super::pool::{Book, Pool};
use super::queues::Place;
use super::readers::Readers;
use super::sync::Ordering;
use super::table::PART;
use super::translation::Translation;
use crate::sys::table::PART_BYTES;

/// Frames looked at under one lock when many are lent.
const AT_ONCE: u32 = 1024;

/// What an open file takes up beside its table, about: its handle, its path, its places in maps.
const FILE_BYTES: u64 = 1152;

/// Open files may take up one part in this many of the frames beside their tables; what more they take is beside the budget.
const FILES_SHARE: u32 = 4;

/// Parts looked at for one in which nothing is live.
const LOOKS: usize = 16;

impl Pool {
    /// Lends a frame for every so many parts of tables from now on.
    pub(crate) fn lend_for_tables(mut self, parts_per_frame: usize) -> Self {
        self.parts_per_frame = parts_per_frame;
        self
    }

    /// Lends so many frames at the least from now on.
    pub(crate) fn reserve(&self, frames: u32, readers: &Readers) {
        self.reserved.store(frames, Ordering::Relaxed);
        self.settle_lent(readers);
    }

    /// How many frames are to be used, by what tables take up.
    pub(super) fn wished(&self, book: &Book) -> u32 {
        if self.parts_per_frame == 0 {
            return self.frames;
        }
        let as_frames =
            |parts: usize| u32::try_from(parts.div_ceil(self.parts_per_frame)).unwrap_or(u32::MAX);
        let tables = as_frames(book.parts).max(self.reserved.load(Ordering::Relaxed));
        let files = usize::try_from(book.files.len() as u64 * FILE_BYTES / PART_BYTES).unwrap_or(usize::MAX);
        let files = as_frames(files).min(self.frames / FILES_SHARE);
        self.frames.saturating_sub(tables).saturating_sub(files).max(1)
    }

    /// Lends frames to tables, or takes them back, by what they take up now.
    pub(super) fn settle_lent(&self, readers: &Readers) {
        if self.parts_per_frame == 0 {
            return;
        }
        loop {
            let wished = {
                let book = self.book();
                let wished = self.wished(&book);
                if wished == book.limit {
                    return;
                }
                wished
            };
            // Looked at again after it was set, since tables grow meanwhile.
            self.set_limit(wished, readers);
        }
    }

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
            Place::Loading | Place::Apart | Place::Limbo | Place::Lent => {}
        }
    }

    /// A part of a table is taken up: if tables are at their limit, another is forgotten.
    pub(super) fn populate(&self, book: &mut Book, file: &Translation, page: u32) {
        book.parts += 1;
        book.populated.push_back((file.number, page / PART));
        if book.populated.len() > 2 * book.parts + 1024 {
            let files = &book.files;
            book.populated.retain(|(number, _)| files.contains_key(number));
        }
        let mut looks = LOOKS;
        while book.parts > self.parts_max && looks > 0 {
            let Some((number, part)) = book.populated.pop_front() else { return };
            let Some(other) = book.files.get(&number).cloned() else { continue };
            looks -= 1;
            if looks == 0 {
                book.take_out(&other, part);
            }
            if other.live(part) == 0 {
                other.forget(part);
                book.parts -= 1;
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
