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
pub(crate) use reader::{EntryFault, EntryReader, PartHeader};
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
}
