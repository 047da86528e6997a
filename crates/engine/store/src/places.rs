//! What an opening left in the journal: changes of which the index has the place, and not the bytes. They are read once more when somebody
//! asks for the page, or when it is to be applied.
//!
//! Invariants:
//! 1. A place is behind the checkpoint LSN, so that nothing writes over it, as long as its page is not applied. An older version that a
//!    snapshot needs is put together before that ([`crate::index::Index::replays_before`]).
//! 2. What is read again is checked again: by the checksum that its commit gave the page as a whole.
//! 3. Who goes through many pages, a checkpoint or a reader of all, has the bytes of many brought in at once, and of no more than its share
//!    of memory takes: they go again when it has come past them, but for pages that are whole by then. As much again is read at a time,
//!    16 MiB at most. A page of which that share does not hold all is put together from one part after the other.
//! 4. A checkpoint brings in places in the order of the journal, by parts, each in the order of the pages.
//!
//! Fails as reading the journal does; a page that does not become what it was is damaged.

use std::borrow::Cow;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pagekeeper_log::Error as LogError;

use crate::core::Core;
use crate::format::entry::Change;
use crate::version::{self, Content, PageId, Replay};
use crate::{Error, PageNo, Seq};

/// Bytes that are read at a time, at most.
const AT_ONCE: u64 = 16 << 20;

impl Core {
    /// Bytes that what was brought in may take up.
    pub(crate) fn brought_in_share(&self) -> u64 {
        self.config.max_unapplied_bytes / 4
    }

    fn read_places(&self, places: &[Range<u64>]) -> Result<Vec<Bytes>, LogError> {
        let at_once = usize::try_from(self.brought_in_share().min(AT_ONCE)).unwrap_or(usize::MAX);
        self.journal.read_again(places, at_once)
    }

    /// Changes of a page with all their bytes.
    pub(crate) fn with_bytes<'c>(
        &self,
        id: &PageId<'_>,
        changes: &'c [Change],
    ) -> Result<Cow<'c, [Change]>, Error> {
        let places: Vec<_> = version::places(changes).collect();
        if places.is_empty() {
            return Ok(Cow::Borrowed(changes));
        }
        let bytes = self.read_places(&places).map_err(|error| match error {
            LogError::NotInLog { .. } | LogError::Overtaken { .. } => {
                id.damaged("what the journal had of it was given up before it was whole")
            }
            error => error.into(),
        })?;
        let whole = version::with_bytes(changes, &bytes, self.payload_size());
        let whole = whole.ok_or_else(|| id.damaged("the journal does not have any more what changes it"));
        whole.map(Cow::Owned)
    }

    /// Parts these pages, which are to be applied as of `seq`, into what is brought in at a time, each in the order of the pages: first
    /// those that have no place in the journal, then the others as they stand there.
    pub(crate) fn batches(&self, pages: Vec<PageNo>, seq: Seq) -> Vec<Vec<PageNo>> {
        let (mut ready, mut placed) = (Vec::with_capacity(pages.len()), Vec::new());
        for page in pages {
            match self.index.placed(page, seq) {
                None => ready.push(page),
                Some((_, replay)) => {
                    let last = replay.places().last().map_or(0, |place| place.start);
                    placed.push((last, page, replay.size_with_bytes()));
                }
            }
        }
        placed.sort_unstable();
        let (mut batches, mut bytes_of_last, most) = (vec![ready], u64::MAX, self.brought_in_share());
        for (_, page, bytes) in placed {
            match batches.last_mut() {
                Some(batch) if bytes_of_last.saturating_add(bytes) <= most => {
                    batch.push(page);
                    bytes_of_last += bytes;
                }
                _ => {
                    batches.push(vec![page]);
                    bytes_of_last = bytes;
                }
            }
        }
        batches.iter_mut().skip(1).for_each(|batch| batch.sort_unstable());
        batches
    }

    /// For who goes through these pages, which ascend: what the journal has of them as of `seq`.
    pub(crate) fn bring_in<P>(&self, pages: P, seq: Seq) -> BroughtIn<'_, P::IntoIter>
    where
        P: IntoIterator<Item = PageNo>,
    {
        BroughtIn { core: self, seq, ahead: pages.into_iter().peekable(), replays: Vec::new() }
    }
}

/// What is brought in of pages that somebody goes through. It leaves memory again with this: but for pages that were put together to stay.
#[must_use]
pub(crate) struct BroughtIn<'a, P: Iterator<Item = PageNo>> {
    core: &'a Core,
    seq: Seq,
    /// Pages that are still to come.
    ahead: Peekable<P>,
    /// As they were before.
    replays: Vec<(PageNo, Seq, Arc<Replay>)>,
}

impl<P: Iterator<Item = PageNo>> BroughtIn<'_, P> {
    /// The next page is this one: what is in memory of it stays there until one is reached that is not. A failure to read is reported
    /// where the page is used.
    pub(crate) fn reach(&mut self, page: PageNo) {
        while self.ahead.peek().is_some_and(|next| *next <= page) {
            self.put_back();
            self.bring_in_more();
        }
    }

    /// As much as the share holds.
    fn bring_in_more(&mut self) {
        let (core, share) = (self.core, self.core.brought_in_share());
        let (mut due, mut places, mut bytes) = (Vec::new(), Vec::new(), 0);
        while let Some(page) = self.ahead.peek().copied() {
            if let Some((of, replay)) = core.index.placed(page, self.seq) {
                let more = replay.size_with_bytes();
                if more <= share {
                    if bytes + more > share {
                        break;
                    }
                    bytes += more;
                    let from = places.len();
                    places.extend(replay.places());
                    due.push((page, of, replay, from..places.len()));
                }
            }
            self.ahead.next();
        }
        let Ok(bytes) = core.read_places(&places) else { return };
        for (page, of, replay, own) in due {
            if let Some(whole) = replay.with_bytes(&bytes[own], core.payload_size()) {
                core.index.settle(page, of, Content::Replay(whole.into()));
                self.replays.push((page, of, replay));
            }
        }
    }

    fn put_back(&mut self) {
        for (page, of, replay) in self.replays.drain(..) {
            self.core.index.settle(page, of, Content::Replay(replay));
        }
    }
}

impl<P: Iterator<Item = PageNo>> Drop for BroughtIn<'_, P> {
    fn drop(&mut self) {
        self.put_back();
    }
}
