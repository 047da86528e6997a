//! A log in segments, which others follow.
//!
//! | module | what it is |
//! |---|---|
//! | `options` | settings, and opening |
//! | `position`, `segment`, `index`, `frame` | what is in the directory, and in a segment |
//! | `site`, `recover` | how segments come to be, and what is made of what a crash left |
//! | `turn`, `writer` | who writes, and how |
//! | `watch`, `follower` | how far the log is, and its readers |
//! | `keeper` | which pages stay resident |
//! | `sync` | what `turn` and `watch` coordinate threads with, which the models replace |
//!
//! Durable is what was synced: see [`BinLogOptions::sync_every`]. A group is there as a whole or not at all, also after a crash.

mod follower;
mod frame;
mod index;
mod keeper;
#[cfg(test)]
mod model;
mod options;
mod planted;
mod position;
mod recover;
mod segment;
mod shared;
mod site;
mod sync;
#[cfg(test)]
mod tests;
mod turn;
mod watch;
mod writer;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{Access, Lock, WriteMode};

use crate::record::LONGEST;
use crate::{Error, LogMode};
pub use follower::{Event, Follower};
pub use options::BinLogOptions;
pub use position::{Position, PositionError};
use shared::Shared;
use site::Site;
use turn::{Brought, Placed, Turn};
use watch::Watch;

/// Whether [`BinLog::purge_to`] minds followers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purge {
    /// Fails where a follower has yet to read what is to go.
    UnlessFollowed,
    /// Cuts such followers off: they are told [`Error::Purged`].
    Forced,
}

/// A log in segments that any number of threads append to and any number of followers read, and that gives its pages back.
///
/// Dropped without [`BinLog::close`], it is as after a crash: nothing that was acknowledged is lost.
///
/// After a failed write or sync the log takes nothing more ([`Error::Poisoned`], to everyone, for ever): the kernel tells such a
/// failure once, so that nothing that was written before can be known to be there. Followers still get what was synced.
/// Open it again to see what is. A full disk is different: the write of that group alone failed, and took nothing with it; the
/// append tells the error, and may be tried again.
///
/// ```
/// use pagekeeper_io::SimDisk;
/// use pagekeeper_log::BinLogOptions;
/// use std::sync::Arc;
///
/// let log = BinLogOptions::new().io(Arc::new(SimDisk::new())).open("/binlog")?;
/// let mut follower = log.follow(log.first())?;
/// let position = log.append_group(&[b"insert", b"commit"])?;
/// let event = follower.try_next()?.unwrap();
/// assert_eq!((&*event.bytes, event.ends_group), (&b"insert"[..], false));
/// let event = follower.try_next()?.unwrap();
/// assert_eq!((&*event.bytes, event.next), (&b"commit"[..], position));
/// log.close()?;
/// # Ok::<(), pagekeeper_log::Error>(())
/// ```
pub struct BinLog {
    shared: Arc<Shared>,
    /// Why it is written as it is.
    why: String,
    _lock: Lock,
}

impl BinLog {
    fn open(dir: &Path, options: BinLogOptions) -> Result<Self, Error> {
        options.check()?;
        let io = options.io.clone().unwrap_or_else(pagekeeper_io::best);
        let mut site = Site {
            io,
            dir: dir.to_path_buf(),
            options,
            access: Access::Buffered,
            write_mode: WriteMode::Plain,
        };
        let opened = recover::open(&mut site)?;
        let watch = Watch::new(opened.segments);
        let shared = Shared::new(site, opened.writer, watch);
        Ok(Self { shared, why: opened.why, _lock: opened.lock })
    }

    /// Appends records that belong together, and gives the position behind them. They are durable when this returns, if
    /// [`BinLogOptions::sync_every`] is 1.
    ///
    /// Threads that append at the same time share a write and a sync; the groups' order is that of the calls.
    ///
    /// A group takes 24 bytes for each record besides, and is never split between segments. Fails with [`Error::GroupTooLarge`] where
    /// it is larger than a segment, [`Error::EmptyGroup`], or as the log tells of failed writes.
    pub fn append_group(&self, records: &[&[u8]]) -> Result<Position, Error> {
        if records.is_empty() {
            return Err(Error::EmptyGroup);
        }
        let (len, room) = (frame::padded_size(records), self.shared.site.options.room());
        let longest = records.iter().map(|record| record.len()).max().unwrap_or(0);
        if len > room || longest > LONGEST {
            return Err(Error::GroupTooLarge { bytes: len, most: room });
        }
        let (placed, end) = self.bring(records, false)?;
        let of_group = |part: &&Placed| end <= part.upto;
        match placed.iter().find(of_group) {
            Some(Placed { from, at: Ok((segment, offset)), .. }) => {
                Ok(Position { segment: *segment, offset: offset + (end - from) as u64 })
            }
            Some(Placed { at: Err(error), .. }) => Err(error.clone()),
            None => Err(Error::Abandoned),
        }
    }

