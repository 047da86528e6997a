//! Reading records in turn, from any place that bytes come from, by the tail rule.
//!
//! Invariants:
//! 1. What is given out is what was appended, in order, without a gap: reading stops where no record stands, and goes on
//!    behind that only where an epoch names that very place as the end of what was before it.
//! 2. An end is taken for one only if no block start behind it has a record under the same salt that knows it as durable.
//! 3. The source is read in whole blocks, forwards, but for the look behind the end.
//!
//! Fails where the source does, and with [`Error::Corrupt`].

use std::path::PathBuf;

use super::{BLOCK, BLOCK_LEN, Epoch, HEADER, Header, Kind, is_whole};
use crate::Error;

/// Where a reader's bytes come from.
pub(crate) trait Source {
    /// Fills `bytes` from `lsn` on, fewer only at [`Self::end`]. `lsn`, and the length and memory of `bytes`, are aligned to
    /// [`BLOCK`].
    fn read(&mut self, lsn: u64, bytes: &mut [u8]) -> Result<usize, Error>;

    /// Bytes to ask of it at once, where so many may be wanted: a multiple of [`BLOCK`].
    fn chunk(&self) -> usize {
        4 << 20
    }

    /// Where the source ends: nothing at or behind this LSN can be in it.
    fn end(&self) -> u64;

    /// The file, and the byte in it, that an LSN stands for.
    fn place(&self, lsn: u64) -> (PathBuf, u64);
}

/// One entry as it was read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Where its record stands.
    pub(crate) lsn: u64,
    /// Just behind its record.
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
    /// In force behind that.
    pub(crate) salt: u32,
}

/// Reads the records of a source in turn.
#[derive(Debug)]
pub(crate) struct Reader<S> {
    source: S,
    lsn: u64,
    salt: u32,
    /// Where the log is known to end, if it is.
    until: Option<u64>,
    ended: bool,
    epochs: Vec<EpochAt>,
    window: Window,
}

impl<S: Source> Reader<S> {
    /// Reads from `lsn` on, where `salt` is in force, up to an end that is to be found.
    pub(crate) fn new(source: S, lsn: u64, salt: u32) -> Self {
        Self { source, lsn, salt, until: None, ended: false, epochs: Vec::new(), window: Window::default() }
    }

