//! Warm: reads missing pages into the page cache with several threads, and makes sure that they are
//! there.
//!
//! Invariants:
//! * Resident pages are not read again.
//! * [`warm`] leaves holes of sparse files alone, since reading them costs no device access.
//! * Every missing page has been waited for when the call returns, unless it was cancelled. Pages
//!   that another process has started to read count as resident and are not waited for.
//! * Memory use depends neither on the file's size nor on the number of missing extents (beyond
//!   those that the caller lists).
//!
//! The methods, as measured (Linux 6.18, ext4, virtio disk of about 2.2 GiB/s, 4 GiB cold, medians
//! of 9 shuffled rounds, in GiB/s with `read_ahead_kb` 8192 and 128, and in ms to evict one GiB
//! again):
//!
//! | method | 8192 | 128 | evict |
//! |---|---|---|---|
//! | `MADV_POPULATE_READ` with `MADV_HUGEPAGE`, 4 threads | 2.16 | 2.00 | 2-4 |
//! | the same, 2 threads | 2.10 | 1.96 | 2-3 |
//! | sendfile(2) to /dev/null, 4 threads | 2.15 | 2.15 | 9-11 |
//! | `vmtouch -t` (one thread) | 1.53 | 1.69 | 4-9 |
//!
//! Long stretches are populated. This is as fast as the alternatives and takes hardly any CPU time.
//! It makes the largest folios whatever the read-ahead setting, and its pages count as used once,
//! so that they are not reclaimed first. But it also reads the 2 MiB around each fault, and the
//! read-ahead that follows: after the first 40 MiB of a file with `read_ahead_kb` 8192, 14 MiB
//! more.
//!
//! So short stretches, and the last 16 MiB of a range that ends before its file, are read by
//! `POSIX_FADV_WILLNEED`. It reads exactly the requested pages, as single pages, which take 20
//! times as long to evict. They are waited for by sendfile(2). At the ends of a range, where
//! sendfile would continue the read-ahead of the previous pages, they are waited for by populating
//! with `MADV_RANDOM`. That costs a range some 15 ms: 16 MiB took 27 ms instead of 11.
//!
//! 28,807 extents of at least 16 KiB were read 2.4 to 3.2 times as fast as by pread(2) from one
//! thread, and about as fast as by direct reads of 16 KiB with 64 in flight. Reading across the
//! gaps between them gained nothing.
//!
//! Fails with the error of the read, or of another call on the file.

mod load;
mod lock;
mod plan;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use lock::{LockError, PageLock, lock};

use crate::residency;
use crate::{Error, InspectedFile, Result, page_size};
use load::PieceLoader;
use plan::{EmptyRanges, WarmPlan};

/// The method of reading missing pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WarmMethod {
    /// [`Populate`](Self::Populate) for stretches of at least 4 MiB and for whole files,
    /// [`ReadAhead`](Self::ReadAhead) for everything else and for the last 16 MiB of a range that
    /// ends before its file. This measured best.
    #[default]
    Auto,
    /// `MADV_POPULATE_READ` on a mapping with `MADV_HUGEPAGE`. It makes large folios, but also
    /// reads up to 2 MiB before a stretch, and up to twice the device's `read_ahead_kb` after it,
    /// at least 4 MiB. Falls back to [`SendFile`](Self::SendFile) before Linux 5.14.
    Populate,
    /// sendfile(2) to `/dev/null`, with the kernel's read-ahead.
    SendFile,
    /// `POSIX_FADV_WILLNEED` for each stretch, then a wait for it: exact, in single pages.
    ReadAhead,
}

/// Decides when parts may be read, so that warming leaves time of the disk to others.
pub trait WarmTurns: fmt::Debug + Send + Sync {
    /// Returns the bytes of the next part; it gets at least a page.
    fn part_bytes(&self) -> u64;

    /// Waits until `bytes` more may be read, and calls `read`, which reads them and returns when
    /// they are there. Returns without a call soon after `is_stopped` returned true.
    fn take(&self, bytes: u64, is_stopped: &dyn Fn() -> bool, read: &mut dyn FnMut());
}

