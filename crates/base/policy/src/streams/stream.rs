//! Streams: the pages of a file that a stream of reads brought in, and so may give back.
//!
//! Windows of 2 MiB are sampled before the kernel's read-ahead reaches them. A window without
//! resident pages belongs to the stream; of other windows, only the pages that were missing do.
//! Windows behind the reader are released. The last window of each release is released once more
//! with the next, since pages that are still being read in stay. At the end, read-ahead pages are
//! released too: as far as reads of this size can have caused them, and only in windows that were
//! sampled recently.
//!
//! For a reader at a new position, only one window more is sampled until its reads are in order.
//! Readers that keep jumping are handled by [`crate::scattered`].
//!
//! Invariants:
//! 1. A page is released only if it was sampled before the stream came near it, and was not
//!    resident then.
//! 2. Pages that were not, or could not be, sampled are left alone. So are pages beyond the end
//!    that the file had when it was sampled.
//! 3. Nothing is allocated, and nothing panics for any position.

use core::ops::Range;

use crate::{PAGE_BYTES, WINDOW};

/// Bytes sampled ahead of a reader. Read-ahead is up to two of its windows ahead, each at most 8
/// MiB on most disks, and `POSIX_FADV_SEQUENTIAL` doubles it (Linux 6.18). Pages that a larger
/// read-ahead brings in beyond this are left alone.
pub const SAMPLE_AHEAD_BYTES: u64 = 40 << 20;
/// Bytes ahead of a reader that read-ahead may have reached. Windows beyond can be sampled again
/// ([`ReadStream::sample_again`]).
pub const READ_AHEAD_REACH_BYTES: u64 = 16 << 20;
/// Bytes in a row from which on reads count as in order.
pub const IN_ORDER_BYTES: u64 = 256 << 10;

/// Windows sampled ahead: of a reader in order, and of another one.
const IN_ORDER_WINDOWS_AHEAD: u64 = SAMPLE_AHEAD_BYTES / WINDOW;
const JUMPING_WINDOWS_AHEAD: u64 = 1;
/// Minimum number of windows sampled together.
const SAMPLE_STEP_WINDOWS: u64 = 4;
/// Windows behind a reader that is not in order, from which on they are released anyway.
const WINDOWS_BEHIND_MAX: u64 = 32;
/// Maximum number of windows known at a time.
const KNOWN_WINDOWS_MAX: usize = 128;
const PAGES_PER_WINDOW: u64 = WINDOW / PAGE_BYTES;
/// File ends are rounded up to this size: the largest page.
const LARGE_PAGE_BYTES: u64 = 64 << 10;
/// Upper limit of bytes read ahead per byte read. The first read-ahead is up to 8 times the first
/// read, each further one 4 times the previous one, and each starts when the reader reaches the
/// previous one.
const READ_AHEAD_RATIO_MAX: u64 = 64;
/// The largest file offset: offsets are signed.
pub(crate) const OFFSET_MAX: u64 = i64::MAX as u64;

// States of a window. From `PARTIAL_WINDOW` on, the difference to it is the index of the window's
// bits.
const UNKNOWN_WINDOW: u8 = 0;
const EMPTY_WINDOW: u8 = 1;
const FULL_WINDOW: u8 = 2;
const PARTIAL_WINDOW: u8 = 3;

/// The state of a file that is read as a stream and whose reads are all seen: about 1.8 KiB,
/// without other memory.
pub type ReadStream = StreamWindows<26>;

/// The state of a file that is only sampled now and then. All windows may be partly resident, since
/// many are sampled ahead. 8 KiB.
pub type WatchedStream = StreamWindows<KNOWN_WINDOWS_MAX>;

/// The state of a file that is read as a stream. At most `PARTIAL_MAX` of the known windows may be
/// partly resident; the maximum is 128.
#[derive(Debug, Clone, Copy)]
pub struct StreamWindows<const PARTIAL_MAX: usize> {
    /// The known windows: from `first` up to `sampled`.
    first: u64,
    sampled: u64,
    /// Windows before this one were released.
    released: u64,
    /// The reader's position, and the bytes read in a row up to there.
    position: u64,
    run: u64,
    begun: bool,
    /// The furthest position reached, the total bytes read, and the end of the program's own
    /// prefetches.
    reached: u64,
    sum: u64,
    prefetched: u64,
    /// Windows before this one were sampled long ago.
    old: u64,
    /// State by window, modulo their number.
    seen: [u8; KNOWN_WINDOWS_MAX],
    /// The elements of `bits` in use.
    used: u128,
    /// Bits of pages that do not belong to the stream.
    bits: [[u64; (PAGES_PER_WINDOW / 64) as usize]; PARTIAL_MAX],
}

