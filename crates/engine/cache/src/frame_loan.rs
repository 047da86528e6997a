//! Frames loaned to tables: the memory that the tables of open files take up is taken from the
//! frames, so that both together stay within the budget. The memory that a file takes up beside its
//! table is loaned too; it matters with thousands of files.
//!
//! The parts of tables that are taken up are counted: from the first load of a page of the part
//! until the part is forgotten, or its file closed and swept. If these exceed the tables' share,
//! parts are forgotten as others are taken up ([`FramePool::populate`]): first parts without live
//! pages, then the oldest. A budget that shrinks while the cache is in use leaves out frames in the
//! same way: they count as loaned, but to nobody.
//!
//! If several frames share a kernel page, its memory returns to the kernel once none of them is
//! used ([`FramePool::give_back`]).
//!
//! Invariants: frames from `PoolState::limit` on are on loan, or will be once they are free; the
//! lowest frame is never loaned. Nothing fails.

#![allow(unsafe_code)]

use super::page_table::PageTable;
use super::pool::{FramePool, PoolState};
use super::queues::FramePlace;
use super::readers::ReaderRegistry;
use super::sync::Ordering;

/// Frames that are checked under one lock while many are loaned.
const LOAN_STEP_FRAMES: u32 = 1024;

/// The approximate memory of an open file beside its table: its handle, its path, its places in
/// maps.
const OPEN_FILE_BYTES: u64 = 1152;

/// Beside their tables, open files take up at most one part in `FILES_FRAMES_DIVISOR` of the
/// frames. Any excess is outside the budget.
const FILES_FRAMES_DIVISOR: u32 = 4;

/// Parts that are forgotten under one lock.
const FORGET_BATCH_PARTS: usize = 64;

/// Parts that are checked in search of one without live pages.
const PROBED_PARTS_MAX: usize = 16;

impl FramePool {
    /// Makes the pool loan as many frames as tables take up: `part_bytes` for each part,
    /// `frame_bytes` for each frame.
    pub(crate) fn loan_frames_to_tables(mut self, part_bytes: u64, frame_bytes: u64) -> Self {
        (self.part_bytes, self.frame_bytes) = (part_bytes, frame_bytes);
        self
    }

    /// Keeps at least `frames` frames on loan from now on.
    pub(crate) fn reserve(&self, frames: u32, readers: &ReaderRegistry) {
        self.reserved.store(frames, Ordering::Relaxed);
        self.settle_loans(readers);
    }

    /// Sets the number of frames in the budget, up to the existing ones. The memory of the others
    /// returns to the kernel.
    pub(crate) fn resize(&self, frames: u32, readers: &ReaderRegistry) {
        self.withheld.store(self.frames.saturating_sub(frames), Ordering::Relaxed);
        self.forget_parts(readers);
        self.settle_loans(readers);
    }

