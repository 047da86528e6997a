//! Reading records in order, from any source of bytes, and finding where the log ends.
//!
//! Invariants:
//! 1. It returns what was appended, in order, without a gap: reading stops where there is no valid record, and goes on
//!    after that only where an epoch that is known beforehand begins, which names that very LSN as the end of the one before.
//! 2. An end is accepted only where nothing says that a record must stand there: no later epoch, no settled or known end, and no
//!    later record of the same epoch that reports the place durable. So what can't be distinguished is no more than this: the last
//!    groups of an epoch of which no later record knows that they were durable, torn or rotten.
//! 3. A padding that what names the log says was durable is no end, however it is damaged: it holds nothing, and where it ends is known.
//!    Its checksum, or all of it but that, identifies it.
//! 4. Bytes are read in whole blocks, forwards. One that can't be read is an error where a record is to stand in it, and nothing
//!    where it is only searched.
//!
//! # How far is searched for a later record
//!
//! A record of the epoch can stand at any multiple of 8, and is recognized by its LSN and its salt. The search goes on as long as such
//! headers are found no farther apart than the longest record (and a padding) that this log can have had at the time.
//!
//! Why that is enough: let E be a place where no record stands though it was durable, and R the first record behind it that knows so.
//! R was reserved after the sync that made E durable had ended, and all between them stands in one write order without a gap. If R was
//! synced as well, so is all between E and R: records without a gap, each no longer than the longest. So from E on headers are found
//! no farther apart than that, up to R, but for those that are damaged. R is missed only if, beside what stands at E, a row of records
//! that is as long as the longest possible one is damaged, with each header in it. If R was not synced, nothing that was acknowledged
//! stands behind it that is not in the same case.
//!
//! Fails where the bytes can't be read, and with [`Error::Corrupt`]; with [`Error::UnknownRecord`] where a whole record is of a kind
//! that is not known here.

use super::buffered::Buffered;
use super::source::{Reach, Source};
use super::{BLOCK, BLOCK_LEN, HEADER, Header, Kind, is_damaged_padding, padding_size};
use crate::Error;
use crate::convert::to_usize;
use crate::injected_fault::injected_fault;

/// One entry as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Where its record stands.
    pub(crate) lsn: u64,
    /// Just past its record.
    pub(crate) next: u64,
    /// Whether its group goes on.
    pub(crate) part: bool,
    pub(crate) body: &'a [u8],
}

/// Where an epoch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochAt {
    /// Where the one before it ended.
    pub(crate) previous_end: u64,
    /// In force from its start on.
    pub(crate) salt: u32,
}

impl EpochAt {
    /// Where its first record stands: the first block start at or past the end of the one before.
    pub(crate) const fn start(self) -> u64 {
        self.previous_end.next_multiple_of(BLOCK)
    }
}

/// Reads the records of a log in order.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    reach: R,
    lsn: u64,
    salt: u32,
    /// Where the log is known to end, if it is.
    until: Option<u64>,
    /// All before it is known to be durable.
    settled: u64,
    /// Bytes of the longest record that may stand past what is settled.
    longest: u64,
    ended: bool,
    /// Those that are to come, the next one last.
    epochs: Vec<EpochAt>,
    /// Where paddings stand that were passed over though they are damaged.
    damaged_paddings: Vec<u64>,
    #[cfg(any(test, feature = "injected-faults"))]
    pub(crate) injected_fault: Option<crate::injected_fault::InjectedFault>,
}

impl<S: Source> Reader<Buffered<S>> {
    /// Reads from `lsn` on, where `salt` is in force, up to an end that is to be found.
    pub(crate) fn new(source: S, lsn: u64, salt: u32) -> Self {
        Self::over(Buffered::new(source), lsn, salt)
    }
}

impl<R: Reach> Reader<R> {
    /// As [`Self::new`], of bytes that are read into memory by other means.
    pub(crate) fn over(reach: R, lsn: u64, salt: u32) -> Self {
        Self {
            reach,
            lsn,
            salt,
            until: None,
            settled: 0,
            longest: u64::MAX,
            ended: false,
            epochs: Vec::new(),
            damaged_paddings: Vec::new(),
            #[cfg(any(test, feature = "injected-faults"))]
            injected_fault: None,
        }
    }

