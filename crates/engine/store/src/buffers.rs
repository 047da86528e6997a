//! Memory for pages that are not in the cache. Buffers that are given back are kept for reuse.
//!
//! One thread commits a page, and another releases it when it is applied. An allocator with
//! per-thread heaps keeps freed memory for the thread that allocated it, so many committing threads
//! would hold several times the memory in use.
//!
//! Invariants: all buffers have the size of a page; at most `max_kept` unused ones are kept.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use pagekeeper_io::Process;
use pagekeeper_kernel::mutex::lock;

/// A pool of page buffers.
pub(crate) struct BufferPool {
    page_size: usize,
    max_kept: usize,
    kept: Mutex<Vec<Box<[u8]>>>,
    process: Process,
}

impl BufferPool {
    /// Creates a pool of buffers of `page_size` bytes, which keeps at most `max_kept` unused ones.
    pub(crate) fn new(page_size: usize, max_kept: usize) -> Arc<Self> {
        Arc::new(Self { page_size, max_kept, kept: Mutex::default(), process: Process::current() })
    }

    fn take(self: &Arc<Self>) -> Option<Box<[u8]>> {
        lock(&self.kept).pop()
    }

    fn page(self: &Arc<Self>, bytes: Box<[u8]>) -> PageBuf {
        PageBuf(Arc::new(PooledBytes { bytes, home: Arc::clone(self) }))
    }

    /// Returns a page of zeros.
    pub(crate) fn zeroed(self: &Arc<Self>) -> PageBuf {
        match self.take() {
            Some(mut bytes) => {
                bytes.fill(0);
                self.page(bytes)
            }
            None => self.page(vec![0; self.page_size].into()),
        }
    }

    /// Returns a page with a copy of these bytes, whose length is a page's.
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

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("page_size", &self.page_size).finish_non_exhaustive()
    }
}

/// A page in memory, header and payload. Clones share the bytes.
#[derive(Debug, Clone)]
pub(crate) struct PageBuf(Arc<PooledBytes>);

#[derive(Debug)]
struct PooledBytes {
    bytes: Box<[u8]>,
    home: Arc<BufferPool>,
}

impl PageBuf {
    /// Returns the bytes for changing. If they were shared, this page gets a copy of its own first.
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

impl Drop for PooledBytes {
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
        let buffers = BufferPool::new(8, 4);
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
        let buffers = BufferPool::new(8, 2);
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
