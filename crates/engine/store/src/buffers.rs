//! Memory for pages that are not in the cache: what is given back is kept, and taken again.
//!
//! A page is made by the thread that commits it, and released by the one that applies it. An allocator with a heap for each thread
//! keeps what was released for the thread that asked for it first, so that many threads that commit hold several times of what
//! is in use.
//!
//! Invariants: all buffers have the size of a page; no more than so many are kept that nobody uses.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use pagekeeper_io::Process;
use pagekeeper_kernel::mutex::lock;

/// Where pages come from.
pub(crate) struct Buffers {
    page_size: usize,
    max_kept: usize,
    kept: Mutex<Vec<Box<[u8]>>>,
    process: Process,
}

impl Buffers {
    /// For pages of so many bytes, of which at most so many are kept that nobody uses.
    pub(crate) fn new(page_size: usize, max_kept: usize) -> Arc<Self> {
        Arc::new(Self { page_size, max_kept, kept: Mutex::default(), process: Process::current() })
    }

    fn take(self: &Arc<Self>) -> Option<Box<[u8]>> {
        lock(&self.kept).pop()
    }

    fn page(self: &Arc<Self>, bytes: Box<[u8]>) -> PageBuf {
        PageBuf(Arc::new(Held { bytes, home: Arc::clone(self) }))
    }

    /// A page of zeros.
    pub(crate) fn zeroed(self: &Arc<Self>) -> PageBuf {
        match self.take() {
            Some(mut bytes) => {
                bytes.fill(0);
                self.page(bytes)
            }
            None => self.page(vec![0; self.page_size].into()),
        }
    }

    /// A page with these bytes, which are a page's.
    pub(crate) fn copy(self: &Arc<Self>, page: &[u8]) -> PageBuf {
        match self.take() {
            Some(mut bytes) => {
                bytes.copy_from_slice(page);
                self.page(bytes)
            }
            None => self.page(page.into()),
        }
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("page_size", &self.page_size).finish_non_exhaustive()
    }
}

/// A page in memory, header and payload. Clones share the bytes.
#[derive(Debug, Clone)]
pub(crate) struct PageBuf(Arc<Held>);

#[derive(Debug)]
struct Held {
    bytes: Box<[u8]>,
    home: Arc<Buffers>,
}

impl PageBuf {
    /// The bytes to change, which are its own from then on.
    pub(crate) fn make_mut(&mut self) -> &mut [u8] {
        if Arc::get_mut(&mut self.0).is_none() {
            *self = self.0.home.copy(self);
        }
        match Arc::get_mut(&mut self.0) {
            Some(held) => &mut held.bytes,
            None => unreachable!("nobody else has it"),
        }
    }
}

impl Deref for PageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.home.process.is_current() {
            return;
        }
        let bytes = std::mem::take(&mut self.bytes);
        let mut kept = lock(&self.home.kept);
        if kept.len() < self.home.max_kept {
            kept.push(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_shared_is_copied_before_it_is_changed() {
        let buffers = Buffers::new(8, 4);
        let mut first = buffers.copy(b"as it is");
        let second = first.clone();
        first.make_mut()[..2].copy_from_slice(b"so");
        assert_eq!((&first[..], &second[..]), (&b"so it is"[..], &b"as it is"[..]));
        let before = first.as_ptr();
        first.make_mut()[0] = b'S';
        assert_eq!(first.as_ptr(), before);
    }

    #[test]
    fn memory_is_used_again_and_not_kept_without_bound() {
        let buffers = Buffers::new(8, 2);
        let used: Vec<PageBuf> = (0..5_u8).map(|byte| buffers.copy(&[byte; 8])).collect();
        let shared = used[0].clone();
        drop(used);
        assert_eq!(lock(&buffers.kept).len(), 2);
        drop(shared);
        assert_eq!(lock(&buffers.kept).len(), 2);
        let kept: Vec<*const u8> = lock(&buffers.kept).iter().map(|bytes| bytes.as_ptr()).collect();
        let again = [buffers.zeroed(), buffers.copy(&[7; 8])];
        assert!(again.iter().all(|page| kept.contains(&page.as_ptr())));
        assert_eq!((&again[0][..], &again[1][..]), (&[0; 8][..], &[7; 8][..]));
    }
}
