//! Reading records in order, from any source of bytes, and finding where the log ends.
//!
//! Invariants:
//! 1. It returns what was appended, in order, without a gap: reading stops where there is no valid record, and goes on
//!    after that only where an epoch names that very LSN as the end of the one before.
//! 2. An end is accepted only if no later block start holds a record with the same salt that reports it durable; of a
//!    log with a bound B on what is not synced ([`Reader::with_max_unsynced`]), no block start up to 3 B past it.
//! 3. Bytes are read in whole blocks, forwards.
//!
//! # Why 3 B are enough
//!
//! The writer of a log with a bound guarantees three things:
//!
//! - (a) All that was ever appended ends at most B past what was durable at that time. So does the padding of a sync.
//! - (b) Each sync ends at a block start, and the next record stands there. By (a) these places d₀ < d₁ < … are at most B apart.
//! - (c) The record at dᵢ₊₁ says that dᵢ was durable at least: it was reserved after the padding before it, whose sync
//!   began after dᵢ was known, since only one thread syncs at a time.
//!
//! Reopening a log keeps these guarantees: what it keeps is durable then, and the epoch's record, under the old salt and at the
//! first block start past the end, says so. It is the next of the places of (b): the end was at most B past the last one.
//!
//! Let E be a place where no record stands though it was durable, and dᵢ the first of the places behind it; by (b) it is at
//! most B past E.
//!
//! - If there never was a sync behind the one up to dᵢ, by (a) all records end at most 2 B past E.
//! - Else the record R at dᵢ₊₁, at most 2 B past E, says that E was durable, by (c). If it was durable itself it is found.
//! - If it was not, nothing past it was, so that by (a) all records end at most 3 B past E.
//!
//! So a record that would be found by reading up to the end of the log is missed only if, beside what stands at E, R is
//! damaged, and all other block starts up to 3 B past E as far as they have records that know of E.
//!
//! Fails where the bytes can't be read, and with [`Error::Corrupt`].

use super::buffered::Buffered;
use super::source::{Reach, Source};
use super::{BLOCK, Epoch, HEADER, Header, Kind};
use crate::Error;
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
    /// Where its record stands.
    pub(crate) start: u64,
    /// In force after that.
    pub(crate) salt: u32,
}

/// Reads the records of a log in order.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    reach: R,
    lsn: u64,
    salt: u32,
    /// Where the log is known to end, if it is.
    until: Option<u64>,
    /// How far past an end records are that know of it, if that is known.
    max_behind: u64,
    ended: bool,
    epochs: Vec<EpochAt>,
    #[cfg(any(test, feature = "injected-faults"))]
    pub(crate) injected_fault: Option<crate::injected_fault::InjectedFault>,
}

impl<S: Source> Reader<Buffered<S>> {
    /// Reads from `lsn` on, where `salt` is in force, up to an end that is to be found.
    pub(crate) fn new(source: S, lsn: u64, salt: u32) -> Self {
        Self::over(Buffered::new(source), lsn, salt)
    }

    /// As [`Self::new`], up to a known end: a multiple of [`BLOCK`], or where a record ends. All before it is there, or
    /// corrupt.
    pub(crate) fn until(source: S, lsn: u64, salt: u32, end: u64) -> Self {
        Self { until: Some(end), ..Self::new(source, lsn, salt) }
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
            max_behind: u64::MAX,
            ended: false,
            epochs: Vec::new(),
            #[cfg(any(test, feature = "injected-faults"))]
            injected_fault: None,
        }
    }

    /// Of a log whose writer lets no more than so many bytes be appended and not synced: a multiple of [`BLOCK`].
    pub(crate) fn with_max_unsynced(self, bytes: u64) -> Self {
        Self { max_behind: bytes.saturating_mul(3), ..self }
    }

    /// Where its bytes are.
    pub(crate) fn reach_mut(&mut self) -> &mut R {
        &mut self.reach
    }

    /// Where the next record stands. After [`Self::next`] gave `None`: the end of the log.
    pub(crate) fn lsn(&self) -> u64 {
        self.lsn
    }

    /// In force at [`Self::lsn`].
    pub(crate) fn salt(&self) -> u32 {
        self.salt
    }

    /// The epochs that began on the way.
    pub(crate) fn epochs(&self) -> &[EpochAt] {
        &self.epochs
    }

    /// The next entry; `None` at the end, and from then on.
    pub(crate) fn next(&mut self) -> Result<Option<Entry<'_>>, Error> {
        let header = loop {
            if self.ended || self.until.is_some_and(|end| self.lsn >= end) {
                return Ok(None);
            }
            self.reach.look_ahead(self.lsn, self.salt, self.limit())?;
            let found = self.record_at(self.lsn)?;
            #[cfg(any(test, feature = "injected-faults"))]
            if found.is_none() && self.skip_bad_record() {
                continue;
            }
            match found {
                Some(header @ Header { kind: Kind::Data | Kind::Part, .. }) => break header,
                Some(header @ Header { kind: Kind::Padding, .. }) => self.lsn += header.size(),
                Some(Header { kind: Kind::Epoch, .. }) | None => self.find_epoch()?,
            }
        };
        self.lsn += header.size();
        let body = self.reach.get(header.lsn, HEADER + header.len).map_or(&[][..], |bytes| &bytes[HEADER..]);
        let part = header.kind == Kind::Part;
        Ok(Some(Entry { lsn: header.lsn, next: self.lsn, part, body }))
    }

    /// Goes on behind a place where no entry stands, if an epoch names it; else that is the end.
    fn find_epoch(&mut self) -> Result<(), Error> {
        let end = self.lsn;
        if let Some(start) = end.checked_next_multiple_of(BLOCK)
            && let Some(header) = self.record_at(start)?
            && header.kind == Kind::Epoch
            && let Some(bytes) = self.reach.get(start, HEADER + header.len)
            && let Some(epoch) = Epoch::decode(&bytes[HEADER..])
            && epoch.previous_end == end
        {
            self.salt = epoch.salt;
            self.epochs.push(EpochAt { previous_end: end, start, salt: epoch.salt });
            self.lsn = start + header.size();
            return Ok(());
        }
        if self.until.is_some() || self.was_durable(end)? {
            let (path, offset) = self.reach.locate(end);
            return Err(Error::Corrupt { path, offset, lsn: end });
        }
        self.ended = true;
        Ok(())
    }

    /// Whether a record at a block start past `end` says that what stands there was durable.
    fn was_durable(&mut self, end: u64) -> Result<bool, Error> {
        let mut at = end.next_multiple_of(BLOCK);
        let limit = self.limit().min(at.saturating_add(self.max_behind).saturating_add(BLOCK));
        while at < limit {
            self.reach.load(at, HEADER, limit)?;
            let Some(bytes) = self.reach.get(at, HEADER) else { break };
            let says_durable =
                Header::decode(bytes, at, self.salt).is_some_and(|header| header.durable_upto > end);
            if says_durable && self.record_at(at)?.is_some() {
                return Ok(true);
            }
            at += BLOCK;
        }
        Ok(false)
    }

    /// The record that stands at `lsn`, if a whole one does. It is in memory then.
    fn record_at(&mut self, lsn: u64) -> Result<Option<Header>, Error> {
        let limit = self.limit();
        self.reach.load(lsn, HEADER, limit)?;
        let Some(header) =
            self.reach.get(lsn, HEADER).and_then(|bytes| Header::decode(bytes, lsn, self.salt))
        else {
            return Ok(None);
        };
        if header.next().is_none_or(|next| next > limit) {
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