/// Options of warming.
#[derive(Debug, Clone)]
pub struct WarmOptions {
    /// Number of reading threads; at least 1. The default is 4. The measured disk reached 97 % of
    /// that speed with 2, and disks with more parallelism and longer latency gain more.
    pub width: usize,
    /// The method of reading missing pages.
    pub method: WarmMethod,
    /// Paces the threads of all calls whose options are clones of each other. Each part is then
    /// read exactly, as by [`WarmMethod::ReadAhead`], whatever `method` is.
    pub turns: Option<Arc<dyn WarmTurns>>,
}

impl Default for WarmOptions {
    fn default() -> Self {
        Self { width: 4, method: WarmMethod::Auto, turns: None }
    }
}

/// The result of warming, in bytes; all figures except `requested` are in whole pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WarmReport {
    /// Bytes of the range inside the file.
    pub requested: u64,
    /// Bytes of these in holes, which are not loaded.
    pub holes: u64,
    /// Bytes resident at first; `None` if that can't be seen (see [`residency`]).
    pub resident_before: Option<u64>,
    /// Missing bytes that were read. If residency can't be seen: bytes read, resident or not.
    pub loaded: u64,
    /// Bytes resident at the end. The sum of the others is larger if the kernel reclaimed pages
    /// meanwhile.
    pub resident_after: Option<u64>,
    /// Whether it was cancelled before everything was read.
    pub cancelled: bool,
}

/// Called with the bytes handled since the last call: read, or found not to need reading. Called
/// from several threads.
pub type WarmProgress<'a> = &'a (dyn Fn(u64) + Sync);

/// Reads the missing pages of `range`; an end of `u64::MAX` means the end of the file.
///
/// `cancel` is checked at least every 8 MiB. If it is set, the report says how far the call got.
///
/// ```
/// use std::sync::atomic::AtomicBool;
/// use pagekeeper_kernel::{InspectedFile, Links, WarmOptions, warm};
/// let file = InspectedFile::open(std::env::current_exe()?, Links::Refuse)?;
/// let report = warm(&file, 0..u64::MAX, &WarmOptions::default(), &|_| {}, &AtomicBool::new(false))?;
/// assert_eq!(report.requested, file.size());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn warm(
    file: &InspectedFile,
    range: Range<u64>,
    options: &WarmOptions,
    progress: WarmProgress<'_>,
    cancel: &AtomicBool,
) -> Result<WarmReport> {
    WarmCall::new(file, &[range], true, options, progress, cancel)?.run()
}

/// Reads the missing pages of exactly these extents; holes in them are loaded too.
///
/// `extents` must be sorted and not overlap; parts past the end of the file are left out.
pub fn warm_extents(
    file: &InspectedFile,
    extents: &[Range<u64>],
    options: &WarmOptions,
    progress: WarmProgress<'_>,
    cancel: &AtomicBool,
) -> Result<WarmReport> {
    WarmCall::new(file, extents, false, options, progress, cancel)?.run()
}

/// One call of [`warm`] or [`warm_extents`].
struct WarmCall<'a> {
    file: &'a InspectedFile,
    /// Inside the file, not empty.
    ranges: Vec<Range<u64>>,
    /// Outside of this range pages are read exactly.
    inner: Range<u64>,
    skip_holes: bool,
    options: &'a WarmOptions,
    progress: WarmProgress<'a>,
    cancel: &'a AtomicBool,
    requested: u64,
}

impl<'a> WarmCall<'a> {
    fn new(
        file: &'a InspectedFile,
        ranges: &[Range<u64>],
        skip_holes: bool,
        options: &'a WarmOptions,
        progress: WarmProgress<'a>,
        cancel: &'a AtomicBool,
    ) -> Result<Self> {
        let size = file.size_now()?;
        let ranges: Vec<Range<u64>> = ranges
            .iter()
            .map(|range| range.start..range.end.min(size))
            .filter(|range| range.start < range.end)
            .collect();
        let inner = match (options.method, &ranges[..]) {
            (WarmMethod::Auto, [range]) if skip_holes => load::inner_range(range, size),
            // Most of many extents are too short for anything else, and the extra data around a
            // long one is small.
            _ => 0..u64::MAX,
        };
        Ok(Self {
            file,
            requested: ranges.iter().map(|range| range.end - range.start).sum(),
            ranges,
            inner,
            skip_holes,
            options,
            progress,
            cancel,
        })
    }

