//! The journal in memory: what a log that is opened has, read once and wide, with the checksums verified on all processors.
//!
//! Reading goes in steps, ahead of the reader that walks over the records: a step is many pieces, all asked of the disk at
//! once. As one comes in, the headers in it are followed from record to record. If they lead out of it the next step is begun, on
//! a thread, and meanwhile the checksums of all these records are verified, in parallel.
//!
//! Invariants:
//! 1. What is held is what the files had, without a gap, from some LSN that the reader has not passed up to where was read.
//! 2. From the start of `checked` to its end the records follow each other under `salt`, and each of them is whole. So whether
//!    the record that the reader comes to is whole needs no second look; what it means is for the reader alone to say.
//! 3. Nothing is read that is not asked for but within one step behind it, and nothing at or behind the reader's limit.
//!
//! Fails as the disk does, where something is asked for that could not be read: not for what was read ahead and not needed.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};

use bytes::Bytes;
use pagekeeper_io::AlignedBuf;

use super::ring::RingSource;
use crate::Error;
use crate::record::{self, BLOCK, HEADER, Header, Kind, Reach, Source};

/// Bytes of the first step: many logs have no more.
const FIRST: u64 = 32 << 20;
/// Bytes of each further one.
const STEP: u64 = 64 << 20;
/// Bytes of memory that come and go together.
const STRETCH: u64 = 4 << 20;
/// Bytes of records whose checksums are one processor's part at a time.
const SHARE: u64 = 1 << 20;

/// A record that a log had when it was opened; from [`RedoOptions::recover`](crate::RedoOptions::recover).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// Where it begins.
    pub lsn: u64,
    /// Just behind it: what its append returned.
    pub end: u64,
    /// What was appended: a part of the memory that the log was read into, but for records that lie in two stretches of it.
    pub body: Bytes,
}

/// Memory as it was read into.
struct Read(AlignedBuf);

impl AsRef<[u8]> for Read {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A part of the log in memory.
#[derive(Debug)]
struct Stretch {
    start: u64,
    bytes: Bytes,
}

impl Stretch {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    /// What it has of this, as places in it.
    fn part(&self, lsns: &Range<u64>) -> Range<usize> {
        let place = |lsn: u64| usize::try_from(lsn.clamp(self.start, self.end()) - self.start).unwrap_or(0);
        place(lsns.start)..place(lsns.end)
    }
}

/// What a step brought.
#[derive(Debug)]
struct Step {
    stretches: Vec<Stretch>,
    /// Why it did not bring all.
    failed: Option<Error>,
}

/// Stretches without a gap.
#[derive(Debug, Default)]
struct Held(VecDeque<Stretch>);

/// The journal, as a reader goes through it.
#[derive(Debug)]
pub(super) struct Journal {
    source: Arc<RingSource>,
    has_threads: bool,
    held: Held,
    /// What stands in two stretches, and was asked for last.
    joined: Option<Stretch>,
    /// All before it was read.
    read: u64,
    /// Why there is no more to be had.
    failed: Option<Error>,
    /// The step that is on its way.
    coming: Option<JoinHandle<Step>>,
    checked: Range<u64>,
    salt: u32,
    /// Bytes of the next step.
    step: u64,
}

impl Journal {
    /// From the block of `lsn` on. Without threads all is done by the caller.
    pub(super) fn new(source: RingSource, lsn: u64, has_threads: bool) -> Self {
        Self {
            source: Arc::new(source),
            has_threads,
            held: Held::default(),
            joined: None,
            read: lsn - lsn % BLOCK,
            failed: None,
            coming: None,
            checked: 0..0,
            salt: 0,
            step: FIRST,
        }
    }

    /// The bytes from `lsn` on, which were loaded: a part of what is in memory.
    pub(super) fn bytes(&self, lsn: u64, len: usize) -> Option<Bytes> {
        let lsns = lsn..lsn.checked_add(len as u64)?;
        let stretch = self.stretch(&lsns)?;
        Some(stretch.bytes.slice(stretch.part(&lsns)))
    }

