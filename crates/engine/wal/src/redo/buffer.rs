//! The log buffer: records wait in it to be written. Any number of threads reserve room and fill it
//! concurrently, without a lock. One, the [`BlockTaker`], takes whole blocks, in order.
//!
//! The buffer is a ring of its own: the byte of LSN x is at x modulo the capacity.
//!
//! Invariants:
//! 1. A range of LSNs belongs to one [`ReservedSpan`]: one compare-and-swap of `reserved`, which
//!    only grows, reserves it.
//! 2. `taken <= reserved <= taken + capacity`: no two ranges in use share a byte of memory.
//! 3. A block's count is the number of its bytes that were filled since it was freed. The taker
//!    reads only blocks whose count is [`BLOCK`]: all threads that fill it are done. The additions
//!    to the count release and the taker's load acquires, so the taker sees the bytes they wrote.
//! 4. Only the taker frees a block, when nobody reads it any more: it zeroes the count, then raises
//!    `taken` by a releasing store. A thread that reserves acquires `taken`, so that its writes
//!    come after that.
//! 5. Between reserving and filling nothing can fail, panic or wait, so the taker never waits for
//!    ever.
//! 6. Data leaves [`PADDING_ROOM_BYTES`] bytes free, so that there is always room for the padding
//!    with which a sync begins.

#![allow(unsafe_code)]

use super::sync::{Arc, AtomicU32, AtomicU64, Ordering, UncheckedMemory};
use crate::convert::to_usize;
use crate::record::{self, BLOCK, BLOCK_LEN};

/// Bytes of room that only padding may use: the longest padding is shorter.
pub(super) const PADDING_ROOM_BYTES: u64 = 2 * BLOCK;

/// Bytes of memory that are populated by one call: others allocate memory in between.
const POPULATE_STEP_BYTES: usize = 64 << 10;

/// At most this much memory is populated: more may never be used.
const POPULATE_BYTES_MAX: usize = 64 << 20;

/// A value alone on its cache lines (x86-64 fetches them in pairs).
#[repr(align(128))]
#[derive(Debug)]
struct CachePadded<T>(T);

/// The log buffer.
#[derive(Debug)]
pub(super) struct LogBuffer {
    /// The end of the reserved bytes.
    reserved: CachePadded<AtomicU64>,
    /// Everything before this was taken and freed.
    taken: CachePadded<AtomicU64>,
    /// The limit for data.
    limit: AtomicU64,
    /// The number of filled bytes of each block.
    filled: Box<[AtomicU32]>,
    memory: UncheckedMemory,
    capacity: u64,
}

/// Room that was reserved and has to be filled.
#[derive(Debug)]
#[must_use = "the taker waits for it"]
pub(super) struct ReservedSpan {
    lsn: u64,
    len: u64,
}

/// The reason why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// Records that wait to be written fill the buffer.
    LogBuffer,
    /// The limit is reached.
    Limit,
}

/// The exclusive right to take blocks out of a buffer.
#[derive(Debug)]
pub(super) struct BlockTaker {
    buffer: Arc<LogBuffer>,
    at: u64,
}

impl LogBuffer {
    /// Creates a buffer for LSNs from `start` on, a multiple of [`BLOCK`]. The capacity is a power
    /// of two of at least four blocks.
    pub(super) fn new(capacity: usize, start: u64, limit: u64) -> (Arc<Self>, BlockTaker) {
        assert!(capacity.is_power_of_two() && capacity >= 4 * BLOCK_LEN && start.is_multiple_of(BLOCK));
        let buffer = Arc::new(Self {
            reserved: CachePadded(AtomicU64::new(start)),
            taken: CachePadded(AtomicU64::new(start)),
            limit: AtomicU64::new(limit),
            filled: (0..capacity / BLOCK_LEN).map(|_| AtomicU32::new(0)).collect(),
            memory: UncheckedMemory::new(capacity),
            capacity: capacity as u64,
        });
        (Arc::clone(&buffer), BlockTaker { buffer, at: start })
    }

