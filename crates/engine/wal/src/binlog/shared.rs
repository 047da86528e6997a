//! The state that a log's handle, its followers and its appenders share.
//!
//! At most one of these locks is held at a time: the queue's ([`CommitQueue`]), the followers'
//! ([`LogProgress`]), the releaser's ([`PageReleaser`]).

use std::sync::{Arc, OnceLock};

use pagekeeper_io::{Access, Error as IoError, IoFile, Process};

use super::group_commit::CommitQueue;
use super::metrics::BinLogCounters;
use super::page_releaser::PageReleaser;
use super::progress::{LogProgress, Segment};
use super::release_events::ReleaseEvents;
use super::segment_store::{AppendFailure, SegmentStore};
use crate::Error;
use crate::position::Position;

/// An open log with a writer of type `W`.
pub(super) struct SharedLog<W> {
    /// Each call from outside checks it before it takes a lock.
    pub(super) process: Process,
    pub(super) store: SegmentStore,
    pub(super) queue: CommitQueue<W>,
    pub(super) progress: LogProgress,
    /// Unset if no page becomes resident (direct I/O), or if pages are left to the kernel.
    pub(super) releaser: OnceLock<PageReleaser>,
    pub(super) thread: ReleaseEvents,
    pub(super) counters: BinLogCounters,
}

impl<W> SharedLog<W> {
    /// Creates the state; the writer is at the end of the log.
    pub(super) fn new(store: SegmentStore, writer: W, progress: LogProgress) -> Arc<Self> {
        let queue = CommitQueue::new(writer);
        let shared = Arc::new(Self {
            process: Process::current(),
            store,
            queue,
            progress,
            releaser: OnceLock::new(),
            thread: ReleaseEvents::default(),
            counters: BinLogCounters::default(),
        });
        shared.release_if_cached();
        shared
    }

    /// Begins to release pages if they become resident. Called again once the access is known.
    pub(super) fn release_if_cached(&self) {
        let SegmentStore { options, .. } = &self.store;
        if self.store.access() == Access::Buffered && options.release && self.releaser.get().is_none() {
            self.releaser.get_or_init(|| PageReleaser::new(options.keep_segments, options.slack));
            self.keep(self.progress.end());
        }
    }

    /// Reports the writer's new segment to the releaser. If no descriptor can be opened, its pages
    /// stay; the log continues.
    fn keep(&self, Position { segment, offset }: Position) {
        if let Some(releaser) = self.releaser.get()
            && let Ok(file) = self.own(segment)
        {
            releaser.begun(segment, file, offset);
        }
    }

    fn own(&self, segment: u64) -> Result<Arc<dyn IoFile>, IoError> {
        self.store.open(segment)
    }

    /// Notes that the writer has written up to here. Returns whether there may be something to
    /// release.
    pub(super) fn wrote(&self, end: Position) -> bool {
        self.progress.wrote(end);
        self.releaser.get().is_some_and(|releaser| releaser.wrote(end.offset))
    }

    /// Notes that the writer has synced up to here.
    pub(super) fn synced(&self, durable: Position) {
        self.progress.synced(durable);
        if let Some(releaser) = self.releaser.get() {
            releaser.synced(durable.offset);
        }
    }

    /// Notes that the writer has begun a new segment and is at `end`. The previous one ends at
    /// `sealed`.
    pub(super) fn rotated(&self, sealed: u64, new: Segment, end: u64) {
        self.keep(Position { segment: new.number, offset: end });
        self.progress.rotated(sealed, new);
    }

    /// Notes that the log ends at this position now.
    pub(super) fn truncated(&self, position: Position) {
        if let Some(releaser) = self.releaser.get() {
            releaser.truncated(position.segment);
        }
        self.progress.truncated(position);
    }

    /// Has the pages released that the rule and the followers allow: by the log's thread, if that
    /// keeps pace.
    pub(super) fn release_pages(&self) {
        let is_behind = || self.releaser.get().is_some_and(PageReleaser::is_behind);
        if !self.thread.wake() || is_behind() {
            self.release_now();
        }
    }

    /// Writes back and releases on this thread.
    pub(super) fn release_now(&self) {
        if let Some(releaser) = self.releaser.get()
            && let Err(error) = releaser.run(|| self.progress.followers())
        {
            self.stop(error);
        }
    }

    /// Whether a follower in this segment is far: its pages are gone.
    pub(super) fn is_far(&self, segment: u64) -> bool {
        self.progress.end().segment.saturating_sub(segment) > self.store.options.keep_segments
    }

    /// Returns the error of a failed append. A final failure ends the log.
    pub(super) fn failure(&self, failure: AppendFailure) -> Error {
        match failure {
            AppendFailure::Passing(error) => error.into(),
            AppendFailure::Final(error) => self.stop(error),
        }
    }

    /// Ends the log: nothing more is accepted, and everyone gets the first error.
    pub(super) fn stop(&self, cause: IoError) -> Error {
        let error = self.queue.fail(Error::Poisoned { cause: Box::new(cause.into()) });
        self.progress.failed(&error);
        error
    }
}
