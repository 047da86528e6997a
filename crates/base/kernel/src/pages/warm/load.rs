//! Reads pieces of a file into the page cache from several threads, and waits for each.
//!
//! Invariants: a piece counts as loaded only after it was waited for. The first error stops all
//! threads and is reported. No lock is held over I/O. Truncating the file meanwhile is not an
//! error: its pieces end at the new end.

use std::collections::VecDeque;
use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;

use super::{WarmMethod, WarmOptions, WarmProgress, WarmTurns, call_error};
use crate::mutex::{ignore_poison, lock};
use crate::sys::mapping::FileMapping;
use crate::{Error, InspectedFile, Result, page_size};

/// Bytes read between two checks for cancellation.
pub(super) const READ_CHUNK_BYTES: u64 = 8 << 20;

/// Minimum length in bytes of a piece that is populated: the extra data read around a fault matters
/// little then.
pub(super) const POPULATE_BYTES_MIN: u64 = 4 << 20;

/// Alignment in bytes of a piece that is populated from [`POPULATE_FILE_BYTES_MIN`] on if it ends
/// the file: nothing around it could be read needlessly.
const POPULATE_ALIGN_BYTES: u64 = 2 << 20;
/// Minimum length in bytes of such a piece.
const POPULATE_FILE_BYTES_MIN: u64 = 64 << 10;

/// Distance in bytes from a read within which read-ahead may bring pages in: twice a
/// `read_ahead_kb` of at most
/// 8192. This much of a range's end is read exactly.
const READ_AHEAD_REACH_BYTES: u64 = 16 << 20;

/// Maximum number of short pieces that one thread requests at once: 64 of 16 KiB from each of 4
/// threads kept the measured disk busy.
const READ_AHEAD_PIECES_MAX: usize = 64;

/// Bytes of one `POSIX_FADV_WILLNEED`: the kernel cuts a call off near `read_ahead_kb`, 128 by
/// default.
const READ_AHEAD_STEP_BYTES: u64 = 128 << 10;

/// Loads pieces of one file.
pub(super) struct PieceLoader<'a> {
    file: &'a InspectedFile,
    options: &'a WarmOptions,
    cancel: &'a AtomicBool,
    null: OwnedFd,
    /// The file's size at the start.
    size: u64,
    /// The range in which read-ahead brings in only requested pages.
    inner: Range<u64>,
    loaded: AtomicU64,
}

impl<'a> PieceLoader<'a> {
    #[allow(clippy::disallowed_methods, reason = "/dev/null is nobody's")]
    pub(super) fn new(
        file: &'a InspectedFile,
        inner: Range<u64>,
        options: &'a WarmOptions,
        cancel: &'a AtomicBool,
    ) -> Result<Self> {
        let null = rustix::fs::open("/dev/null", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::call("open", "/dev/null", e))?;
        Ok(Self { file, options, cancel, null, size: file.size_now()?, inner, loaded: AtomicU64::new(0) })
    }