impl<const PARTIAL_MAX: usize> Default for StreamWindows<PARTIAL_MAX> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const PARTIAL_MAX: usize> StreamWindows<PARTIAL_MAX> {
    /// Returns the initial state: all zeros, so that static memory of it takes no space in an
    /// executable.
    pub const fn new() -> Self {
        Self {
            first: 0,
            sampled: 0,
            released: 0,
            position: 0,
            run: 0,
            begun: false,
            reached: 0,
            sum: 0,
            prefetched: 0,
            old: 0,
            seen: [UNKNOWN_WINDOW; KNOWN_WINDOWS_MAX],
            used: 0,
            bits: [[0; (PAGES_PER_WINDOW / 64) as usize]; PARTIAL_MAX],
        }
    }

    /// Whether a read at `at` is so far from the earlier ones that it is a new start. The caller
    /// then releases what is [left](Self::remaining_ranges) and [forgets](Self::forget) everything.
    pub fn jumps(&self, at: u64) -> bool {
        self.begun
            && at != self.position
            && !(self.first * WINDOW <= at && at <= self.sampled.saturating_mul(WINDOW))
    }

    /// Returns the range to sample before `length` bytes are read at `at` of a file of `size`
    /// bytes. The range ends at the end of the file or of a window. The caller reports the samples
    /// by [`record_residency`](Self::record_residency); parts that are not reported are left alone.
    ///
    /// ```
    /// use pagekeeper_policy::stream::ReadStream;
    ///
    /// let mut stream = ReadStream::new();
    /// let range = stream.sample_for_read(0, 65536, 10 << 20).unwrap();
    /// assert_eq!(range, 0..10 << 20);
    /// assert!(stream.record_residency(&range, 0));
    /// assert_eq!(stream.passed(0, 3 << 20).collect::<Vec<_>>(), [0..2 << 20]);
    /// assert_eq!(stream.remaining_ranges().collect::<Vec<_>>(), [0..10 << 20]);
    /// ```
    pub fn sample_for_read(&mut self, at: u64, length: u64, size: u64) -> Option<Range<u64>> {
        let (at, size) = (at.min(OFFSET_MAX), size.min(OFFSET_MAX));
        if !self.begun {
            self.begun = true;
            self.position = at;
            // A file that is read from its start counts as read in order.
            self.run = if at == 0 { IN_ORDER_BYTES } else { 0 };
            (self.first, self.sampled, self.released) = (at / WINDOW, at / WINDOW, at / WINDOW);
        }
        let run = if at == self.position { self.run } else { 0 }.saturating_add(length);
        let ahead = if run >= IN_ORDER_BYTES { IN_ORDER_WINDOWS_AHEAD } else { JUMPING_WINDOWS_AHEAD };
        let end = size.div_ceil(WINDOW);
        let read = at.saturating_add(length).min(size).div_ceil(WINDOW);
        if self.sampled
            >= (read + ahead).saturating_sub(SAMPLE_STEP_WINDOWS).max(read + JUMPING_WINDOWS_AHEAD).min(end)
        {
            return None;
        }
        if self.first == self.sampled {
            // Bytes that were read without a sample are left alone.
            (self.first, self.sampled, self.released) = (at / WINDOW, at / WINDOW, at / WINDOW);
        }
        self.extend((read + ahead).min(end), size)
    }

    /// Returns the range to sample before the program prefetches `length` bytes at `at` and
    /// continues at its position, as in [`sample_for_read`](Self::sample_for_read). Parts without
    /// room in the state are left alone.
    ///
    /// ```
    /// use pagekeeper_policy::stream::ReadStream;
    ///
    /// let mut stream = ReadStream::new();
    /// let range = stream.sample_for_read(0, 65536, 1 << 30).unwrap();
    /// assert_eq!(range, 0..42 << 20);
    /// assert_eq!(stream.sample_for_prefetch(80 << 20, 1 << 20, 1 << 30), Some(42 << 20..82 << 20));
    /// assert!(!stream.jumps(65536));
    /// assert_eq!(stream.sample_for_prefetch(900 << 20, 1 << 20, 1 << 30), None);
    /// ```
    pub fn sample_for_prefetch(&mut self, at: u64, length: u64, size: u64) -> Option<Range<u64>> {
        let (at, size) = (at.min(OFFSET_MAX), size.min(OFFSET_MAX));
        let range = if self.begun {
            let to = at.saturating_add(length).min(size).div_ceil(WINDOW);
            // If nothing is known, or the state has no room up to there, the windows would
            // belong to no reader.
            let is_near = !self.is_idle() && self.first <= at / WINDOW && at / WINDOW < self.room();
            if is_near { self.extend(to, size) } else { None }
        } else {
            self.sample_for_read(at, length, size)
        };
        if (self.first..self.sampled).contains(&(at / WINDOW)) {
            self.prefetched = self.prefetched.max(at.saturating_add(length));
        }
        range
    }

