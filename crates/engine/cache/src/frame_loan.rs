//! Frames loaned to tables: what the tables of open files take up is taken from the frames, so that both together stay
//! within the budget. So is what a file takes up beside its table, which counts where there are thousands.
//!
//! The parts of tables that are taken up are counted, from the first page of a part that is loaded until the part is
//! forgotten, or its file closed and swept. A budget that is made smaller while the cache is in use leaves frames out in the same way:
//! they are loaned to nobody. When they come to more than tables may have, parts are forgotten as others are
//! taken up ([`Pool::populate`]), those in which nothing is live first, then the oldest.
//!
//! Where several frames are in one page of the kernel's, its memory goes back once none of them is used any more ([`Pool::give_back`]).
//!
//! Invariants: frames from `PoolState::limit` on are on loan, or will be once they are free; the lowest frame is never
//! loaned. Nothing fails.

#![allow(unsafe_code)]

use super::page_table::PageTable;
use super::pool::{Pool, PoolState};
use super::queues::FramePlace;
use super::readers::Readers;
use super::sync::Ordering;

/// Frames checked under one lock when many are loaned.
const AT_ONCE: u32 = 1024;

/// What an open file takes up beside its table, about: its handle, its path, its places in maps.
const FILE_BYTES: u64 = 1152;

/// Open files may take up one part in this many of the frames beside their tables; what more they take is beside the budget.
const FILES_SHARE: u32 = 4;

/// Parts forgotten under one lock.
const PARTS_AT_ONCE: usize = 64;

/// Parts checked for one in which nothing is live.
const MAX_PROBES: usize = 16;

impl Pool {
    /// From now on as many frames are loaned as parts of tables take up, of which each takes up `part_bytes`, and a frame `frame_bytes`.
    pub(crate) fn loan_frames_to_tables(mut self, part_bytes: u64, frame_bytes: u64) -> Self {
        (self.part_bytes, self.frame_bytes) = (part_bytes, frame_bytes);
        self
    }

    /// From now on at least so many frames are on loan.
    pub(crate) fn reserve(&self, frames: u32, readers: &Readers) {
        self.reserved.store(frames, Ordering::Relaxed);
        self.settle_loans(readers);
    }

    /// From now on so many of the frames are in the budget, if there are as many; the memory of the others goes back to the kernel.
    pub(crate) fn resize(&self, frames: u32, readers: &Readers) {
        self.withheld.store(self.frames.saturating_sub(frames), Ordering::Relaxed);
        self.forget_parts(readers);
        self.settle_loans(readers);
    }

    /// Has tables give up the parts that are more than their share of the budget, the oldest first.
    fn forget_parts(&self, readers: &Readers) {
        let mut left = self.lock().populated.len();
        while left > 0 {
            let mut state = self.lock();
            let state = &mut *state;
            for _ in 0..PARTS_AT_ONCE {
                if left == 0 || state.parts <= self.most_parts() {
                    left = 0;
                    break;
                }
                left -= 1;
                let Some((number, part)) = state.populated.pop_front() else { continue };
                let Some(file) = state.files.get(&number).cloned() else { continue };
                state.take_out(&file, part);
                if file.live(part) == 0 {
                    file.forget(part);
                    state.parts -= 1;
                } else {
                    state.populated.push_back((number, part));
                }
            }
        }
        self.retire(readers);
    }

    /// All frames, in the budget or not.
    pub(crate) fn frames(&self) -> u32 {
        self.frames
    }

    /// Frames that the budget has now.
    fn budgeted(&self) -> u32 {
        self.frames - self.withheld.load(Ordering::Relaxed)
    }

    /// How many parts of tables may be taken up: their share of the budget.
    fn most_parts(&self) -> usize {
        let share = self.parts_max as u128 * u128::from(self.budgeted()) / u128::from(self.frames);
        usize::try_from(share).unwrap_or(usize::MAX).max(1)
    }

    /// How many frames are to be used, by what tables take up.
    pub(super) fn usable_frames(&self, state: &PoolState) -> u32 {
        if self.part_bytes == 0 {
            return self.frames;
        }
        let budgeted = self.budgeted();
        let as_frames = |parts: usize| {
            let bytes = (parts as u64).saturating_mul(self.part_bytes);
            u32::try_from(bytes.div_ceil(self.frame_bytes)).unwrap_or(u32::MAX)
        };
        // As much as tables can come to, so that none of it changes as they are taken up.
        let reserved = self.reserved.load(Ordering::Relaxed).min(as_frames(self.most_parts()));
        let tables = as_frames(state.parts).max(reserved);
        let files = state.files.len() as u64 * FILE_BYTES / self.frame_bytes;
        let files = u32::try_from(files).unwrap_or(u32::MAX).min(budgeted / FILES_SHARE);
        budgeted.saturating_sub(tables).saturating_sub(files).max(1)
    }

