//! A minimal cache that evicts: an array of each page's frame, a bit that each hit sets, and a
//! clock hand.
//!
//! A hit announces its page, finds the frame, sets the bit and copies. A miss calls pread and
//! checks whether the file is as it was opened; one in [`ADMITTED_MISS_ONE_IN`] reads a whole page
//! into a frame that was not read since the hand last passed. There are no queues, no history, no
//! waiting for another's load, no growth, and no second file. No cache of a file that others may
//! truncate or write can do less.
//!
//! Invariants:
//! 1. A frame is written only by the thread that took it from `free`. It enters `free` without a
//!    page, or after its page's entry was removed and, behind a subsequent barrier of all threads,
//!    no reader had announced that page.
//! 2. A reader copies from a frame only between announcing the page and withdrawing that, after it
//!    found the entry behind the announcement.
//! 3. A slot belongs to one [`EvictingReader`] at a time.
//!
//! Fails as pread(2) does, where the file has changed, and where the kernel has no membarrier(2).

#![expect(unsafe_code, reason = "frames are written while others are read")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, compiler_fence};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use rustix::fs::fstat;

use super::CACHE_PAGE_BYTES;
use crate::map::MemoryMap;

/// One miss in this many enters the cache, as in pagekeeper where the kernel has the page resident.
const ADMITTED_MISS_ONE_IN: u32 = 16;
/// Frames that the hand finds at once, with one barrier for all of them.
const HAND_BATCH_FRAMES: usize = 64;
/// Largest number of readers at a time.
const READER_SLOTS: usize = 64;
/// The entry of a page without a frame.
const ABSENT_ENTRY: u32 = u32::MAX;
/// The announcement of an idle slot, and the page of a free frame.
const IDLE_SLOT: u32 = u32::MAX;

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` and its registration: linux/membarrier.h.
const MEMBARRIER_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_REGISTER: libc::c_int = 1 << 4;

/// A reader's announcement. It is alone in two cache lines, which the processor fetches in pairs.
#[repr(align(128))]
struct AnnouncementSlot(AtomicU32);

/// The clock hand, which evicts.
struct ClockHand {
    at: usize,
    /// The page of each frame.
    page_of: Vec<u32>,
    free: Vec<u32>,
}

/// The cache.
pub(super) struct EvictingCache<'a> {
    file: &'a File,
    /// Length and modification time of the file when it was opened.
    opened: (i64, i64, u64),
    entries: Vec<AtomicU32>,
    /// For each frame, whether it was read since the hand last passed.
    read: Vec<AtomicBool>,
    arena: MemoryMap,
    hand: Mutex<ClockHand>,
    slots: Vec<AnnouncementSlot>,
    idle: Mutex<Vec<usize>>,
    /// Reads, and misses among them, of readers that are gone.
    counts: [AtomicU64; 2],
}

impl<'a> EvictingCache<'a> {
    /// Creates a cache with this many frames, filled with pages of the file in this order.
    pub(super) fn new(file: &'a File, order: &[u32], frames: usize) -> Result<Self> {
        ensure!(membarrier(MEMBARRIER_REGISTER), "the kernel has no membarrier(2), which this subject needs");
        let atomics = |count: usize, value: u32| (0..count).map(|_| AtomicU32::new(value)).collect();
        let cache = Self {
            file,
            opened: file_version(file)?,
            entries: atomics(order.len(), ABSENT_ENTRY),
            read: (0..frames).map(|_| AtomicBool::new(false)).collect(),
            arena: MemoryMap::arena(frames * CACHE_PAGE_BYTES)?,
            hand: Mutex::new(ClockHand {
                at: 0,
                page_of: vec![IDLE_SLOT; frames],
                free: (0..u32::try_from(frames)?).rev().collect(),
            }),
            slots: atomics(READER_SLOTS, IDLE_SLOT).into_iter().map(AnnouncementSlot).collect(),
            idle: Mutex::new((0..READER_SLOTS).collect()),
            counts: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        for page in &order[..frames] {
            cache.load_page(*page, |_| ())?;
        }
        Ok(cache)
    }

    /// Creates a reader.
    pub(super) fn reader(&self) -> Result<EvictingReader<'_>> {
        let slot = lock(&self.idle).pop().context("too many readers")?;
        Ok(EvictingReader { cache: self, slot, reads: 0, misses: 0 })
    }

    /// Returns reads and misses of readers that are gone.
    pub(super) fn counts(&self) -> [u64; 2] {
        [0, 1].map(|which| self.counts[which].load(Ordering::Relaxed))
    }

    /// Returns a pointer to a frame's bytes.
    fn frame(&self, frame: u32) -> *mut u8 {
        self.arena.frame(frame as usize * CACHE_PAGE_BYTES, CACHE_PAGE_BYTES)
    }

    /// Reads a page into a frame, passes it to `show`, and enters it.
    fn load_page(&self, page: u32, show: impl FnOnce(&[u8])) -> Result<()> {
        let mut hand = lock(&self.hand);
        if hand.free.is_empty() {
            self.turn(&mut hand);
        }
        let frame = hand.free.pop().context("every frame is being read")?;
        drop(hand);
        // SAFETY: `frame` gives a whole page of the arena, which lives as long as `self` and is
        // initialised. By the first invariant nobody else has or makes a reference to it, or copies
        // from it, before it is entered below.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.frame(frame), CACHE_PAGE_BYTES) };
        let came = self.file.read_exact_at(bytes, u64::from(page) * CACHE_PAGE_BYTES as u64);
        show(bytes);
        let mut hand = lock(&self.hand);
        let entry = &self.entries[page as usize];
        if came.is_ok() && entry.load(Ordering::Relaxed) == ABSENT_ENTRY {
            hand.page_of[frame as usize] = page;
            entry.store(frame, Ordering::Release);
        } else {
            hand.free.push(frame);
        }
        came.context("can't read the file")
    }

    /// Frees frames.
    fn turn(&self, hand: &mut ClockHand) {
        let mut found = Vec::with_capacity(HAND_BATCH_FRAMES);
        // After two rounds every bit is cleared.
        for _ in 0..2 * self.read.len() {
            let frame = hand.at;
            hand.at = (hand.at + 1) % self.read.len();
            let page = hand.page_of[frame];
            if page == IDLE_SLOT {
                continue;
            }
            if self.read[frame].load(Ordering::Relaxed) {
                self.read[frame].store(false, Ordering::Relaxed);
                continue;
            }
            self.entries[page as usize].store(ABSENT_ENTRY, Ordering::Relaxed);
            // So that it is not found again when the hand returns.
            hand.page_of[frame] = IDLE_SLOT;
            found.push((frame, page));
            if found.len() == HAND_BATCH_FRAMES {
                break;
            }
        }
        let all_see_it = membarrier(MEMBARRIER_PRIVATE_EXPEDITED);
        for (frame, page) in found {
            // A reader may still copy the frame.
            let is_read = self.slots.iter().any(|slot| slot.0.load(Ordering::Acquire) == page);
            let frame_number = u32::try_from(frame).unwrap_or(ABSENT_ENTRY);
            if is_read || !all_see_it {
                hand.page_of[frame] = page;
                self.entries[page as usize].store(frame_number, Ordering::Release);
            } else {
                hand.free.push(frame_number);
            }
        }
    }
}

/// A reader with a slot of its own.
pub(super) struct EvictingReader<'a> {
    cache: &'a EvictingCache<'a>,
    slot: usize,
    reads: u64,
    misses: u64,
}

impl EvictingReader<'_> {
    /// Reads a part of a page.
    #[inline]
    pub(super) fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.reads += 1;
        let page = u32::try_from(offset / CACHE_PAGE_BYTES as u64)?;
        let at = usize::try_from(offset % CACHE_PAGE_BYTES as u64)?;
        ensure!(at + buf.len() <= CACHE_PAGE_BYTES, "a read of two pages");
        if self.copy(page, at, buf) { Ok(buf.len()) } else { self.miss(page, offset, buf) }
    }

    #[inline]
    fn copy(&self, page: u32, at: usize, buf: &mut [u8]) -> bool {
        let cache = self.cache;
        let Some(entry) = cache.entries.get(page as usize) else { return false };
        let slot = &cache.slots[self.slot].0;
        slot.store(page, Ordering::Relaxed);
        // The other half of this fence is membarrier(2).
        compiler_fence(Ordering::SeqCst);
        let frame = entry.load(Ordering::Acquire);
        let is_there = frame != ABSENT_ENTRY;
        if is_there {
            let read = &cache.read[frame as usize];
            if !read.load(Ordering::Relaxed) {
                read.store(true, Ordering::Relaxed);
            }
            // SAFETY: the frame is `CACHE_PAGE_BYTES` initialised bytes of the arena, `at +
            // buf.len()` is at most that (checked in `read`), and `buf` does not overlap it. By the
            // second invariant nobody writes to the frame: an evictor that removes the entry after
            // it was found here sees the announcement, because its barrier comes after that.
            unsafe {
                std::ptr::copy_nonoverlapping(cache.frame(frame).add(at), buf.as_mut_ptr(), buf.len());
            }
        }
        slot.store(IDLE_SLOT, Ordering::Release);
        is_there
    }

    #[cold]
    fn miss(&mut self, page: u32, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let cache = self.cache;
        ensure!((page as usize) < cache.entries.len(), "page {page} is beyond the end");
        self.misses += 1;
        let read = if self.misses.is_multiple_of(u64::from(ADMITTED_MISS_ONE_IN)) {
            let at = usize::try_from(offset % CACHE_PAGE_BYTES as u64)?;
            cache.load_page(page, |bytes| buf.copy_from_slice(&bytes[at..at + buf.len()]))?;
            buf.len()
        } else {
            cache.file.read_at(buf, offset)?
        };
        ensure!(file_version(cache.file)? == cache.opened, "the file has changed");
        Ok(read)
    }
}

