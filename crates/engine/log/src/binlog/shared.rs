//! What a log's handle, its followers and its appenders share.
//!
//! Locks are taken one at a time: the queue's ([`CommitQueue`]), the followers' ([`Progress`]), the releaser's ([`PageReleaser`]).

use std::sync::{Arc, OnceLock};

use pagekeeper_io::{Access, Error as IoError, IoFile, Process};

use super::group_commit::CommitQueue;
use super::page_releaser::PageReleaser;
use super::progress::{Progress, Segment};
use super::segment_store::{Failure, SegmentStore};
use crate::Error;
use crate::position::Position;

/// A log that is open, whose writer is a `W`.
pub(super) struct Shared<W> {
    /// Asked by each call from outside before any lock is taken.
    pub(super) process: Process,
    pub(super) store: SegmentStore,
    pub(super) queue: CommitQueue<W>,
    pub(super) progress: Progress,
    /// None where no page becomes resident: with direct I/O; or where pages are left to the kernel.
    pub(super) releaser: OnceLock<PageReleaser>,
}

impl<W> Shared<W> {
    /// The writer is at the end of the log.
    pub(super) fn new(store: SegmentStore, writer: W, progress: Progress) -> Arc<Self> {
        let queue = CommitQueue::new(writer);
        let shared =
            Arc::new(Self { process: Process::current(), store, queue, progress, releaser: OnceLock::new() });
        shared.release_if_cached();
        shared
    }

    /// Begins to release pages, where they become resident; also once that is known.
    pub(super) fn release_if_cached(&self) {
        let SegmentStore { options, .. } = &self.store;
        if self.store.access() == Access::Buffered && options.release && self.releaser.get().is_none() {
            self.releaser.get_or_init(|| PageReleaser::new(options.keep_segments, options.slack));
            self.keep(self.progress.end());
        }
    }

    /// Reports the writer's new segment to the releaser. Without a descriptor its pages stay; that is no reason to stop.
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

    /// The writer has written up to here; whether there may be something to release.
    pub(super) fn wrote(&self, end: Position) -> bool {
        self.progress.wrote(end);
        self.releaser.get().is_some_and(|releaser| releaser.wrote(end.offset))
    }

    /// The writer has synced up to here.
    pub(super) fn synced(&self, durable: Position) {
        self.progress.synced(durable);
        if let Some(releaser) = self.releaser.get() {
            releaser.synced(durable.offset);
        }
    }

    /// The writer has begun a new segment and is at `end`; the one before ends at `sealed`.
    pub(super) fn rotated(&self, sealed: u64, new: Segment, end: u64) {
        self.keep(Position { segment: new.number, offset: end });
        self.progress.rotated(sealed, new);
    }

    /// Releases what rule and followers allow.
    pub(super) fn release_pages(&self) {
        if let Some(releaser) = self.releaser.get()
            && let Err(error) = releaser.run(|| self.progress.followers())
        {
            self.stop(error);
        }
    }

    /// Whether a follower in this segment finds its pages gone.
    pub(super) fn is_far(&self, segment: u64) -> bool {
        self.progress.end().segment.saturating_sub(segment) > self.store.options.keep_segments
    }

    /// The error that an append returns for a failure; a final one ends the log.
    pub(super) fn failure(&self, failure: Failure) -> Error {
        match failure {
            Failure::Passing(error) => error.into(),
            Failure::Final(error) => self.stop(error),
        }
    }

    /// Ends the log: nothing more is taken, and everyone gets the first error.
    pub(super) fn stop(&self, cause: IoError) -> Error {
        let error = self.queue.fail(Error::Poisoned { cause: Box::new(cause.into()) });
        self.progress.failed(&error);
        error
    }
}
