//! Release: makes pages of a file clean, drops them from the page cache, and reports what stayed
//! and why.
//!
//! It never loses data: the kernel drops clean pages only. The order matters (measured on Linux
//! 6.18): `POSIX_FADV_DONTNEED` on dirty pages starts writeback inside the caller and drops only
//! pages that are clean already. So pages are flushed first, then dropped, then counted again.
//! Pages that resist are tried once more after [`ReleaseOptions::retry_pause`]: pages locked by
//! read-ahead or writeback in flight are free by then.
//!
//! Without counts of unwritten pages (no cachestat, or overlayfs), waiting would consume a write
//! error that belongs to the file's owner. There the advice is repeated until everything is
//! dropped.
//!
//! DONTNEED drops a folio only if all of it lies in the range. Folios of ext4 and XFS are up to 2
//! MiB and aligned to their size: a range aligned to [`RELEASE_ALIGN`] cuts none. Any other range
//! may leave its first and last folio ([`ReleaseReport::kept_edge`]).

use std::ops::{AddAssign, Range};
use std::time::Duration;

use crate::pages::residency::{ResidencySource, residency};
use crate::pages::writeback::{Deadline, FlushMode, flush_until};
use crate::process::ProcRoot;
use crate::{Advice, Error, FileSystem, Inode, InspectedFile, Result, advise, page_size};

/// Ranges that start and end at a multiple of this many bytes (2 MiB) cut no folio on x86-64.
pub const RELEASE_ALIGN: u64 = 2 << 20;

/// Step in bytes in which a long range is released, so that dirty pages are waited for and dropped
/// in turn.
const STEP_BYTES: u64 = 256 << 20;

/// Slice in bytes in which clean pages are counted and dropped: the kernel's records (64 bytes per
/// page) that the count has read are then still in the processor's cache.
const SLICE_BYTES: u64 = 16 << 20;

/// Number of rounds of 5 ms without progress after which the rest of a file without counts stays.
const STUCK_ROUNDS_MAX: u32 = 40;

/// Options of a release.
#[derive(Debug, Clone)]
pub struct ReleaseOptions {
    /// The way to make dirty pages clean first.
    pub flush: FlushMode,
    /// Maximum wait of the whole call, for dirty pages and for the retry. Pages still dirty then
    /// are [`ReleaseReport::kept_dirty`]. The waits of [`FlushMode::SyncFileRange`] and
    /// [`FlushMode::Fdatasync`] take as long as the disk does.
    pub patience: Duration,
    /// Pause before the only retry of resisting pages, if `patience` is long enough.
    pub retry_pause: Duration,
    /// Whether to find out which processes map the clean pages that stayed, by reading
    /// `/proc/*/maps` of all processes (milliseconds to tens of milliseconds). Otherwise mapped
    /// pages count as [`ReleaseReport::kept_busy`].
    pub explain: bool,
}

impl Default for ReleaseOptions {
    fn default() -> Self {
        Self {
            flush: FlushMode::Watch,
            patience: Duration::from_secs(60),
            retry_pause: Duration::from_millis(100),
            explain: true,
        }
    }
}

/// The result of a release, in bytes. `released` and the four `kept` figures add up to
/// `resident_before`, unless others read or write the range meanwhile.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReleaseReport {
    /// Bytes of the range inside the file.
    pub requested: u64,
    /// Bytes of the range that were resident at first.
    pub resident_before: u64,
    /// Bytes that are no longer in the page cache.
    pub released: u64,
    /// Bytes that stayed, still dirty or under writeback. If that is unknown, they are in
    /// [`Self::kept_busy`].
    pub kept_dirty: u64,
    /// Bytes that stayed, mapped by a process.
    pub kept_mapped: u64,
    /// Bytes that stayed, in a folio that extends out of the range.
    pub kept_edge: u64,
    /// Bytes that stayed, locked, referenced or read again at this moment.
    pub kept_busy: u64,
}

