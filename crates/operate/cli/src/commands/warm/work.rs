//! The work: files in order, several small ones at once, each large one by all threads.
//!
//! Invariants: files start in the given order; once a stop is requested, no further file is
//! started; each file ends in the report, in the problems, or (if stopped before its turn) in
//! neither.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::Duration;

use indicatif::ProgressBar;
use pagekeeper_kernel::mutex::ignore_poison;
use pagekeeper_kernel::{
    Error, ExpectedFile, Inode, InspectedFile, Links, PageLock, PathHandle, WarmOptions, lock, residency,
    warm, warm_extents,
};
use pagekeeper_streams::PacedTurns;

use super::bar_name;
use super::item::{WantedPages, WarmItem};
use super::report::{WarmOutcome, WarmTotal, WarmedFile};
use crate::problems::Problems;
use crate::signals::Stop;

/// One run of the command.
pub(super) struct WarmRun<'a> {
    pub(super) options: &'a WarmOptions,
    pub(super) turns: Option<Arc<PacedTurns>>,
    pub(super) stop: &'a Stop,
    pub(super) problems: Problems,
    pub(super) bar: &'a ProgressBar,
    pub(super) lock: bool,
    /// Keep the figures of every file, not only of those that are reported.
    pub(super) keep_all: bool,
    pub(super) results: Mutex<WarmResults>,
}

/// The results so far.
#[derive(Default)]
pub(super) struct WarmResults {
    files: Vec<WarmedFile>,
    total: WarmTotal,
    locks: Vec<PageLock>,
}

/// Fails if the kernel dropped a block device's pages when it was closed here.
fn require_kept(path: &Path, range: &Range<u64>, inode: Inode) -> Result<(), Error> {
    let device = PathHandle::at(path, Links::Follow)?.open_file_or_device(ExpectedFile::Inode(inode))?;
    if residency(&device, range.clone())?.resident > 0 {
        return Ok(());
    }
    Err(Error::Unsupported {
        path: path.to_path_buf(),
        reason: "nobody else has the device open: the kernel drops its pages as the last one closes it; --lock keeps it open",
    })
}

impl WarmRun<'_> {
    pub(super) fn run(&self, items: &[WarmItem]) {
        let mut rest = items;
        while let Some(first) = rest.first() {
            let small = rest.iter().take_while(|item| item.is_small()).count();
            if small > 0 {
                self.side_by_side(&rest[..small]);
            } else {
                self.warm(first, self.options);
            }
            rest = &rest[small.max(1)..];
        }
    }

    fn side_by_side(&self, items: &[WarmItem]) {
        let next = AtomicUsize::new(0);
        let narrow = WarmOptions { width: 1, ..self.options.clone() };
        let work = || {
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.warm(item, &narrow);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.options.width.min(items.len()) {
                if Builder::new().spawn_scoped(scope, work).is_err() {
                    // The threads that there are do the work.
                    break;
                }
            }
            work();
        });
    }

    fn warm(&self, item: &WarmItem, options: &WarmOptions) {
        if self.stop.requested() {
            return;
        }
        self.bar.set_message(bar_name(&item.path));
        match self.warm_file(item, options) {
            Ok((done, locks)) => self.note(done, locks),
            Err(error) => self.problems.note(&error),
        }
    }

    fn warm_file(
        &self,
        item: &WarmItem,
        options: &WarmOptions,
    ) -> Result<(WarmedFile, Vec<PageLock>), Error> {
        let progress = |bytes| self.bar.inc(bytes);
        let cancel = self.stop.flag();
        let mut state = None;
        let (file, report) = match &item.wanted {
            WantedPages::Range { range, inode } => {
                // A link was followed when it was listed, if at all: it must still lead to the same
                // file.
                let opened = PathHandle::at(&item.path, Links::Follow)?
                    .open_file_or_device(ExpectedFile::Inode(*inode));
                let file = opened.map_err(|error| match error {
                    Error::OtherFile { path } => Error::Unsupported {
                        path,
                        reason: "another file took its place while files were listed: run it again",
                    },
                    error => error,
                })?;
                self.announce(&file);
                let report = warm(&file, range.clone(), options, &progress, cancel)?;
                (file, report)
            }
            WantedPages::Saved { file: saved, page_size, links } => {
                let file = match InspectedFile::open(&item.path, *links) {
                    Err(error) if error.is_gone() => {
                        self.bar.inc(item.bytes);
                        return Ok((WarmedFile::missing(item), Vec::new()));
                    }
                    opened => opened?,
                };
                state = Some(saved.change_to(&file)?);
                self.announce(&file);
                let ranges = saved.ranges(*page_size);
                let report = warm_extents(&file, &ranges, options, &progress, cancel)?;
                (file, report)
            }
        };
        let locked = if self.lock && !report.cancelled { self.lock(item, &file) } else { Vec::new() };
        let is_device = file.device().is_some();
        drop(file);
        if let WantedPages::Range { range, inode } = &item.wanted
            && is_device
            && locked.is_empty()
            && report.resident_after > Some(0)
        {
            require_kept(&item.path, range, *inode)?;
        }
        let bytes = locked.iter().map(PageLock::bytes).sum();
        Ok((WarmedFile::new(item, &report, state, bytes), locked))
    }

    /// Locks the wanted pages. A failure is reported, and ends the locks of this file.
    fn lock(&self, item: &WarmItem, file: &InspectedFile) -> Vec<PageLock> {
        let ranges = match &item.wanted {
            WantedPages::Range { range, .. } => vec![range.clone()],
            WantedPages::Saved { file, page_size, .. } => file.ranges(*page_size),
        };
        let locks: Result<Vec<PageLock>, _> = ranges.into_iter().map(|range| lock(file, range)).collect();
        locks.unwrap_or_else(|error| {
            self.problems.add(&item.path, super::report::lock_error(&error));
            Vec::new()
        })
    }

    /// Tells the turns which disk is read from next.
    fn announce(&self, file: &InspectedFile) {
        if let Some(turns) = &self.turns {
            turns.reads_from(file.device().unwrap_or(file.inode().dev));
        }
    }

    fn note(&self, done: WarmedFile, locks: Vec<PageLock>) {
        let mut results = ignore_poison(self.results.lock());
        results.total.add(&done);
        results.locks.extend(locks);
        if self.keep_all || done.is_worth_a_word() {
            results.files.push(done);
        }
    }

    /// Returns the report, and the locks that hold as long as they are kept.
    pub(super) fn into_report(self, elapsed: Duration) -> (WarmOutcome, Vec<PageLock>) {
        let WarmResults { mut files, mut total, locks } = ignore_poison(self.results.into_inner());
        files.sort_by(|a, b| a.path.cmp(&b.path));
        total.seconds = elapsed.as_secs_f64();
        total.cancelled = self.stop.requested();
        (WarmOutcome { files, total, errors: self.problems.into_sorted() }, locks)
    }
}
