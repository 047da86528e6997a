//! What an opening left in the journal: changes of which the index has the place, and not the bytes. They are read once more when somebody
//! asks for the page, or when it is to be applied.
//!
//! Invariants:
//! 1. A place is behind the checkpoint LSN, so that nothing writes over it, as long as its page is not applied. An older version that a
//!    snapshot needs is put together before that ([`crate::index::Index::replays_before`]).
//! 2. What is read again is checked again: by the checksum that its commit gave the page as a whole.
//! 3. A checkpoint reads places in the order of the journal, wide, and no more of them at once than its share of memory. Who reads all
//!    pages reads those of many at once, and keeps none of them.
//!
//! Fails as reading the journal does; a page that does not become what it was is damaged.

use std::sync::Arc;

use pagekeeper_log::Error as LogError;

use crate::core::Core;
use crate::version::{Content, PageId, Replay};
use crate::{Error, PageNo, Seq};

impl Core {
    /// A replay with all its bytes.
    pub(crate) fn with_bytes(&self, id: &PageId<'_>, replay: Arc<Replay>) -> Result<Arc<Replay>, Error> {
        if !replay.is_placed() {
            return Ok(replay);
        }
        let places: Vec<_> = replay.places().collect();
        let bytes = self.journal.read_again(&places).map_err(|error| match error {
            LogError::NotInLog { .. } | LogError::Overtaken { .. } => {
                id.damaged("what the journal had of it was given up before it was whole")
            }
            error => error.into(),
        })?;
        let whole = replay.with_bytes(&bytes, self.payload_size());
        let whole = whole.ok_or_else(|| id.damaged("the journal does not have any more what changes it"));
        whole.map(Arc::new)
    }

    /// Parts these pages, which are to be applied as of `seq`, into what is applied at a time, each in the order of the pages: first those
    /// that have no place in the journal, then the others as they stand there.
    pub(crate) fn batches(&self, pages: Vec<PageNo>, seq: Seq) -> Vec<Vec<PageNo>> {
        let (mut ready, mut placed) = (Vec::with_capacity(pages.len()), Vec::new());
        for page in pages {
            match self.index.placed(page, seq) {
                None => ready.push(page),
                Some((_, replay)) => {
                    let last = replay.places().last().map_or(0, |place| place.start);
                    let bytes: u64 = replay.places().map(|place| place.end - place.start).sum();
                    placed.push((last, page, bytes));
                }
            }
        }
        placed.sort_unstable();
        let (mut batches, mut bytes_of_last, most) =
            (vec![ready], u64::MAX, self.config.max_unapplied_bytes / 4);
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

    /// Reads at once what the journal has of these pages, as of `seq`, into memory. A failure is reported where the page is used.
    pub(crate) fn bring_in(&self, pages: impl IntoIterator<Item = PageNo>, seq: Seq) -> BroughtIn<'_> {
        let (mut due, mut places) = (Vec::new(), Vec::new());
        for page in pages {
            if let Some((of, replay)) = self.index.placed(page, seq) {
                let from = places.len();
                places.extend(replay.places());
                due.push((page, of, replay, from..places.len()));
            }
        }
        let mut brought = BroughtIn { core: self, replays: Vec::with_capacity(due.len()) };
        let Ok(bytes) = self.journal.read_again(&places) else { return brought };
        for (page, of, replay, own) in due {
            if let Some(whole) = replay.with_bytes(&bytes[own], self.payload_size()) {
                self.index.settle(page, of, Content::Replay(whole.into()));
                brought.replays.push((page, of, replay));
            }
        }
        brought
    }
}

/// What was brought in, and leaves memory again with this: but for pages that somebody has put together meanwhile.
#[must_use]
pub(crate) struct BroughtIn<'a> {
    core: &'a Core,
    /// As they were before.
    replays: Vec<(PageNo, Seq, Arc<Replay>)>,
}

impl BroughtIn<'_> {
    /// It stays, since it is to be applied.
    pub(crate) fn keep(mut self) {
        self.replays.clear();
    }
}

impl Drop for BroughtIn<'_> {
    fn drop(&mut self) {
        for (page, of, replay) in self.replays.drain(..) {
            self.core.index.settle(page, of, Content::Replay(replay));
        }
    }
}
