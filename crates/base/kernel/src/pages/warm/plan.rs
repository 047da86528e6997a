//! The plan: finds the missing pages of the ranges piece by piece, just before they are read.
//!
//! Invariants: pieces come in file order and in whole pages. None is longer than the given length,
//! and none was resident when it was inspected. A batch has at most [`BATCH_PIECES_MAX`] pieces.
//! Fails with the error of a call on the file.

use std::ops::Range;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::load::POPULATE_BYTES_MIN;
use super::{WarmProgress, call_error};
use crate::pages::extents::ResidencyRuns;
use crate::residency;
use crate::{InspectedFile, Result, page_size};

/// Maximum number of pieces planned ahead: 256 KiB of memory, up to a TiB of a file.
const BATCH_PIECES_MAX: usize = 16_384;

/// The missing parts of the ranges.
pub(super) struct WarmPlan<'a> {
    file: &'a InspectedFile,
    ranges: std::slice::Iter<'a, Range<u64>>,
    skip_holes: bool,
    residency_known: bool,
    longest: u64,
    /// Pieces end where this begins and ends, and those outside are short.
    inner: Range<u64>,
    empty: EmptyRanges<'a>,
    /// The rest of the current range, in which data is still to be found.
    rest: Range<u64>,
    /// The current data, split by residency.
    runs: Option<ResidencyRuns<'a>>,
    /// The next missing part.
    missing: Range<u64>,
    holes: u64,
}

impl<'a> WarmPlan<'a> {
    pub(super) fn new(
        file: &'a InspectedFile,
        ranges: &'a [Range<u64>],
        skip_holes: bool,
        residency_known: bool,
        longest: u64,
        inner: Range<u64>,
    ) -> Self {
        Self {
            file,
            ranges: ranges.iter(),
            skip_holes,
            residency_known,
            longest,
            inner,
            empty: EmptyRanges::new(file),
            rest: 0..0,
            runs: None,
            missing: 0..0,
            holes: 0,
        }
    }

    /// Returns the bytes of the holes skipped so far.
    pub(super) fn holes(&self) -> u64 {
        self.holes
    }

    /// Returns the next pieces; empty at the end. `progress` counts bytes that need no reading.
    pub(super) fn next_batch(&mut self, progress: WarmProgress<'_>) -> Result<Vec<Range<u64>>> {
        let mut pieces: Vec<Range<u64>> = Vec::new();
        while pieces.len() < BATCH_PIECES_MAX {
            if self.missing.is_empty() && !self.find_missing(progress)? {
                break;
            }
            let end = self.end_of_piece();
            pieces.push(self.missing.start..end);
            self.missing.start = end;
        }
        Ok(pieces)
    }

    /// Returns the end of the piece that starts with the next missing part.
    fn end_of_piece(&self) -> u64 {
        let Range { start, end } = self.missing;
        let longest =
            if self.inner.contains(&start) { self.longest } else { self.longest.min(POPULATE_BYTES_MIN) };
        let longest = end.min(start + longest);
        let border = [self.inner.start, self.inner.end].into_iter().find(|&at| start < at && at < longest);
        border.unwrap_or(longest)
    }

    /// Finds the next missing run. Returns false at the end.
    fn find_missing(&mut self, progress: WarmProgress<'_>) -> Result<bool> {
        loop {
            while let Some(run) = self.runs.as_mut().and_then(Iterator::next) {
                let run = run?;
                if !run.resident {
                    self.missing = run.range;
                    return Ok(true);
                }
                progress(run.range.end - run.range.start);
            }
            self.runs = None;
            while self.rest.is_empty() {
                let Some(range) = self.ranges.next() else {
                    return Ok(false);
                };
                self.rest = range.clone();
            }
            let data = if self.skip_holes {
                let data = next_data(self.file, &self.rest)?;
                let hole = data.start - self.rest.start;
                if hole > 0 {
                    self.holes += hole;
                    progress(hole);
                }
                data
            } else {
                self.rest.clone()
            };
            self.rest.start = data.end;
            if data.is_empty() {
                continue;
            }
            if !self.residency_known || self.empty.covers(&data)? {
                let page = page_size();
                self.missing = data.start / page * page..data.end.next_multiple_of(page);
                return Ok(true);
            }
            self.runs = Some(ResidencyRuns::new(self.file, data)?);
        }
    }
}

/// Returns the first stretch of `range` that is not a hole (lseek(2) `SEEK_DATA`); empty at the end
/// if there is none. Space that is reserved but unwritten counts as a hole: reading it costs no
/// device access.
pub(super) fn next_data(file: &InspectedFile, range: &Range<u64>) -> Result<Range<u64>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(range.start)) {
        Ok(start) => start.min(range.end),
        Err(Errno::NXIO) => range.end,
        // Not supported here: all counts as data.
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(range.clone()),
        Err(errno) => return Err(call_error("lseek", file, errno)),
    };
    if start == range.end {
        return Ok(range.end..range.end);
    }
    match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        // A hole right here: the file was changed between the calls.
        Ok(end) if end > start => Ok(start..end.min(range.end)),
        Ok(_) | Err(Errno::NXIO) => Ok(start..range.end),
        Err(errno) => Err(call_error("lseek", file, errno)),
    }
}

/// Remembers, for ranges queried in file order, whether nothing is resident ahead of them: one call
/// then serves all small ranges in the next [`Self::AHEAD_BYTES`] bytes.
pub(super) struct EmptyRanges<'a> {
    file: &'a InspectedFile,
    inspected_until: u64,
    empty_until: u64,
}

impl<'a> EmptyRanges<'a> {
    /// Bytes inspected by one call.
    const AHEAD_BYTES: u64 = 64 << 20;

    pub(super) fn new(file: &'a InspectedFile) -> Self {
        Self { file, inspected_until: 0, empty_until: 0 }
    }

    /// Whether `range` is known to have no resident pages.
    pub(super) fn covers(&mut self, range: &Range<u64>) -> Result<bool> {
        if range.start >= self.inspected_until {
            let ahead = range.start..range.end.max(range.start.saturating_add(Self::AHEAD_BYTES));
            self.inspected_until = ahead.end;
            if residency(self.file, ahead.clone())?.resident == 0 {
                self.empty_until = ahead.end;
            }
        }
        Ok(range.end <= self.empty_until)
    }
}