    /// The one that has all of this.
    fn stretch(&self, lsns: &Range<u64>) -> Option<&Stretch> {
        let has = |stretch: &&Stretch| stretch.start <= lsns.start && lsns.end <= stretch.end();
        self.held.at(lsns.start).filter(has).or_else(|| self.joined.as_ref().filter(has))
    }

    /// What the next step reads.
    fn next_step(&self, limit: u64) -> Range<u64> {
        self.read..(self.read + self.step).min(limit.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX))
    }

    /// Takes in one step.
    fn read_on(&mut self, limit: u64) {
        let step = match self.coming.take() {
            Some(coming) => coming.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => read(&self.source, self.next_step(limit)),
        };
        self.step = STEP;
        self.read = step.stretches.last().map_or(self.read, Stretch::end);
        self.held.0.extend(step.stretches);
        self.failed = step.failed;
    }

    /// Has the next step read meanwhile.
    fn read_ahead(&mut self, limit: u64) {
        let lsns = self.next_step(limit);
        if !self.has_threads || self.coming.is_some() || self.failed.is_some() || lsns.is_empty() {
            return;
        }
        let source = Arc::clone(&self.source);
        // Without a thread it is read when it is asked for.
        self.coming = Builder::new().name("log_reader".to_owned()).spawn(move || read(&source, lsns)).ok();
    }

    /// The records in memory that follow each other from `lsn` on, as their headers say; and whether they lead out of it.
    fn follow(&self, lsn: u64, salt: u32, limit: u64) -> (Vec<Header>, bool) {
        let mut records = Vec::new();
        let mut at = lsn;
        loop {
            if at + HEADER as u64 > self.read {
                return (records, at < limit);
            }
            let header = self.held.header(at).and_then(|bytes| Header::decode(&bytes, at, salt));
            let Some(header) = header.filter(|header| header.kind != Kind::Epoch) else {
                return (records, false);
            };
            match header.next() {
                Some(next) if next <= self.read => at = next,
                next => return (records, next.is_some_and(|next| next <= limit)),
            }
            records.push(header);
        }
    }

