//! What the handle of a log, its followers and all who append share.
//!
//! Locks are taken one at a time: the queue's ([`CommitQueue`]), the followers' ([`Progress`]), the releaser's ([`PageReleaser`]).

use std::sync::Arc;

use pagekeeper_io::{Access, Error as IoError, IoFile};

use super::Position;
use super::group_commit::CommitQueue;
use super::page_releaser::PageReleaser;
use super::progress::{Progress, Segment};
use super::segment_store::{Failure, SegmentStore};
use super::writer::Writer;
use crate::Error;

/// A log that is open.
pub(super) struct Shared {
    pub(super) store: SegmentStore,
    pub(super) queue: CommitQueue<Writer>,
    pub(super) progress: Progress,
    /// `None` where no page becomes resident: with direct I/O; or where pages are left to the kernel.
    pub(super) releaser: Option<PageReleaser>,
}

impl Shared {
    pub(super) fn new(store: SegmentStore, writer: Writer, progress: Progress) -> Arc<Self> {
        let releaser = (store.access == Access::Buffered && store.options.release)
            .then(|| PageReleaser::new(store.options.keep_segments, store.options.slack));
        let (segment, end) = (writer.segment, writer.end);
        let shared = Arc::new(Self { store, queue: CommitQueue::new(writer), progress, releaser });
        shared.keep(segment, end);
        shared
    }

    /// Reports the writer's new segment to the releaser. Without a descriptor its pages stay; that is no reason to stop.
    fn keep(&self, segment: u64, offset: u64) {
        if let Some(releaser) = &self.releaser
            && let Ok(file) = self.own(segment)
        {
            releaser.begun(segment, file, offset);
        }
    }

    fn own(&self, segment: u64) -> Result<Arc<dyn IoFile>, IoError> {
        self.store.io.open(&self.store.segment_path(segment), self.store.access)
    }

    /// The writer has written.
    pub(super) fn wrote(&self, writer: &mut Writer) {
        self.progress.wrote(Position { segment: writer.segment, offset: writer.end });
        if let Some(releaser) = &self.releaser {
            writer.may_release |= releaser.wrote(writer.end);
        }
    }

    /// The writer has synced all that it wrote.
    pub(super) fn synced(&self, writer: &Writer) {
        self.progress.synced(Position { segment: writer.segment, offset: writer.durable });
        if let Some(releaser) = &self.releaser {
            releaser.synced(writer.durable);
        }
    }

    /// The writer has begun a new segment; the one before ends at `sealed`.
    pub(super) fn rotated(&self, writer: &mut Writer, sealed: u64) {
        self.keep(writer.segment, writer.end);
        self.progress.rotated(sealed, Segment { number: writer.segment, salt: writer.salt, sealed: None });
        writer.may_release = true;
    }

    /// Releases what rule and followers allow.
    pub(super) fn release_pages(&self) {
        if let Some(releaser) = &self.releaser
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
