//! Frames that are ready for use: those that were used before, and those that never were, of which nothing is recorded yet.
//!
//! Invariants: a frame that was never used is in no list, holds no page and has no record; they are used from the lowest on, so that those to be
//! loaned, the highest, are the last to be touched. A cache takes up memory for its records as it fills. Kept under the pool's lock; nothing fails.

/// Ready frames.
#[derive(Debug)]
pub(crate) struct FreeFrames {
    /// Were used; the last one goes first.
    used: Vec<u32>,
    /// From this one on none was ever used.
    unused: u32,
}

impl FreeFrames {
    /// So many, none of them used.
    pub(crate) fn new(frames: u32) -> Self {
        // Room that is not touched: no copy of a long list later, under the lock.
        Self { used: Vec::with_capacity(frames as usize), unused: 0 }
    }

    /// Takes one, of those below the limit.
    pub(crate) fn take(&mut self, limit: u32) -> Option<u32> {
        self.used.pop().or_else(|| {
            let first = self.unused;
            let is_there = first < limit;
            self.unused += u32::from(is_there);
            is_there.then_some(first)
        })
    }

    /// How many there are below the limit.
    pub(crate) fn len(&self, limit: u32) -> usize {
        self.used.len() + limit.saturating_sub(self.unused) as usize
    }

    pub(crate) fn is_empty(&self, limit: u32) -> bool {
        self.len(limit) == 0
    }

    /// Gives one back that was taken.
    pub(crate) fn put(&mut self, frame: u32) {
        self.used.push(frame);
    }

    /// From this one on no frame was ever used: it has nothing to give back.
    pub(crate) fn first_unused(&self) -> u32 {
        self.unused
    }

    /// Takes those out that are from `end` on and were used.
    pub(crate) fn keep_below(&mut self, end: u32) {
        self.used.retain(|&frame| frame < end);
    }

    /// All that were used, for checks.
    #[cfg(test)]
    pub(crate) fn used(&self) -> &[u32] {
        &self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_used_go_first_and_none_beyond_the_limit() {
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