impl ReleaseReport {
    /// Returns all bytes that stayed.
    pub fn kept(&self) -> u64 {
        self.kept_dirty + self.kept_mapped + self.kept_edge + self.kept_busy
    }
}

impl AddAssign for ReleaseReport {
    fn add_assign(&mut self, other: Self) {
        // A range without an end requests up to all that 64 bits can say.
        self.requested = self.requested.saturating_add(other.requested);
        self.resident_before += other.resident_before;
        self.released += other.released;
        self.kept_dirty += other.kept_dirty;
        self.kept_mapped += other.kept_mapped;
        self.kept_edge += other.kept_edge;
        self.kept_busy += other.kept_busy;
    }
}

/// Releases the pages of `range`; an end at or past the end of the file includes its last, partial
/// page.
///
/// Fails with [`Error::Unsupported`] if pages can't be released (tmpfs and similar), and with
/// [`Error::is_denied`] if the effect could not be seen.
///
/// ```
/// use pagekeeper_kernel::{InspectedFile, Links, ReleaseOptions, release};
/// let dir = tempfile::tempdir_in(".")?;
/// let path = dir.path().join("log");
/// std::fs::write(&path, vec![0; 1 << 20])?;
/// let file = InspectedFile::open(&path, Links::Refuse)?;
/// match release(&file, 0..u64::MAX, &ReleaseOptions::default()) {
///     Ok(report) => assert_eq!(report.released + report.kept(), report.resident_before),
///     Err(error) => println!("{error}"), // on tmpfs
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn release(file: &InspectedFile, range: Range<u64>, options: &ReleaseOptions) -> Result<ReleaseReport> {
    let file_system = file.file_system()?;
    if let Some(reason) = file_system.release_refusal() {
        return Err(Error::Unsupported { path: file.path().to_path_buf(), reason });
    }
    let size = file.size_now()?;
    let mut report = ReleaseReport {
        requested: range.end.min(size).saturating_sub(range.start),
        ..ReleaseReport::default()
    };
    if range.start >= range.end {
        return Ok(report);
    }
    let range = range.start..if range.end >= size { u64::MAX } else { range.end };
    let deadline = Deadline::after(options.patience);
    // One byte shows which source is available.
    let counts = residency(file, range.start..range.start + 1)?.source == ResidencySource::Cachestat;
    let by_advice = file_system == FileSystem::Overlay || (!counts && options.flush == FlushMode::Watch);
    let clean_only = options.flush == FlushMode::Never;
    if clean_only && !counts {
        let reason = "which of its pages are dirty can't be seen here, and those are to be left alone";
        return Err(Error::Unsupported { path: file.path().to_path_buf(), reason });
    }
    let pass = || {
        if clean_only {
            drop_clean(file, range.start..range.end.min(size))
        } else if by_advice {
            drop_until_gone(file, &range, size, deadline)
        } else {
            drop_once(file, &range, size, options.flush, deadline)
        }
    };
    report.resident_before = pass()?;
    if report.resident_before == 0 {
        return Ok(report);
    }
    let mut left = residency(file, range.clone())?;
    if left.resident > 0 && !deadline.has_passed() {
        deadline.sleep(options.retry_pause);
        pass()?;
        left = residency(file, range.clone())?;
    }
    report.released = report.resident_before.saturating_sub(left.resident);
    if left.resident > 0 {
        explain(file, &range, left.resident, left.unwritten(), options.explain, &mut report)?;
    }
    Ok(report)
}