    /// Where the first of the records stands that is not whole, or else they end.
    fn verify(&self, records: &[Header]) -> u64 {
        let mut shares = Vec::new();
        let mut rest = records;
        while let Some(first) = rest.first() {
            let behind = rest.iter().position(|header| header.lsn - first.lsn >= SHARE);
            let (share, others) = rest.split_at(behind.unwrap_or(rest.len()));
            shares.push(share);
            rest = others;
        }
        let end = records.last().and_then(Header::next).unwrap_or(0);
        let (good_upto, next) = (AtomicU64::new(end), AtomicUsize::new(0));
        let work = || {
            while let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Some(bad) = share.iter().find(|header| !self.held.is_whole(header)) {
                    good_upto.fetch_min(bad.lsn, Ordering::Relaxed);
                }
            }
        };
        let processors = if self.has_threads {
            std::thread::available_parallelism().map_or(1, usize::from).min(shares.len())
        } else {
            1
        };
        std::thread::scope(|scope| {
            for _ in 1..processors {
                // Whoever there is does it all.
                let _ = Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        good_upto.into_inner()
    }
}

impl Reach for Journal {
    fn load(&mut self, lsn: u64, len: usize, limit: u64) -> Result<(), Error> {
        self.held.forget(lsn);
        let lsns = lsn..lsn.saturating_add(len as u64).min(limit);
        while self.read < lsns.end {
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            self.read_on(limit);
        }
        if !lsns.is_empty() && self.stretch(&lsns).is_none() {
            self.joined = Some(Stretch { start: lsns.start, bytes: self.held.join(&lsns) });
        }
        Ok(())
    }

    fn get(&self, lsn: u64, len: usize) -> Option<&[u8]> {
        let lsns = lsn..lsn.checked_add(len as u64)?;
        let stretch = self.stretch(&lsns)?;
        Some(&stretch.bytes[stretch.part(&lsns)])
    }

    fn look_ahead(&mut self, lsn: u64, salt: u32, limit: u64) -> Result<(), Error> {
        if self.salt == salt && self.checked.contains(&lsn) {
            return Ok(());
        }
        self.load(lsn, HEADER, limit)?;
        let first = self.get(lsn, HEADER).and_then(|bytes| Header::decode(bytes, lsn, salt));
        if let Some(header) = first
            && header.next().is_some_and(|next| next <= limit)
        {
            self.load(lsn, HEADER + header.len, limit)?;
        }
        let (records, leads_out) = self.follow(lsn, salt, limit);
        if leads_out {
            self.read_ahead(limit);
        }
        self.checked = lsn..self.verify(&records);
        self.salt = salt;
        Ok(())
    }

    fn is_whole(&self, header: &Header) -> bool {
        (self.salt == header.salt && self.checked.contains(&header.lsn)) || self.held.is_whole(header)
    }

    fn end(&self) -> u64 {
        self.source.end()
    }

    fn place(&self, lsn: u64) -> (PathBuf, u64) {
        self.source.place(lsn)
    }
}

impl Drop for Journal {
    /// Nothing reads the files any more when it is gone.
    fn drop(&mut self) {
        if let Some(coming) = self.coming.take() {
            // What it brings is not needed, nor what went wrong.
            let _ = coming.join();
        }
    }
}

impl Held {
    /// The one that has this byte.
    fn at(&self, lsn: u64) -> Option<&Stretch> {
        let behind = self.0.partition_point(|stretch| stretch.start <= lsn);
        self.0.get(behind.checked_sub(1)?).filter(|stretch| lsn < stretch.end())
    }

    /// What it has of this, in turn.
    fn parts(&self, lsns: Range<u64>) -> impl Iterator<Item = &[u8]> {
        let first = self.0.partition_point(|stretch| stretch.end() <= lsns.start);
        let touches = move |stretch: &&Stretch| stretch.start < lsns.end;
        self.0.range(first..).take_while(touches).map(move |stretch| &stretch.bytes[stretch.part(&lsns)])
    }

    fn join(&self, lsns: &Range<u64>) -> Bytes {
        self.parts(lsns.clone()).collect::<Vec<_>>().concat().into()
    }

    /// The bytes of a header; `None` where not all of it is there.
    fn header(&self, lsn: u64) -> Option<[u8; HEADER]> {
        let mut bytes = [0; HEADER];
        let mut filled = 0;
        for part in self.parts(lsn..lsn.checked_add(HEADER as u64)?) {
            bytes[filled..filled + part.len()].copy_from_slice(part);
            filled += part.len();
        }
        (filled == HEADER).then_some(bytes)
    }

    /// Whether all of a record is there, and has its checksum.
    fn is_whole(&self, header: &Header) -> bool {
        let body = header.lsn + HEADER as u64;
        let (mut crc, mut len) = (0, 0);
        for part in self.parts(body..body + header.len as u64) {
            crc = crc32c::crc32c_append(crc, part);
            len += part.len();
        }
        len == header.len && self.header(header.lsn).is_some_and(|bytes| record::has_checksum(&bytes, crc))
    }

    /// Lets go of what is before `lsn`.
    fn forget(&mut self, lsn: u64) {
        while self.0.front().is_some_and(|stretch| stretch.end() <= lsn) {
            self.0.pop_front();
        }
    }
}

/// Reads a step.
fn read(source: &RingSource, lsns: Range<u64>) -> Step {
    let mut starts = Vec::new();
    let mut memory = Vec::new();
    let mut at = lsns.start;
    while at < lsns.end {
        let len = STRETCH.min(lsns.end - at);
        starts.push(at);
        memory.push(AlignedBuf::new(usize::try_from(len).unwrap_or(0)));
        at += len;
    }
    let (upto, failed) = source.read_all(lsns.start, memory.iter_mut().map(|part| &mut **part));
    let mut stretches = Vec::new();
    for (start, mut part) in starts.into_iter().zip(memory) {
        let good = usize::try_from(upto.saturating_sub(start)).unwrap_or(usize::MAX).min(part.len());
        if good > 0 {
            part.set_len(good);
            stretches.push(Stretch { start, bytes: Bytes::from_owner(Read(part)) });
        }
    }
    Step { stretches, failed }
}
