//! A page as one commit left it, in memory.
//!
//! Invariants: a whole page has its header and checksum already; a replayed page must match its last checksum, else reading it is an
//! error.

use std::sync::Arc;

use crate::buffers::PageBuf;
use crate::format::entry::Change;
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
}

impl Replay {
    /// One more change: what replaces the page as a whole makes those before it forgotten.
    pub(crate) fn push(&mut self, change: Change) {
        if !matches!(change, Change::Diff { .. }) {
            self.changes.clear();
        }
        if self.changes.is_empty() {
            // Most pages are changed once.
            self.changes.reserve_exact(1);
        }
        self.changes.push(change);
    }

    /// Whether the page as it stands in the data file is needed.
    pub(crate) fn needs_base(&self) -> bool {
        matches!(self.changes.first(), Some(Change::Diff { .. }))
    }

    /// The checksum of the page after each change.
    pub(crate) fn checksums(&self) -> Vec<u32> {
        let crc = |change: &Change| match change {
            Change::FullPageImage { crc, .. } | Change::Diff { crc, .. } | Change::Free { crc } => *crc,
        };
        self.changes.iter().map(crc).collect()
    }

    /// What it takes up beside the journal's own bytes, about.
    pub(crate) fn overhead(&self) -> u64 {
        (self.changes.len() * size_of::<Change>()) as u64
    }

    /// Puts the page together in `bytes`, which hold the page as the data file has it if that is needed.
    pub(crate) fn put_together(&self, id: &PageId, bytes: &mut [u8]) -> Result<PageKind, Error> {
        let mut kind = PageKind::Data;
        let mut crc = 0;
        for change in &self.changes {
            let payload = &mut bytes[HEADER..];
            match change {
                Change::FullPageImage { kind: of, crc: after, first, bytes } => {
                    payload.fill(0);
                    let first = *first as usize;
                    payload[first..first + bytes.len()].copy_from_slice(bytes);
                    (kind, crc) = (*of, *after);
                }
                Change::Diff { kind: of, crc: after, ranges, .. } => {
                    for (at, changed) in ranges.iter() {
                        let at = at as usize;
                        payload[at..at + changed.len()].copy_from_slice(changed);
                    }
                    (kind, crc) = (*of, *after);
                }
                Change::Free { crc: after } => {
                    payload.fill(0);
                    (kind, crc) = (PageKind::Free, *after);
                }
            }
        }
        if page::seal(bytes, kind, id.page, id.seq, id.store) == crc {
            return Ok(kind);
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
    /// Bytes of memory, about; slices of the journal's buffers count where the buffers do.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Whole(whole) => whole.bytes.len() as u64,
            Self::Replay(replay) => replay.overhead(),
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
