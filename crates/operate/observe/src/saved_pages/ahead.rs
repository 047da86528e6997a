//! Loads a recording ahead of a start, with as many requests in flight as the disk serves: long
//! pieces first, then short ones, each in the order of the recording.
//!
//! Invariants: no more requests are in flight than that, so that a read of the server that was not
//! foreseen does not wait behind a queue. Short pieces wait while the server has not used those
//! before them: a recording of other reads takes little of the disk from it. Loading ends when it
//! is cancelled, and when there is no more room in memory. Files that can't be read are left to the
//! server.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Builder;
use std::time::Duration;

use pagekeeper_catalog::{Profile, disks};
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::pressure::{MemInfo, MemoryCgroup, SysRoots};
use pagekeeper_kernel::{Inode, InspectedFile, Links, WarmMethod, WarmOptions, WarmReport, warm_extents};

use super::{SavedFile, SavedPages, renewed};

/// A recording of less is not loaded: the command reads it in a moment.
pub const WORTH_BYTES: u64 = 4 << 20;
/// Requests in flight on a disk that was not measured: enough for a slow disk, and not too many for
/// a narrow one.
const WIDTH_UNKNOWN: u16 = 64;
/// The most threads that load.
pub const THREADS_MAX: u16 = 128;
/// The most threads that load beside a command, whose limits of processes these threads count
/// against.
pub const THREADS_BESIDE_MAX: u16 = 32;
/// The most bytes of a request: the kernel cuts one off near `read_ahead_kb`, 128 by default.
const REQUEST_BYTES: u64 = 128 << 10;
/// Requests with fewer listed bytes come last: they are of random reads, which another start may not
/// repeat, and cost a disk most per byte.
const LONG_BYTES: u64 = 64 << 10;
/// Bytes of short requests that are made before the start has used any of their files.
const UNPROVEN_BYTES_MAX: u64 = 64 << 20;
/// Bytes of short requests for each byte that the start has used of their files: a wide disk serves
/// so many requests in the time that the start waits for one.
const LOADED_PER_USED: u64 = 16;
/// Interval of looking at what was used.
const USE_INTERVAL: Duration = Duration::from_millis(10);
/// A gap between extents that is read with them: it takes a disk no longer than a request of its own
/// (40 KiB at 3,000 requests a second and 125 MB/s, 64 KiB at 16,000 and 1 GB/s).
const GAP_BYTES_MAX: u64 = 64 << 10;

/// The pages that were loaded ahead of a command.
#[derive(Debug, Default)]
pub struct LoadedAhead {
    /// Whether there was a thread to load them.
    pub was_begun: bool,
    /// The bytes that were loaded.
    pub bytes: u64,
    /// The entries of the older recording, with today's files.
    pub files: Vec<SavedFile>,
    /// For each entry, whether this process has brought in all pages of it that exist: whoever
    /// reads them was seen.
    pub judged: Vec<bool>,
}

/// What a start has used of the pages that were loaded ahead of it: short requests wait for that.
#[derive(Debug, Default)]
pub struct UsedAhead(Mutex<UsedBytes>);

#[derive(Debug, Default)]
struct UsedBytes {
    /// The bytes that were used of each file.
    of_files: HashMap<Inode, u64>,
    /// The files of short requests.
    short_files: HashSet<Inode>,
    /// The bytes that were used of those files.
    used: u64,
    /// The bytes of short requests.
    loaded: u64,
}

impl UsedAhead {
    /// Adds bytes that were used.
    pub fn add(&self, file: Inode, bytes: u64) {
        let known = &mut *lock(&self.0);
        *known.of_files.entry(file).or_default() += bytes;
        known.used += if known.short_files.contains(&file) { bytes } else { 0 };
    }

    /// Returns whether a short request of this file may be made, and counts it.
    fn may_load(&self, file: Inode, bytes: u64) -> bool {
        let known = &mut *lock(&self.0);
        if known.short_files.insert(file) {
            known.used += known.of_files.get(&file).copied().unwrap_or(0);
        }
        let bytes_max = UNPROVEN_BYTES_MAX.saturating_add(known.used.saturating_mul(LOADED_PER_USED));
        let may_load = known.loaded.saturating_add(bytes) <= bytes_max;
        known.loaded += if may_load { bytes } else { 0 };
        may_load
    }

