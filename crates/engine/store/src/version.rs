//! A page as of one commit, in memory.
//!
//! Invariants: a whole page already has its header and checksum. A rebuilt page must match its last
//! checksum, or reading it is an error; this includes bytes that were read from the journal a
//! second time.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::buffers::PageBuf;
use crate::format::entry::{JournalPlace, PageChange};
use crate::format::page::{self, HEADER_BYTES, PageKind};
use crate::version_file::MovedPage;
use crate::{Error, PageNo, Seq};
use pagekeeper_wal::Lsn;

/// Header and payload as they are written to disk.
#[derive(Debug, Clone)]
pub(crate) struct WholePage {
    pub(crate) kind: PageKind,
    bytes: PageBuf,
}

impl WholePage {
    /// Takes a page that was sealed.
    pub(crate) fn new(kind: PageKind, bytes: PageBuf) -> Self {
        Self { kind, bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the checksum in its header.
    pub(crate) fn crc(&self) -> u32 {
        page::crc(&self.bytes)
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[HEADER_BYTES..]
    }
}

/// Returns kind and seq of a page that was checked before; `None` if it was never written.
#[inline]
pub(crate) fn kind_and_seq(bytes: &[u8]) -> Option<(PageKind, Seq)> {
    let seq = bytes.get(16..24)?.try_into().ok()?;
    Some((PageKind::of(bytes[4])?, Seq::new(u64::from_le_bytes(seq))))
}

/// The journal's changes of a page since it was last applied, from which the page can be rebuilt.
#[derive(Debug, Clone, Default)]
pub(crate) struct PageReplay {
    /// In order. Only the first may be a full-page image or a free page.
    changes: Vec<PageChange>,
    /// Approximate bytes of memory that they take.
    size: u64,
    /// Whether its bytes were loaded from the journal, and leave memory again.
    is_passing: bool,
}

fn size(change: &PageChange) -> u64 {
    (size_of::<PageChange>() + change.held_bytes()) as u64
}

/// Returns the size once the change has its bytes: the journal returns them with 1/7 more, and each
/// separately.
fn size_with_bytes(change: &PageChange) -> u64 {
    let of_place =
        |place: &JournalPlace| u64::from(place.len) + u64::from(place.len) / 7 + size_of::<Bytes>() as u64;
    size(change) + if let PageChange::Placed(place) = change { of_place(place) } else { 0 }
}

impl PageReplay {
    /// Adds a change. One that replaces the whole page drops the earlier ones.
    pub(crate) fn push(&mut self, change: PageChange) {
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

    /// Whether the data file's page is needed.
    pub(crate) fn needs_base(&self) -> bool {
        self.changes.first().is_some_and(PageChange::is_part)
    }

    /// Whether some of its bytes must be read from the journal.
    pub(crate) fn is_placed(&self) -> bool {
        self.changes.iter().any(|change| matches!(change, PageChange::Placed(_)))
    }

    /// Whether those bytes are in memory only for now.
    pub(crate) fn is_passing(&self) -> bool {
        self.is_passing
    }

    /// Returns the places of those bytes.
    pub(crate) fn places(&self) -> impl Iterator<Item = Range<Lsn>> + '_ {
        places(&self.changes)
    }

    /// Returns the replay with those bytes, one for each place; `None` if they are invalid.
    pub(crate) fn with_bytes(&self, bytes: &[Bytes], payload: usize) -> Option<Self> {
        let changes = with_bytes(&self.changes, bytes, payload)?;
        Some(Self { size: changes.iter().map(size).sum(), changes, is_passing: true })
    }

    /// Returns the approximate bytes of memory that it takes once it has all its bytes.
    pub(crate) fn size_with_bytes(&self) -> u64 {
        self.changes.iter().map(size_with_bytes).sum()
    }

    /// Returns its changes in order, in parts that take at most this many bytes with all their
    /// data, or are a single change.
    pub(crate) fn parts(&self, max_bytes: u64) -> impl Iterator<Item = &[PageChange]> {
        let mut rest = &self.changes[..];
        std::iter::from_fn(move || {
            let mut bytes = 0;
            let fits = |change: &&PageChange| {
                bytes += size_with_bytes(change);
                bytes <= max_bytes
            };
            let (part, behind) = rest.split_at_checked(rest.iter().take_while(fits).count().max(1))?;
            rest = behind;
            Some(part)
        })
    }

    /// Returns the page's checksum after each change.
    pub(crate) fn checksums(&self) -> impl Iterator<Item = u32> + '_ {
        self.changes.iter().map(PageChange::crc)
    }

    /// Rebuilds the page in `bytes`, which contain the data file's page if that is needed. No
    /// change may be placed.
    pub(crate) fn put_together(&self, id: &PageId, bytes: &mut [u8]) -> Result<PageKind, Error> {
        let mut assembly = PageAssembly::new(bytes);
        assembly.apply(&self.changes);
        assembly.finish(id)
    }
}

/// Returns the places of bytes that changes need from the journal.
pub(crate) fn places(changes: &[PageChange]) -> impl Iterator<Item = Range<Lsn>> + '_ {
    changes.iter().filter_map(|change| match change {
        PageChange::Placed(place) => Some(place.lsns()),
        PageChange::FullPageImage { .. } | PageChange::Diff { .. } | PageChange::Free { .. } => None,
    })
}

