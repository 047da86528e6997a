//! Releases the pages of written records, by the exact rule of `pagekeeper-policy`.
//!
//! The rule is *release behind the writer*, for a log that overwrites whole pages: a released page
//! costs nothing when the ring returns to it. If the kernel's pages are larger than the log's
//! blocks, nothing is released.
//!
//! Written windows are remembered until they are released, or their release was tried
//! [`RELEASE_ATTEMPTS_MAX`] times (another process maps or locks them). A window is released once
//! it is synced or its writeback was started. Otherwise writeback is started, and the next step
//! releases the window. The kernel's residency counts show which pages stayed.
//!
//! The kernel reports a failed writeback once, to the first caller that asks. If that is the
//! releaser, the log ends as after a failed sync. Pages that can't be released for another reason
//! stay, which does no other harm.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pagekeeper_kernel::page_size;
use pagekeeper_policy::allowance::{ReleaseAllowance, Verdict, WriterPosition};
use pagekeeper_policy::exact::release_ranges;
use pagekeeper_policy::{RewriteKind, Rule, WINDOW};

use super::core::Core;
use super::ring::Ring;
use crate::LogMode;
use crate::record::BLOCK;

/// Bytes that are written before anything is released: each release costs a few system calls.
pub(super) const RELEASE_STEP_BYTES: u64 = WINDOW;
/// At most this many bytes may be written and not yet released; then the log writer waits.
pub(super) const UNRELEASED_BYTES_MAX: u64 = 2 * WINDOW;

const RELEASE_RULE: Rule = Rule::ReleaseBehindWriter { slack: 0 };

const RELEASE_ATTEMPTS_MAX: u32 = 4;

/// The windows that are written and not yet released.
#[derive(Debug)]
pub(super) struct Releaser {
    /// Everything before this is in `windows`, or was released.
    at: u64,
    /// Whether all pages stay: a released page would be read back for the blocks that the next lap
    /// writes in it.
    keeps: bool,
    windows: Vec<UnreleasedWindow>,
}

/// The state that the log shares for the release of its pages.
pub(super) struct ReleaseState {
    pub(super) releaser: Mutex<Releaser>,
    /// Everything before this was considered for release.
    pub(super) considered_upto: AtomicU64,
}

/// A window that may have resident pages.
#[derive(Debug)]
struct UnreleasedWindow {
    file: usize,
    range: Range<u64>,
    /// The end of the records in it, as an LSN.
    upto: u64,
    /// Whether its writeback was started since it was last written.
    started: bool,
    /// The number of releases since it was last written.
    tries: u32,
}

impl Releaser {
    /// Creates a releaser for the log from `lsn` on.
    pub(super) fn new(lsn: u64) -> Self {
        Self::on_pages_of(page_size(), lsn)
    }

    /// Creates a releaser for a kernel with pages of this many bytes.
    fn on_pages_of(page: u64, lsn: u64) -> Self {
        Self { at: lsn, keeps: RewriteKind::of_blocks(BLOCK, page).needs_old_pages(), windows: Vec::new() }
    }

    /// Releases the pages behind the writer, or all pages if there is no writer any more.
    pub(super) fn step(&mut self, core: &Core, has_writer: bool) {
        let written = core.buffer.taken();
        let Some(ring) =
            core.write.ring.get().filter(|_| !self.keeps && core.writing_mode().mode != LogMode::Direct)
        else {
            self.reached(core, written);
            return;
        };
        self.add(core, written);
        let geometry = core.config.geometry;
        let place = has_writer.then(|| geometry.locate(written));
        self.windows.sort_unstable_by_key(|window| (window.file, window.range.start));
        let resident = self.forget_gone(ring, place);
        let durable = core.durable();
        for windows in self.windows.chunk_by_mut(|a, b| a.file == b.file) {
            let file = windows[0].file;
            let writer = match place {
                Some((at, offset)) if at == file => WriterPosition::At(offset),
                Some(_) | None => WriterPosition::Elsewhere,
            };
            let allowance = ReleaseAllowance::new(RELEASE_RULE, writer, geometry.file_bytes);
            release(core, ring, &allowance, windows, durable);
        }
        core.counters.resident.store(resident, Ordering::Relaxed);
        self.reached(core, written);
    }

