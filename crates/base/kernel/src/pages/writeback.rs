//! Writeback: requests the kernel to write dirty pages of a file, and waits until they are clean.
//!
//! Pages become *clean* here, not *durable*: no metadata is written and no device cache flushed
//! (`sync_file_range(2)`). A release needs no more.
//!
//! There are three ways to wait ([`FlushMode`]). The kernel keeps a failed write as the file's
//! error until it has been seen (`lib/errseq.c`), and each call that waits *sees* it: a program
//! that opens the file afterwards to fsync it then gets no error. On foreign files the wait
//! therefore watches counts, which sees nothing.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::pages::residency::{ResidencySource, is_overlay, residency};
use crate::sys::sync_range::sync_file_range;
use crate::{Advice, Error, InspectedFile, Result, advise};

/// The way to wait for dirty pages of a range to become clean.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlushMode {
    /// Start writeback and watch cachestat(2) until nothing is dirty or under writeback. Leaves a
    /// write error for the file's owner to see, so this is the choice for foreign files. If there
    /// is nothing to watch (no cachestat, or overlayfs), writeback is started but not waited for.
    #[default]
    Watch,
    /// `sync_file_range(2)` with `WAIT_BEFORE | WRITE | WAIT_AFTER`: for the caller's own files.
    SyncFileRange,
    /// fdatasync(2): durable too, and for the whole file; for the caller's own files.
    Fdatasync,
    /// Write nothing and wait for nothing: dirty pages stay as they are. For a block device with a
    /// mounted file system, which determines its own write order.
    Never,
}

/// Starts writeback of the dirty pages of the range and returns without waiting for it. The call
/// itself can take milliseconds while requests are queued. An end of `u64::MAX` means the end of
/// the file.
pub fn start_writeback(file: &InspectedFile, range: Range<u64>) -> Result<()> {
    let Some(len) = call_length(&range) else {
        return Ok(());
    };
    if is_overlay(file)? {
        // `sync_file_range` succeeds there without effect. This starts writeback, and drops clean
        // pages.
        return Ok(advise(file, Advice::DontNeed, range, file.path())?);
    }
    sync_file_range(file, range.start, len, false).map_err(|e| Error::call("sync_file_range", file.path(), e))
}

/// Makes the pages of the range clean, waiting at most `patience` (only [`FlushMode::Watch`] can
/// stop early; the other two take as long as the disk does). Returns whether they are known to be
/// clean.
///
/// ```
/// use pagekeeper_kernel::{FlushMode, InspectedFile, Links, flush};
/// let path = std::env::current_exe()?;
/// let file = InspectedFile::open(&path, Links::Refuse)?;
/// if !flush(&file, 0..u64::MAX, FlushMode::Watch, std::time::Duration::from_secs(10))? {
///     println!("still being written, or no cachestat here to show it");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn flush(file: &InspectedFile, range: Range<u64>, how: FlushMode, patience: Duration) -> Result<bool> {
    flush_until(file, range, how, Deadline::after(patience))
}

/// Flushes as [`flush`] does, with a deadline that several calls share.
pub(crate) fn flush_until(
    file: &InspectedFile,
    range: Range<u64>,
    how: FlushMode,
    deadline: Deadline,
) -> Result<bool> {
    let Some(len) = call_length(&range) else {
        return Ok(true);
    };
    match how {
        FlushMode::Watch => watch(file, &range, deadline),
        FlushMode::SyncFileRange => {
            sync_file_range(file, range.start, len, true)
                .map_err(|e| Error::call("sync_file_range", file.path(), e))?;
            Ok(true)
        }
        FlushMode::Fdatasync => {
            rustix::fs::fdatasync(file).map_err(|e| Error::call("fdatasync", file.path(), e))?;
            Ok(true)
        }
        FlushMode::Never => {
            let now = residency(file, range)?;
            Ok(now.source == ResidencySource::Cachestat && now.unwritten() == 0)
        }
    }
}