    /// Returns the bytes loaded so far.
    pub(super) fn loaded(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    /// Loads the pieces, which are sorted, and waits for them.
    pub(super) fn load(&self, pieces: &[Range<u64>], progress: WarmProgress<'_>) -> Result<()> {
        let units = self.split_units(pieces);
        let state = LoadState {
            units: &units,
            next: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
            progress,
        };
        let width = self.options.width.clamp(1, units.len().max(1));
        std::thread::scope(|scope| {
            for _ in 1..width {
                scope.spawn(|| self.work(&state));
            }
            self.work(&state);
        });
        match ignore_poison(state.error.into_inner()) {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Splits the pieces into units that a thread takes at once: a long piece, or a run of short
    /// ones.
    fn split_units<'p>(&self, pieces: &'p [Range<u64>]) -> Vec<(WarmMethod, &'p [Range<u64>])> {
        let mut units = Vec::new();
        let mut rest = pieces;
        while let Some(first) = rest.first() {
            let method = self.method_for(first);
            let mut count = 1;
            if method == WarmMethod::ReadAhead {
                let mut bytes = first.end - first.start;
                while count < READ_AHEAD_PIECES_MAX && bytes < READ_CHUNK_BYTES && rest.len() > count {
                    let next = &rest[count];
                    if self.method_for(next) != method {
                        break;
                    }
                    bytes += next.end - next.start;
                    count += 1;
                }
            }
            let (unit, after) = rest.split_at(count);
            units.push((method, unit));
            rest = after;
        }
        units
    }

    fn method_for(&self, piece: &Range<u64>) -> WarmMethod {
        match self.options.method {
            WarmMethod::Auto if !self.inner.contains(&piece.start) => WarmMethod::ReadAhead,
            WarmMethod::Auto => {
                let len = piece.end - piece.start;
                let rest_of_file = piece.start.is_multiple_of(POPULATE_ALIGN_BYTES) && piece.end >= self.size;
                if len >= POPULATE_BYTES_MIN || (rest_of_file && len >= POPULATE_FILE_BYTES_MIN) {
                    WarmMethod::Populate
                } else {
                    WarmMethod::ReadAhead
                }
            }
            chosen => chosen,
        }
    }

    fn work(&self, state: &LoadState<'_>) {
        // Several threads would disturb each other's read-ahead.
        let reopened = (self.options.width > 1).then(|| reopen(self.file)).transpose();
        let done = reopened.and_then(|reopened| {
            let reader = reopened.as_ref().unwrap_or(self.file.file());
            // Requested pieces, which are awaited only after the next unit was requested: the
            // device is not idle in between.
            let mut requested: &[Range<u64>] = &[];
            while let Some((method, pieces)) = state.units.get(state.next.fetch_add(1, Ordering::Relaxed)) {
                if let Some(turns) = &self.options.turns {
                    self.read_in_turns(&**turns, reader, pieces, state)?;
                } else if *method == WarmMethod::ReadAhead {
                    self.request(reader, pieces)?;
                    self.wait(reader, std::mem::replace(&mut requested, pieces), state)?;
                } else {
                    self.read_through(reader, *method, &pieces[0], state)?;
                }
                if self.is_stopped(state) {
                    break;
                }
            }
            self.wait(reader, requested, state)
        });
        if let Err(error) = done {
            state.failed.store(true, Ordering::Relaxed);
            let mut first = lock(&state.error);
            first.get_or_insert(error);
        }
    }

    fn is_stopped(&self, state: &LoadState<'_>) -> bool {
        self.cancel.load(Ordering::Relaxed) || state.failed.load(Ordering::Relaxed)
    }

    /// Reads the pieces in parts, each in its turn. Each part is read exactly: pages that the
    /// kernel reads ahead of it would make the next part look quicker than the disk is.
    fn read_in_turns(
        &self,
        turns: &dyn WarmTurns,
        reader: &File,
        pieces: &[Range<u64>],
        state: &LoadState<'_>,
    ) -> Result<()> {
        let mut left: VecDeque<Range<u64>> = pieces.iter().cloned().collect();
        while !left.is_empty() && !self.is_stopped(state) {
            let part = take_part(&mut left, turns.part_bytes());
            let bytes = part.iter().map(|piece| piece.end - piece.start).sum();
            let mut done = Ok(());
            turns.take(bytes, &|| self.is_stopped(state), &mut || {
                done = self.request(reader, &part).and_then(|()| self.wait(reader, &part, state));
            });
            done?;
        }
        Ok(())
    }

    /// Requests all the pieces.
    fn request(&self, reader: &File, pieces: &[Range<u64>]) -> Result<()> {
        for piece in pieces {
            let mut at = piece.start;
            while at < piece.end {
                let step = READ_AHEAD_STEP_BYTES.min(piece.end - at);
                rustix::fs::fadvise(reader, at, NonZeroU64::new(step), Advice::WillNeed)
                    .map_err(|e| call_error("fadvise", self.file, e))?;
                at += step;
            }
        }
        Ok(())
    }

    /// Waits for each requested piece.
    fn wait(&self, reader: &File, pieces: &[Range<u64>], state: &LoadState<'_>) -> Result<()> {
        for piece in pieces {
            // Reading would continue the read-ahead that brought in the previous pages.
            if self.inner.contains(&piece.start) || wait_mapped(reader, piece).is_err() {
                self.read_by_sendfile(reader, piece)?;
            }
            self.count_loaded(piece, state);
        }
        Ok(())
    }

    /// Reads a piece from start to end.
    fn read_through(
        &self,
        reader: &File,
        method: WarmMethod,
        piece: &Range<u64>,
        state: &LoadState<'_>,
    ) -> Result<()> {
        let mut start = piece.start;
        while start < piece.end {
            let part = start..piece.end.min((start / READ_CHUNK_BYTES + 1) * READ_CHUNK_BYTES);
            if self.is_stopped(state) {
                return Ok(());
            }
            // If populating fails or can't explain an error (EFAULT for an unreadable block or a
            // truncated file), reading can.
            if method != WarmMethod::Populate || populate(reader, &part).is_err() {
                self.read_by_sendfile(reader, &part)?;
            }
            self.count_loaded(&part, state);
            start = part.end;
        }
        Ok(())
    }

    /// Reads a part without copying it, up to the end of the file.
    fn read_by_sendfile(&self, reader: &File, part: &Range<u64>) -> Result<()> {
        let mut at = part.start;
        // A part of whole pages may end one byte past the largest offset.
        let end = part.end.min(i64::MAX.unsigned_abs());
        while at < end {
            let len = usize::try_from(end - at).unwrap_or(usize::MAX);
            match rustix::fs::sendfile(&self.null, reader, Some(&mut at), len) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(call_error("sendfile", self.file, errno)),
            }
        }
        Ok(())
    }

    fn count_loaded(&self, part: &Range<u64>, state: &LoadState<'_>) {
        let bytes = part.end - part.start;
        self.loaded.fetch_add(bytes, Ordering::Relaxed);
        (state.progress)(bytes);
    }
}

/// The state that the threads of one [`PieceLoader::load`] share.
struct LoadState<'a> {
    units: &'a [(WarmMethod, &'a [Range<u64>])],
    /// The first unit that no thread has taken.
    next: AtomicUsize,
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
    progress: WarmProgress<'a>,
}

