//! What the handle of a log, its followers and all who append share.
//!
//! Locks are taken one at a time: the queue's ([`Turns`]), the followers' ([`Watch`]), the keeper's ([`Keeper`]).

use std::sync::Arc;

use pagekeeper_io::{Access, Error as IoError, IoFile};

use super::Position;
use super::keeper::Keeper;
use super::site::{Failure, Site};
use super::turn::Turns;
use super::watch::{Segment, Watch};
use super::writer::Writer;
use crate::Error;

/// A log that is open.
pub(super) struct Shared {
    pub(super) site: Site,
    pub(super) turns: Turns,
    pub(super) watch: Watch,
    /// `None` where no page becomes resident: with direct I/O; or where pages are left to the kernel.
    pub(super) keeper: Option<Keeper>,
}

impl Shared {
    pub(super) fn new(site: Site, writer: Writer, watch: Watch) -> Arc<Self> {
        let keeper = (site.access == Access::Buffered && site.options.release)
            .then(|| Keeper::new(site.options.keep_segments, site.options.slack));
        let (segment, end) = (writer.segment, writer.end);
        let shared = Arc::new(Self { site, turns: Turns::new(writer), watch, keeper });
        shared.keep(segment, end);
        shared
    }

    /// Lets the keeper know of the writer's new segment. Without a descriptor its pages stay; that is no reason to stop.
    fn keep(&self, segment: u64, offset: u64) {
        if let Some(keeper) = &self.keeper
            && let Ok(file) = self.own(segment)
        {
            keeper.begun(segment, file, offset);
        }
    }

    fn own(&self, segment: u64) -> Result<Arc<dyn IoFile>, IoError> {
        self.site.io.open(&self.site.segment_path(segment), self.site.access)
    }

    /// The writer has written.
    pub(super) fn wrote(&self, writer: &mut Writer) {
        self.watch.wrote(Position { segment: writer.segment, offset: writer.end });
        if let Some(keeper) = &self.keeper {
            writer.tend |= keeper.wrote(writer.end);
        }
    }

    /// The writer has synced all that it wrote.
    pub(super) fn synced(&self, writer: &Writer) {
        self.watch.synced(Position { segment: writer.segment, offset: writer.durable });
        if let Some(keeper) = &self.keeper {
            keeper.synced(writer.durable);
        }
    }

    /// The writer has begun a new segment; the one before ends at `sealed`.
    pub(super) fn rotated(&self, writer: &mut Writer, sealed: u64) {
        self.keep(writer.segment, writer.end);
        self.watch.rotated(sealed, Segment { number: writer.segment, salt: writer.salt, sealed: None });
        writer.tend = true;
    }

    /// Releases what rule and followers allow.
    pub(super) fn tend(&self) {
        if let Some(keeper) = &self.keeper
            && let Err(error) = keeper.tend(|| self.watch.followers())
        {
            self.stop(error);
        }
    }

    /// Whether a follower in this segment finds its pages gone.
    pub(super) fn is_far(&self, segment: u64) -> bool {
        self.watch.end().segment.saturating_sub(segment) > self.site.options.keep_segments
    }

    /// What an append is told of a failure; a final one ends the log.
    pub(super) fn failure(&self, failure: Failure) -> Error {
        match failure {
            Failure::Passing(error) => error.into(),
            Failure::Final(error) => self.stop(error),
        }
    }

    /// Ends the log: nothing more is taken, and everyone is told the first reason.
    pub(super) fn stop(&self, cause: IoError) -> Error {
        let error = self.turns.fail(Error::Poisoned { cause: Box::new(cause.into()) });
        self.watch.failed(&error);
        error
    }
}