    /// Up to a known end: a multiple of [`BLOCK`], or where a record ends. All before it is there, or corrupt.
    pub(crate) fn until(self, end: u64) -> Self {
        Self { until: Some(end), ..self }
    }

    /// All before this is there, or corrupt.
    pub(crate) fn settled(self, lsn: u64) -> Self {
        Self { settled: lsn, ..self }
    }

    /// No record past what is settled is longer than so many bytes.
    pub(crate) fn with_longest(self, bytes: u64) -> Self {
        Self { longest: bytes, ..self }
    }

    /// These epochs begin at or past where reading begins, in this order.
    pub(crate) fn with_epochs(self, epochs: impl DoubleEndedIterator<Item = EpochAt>) -> Self {
        Self { epochs: epochs.rev().collect(), ..self }
    }

    /// Where its bytes are.
    pub(crate) fn reach_mut(&mut self) -> &mut R {
        &mut self.reach
    }

    /// The same, when nothing more is read; and where paddings stand that were passed over though they are damaged.
    pub(crate) fn into_parts(self) -> (R, Vec<u64>) {
        (self.reach, self.damaged_paddings)
    }

    /// Where the next record stands. After [`Self::next`] gave `None`: the end of the log.
    pub(crate) fn lsn(&self) -> u64 {
        self.lsn
    }

    /// In force at [`Self::lsn`].
    pub(crate) fn salt(&self) -> u32 {
        self.salt
    }

