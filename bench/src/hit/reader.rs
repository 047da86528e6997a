//! The read of a page, the rate of threads that read, and the checks.
//!
//! Invariants:
//! - The same loop, compiled for each type, reads every subject with the same random choices and
//!   checks, so no call goes through a table.
//! - Each read's first word is compared with the pattern, and every 256th read's bytes are all
//!   compared. Checking the last word each time would cost as much as a hot copy, because it waits
//!   for the stores.
//! - Lengths are not known at compile time.
//! - Threads run before the clock starts and after it stops; each counts in a cache line of its
//!   own.
//!
//! Fails where a page is missing or a byte is wrong.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::drive::join;
use crate::pattern::{self, WORD_BYTES};
use crate::rounds::SplitMix;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
/// The seed of the file that all subjects hold.
pub(crate) const FILE_SEED: u64 = 1;
/// Reads between two checks of whether to stop, a multiple of those of one call.
const READS_PER_BATCH: usize = 64;
/// Batches between two reads whose every byte is checked.
const BATCHES_PER_CHECK: u64 = 4;
/// Bytes of a line of the processor's caches.
const LINE_BYTES: usize = 64;

/// The place of a read: byte `at` of page `page`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadPlace {
    pub(crate) page: u64,
    pub(crate) at: usize,
}

impl ReadPlace {
    /// Returns its offset in the file, in bytes.
    #[inline]
    pub(crate) fn offset(self) -> u64 {
        self.page * PAGE_BYTES as u64 + self.at as u64
    }
}

/// A source of pages.
pub(crate) trait PageReader: Sync {
    /// Number of reads that one call makes.
    const READS_PER_CALL: usize = 1;

    /// Fills `buf` from byte `at` of page `page`, and returns whether it could; the range must lie
    /// within the page.
    fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool;

    /// Makes one read for each of the buffers, which are as many as the places.
    #[inline]
    fn read_many<'a>(&self, places: &[ReadPlace], bufs: impl Iterator<Item = &'a mut [u8]>) -> bool {
        places.iter().zip(bufs).all(|(place, buf)| self.read(place.page, place.at, buf))
    }
}

/// The pages and bytes to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadLoad {
    /// Number of pages, read with equal probability.
    pub(crate) pages: u64,
    /// Distance from one page to the next, in pages.
    pub(crate) stride: u64,
    /// Bytes of a read, which starts at a word and stays within its page.
    pub(crate) len: usize,
}

impl ReadLoad {
    /// Returns the place of a read of `len` bytes.
    #[inline]
    fn random_place(&self, random: &mut SplitMix, len: usize) -> ReadPlace {
        let number = random.next_u64();
        // Words of a page at which a read can start.
        let starts = ((PAGE_BYTES - len) / WORD_BYTES + 1) as u64;
        let at = usize::try_from((low_half(number) * starts) >> 32).unwrap_or(0) * WORD_BYTES;
        ReadPlace { page: (((number >> 32) * self.pages) >> 32) * self.stride, at }
    }
}

/// A counter that shares its cache line, and the adjacent one that is fetched with it, with
/// nothing.
#[repr(align(128))]
struct PaddedCounter(AtomicU64);

/// Returns reads per second of `threads` threads over `window`, after an uncounted eighth of it.
pub(crate) fn rate<R: PageReader>(
    reader: &R,
    load: ReadLoad,
    threads: usize,
    window: Duration,
    seed: u64,
) -> Result<f64> {
    reading(reader, load, threads, seed, |count| {
        std::thread::sleep(window / 8);
        let (before, began) = (count(), Instant::now());
        std::thread::sleep(window);
        Ok((count() - before) as f64 / began.elapsed().as_secs_f64())
    })
}

/// Runs `meanwhile` while `threads` threads read; `meanwhile` can query the number of reads so far.
pub(crate) fn reading<R: PageReader, T>(
    reader: &R,
    load: ReadLoad,
    threads: usize,
    seed: u64,
    meanwhile: impl FnOnce(&dyn Fn() -> u64) -> Result<T>,
) -> Result<T> {
    /// Stops the threads, also when `meanwhile` panics.
    struct StopOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let counters: Vec<PaddedCounter> = (0..threads).map(|_| PaddedCounter(AtomicU64::new(0))).collect();
    let over = AtomicBool::new(false);
    let mut seeds = SplitMix::new(seed);
    std::thread::scope(|scope| {
        let stop = StopOnDrop(&over);
        let readers: Vec<_> = counters
            .iter()
            .map(|counter| {
                let (random, over) = (SplitMix::new(seeds.next_u64()), &over);
                scope.spawn(move || read_until(reader, load, random, &counter.0, over))
            })
            .collect();
        let result = meanwhile(&|| counters.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum());
        drop(stop);
        for reader in readers {
            join(reader)?;
        }
        result
    })
}

