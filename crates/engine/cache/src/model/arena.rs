//! Replaces `arena`: a frame is a number that loom watches, so that it reports a write that races
//! with another access.

#![allow(unsafe_code)]

use std::ops::Range;

use loom::cell::UnsafeCell;

/// Frames of one number each.
#[derive(Debug)]
pub(crate) struct FrameArena(Vec<UnsafeCell<u64>>);

// SAFETY: loom runs one thread at a time, and ends the model at the first access that is not
// ordered after the accesses that it must not overlap with.
unsafe impl Send for FrameArena {}
// SAFETY: as above.
unsafe impl Sync for FrameArena {}

impl FrameArena {
    pub(crate) fn new(frames: u32) -> Self {
        Self((0..frames).map(|_| UnsafeCell::new(0)).collect())
    }

    /// Returns the content of a frame.
    pub(crate) fn read(&self, frame: u32) -> u64 {
        // SAFETY: the address is that of a number in this value, and valid within the call; for
        // races see above.
        self.0[frame as usize].with(|number| unsafe { *number })
    }

    /// Loads a page into a frame.
    pub(crate) fn write(&self, frame: u32, content: u64) {
        // SAFETY: as in `read`.
        self.0[frame as usize].with_mut(|number| unsafe { *number = content });
    }

    /// Each frame has a kernel page of its own.
    #[expect(clippy::unused_self, reason = "same signature as the real arena")]
    pub(crate) fn together(&self, frame: u32) -> Range<u32> {
        frame..frame + 1
    }

    /// The model has no huge pages.
    #[expect(clippy::unused_self, reason = "same signature as the real arena")]
    pub(crate) fn move_end_of_huge_pages(&self, _before: u32, _now: u32) {}

    /// Like the real arena: the frames then read as zeros.
    ///
    /// # Safety
    ///
    /// As for the real arena; loom reports violations here.
    pub(crate) unsafe fn drop_memory(&self, frames: Range<u32>) {
        frames.for_each(|frame| self.write(frame, 0));
    }
}