impl Drop for EvictingReader<'_> {
    fn drop(&mut self) {
        for (count, of_this) in self.cache.counts.iter().zip([self.reads, self.misses]) {
            count.fetch_add(of_this, Ordering::Relaxed);
        }
        lock(&self.cache.idle).push(self.slot);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the file's length and modification time.
fn file_version(file: &File) -> Result<(i64, i64, u64)> {
    let stat = fstat(file).context("can't look at the file")?;
    Ok((stat.st_size, stat.st_mtime, stat.st_mtime_nsec))
}

/// Calls membarrier(2) and returns whether it succeeded.
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier(2) takes numbers, and changes no memory.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    result == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::MIB;
    use crate::drive::{FILE_PAGE_BYTES, ReadChecker, place};
    use crate::pattern;
    use crate::rounds::SplitMix;

    #[test]
    fn reads_are_right_while_frames_change_their_pages() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        pattern::make_file(&path, MIB, 7).unwrap();
        let (file, pages) = (File::open(&path).unwrap(), MIB / FILE_PAGE_BYTES);
        let mut order: Vec<u32> = (0..u32::try_from(pages).unwrap()).collect();
        SplitMix::new(3).shuffle(&mut order);
        // More than the hand finds at once.
        let cache = EvictingCache::new(&file, &order, 100).unwrap();
        std::thread::scope(|scope| {
            for seed in 0..3 {
                let mut reader = cache.reader().unwrap();
                scope.spawn(move || {
                    let (mut random, mut judge, mut buf) =
                        (SplitMix::new(seed), ReadChecker::new(7), [0; 500]);
                    for _ in 0..40_000 {
                        let offset = place(&mut random, pages, buf.len());
                        assert_eq!(reader.read(offset, &mut buf).unwrap(), buf.len());
                        judge.check(offset, &buf).unwrap();
                    }
                });
            }
        });
        let [reads, misses] = cache.counts();
        assert_eq!(reads, 120_000);
        let part = misses as f64 / reads as f64;
        // At most 100 of 256 pages are in a frame, or `HAND_BATCH_FRAMES` fewer right after the
        // hand has passed.
        assert!((0.58..0.87).contains(&part), "{part}");
        assert!(cache.reader().unwrap().read(MIB, &mut [0; 8]).is_err(), "beyond the end");
    }

    #[test]
    fn a_file_that_was_written_is_seen() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = dir.path().join("file");
        pattern::make_file(&path, MIB, 7).unwrap();
        let file = File::open(&path).unwrap();
        let order: Vec<u32> = (0..256).collect();
        let cache = EvictingCache::new(&file, &order, 128).unwrap();
        let mut reader = cache.reader().unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(MIB / 2).unwrap();
        assert!(reader.read(0, &mut [0; 8]).is_ok(), "a hit");
        assert!(reader.read(200 * FILE_PAGE_BYTES, &mut [0; 8]).is_err());
    }
}
