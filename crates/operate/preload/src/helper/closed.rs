//! Closed files whose pages are to be written, and then dropped unless they are kept. The helper
//! does so a little later: when it has many of them, or no request came for a while. It starts to
//! write small ones at once.
//!
//! Invariant: a request counts as done once its file is given up.

use core::ops::Range;

use pagekeeper_policy::pacer::PIECE_MIN;

use super::drop::{begin, write_and_drop};
use super::helper_files::HeldFile;
use crate::counters::Count;
use crate::files::tracked_files;
use crate::pages::disks::DiskShare;
use crate::pages::writeback::{can_count, write_in_pieces};
use crate::{process, sys};

/// Closed files waiting at a time.
const CLOSED_MAX: usize = 64;

/// A closed file.
struct ClosedFile {
    file: HeldFile,
    range: Range<u64>,
    is_kept: bool,
    count: Count,
    /// Bytes that were begun to be written as it was added.
    begun: u64,
    /// Files are done in the order of their numbers.
    number: u64,
}

impl ClosedFile {
    /// Starts to write it if that and all earlier starts (`begun` bytes) stay within a piece.
    fn begin(&mut self, begun: u64) {
        let fd = self.file.fd();
        let has_counts = sys::has_counts(fd);
        if !has_counts || !can_count(fd) {
            let _ = begin(fd, &self.range, has_counts, !self.is_kept);
        } else if let Ok(seen) = sys::cachestat(fd, self.range.clone()) {
            let bytes = seen.dirty.saturating_mul(sys::page_size());
            let is_small = begun.saturating_add(bytes) <= PIECE_MIN;
            if is_small && begin(fd, &self.range, true, !self.is_kept).is_ok() {
                self.begun = bytes;
            }
        }
    }

    /// Writes it, drops its pages unless they are kept, and gives it up.
    fn finish(self) {
        let fd = self.file.fd();
        if !self.is_kept {
            release(&self.file, self.range.clone(), self.count);
        } else if sys::has_counts(fd)
            && let Ok(stat) = sys::fstat(fd)
        {
            write_in_pieces(fd, &self.range, &DiskShare::of(stat.st_dev), &|| self.file.is_lost());
        }
        self.give_up();
    }

    fn give_up(self) {
        drop(self.file);
        super::done();
    }
}

/// The waiting closed files.
pub(super) struct ClosedFiles {
    files: [Option<ClosedFile>; CLOSED_MAX],
    added: u64,
}

impl ClosedFiles {
    pub(super) const NONE: Self = Self { files: [const { None }; CLOSED_MAX], added: 0 };

    pub(super) fn is_empty(&self) -> bool {
        self.files.iter().all(Option::is_none)
    }

    /// Adds a file, whose pages are dropped if `release` says so.
    pub(super) fn add(&mut self, file: HeldFile, range: Range<u64>, release: bool, count: Count) {
        self.added += 1;
        let mut closed = ClosedFile { file, range, is_kept: !release, count, begun: 0, number: self.added };
        closed.begin(self.files.iter().flatten().map(|file| file.begun).sum());
        if self.files.iter().all(Option::is_some) {
            self.finish_oldest();
        }
        if let Some(free) = self.files.iter_mut().find(|place| place.is_none()) {
            *free = Some(closed);
        }
    }

    /// Does the work on the oldest file. Returns whether there was one.
    pub(super) fn finish_oldest(&mut self) -> bool {
        let waiting = self.files.iter_mut().filter(|place| place.is_some());
        let oldest = waiting.min_by_key(|place| place.as_ref().map(|closed| closed.number));
        oldest.and_then(Option::take).map(ClosedFile::finish).is_some()
    }

    /// Does the work on all files.
    pub(super) fn finish(&mut self) {
        while self.finish_oldest() {}
    }

    /// Lets go of the files that are lost.
    pub(super) fn let_go(&mut self) {
        let lost = self.files.iter_mut().filter_map(|place| place.take_if(|closed| closed.file.is_lost()));
        lost.for_each(ClosedFile::give_up);
    }
}

/// Writes a range, and drops its pages.
pub(super) fn release(file: &HeldFile, range: Range<u64>, count: Count) {
    process::count(count, write_and_drop(file.fd(), range, &|| file.is_lost()));
    tracked_files::released(file.fd());
}
