//! Reads of streams, by one thread or by several that share an open file.
//!
//! Several threads may each read another place, so a file has readers for a few places. A thread
//! that finds the state busy leaves its read there for the thread that has it. It retries, for at
//! most [`PATIENCE_NS`], only if nothing is known yet of the range that it is about to read: pages
//! read before a sample would count as resident before.
//!
//! Invariants: those of [`super`]. Pages that a reader brings in at the file offset are released
//! when the next read begins, or at the end.

use libc::c_int;

use super::reader::Reader;
use super::{FileState, ReadMode, Slot};
use crate::counters::Count;
use crate::process::count;
use crate::shared::PLACES_MAX;
use crate::sys;

/// Nanoseconds to wait for a thread that has the state.
const PATIENCE_NS: u64 = 100_000;
/// Readers beside the first one.
const EXTRA_READERS_MAX: usize = PLACES_MAX - 1;

/// Readers at other places of a file, whose memory is allocated when they are needed.
pub struct ExtraReaders {
    readers: Option<&'static mut [Reader; EXTRA_READERS_MAX]>,
    /// The reader that is given up next.
    next: usize,
}

impl ExtraReaders {
    /// No readers.
    pub const NEW: Self = Self { readers: None, next: 0 };

    fn all(&mut self) -> &mut [Reader] {
        self.readers.as_mut().map_or(&mut [], |readers| readers.as_mut_slice())
    }

    /// Creates the readers for other places of the file that `like` reads.
    fn make(&mut self, like: &Reader) {
        let size = size_of::<[Reader; EXTRA_READERS_MAX]>();
        if self.readers.is_some() {
            return;
        }
        let Ok(memory) = sys::take_memory(size, libc::MAP_PRIVATE) else { return };
        let readers: *mut Reader = memory.cast();
        for nth in 0..EXTRA_READERS_MAX {
            // SAFETY: new memory, of this many readers, aligned to a page.
            unsafe { readers.add(nth).write(like.elsewhere()) };
        }
        // SAFETY: all of them are written now, and nobody else knows them.
        self.readers = Some(unsafe { &mut *readers.cast() });
    }

    /// Releases the rest as the descriptor is closed.
    pub fn leave(&mut self, fd: c_int) {
        self.all().iter_mut().for_each(|reader| reader.close(fd));
    }

    /// Whether the rule handles all pages that were read there.
    pub fn is_covered(&self) -> bool {
        self.readers.iter().flat_map(|readers| readers.iter()).all(Reader::is_covered)
    }

    /// Records that the file was mapped.
    pub fn mapped(&mut self) {
        self.all().iter_mut().for_each(Reader::mapped);
    }

    /// Records that an uncached read was refused.
    pub fn uncached_refused(&mut self) {
        self.all().iter_mut().for_each(Reader::uncached_refused);
    }

    /// Forgets all reads.
    pub fn forget(&mut self) {
        *self = Self::NEW;
    }
}

impl Drop for ExtraReaders {
    fn drop(&mut self) {
        if let Some(readers) = self.readers.take() {
            // SAFETY: taken in that size, and nobody else knows it; no part of a reader needs a
            // drop.
            unsafe { sys::give_back((&raw mut *readers).cast(), size_of::<[Reader; EXTRA_READERS_MAX]>()) };
        }
    }
}

/// Returns the reader for offset `at`, and its index. If no reader is near, a free one, or the one
/// that is given up next.
fn reader_at(state: &mut FileState, at: u64) -> (usize, &mut Reader) {
    let FileState { reader, extra_readers, .. } = state;
    if reader.is_near(at) || !reader.finds_other_places() {
        return (0, reader);
    }
    extra_readers.make(reader);
    let rest = extra_readers.all();
    let found = rest.iter().position(|reader| reader.is_near(at));
    let found = found.or_else(|| rest.iter().position(Reader::is_free));
    let nth = found.unwrap_or(extra_readers.next);
    if found.is_none() {
        extra_readers.next = (nth + 1) % EXTRA_READERS_MAX;
    }
    match extra_readers.all().get_mut(nth) {
        Some(other) => (1 + nth, other),
        None => (0, reader),
    }
}

/// Returns the reader that read at `at`.
fn reader_of(state: &mut FileState, at: Option<u64>) -> &mut Reader {
    let FileState { reader, extra_readers, .. } = state;
    match at.filter(|&at| !reader.is_near(at)) {
        Some(at) => extra_readers.all().iter_mut().find(|reader| reader.is_near(at)).unwrap_or(reader),
        None => reader,
    }
}

/// Adds the reads that other threads left meanwhile.
fn take_in(slot: &Slot, state: &mut FileState, fd: c_int) {
    if !slot.shared.is_shared() {
        return;
    }
    state.reader.shares(fd);
    let bytes = slot.shared.take_bytes();
    if bytes > 0 {
        state.is_used = true;
        state.count(Count::StreamRead, None, bytes as isize);
    }
    for (at, done) in slot.shared.take() {
        state.is_used = true;
        state.count(Count::StreamRead, Some(at), done as isize);
        reader_of(state, Some(at)).after(fd, Some(at), done as isize);
    }
}

/// Releases the rest when a descriptor is closed or the process ends.
pub(super) fn leave(slot: &Slot, state: &mut FileState, fd: c_int) {
    take_in(slot, state, fd);
    state.reader.close(fd);
    state.extra_readers.leave(fd);
}

/// Runs before a read of `length` bytes, at `at` or at the file offset.
pub(super) fn before_read(slot: &Slot, fd: c_int, at: Option<u64>, length: u64) -> ReadMode {
    slot.shared.comes();
    let before = |state: &mut FileState| {
        take_in(slot, state, fd);
        let (place, reader) = match at {
            Some(at) => reader_at(state, at),
            None => (0, &mut state.reader),
        };
        let mode = reader.before(fd, at, length);
        if slot.shared.is_shared() {
            slot.shared.knows(place, &reader.known(), mode == ReadMode::Uncached);
        }
        mode
    };
    if let Some(mode) = slot.with(before) {
        return mode;
    }
    slot.shared.meets();
    let begin = sys::now();
    // A signal handler would wait for the code that it interrupted.
    while !slot.is_own() && !slot.shared.is_known(at, length) && sys::now() - begin < PATIENCE_NS {
        sys::give_way();
        if let Some(mode) = slot.with(before) {
            return mode;
        }
    }
    if slot.shared.is_uncached() { ReadMode::Uncached } else { ReadMode::Plain }
}

/// Runs after a read, which returned `done`.
pub(super) fn after_read(slot: &Slot, fd: c_int, at: Option<u64>, done: isize) {
    slot.shared.goes();
    let noted = slot.with(|state| {
        take_in(slot, state, fd);
        state.is_used |= done > 0;
        state.count(Count::StreamRead, at, done);
        reader_of(state, at).after(fd, at, done);
    });
    let read = u64::try_from(done).unwrap_or(0);
    if noted.is_none() && read > 0 {
        slot.shared.meets();
        if !slot.shared.leave(at, read) {
            count(Count::StreamRead, read);
            count(Count::StreamUnobserved, read);
        }
    }
    while slot.shared.is_shared() && slot.shared.has_missed() {
        // Otherwise the thread that has the state looks here once more afterwards.
        if slot.with(|state| take_in(slot, state, fd)).is_none() {
            return;
        }
    }
}