    /// Returns the end of the windows that can be known without forgetting windows yet to be
    /// released.
    fn room(&self) -> u64 {
        self.first.max(self.released.saturating_sub(1)) + KNOWN_WINDOWS_MAX as u64
    }

    /// Makes the windows before `target` known. Returns the range to sample.
    fn extend(&mut self, target: u64, size: u64) -> Option<Range<u64>> {
        // Makes room, but keeps windows yet to be released.
        let oldest = target.saturating_sub(KNOWN_WINDOWS_MAX as u64).min(self.released.saturating_sub(1));
        while self.first < oldest {
            self.set(self.first, UNKNOWN_WINDOW);
            self.first += 1;
        }
        let target = target.min(self.first + KNOWN_WINDOWS_MAX as u64);
        if target <= self.sampled {
            return None;
        }
        let range = self.sampled * WINDOW..(target * WINDOW).min(size);
        while self.sampled < target {
            self.seen[slot(self.sampled)] = UNKNOWN_WINDOW;
            self.sampled += 1;
        }
        Some(range)
    }

    /// Records that the last sample is old, with the reader at `at`. Windows beyond the reach of
    /// read-ahead must be sampled again before they count as the stream's, since others may have
    /// brought them in. Nearer windows are released when the reader passes them, but not if it ends
    /// before.
    ///
    /// ```
    /// use pagekeeper_policy::stream::{READ_AHEAD_REACH_BYTES, ReadStream};
    ///
    /// let mut stream = ReadStream::new();
    /// let range = stream.sample_for_read(0, 65536, 1 << 30).unwrap();
    /// assert!(range.end > READ_AHEAD_REACH_BYTES && stream.record_residency(&range, 0));
    /// stream.sample_again(0);
    /// assert_eq!(stream.remaining_ranges().last(), None);
    /// assert_eq!(stream.sample_for_read(0, 65536, 1 << 30), Some(READ_AHEAD_REACH_BYTES..range.end));
    /// ```
    pub fn sample_again(&mut self, at: u64) {
        let keep = at
            .min(OFFSET_MAX)
            .saturating_add(READ_AHEAD_REACH_BYTES)
            .div_ceil(WINDOW)
            .max(self.released)
            .max(self.first);
        while self.sampled > keep {
            self.set(self.sampled - 1, UNKNOWN_WINDOW);
            self.sampled -= 1;
        }
        self.old = self.sampled;
    }

    /// Records that `resident` bytes of a range are resident. The range is one that
    /// [`sample_for_read`](Self::sample_for_read) returned, or one window of it. Returns false if
    /// that is not enough, since only some are resident. The caller then reports each window alone,
    /// and a window for which that is not enough by its pages
    /// ([`record_pages`](Self::record_pages)).
    #[must_use]
    pub fn record_residency(&mut self, range: &Range<u64>, resident: u64) -> bool {
        let length = range.end.saturating_sub(range.start);
        let seen = match resident {
            0 => EMPTY_WINDOW,
            _ if resident >= length => FULL_WINDOW,
            _ => return false,
        };
        for window in windows(range) {
            let (start, end) = (window * WINDOW, (window + 1) * WINDOW);
            if seen == EMPTY_WINDOW && range.end < end {
                // Pages that appear beyond the end of the file are not the stream's.
                let end = range.end.div_ceil(LARGE_PAGE_BYTES) * LARGE_PAGE_BYTES;
                self.set_pages(window, |page| start + page * PAGE_BYTES >= end);
            } else {
                self.set(window, seen);
            }
        }
        true
    }

    /// Records, for each page of `page` bytes of a window, whether it is resident: in the lowest
    /// bit of a byte, as mincore(2) returns it. Pages beyond the last byte are left alone.
    pub fn record_pages(&mut self, window: u64, page: u64, resident: &[u8]) {
        let each = (page / PAGE_BYTES).max(1);
        self.set_pages(window / WINDOW, |nth| {
            let byte = resident.get(usize::try_from(nth / each).unwrap_or(usize::MAX));
            byte.is_none_or(|byte| byte & 1 == 1)
        });
    }

