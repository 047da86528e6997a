//! A page as one commit left it, in memory.
//!
//! Invariants: a whole page has its header and checksum already; a replayed page must match its last checksum, else reading it is an
//! error: also where the bytes that it takes were read from the journal a second time.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::buffers::PageBuf;
use crate::format::entry::{Change, Place};
use crate::format::page::{self, HEADER, PageKind};
use crate::{Error, PageNo, Seq};

/// Header and payload as they are to stand on the disk.
#[derive(Debug, Clone)]
pub(crate) struct Whole {
    pub(crate) kind: PageKind,
    bytes: PageBuf,
}

impl Whole {
    /// A page that was sealed.
    pub(crate) fn new(kind: PageKind, bytes: PageBuf) -> Self {
        Self { kind, bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The checksum in its header.
    pub(crate) fn crc(&self) -> u32 {
        page::crc(&self.bytes)
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[HEADER..]
    }
}

/// Kind and seq of a page that was checked before; `None` of one that was never written.
#[inline]
pub(crate) fn kind_and_seq(bytes: &[u8]) -> Option<(PageKind, Seq)> {
    let seq = bytes.get(16..24)?.try_into().ok()?;
    Some((PageKind::of(bytes[4])?, Seq::from_le_bytes(seq)))
}

/// What the journal says of a page since it was applied last: not put together yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Replay {
    /// In order; a full-page image or a free page can only be the first.
    changes: Vec<Change>,
    /// Bytes of memory that they take up, about.
    size: u64,
    /// Bytes of it were brought in from the journal, and leave memory again.
    is_passing: bool,
}

fn size(change: &Change) -> u64 {
    (size_of::<Change>() + change.held_bytes()) as u64
}

/// The same, once it has its bytes: the journal gives them with a seventh part more, and each for itself.
fn size_with_bytes(change: &Change) -> u64 {
    let of_place =
        |place: &Place| u64::from(place.len) + u64::from(place.len) / 7 + size_of::<Bytes>() as u64;
    size(change) + if let Change::Placed(place) = change { of_place(place) } else { 0 }
}

impl Replay {
    /// One more change: what replaces the page as a whole makes those before it forgotten.
    pub(crate) fn push(&mut self, change: Change) {
        if !change.is_part() {
            self.changes.clear();
            self.size = 0;
        }
        if self.changes.is_empty() {
            // Most pages are changed once.
            self.changes.reserve_exact(1);
        }
        self.size += size(&change);
        self.changes.push(change);
    }

    /// Whether the page as it stands in the data file is needed.
    pub(crate) fn needs_base(&self) -> bool {
        self.changes.first().is_some_and(Change::is_part)
    }

    /// Whether bytes of it have to be read from the journal.
    pub(crate) fn is_placed(&self) -> bool {
        self.changes.iter().any(|change| matches!(change, Change::Placed(_)))
    }

    /// Whether those bytes are in memory for a while.
    pub(crate) fn is_passing(&self) -> bool {
        self.is_passing
    }

    /// Where those bytes stand.
    pub(crate) fn places(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        places(&self.changes)
    }

    /// The same with those bytes, as many as there are places; `None` where they can't be what was there.
    pub(crate) fn with_bytes(&self, bytes: &[Bytes], payload: usize) -> Option<Self> {
        let changes = with_bytes(&self.changes, bytes, payload)?;
        Some(Self { size: changes.iter().map(size).sum(), changes, is_passing: true })
    }

    /// Bytes of memory that it takes up once it has all of its own, about.
    pub(crate) fn size_with_bytes(&self) -> u64 {
        self.changes.iter().map(size_with_bytes).sum()
    }

    /// Its changes by parts, in order: each takes up at most so many bytes with all of its own, or is one change.
    pub(crate) fn parts(&self, max_bytes: u64) -> impl Iterator<Item = &[Change]> {
        let mut rest = &self.changes[..];
        std::iter::from_fn(move || {
            let mut bytes = 0;
            let fits = |change: &&Change| {
                bytes += size_with_bytes(change);
                bytes <= max_bytes
            };
            let (part, behind) = rest.split_at_checked(rest.iter().take_while(fits).count().max(1))?;
            rest = behind;
            Some(part)
        })
    }

