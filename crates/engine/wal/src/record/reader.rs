//! Reads records in order, from any source of bytes, and finds the end of the log.
//!
//! Invariants:
//! 1. The reader returns what was appended, in order, without a gap. It stops at the first place
//!    without a valid record. It continues after that only if a known epoch begins there and names
//!    that LSN as the end of the previous one.
//! 2. An end is accepted only if nothing proves that a record must stand there. Such a proof is a
//!    later epoch, a settled or known end, or a later record of the same epoch that reports the
//!    place durable. Only one kind of loss is therefore undetectable: the last groups of an epoch,
//!    torn or decayed, if no later record reports them durable.
//! 3. Padding that the log's metadata says was durable is not an end, however it is damaged: it
//!    holds nothing, and its end is known. Either its checksum or everything else in it identifies
//!    it.
//! 4. Bytes are read in whole blocks, forwards. An unreadable block is an error if a record must
//!    stand in it. It counts as empty if it is only searched.
//!
//! # Range of the search for a later record
//!
//! A record of the epoch can stand at any multiple of 8, and is recognized by its LSN and its salt.
//! The search continues as long as such headers are no farther apart than the longest record (and
//! padding) that this log can have had at the time.
//!
//! The reason why that is enough: let E be a place that was durable but holds no record, and R the
//! first record behind it that proves this. R was reserved after the sync that made E durable had
//! ended, and everything between them was written in order, without a gap. If R was synced as well,
//! so was everything between E and R: records without a gap, each no longer than the longest. From
//! E up to R, headers are therefore no farther apart than that, except for damaged ones. R is
//! missed only if another run of records behind E, as long as the longest possible record, is
//! damaged in each of its headers. If R was not synced, every acknowledged record behind it is in
//! the same case as R.
//!
//! Fails if the bytes can't be read. Fails with [`Error::Corrupt`] if a durable record is lost, and
//! with [`Error::UnknownRecord`] if a whole record is of an unknown kind.

use super::buffered::BufferedSource;
use super::source::{LoadedBytes, LogSource};
use super::{
    BLOCK, BLOCK_LEN, RECORD_HEADER_BYTES, RecordHeader, RecordKind, is_damaged_padding, padding_size,
};
use crate::convert::to_usize;
use crate::injected_fault::injected_fault;
use crate::{Error, Lsn};

/// One entry of the log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LogEntry<'a> {
    /// The position of its record.
    pub(crate) lsn: u64,
    /// The end of its record.
    pub(crate) next: u64,
    /// Whether more records of its group follow.
    pub(crate) part: bool,
    pub(crate) body: &'a [u8],
}

/// The start of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochAt {
    /// The end of the previous epoch.
    pub(crate) previous_end: u64,
    /// The salt in force from its start on.
    pub(crate) salt: u32,
}

impl EpochAt {
    /// Returns the position of its first record: the first block start at or past the end of the
    /// previous epoch.
    pub(crate) const fn start(self) -> u64 {
        self.previous_end.next_multiple_of(BLOCK)
    }
}

/// Reads the records of a log in order.
#[derive(Debug)]
pub(crate) struct RecordReader<R> {
    reach: R,
    lsn: u64,
    salt: u32,
    /// The end of the log, if it is known.
    until: Option<u64>,
    /// Everything before this is known to be durable.
    settled: u64,
    /// Bytes of the longest record that may stand past `settled`.
    longest: u64,
    ended: bool,
    /// The epochs to come, the next one last.
    epochs: Vec<EpochAt>,
    /// The positions of damaged paddings that were skipped.
    damaged_paddings: Vec<u64>,
    #[cfg(any(test, feature = "injected-faults"))]
    pub(crate) injected_fault: Option<crate::injected_fault::InjectedFault>,
}

impl<S: LogSource> RecordReader<BufferedSource<S>> {
    /// Creates a reader from `lsn` on, where `salt` is in force, up to an end that is to be found.
    pub(crate) fn new(source: S, lsn: u64, salt: u32) -> Self {
        Self::over(BufferedSource::new(source), lsn, salt)
    }
}

impl<R: LoadedBytes> RecordReader<R> {
    /// Creates a reader like [`Self::new`], over bytes that are read into memory by other means.
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

    /// Reads up to a known end: a multiple of [`BLOCK`], or the end of a record. Everything before
    /// it is there, or corrupt.
    pub(crate) fn until(self, end: u64) -> Self {
        Self { until: Some(end), ..self }
    }

    /// Sets the settled position: everything before it is there, or corrupt.
    pub(crate) fn settled(self, lsn: u64) -> Self {
        Self { settled: lsn, ..self }
    }

    /// Sets the maximum size of a record past `settled`, in bytes.
    pub(crate) fn with_longest(self, bytes: u64) -> Self {
        Self { longest: bytes, ..self }
    }

    /// Sets the epochs that begin at or past the start of reading, in order.
    pub(crate) fn with_epochs(self, epochs: impl DoubleEndedIterator<Item = EpochAt>) -> Self {
        Self { epochs: epochs.rev().collect(), ..self }
    }

    /// Returns the source of its bytes.
    pub(crate) fn reach_mut(&mut self) -> &mut R {
        &mut self.reach
    }

    /// Returns the source of its bytes, and the positions of damaged paddings that were skipped.
    /// Nothing more is read.
    pub(crate) fn into_parts(self) -> (R, Vec<u64>) {
        (self.reach, self.damaged_paddings)
    }

    /// Returns the position of the next record. After [`Self::next`] returned `None`, this is the
    /// end of the log.
    pub(crate) fn lsn(&self) -> u64 {
        self.lsn
    }