    /// Returns the position of the next record.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved.0.load(Ordering::Acquire)
    }

    /// Returns the position before which everything was taken out: written to the file.
    pub(super) fn taken(&self) -> u64 {
        self.taken.0.load(Ordering::Acquire)
    }

    /// Returns the capacity in bytes.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Has the kernel allocate the memory, in the order in which it will be used, until `is_over`, and
    /// up to [`POPULATE_BYTES_MAX`]. A thread that fills a block without memory allocates that itself.
    pub(super) fn populate(&self, is_over: impl Fn() -> bool) {
        let capacity = to_usize(self.capacity);
        let step = POPULATE_STEP_BYTES.min(capacity);
        let first = self.at(self.reserved()) / step * step;
        let steps =
            (0..capacity.min(POPULATE_BYTES_MAX)).step_by(step).map(|behind| (first + behind) % capacity);
        let _ = steps.take_while(|_| !is_over()).all(|at| self.memory.populate(at..at + step));
    }

    /// Raises the limit for data to this LSN. It is never lowered.
    pub(super) fn raise_limit(&self, limit: u64) {
        self.limit.fetch_max(limit, Ordering::AcqRel);
    }

    /// Reserves room for `len` bytes of data, a multiple of 8.
    pub(super) fn reserve(&self, len: u64) -> Result<ReservedSpan, NoRoom> {
        let mut lsn = self.reserved.0.load(Ordering::Relaxed);
        loop {
            let end = lsn + len + PADDING_ROOM_BYTES;
            if end > self.limit.load(Ordering::Acquire) {
                return Err(NoRoom::Limit);
            }
            if end > self.taken.0.load(Ordering::Acquire) + self.capacity {
                return Err(NoRoom::LogBuffer);
            }
            match self.take_number(lsn, len) {
                Ok(span) => return Ok(span),
                Err(now) => lsn = now,
            }
        }
    }

    /// Reserves room for `len` bytes beyond the limit, directly behind a block start. Only valid
    /// while the limit keeps everyone else out.
    #[cfg(any(test, feature = "injected-faults"))]
    pub(super) fn reserve_beyond_limit(&self, len: u64) -> Option<ReservedSpan> {
        self.take_number(self.reserved(), len).ok()
    }

    /// Reserves room for the due padding, and returns the LSN behind it, with which a sync may end.
    /// Returns no span if a block starts here.
    pub(super) fn reserve_padding(&self) -> (Option<ReservedSpan>, u64) {
        let mut lsn = self.reserved.0.load(Ordering::Relaxed);
        loop {
            let len = record::padding_size(lsn);
            if len == 0 {
                return (None, lsn);
            }
            // The bytes before it are data, which left the room (invariant 6).
            match self.take_number(lsn, len) {
                Ok(span) => return (Some(span), lsn + len),
                Err(now) => lsn = now,
            }
        }
    }

    /// Advances `reserved`. It acquires the freed memory that the holder of the previous span saw:
    /// padding goes into the room that data left.
    fn take_number(&self, lsn: u64, len: u64) -> Result<ReservedSpan, u64> {
        self.reserved
            .0
            .compare_exchange(lsn, lsn + len, Ordering::AcqRel, Ordering::Relaxed)
            .map(|_| ReservedSpan { lsn, len })
    }

    /// Fills a span with the parts, one after the other, and then zeros.
    #[expect(clippy::needless_pass_by_value, reason = "a span is filled once")]
    pub(super) fn fill(&self, span: ReservedSpan, parts: [&[u8]; 2]) {
        let ReservedSpan { mut lsn, len } = span;
        let (start, end) = (lsn, lsn + len);
        for part in parts {
            let part = &part[..part.len().min(to_usize(end - lsn))];
            self.put(lsn, part);
            lsn += part.len() as u64;
        }
        self.put(lsn, &[0; 8][..to_usize(end - lsn).min(8)]);
        let mut from = start;
        while from < end {
            let upto = (from - from % BLOCK + BLOCK).min(end);
            // Releases: invariant 3.
            self.filled[self.block(from)].fetch_add(bytes(upto - from), Ordering::Release);
            from = upto;
        }
    }

    /// Copies bytes of a span to their place.
    fn put(&self, lsn: u64, bytes: &[u8]) {
        let at = self.at(lsn);
        let (front, back) = bytes.split_at(bytes.len().min(to_usize(self.capacity) - at));
        // SAFETY: `at` is below the capacity, and the front ends at the capacity or before. Only
        // the holder of the span touches this memory (invariant 1), and no other range in use
        // shares it (2). The taker reads it only after it was counted, which is after this (3), and
        // was done with the previous content before it was reserved (4).
        unsafe { self.memory.write(at, front) };
        if !back.is_empty() {
            // SAFETY: as above; the back is shorter than the capacity, since the span is (2).
            unsafe { self.memory.write(0, back) };
        }
    }

    fn at(&self, lsn: u64) -> usize {
        to_usize(lsn & (self.capacity - 1))
    }

    fn block(&self, lsn: u64) -> usize {
        self.at(lsn) / BLOCK_LEN
    }
}

impl ReservedSpan {
    /// Returns its start.
    pub(super) fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Returns its end.
    pub(super) fn end(&self) -> u64 {
        self.lsn + self.len
    }
}

impl BlockTaker {
    /// Returns the position of the next bytes to take.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Returns the next whole blocks that lie together in memory, up to `max` bytes.
    pub(super) fn ready(&self, max: u64) -> &[u8] {
        let buffer = &*self.buffer;
        let at = buffer.at(self.at);
        let max = max.min(buffer.capacity - at as u64);
        let mut len = 0;
        while len < max
            && buffer.filled[(at + to_usize(len)) / BLOCK_LEN].load(Ordering::Acquire) == bytes(BLOCK)
        {
            len += BLOCK;
        }
        // SAFETY: in bounds. Each of these blocks is filled, and nobody writes to it (invariant 3)
        // before it is given back (4). That takes this taker `&mut`, so it can't happen while the
        // bytes are borrowed.
        unsafe { buffer.memory.read(at, to_usize(len)) }
    }

    /// Frees the first `len` bytes of the ready blocks: whole blocks.
    pub(super) fn give_back(&mut self, len: usize) {
        assert!(len.is_multiple_of(BLOCK_LEN) && len <= self.ready(len as u64).len());
        let buffer = &*self.buffer;
        let first = buffer.block(self.at);
        for block in &buffer.filled[first..first + len / BLOCK_LEN] {
            block.store(0, Ordering::Relaxed);
        }
        self.at += len as u64;
        buffer.taken.0.store(self.at, Ordering::Release);
    }
}

/// Converts a number of bytes within one block.
#[expect(clippy::cast_possible_truncation, reason = "at most a block")]
fn bytes(of_block: u64) -> u32 {
    of_block as u32
}