    /// Forgets the windows without resident pages, except the writer's, and the windows that
    /// resist. Returns the resident bytes of the others.
    fn forget_gone(&mut self, ring: &Ring, writer: Option<(usize, u64)>) -> u64 {
        let mut resident = 0;
        self.windows.retain(|window| {
            let len = window.range.end - window.range.start;
            let there = match ring.files[window.file].residency(window.range.clone()) {
                Ok(Some(found)) => found.resident.min(len),
                // Residency is unknown: a window that was released twice counts as gone.
                Ok(None) | Err(_) if window.tries > 1 => 0,
                Ok(None) | Err(_) => len,
            };
            let is_writers =
                writer.is_some_and(|(file, offset)| file == window.file && window.range.contains(&offset));
            let stays = (there > 0 || is_writers) && window.tries < RELEASE_ATTEMPTS_MAX;
            resident += if stays { there } else { 0 };
            stays
        });
        resident
    }

    /// Adds the windows that were written to since the last step.
    fn add(&mut self, core: &Core, written: u64) {
        let geometry = core.config.geometry;
        let mut lsn = self.at.max(written.saturating_sub(geometry.capacity()));
        for (file, range) in geometry.pieces(lsn..written) {
            let mut start = range.start - range.start % WINDOW;
            while start < range.end {
                let end = (start + WINDOW).min(geometry.file_bytes);
                lsn += range.end.min(end) - range.start.max(start);
                let window =
                    UnreleasedWindow { file, range: start..end, upto: lsn, started: false, tries: 0 };
                match self.windows.iter_mut().find(|known| known.file == file && known.range.start == start) {
                    Some(known) => *known = window,
                    None => self.windows.push(window),
                }
                start = end;
            }
        }
        debug_assert_eq!(lsn, written.max(self.at));
    }

    fn reached(&mut self, core: &Core, written: u64) {
        self.at = written;
        core.release.considered_upto.store(written, Ordering::Relaxed);
        core.events.released.notify_all();
    }
}

/// Releases the windows of one file, in ascending order, that may go. Starts writeback of windows
/// that may go in the next step.
fn release(
    core: &Core,
    ring: &Ring,
    allowance: &ReleaseAllowance<'_>,
    windows: &mut [UnreleasedWindow],
    durable: u64,
) {
    let Some(file) = windows.first().and_then(|window| ring.files.get(window.file)) else { return };
    // Writeback that is in progress need not be started: the release waits for it.
    let is_started =
        |window: &UnreleasedWindow| core.writes_back() || window.started || window.upto <= durable;
    let started = windows.iter().filter(|window| is_started(window)).map(|window| window.range.clone());
    let ranges: Vec<Range<u64>> = release_ranges(allowance, started).collect();
    for window in windows.iter_mut().filter(|window| !is_started(window)) {
        match allowance.verdict(&window.range, 0) {
            Verdict::Release | Verdict::Flush => {
                window.started = true;
                if let Err(error) = file.start_writeback(window.range.clone()) {
                    core.poison(error.into());
                }
            }
            Verdict::Stay => {}
        }
    }
    for range in ranges {
        if let Err(error) = file.wait_writeback(range.clone()) {
            core.poison(error.into());
            continue;
        }
        if file.release(range.clone()).is_ok() {
            core.counters.released.fetch_add(range.end - range.start, Ordering::Relaxed);
        }
        for window in windows.iter_mut() {
            if range.start <= window.range.start && window.range.end <= range.end {
                window.tries += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_whose_blocks_are_parts_of_pages_keeps_them() {
        assert_eq!(
            [4096, 16384, 65536].map(|page| Releaser::on_pages_of(page, 0).keeps),
            [false, true, true]
        );
    }
}
