//! Changes that an opening left in the journal: the index has their places, but not their bytes.
//! They are read again when somebody reads the page, or when it is applied.
//!
//! Invariants:
//! 1. A place is behind the checkpoint LSN while its page is not applied, so nothing overwrites it.
//!    An older version that a snapshot needs is rebuilt before that
//!    ([`crate::index::Index::replays_before`]).
//! 2. Bytes that are read again are checked again, by the checksum that the commit gave the whole
//!    page.
//! 3. A checkpoint, or a reader of all pages, goes through many pages. It loads the bytes of many
//!    at once, up to its share of memory, and drops them when it is past them, except for pages
//!    that are rebuilt by then. Each read needs a further buffer of the same size, at most 16 MiB.
//!    A page that needs more than that share is rebuilt piece by piece.
//! 4. A checkpoint loads places in batches in the journal's order, each in page order.
//!
//! Fails as reading the journal does. A page whose checksum does not match after rebuilding is
//! damaged.

use std::borrow::Cow;
use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pagekeeper_wal::{Error as LogError, Lsn};

use crate::core::Core;
use crate::format::entry::PageChange;
use crate::version::{self, PageId, PageReplay, VersionContent};
use crate::{Error, PageNo, Seq};

/// Maximum bytes of one read.
const READ_BYTES_MAX: u64 = 16 << 20;

impl Core {
    /// Returns the maximum bytes of loaded changes.
    pub(crate) fn loaded_places_share(&self) -> u64 {
        self.config.max_unapplied_bytes / 4
    }

    fn read_places(&self, places: &[Range<Lsn>]) -> Result<Vec<Bytes>, LogError> {
        let at_once = usize::try_from(self.loaded_places_share().min(READ_BYTES_MAX)).unwrap_or(usize::MAX);
        self.journal.read_again(places, at_once)
    }

    /// Returns the changes of a page with all their bytes.
    pub(crate) fn with_bytes<'c>(
        &self,
        id: &PageId<'_>,
        changes: &'c [PageChange],
    ) -> Result<Cow<'c, [PageChange]>, Error> {
        let places: Vec<_> = version::places(changes).collect();
        if places.is_empty() {
            return Ok(Cow::Borrowed(changes));
        }
        let bytes = self.read_places(&places).map_err(|error| match error {
            LogError::NotInLog { .. } | LogError::Overtaken { .. } => {
                id.damaged("its changes were dropped from the journal before all of them were applied")
            }
            error => error.into(),
        })?;
        let whole = version::with_bytes(changes, &bytes, self.payload_size());
        let whole = whole.ok_or_else(|| id.damaged("the journal no longer has its changes"));
        whole.map(Cow::Owned)
    }

    /// Divides the pages to be applied as of `seq` into batches that are loaded together, each in
    /// page order. The first batch has pages without a place in the journal; the others follow the
    /// journal's order.
    pub(crate) fn batches(&self, pages: Vec<PageNo>, seq: Seq) -> Vec<Vec<PageNo>> {
        let (mut ready, mut placed) = (Vec::with_capacity(pages.len()), Vec::new());
        for page in pages {
            match self.index.placed(page, seq) {
                None => ready.push(page),
                Some((_, replay)) => {
                    let last = replay.places().last().map_or(Lsn::new(0), |place| place.start);
                    placed.push((last, page, replay.size_with_bytes()));
                }
            }
        }
        placed.sort_unstable();
        let (mut batches, mut bytes_of_last, most) = (vec![ready], u64::MAX, self.loaded_places_share());
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

    /// Returns a loader of the journal's bytes as of `seq`, for a caller that goes through these
    /// ascending pages.
    pub(crate) fn load_places<P>(&self, pages: P, seq: Seq) -> LoadedPlaces<'_, P::IntoIter>
    where
        P: IntoIterator<Item = PageNo>,
    {
        LoadedPlaces { core: self, seq, ahead: pages.into_iter().peekable(), replays: Vec::new() }
    }
}

/// Loaded bytes of the pages that a caller goes through. Dropping it drops the bytes, except for
/// pages that were rebuilt and kept.
#[must_use]
pub(crate) struct LoadedPlaces<'a, P: Iterator<Item = PageNo>> {
    core: &'a Core,
    seq: Seq,
    /// Pages still to come.
    ahead: Peekable<P>,
    /// The replays before loading, to restore them.
    replays: Vec<(PageNo, Seq, Arc<PageReplay>)>,
}

impl<P: Iterator<Item = PageNo>> LoadedPlaces<'_, P> {
    /// Called before `page` is used. Loaded bytes stay in memory until a page is reached whose
    /// bytes are not loaded. A failed read is reported where the page is used.
    pub(crate) fn reach(&mut self, page: PageNo) {
        while self.ahead.peek().is_some_and(|next| *next <= page) {
            self.put_back();
            self.load_more();
        }
    }

    /// Loads as much as the share holds.
    fn load_more(&mut self) {
        let (core, share) = (self.core, self.core.loaded_places_share());
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
                core.index.settle(page, of, VersionContent::Replay(whole.into()));
                self.replays.push((page, of, replay));
            }
        }
    }

    fn put_back(&mut self) {
        for (page, of, replay) in self.replays.drain(..) {
            self.core.index.settle(page, of, VersionContent::Replay(replay));
        }
    }
}

impl<P: Iterator<Item = PageNo>> Drop for LoadedPlaces<'_, P> {
    fn drop(&mut self) {
        self.put_back();
    }
}