    /// Loans frames to tables, or takes them back, by what they take up now.
    pub(super) fn settle_loans(&self, readers: &Readers) {
        if self.part_bytes == 0 {
            return;
        }
        loop {
            let usable = {
                let state = self.lock();
                let usable = self.usable_frames(&state);
                if usable == state.limit {
                    return;
                }
                usable
            };
            // Counted again after each step, since tables grow, and the budget changes, meanwhile.
            self.approach_limit(usable, readers);
        }
    }

    /// From now on `frames` frames are to be used; the rest is on loan.
    #[cfg(test)]
    #[allow(dead_code, reason = "for the models, which compile this source a second time")]
    pub(crate) fn set_limit(&self, frames: u32, readers: &Readers) {
        while !self.approach_limit(frames, readers) {}
    }

    /// One step to a limit, with what it takes out of use on its way; true when there is nothing left to do.
    fn approach_limit(&self, frames: u32, readers: &Readers) -> bool {
        let is_there = self.step_to_limit(frames);
        if !is_there {
            self.retire(readers);
            self.collect(&mut self.lock(), readers);
        }
        is_there
    }

    /// The frames that are to be used.
    pub(crate) fn limit(&self) -> u32 {
        self.lock().limit
    }

    /// Moves the limit by one step; true when there is nothing left to do.
    fn step_to_limit(&self, frames: u32) -> bool {
        let mut state = self.lock();
        let state = &mut *state;
        let before = state.limit;
        let end = frames.clamp(before.saturating_sub(AT_ONCE), before.saturating_add(AT_ONCE));
        self.arena.move_end_of_huge_pages(before, end);
        state.limit = end;
        if frames > before {
            // Those that were never used are there by the limit alone.
            for frame in (before..end.min(state.free.first_unused())).rev() {
                if state.queues.frame(frame).place == FramePlace::OnLoan {
                    state.queues.set(frame, FramePlace::Free, None);
                    state.free.put(frame);
                }
            }
        } else if frames < before {
            state.free.keep_below(end);
            let unused = state.free.first_unused();
            for frame in end..before.min(unused) {
                self.loan(state, frame);
            }
            let kept = end.max(unused);
            for frame in kept..state.cleared {
                self.give_back(state, frame);
            }
            state.cleared = state.cleared.min(kept);
        }
        state.s3fifo.set_frames(state.limit);
        frames == before
    }

    /// The frames below `end` were cleared before anybody used them. Those that are not to be used any more go back to the kernel.
    pub(crate) fn note_cleared(&self, end: u32) {
        let mut state = self.lock();
        let kept = state.limit.max(state.free.first_unused()).min(end);
        for frame in kept..end {
            self.give_back(&state, frame);
        }
        state.cleared = state.cleared.max(kept);
    }

    /// Loans a frame, now or when it is free.
    fn loan(&self, state: &mut PoolState, frame: u32) {
        let record = *state.queues.frame(frame);
        match record.place {
            FramePlace::Free => {
                self.give_back(state, frame);
                state.queues.set(frame, FramePlace::OnLoan, None);
            }
            FramePlace::Queued(_) => {
                if let Some(file) = state.files.get(&record.file).cloned() {
                    state.take_out_page(&file, record.page);
                }
            }
            // Comes back through `free`, which loans it.
            FramePlace::Loading | FramePlace::Detached | FramePlace::Retired | FramePlace::OnLoan => {}
        }
    }

    /// A part of a table is taken up: if tables are at their limit, another is forgotten.
    pub(super) fn populate(&self, state: &mut PoolState, file: &PageTable, page: u32) {
        state.parts += 1;
        state.populated.push_back((file.number, file.part_of(page)));
        if state.populated.len() > 2 * state.parts + 1024 {
            let files = &state.files;
            state.populated.retain(|(number, _)| files.contains_key(number));
        }
        let mut probes = MAX_PROBES;
        let most = self.most_parts();
        while state.parts > most && probes > 0 {
            let Some((number, part)) = state.populated.pop_front() else { return };
            let Some(other) = state.files.get(&number).cloned() else { continue };
            probes -= 1;
            if probes == 0 {
                state.take_out(&other, part);
            }
            if other.live(part) == 0 {
                other.forget(part);
                state.parts -= 1;
            } else {
                state.populated.push_back((number, part));
            }
        }
    }

    /// Gives a frame's memory back to the kernel, or leaves that to the last of those that go together with it. The frame is in no
    /// entry, nobody accesses it, and it is not to be used.
    pub(super) fn give_back(&self, state: &PoolState, frame: u32) {
        let together = self.arena.together(frame);
        let is_unused = |other: u32| {
            let place = state.queues.frame(other).place;
            other == frame || other >= state.limit && matches!(place, FramePlace::Free | FramePlace::OnLoan)
        };
        if together.clone().all(is_unused) {
            // SAFETY: all are free, or the one that is becoming free (invariant 3 of the pool), were never used or are on loan,
            // under the lock: nobody reads them, and nobody can begin to load into them.
            unsafe { self.arena.drop_memory(together) };
        }
    }
}