    /// As [`Self::new`], up to a known end: a multiple of [`BLOCK`], or where a record ends. All before it is there, or
    /// corrupt.
    pub(crate) fn until(source: S, lsn: u64, salt: u32, end: u64) -> Self {
        Self { until: Some(end), ..Self::new(source, lsn, salt) }
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
            let found = self.record_at(self.lsn)?;
            match found.map(|header| header.kind) {
                Some(Kind::Data | Kind::Part) => break found,
                Some(Kind::Pad) => self.lsn = found.and_then(|header| header.next()).unwrap_or(u64::MAX),
                Some(Kind::Epoch) | None => self.find_epoch()?,
            }
        };
        let Some(header) = header else { return Ok(None) };
        self.lsn += header.size();
        let body = self.window.get(header.lsn, HEADER + header.len).map_or(&[][..], |bytes| &bytes[HEADER..]);
        let part = header.kind == Kind::Part;
        Ok(Some(Entry { lsn: header.lsn, next: self.lsn, part, body }))
    }

    /// Goes on behind a place where no entry stands, if an epoch names it; else that is the end.
    fn find_epoch(&mut self) -> Result<(), Error> {
        let end = self.lsn;
        if let Some(start) = end.checked_next_multiple_of(BLOCK)
            && let Some(header) = self.record_at(start)?
            && header.kind == Kind::Epoch
            && let Some(bytes) = self.window.get(start, HEADER + header.len)
            && let Some(epoch) = Epoch::decode(&bytes[HEADER..])
            && epoch.previous_end == end
        {
            self.salt = epoch.salt;
            self.epochs.push(EpochAt { previous_end: end, start, salt: epoch.salt });
            self.lsn = start + header.size();
            return Ok(());
        }
        if self.until.is_some() || self.was_durable(end)? {
            let (path, offset) = self.source.place(end);
            return Err(Error::Corrupt { path, offset, lsn: end });
        }
        self.ended = true;
        Ok(())
    }

    /// Whether a record at a block start behind `end` says that what stands there was durable.
    fn was_durable(&mut self, end: u64) -> Result<bool, Error> {
        let mut at = end.next_multiple_of(BLOCK);
        while at < self.limit() {
            self.load(at, HEADER)?;
            let Some(bytes) = self.window.get(at, HEADER) else { break };
            let told = Header::decode(bytes, at, self.salt).is_some_and(|header| header.durable_upto > end);
            if told && self.record_at(at)?.is_some() {
                return Ok(true);
            }
            at += BLOCK;
        }
        Ok(false)
    }

    /// The record that stands at `lsn`, if a whole one does. It is in the window then.
    fn record_at(&mut self, lsn: u64) -> Result<Option<Header>, Error> {
        self.load(lsn, HEADER)?;
        let Some(header) =
            self.window.get(lsn, HEADER).and_then(|bytes| Header::decode(bytes, lsn, self.salt))
        else {
            return Ok(None);
        };
        if header.next().is_none_or(|next| next > self.limit()) {
            return Ok(None);
        }
        let len = HEADER + header.len;
        self.load(lsn, len)?;
        Ok(self.window.get(lsn, len).is_some_and(|bytes| is_whole(bytes, header.len)).then_some(header))
    }

    fn limit(&self) -> u64 {
        self.until.map_or(self.source.end(), |end| end.min(self.source.end()))
    }

    /// Brings `len` bytes from `lsn` on into the window, or as many of them as there are.
    fn load(&mut self, lsn: u64, len: usize) -> Result<(), Error> {
        if self.window.get(lsn, len).is_some() {
            return Ok(());
        }
        let limit = self.limit().checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
        self.window.move_to(lsn - lsn % BLOCK);
        let from = self.window.end();
        let wanted =
            lsn.saturating_add(len.max(self.source.chunk()) as u64).min(limit).next_multiple_of(BLOCK);
        if from < wanted {
            let source = &mut self.source;
            let more = usize::try_from(wanted - from).unwrap_or(usize::MAX);
            self.window.fill(more, |bytes| source.read(from, bytes))?;
        }
        Ok(())
    }
}

/// A stretch of the log in memory that is aligned for direct reads.
#[derive(Debug, Default)]
struct Window {
    /// The LSN of its first byte: a multiple of [`BLOCK`].
    start: u64,
    /// Bytes that it holds.
    len: usize,
    memory: Vec<u8>,
    /// Where in `memory` it begins, so that its address is aligned.
    skipped: usize,
}

impl Window {
    /// Just behind it.
    fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    /// The bytes at `lsn`, if they are all in it.
    fn get(&self, lsn: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(lsn.checked_sub(self.start)?).ok()?;
        let end = from.checked_add(len).filter(|end| *end <= self.len)?;
        self.memory.get(self.skipped + from..self.skipped + end)
    }

    /// Lets it begin at `start`, with what it has of that.
    fn move_to(&mut self, start: u64) {
        if (self.start..self.end()).contains(&start) {
            let gone = usize::try_from(start - self.start).unwrap_or(usize::MAX);
            let from = self.skipped + gone;
            self.memory.copy_within(from..self.skipped + self.len, self.skipped);
            self.len -= gone;
        } else {
            self.len = 0;
        }
        self.start = start;
        // What is no whole block was the end of the source, and is read again.
        self.len -= self.len % BLOCK_LEN;
    }

    /// Adds up to `more` bytes, as many as `read` says.
    fn fill(
        &mut self,
        more: usize,
        read: impl FnOnce(&mut [u8]) -> Result<usize, Error>,
    ) -> Result<(), Error> {
        let needed = self.len + more;
        if self.memory.len() < needed + BLOCK_LEN {
            let mut larger = vec![0; needed + BLOCK_LEN];
            let skipped = larger.as_ptr().align_offset(BLOCK_LEN).min(BLOCK_LEN);
            larger[skipped..skipped + self.len]
                .copy_from_slice(&self.memory[self.skipped..self.skipped + self.len]);
            (self.memory, self.skipped) = (larger, skipped);
        }
        let from = self.skipped + self.len;
        let got = read(&mut self.memory[from..from + more])?;
        self.len += got.min(more);
        Ok(())
    }
}