fn read_until<R: PageReader>(
    reader: &R,
    load: ReadLoad,
    mut random: SplitMix,
    counter: &AtomicU64,
    over: &AtomicBool,
) -> Result<()> {
    let len = black_box(load.len);
    let stride = len.next_multiple_of(LINE_BYTES);
    let mut memory = vec![0; R::READS_PER_CALL * stride + PAGE_BYTES];
    // As aligned as an engine's buffers.
    let first = memory.as_ptr().align_offset(PAGE_BYTES);
    let bufs = &mut memory[first..][..R::READS_PER_CALL * stride];
    let mut places = [ReadPlace::default(); READS_PER_BATCH];
    let places = &mut places[..R::READS_PER_CALL];
    let mut done = 0;
    loop {
        let mut wrong = 0;
        for _ in 0..READS_PER_BATCH / R::READS_PER_CALL {
            for place in &mut *places {
                *place = load.random_place(&mut random, len);
            }
            if let [place] = places {
                ensure!(reader.read(place.page, place.at, &mut bufs[..len]), "{}", lost(place.page));
            } else {
                let bufs = bufs.chunks_mut(stride).map(|buf| &mut buf[..len]);
                ensure!(reader.read_many(places, bufs), "{}", lost(places[0].page));
            }
            black_box(&mut *bufs);
            for (place, buf) in places.iter().zip(bufs.chunks(stride)) {
                wrong |= first_word(buf) ^ pattern::word(FILE_SEED, place.offset() / WORD_BYTES as u64);
            }
        }
        ensure!(wrong == 0, "wrong bytes were read");
        done += READS_PER_BATCH as u64;
        counter.store(done, Ordering::Relaxed);
        if done % (READS_PER_BATCH as u64 * BATCHES_PER_CHECK) == 0 {
            for (place, buf) in places.iter().zip(bufs.chunks(stride)) {
                pattern::check(FILE_SEED, place.offset(), &buf[..len])?;
            }
        }
        if over.load(Ordering::Relaxed) {
            return Ok(());
        }
    }
}

fn lost(page: u64) -> String {
    format!("page {page} could not be read, or is not cached")
}

#[inline]
fn low_half(number: u64) -> u64 {
    number & u64::from(u32::MAX)
}

#[inline]
fn first_word(buf: &[u8]) -> u64 {
    let mut word = [0; WORD_BYTES];
    word.copy_from_slice(&buf[..WORD_BYTES]);
    u64::from_le_bytes(word)
}

/// Reads every page of a file of `pages` pages and compares all bytes.
pub(crate) fn verify<R: PageReader>(reader: &R, pages: u64) -> Result<()> {
    let part = |range: std::ops::Range<u64>| -> Result<()> {
        let mut buf = vec![0; PAGE_BYTES];
        for page in range {
            ensure!(reader.read(page, 0, &mut buf), "page {page} could not be read, or is not cached");
            pattern::check(FILE_SEED, page * PAGE_BYTES as u64, &buf)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let helper = scope.spawn(|| part(0..pages / 2));
        part(pages / 2..pages)?;
        join(helper)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader with the pattern, except for one page that has another page's content, or none.
    struct Faulty {
        wrong: u64,
        absent: u64,
    }

    impl PageReader for Faulty {
        fn read(&self, page: u64, at: usize, buf: &mut [u8]) -> bool {
            let found = if page == self.wrong { page + 1 } else { page };
            pattern::fill(FILE_SEED, found * PAGE_BYTES as u64 + at as u64, buf);
            page != self.absent
        }
    }

    const NONE: u64 = u64::MAX;
    const SHORT: ReadLoad = ReadLoad { pages: 64, stride: 3, len: 500 };
    const WHOLE: ReadLoad = ReadLoad { pages: 64, stride: 1, len: PAGE_BYTES };

    /// Reads until it fails, and returns the message.
    fn failure<R: PageReader>(reader: &R, load: ReadLoad) -> String {
        let never = AtomicBool::new(false);
        read_until(reader, load, SplitMix::new(1), &AtomicU64::new(0), &never).unwrap_err().to_string()
    }

    #[test]
    fn right_reads_are_counted() {
        let right = Faulty { wrong: NONE, absent: NONE };
        for load in [SHORT, WHOLE] {
            let count = reading(&right, load, 3, 1, |count| {
                while count() < 3000 {
                    std::thread::yield_now();
                }
                Ok(count())
            });
            assert!(count.unwrap() >= 3000);
            assert!(rate(&right, load, 2, Duration::from_millis(8), 1).is_ok());
        }
        verify(&right, 64).unwrap();
    }

    #[test]
    fn a_wrong_page_and_an_absent_one_end_the_run() {
        for load in [SHORT, WHOLE] {
            let page = 21 * load.stride;
            assert_eq!(failure(&Faulty { wrong: page, absent: NONE }, load), "wrong bytes were read");
            let absent = failure(&Faulty { wrong: NONE, absent: page }, load);
            assert!(absent.contains(&format!("page {page} could not")), "{absent}");
        }
        assert!(verify(&Faulty { wrong: 63, absent: NONE }, 64).is_err());
        assert!(verify(&Faulty { wrong: NONE, absent: 0 }, 64).is_err());
    }
}