    /// Waits until a short request of this file may be made; returns false if that is cancelled.
    fn wait(&self, file: Inode, bytes: u64, cancel: &AtomicBool) -> bool {
        while !self.may_load(file, bytes) {
            if cancel.load(Ordering::Relaxed) {
                return false;
            }
            std::thread::sleep(USE_INTERVAL);
        }
        true
    }
}

/// Loads the entries of an older recording. `used` says what the start has used of them; without it
/// the recording is trusted.
pub fn load_ahead(
    old: Option<SavedPages>,
    threads_max: u16,
    used: Option<&UsedAhead>,
    cancel: &AtomicBool,
) -> LoadedAhead {
    let files = old.map_or_else(Vec::new, |old| renewed(old, &Profile::built_in()).files);
    let width = if bytes_of(&files) < WORTH_BYTES { 0 } else { width_of(&files) };
    // All threads together make at most `width` requests at a time.
    let requests = width.div_ceil(threads_max).max(1);
    let threads = width / requests;
    let loading = Loading {
        next: Mutex::default(),
        unjudged: files.iter().map(|_| AtomicBool::new(false)).collect(),
        requests: requests.into(),
        files,
        room: room_ahead(),
        reserved: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        used,
        cancel,
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            if Builder::new().spawn_scoped(scope, || loading.work()).is_err() {
                // The threads that there are do the work.
                break;
            }
        }
        if threads > 0 {
            loading.work();
        }
    });
    loading.into_loaded()
}

/// Entries that several threads load.
struct Loading<'a> {
    files: Vec<SavedFile>,
    next: Mutex<RequestCursor>,
    /// For each entry, whether a part of it was resident before, or not loaded.
    unjudged: Vec<AtomicBool>,
    /// Requests that a thread makes at once.
    requests: usize,
    /// The bytes that may be loaded.
    room: u64,
    /// The bytes that were loaded, and those that are on their way.
    reserved: AtomicU64,
    bytes: AtomicU64,
    used: Option<&'a UsedAhead>,
    cancel: &'a AtomicBool,
}

impl Loading<'_> {
    fn work(&self) {
        let options = WarmOptions { width: 1, ..exact_options() };
        let mut open: Option<(usize, Option<InspectedFile>)> = None;
        while !self.cancel.load(Ordering::Relaxed) {
            let taken = lock(&self.next).take(&self.files, self.requests);
            let Some(LoadRequests { index, ranges, are_short }) = taken else { break };
            let path = &self.files[index].path;
            let file = match open.take() {
                Some((last, file)) if self.files[last].path == *path => file,
                _ => InspectedFile::open(path, Links::RefuseAll).ok(),
            };
            let wanted = ranges.iter().map(|range| range.end - range.start).sum::<u64>();
            let is_room =
                self.reserved.fetch_add(wanted, Ordering::Relaxed).saturating_add(wanted) <= self.room;
            let may_load = |file: &InspectedFile| {
                let waits_for = self.used.filter(|_| are_short);
                is_room && waits_for.is_none_or(|used| used.wait(file.inode(), wanted, self.cancel))
            };
            let load = |file| warm_extents(file, &ranges, &options, &|_| {}, self.cancel).ok();
            let report = file.as_ref().filter(|file| may_load(file)).and_then(load);
            self.note(index, wanted, report);
            if !is_room {
                break;
            }
            open = Some((index, file));
        }
    }

    fn note(&self, index: usize, wanted: u64, report: Option<WarmReport>) {
        let loaded = report.map_or(0, |report| report.loaded);
        self.reserved.fetch_sub(wanted.saturating_sub(loaded), Ordering::Relaxed);
        self.bytes.fetch_add(loaded, Ordering::Relaxed);
        if report.is_none_or(|it| it.cancelled || it.resident_before != Some(0)) {
            self.unjudged[index].store(true, Ordering::Relaxed);
        }
    }

    fn into_loaded(self) -> LoadedAhead {
        let taken = ignore_poison(self.next.into_inner()).first_open();
        let is_judged = |(index, unjudged): (usize, AtomicBool)| index < taken && !unjudged.into_inner();
        let judged = self.unjudged.into_iter().enumerate().map(is_judged).collect();
        LoadedAhead { was_begun: true, bytes: self.bytes.into_inner(), files: self.files, judged }
    }
}