    /// Records that `done` bytes were read at `at`. Returns the ranges to release now.
    pub fn passed(&mut self, at: u64, done: u64) -> StreamRanges<'_, PARTIAL_MAX> {
        let at = at.min(OFFSET_MAX);
        let to = at.saturating_add(done).min(OFFSET_MAX);
        if at == self.position {
            self.run = self.run.saturating_add(done);
        } else {
            self.run = done;
            // Windows that the reader came back to are to be released again.
            self.released = self.released.min(at / WINDOW).max(self.first);
        }
        self.position = to;
        self.reached = self.reached.max(to);
        self.sum = self.sum.saturating_add(to - at);
        let passed = (to / WINDOW).min(self.sampled);
        let is_due = self.run >= IN_ORDER_BYTES || passed.saturating_sub(self.released) >= WINDOWS_BEHIND_MAX;
        if !is_due || passed <= self.released {
            return self.ranges(0, 0);
        }
        let from = self.released.saturating_sub(1).max(self.first);
        self.released = passed;
        self.ranges(from, passed)
    }

    /// Returns the ranges to release once the reader is at the end of the file, jumps or closes it,
    /// including pages read ahead for it.
    pub fn remaining_ranges(&self) -> StreamRanges<'_, PARTIAL_MAX> {
        let from = self.released.saturating_sub(1).max(self.first);
        StreamRanges { stream: self, page: from * PAGES_PER_WINDOW, end: self.limit() }
    }

    /// Returns the pages that were not resident before but are left anyway, since others may have
    /// brought them in.
    pub fn doubtful_ranges(&self) -> StreamRanges<'_, PARTIAL_MAX> {
        let from = self.released.saturating_sub(1).max(self.first) * PAGES_PER_WINDOW;
        StreamRanges { stream: self, page: self.limit().max(from), end: self.sampled * PAGES_PER_WINDOW }
    }

    /// Returns the first page at the end that is not the stream's.
    fn limit(&self) -> u64 {
        let is_old = self.reached / WINDOW < self.old;
        let ahead =
            self.reached.saturating_add(self.sum.saturating_mul(READ_AHEAD_RATIO_MAX)).max(self.prefetched);
        let limit = if is_old { self.reached } else { ahead };
        // The last page of a file may be a large one.
        (limit.min(OFFSET_MAX).div_ceil(LARGE_PAGE_BYTES) * (LARGE_PAGE_BYTES / PAGE_BYTES))
            .min(self.sampled * PAGES_PER_WINDOW)
    }

    /// Whether nothing was requested since creation or since the last [`forget`](Self::forget).
    pub fn is_new(&self) -> bool {
        !self.begun
    }

    /// Whether anything was read since the last new start.
    pub fn has_read(&self) -> bool {
        self.sum > 0
    }

    /// Forgets everything: the next read is a new start.
    pub fn forget(&mut self) {
        // In place: a new value would first lie on the stack, which may be a signal handler's.
        // Unused bits are never read.
        let Self {
            first,
            sampled,
            released,
            position,
            run,
            begun,
            reached,
            sum,
            prefetched,
            old,
            seen,
            used,
            bits: _,
        } = self;
        for number in [first, sampled, released, position, run, reached, sum, prefetched, old] {
            *number = 0;
        }
        (*begun, *used) = (false, 0);
        seen.fill(UNKNOWN_WINDOW);
    }

    /// Whether no window is known.
    pub fn is_idle(&self) -> bool {
        self.first == self.sampled
    }

    /// Returns the known part of the file in bytes.
    pub fn known(&self) -> Range<u64> {
        self.first * WINDOW..self.sampled * WINDOW
    }

    /// Returns the stream's pages in that part, released or not.
    pub fn own_ranges(&self) -> StreamRanges<'_, PARTIAL_MAX> {
        self.ranges(self.first, self.sampled)
    }

    /// Returns the bytes of a range known to be others': they were resident before.
    pub fn foreign_bytes(&self, range: &Range<u64>) -> u64 {
        let known = self.known();
        let (start, end) = (range.start.max(known.start), range.end.min(known.end));
        let own = StreamRanges { stream: self, page: start / PAGE_BYTES, end: end.div_ceil(PAGE_BYTES) };
        let own: u64 = own.map(|own| own.end.min(end).saturating_sub(own.start.max(start))).sum();
        end.saturating_sub(start).saturating_sub(own)
    }

    /// Returns the windows of a file of `size` bytes that belong to the stream entirely: the first
    /// known window, and one bit for each window from there on.
    ///
    /// ```
    /// use pagekeeper_policy::stream::ReadStream;
    ///
    /// let mut stream = ReadStream::new();
    /// let range = stream.sample_for_read(2 << 20, 65536, 5 << 20).unwrap();
    /// assert!(stream.record_residency(&range, 0));
    /// assert_eq!(stream.whole_windows(5 << 20), (1, 0b11));
    /// assert!(stream.record_residency(&(2 << 20..4 << 20), 2 << 20));
    /// assert_eq!(stream.whole_windows(5 << 20), (1, 0b10));
    /// ```
    pub fn whole_windows(&self, size: u64) -> (u64, u128) {
        let end = size.div_ceil(PAGE_BYTES);
        let is_whole = |window: u64| {
            let end = end.min((window + 1) * PAGES_PER_WINDOW);
            window * PAGES_PER_WINDOW < end && self.next(window * PAGES_PER_WINDOW, false, end) == end
        };
        let windows = (self.first..self.sampled).zip(0_u32..);
        let bits = windows.filter(|&(window, _)| is_whole(window)).map(|(_, nth)| 1_u128 << nth).sum();
        (self.first, bits)
    }

    /// Returns the start of the part that was not released yet, in bytes. The window before it is
    /// released once more.
    pub fn released(&self) -> u64 {
        self.released * WINDOW
    }

    fn ranges(&self, from: u64, to: u64) -> StreamRanges<'_, PARTIAL_MAX> {
        StreamRanges { stream: self, page: from * PAGES_PER_WINDOW, end: to * PAGES_PER_WINDOW }
    }

    fn set(&mut self, window: u64, seen: u8) {
        if !(self.first..self.sampled).contains(&window) {
            return;
        }
        let old = self.seen[slot(window)];
        if old >= PARTIAL_WINDOW {
            self.used &= !(1 << (old - PARTIAL_WINDOW));
        }
        self.seen[slot(window)] = seen;
    }

    fn set_pages(&mut self, window: u64, is_foreign: impl Fn(u64) -> bool) {
        self.set(window, UNKNOWN_WINDOW);
        if !(self.first..self.sampled).contains(&window) {
            return;
        }
        if self.used.count_ones() as usize == PARTIAL_MAX {
            // Gives up the oldest one, if it was released.
            let last = self.released.saturating_sub(1);
            let oldest = (self.first..last.min(self.sampled))
                .find(|&window| self.seen[slot(window)] >= PARTIAL_WINDOW);
            let Some(oldest) = oldest else { return };
            self.set(oldest, UNKNOWN_WINDOW);
        }
        let free = self.used.trailing_ones();
        let Some(bits) = self.bits.get_mut(free as usize) else { return };
        *bits = [0; (PAGES_PER_WINDOW / 64) as usize];
        for page in 0..PAGES_PER_WINDOW {
            if is_foreign(page) {
                bits[(page / 64) as usize] |= 1 << (page % 64);
            }
        }
        self.used |= 1 << free;
        debug_assert!((free as usize) < PARTIAL_MAX, "a free bit above those in use");
        #[allow(clippy::cast_possible_truncation, reason = "an index of `bits`, which are few")]
        let free = free as u8;
        self.seen[slot(window)] = PARTIAL_WINDOW + free;
    }

    /// Whether the stream brought in the page, if it is resident.
    fn is_own(&self, page: u64) -> bool {
        match self.seen[slot(page / PAGES_PER_WINDOW)] {
            EMPTY_WINDOW => true,
            UNKNOWN_WINDOW | FULL_WINDOW => false,
            some => {
                let page = page % PAGES_PER_WINDOW;
                let bits = self.bits.get(usize::from(some - PARTIAL_WINDOW));
                bits.is_some_and(|bits| bits[(page / 64) as usize] >> (page % 64) & 1 == 0)
            }
        }
    }

    /// Returns the first page from `page` on that is (`own`) or is not the stream's.
    fn next(&self, mut page: u64, own: bool, end: u64) -> u64 {
        while page < end {
            let whole = match self.seen[slot(page / PAGES_PER_WINDOW)] {
                EMPTY_WINDOW => Some(true),
                UNKNOWN_WINDOW | FULL_WINDOW => Some(false),
                _ => None,
            };
            match whole {
                Some(is) if is == own => return page,
                Some(_) => page = (page / PAGES_PER_WINDOW + 1) * PAGES_PER_WINDOW,
                None if self.is_own(page) == own => return page,
                None => page += 1,
            }
        }
        end
    }
}

