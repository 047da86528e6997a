//! Loads in the background: ahead of any reader, and for futures.
//!
//! Invariants: nothing here waits for the device. A load in flight owns all that it needs, and
//! settles its pages when it ends, even if its caller is gone. Several threads (`settlers`) settle
//! reads of files with a verifier, the back-end's threads the others.

use std::ops::Range;
use std::sync::Arc;

use pagekeeper_io::OwnedRead;

use crate::batch::run_len;
use crate::frames::LoadingFrame;
use crate::handle::FileHandle;
use crate::pool::{BeginOutcome, BusyPolicy, LoadReason};
use crate::{CachedFile, Error};

/// Pages that are begun before they are sent to the device.
const PREFETCH_BATCH_PAGES: usize = 64;

impl CachedFile {
    /// Begins to load the absent pages of a byte range, and returns at once with the number of
    /// pages begun.
    ///
    /// One call begins at most a quarter of the cache. A prefetched page that is not read is among
    /// the first to be evicted. A failure reaches callers that read the page meanwhile; otherwise
    /// the page just stays absent.
    pub fn prefetch(&self, range: Range<u64>) -> u64 {
        let handle = self.handle();
        let shift = handle.shared.settings.page_shift;
        let end = range.end.min(self.len());
        if range.start >= end {
            return 0;
        }
        if !handle.shared.process.is_current() {
            return 0;
        }
        let max = u64::from(handle.shared.pool.limit() / 4).max(1);
        let mut begun = 0;
        let mut fillings = Vec::with_capacity(PREFETCH_BATCH_PAGES);
        for page in range.start >> shift..=(end - 1) >> shift {
            let Ok(page) = u32::try_from(page) else { break };
            if begun == max {
                break;
            }
            match handle.begin_owned(page) {
                LoadStart::Load(filling) => fillings.push(filling),
                LoadStart::Present => continue,
                LoadStart::Refused => break,
            }
            begun += 1;
            if fillings.len() == PREFETCH_BATCH_PAGES {
                handle.submit(std::mem::take(&mut fillings), LoadReason::Prefetch);
            }
        }
        handle.submit(fillings, LoadReason::Prefetch);
        begun
    }
}

/// The result of an attempt to begin the load of a page.
#[derive(Debug)]
pub(crate) enum LoadStart {
    Load(LoadingFrame<Arc<FileHandle>>),
    /// The page is in the cache, or being loaded.
    Present,
    /// No frame is free, or the file is closed.
    Refused,
}

impl FileHandle {
    /// Takes a frame for an absent page.
    pub(crate) fn begin_owned(self: &Arc<Self>, page: u32) -> LoadStart {
        let attempt = || self.shared.pool.begin(&self.page_table, page, BusyPolicy::Leave);
        let mut begun = attempt();
        if matches!(begun, BeginOutcome::Full) && self.shared.make_room() {
            begun = attempt();
        }
        match begun {
            BeginOutcome::Load(ticket) => LoadStart::Load(LoadingFrame::new(Arc::clone(self), ticket)),
            BeginOutcome::Readable | BeginOutcome::Busy(_) => LoadStart::Present,
            BeginOutcome::Full | BeginOutcome::Closed => LoadStart::Refused,
        }
    }

    /// Sends pages in ascending order to the device; neighbours become one read.
    pub(crate) fn submit(self: &Arc<Self>, fillings: Vec<LoadingFrame<Arc<Self>>>, reason: LoadReason) {
        if fillings.is_empty() {
            return;
        }
        let io = match self.io() {
            Ok(io) => io,
            Err(error) => return fillings.into_iter().for_each(|filling| _ = filling.abandon(&error)),
        };
        let mut reads = Vec::new();
        let mut rest = fillings.into_iter();
        while !rest.as_slice().is_empty() {
            let len = run_len(rest.as_slice().iter().map(LoadingFrame::page));
            let mut run: Vec<_> = rest.by_ref().take(len).collect();
            let offset = self.range(run[0].page()).start;
            let targets = run.iter_mut().map(LoadingFrame::target).collect();
            let handle = Arc::clone(self);
            let done = Box::new(move |read: Result<usize, pagekeeper_io::Error>| {
                let of = Arc::clone(&handle);
                of.settle_read(move || handle.settle(run, read.map_err(Error::from), reason));
            });
            reads.push(OwnedRead { file: Arc::clone(&*io), offset, targets, done });
        }
        self.note_begun(reads.len());
        self.shared.settings.io.submit(reads);
    }

    /// Notes that `reads` background reads begin. [`settle_read`](Self::settle_read) must be called
    /// for each.
    pub(crate) fn note_begun(&self, reads: usize) {
        if self.verifier.is_some() {
            self.shared.settlers.begin(reads);
        }
    }

    /// Settles a background read: on this thread if nobody verifies.
    pub(crate) fn settle_read(&self, settle: impl FnOnce() + Send + 'static) {
        if self.verifier.is_some() { self.shared.settlers.settle(settle) } else { settle() }
    }

    /// Settles the pages of one read that has ended.
    fn settle(
        self: &Arc<Self>,
        run: Vec<LoadingFrame<Arc<Self>>>,
        read: Result<usize, Error>,
        reason: LoadReason,
    ) {
        if read.is_err() && run.len() > 1 {
            // One page of a run may be bad, and the others good.
            return run.into_iter().for_each(|filling| self.submit(vec![filling], reason));
        }
        let page_size = 1 << self.shared.settings.page_shift;
        let read = read.and_then(|read| {
            self.shared.device.add(read);
            let io = self.io()?;
            self.check_unchanged(&**io, 0..self.stat.size)?;
            Ok(read)
        });
        for (place, filling) in run.into_iter().enumerate() {
            let checked = read.clone().and_then(|read| {
                let read = read.saturating_sub(place * page_size).min(page_size);
                self.check_page(filling.page(), read, filling.bytes(self.page_len(filling.page())))
            });
            match checked {
                Ok(()) => filling.publish(reason),
                // Waiters get the error; if the page was rewritten meanwhile, they were woken
                // already.
                Err(error) => {
                    let error = error.of_range(&self.range(filling.page()));
                    filling.abandon(&error);
                }
            }
        }
    }
}
