//! Scattered reads of a file: read-ahead is off, and the pages that each read brings in are sampled
//! before it, kept for a while, and then released. `pagekeeper_policy::scattered` says which.
//!
//! Invariant: pages that were resident before are not kept, and so never released.

use core::ops::Range;

use libc::c_int;
use pagekeeper_policy::scattered::ScatteredReads;
use pagekeeper_policy::stream::READ_AHEAD_REACH_BYTES;

use super::reader::{StreamedFile, inside, release};
use crate::counters::Count;
use crate::pages::residency::{ResidencyProbe, WINDOW_PAGES_MAX, resident_pages, windows};
use crate::process::count;
use crate::sys;

/// The reads of one file, while they are made.
pub(super) struct ScatteredReader<'a> {
    pub(super) fd: c_int,
    pub(super) file: StreamedFile,
    pub(super) reads: &'a mut ScatteredReads,
    pub(super) probe: &'a mut ResidencyProbe,
}

impl ScatteredReader<'_> {
    /// Samples the pages that a read of `length` bytes at `at` brings in, and reads all of the
    /// piece that it seems to begin.
    pub(super) fn before(&mut self, at: u64, length: u64) {
        let Some(range) = self.reads.bring_in(at, length, self.file.size) else { return };
        if self.reads.touch(&range) {
            return;
        }
        inside(|| {
            let end = at.saturating_add(length);
            let has_foreign = windows(&range).fold(false, |found, window| self.sample(&window, end) | found);
            if has_foreign {
                // A page that was read ahead for somebody else may make the kernel read on from
                // there.
                let beyond = range.end..range.end.saturating_add(READ_AHEAD_REACH_BYTES).min(self.file.size);
                let is_empty = |window: &Range<u64>| self.probe.resident(self.fd, window) == Some(0);
                if let Some(last) = windows(&beyond).take_while(is_empty).last() {
                    self.keep(range.end..last.end);
                }
            }
            while let Some(oldest) = self.reads.take_surplus() {
                release(self.fd, oldest);
            }
            if range.end > end {
                sys::read_soon(self.fd, &range);
            }
        });
    }

    /// Keeps, for a later release, the non-resident pages of a part of one window, before a read
    /// that ends at `end` brings them in. Returns whether some pages are resident.
    fn sample(&mut self, part: &Range<u64>, end: u64) -> bool {
        let length = part.end - part.start;
        let seen = if self.file.is_new { Some(0) } else { self.probe.resident(self.fd, part) };
        let Some(seen) = seen else {
            count(Count::StreamUnobserved, length);
            return false;
        };
        let read = end.clamp(part.start, part.end) - part.start;
        count(Count::StreamWasResident, seen.min(read));
        let mut pages = [0; WINDOW_PAGES_MAX];
        if seen == 0 {
            self.keep(part.clone());
        } else if seen < length && resident_pages(self.fd, part, &mut pages).is_some() {
            let page = sys::page_size();
            let all = pages.get(..length.div_ceil(page) as usize).unwrap_or_default();
            let mut missing = part.start..part.start;
            // A resident page at the end ends the last run.
            for is_resident in all.iter().map(|page| page & 1 == 1).chain([true]) {
                let end = missing.end.saturating_add(page);
                if !is_resident {
                    missing.end = end;
                    continue;
                }
                if !missing.is_empty() {
                    self.keep(missing);
                }
                missing = end..end;
            }
        }
        seen > 0
    }

    fn keep(&mut self, range: Range<u64>) {
        if let Some(oldest) = self.reads.keep(&range) {
            release(self.fd, oldest);
        }
    }

    /// Releases the kept pages.
    pub(super) fn end(&mut self) {
        inside(|| {
            while let Some(oldest) = self.reads.take_oldest() {
                release(self.fd, oldest);
            }
        });
    }
}