/// Ranges to release: bytes of whole pages, ascending and disjoint.
#[derive(Debug, Clone)]
pub struct StreamRanges<'a, const PARTIAL_MAX: usize> {
    stream: &'a StreamWindows<PARTIAL_MAX>,
    page: u64,
    end: u64,
}

impl<const PARTIAL_MAX: usize> Iterator for StreamRanges<'_, PARTIAL_MAX> {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        let start = self.stream.next(self.page, true, self.end);
        if start >= self.end {
            self.page = self.end;
            return None;
        }
        self.page = self.stream.next(start, false, self.end);
        Some(start * PAGE_BYTES..self.page * PAGE_BYTES)
    }
}

/// Returns the windows that a range touches.
fn windows(range: &Range<u64>) -> Range<u64> {
    if range.is_empty() { 0..0 } else { range.start / WINDOW..range.end.div_ceil(WINDOW) }
}

#[allow(clippy::cast_possible_truncation, reason = "less than 128")]
fn slot(window: u64) -> usize {
    (window % KNOWN_WINDOWS_MAX as u64) as usize
}

/// Returns a bit for each window from `from` on, where `bits` has them from the window `first` on.
///
/// ```
/// use pagekeeper_policy::stream::windows_from;
///
/// assert_eq!((windows_from(10, 0b1011, 11), windows_from(10, 0b1011, 8)), (0b101, 0b10_1100));
/// assert_eq!((windows_from(10, 1, 210), windows_from(u64::MAX, 1, 0)), (0, 0));
/// ```
pub fn windows_from(first: u64, bits: u128, from: u64) -> u128 {
    let shift = |by: u64| u32::try_from(by).unwrap_or(u32::MAX);
    if first <= from {
        bits.checked_shr(shift(from - first)).unwrap_or(0)
    } else {
        bits.checked_shl(shift(first - from)).unwrap_or(0)
    }
}

