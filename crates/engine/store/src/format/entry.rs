//! Entries of the journal: one commit each, in the body of one record of the log, or of several in a row (parts).
//!
//! The body of a record begins with a header of 16 bytes, little endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version, 1 |
//! | 1 | 0: it ends its entry; 1: the entry goes on in the next record |
//! | 2..4 | zeros |
//! | 4..8 | which part of the entry it is, from 0 |
//! | 8..16 | seq of the commit |
//!
//! What the parts of an entry hold behind their headers is, put together, a row of items. Each begins with its length in bytes, a
//! varint. The first is the meta, each one behind it the change of a page.
//!
//! - Meta: flags (1 byte; 1: there is a root page, 2: there is a free list), varints: root page if there is one, number of
//!   pages, first trunk of the free list if there is one, number of free pages; the rest is the user's metadata.
//! - Change: kind (1 byte; low 4 bits: 1 full-page image, 2 diff, 3 free; high 4 bits: the page's kind), page number (varint), the CRC-32C
//!   that the page has then (4 bytes), and:
//!   - full-page image: where in the payload the bytes begin (varint), and the bytes; all others are zeros;
//!   - diff: how many seqs before this one the version is that it applies to (varint, at least 1), then for each range:
//!     distance from the end of the one before (varint), length (varint, at least 1), bytes;
//!   - free: nothing. The page's kind is free, its payload is zeros.
//!
//! Invariants:
//! 1. A record holds whole items where they fit into a record: none is copied to be read. One that is longer is cut.
//! 2. An entry counts only with its last part. What comes behind an entry that never ended is a new one with the same seq: the
//!    store was opened again, or the rest could not be appended.
//! 3. What an [`Entry`] says fits: its pages are in the store, its bytes in their payloads.

mod diff;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use bytes::Bytes;

pub(crate) use diff::{Ranges, diff_ranges};
pub(crate) use reader::{EntryFault, EntryReader};
pub(crate) use writer::EntryWriter;

use super::page::PageKind;
use super::superblock::Meta;

pub(crate) const VERSION: u8 = 1;

/// Bytes of a record's body before the items.
pub(crate) const PART_HEADER: usize = 16;

/// The entry goes on in the next record.
const MORE: u8 = 1;

/// The meta's flags.
const ROOT: u8 = 1;
const FREE_HEAD: u8 = 2;

/// Kinds of changes.
const FULL_PAGE_IMAGE: u8 = 1;
const DIFF: u8 = 2;
const FREE: u8 = 3;

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) seq: u64,
    /// As it is after the commit.
    pub(crate) meta: Meta,
    /// By page, as the writer ordered them.
    pub(crate) changes: Vec<(u64, Change)>,
}

/// How a commit changes a page. The checksum is that of the page's header after the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// The payload is zeros but for these bytes, which begin at `first`.
    FullPageImage { kind: PageKind, crc: u32, first: u32, bytes: Bytes },
    /// These ranges of the payload are other than in the version of commit `base_seq`.
    Diff { kind: PageKind, crc: u32, base_seq: u64, ranges: Ranges },
    /// The page is free, its payload zeros.
    Free { crc: u32 },
    /// One of the first two, whose bytes are to be read from the journal again: only where the reader was asked for places.
    Placed(Place),
}

/// Where in the journal the bytes of a change stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) kind: PageKind,
    pub(crate) crc: u32,
    /// Where in the payload an image's bytes begin; `None` of a diff.
    pub(crate) first: Option<u32>,
    /// Of the first byte.
    pub(crate) lsn: u64,
    /// How many, one or more.
    pub(crate) len: u32,
}

impl Change {
    /// Whether it changes a part of the page.
    pub(crate) fn is_part(&self) -> bool {
        matches!(self, Self::Diff { .. } | Self::Placed(Place { first: None, .. }))
    }

    /// The page's checksum after it.
    pub(crate) fn crc(&self) -> u32 {
        match self {
            Self::FullPageImage { crc, .. } | Self::Diff { crc, .. } | Self::Free { crc } => *crc,
            Self::Placed(place) => place.crc,
        }
    }

    /// Bytes that it has in memory.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::FullPageImage { bytes, .. } => bytes.len(),
            Self::Diff { ranges, .. } => ranges.encoded().len(),
            Self::Free { .. } | Self::Placed(_) => 0,
        }
    }

    /// The same without its bytes, which end before `end` in the journal.
    fn placed(self, end: u64) -> Self {
        let (kind, crc, first, len) = match &self {
            Self::FullPageImage { kind, crc, first, bytes } => (*kind, *crc, Some(*first), bytes.len()),
            Self::Diff { kind, crc, ranges, .. } => (*kind, *crc, None, ranges.encoded().len()),
            Self::Free { .. } | Self::Placed(_) => return self,
        };
        match u32::try_from(len) {
            Ok(0) => self.without_memory(),
            Ok(len) => Self::Placed(Place { kind, crc, first, lsn: end - u64::from(len), len }),
            Err(_) => self,
        }
    }

    /// One that has no bytes, and no part in the memory where it was read.
    fn without_memory(mut self) -> Self {
        match &mut self {
            Self::FullPageImage { bytes, .. } => *bytes = Bytes::new(),
            Self::Diff { ranges, .. } => *ranges = Ranges::none(),
            Self::Free { .. } | Self::Placed(_) => {}
        }
        self
    }
}

impl Place {
    /// The bytes' LSNs.
    pub(crate) fn lsns(&self) -> std::ops::Range<u64> {
        self.lsn..self.lsn + u64::from(self.len)
    }

    /// The change with its bytes, in a page whose payload has so many; `None` if they are not those of one.
    pub(crate) fn with_bytes(self, bytes: Bytes, payload: usize) -> Option<Change> {
        let Self { kind, crc, first, .. } = self;
        Some(match first {
            Some(first) => Change::FullPageImage { kind, crc, first, bytes },
            // What applies to it is known by the page's checksum.
            None => Change::Diff { kind, crc, base_seq: 0, ranges: Ranges::new(bytes, payload)? },
        })
    }
}
