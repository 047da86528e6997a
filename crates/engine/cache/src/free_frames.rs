//! Free frames: frames that were used before, and frames that never were, for which nothing is
//! recorded yet.
//!
//! Invariants: a frame that was never used is in no list, holds no page and has no record. Frames
//! are used from the lowest on, so the highest frames, which are loaned first, are touched last. A
//! cache takes up memory for its records as it fills. Kept under the pool's lock; nothing fails.

/// The free frames.
#[derive(Debug)]
pub(crate) struct FreeFrames {
    /// Frames that were used; the last one is taken first.
    used: Vec<u32>,
    /// No frame from this one on was ever used.
    unused: u32,
}

impl FreeFrames {
    /// Creates `frames` free frames that were never used.
    pub(crate) fn new(frames: u32) -> Self {
        // The memory is reserved but not touched, so that a long list is never copied under the
        // lock.
        Self { used: Vec::with_capacity(frames as usize), unused: 0 }
    }

    /// Takes a free frame below the limit.
    pub(crate) fn take(&mut self, limit: u32) -> Option<u32> {
        self.used.pop().or_else(|| {
            let first = self.unused;
            let is_there = first < limit;
            self.unused += u32::from(is_there);
            is_there.then_some(first)
        })
    }

    /// Returns the number of free frames below the limit.
    pub(crate) fn len(&self, limit: u32) -> usize {
        self.used.len() + limit.saturating_sub(self.unused) as usize
    }

    pub(crate) fn is_empty(&self, limit: u32) -> bool {
        self.len(limit) == 0
    }

    /// Returns a frame that was taken.
    pub(crate) fn put(&mut self, frame: u32) {
        self.used.push(frame);
    }

    /// Returns the first frame that was never used. It and those above it have no memory to give
    /// back.
    pub(crate) fn first_unused(&self) -> u32 {
        self.unused
    }

    /// Removes the used frames from `end` on.
    pub(crate) fn keep_below(&mut self, end: u32) {
        self.used.retain(|&frame| frame < end);
    }

    /// Returns all used frames, for checks.
    #[cfg(test)]
    pub(crate) fn used(&self) -> &[u32] {
        &self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_frames_are_returned_first_up_to_the_limit() {
        let mut free = FreeFrames::new(4);
        assert_eq!((free.take(4), free.take(4), free.len(4)), (Some(0), Some(1), 2));
        free.put(0);
        assert_eq!((free.take(4), free.take(2), free.is_empty(2), free.len(3)), (Some(0), None, true, 1));
        assert_eq!((free.take(3), free.first_unused(), free.take(3)), (Some(2), 3, None));
        free.put(1);
        free.put(2);
        free.keep_below(2);
        assert_eq!((free.used(), free.len(1)), (&[1][..], 1));
    }
}