/// The first page that no thread has taken in this pass over the entries. The first pass has the
/// long requests, the second the short ones.
#[derive(Debug, Default)]
struct RequestCursor {
    is_short_pass: bool,
    entry: usize,
    extent: usize,
    /// The pages of the extent that were taken.
    pages: u64,
}

/// Requests that one thread makes.
#[derive(Debug, PartialEq, Eq)]
struct LoadRequests {
    /// Their entry.
    index: usize,
    /// Their ranges in bytes.
    ranges: Vec<Range<u64>>,
    are_short: bool,
}

impl RequestCursor {
    /// Takes at most this many requests of one entry.
    fn take(&mut self, files: &[SavedFile], requests: usize) -> Option<LoadRequests> {
        loop {
            let Some(file) = files.get(self.entry) else {
                self.begin_next_pass()?;
                continue;
            };
            let (index, ranges) = (self.entry, self.take_of(&file.extents, requests));
            if self.extent >= file.extents.len() {
                (self.entry, self.extent) = (self.entry + 1, 0);
            }
            if !ranges.is_empty() {
                return Some(LoadRequests { index, ranges, are_short: self.is_short_pass });
            }
        }
    }

    /// Begins the second pass; returns `None` after it.
    fn begin_next_pass(&mut self) -> Option<()> {
        if self.is_short_pass {
            return None;
        }
        *self = Self { is_short_pass: true, ..Self::default() };
        Some(())
    }

    fn take_of(&mut self, extents: &[Range<u64>], requests: usize) -> Vec<Range<u64>> {
        let page = pagekeeper_kernel::page_size();
        let mut ranges = Vec::new();
        while ranges.len() < requests
            && let Some((pages, listed)) = self.next_request(extents, page)
        {
            if (listed.saturating_mul(page) < LONG_BYTES) == self.is_short_pass {
                ranges.push(pages.start.saturating_mul(page)..pages.end.saturating_mul(page));
            }
        }
        ranges
    }

    /// Returns the pages of the next request: extents with small gaps between them, up to its size;
    /// and how many pages of it are listed.
    fn next_request(&mut self, extents: &[Range<u64>], page: u64) -> Option<(Range<u64>, u64)> {
        let start = extents.get(self.extent)?.start + self.pages;
        let limit = start + (REQUEST_BYTES / page).max(1);
        let (mut end, mut listed) = (start, 0);
        while let Some(extent) = extents.get(self.extent) {
            if extent.start >= limit || extent.start > end + GAP_BYTES_MAX / page {
                break;
            }
            let from = extent.start.max(start);
            end = extent.end.min(limit);
            listed += end - from;
            if end < extent.end {
                self.pages = end - extent.start;
                break;
            }
            (self.extent, self.pages) = (self.extent + 1, 0);
        }
        Some((start..end, listed))
    }

    /// Returns the first entry parts of which no thread has taken.
    fn first_open(&self) -> usize {
        if self.is_short_pass { self.entry } else { 0 }
    }
}

/// Returns the bytes that these entries name.
pub fn bytes_of(files: &[SavedFile]) -> u64 {
    files
        .iter()
        .map(SavedFile::resident_pages)
        .fold(0, u64::saturating_add)
        .saturating_mul(pagekeeper_kernel::page_size())
}

/// Returns the bytes that may be loaded: half of what the host has available and of what the memory
/// cgroup leaves, which pays for the pages. The other half is for the command.
fn room_ahead() -> u64 {
    let roots = SysRoots::default();
    let available = MemInfo::read(&roots).map_or(u64::MAX, |memory| memory.available);
    let group = MemoryCgroup::of(&roots, std::process::id()).ok().flatten();
    available.min(group.and_then(|group| group.room()).unwrap_or(u64::MAX)) / 2
}