    /// Makes tables give up the parts beyond their share of the budget, the oldest first.
    fn forget_parts(&self, readers: &ReaderRegistry) {
        let mut left = self.lock().populated.len();
        while left > 0 {
            let mut state = self.lock();
            let state = &mut *state;
            for _ in 0..FORGET_BATCH_PARTS {
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

    /// Returns the number of all frames, in the budget or not.
    pub(crate) fn frames(&self) -> u32 {
        self.frames
    }

    /// Returns the number of frames in the budget.
    fn budgeted(&self) -> u32 {
        self.frames - self.withheld.load(Ordering::Relaxed)
    }

    /// Returns the number of table parts that may be taken up: the tables' share of the budget.
    fn most_parts(&self) -> usize {
        let share = self.parts_max as u128 * u128::from(self.budgeted()) / u128::from(self.frames);
        usize::try_from(share).unwrap_or(usize::MAX).max(1)
    }

    /// Returns the number of frames to use, given the memory that tables take up.
    pub(super) fn usable_frames(&self, state: &PoolState) -> u32 {
        if self.part_bytes == 0 {
            return self.frames;
        }
        let budgeted = self.budgeted();
        let as_frames = |parts: usize| {
            let bytes = (parts as u64).saturating_mul(self.part_bytes);
            u32::try_from(bytes.div_ceil(self.frame_bytes)).unwrap_or(u32::MAX)
        };
        // The maximum size of the tables, so that the number does not change as they are taken up.
        let reserved = self.reserved.load(Ordering::Relaxed).min(as_frames(self.most_parts()));
        let tables = as_frames(state.parts).max(reserved);
        let files = state.files.len() as u64 * OPEN_FILE_BYTES / self.frame_bytes;
        let files = u32::try_from(files).unwrap_or(u32::MAX).min(budgeted / FILES_FRAMES_DIVISOR);
        budgeted.saturating_sub(tables).saturating_sub(files).max(1)
    }

    /// Loans frames to tables, or takes them back, according to the memory that tables take up now.
    pub(super) fn settle_loans(&self, readers: &ReaderRegistry) {
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
            // Counted again after each step, since tables grow and the budget changes meanwhile.
            self.approach_limit(usable, readers);
        }
    }

    /// Sets the number of frames to use; the rest is on loan.
    #[cfg(test)]
    #[allow(dead_code, reason = "for the models, which compile this source a second time")]
    pub(crate) fn set_limit(&self, frames: u32, readers: &ReaderRegistry) {
        while !self.approach_limit(frames, readers) {}
    }

    /// Takes one step towards a limit, and retires the frames that the step takes out of use.
    /// Returns whether the limit is reached.
    fn approach_limit(&self, frames: u32, readers: &ReaderRegistry) -> bool {
        let is_there = self.step_to_limit(frames);
        if !is_there {
            self.retire(readers);
            self.collect(&mut self.lock(), readers);
        }
        is_there
    }

    /// Returns the number of frames to use.
    pub(crate) fn limit(&self) -> u32 {
        self.lock().limit
    }

    /// Moves the limit by one step. Returns whether nothing is left to do.
    fn step_to_limit(&self, frames: u32) -> bool {
        let mut state = self.lock();
        let state = &mut *state;
        let before = state.limit;
        let end =
            frames.clamp(before.saturating_sub(LOAN_STEP_FRAMES), before.saturating_add(LOAN_STEP_FRAMES));
        self.arena.move_end_of_huge_pages(before, end);
        state.limit = end;
        if frames > before {
            // The limit alone makes frames available that were never used.
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

    /// Notes that the frames below `end` were cleared before their first use. The memory of those
    /// past the limit returns to the kernel.
    pub(crate) fn note_cleared(&self, end: u32) {
        let mut state = self.lock();
        let kept = state.limit.max(state.free.first_unused()).min(end);
        for frame in kept..end {
            self.give_back(&state, frame);
        }
        state.cleared = state.cleared.max(kept);
    }

    /// Loans a frame, now or when it becomes free.
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

    /// Takes up a part of a table. If tables are at their limit, another part is forgotten.
    pub(super) fn populate(&self, state: &mut PoolState, file: &PageTable, page: u32) {
        state.parts += 1;
        state.populated.push_back((file.number, file.part_of(page)));
        if state.populated.len() > 2 * state.parts + 1024 {
            let files = &state.files;
            state.populated.retain(|(number, _)| files.contains_key(number));
        }
        let mut probes = PROBED_PARTS_MAX;
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

    /// Gives a frame's memory back to the kernel, or leaves that to the last frame of its kernel
    /// page. The frame is in no entry, nobody accesses it, and it is past the limit.
    pub(super) fn give_back(&self, state: &PoolState, frame: u32) {
        let together = self.arena.together(frame);
        let is_unused = |other: u32| {
            let place = state.queues.frame(other).place;
            other == frame || other >= state.limit && matches!(place, FramePlace::Free | FramePlace::OnLoan)
        };
        if together.clone().all(is_unused) {
            // SAFETY: each frame is free or becoming free (invariant 3 of the pool), was never
            // used, or is on loan. The lock is held: nobody reads them, and nobody can begin to
            // load into them.
            unsafe { self.arena.drop_memory(together) };
        }
    }
}