#[cfg(all(test, feature = "std"))]
#[allow(clippy::single_range_in_vec_init, reason = "one range is what is meant")]
mod tests {
    use super::*;
    use crate::logs::examples::MIB;

    /// Reads in a cold file. Returns the sampled and the released ranges.
    fn read(
        stream: &mut ReadStream,
        at: u64,
        length: u64,
        size: u64,
    ) -> (Option<Range<u64>>, Vec<Range<u64>>) {
        let range = stream.sample_for_read(at, length, size);
        if let Some(range) = &range {
            assert!(stream.record_residency(range, 0));
        }
        (range, stream.passed(at, length).collect())
    }

    #[test]
    fn windows_are_sampled_ahead_and_released_behind() {
        let mut stream = ReadStream::new();
        let size = 1 << 30;
        assert_eq!(read(&mut stream, 0, MIB, size), (Some(0..42 * MIB), vec![]));
        assert_eq!(read(&mut stream, MIB, MIB, size), (None, vec![0..2 * MIB]));
        assert_eq!(read(&mut stream, 2 * MIB, MIB, size), (None, vec![]));
        // The previous window once more.
        assert_eq!(read(&mut stream, 3 * MIB, MIB, size), (None, vec![0..4 * MIB]));
        assert_eq!(read(&mut stream, 4 * MIB, 6 * MIB, size), (None, vec![2 * MIB..10 * MIB]));
        assert_eq!(read(&mut stream, 10 * MIB, MIB, size).0, Some(42 * MIB..52 * MIB));
        assert_eq!(stream.remaining_ranges().collect::<Vec<_>>(), [8 * MIB..52 * MIB]);
        assert_eq!(
            (stream.known(), stream.own_ranges().collect::<Vec<_>>()),
            (0..52 * MIB, vec![0..52 * MIB])
        );
        // One call that reads more than can be known at a time: the rest is left alone.
        let mut stream = ReadStream::new();
        assert_eq!(read(&mut stream, 0, size, size), (Some(0..256 * MIB), vec![0..256 * MIB]));
    }

    #[test]
    fn a_watched_stream_knows_all_windows_that_are_resident_in_part() {
        fn released<const PARTIAL_MAX: usize>() -> u64 {
            let mut stream = StreamWindows::<PARTIAL_MAX>::new();
            let size = KNOWN_WINDOWS_MAX as u64 * WINDOW;
            let _ = stream.sample_for_read(0, MIB, size);
            let _ = stream.sample_for_prefetch(0, size, size);
            let resident: Vec<u8> = (0..PAGES_PER_WINDOW).map(|page| u8::from(page == 7)).collect();
            for window in 0..KNOWN_WINDOWS_MAX as u64 {
                stream.record_pages(window * WINDOW, PAGE_BYTES, &resident);
            }
            stream.passed(0, size).map(|range| range.end - range.start).sum()
        }
        assert_eq!(released::<KNOWN_WINDOWS_MAX>(), KNOWN_WINDOWS_MAX as u64 * (WINDOW - PAGE_BYTES));
        assert_eq!(released::<26>(), 26 * (WINDOW - PAGE_BYTES));
    }