/// Returns the changes with those bytes, one for each place; `None` if they are invalid.
pub(crate) fn with_bytes(changes: &[PageChange], bytes: &[Bytes], payload: usize) -> Option<Vec<PageChange>> {
    let mut bytes = bytes.iter();
    let with_bytes = |change: &PageChange| match change {
        PageChange::Placed(place) => place.with_bytes(bytes.next()?.clone(), payload),
        change => Some(change.clone()),
    };
    changes.iter().map(with_bytes).collect()
}

/// A page that is being rebuilt.
pub(crate) struct PageAssembly<'a> {
    bytes: &'a mut [u8],
    kind: PageKind,
    /// The page's checksum after the last change.
    crc: u32,
}

impl<'a> PageAssembly<'a> {
    /// Begins in `bytes`, which contain the data file's page if the first change is partial.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, kind: PageKind::Data, crc: 0 }
    }

    /// Applies the next changes. None of them may be placed.
    pub(crate) fn apply(&mut self, changes: &[PageChange]) {
        for change in changes {
            let payload = &mut self.bytes[HEADER_BYTES..];
            match change {
                PageChange::FullPageImage { kind: of, crc: after, first, bytes } => {
                    payload.fill(0);
                    let first = *first as usize;
                    payload[first..first + bytes.len()].copy_from_slice(bytes);
                    (self.kind, self.crc) = (*of, *after);
                }
                PageChange::Diff { kind: of, crc: after, ranges, .. } => {
                    for (at, changed) in ranges.iter() {
                        let at = at as usize;
                        payload[at..at + changed.len()].copy_from_slice(changed);
                    }
                    (self.kind, self.crc) = (*of, *after);
                }
                PageChange::Free { crc: after } => {
                    payload.fill(0);
                    (self.kind, self.crc) = (PageKind::Free, *after);
                }
                PageChange::Placed(_) => unreachable!("it was read again"),
            }
        }
    }

    /// Writes the header after all changes. Fails if the checksum is not that of the last change.
    pub(crate) fn finish(self, id: &PageId) -> Result<PageKind, Error> {
        if page::seal(self.bytes, self.kind, id.page, id.seq, id.store) == self.crc {
            return Ok(self.kind);
        }
        Err(id.damaged("put together from the journal it has another checksum than its commit gave it"))
    }
}

/// The identity of a page, for rebuilding it and for messages.
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

/// The content of a version.
#[derive(Debug, Clone)]
pub(crate) enum VersionContent {
    /// The page itself.
    Whole(WholePage),
    /// The changes from which it can be rebuilt.
    Replay(Arc<PageReplay>),
    /// The page as the data file has it. Once it is overwritten there, it is the page itself.
    InFile,
    /// The page in the file for old versions.
    OnDisk(Arc<MovedPage>),
}

impl VersionContent {
    /// Returns the approximate bytes of memory.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Whole(whole) => whole.bytes.len() as u64,
            Self::Replay(replay) => replay.size,
            Self::InFile | Self::OnDisk(_) => 0,
        }
    }
}

/// A page as of one commit.
#[derive(Debug, Clone)]
pub(crate) struct PageVersion {
    pub(crate) seq: Seq,
    /// Whether the data file has it, or a newer one.
    pub(crate) applied: bool,
    pub(crate) content: VersionContent,
}