/// Takes the first part of these pieces, of at most this many bytes: whole pieces, or the start of
/// a longer one. Parts of a long piece end at multiples of their length.
fn take_part(left: &mut VecDeque<Range<u64>>, bytes: u64) -> Vec<Range<u64>> {
    let bytes = (bytes / page_size()).max(1) * page_size();
    let (mut taken, mut room) = (Vec::new(), bytes);
    while let Some(piece) = left.pop_front() {
        let length = piece.end - piece.start;
        if length <= room {
            room -= length;
            taken.push(piece);
            continue;
        }
        let end = piece.end.min((piece.start / bytes + 1) * bytes);
        if taken.is_empty() {
            taken.push(piece.start..end);
            if end < piece.end {
                left.push_front(end..piece.end);
            }
        } else {
            left.push_front(piece);
        }
        break;
    }
    taken
}

/// Size in bytes of the largest usable huge page: it is read as a whole, together with the next
/// one, which is as much as a part has at most.
const HUGE_PAGE_BYTES_MAX: u64 = 2 << 20;

/// Returns the size of a huge page for a page size: the bytes mapped by one page of the page
/// table's lowest level, with entries of 8 bytes.
pub(super) fn huge_page_bytes(page: u64) -> u64 {
    page / 8 * page
}

/// Faults in all pages of a part, and waits for them.
fn populate(reader: &File, part: &Range<u64>) -> std::result::Result<(), Errno> {
    let len = usize::try_from(part.end - part.start).map_err(|_| Errno::NOMEM)?;
    let map = FileMapping::new(reader, part.start, len)?;
    // Without large folios this still reads. Huge pages of larger base pages (32 MiB for 16 KiB)
    // would bring in unrequested data.
    if huge_page_bytes(page_size()) <= HUGE_PAGE_BYTES_MAX {
        let _ = map.advise_huge();
    }
    map.populate_read()
}