    #[test]
    fn pages_that_were_resident_are_left() {
        let mut stream = ReadStream::new();
        let range = stream.sample_for_read(0, 4096, 6 * MIB).unwrap();
        assert!(!stream.record_residency(&range, 8192));
        assert!(stream.record_residency(&(0..2 * MIB), 2 * MIB));
        assert!(!stream.record_residency(&(2 * MIB..4 * MIB), 8192));
        assert!(stream.record_residency(&(4 * MIB..6 * MIB), 0));
        let mut resident = [0_u8; 512];
        (resident[0], resident[7]) = (1, 0xff);
        stream.passed(0, 4096).for_each(drop);
        stream.sample_for_prefetch(0, 6 * MIB, 6 * MIB);
        stream.record_pages(2 * MIB, PAGE_BYTES, &resident);
        let own = [2 * MIB + PAGE_BYTES..2 * MIB + 7 * PAGE_BYTES, 2 * MIB + 8 * PAGE_BYTES..6 * MIB];
        assert_eq!(stream.remaining_ranges().collect::<Vec<_>>(), own);
        // Pages of 64 KiB, some of them not reported; and a window that could not be sampled.
        stream.record_pages(2 * MIB, 65536, &[1, 0, 0]);
        let own = [2 * MIB + 65536..2 * MIB + 3 * 65536, 4 * MIB..6 * MIB];
        assert_eq!(stream.remaining_ranges().collect::<Vec<_>>(), own);
        assert!(stream.sample_for_read(5 * MIB, MIB, 8 * MIB).is_some());
        assert_eq!(stream.remaining_ranges().last(), Some(4 * MIB..6 * MIB));
    }

    #[test]
    fn a_resident_page_of_any_size_is_left() {
        for page in [4 << 10, 16 << 10, 64 << 10] {
            let count = usize::try_from(WINDOW / page).unwrap();
            for hot in [0, 1, count / 2, count - 1] {
                let mut stream = ReadStream::new();
                assert!(stream.sample_for_read(0, MIB, 3 * WINDOW).is_some());
                stream.sample_for_prefetch(0, 3 * WINDOW, 3 * WINDOW);
                assert!(stream.record_residency(&(0..3 * WINDOW), 0));
                let resident: Vec<u8> = (0..count).map(|nth| u8::from(nth == hot)).collect();
                stream.record_pages(WINDOW, page, &resident);
                let at = WINDOW + hot as u64 * page;
                let own = [0..at, at + page..3 * WINDOW];
                assert_eq!(stream.remaining_ranges().collect::<Vec<_>>(), own, "page {hot} of {page} bytes");
                // The data was read to its last byte: everything but that page is released.
                let released: Vec<_> = stream.passed(0, 3 * WINDOW).collect();
                assert_eq!(released, own, "page {hot} of {page} bytes");
                // Read again with another page resident in the last window, which ends in the
                // middle of a page.
                let size = 3 * WINDOW - page / 2;
                let mut stream = ReadStream::new();
                assert!(stream.sample_for_read(0, MIB, size).is_some());
                stream.sample_for_prefetch(0, size, size);
                assert!(stream.record_residency(&(0..2 * WINDOW), 0));
                stream.record_pages(2 * WINDOW, page, &resident);
                let at = 2 * WINDOW + hot as u64 * page;
                let own: Vec<_> =
                    [0..at, at + page..3 * WINDOW].into_iter().filter(|range| !range.is_empty()).collect();
                assert_eq!(
                    stream.remaining_ranges().collect::<Vec<_>>(),
                    own,
                    "page {hot} of {page} bytes, at the end"
                );
            }
        }
    }

    #[test]
    fn pages_behind_the_end_are_not_the_streams() {
        let mut stream = ReadStream::new();
        assert_eq!(read(&mut stream, 0, 5000, 5000).0, Some(0..5000));
        assert_eq!(stream.remaining_ranges().collect::<Vec<_>>(), [0..LARGE_PAGE_BYTES]);
        assert_eq!(read(&mut stream, 5000, MIB, 5 * MIB), (Some(2 * MIB..5 * MIB), vec![]));
        assert_eq!(stream.remaining_ranges().collect::<Vec<_>>(), [0..LARGE_PAGE_BYTES, 2 * MIB..5 * MIB]);
        // An empty file has nothing to sample.
        let mut stream = ReadStream::new();
        assert_eq!(stream.sample_for_read(0, 4096, 0), None);
    }

    #[test]
    fn pages_known_to_be_foreign_are_counted() {
        let mut stream = ReadStream::new();
        let range = stream.sample_for_read(0, MIB, 6 * MIB).unwrap();
        assert!(!stream.record_residency(&range, MIB));
        assert!(
            stream.record_residency(&(0..2 * MIB), 2 * MIB)
                && stream.record_residency(&(4 * MIB..6 * MIB), 0)
        );
        let mut resident = [0_u8; 512];
        resident[1] = 1;
        stream.record_pages(2 * MIB, PAGE_BYTES, &resident);
        assert_eq!(stream.foreign_bytes(&(0..u64::MAX)), 2 * MIB + PAGE_BYTES);
        assert_eq!(stream.foreign_bytes(&(100..200)), 100);
        assert_eq!(stream.foreign_bytes(&(2 * MIB + PAGE_BYTES + 10..3 * MIB)), PAGE_BYTES - 10);
        assert_eq!(stream.foreign_bytes(&(7 * MIB..8 * MIB)) + stream.foreign_bytes(&(5..5)), 0);
    }