/// Returns options that read exactly the pages of a recording.
pub fn exact_options() -> WarmOptions {
    WarmOptions { method: WarmMethod::ReadAhead, ..WarmOptions::default() }
}

/// Returns the requests that keep the disk of these files busy: its measured width.
pub fn width_of(files: &[SavedFile]) -> u16 {
    let largest = files.iter().max_by_key(|file| file.size).and_then(|file| file.path.parent());
    largest.and_then(measured_width).unwrap_or(WIDTH_UNKNOWN).max(1)
}

fn measured_width(directory: &Path) -> Option<u16> {
    let width = disks::saved(directory).ok()??.width()?;
    u16::try_from(width).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init, reason = "lists of ranges, some of one")]

    use pagekeeper_kernel::Inode;

    use super::*;
    use crate::saved_pages::SavedTime;

    fn entry(extents: &[Range<u64>]) -> SavedFile {
        let time = SavedTime { seconds: 1, nanos: 0 };
        let (inode, extents) = (Inode { dev: 1, ino: 1 }, extents.to_vec());
        SavedFile { path: "/a".into(), inode, size: 1 << 30, changed: time, last_used: time, extents }
    }

    fn all_requests(files: &[SavedFile], at_once: usize) -> Vec<(usize, Vec<Range<u64>>)> {
        let page = pagekeeper_kernel::page_size();
        let mut cursor = RequestCursor::default();
        let mut taken = Vec::new();
        while let Some(LoadRequests { index, ranges, .. }) = cursor.take(files, at_once) {
            let pages = ranges.into_iter().map(|range| range.start / page..range.end / page);
            taken.push((index, pages.collect()));
        }
        assert_eq!(cursor.first_open(), files.len());
        taken
    }

    #[test]
    fn short_requests_wait_for_the_use_of_those_before_them() {
        let inode = |ino| Inode { dev: 1, ino };
        let used = UsedAhead::default();
        assert!(used.may_load(inode(1), UNPROVEN_BYTES_MAX));
        // A log, of which nothing short was loaded.
        used.add(inode(2), 1 << 30);
        assert!(!used.may_load(inode(1), 1));
        assert!(!used.wait(inode(1), 1, &AtomicBool::new(true)));
        used.add(inode(1), 100);
        assert!(used.may_load(inode(1), 100 * LOADED_PER_USED) && !used.may_load(inode(1), 1));
        // Use before the first short request of a file counts, too.
        assert!(used.may_load(inode(2), 1 << 30));
    }

    #[test]
    fn long_requests_come_first_each_kind_in_its_order_and_no_more_than_asked_for() {
        let most = REQUEST_BYTES / pagekeeper_kernel::page_size();
        let files =
            [entry(&[0..1, 400..401 + 3 * most]), entry(&[]), entry(&[7..8, 900..901]), entry(&[0..most])];
        let [first, second] = [400, 400 + 2 * most];
        let expected = [
            (0, vec![first..first + most, first + most..second]),
            (0, vec![second..second + most]),
            (3, vec![0..most]),
            (0, vec![0..1, second + most..second + most + 1]),
            (2, vec![7..8, 900..901]),
        ];
        assert_eq!(all_requests(&files, 2), expected);
    }

    #[test]
    fn a_request_reads_over_small_gaps() {
        let page = pagekeeper_kernel::page_size();
        let (gap, most) = (GAP_BYTES_MAX / page, REQUEST_BYTES / page);
        let files = [entry(&[1..2, 2 + gap..3 + gap, 4 + 2 * gap..5 + 2 * gap, 6 + 2 * gap..40 * most])];
        // The gap before the third extent is a page larger. The first request has few listed pages.
        let taken = all_requests(&files, 1);
        assert_eq!(taken.first(), Some(&(0, vec![4 + 2 * gap..4 + 2 * gap + most])));
        assert_eq!(taken.last(), Some(&(0, vec![1..3 + gap])));
    }
}