/// Waits for a requested piece, and reads nothing else.
fn wait_mapped(reader: &File, piece: &Range<u64>) -> std::result::Result<(), Errno> {
    let len = usize::try_from(piece.end - piece.start).map_err(|_| Errno::NOMEM)?;
    let map = FileMapping::new(reader, piece.start, len)?;
    map.advise_random()?;
    map.populate_read()?;
    // Pages unmapped from a mapping with random access would not count as used, and would be
    // reclaimed first.
    map.advise_normal()
}

/// Returns the part of a range in which read-ahead brings in nothing else, if the range ends before
/// its file does. It starts at the first huge page that begins in the range, and ends where
/// read-ahead can no longer reach the range's end.
pub(super) fn inner_range(range: &Range<u64>, size: u64) -> Range<u64> {
    let start = range.start.next_multiple_of(POPULATE_ALIGN_BYTES);
    if range.end >= size {
        return start..u64::MAX;
    }
    start..range.end.saturating_sub(READ_AHEAD_REACH_BYTES) / POPULATE_ALIGN_BYTES * POPULATE_ALIGN_BYTES
}

/// Reopens the file with its own position and read-ahead state, so that threads do not disturb each
/// other. If that fails (no /proc, no permission any more), returns the same open file.
#[allow(clippy::disallowed_methods, reason = "the file is open already")]
fn reopen(file: &InspectedFile) -> Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(&path, flags | OFlags::NOATIME, Mode::empty())
        .or_else(|_| rustix::fs::open(&path, flags, Mode::empty()))
        .map(File::from)
        .or_else(|_| file.file().try_clone())
        .map_err(|e| Error::call("dup", file.path(), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_stays_in_the_inner_part_of_a_range() {
        const MIB: u64 = 1 << 20;
        for (range, expected) in [
            (0..64 * MIB, 0..u64::MAX),
            (0..60 * MIB, 0..44 * MIB),
            (1..59 * MIB + 1, 2 * MIB..42 * MIB),
            (5 * MIB..64 * MIB, 6 * MIB..u64::MAX),
        ] {
            assert_eq!(inner_range(&range, 64 * MIB), expected, "{range:?}");
        }
        assert!(inner_range(&(0..MIB), 64 * MIB).is_empty());
    }

    #[test]
    fn parts_are_whole_pieces_or_aligned_parts_of_long_ones() {
        let parts = |pieces: &[Range<u64>], bytes| {
            let mut left: VecDeque<Range<u64>> = pieces.iter().cloned().collect();
            let mut parts = Vec::new();
            while !left.is_empty() {
                parts.push(take_part(&mut left, bytes));
            }
            parts
        };
        let page = page_size();
        assert!(parts(&[], page).is_empty());
        let short = [0..page, 2 * page..3 * page, 9 * page..10 * page];
        assert_eq!(parts(&short, 2 * page), [short[..2].to_vec(), short[2..].to_vec()]);
        let cut = parts(&[0..page, 3 * page..9 * page], 4 * page);
        assert!(cut.iter().all(|part| part.len() == 1), "{cut:?}");
        assert_eq!(
            cut.concat(),
            [0..page, 3 * page..4 * page, 4 * page..8 * page, 8 * page..9 * page],
            "ends are aligned"
        );
        assert_eq!(parts(&[0..page, page..3 * page], 1).len(), 3, "a page at least");
    }
}