    fn run(&self) -> Result<WarmReport> {
        let resident_before = self.resident()?;
        let mut report = WarmReport { requested: self.requested, resident_before, ..WarmReport::default() };
        let loader = PieceLoader::new(self.file, self.inner.clone(), self.options, self.cancel)?;
        let mut plan = self.plan(resident_before.is_some());
        self.load_all(&loader, &mut plan, self.progress)?;
        report.holes = plan.holes();
        report.loaded = loader.loaded();
        report.cancelled = self.cancel.load(Ordering::Relaxed);
        report.resident_after = self.resident()?;
        if !report.cancelled && has_lost_few_pages(&report) {
            self.load_all(&loader, &mut self.plan(true), &|_| {})?;
            report.resident_after = self.resident()?;
        }
        Ok(report)
    }

    fn plan(&self, residency_known: bool) -> WarmPlan<'_> {
        // Parts small enough that every thread gets some, and long enough for the kernel's
        // read-ahead to start.
        let share = self.requested / (4 * self.options.width.max(1) as u64);
        let longest = match self.options.method {
            WarmMethod::ReadAhead => load::READ_CHUNK_BYTES,
            _ => share
                .next_multiple_of(load::READ_CHUNK_BYTES)
                .clamp(load::READ_CHUNK_BYTES, 8 * load::READ_CHUNK_BYTES),
        };
        WarmPlan::new(self.file, &self.ranges, self.skip_holes, residency_known, longest, self.inner.clone())
    }

    fn load_all(
        &self,
        loader: &PieceLoader<'_>,
        plan: &mut WarmPlan<'_>,
        progress: WarmProgress<'_>,
    ) -> Result<()> {
        while !self.cancel.load(Ordering::Relaxed) {
            let pieces = plan.next_batch(progress)?;
            if pieces.is_empty() {
                break;
            }
            loader.load(&pieces, progress)?;
        }
        Ok(())
    }

    /// Returns the resident bytes of the ranges; `None` if that can't be seen.
    fn resident(&self) -> Result<Option<u64>> {
        /// Minimum number of ranges for one thread: 1024 take about a millisecond.
        const THREAD_RANGES_MIN: usize = 1024;
        let share = self.ranges.len().div_ceil(self.options.width.max(1)).max(THREAD_RANGES_MIN);
        let counts: Vec<Result<u64>> = std::thread::scope(|scope| {
            let mut shares = self.ranges.chunks(share);
            let own = shares.next().unwrap_or_default();
            let others: Vec<_> = shares.map(|share| scope.spawn(|| resident_in(self.file, share))).collect();
            std::iter::once(resident_in(self.file, own))
                .chain(
                    others
                        .into_iter()
                        .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
                )
                .collect()
        });
        match counts.into_iter().sum() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if Error::is_denied(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Returns the resident bytes of the ranges, which are in file order.
fn resident_in(file: &InspectedFile, ranges: &[Range<u64>]) -> Result<u64> {
    let mut empty = EmptyRanges::new(file);
    let mut resident = 0;
    for range in ranges {
        if !empty.covers(range)? {
            resident += residency(file, range.clone())?.resident;
        }
    }
    Ok(resident)
}

/// Whether some pages that were read are gone again, but so few that reading them again does not
/// work against a kernel that has no room for them.
fn has_lost_few_pages(report: &WarmReport) -> bool {
    let (Some(before), Some(after)) = (report.resident_before, report.resident_after) else {
        return false;
    };
    let gone = (before + report.loaded).saturating_sub(after);
    gone > 0 && gone <= (report.loaded / 64).max(page_size())
}

/// Returns an error of a call on `file`.
fn call_error(call: &'static str, file: &InspectedFile, errno: rustix::io::Errno) -> Error {
    Error::call(call, file.path(), errno)
}

#[cfg(test)]
mod tests;