fn watch(file: &InspectedFile, range: &Range<u64>, deadline: Deadline) -> Result<bool> {
    let mut pause = Duration::from_micros(200);
    loop {
        let now = residency(file, range.clone())?;
        if now.source == ResidencySource::Mincore {
            start_writeback(file, range.clone())?;
            return Ok(false);
        }
        if now.unwritten() == 0 {
            return Ok(true);
        }
        if deadline.has_passed() {
            return Ok(false);
        }
        if now.dirty.unwrap_or(0) > 0 {
            // Repeated in each round: writeback skips pages that were changed while under
            // writeback.
            start_writeback(file, range.clone())?;
        }
        deadline.sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(10));
    }
}

/// The time at which waiting ends; `None` if the patience exceeds the clock's range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    pub(crate) fn after(patience: Duration) -> Self {
        Self(Instant::now().checked_add(patience))
    }

    pub(crate) fn has_passed(self) -> bool {
        self.0.is_some_and(|end| Instant::now() >= end)
    }

    /// Sleeps for `pause`, or for the remaining time if that is less.
    pub(crate) fn sleep(self, pause: Duration) {
        let left = self.0.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        std::thread::sleep(pause.min(left));
    }
}

/// Returns the length argument of the system calls: 0 for "to the end"; `None` for an empty range,
/// where 0 would be wrong.
fn call_length(range: &Range<u64>) -> Option<u64> {
    match range.end.checked_sub(range.start) {
        None | Some(0) => None,
        Some(_) if range.end == u64::MAX => Some(0),
        Some(len) => Some(len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{counts_unwritten, file_of, may_be_unwritten};

    /// Other dirty data on the same disk may be written first.
    const TEST_WAIT_MAX: Duration = Duration::from_secs(300);

    #[test]
    fn each_way_leaves_clean_pages() {
        for how in [FlushMode::Watch, FlushMode::SyncFileRange, FlushMode::Fdatasync] {
            let (_dir, file) = file_of(0);
            // At least once nobody else has synced the file system in between.
            let is_dirty = |_| {
                std::fs::write(file.path(), vec![1; 4 << 20]).unwrap();
                may_be_unwritten(&file, 0..u64::MAX)
            };
            assert!((0..50).any(is_dirty));
            let is_known_clean = flush(&file, 0..u64::MAX, how, TEST_WAIT_MAX).unwrap();
            assert_eq!(is_known_clean, how != FlushMode::Watch || counts_unwritten(&file), "{how:?}");
            assert_eq!(residency(&file, 0..u64::MAX).unwrap().unwritten(), 0, "{how:?}");
        }
    }

    #[test]
    fn a_flush_without_a_wait_reports_the_pages_that_stay_dirty() {
        let (_dir, file) = file_of(0);
        std::fs::write(file.path(), vec![1; 8 << 20]).unwrap();
        let clean = flush(&file, 0..u64::MAX, FlushMode::Watch, Duration::ZERO).unwrap();
        // There was no time to write anything, but somebody else may have synced the file system.
        let unwritten = residency(&file, 0..u64::MAX).unwrap().unwritten();
        assert!(!clean || unwritten == 0, "{unwritten} bytes are not written");
    }

    #[test]
    fn endless_patience_is_no_overflow() {
        let (_dir, file) = file_of(4096);
        let is_known_clean = flush(&file, 0..u64::MAX, FlushMode::Watch, Duration::MAX).unwrap();
        assert_eq!(is_known_clean, counts_unwritten(&file));
        assert!(!Deadline::after(Duration::MAX).has_passed());
        assert!(Deadline::after(Duration::ZERO).has_passed());
    }

    #[test]
    fn only_the_range_is_written() {
        let (_dir, file) = file_of(8 << 20);
        let out = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
        let page = [2; 4096];
        let is_rest_left = |_| {
            for offset in [0_u64, 6 << 20] {
                std::os::unix::fs::FileExt::write_all_at(&out, &page, offset).unwrap();
            }
            let is_known_clean = flush(&file, 0..2 << 20, FlushMode::Watch, TEST_WAIT_MAX).unwrap();
            assert_eq!(is_known_clean, counts_unwritten(&file));
            assert_eq!(residency(&file, 0..2 << 20).unwrap().unwritten(), 0);
            may_be_unwritten(&file, 4 << 20..u64::MAX)
        };
        // Somebody else may have synced the file system, or the kernel may have seen too many dirty
        // pages: not each time.
        assert!((0..50).any(is_rest_left));
    }
}
