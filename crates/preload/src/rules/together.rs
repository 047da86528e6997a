//! Reads of streams, by one thread or by several that share an open file.
//!
//! Several may each read another part: such a file has a reader for each of a few places. Who finds another thread at work on what is known
//! leaves for it what it has read. Only where nothing is known yet of what it is about to read does it try again, for [`PATIENCE`] at the
//! most: read before that was sampled, it would be taken for what was there before.
//!
//! Invariants: those of [`super`]. What a reader brings in at the file's position is released as the next read begins, or at the end.

use libc::c_int;

use super::reader::Reader;
use super::{FileState, How, Slot};
use crate::counters::Count;
use crate::process::count;
use crate::shared::PLACES;
use crate::sys;

/// Nanoseconds for which somebody at work is waited for.
const PATIENCE: u64 = 100_000;
/// Readers beside the first one.
const MORE: usize = PLACES - 1;

/// Readers at other places of a file, for which memory is taken as they are needed.
pub struct More {
    readers: Option<&'static mut [Reader; MORE]>,
    /// The one that is given up next.
    next: usize,
}

impl More {
    /// None.
    pub const NEW: Self = Self { readers: None, next: 0 };

    fn all(&mut self) -> &mut [Reader] {
        self.readers.as_mut().map_or(&mut [], |readers| readers.as_mut_slice())
    }

    /// Makes them, each as `like` is.
    #[allow(unsafe_code, reason = "memory of its own")]
    fn make(&mut self, like: &Reader) {
        let size = size_of::<[Reader; MORE]>();
        if self.readers.is_some() {
            return;
        }
        let Ok(memory) = sys::take_memory(size) else { return };
        let readers: *mut Reader = memory.cast();
        for nth in 0..MORE {
            // SAFETY: new memory, of so many readers, on a page's border.
            unsafe { readers.add(nth).write(like.elsewhere()) };
        }
        // SAFETY: all of them are there now, and nobody else knows them.
        self.readers = Some(unsafe { &mut *readers.cast() });
    }

    /// The descriptor is closed: what is left is released.
    pub fn leave(&mut self, fd: c_int) {
        self.all().iter_mut().for_each(|reader| reader.close(fd));
    }

    /// Whether the rule sees to all that was read there.
    pub fn is_covered(&self) -> bool {
        self.readers.iter().flat_map(|readers| readers.iter()).all(Reader::is_covered)
    }

    /// The file was mapped.
    pub fn mapped(&mut self) {
        self.all().iter_mut().for_each(Reader::mapped);
    }

    /// An uncached read was refused.
    pub fn uncached_refused(&mut self) {
        self.all().iter_mut().for_each(Reader::uncached_refused);
    }

    /// Forgets what was read.
    pub fn forget(&mut self) {
        *self = Self::NEW;
    }
}

impl Drop for More {
    #[allow(unsafe_code, reason = "memory of its own")]
    fn drop(&mut self) {
        if let Some(readers) = self.readers.take() {
            // SAFETY: taken in that size, and nobody else knows it; nothing of a reader needs a drop.
            unsafe { sys::give_back((&raw mut *readers).cast(), size_of::<[Reader; MORE]>()) };
        }
    }
}

/// The reader for what is at `at`, and which it is: where nobody reads there yet, one that is free, or the one that is given up next.
fn reader_at(state: &mut FileState, at: u64) -> (usize, &mut Reader) {
    let FileState { reader, more, .. } = state;
    if reader.is_near(at) || !reader.finds_other_places() {
        return (0, reader);
    }
    more.make(reader);
    let rest = more.all();
    let found = rest.iter().position(|reader| reader.is_near(at));
    let found = found.or_else(|| rest.iter().position(Reader::is_free));
    let nth = found.unwrap_or(more.next);
    if found.is_none() {
        more.next = (nth + 1) % MORE;
    }
    match more.all().get_mut(nth) {
        Some(other) => (1 + nth, other),
        None => (0, reader),
    }
}

/// The reader that read what is at `at`.
fn reader_of(state: &mut FileState, at: Option<u64>) -> &mut Reader {
    let FileState { reader, more, .. } = state;
    match at.filter(|&at| !reader.is_near(at)) {
        Some(at) => more.all().iter_mut().find(|reader| reader.is_near(at)).unwrap_or(reader),
        None => reader,
    }
}

/// Takes in what others read meanwhile.
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

/// A descriptor is closed, or the process ends: what is left goes.
pub(super) fn leave(slot: &Slot, state: &mut FileState, fd: c_int) {
    take_in(slot, state, fd);
    state.reader.close(fd);
    state.more.leave(fd);
}

/// Before a read of `length` bytes, at `at` or at the file's position.
pub(super) fn before_read(slot: &Slot, fd: c_int, at: Option<u64>, length: u64) -> How {
    slot.shared.comes();
    let before = |state: &mut FileState| {
        take_in(slot, state, fd);
        let (place, reader) = match at {
            Some(at) => reader_at(state, at),
            None => (0, &mut state.reader),
        };
        let how = reader.before(fd, at, length);
        if slot.shared.is_shared() {
            slot.shared.knows(place, &reader.known(), how == How::Uncached);
        }
        how
    };
    if let Some(how) = slot.with(before) {
        return how;
    }
    slot.shared.meets();
    let begin = sys::now();
    // A signal handler would wait for what it interrupted.
    while !slot.is_own() && !slot.shared.is_known(at, length) && sys::now() - begin < PATIENCE {
        sys::give_way();
        if let Some(how) = slot.with(before) {
            return how;
        }
    }
    if slot.shared.is_uncached() { How::Uncached } else { How::Plain }
}

/// After a read, which returned `done`.
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
        // Else whoever is at work looks here once more behind it.
        if slot.with(|state| take_in(slot, state, fd)).is_none() {
            return;
        }
    }
}