    /// Makes durable all that was appended before, and gives the end of what is durable.
    pub fn sync(&self) -> Result<Position, Error> {
        let (placed, _) = self.bring(&[], true)?;
        match placed.last() {
            Some(Placed { at: Err(error), .. }) => Err(error.clone()),
            _ => Ok(self.durable_end()),
        }
    }

    /// Brings a group or a wish to sync, and leads the batch if it is this caller's turn; what was placed where, and where the
    /// caller's group ends in it.
    fn bring(&self, records: &[&[u8]], sync: bool) -> Result<(Arc<[Placed]>, usize), Error> {
        let (brought, end) = self.shared.turns.bring(records, sync)?;
        let placed = match brought {
            Brought::Written(placed) => placed,
            Brought::Lead(mut turn, mut batch) => {
                let placed: Arc<[Placed]> = turn.writer().write_batch(&self.shared, &mut batch).into();
                let spare = std::mem::take(&mut batch.bytes);
                self.pass_on(turn, Some(spare));
                batch.answer(&placed);
                placed
            }
        };
        Ok((placed, end))
    }

    fn pass_on(&self, mut turn: Turn<'_>, spare: Option<Vec<u8>>) {
        let tend = std::mem::take(&mut turn.writer().tend);
        turn.pass_on(spare);
        if tend {
            self.shared.tend();
        }
    }

    /// Seals the segment that is written to, and goes on in a new one; gives where that begins. All that was appended is
    /// durable then. An empty segment is left as it is.
    pub fn rotate(&self) -> Result<Position, Error> {
        let mut turn = self.shared.turns.alone()?;
        let writer = turn.writer();
        let rotated = if writer.end > segment::HEADER { writer.rotate(&self.shared) } else { Ok(()) };
        let at = Position { segment: writer.segment, offset: writer.end };
        self.pass_on(turn, None);
        rotated.map(|()| at)
    }

    /// Follows the log from a position on: [`Self::first`], [`Self::end`], or what an append or a follower gave. It sees each
    /// record as soon as it is written; after a crash a record that was not synced may be gone from the log.
    ///
    /// Fails where the position was purged, or lies behind the end of the log or of its segment.
    pub fn follow(&self, from: Position) -> Result<Follower, Error> {
        Follower::new(&self.shared, from, false)
    }

    /// As [`Self::follow`], but each record is seen only when it is durable.
    pub fn follow_durable(&self, from: Position) -> Result<Follower, Error> {
        Follower::new(&self.shared, from, true)
    }

    /// Removes the segments before the position's own; gives how many.
    ///
    /// Fails with [`Error::Followed`] where a follower has yet to read some of it, unless forced, and with [`Error::BehindEnd`]
    /// for a segment that does not exist yet.
    pub fn purge_to(&self, position: Position, purge: Purge) -> Result<u64, Error> {
        let end = self.end();
        if position.segment > end.segment {
            return Err(Error::BehindEnd { position, end });
        }
        let mut turn = self.shared.turns.alone()?;
        let purged = turn.writer().purge(&self.shared, position.segment, purge == Purge::Forced);
        self.pass_on(turn, None);
        let purged = purged?;
        if let Some(keeper) = &self.shared.keeper {
            keeper.purged(position.segment);
        }
        for segment in &purged {
            index::remove_if_there(&*self.shared.site.io, &self.shared.site.segment_path(segment.number))?;
        }
        Ok(purged.len() as u64)
    }

    /// Where the oldest record of the log stands, or will.
    pub fn first(&self) -> Position {
        self.shared.watch.first()
    }

    /// Behind the last record that was appended.
    pub fn end(&self) -> Position {
        self.shared.watch.end()
    }

    /// All before this is durable.
    pub fn durable_end(&self) -> Position {
        self.shared.watch.durable()
    }

    /// How segments are written, and why so.
    pub fn mode(&self) -> (LogMode, &str) {
        let site = &self.shared.site;
        let mode = match (site.access, site.write_mode) {
            (Access::Direct, _) => LogMode::Direct,
            (Access::Buffered, WriteMode::Uncached) => LogMode::Uncached,
            (Access::Buffered, _) => LogMode::Buffered,
        };
        (mode, &self.why)
    }

    /// Bytes of the log that are resident, as far as it knows where to look, and the kernel tells; `None` where it leaves its
    /// pages to the kernel.
    pub fn resident(&self) -> Option<u64> {
        match &self.shared.keeper {
            Some(keeper) => keeper.resident(),
            None => (self.shared.site.access == Access::Direct).then_some(0),
        }
    }

    /// Makes all durable and seals the last segment. Followers get what is left to read, and end.
    pub fn close(self) -> Result<(), Error> {
        let mut turn = self.shared.turns.alone()?;
        let sealed = turn.writer().seal(&self.shared);
        self.pass_on(turn, None);
        sealed
    }
}

impl Drop for BinLog {
    fn drop(&mut self) {
        self.shared.watch.closed();
    }
}

impl fmt::Debug for BinLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BinLog")
            .field("dir", &self.shared.site.dir)
            .field("end", &self.end())
            .field("durable_end", &self.durable_end())
            .finish_non_exhaustive()
    }
}
