//! Entries of the journal: one commit each, in the body of one log record, or of several
//! consecutive ones (parts).
//!
//! The body of a record begins with a header of 16 bytes, little endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version, 1 |
//! | 1 | 0: it ends its entry; 1: the entry continues in the next record |
//! | 2..4 | zeros |
//! | 4..8 | which part of the entry it is, from 0 |
//! | 8..16 | seq of the commit |
//!
//! Behind their headers, the parts of an entry form a sequence of items. Each item begins with its
//! length in bytes, a varint. The first item is the meta; each further one is the change of a page.
//!
//! - Meta: flags (1 byte; 1: there is a root page, 2: there is a free list), varints: root page if
//!   any, number of pages, first trunk of the free list if any, number of free pages. The rest is
//!   the user's metadata.
//! - Change: kind (1 byte; low 4 bits: 1 full-page image, 2 diff, 3 free; high 4 bits: the page's
//!   kind), page number (varint), the page's CRC-32C after the change (4 bytes), and:
//!   - full-page image: offset of the bytes in the payload (varint), and the bytes; all others are
//!     zeros;
//!   - diff: how many seqs before this one its base version is (varint, at least 1), then for each
//!     range: distance from
//!     the end of the previous one (varint), length (varint, at least 1), bytes;
//!   - free: nothing. The page's kind is free, and its payload is zeros.
//!
//! Invariants:
//! 1. A record holds whole items if they fit into a record, so that they are read without copying.
//!    A longer item is split.
//! 2. An entry counts only with its last part. An unfinished entry is followed by a new one with
//!    the same seq: the store was opened again, or the rest could not be appended.
//! 3. The content of a [`JournalEntry`] is in bounds: its pages are in the store, its bytes in
//!    their payloads.

mod diff;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use bytes::Bytes;

pub(crate) use diff::{DiffRanges, diff_ranges};
pub(crate) use reader::{EntryFault, EntryReader};
pub(crate) use writer::{EntryWriter, parts};

use super::page::PageKind;
use super::superblock::StoreMeta;
use crate::{PageNo, Seq};
use pagekeeper_wal::Lsn;

pub(crate) const ENTRY_VERSION: u8 = 1;

/// Bytes of a record's body before the items.
pub(crate) const PART_HEADER: usize = 16;

/// The entry continues in the next record.
const FLAG_MORE: u8 = 1;

/// The meta's flags.
const META_ROOT: u8 = 1;
const META_FREE_HEAD: u8 = 2;

/// Kinds of changes.
const KIND_FULL_PAGE_IMAGE: u8 = 1;
const KIND_DIFF: u8 = 2;
const KIND_FREE: u8 = 3;

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JournalEntry {
    pub(crate) seq: Seq,
    /// The meta after the commit.
    pub(crate) meta: StoreMeta,
    /// The changed pages, in the writer's order.
    pub(crate) changes: Vec<(PageNo, PageChange)>,
}

/// A change of a page by a commit. The checksum is that of the page's header after the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PageChange {
    /// The payload is zeros except for these bytes, which begin at `first`.
    FullPageImage { kind: PageKind, crc: u32, first: u32, bytes: Bytes },
    /// These ranges of the payload differ from the version of commit `base_seq`.
    Diff { kind: PageKind, crc: u32, base_seq: Seq, ranges: DiffRanges },
    /// The page is free, and its payload is zeros.
    Free { crc: u32 },
    /// One of the first two, whose bytes must be read from the journal again. Only if the reader
    /// was asked for places.
    Placed(JournalPlace),
}

/// The place in the journal of a change's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JournalPlace {
    pub(crate) kind: PageKind,
    pub(crate) crc: u32,
    /// Offset of an image's bytes in the payload; `None` for a diff.
    pub(crate) first: Option<u32>,
    /// The LSN of the first byte.
    pub(crate) lsn: Lsn,
    /// Number of bytes, at least one.
    pub(crate) len: u32,
}

impl PageChange {
    /// Whether it changes only a part of the page.
    pub(crate) fn is_part(&self) -> bool {
        matches!(self, Self::Diff { .. } | Self::Placed(JournalPlace { first: None, .. }))
    }

    /// Returns the page's checksum after the change.
    pub(crate) fn crc(&self) -> u32 {
        match self {
            Self::FullPageImage { crc, .. } | Self::Diff { crc, .. } | Self::Free { crc } => *crc,
            Self::Placed(place) => place.crc,
        }
    }

    /// Returns the bytes that it holds in memory.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::FullPageImage { bytes, .. } => bytes.len(),
            Self::Diff { ranges, .. } => ranges.encoded().len(),
            Self::Free { .. } | Self::Placed(_) => 0,
        }
    }

    /// Returns the change as a place, without its bytes, which end before `end` in the journal.
    fn placed(self, end: Lsn) -> Self {
        let (kind, crc, first, len) = match &self {
            Self::FullPageImage { kind, crc, first, bytes } => (*kind, *crc, Some(*first), bytes.len()),
            Self::Diff { kind, crc, ranges, .. } => (*kind, *crc, None, ranges.encoded().len()),
            Self::Free { .. } | Self::Placed(_) => return self,
        };
        match u32::try_from(len) {
            Ok(0) => self.without_memory(),
            Ok(len) => Self::Placed(JournalPlace { kind, crc, first, lsn: end - u64::from(len), len }),
            Err(_) => self,
        }
    }

    /// Returns the change without bytes, and without a share of the memory where it was read.
    fn without_memory(mut self) -> Self {
        match &mut self {
            Self::FullPageImage { bytes, .. } => *bytes = Bytes::new(),
            Self::Diff { ranges, .. } => *ranges = DiffRanges::none(),
            Self::Free { .. } | Self::Placed(_) => {}
        }
        self
    }
}

impl JournalPlace {
    /// Returns the LSNs of the bytes.
    pub(crate) fn lsns(&self) -> std::ops::Range<Lsn> {
        self.lsn..self.lsn + u64::from(self.len)
    }

    /// Returns the change with its bytes, for a page with a payload of this length; `None` if the
    /// bytes are invalid for it.
    pub(crate) fn with_bytes(self, bytes: Bytes, payload: usize) -> Option<PageChange> {
        let Self { kind, crc, first, .. } = self;
        Some(match first {
            Some(first) => PageChange::FullPageImage { kind, crc, first, bytes },
            // The page's checksum shows what it applies to.
            None => {
                PageChange::Diff { kind, crc, base_seq: Seq::NONE, ranges: DiffRanges::new(bytes, payload)? }
            }
        })
    }
}
