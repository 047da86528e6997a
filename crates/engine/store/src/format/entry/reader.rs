//! Reads commits from the bodies of the journal's records, in the journal's order.

use bytes::Bytes;

use super::super::page::PageKind;
use super::super::superblock::StoreMeta;
use super::super::varint::{self, InputBytes};
use super::{
    DiffRanges, ENTRY_VERSION, FLAG_MORE, JournalEntry, KIND_DIFF, KIND_FREE, KIND_FULL_PAGE_IMAGE,
    META_FREE_HEAD, META_ROOT, PART_HEADER, PageChange,
};
use crate::{PageNo, Seq};
use pagekeeper_wal::Lsn;

/// The reason why a record cannot be one that a store wrote there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EntryFault {
    #[error("an entry ends too soon")]
    Truncated,
    #[error("an entry of version {0}, which this pagekeeper does not know")]
    Version(u8),
    #[error("a record with bits set that mean nothing")]
    Reserved,
    #[error("commit {found} where commit {wanted} is due")]
    Seq { found: Seq, wanted: Seq },
    #[error("part {found} of commit {seq} where part {wanted} is due")]
    Part { seq: Seq, found: u32, wanted: u32 },
    #[error("commit {0} has an invalid state of the store")]
    Meta(Seq),
    #[error("a change of page {page} that makes no sense in commit {seq}")]
    Change { seq: Seq, page: PageNo },
    #[error("a change of no page in commit {0}")]
    NoPage(Seq),
}

/// The header of a record's body.
#[derive(Debug, Clone, Copy)]
struct PartHeader {
    /// Whether the entry continues in the next record.
    goes_on: bool,
    /// The number of the part, from 0.
    ordinal: u32,
    /// The commit's seq.
    seq: Seq,
}

impl PartHeader {
    fn of(body: &[u8]) -> Result<Self, EntryFault> {
        let header = body.first_chunk::<PART_HEADER>().ok_or(EntryFault::Truncated)?;
        let goes_on = match *header {
            [ENTRY_VERSION, flags @ (0 | FLAG_MORE), 0, 0, ..] => flags == FLAG_MORE,
            [ENTRY_VERSION, ..] => return Err(EntryFault::Reserved),
            [version, ..] => return Err(EntryFault::Version(version)),
        };
        let ordinal = u32::from_le_bytes(std::array::from_fn(|at| header[4 + at]));
        let seq = u64::from_le_bytes(std::array::from_fn(|at| header[8 + at]));
        Ok(Self { goes_on, ordinal, seq: Seq::new(seq) })
    }
}

/// Assembles entries from the bodies of records.
#[derive(Debug)]
pub(crate) struct EntryReader {
    /// Bytes of a page's payload.
    payload: usize,
    /// The seq of the next entry, once one was read.
    due: Option<Seq>,
    unfinished: Option<UnfinishedEntry>,
}

/// An entry whose last part was not read yet.
#[derive(Debug)]
struct UnfinishedEntry {
    seq: Seq,
    /// The number of the next part.
    due: u32,
    /// The items so far.
    meta: Option<StoreMeta>,
    changes: Vec<(PageNo, PageChange)>,
    /// The beginning of an item that was split.
    cut: Vec<u8>,
}

impl EntryReader {
    /// Creates a reader for a store whose pages have payloads of this length.
    pub(crate) fn new(payload: usize) -> Self {
        Self { payload, due: None, unfinished: None }
    }

    /// Takes the body of the next record. Returns the entry that it ends, whose bytes are slices of
    /// bodies.
    ///
    /// After a fault, nothing more can be read.
    pub(crate) fn read(&mut self, body: &Bytes) -> Result<Option<JournalEntry>, EntryFault> {
        self.read_part(body, None)
    }

    /// Like [`read`](Self::read), for a body at `lsn`. Changes have the places of their bytes, so
    /// that none of the body is kept; only split items have their bytes.
    pub(crate) fn read_places(&mut self, body: &Bytes, lsn: Lsn) -> Result<Option<JournalEntry>, EntryFault> {
        self.read_part(body, Some(lsn))
    }

    fn read_part(&mut self, body: &Bytes, lsn: Option<Lsn>) -> Result<Option<JournalEntry>, EntryFault> {
        let PartHeader { goes_on, ordinal, seq } = PartHeader::of(body)?;
        let mut unfinished = self.begun(seq, ordinal)?;
        let end = lsn.map(|lsn| lsn + body.len() as u64);
        unfinished.items(body.slice(PART_HEADER..), end, self.payload)?;
        if goes_on {
            unfinished.due = ordinal.checked_add(1).ok_or(EntryFault::Truncated)?;
            self.unfinished = Some(unfinished);
            return Ok(None);
        }
        let UnfinishedEntry { meta, changes, cut, .. } = unfinished;
        let meta = meta.filter(|_| cut.is_empty()).ok_or(EntryFault::Truncated)?;
        if let Some((page, _)) = changes.iter().find(|(page, _)| page.get() >= meta.pages) {
            return Err(EntryFault::Change { seq, page: *page });
        }
        self.due = seq.get().checked_add(1).map(Seq::new);
        Ok(Some(JournalEntry { seq, meta, changes }))
    }

