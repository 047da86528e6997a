//! The mapped ring buffer into which the programs write records (`Documentation/bpf/ringbuf.rst`).
//!
//! Invariants: only the kernel writes the data and the producer's position, and only this process
//! the consumer's. A record is read only between the two, and before the consumer's position passes
//! it. Records that were read are given back at once. Fails if it can't be mapped.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagekeeper_kernel::page_size;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::sys::BpfMap;

/// Bits of a record's length: set while it is written, and if it is to be skipped.
const RECORD_BUSY_BIT: u32 = 1 << 31;
const RECORD_DISCARDED_BIT: u32 = 1 << 30;
const RECORD_HEADER_BYTES: u64 = 8;

/// A mapping of this process, unmapped when dropped.
#[derive(Debug)]
struct MappedRegion {
    start: NonNull<u8>,
    len: usize,
}

impl MappedRegion {
    fn new(map: &BpfMap, offset: u64, len: usize, protection: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: the kernel chooses an address where nothing is mapped, and no memory of this
        // process changes.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, map.fd(), offset)? };
        NonNull::new(start.cast()).map(|start| Self { start, len }).ok_or(Errno::INVAL)
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        // SAFETY: it was mapped with that length, and nothing refers to it any more: borrows of it
        // end with this value.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the mapping belongs to the process, not to a thread; what is shared with the kernel is
// read and written by atomics.
unsafe impl Send for MappedRegion {}

/// The reading side of a ring buffer.
#[derive(Debug)]
pub(crate) struct RingBuffer {
    consumer: MappedRegion,
    /// The producer's position in its first page, followed by the data, twice, so that no record is
    /// cut in two.
    producer: MappedRegion,
    size: u64,
}

impl RingBuffer {
    /// Maps a buffer of `size` bytes, a power of two.
    pub(crate) fn new(map: &BpfMap, size: u32) -> Result<Self, Errno> {
        let page = usize::try_from(page_size()).map_err(|_| Errno::INVAL)?;
        let consumer = MappedRegion::new(map, 0, page, ProtFlags::READ | ProtFlags::WRITE)?;
        let producer = MappedRegion::new(map, page_size(), page + 2 * size as usize, ProtFlags::READ)?;
        Ok(Self { consumer, producer, size: u64::from(size) })
    }

    fn position(mapping: &MappedRegion) -> &AtomicU64 {
        // SAFETY: a mapping begins with a page, which holds a position of eight bytes, aligned; it
        // is only used as an atomic, here and in the kernel, and lives as long as the borrow.
        unsafe { mapping.start.cast::<AtomicU64>().as_ref() }
    }

    /// Passes each available record to `take`, oldest first, and gives its place back; at most one
    /// buffer's worth.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(&[u8])) {
        let mut at = Self::position(&self.consumer).load(Ordering::Relaxed);
        let end = Self::position(&self.producer).load(Ordering::Acquire);
        while at < end {
            let Some(length) = self.record(at, end, &mut take) else { return };
            at += length;
            Self::position(&self.consumer).store(at, Ordering::Release);
        }
    }

    /// Returns the length of a record with its header; `None` while it is being written.
    fn record(&self, at: u64, end: u64, take: &mut impl FnMut(&[u8])) -> Option<u64> {
        let offset = usize::try_from(page_size() + (at & (self.size - 1))).ok()?;
        // SAFETY: the offset is within the first copy of the data, which is followed by a second,
        // so eight bytes are there; records begin at multiples of eight, and the length is only
        // used as an atomic.
        let header =
            unsafe { self.producer.start.add(offset).cast::<AtomicU32>().as_ref() }.load(Ordering::Acquire);
        if header & RECORD_BUSY_BIT != 0 {
            return None;
        }
        let length = u64::from(header & !RECORD_DISCARDED_BIT);
        let whole = (length + RECORD_HEADER_BYTES).next_multiple_of(8);
        // The kernel guarantees this; a longer record would lead out of the mapping.
        if at + whole > end || whole > self.size {
            return None;
        }
        if header & RECORD_DISCARDED_BIT == 0 {
            // SAFETY: the record lies within the two copies of the data: it begins in the first and
            // is no longer than one, as just checked. The kernel has finished it and writes nothing
            // there until the consumer's position has passed it, which this borrow does not
            // outlive.
            let bytes = unsafe {
                std::slice::from_raw_parts(
                    self.producer.start.add(offset + 8).as_ptr(),
                    usize::try_from(length).ok()?,
                )
            };
            take(bytes);
        }
        Some(whole)
    }
}