/// Makes one pass over the range. Clean slices are counted and dropped; if a slice is not clean,
/// the rest of its step is flushed first. Returns the bytes resident before.
fn drop_once(
    file: &InspectedFile,
    range: &Range<u64>,
    size: u64,
    how: FlushMode,
    deadline: Deadline,
) -> Result<u64> {
    let mut resident = 0;
    let mut start = range.start;
    let mut length = SLICE_BYTES;
    loop {
        let up_to_next = |length: u64| {
            let next = (start / length + 1).saturating_mul(length);
            if next >= size.min(range.end) { range.end } else { next }
        };
        let mut end = up_to_next(length);
        let mut counted = residency(file, start..end)?;
        let clean = how == FlushMode::Watch
            && counted.source == ResidencySource::Cachestat
            && counted.unwritten() == 0;
        if counted.resident > 0 && !clean {
            let step_end = up_to_next(STEP_BYTES);
            if step_end > end {
                end = step_end;
                counted = residency(file, start..end)?;
            }
            flush_until(file, start..end, how, deadline)?;
        }
        if counted.resident > 0 {
            advise(file, Advice::DontNeed, start..end, file.path())?;
        }
        resident += counted.resident;
        // Counting an empty range costs nothing: the empty parts of a large file are passed in ever
        // longer steps.
        length = if counted.resident == 0 { length.saturating_mul(2) } else { SLICE_BYTES };
        if end == range.end {
            return Ok(resident);
        }
        start = end;
    }
}

/// Drops clean pages, and leaves out others: the advice would start their writeback. Returns the
/// bytes resident before.
fn drop_clean(file: &InspectedFile, range: Range<u64>) -> Result<u64> {
    let page = page_size();
    let mut resident = 0;
    let mut parts = vec![range];
    while let Some(part) = parts.pop() {
        let counted = residency(file, part.clone())?;
        let middle = (part.start / 2 + part.end / 2) / page * page;
        if counted.resident == 0 {
            continue;
        }
        if counted.unwritten() > 0 && middle > part.start {
            parts.extend([part.start..middle, middle..part.end]);
            continue;
        }
        resident += counted.resident;
        if counted.unwritten() == 0 {
            advise(file, Advice::DontNeed, part, file.path())?;
        }
    }
    Ok(resident)
}

/// Releases without counts: the advice starts writeback of dirty pages and drops clean ones (on
/// overlayfs, those of the lower file). It is repeated until nothing is left or nothing more is
/// dropped. Returns the bytes resident before.
fn drop_until_gone(file: &InspectedFile, range: &Range<u64>, size: u64, deadline: Deadline) -> Result<u64> {
    let resident = residency(file, range.clone())?.resident;
    let mut stuck_for = 0;
    let mut before = resident;
    while before > 0 {
        let mut start = range.start;
        while start < range.end {
            let next = (start / STEP_BYTES + 1).saturating_mul(STEP_BYTES);
            let end = if next >= size.min(range.end) { range.end } else { next };
            advise(file, Advice::DontNeed, start..end, file.path())?;
            start = end;
        }
        let left = residency(file, range.clone())?.resident;
        stuck_for = if left < before { 0 } else { stuck_for + 1 };
        before = left;
        if left == 0 || stuck_for == STUCK_ROUNDS_MAX || deadline.has_passed() {
            break;
        }
        deadline.sleep(Duration::from_millis(5));
    }
    Ok(resident)
}

/// Sorts the pages that stayed by cause, the most certain first: dirty, mapped, edge, and otherwise
/// busy.
fn explain(
    file: &InspectedFile,
    range: &Range<u64>,
    resident: u64,
    unwritten: u64,
    find_mappings: bool,
    report: &mut ReleaseReport,
) -> Result<()> {
    let mut rest = resident;
    let mut take = |bytes: u64| {
        let taken = bytes.min(rest);
        rest -= taken;
        taken
    };
    report.kept_dirty = take(unwritten);
    if unwritten >= resident {
        return Ok(());
    }
    if find_mappings {
        let mut mapped = 0;
        for stretch in mapped_stretches(file.inode(), range)? {
            mapped += residency(file, stretch)?.resident;
        }
        report.kept_mapped = take(mapped);
    }
    let mut at_edges = 0;
    for edge in edges(range) {
        at_edges += residency(file, edge)?.resident;
    }
    report.kept_edge = take(at_edges);
    report.kept_busy = rest;
    Ok(())
}