    /// Returns the salt in force at [`Self::lsn`].
    pub(crate) fn salt(&self) -> u32 {
        self.salt
    }

    /// Returns the next entry; `None` at the end, and from then on.
    pub(crate) fn next(&mut self) -> Result<Option<LogEntry<'_>>, Error> {
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
            let found = self.record_at(self.lsn, self.upto())?;
            #[cfg(any(test, feature = "injected-faults"))]
            if found.is_none() && self.skip_bad_record() {
                continue;
            }
            match found {
                Some(header @ RecordHeader { kind: RecordKind::Data | RecordKind::Part, .. }) => {
                    break header;
                }
                Some(header @ RecordHeader { kind: RecordKind::Padding, .. }) => self.lsn += header.size(),
                Some(RecordHeader { kind: RecordKind::Unknown(_), .. }) => {
                    let (path, offset) = self.reach.locate(self.lsn);
                    return Err(Error::UnknownRecord { path, offset });
                }
                None => self.end_here()?,
            }
        };
        self.lsn += header.size();
        let body = self
            .reach
            .get(header.lsn, RECORD_HEADER_BYTES + header.len)
            .map_or(&[][..], |bytes| &bytes[RECORD_HEADER_BYTES..]);
        let part = header.kind == RecordKind::Part;
        Ok(Some(LogEntry { lsn: header.lsn, next: self.lsn, part, body }))
    }

    /// Ends at a place without a record, unless one was durable there. It then continues behind
    /// padding, or reports corruption.
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
            return Err(Error::Corrupt { path, offset, lsn: Lsn::new(end) });
        }
        self.ended = true;
        Ok(())
    }

    /// Returns the end of the damaged padding at `lsn`, if there is one.
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

    /// Returns the error of reading the record at `lsn`, if it is unreadable. If it would end too
    /// far behind, only its header counts.
    fn unreadable_record(&self, lsn: u64) -> Option<Error> {
        let limit = self.limit();
        let header = self
            .reach
            .get(lsn, RECORD_HEADER_BYTES)
            .and_then(|bytes| RecordHeader::decode(bytes, lsn, self.salt))
            .filter(|header| header.next().is_some_and(|next| next <= self.upto()));
        let len = header.map_or(RECORD_HEADER_BYTES as u64, |header| header.size());
        let upto = lsn.saturating_add(len).min(limit);
        (lsn < upto).then(|| self.reach.unreadable(&(lsn..upto))).flatten()
    }

    /// Whether a record past `end` proves that `end` was durable.
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
            let len = to_usize((limit - block).min((BLOCK_LEN + RECORD_HEADER_BYTES) as u64));
            self.reach.load(block, len, limit)?;
            let Some(bytes) = self.reach.get(block, len) else { break };
            places.clear();
            find_headers(bytes, block, end, &mut places);
            for lsn in places.iter().copied() {
                let header = self
                    .reach
                    .get(lsn, RECORD_HEADER_BYTES)
                    .and_then(|bytes| RecordHeader::decode(bytes, lsn, self.salt));
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

    /// Returns the limit of the search behind a header of the epoch.
    fn search_end(&self, lsn: u64) -> u64 {
        lsn.saturating_add(self.longest).saturating_add(2 * BLOCK).min(self.limit())
    }

    /// Returns the record at `lsn`, if it is whole and ends at `upto` or before. It is then in
    /// memory.
    fn record_at(&mut self, lsn: u64, upto: u64) -> Result<Option<RecordHeader>, Error> {
        let limit = self.limit();
        self.reach.load(lsn, RECORD_HEADER_BYTES, limit)?;
        let Some(header) = self
            .reach
            .get(lsn, RECORD_HEADER_BYTES)
            .and_then(|bytes| RecordHeader::decode(bytes, lsn, self.salt))
        else {
            return Ok(None);
        };
        if header.next().is_none_or(|next| next > upto) {
            return Ok(None);
        }
        self.reach.load(lsn, RECORD_HEADER_BYTES + header.len, limit)?;
        Ok((injected_fault!(self, NoChecksum) || self.reach.is_whole(&header)).then_some(header))
    }

    /// Returns where the next record must have ended.
    fn upto(&self) -> u64 {
        self.epochs.last().map_or(self.limit(), |epoch| epoch.previous_end)
    }

    fn limit(&self) -> u64 {
        self.until.map_or(self.reach.end(), |end| end.min(self.reach.end()))
    }

    /// Injects the fault [`crate::injected_fault::InjectedFault::SkipBadRecord`].
    #[cfg(any(test, feature = "injected-faults"))]
    fn skip_bad_record(&mut self) -> bool {
        if !injected_fault!(self, SkipBadRecord) {
            return false;
        }
        let header = self
            .reach
            .get(self.lsn, RECORD_HEADER_BYTES)
            .and_then(|bytes| RecordHeader::decode(bytes, self.lsn, self.salt));
        let next = header.and_then(|header| header.next()).filter(|next| *next < self.limit());
        self.lsn = next.unwrap_or(self.lsn);
        next.is_some()
    }
}

/// Collects the positions past `after` at which a header of this log may stand: its LSN is that
/// position. `bytes` begin at `block`.
fn find_headers(bytes: &[u8], block: u64, after: u64, places: &mut Vec<u64>) {
    let words = bytes.get(8..).unwrap_or_default().chunks_exact(8).take(BLOCK_LEN / 8);
    for (lsn, word) in (block..).step_by(8).zip(words) {
        if word == lsn.to_le_bytes() && lsn > after {
            places.push(lsn);
        }
    }
}