    /// The next entry; `None` at the end, and from then on.
    pub(crate) fn next(&mut self) -> Result<Option<Entry<'_>>, Error> {
        let header = loop {
            if self.ended {
                return Ok(None);
            }
            if let Some(epoch) = self.epochs.pop_if(|epoch| epoch.previous_end == self.lsn) {
                (self.lsn, self.salt) = (epoch.start(), epoch.salt);
                continue;
            }
            if self.until.is_some_and(|end| self.lsn >= end) {
                return Ok(None);
            }
            self.reach.look_ahead(self.lsn, self.salt, self.limit())?;
            let upto = self.epochs.last().map_or(self.limit(), |epoch| epoch.previous_end);
            let found = self.record_at(self.lsn, upto)?;
            #[cfg(any(test, feature = "injected-faults"))]
            if found.is_none() && self.skip_bad_record() {
                continue;
            }
            match found {
                Some(header @ Header { kind: Kind::Data | Kind::Part, .. }) => break header,
                Some(header @ Header { kind: Kind::Padding, .. }) => self.lsn += header.size(),
                Some(Header { kind: Kind::Unknown(_), .. }) => {
                    let (path, offset) = self.reach.locate(self.lsn);
                    return Err(Error::UnknownRecord { path, offset });
                }
                None => self.end_here()?,
            }
        };
        self.lsn += header.size();
        let body = self.reach.get(header.lsn, HEADER + header.len).map_or(&[][..], |bytes| &bytes[HEADER..]);
        let part = header.kind == Kind::Part;
        Ok(Some(Entry { lsn: header.lsn, next: self.lsn, part, body }))
    }

    /// Ends where no record stands, unless one was durable there: behind a padding it goes on, and else it is corrupt.
    fn end_here(&mut self) -> Result<(), Error> {
        let end = self.lsn;
        if let Some(error) = self.unreadable_record(end).filter(|_| !injected_fault!(self, UnreadableIsEmpty))
        {
            return Err(error);
        }
        let is_known = !self.epochs.is_empty() || self.until.is_some() || end < self.settled;
        if is_known && let Some(next) = self.end_of_damaged_padding(end)? {
            self.damaged_paddings.push(end);
            self.lsn = next;
            return Ok(());
        }
        if is_known || self.was_durable(end)? {
            let (path, offset) = self.reach.locate(end);
            return Err(Error::Corrupt { path, offset, lsn: end });
        }
        self.ended = true;
        Ok(())
    }

    /// Where the padding ends that stands at `lsn` and is damaged, if one does.
    fn end_of_damaged_padding(&mut self, lsn: u64) -> Result<Option<u64>, Error> {
        let limit = self.limit();
        let upto = self.epochs.last().map_or(limit, |epoch| epoch.previous_end.min(limit));
        if !lsn.is_multiple_of(8) || lsn >= upto || limit.checked_add(2 * BLOCK).is_none() {
            return Ok(None);
        }
        let size = padding_size(lsn);
        if size == 0 || lsn + size > upto {
            return Ok(None);
        }
        self.reach.load(lsn, to_usize(size), limit)?;
        let bytes = self.reach.get(lsn, to_usize(size));
        let is_padding = bytes.is_some_and(|bytes| is_damaged_padding(bytes, lsn, self.salt));
        Ok(is_padding.then_some(lsn + size))
    }

    /// Why what stands at `lsn` can't be read, if that is so.
    fn unreadable_record(&self, lsn: u64) -> Option<Error> {
        let limit = self.limit();
        let header = self.reach.get(lsn, HEADER).and_then(|bytes| Header::decode(bytes, lsn, self.salt));
        let len = header.map_or(HEADER as u64, |header| header.size());
        let upto = lsn.saturating_add(len).min(limit);
        (lsn < upto).then(|| self.reach.unreadable(&(lsn..upto))).flatten()
    }

    /// Whether a record past `end` says that what stands there was durable.
    fn was_durable(&mut self, end: u64) -> Result<bool, Error> {
        if injected_fault!(self, NoSearchBehindEnd) {
            return Ok(false);
        }
        let limit = self.limit();
        let mut stop = self.search_end(end);
        let mut block = end - end % BLOCK;
        let mut places = Vec::new();
        while block < stop {
            // A header may begin in this block and end in the next.
            let len = to_usize((limit - block).min((BLOCK_LEN + HEADER) as u64));
            self.reach.load(block, len, limit)?;
            let Some(bytes) = self.reach.get(block, len) else { break };
            places.clear();
            find_headers(bytes, block, end, &mut places);
            for lsn in places.iter().copied() {
                let header =
                    self.reach.get(lsn, HEADER).and_then(|bytes| Header::decode(bytes, lsn, self.salt));
                let Some(header) = header else { continue };
                stop = stop.max(self.search_end(lsn));
                if header.durable_upto > end && self.record_at(lsn, limit)?.is_some() {
                    return Ok(true);
                }
            }
            block += BLOCK;
        }
        Ok(false)
    }

    /// How far is searched past a place of the epoch.
    fn search_end(&self, lsn: u64) -> u64 {
        lsn.saturating_add(self.longest).saturating_add(2 * BLOCK).min(self.limit())
    }

    /// The record that stands at `lsn` and ends before `upto`, if a whole one does. It is in memory then.
    fn record_at(&mut self, lsn: u64, upto: u64) -> Result<Option<Header>, Error> {
        let limit = self.limit();
        self.reach.load(lsn, HEADER, limit)?;
        let Some(header) =
            self.reach.get(lsn, HEADER).and_then(|bytes| Header::decode(bytes, lsn, self.salt))
        else {
            return Ok(None);
        };
        if header.next().is_none_or(|next| next > upto) {
            return Ok(None);
        }
        self.reach.load(lsn, HEADER + header.len, limit)?;
        Ok((injected_fault!(self, NoChecksum) || self.reach.is_whole(&header)).then_some(header))
    }

    fn limit(&self) -> u64 {
        self.until.map_or(self.reach.end(), |end| end.min(self.reach.end()))
    }

    /// The fault [`crate::injected_fault::InjectedFault::SkipBadRecord`].
    #[cfg(any(test, feature = "injected-faults"))]
    fn skip_bad_record(&mut self) -> bool {
        if !injected_fault!(self, SkipBadRecord) {
            return false;
        }
        let header =
            self.reach.get(self.lsn, HEADER).and_then(|bytes| Header::decode(bytes, self.lsn, self.salt));
        let next = header.and_then(|header| header.next()).filter(|next| *next < self.limit());
        self.lsn = next.unwrap_or(self.lsn);
        next.is_some()
    }
}

/// The places past `after` at which a header of this log may stand: its LSN is that place. `bytes` stand at `block`.
fn find_headers(bytes: &[u8], block: u64, after: u64, places: &mut Vec<u64>) {
    let words = bytes.get(8..).unwrap_or_default().chunks_exact(8).take(BLOCK_LEN / 8);
    for (lsn, word) in (block..).step_by(8).zip(words) {
        if word == lsn.to_le_bytes() && lsn > after {
            places.push(lsn);
        }
    }
}