    /// The first bytes of a file are read, and it is closed: others may have read the rest.
    #[test]
    fn pages_that_read_ahead_cannot_have_loaded_are_left() {
        let (mut stream, size) = (ReadStream::new(), 200 * MIB);
        read(&mut stream, 0, 65536, size);
        let left = 65536 + READ_AHEAD_RATIO_MAX * 65536;
        assert_eq!(stream.remaining_ranges().collect::<Vec<_>>(), [0..left]);
        assert_eq!(stream.doubtful_ranges().collect::<Vec<_>>(), [left..SAMPLE_AHEAD_BYTES + WINDOW]);
        // Later others may have read that, too: only the pages that were read, and the window
        // before them, are released.
        stream.sample_again(65536);
        assert_eq!(stream.remaining_ranges().collect::<Vec<_>>(), [0..65536]);
        assert!(
            stream.sample_for_read(65536, 4096, size).is_some_and(|range| stream.record_residency(&range, 0))
        );
        read(&mut stream, 65536, 5 * MIB, size);
        assert_eq!(stream.remaining_ranges().collect::<Vec<_>>(), [2 * MIB..5 * MIB + 65536]);
        // Beyond the part that was near then, everything was sampled.
        read(&mut stream, 5 * MIB + 65536, 20 * MIB, size);
        assert_eq!(stream.remaining_ranges().last().map(|range| range.end), Some(stream.sampled * WINDOW));
        assert_eq!(stream.doubtful_ranges().count(), 0);
    }

    #[test]
    fn a_prefetch_goes_where_the_reader_is_not() {
        let (mut stream, size) = (ReadStream::new(), 1 << 30);
        read(&mut stream, 0, MIB, size);
        for at in 1..300 {
            let at = at * MIB;
            assert!(
                stream
                    .sample_for_prefetch(at + 80 * MIB, MIB, size)
                    .is_none_or(|range| stream.record_residency(&range, 0))
            );
            assert!(!stream.jumps(at));
            read(&mut stream, at, MIB, size);
            assert_eq!(stream.released(), (at + MIB) / WINDOW * WINDOW);
        }
        assert_eq!(stream.remaining_ranges().last(), Some(298 * MIB..380 * MIB));
        // A prefetch at the position of the next reads counts as one. None makes the reader's
        // position forgotten.
        let mut stream = ReadStream::new();
        assert_eq!(stream.sample_for_prefetch(0, 4 * MIB, size), Some(0..44 * MIB));
        assert!(!stream.has_read());
        read(&mut stream, 0, MIB, size);
        assert_eq!(stream.sample_for_prefetch(700 * MIB, MIB, size), None);
        assert!(stream.has_read() && !stream.is_idle() && !stream.jumps(MIB));
    }

    #[test]
    fn a_reader_that_comes_back_has_it_released_again() {
        let (mut stream, size) = (ReadStream::new(), 16 * MIB);
        read(&mut stream, 0, 8 * MIB, size);
        assert!(!stream.jumps(MIB) && !stream.jumps(16 * MIB) && stream.jumps(17 * MIB));
        // Not at once, since the read isn't in order.
        assert_eq!(read(&mut stream, MIB, 4096, size), (None, vec![]));
        assert_eq!(stream.remaining_ranges().collect::<Vec<_>>(), [0..16 * MIB]);
        assert_eq!(read(&mut stream, MIB + 4096, 2 * MIB, size), (None, vec![0..2 * MIB]));
    }

    #[test]
    fn random_positions_are_handled() {
        for at in [0, 1, i64::MAX as u64 - 1, i64::MAX as u64, u64::MAX - 1, u64::MAX] {
            for length in [0, 1, i64::MAX as u64, u64::MAX] {
                for size in [0, 1, i64::MAX as u64, u64::MAX] {
                    let mut stream = ReadStream::new();
                    for _ in 0..3 {
                        if let Some(range) = stream.sample_for_read(at, length, size) {
                            assert!(stream.record_residency(&range, 0));
                        }
                        stream.passed(at, length).for_each(drop);
                        stream.remaining_ranges().for_each(drop);
                        stream.doubtful_ranges().for_each(drop);
                        stream.sample_for_prefetch(at, length, size);
                        assert!(!stream.jumps(at.saturating_add(length).min(OFFSET_MAX)) || size < at);
                    }
                }
            }
        }
    }
}