/// Returns the parts of `range` that any process maps, merged and widened to whole folios: one
/// mapped page keeps its whole folio. Processes whose maps can't be read are skipped: their
/// mappings then count as busy.
fn mapped_stretches(inode: Inode, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
    let found = ProcRoot::default().mapped_by(inode, range)?;
    let whole_folios = found.stretches.into_iter().map(|(_, stretch)| {
        let start = stretch.start / RELEASE_ALIGN * RELEASE_ALIGN;
        start.max(range.start)..stretch.end.next_multiple_of(RELEASE_ALIGN).min(range.end)
    });
    let mut stretches: Vec<_> = whole_folios.collect();
    stretches.sort_by_key(|stretch| stretch.start);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for stretch in stretches {
        match merged.last_mut() {
            Some(last) if last.end >= stretch.start => last.end = last.end.max(stretch.end),
            _ => merged.push(stretch),
        }
    }
    Ok(merged)
}

/// Returns the parts where a folio may extend out of the range: up to the first aligned byte, and
/// from the last one.
fn edges(range: &Range<u64>) -> Vec<Range<u64>> {
    let mut edges = Vec::new();
    let first_aligned = range.start.next_multiple_of(RELEASE_ALIGN);
    if first_aligned != range.start {
        edges.push(range.start..first_aligned.min(range.end));
    }
    let last_aligned = range.end / RELEASE_ALIGN * RELEASE_ALIGN;
    if range.end != u64::MAX && last_aligned != range.end && last_aligned >= first_aligned {
        edges.push(last_aligned..range.end);
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_size;
    use crate::sys::mapping::FileMapping;
    use crate::testing::{counts_unwritten, file_of, may_be_unwritten, tebibyte};

    const MIB: usize = 1 << 20;

    /// Other dirty data on the same disk may be written first.
    const TEST_WAIT_MAX: Duration = Duration::from_secs(300);

    fn release_all(file: &InspectedFile) -> ReleaseReport {
        let options = ReleaseOptions { patience: TEST_WAIT_MAX, ..ReleaseOptions::default() };
        release(file, 0..u64::MAX, &options).unwrap()
    }

    #[test]
    fn dirty_pages_are_written_then_dropped() {
        let (_dir, file) = file_of(0);
        // 10,000 bytes more: the last page is partial.
        let content: Vec<u8> = (0..=250).cycle().take(16 * MIB + 10_000).collect();
        std::fs::write(file.path(), &content).unwrap();
        let report = release_all(&file);
        assert_eq!(report.requested, content.len() as u64);
        assert_eq!(report.released, (content.len() as u64).next_multiple_of(page_size()));
        assert_eq!(report.kept(), 0);
        assert_eq!(residency(&file, 0..u64::MAX).unwrap().resident, 0);
        assert_eq!(std::fs::read(file.path()).unwrap(), content);
    }

    #[test]
    fn a_release_without_resident_pages_does_nothing() {
        let (_dir, file) = file_of(MIB);
        assert_eq!(release_all(&file).released, MIB as u64);
        let again = release_all(&file);
        assert_eq!((again.resident_before, again.released, again.kept()), (0, 0, 0));
    }

    #[test]
    fn only_the_range_goes() {
        let (_dir, file) = file_of(16 * MIB);
        let report = release(&file, 4 * MIB as u64..8 * MIB as u64, &ReleaseOptions::default()).unwrap();
        assert_eq!(report.released, 4 * MIB as u64);
        assert_eq!(residency(&file, 0..u64::MAX).unwrap().resident, 12 * MIB as u64);
    }

    #[test]
    fn a_range_within_a_large_folio_says_so() {
        let (_dir, file) = file_of(8 * MIB);
        let page = page_size();
        let range = 2 * MIB as u64 + page..2 * MIB as u64 + 2 * page;
        let report = release(&file, range, &ReleaseOptions::default()).unwrap();
        // With single-page folios the page is dropped; with large ones it stays, and the cause is
        // the edge.
        assert_eq!(report.released + report.kept_edge, page);
        assert_eq!(report.kept(), report.kept_edge);
    }

    #[test]
    fn locked_pages_are_kept_as_mapped() {
        let (_dir, file) = file_of(4 * MIB);
        let map = FileMapping::new(&file, 2 * MIB as u64, MIB).unwrap();
        map.lock().unwrap();
        let report = release_all(&file);
        assert!(report.kept_mapped >= MIB as u64, "{report:?}");
        assert_eq!(report.kept(), report.kept_mapped, "{report:?}");
        assert_eq!(report.released + report.kept(), report.resident_before);
        drop(map);
        assert_eq!(release_all(&file).kept(), 0);
    }

    #[test]
    fn tmpfs_is_refused_with_the_reason() {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        std::fs::write(file.path(), b"x").unwrap();
        let file = InspectedFile::open(file.path(), crate::Links::Refuse).unwrap();
        let error = release(&file, 0..u64::MAX, &ReleaseOptions::default()).unwrap_err();
        assert!(error.to_string().contains("the page cache is the file itself"), "{error}");
    }

    #[test]
    fn without_patience_the_sum_is_right() {
        let (_dir, file) = file_of(0);
        std::fs::write(file.path(), vec![1; 64 * MIB]).unwrap();
        let options = ReleaseOptions {
            patience: Duration::ZERO,
            retry_pause: Duration::ZERO,
            explain: false,
            ..ReleaseOptions::default()
        };
        let report = release(&file, 0..u64::MAX, &options).unwrap();
        assert_eq!(report.released + report.kept(), report.resident_before);
        assert_eq!(report.kept(), report.kept_dirty + report.kept_busy, "{report:?}");
    }

    #[test]
    fn only_clean_pages_go_without_writeback() {
        let (_dir, file) = file_of(8 * MIB);
        if !counts_unwritten(&file) {
            return;
        }
        let out = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
        let options = ReleaseOptions {
            flush: FlushMode::Never,
            retry_pause: Duration::ZERO,
            ..ReleaseOptions::default()
        };
        // Others may sync the file system in between.
        let is_dirty_left = |_| {
            for at in [5 * MIB as u64 + 4096, 7 * MIB as u64] {
                std::os::unix::fs::FileExt::write_all_at(&out, &[2; 4096], at).unwrap();
            }
            let dirty = residency(&file, 0..u64::MAX).unwrap().unwritten();
            let report = release(&file, 0..u64::MAX, &options).unwrap();
            let left = residency(&file, 0..u64::MAX).unwrap();
            assert_eq!(report.released + report.kept(), report.resident_before, "{report:?}");
            // Whole folios: a clean page may share one with a dirty page.
            assert!(left.resident <= 4 * MIB as u64, "{left:?}");
            dirty > 0 && left.unwritten() == dirty && report.kept_dirty == dirty
        };
        assert!((0..50).any(is_dirty_left));
    }

    #[test]
    fn endless_patience_is_no_overflow() {
        let (_dir, file) = file_of(MIB);
        let options = ReleaseOptions { patience: Duration::MAX, ..ReleaseOptions::default() };
        assert_eq!(release(&file, 0..u64::MAX, &options).unwrap().released, MIB as u64);
    }

    #[test]
    fn clean_and_dirty_slices_of_several_steps() {
        let (_dir, file) = file_of(0);
        let out = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
        let write = |offset: u64| std::os::unix::fs::FileExt::write_all_at(&out, &[9; 4096], offset).unwrap();
        let offsets = [
            3 * SLICE_BYTES,
            STEP_BYTES - 4096,
            2 * STEP_BYTES,
            5 * STEP_BYTES + SLICE_BYTES,
            tebibyte(&file),
        ];
        offsets.into_iter().for_each(write);
        out.sync_all().unwrap();
        [offsets[1], offsets[3]].into_iter().for_each(write);
        let before = residency(&file, 0..u64::MAX).unwrap();
        assert!(before.resident >= 5 * page_size() && may_be_unwritten(&file, 0..u64::MAX));
        let report = release_all(&file);
        assert_eq!((report.resident_before, report.released), (before.resident, before.resident));
        let mut page = [0; 4096];
        for offset in offsets {
            std::os::unix::fs::FileExt::read_exact_at(file.file(), &mut page, offset).unwrap();
            assert_eq!(page, [9; 4096]);
        }
    }

    #[test]
    fn without_counts_dirty_pages_go_by_the_advice_alone() {
        let (_dir, file) = file_of(0);
        std::fs::write(file.path(), vec![6; 16 * MIB]).unwrap();
        let deadline = Deadline::after(TEST_WAIT_MAX);
        let before = drop_until_gone(&file, &(0..u64::MAX), 16 * MIB as u64, deadline).unwrap();
        assert_eq!(before, 16 * MIB as u64);
        assert_eq!(residency(&file, 0..u64::MAX).unwrap().resident, 0);
        assert!(std::fs::read(file.path()).unwrap().iter().all(|byte| *byte == 6));
    }

    #[test]
    fn edges_are_where_a_folio_may_stick_out() {
        const A: u64 = RELEASE_ALIGN;
        assert!(edges(&(0..u64::MAX)).is_empty());
        assert!(edges(&(A..3 * A)).is_empty());
        assert_eq!(edges(&(A + 1..3 * A + 5)), [A + 1..2 * A, 3 * A..3 * A + 5]);
        let one = std::slice::from_ref;
        assert_eq!(edges(&(A + 1..A + 2)), one(&(A + 1..A + 2)));
        assert_eq!(edges(&(5..u64::MAX)), one(&(5..A)));
    }

    /// A mounted overlay over two directories, unmounted on drop.
    struct Overlay(tempfile::TempDir);

    impl Overlay {
        fn mount() -> Self {
            let dir = crate::testing::disk_dir();
            let at = |name: &str| dir.path().join(name);
            for name in ["lower", "upper", "work", "merged"] {
                std::fs::create_dir(at(name)).unwrap();
            }
            let options = format!(
                "lowerdir={},upperdir={},workdir={}",
                at("lower").display(),
                at("upper").display(),
                at("work").display()
            );
            let options = std::ffi::CString::new(options).unwrap();
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("overlay", at("merged"), "overlay", flags, options.as_c_str()).unwrap();
            Self(dir)
        }
    }

    impl Drop for Overlay {
        fn drop(&mut self) {
            let merged = self.0.path().join("merged");
            let _ = rustix::mount::unmount(merged, rustix::mount::UnmountFlags::DETACH);
        }
    }

    #[test]
    fn pages_below_an_overlay_are_seen_and_released() {
        if !rustix::process::geteuid().is_root() {
            crate::testing::skip(
                "pages_below_an_overlay_are_seen_and_released needs root to mount an overlay",
            );
            return;
        }
        let overlay = Overlay::mount();
        let content = vec![3; 16 * MIB];
        std::fs::write(overlay.0.path().join("merged/log"), &content).unwrap();
        let merged = InspectedFile::open(overlay.0.path().join("merged/log"), crate::Links::Refuse).unwrap();
        let upper = InspectedFile::open(overlay.0.path().join("upper/log"), crate::Links::Refuse).unwrap();
        assert_eq!(residency(&merged, 0..u64::MAX).unwrap().resident, content.len() as u64);
        assert!(may_be_unwritten(&upper, 0..u64::MAX));
        let report = release_all(&merged);
        assert_eq!((report.released, report.kept()), (content.len() as u64, 0));
        assert_eq!(residency(&upper, 0..u64::MAX).unwrap().resident, 0);
        assert_eq!(std::fs::read(merged.path()).unwrap(), content);
    }
}