    /// The checksum of the page after each change.
    pub(crate) fn checksums(&self) -> Vec<u32> {
        self.changes.iter().map(Change::crc).collect()
    }

    /// Puts the page together in `bytes`, which hold the page as the data file has it if that is needed. Nothing of it may be placed.
    pub(crate) fn put_together(&self, id: &PageId, bytes: &mut [u8]) -> Result<PageKind, Error> {
        let mut assembly = Assembly::new(bytes);
        assembly.apply(&self.changes);
        assembly.finish(id)
    }
}

/// Where bytes stand that changes need of the journal.
pub(crate) fn places(changes: &[Change]) -> impl Iterator<Item = Range<u64>> + '_ {
    changes.iter().filter_map(|change| match change {
        Change::Placed(place) => Some(place.lsns()),
        Change::FullPageImage { .. } | Change::Diff { .. } | Change::Free { .. } => None,
    })
}

/// The changes with those bytes, as many as there are places; `None` where they can't be what was there.
pub(crate) fn with_bytes(changes: &[Change], bytes: &[Bytes], payload: usize) -> Option<Vec<Change>> {
    let mut bytes = bytes.iter();
    let with_bytes = |change: &Change| match change {
        Change::Placed(place) => place.with_bytes(bytes.next()?.clone(), payload),
        change => Some(change.clone()),
    };
    changes.iter().map(with_bytes).collect()
}

/// A page that is being put together.
pub(crate) struct Assembly<'a> {
    bytes: &'a mut [u8],
    kind: PageKind,
    /// The checksum of the page after the last change.
    crc: u32,
}

impl<'a> Assembly<'a> {
    /// In `bytes`, which hold the page as the data file has it if the first change is one of a part.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, kind: PageKind::Data, crc: 0 }
    }

    /// Does the next changes. None of them may be placed.
    pub(crate) fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            let payload = &mut self.bytes[HEADER..];
            match change {
                Change::FullPageImage { kind: of, crc: after, first, bytes } => {
                    payload.fill(0);
                    let first = *first as usize;
                    payload[first..first + bytes.len()].copy_from_slice(bytes);
                    (self.kind, self.crc) = (*of, *after);
                }
                Change::Diff { kind: of, crc: after, ranges, .. } => {
                    for (at, changed) in ranges.iter() {
                        let at = at as usize;
                        payload[at..at + changed.len()].copy_from_slice(changed);
                    }
                    (self.kind, self.crc) = (*of, *after);
                }
                Change::Free { crc: after } => {
                    payload.fill(0);
                    (self.kind, self.crc) = (PageKind::Free, *after);
                }
                Change::Placed(_) => unreachable!("it was read again"),
            }
        }
    }

    /// The page has all changes now, and its header; fails where it has another checksum than the last of them gave it.
    pub(crate) fn finish(self, id: &PageId) -> Result<PageKind, Error> {
        if page::seal(self.bytes, self.kind, id.page, id.seq, id.store) == self.crc {
            return Ok(self.kind);
        }
        Err(id.damaged("put together from the journal it has another checksum than its commit gave it"))
    }
}

/// Which page it is, for what is put together and for messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageId<'a> {
    pub(crate) path: &'a std::path::Path,
    pub(crate) store: u64,
    pub(crate) page: PageNo,
    pub(crate) seq: Seq,
}

impl PageId<'_> {
    pub(crate) fn damaged(&self, reason: impl Into<String>) -> Error {
        Error::Damaged { path: self.path.to_path_buf(), page: self.page, reason: reason.into() }
    }
}

/// What a version holds.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    /// The page itself.
    Whole(Whole),
    /// What it is to be put together from.
    Replay(Arc<Replay>),
}

impl Content {
    /// Bytes of memory, about.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Whole(whole) => whole.bytes.len() as u64,
            Self::Replay(replay) => replay.size,
        }
    }
}

/// A page as of one commit.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    pub(crate) seq: Seq,
    /// The data file has it, or a newer one.
    pub(crate) applied: bool,
    pub(crate) content: Content,
}