    /// Returns the seq of an entry whose last part was not read. At the journal's end, this is an
    /// unfinished commit.
    #[cfg(test)]
    pub(crate) fn unfinished(&self) -> Option<Seq> {
        self.unfinished.as_ref().map(|unfinished| unfinished.seq)
    }

    /// Returns the entry that this part belongs to.
    fn begun(&mut self, seq: Seq, ordinal: u32) -> Result<UnfinishedEntry, EntryFault> {
        // An unfinished entry is dropped for one that begins with the same seq.
        let unfinished = self.unfinished.take();
        let due = unfinished.as_ref().map(|unfinished| unfinished.seq).or(self.due);
        if let Some(wanted) = due.filter(|due| *due != seq) {
            return Err(EntryFault::Seq { found: seq, wanted });
        }
        match unfinished {
            _ if ordinal == 0 => {
                Ok(UnfinishedEntry { seq, due: 0, meta: None, changes: Vec::new(), cut: Vec::new() })
            }
            Some(unfinished) if unfinished.due == ordinal => Ok(unfinished),
            other => Err(EntryFault::Part {
                seq,
                found: ordinal,
                wanted: other.map_or(0, |unfinished| unfinished.due),
            }),
        }
    }
}

impl UnfinishedEntry {
    /// Takes the content of a part, which ends before `end` in the journal if places are wanted.
    fn items(&mut self, mut bytes: Bytes, end: Option<Lsn>, payload: usize) -> Result<(), EntryFault> {
        while !bytes.is_empty() {
            if self.cut.is_empty() {
                let whole = varint::get(&bytes).and_then(|(len, len_len)| {
                    let len = usize::try_from(len).ok()?.checked_add(len_len)?;
                    (len <= bytes.len()).then_some((len_len, len))
                });
                if let Some((start, len)) = whole {
                    let item = bytes.split_to(len).slice(start..);
                    self.item(item, end.map(|end| end - bytes.len() as u64), payload)?;
                    continue;
                }
            }
            // Byte by byte while the length itself is incomplete, then all that is missing.
            let missing = match varint::get(&self.cut) {
                Some((len, len_len)) => {
                    let len = usize::try_from(len).ok().and_then(|len| len.checked_add(len_len));
                    len.ok_or(EntryFault::Truncated)? - self.cut.len()
                }
                None if self.cut.len() >= varint::MAX_LEN => return Err(EntryFault::Truncated),
                None => 1,
            };
            self.cut.extend_from_slice(&bytes.split_to(missing.min(bytes.len())));
            if let Some((len, len_len)) = varint::get(&self.cut)
                && usize::try_from(len).is_ok_and(|len| len_len.checked_add(len) == Some(self.cut.len()))
            {
                let item = Bytes::from(std::mem::take(&mut self.cut));
                self.item(item.slice(len_len..), None, payload)?;
            }
        }
        Ok(())
    }

    /// Takes an item, which ends before `end` in the journal if its place is wanted.
    fn item(&mut self, bytes: Bytes, end: Option<Lsn>, payload: usize) -> Result<(), EntryFault> {
        if self.meta.is_none() {
            self.meta = Some(meta(InputBytes(bytes)).ok_or(EntryFault::Meta(self.seq))?);
            return Ok(());
        }
        let mut input = InputBytes(bytes);
        let (what, page) = input.byte().zip(input.number()).ok_or(EntryFault::NoPage(self.seq))?;
        let page = PageNo::new(page);
        let change = change(what, input, self.seq, payload);
        let change = change.ok_or(EntryFault::Change { seq: self.seq, page })?;
        let change = if let Some(end) = end { change.placed(end) } else { change };
        self.changes.push((page, change));
        Ok(())
    }
}

fn meta(mut input: InputBytes) -> Option<StoreMeta> {
    let flags = input.byte().filter(|flags| *flags <= (META_ROOT | META_FREE_HEAD))?;
    let root = if flags & META_ROOT == 0 { None } else { Some(PageNo::new(input.number()?)) };
    let pages = input.number()?;
    let free_head = if flags & META_FREE_HEAD == 0 { None } else { Some(PageNo::new(input.number()?)) };
    let meta = StoreMeta { root, pages, free_head, free_pages: input.number()?, user: input.0.to_vec() };
    meta.is_sound().then_some(meta)
}

fn change(what: u8, mut input: InputBytes, seq: Seq, payload: usize) -> Option<PageChange> {
    let kind = PageKind::of(what >> 4)?;
    let crc = input.word()?;
    match what & 0xf {
        KIND_FULL_PAGE_IMAGE => {
            let first = u32::try_from(input.number()?).ok()?;
            let bytes = input.0;
            let fits = (first as usize).checked_add(bytes.len())? <= payload;
            fits.then_some(PageChange::FullPageImage { kind, crc, first, bytes })
        }
        KIND_DIFF => {
            let base_seq = seq.get().checked_sub(input.number()?).map(Seq::new);
            let base_seq = base_seq.filter(|base_seq| *base_seq < seq)?;
            Some(PageChange::Diff { kind, crc, base_seq, ranges: DiffRanges::new(input.0, payload)? })
        }
        KIND_FREE if kind == PageKind::Free && input.0.is_empty() => Some(PageChange::Free { crc }),
        _ => None,
    }
}
