//! Memory beside the cache, for a page that no frame could be had for. Aligned for direct I/O.

#![allow(unsafe_code)]

use std::ptr::NonNull;

use pagekeeper_io::Target;

/// What every file system's direct I/O is content with.
const ALIGN: usize = 4096;

/// Room for one page.
#[derive(Debug)]
pub(crate) struct Private {
    memory: Box<[u8]>,
    start: usize,
    len: usize,
}

impl Private {
    /// Room for `len` bytes, zeros.
    pub(crate) fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGN].into_boxed_slice();
        let start = memory.as_ptr().align_offset(ALIGN);
        Self { memory, start, len }
    }

    pub(crate) fn whole(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    /// The first `len` bytes.
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        &self.memory[self.start..self.start + len.min(self.len)]
    }

    /// The memory, for a read that fills it while `self` waits, unmoved on the heap, in the read's `done`.
    pub(crate) fn target(&mut self) -> Target {
        let len = self.len;
        let start = NonNull::from(self.whole()).cast();
        // SAFETY: the heap memory lives as long as `self`, wherever that is moved; the caller moves `self` into the `done`
        // of the read that the target is for, and nobody looks at it before `done` is called.
        unsafe { Target::new(start, len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_aligned_and_as_long_as_asked_for() {
        for len in [4096, 65536] {
            let mut private = Private::new(len);
            assert_eq!(private.whole().as_ptr().addr() % ALIGN, 0);
            assert_eq!(private.whole().len(), len);
            private.whole().fill(7);
            assert_eq!(private.bytes(10), [7; 10]);
        }
    }
}
