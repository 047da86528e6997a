//! The log buffer: where records wait to be written. Any number of threads reserve room and fill it at once, without a lock;
//! one, the [`Taker`], takes whole blocks, in order.
//!
//! The buffer is a ring of its own: the byte of LSN x is at x modulo the capacity.
//!
//! Invariants:
//! 1. A range of LSNs belongs to one [`Span`]: one compare-and-swap of `reserved`, which only grows, reserves it.
//! 2. `taken <= reserved <= taken + capacity`: no two ranges that are in use share a byte of memory.
//! 3. A block's count is the number of its bytes that were filled since it was freed. The taker reads blocks only
//!    whose count is [`BLOCK`]: all who fill it are done. The counts' adds release and the taker's load acquires, so it sees
//!    what they wrote.
//! 4. Only the taker frees a block (zeroes its count, then raises `taken` by a releasing store), when nobody reads it any
//!    more. A thread that reserves acquires `taken`, so that its writes come after that.
//! 5. Between reserving and filling nothing can fail, panic or wait, so the taker never waits for ever.
//! 6. Data leaves [`SLACK`] bytes free, so that there is always room for the padding that a sync begins with.

#![allow(unsafe_code)]

use super::sync::{Arc, AtomicU32, AtomicU64, Memory, Ordering};
use crate::convert::to_usize;
use crate::record::{self, BLOCK, BLOCK_LEN};

/// Bytes of room that only padding may take: the longest padding is shorter.
pub(super) const SLACK: u64 = 2 * BLOCK;

/// Alone on its cache lines (x86-64 fetches them in pairs).
#[repr(align(128))]
#[derive(Debug)]
struct Apart<T>(T);

/// The log buffer.
#[derive(Debug)]
pub(super) struct Buffer {
    /// Just past the last byte that belongs to somebody.
    reserved: Apart<AtomicU64>,
    /// All before it was taken and given back.
    taken: Apart<AtomicU64>,
    /// Data is not to go beyond it.
    limit: AtomicU64,
    /// How many bytes of each block are filled.
    filled: Box<[AtomicU32]>,
    memory: Memory,
    capacity: u64,
}

/// Room that was reserved and has to be filled.
#[derive(Debug)]
#[must_use = "the taker waits for it"]
pub(super) struct Span {
    lsn: u64,
    len: u64,
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// What waits to be written fills the buffer.
    Buffer,
    /// The limit is reached.
    Limit,
}

/// The right to take out of a buffer: there is one of each.
#[derive(Debug)]
pub(super) struct Taker {
    buffer: Arc<Buffer>,
    at: u64,
}

impl Buffer {
    /// For LSNs from `start` on, a multiple of [`BLOCK`]; the capacity is a power of two of at least four blocks.
    pub(super) fn new(capacity: usize, start: u64, limit: u64) -> (Arc<Self>, Taker) {
        assert!(capacity.is_power_of_two() && capacity >= 4 * BLOCK_LEN && start.is_multiple_of(BLOCK));
        let buffer = Arc::new(Self {
            reserved: Apart(AtomicU64::new(start)),
            taken: Apart(AtomicU64::new(start)),
            limit: AtomicU64::new(limit),
            filled: (0..capacity / BLOCK_LEN).map(|_| AtomicU32::new(0)).collect(),
            memory: Memory::new(capacity),
            capacity: capacity as u64,
        });
        (Arc::clone(&buffer), Taker { buffer, at: start })
    }

    /// Where the next record will stand.
    pub(super) fn reserved(&self) -> u64 {
        self.reserved.0.load(Ordering::Acquire)
    }

    /// All before this was taken out: written to the file.
    pub(super) fn taken(&self) -> u64 {
        self.taken.0.load(Ordering::Acquire)
    }

    /// Bytes that it holds at most.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Lets data go up to this LSN, and no further. It is not lowered.
    pub(super) fn raise_limit(&self, limit: u64) {
        self.limit.fetch_max(limit, Ordering::AcqRel);
    }

    /// Room for `len` bytes of data, a multiple of 8.
    pub(super) fn reserve(&self, len: u64) -> Result<Span, NoRoom> {
        let mut lsn = self.reserved.0.load(Ordering::Relaxed);
        loop {
            let end = lsn + len + SLACK;
            if end > self.limit.load(Ordering::Acquire) {
                return Err(NoRoom::Limit);
            }
            if end > self.taken.0.load(Ordering::Acquire) + self.capacity {
                return Err(NoRoom::Buffer);
            }
            match self.take_number(lsn, len) {
                Ok(span) => return Ok(span),
                Err(now) => lsn = now,
            }
        }
    }

    /// Room for `len` bytes though the limit is reached, where nothing but a block start is behind. Only while
    /// the limit keeps everyone else out.
    #[cfg(any(test, feature = "injected-faults"))]
    pub(super) fn reserve_beyond_limit(&self, len: u64) -> Option<Span> {
        self.take_number(self.reserved(), len).ok()
    }

    /// Room for the padding that is due, and after it the LSN that a sync may end with; no span where a block starts.
    pub(super) fn reserve_padding(&self) -> (Option<Span>, u64) {
        let mut lsn = self.reserved.0.load(Ordering::Relaxed);
        loop {
            let len = record::padding_size(lsn);
            if len == 0 {
                return (None, lsn);
            }
            // What stands before it is data, which left the room (invariant 6).
            match self.take_number(lsn, len) {
                Ok(span) => return (Some(span), lsn + len),
                Err(now) => lsn = now,
            }
        }
    }

    /// Acquires what the holder of the span before saw given back: padding goes into the room that data left.
    fn take_number(&self, lsn: u64, len: u64) -> Result<Span, u64> {
        self.reserved
            .0
            .compare_exchange(lsn, lsn + len, Ordering::AcqRel, Ordering::Relaxed)
            .map(|_| Span { lsn, len })
    }

    /// Fills a span with the parts, one after the other, and zeros after them.
    #[expect(clippy::needless_pass_by_value, reason = "a span is filled once")]
    pub(super) fn fill(&self, span: Span, parts: [&[u8]; 2]) {
        let Span { mut lsn, len } = span;
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

    /// Copies bytes of a span to where they belong.
    fn put(&self, lsn: u64, bytes: &[u8]) {
        let at = self.at(lsn);
        let (front, back) = bytes.split_at(bytes.len().min(to_usize(self.capacity) - at));
        // SAFETY: `at` is below the capacity, and the front ends there at the latest. Only the holder of the span
        // touches it (invariant 1), no other range in use shares its memory (2), and the taker reads it when it
        // was counted, which is after this (3), and was done with what was there before it was reserved (4).
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

impl Span {
    /// Where it starts.
    pub(super) fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Just past it.
    pub(super) fn end(&self) -> u64 {
        self.lsn + self.len
    }
}

impl Taker {
    /// Where the next bytes to take stand.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The next whole blocks, as far as they lie together in memory and up to `max` bytes.
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
        // SAFETY: in bounds. All of these blocks is filled and nobody writes to it (invariant 3) before it is given back
        // (4), which takes this taker `&mut`: not while the bytes are borrowed.
        unsafe { buffer.memory.read(at, to_usize(len)) }
    }

    /// Gives back the first `len` bytes of what was ready: whole blocks.
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

/// A number of bytes of one block.
#[expect(clippy::cast_possible_truncation, reason = "at most a block")]
fn bytes(of_block: u64) -> u32 {
    of_block as u32
}
