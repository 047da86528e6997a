//! The journal in memory, while a log is opened: read once, with many requests in flight, and
//! verified on all processors.
//!
//! It is read in steps, ahead of the reader that iterates over the records. A step is many pieces,
//! all requested from the disk at once. After a step has been read, its headers are followed from
//! record to record. If they lead past it, the next steps are begun on threads. Meanwhile the
//! checksums of these records are verified, in parallel if there are processors left for that.
//!
//! Invariants:
//! 1. The chunks in memory are contiguous: from an LSN that the reader has not passed, up to
//!    `read`.
//! 2. From the start of `checked` to its end the records follow each other under `salt`, and each
//!    of them is whole. The reader does not verify them again; only the reader interprets them.
//! 3. Only a few steps are read ahead of the reader's position, and nothing at or past its limit.
//!
//! Fails as the disk does, if the reader needs unreadable bytes. A failed read-ahead that is not
//! needed is not an error.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};

use super::chunks::{CHUNK_BYTES, Chunk, Chunks};
use super::lsn::Lsn;
use super::mapping::Mapping;
use super::ring::{RingRead, RingSource};
use crate::Error;
use crate::convert::to_usize;
use crate::record::{BLOCK, LoadedBytes, LogSource, RECORD_HEADER_BYTES, RecordHeader, UnreadableBlocks};
use bytes::Bytes;

/// Maximum bytes of the first step: as many pieces as a wide disk serves at once.
const FIRST_STEP_BYTES_MAX: u64 = 32 << 20;
/// Minimum bytes of the first step.
const FIRST_STEP_BYTES_MIN: u64 = 2 << 20;
/// Bytes of each further step. Larger steps would also read more useless bytes past the end.
const READ_STEP_BYTES: u64 = 16 << 20;
/// Steps in flight while another is processed: together as many pieces as the first step.
const STEPS_AHEAD: usize = 2;
/// Bytes of records that one processor verifies at a time.
const VERIFY_SHARE_BYTES: u64 = 1 << 20;

/// A record that was in the log when it was opened; from
/// [`RedoOptions::recover`](crate::RedoOptions::recover).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveredRecord {
    /// The start of the record.
    pub lsn: Lsn,
    /// The end of the record, as returned by its append.
    pub end: Lsn,
    /// The body as it was appended. It is a part of the memory that the log was read into, unless
    /// the record lies in two chunks of that memory. Memory that nobody keeps is reused for
    /// reading.
    pub body: Bytes,
}

impl RecoveredRecord {
    /// Returns the position of its body in the log.
    pub fn body_lsn(&self) -> Lsn {
        self.lsn + RECORD_HEADER_BYTES as u64
    }
}

/// The result of a step.
#[derive(Debug)]
struct StepResult {
    chunks: Vec<Chunk>,
    /// The error, if it did not read everything.
    failed: Option<Error>,
    unreadable: UnreadableBlocks,
}

/// The journal, as a reader goes through it.
#[derive(Debug)]
pub(super) struct Journal {
    source: Arc<RingSource>,
    has_threads: bool,
    held: Chunks,
    /// A copy of the last requested range that lies in several chunks.
    joined: Option<Chunk>,
    /// Everything before this was read.
    read: u64,
    /// The error after which no more can be read.
    failed: Option<Error>,
    /// Unreadable blocks, replaced by zeros.
    unreadable: UnreadableBlocks,
    /// The steps in flight, in order.
    coming: VecDeque<JoinHandle<StepResult>>,
    /// The end of the last step in flight.
    asked: u64,
    /// Bytes of the next step.
    step: u64,
    /// Bytes of the steps behind the next one.
    further: u64,
    checked: Range<u64>,
    salt: u32,
    /// Threads that verify, including the caller's.
    verifiers: usize,
}

impl Journal {
    /// Creates a journal from the block of `lsn` on, of which `likely` bytes will probably be
    /// needed. Without threads the caller does everything.
    pub(super) fn new(source: RingSource, lsn: u64, likely: u64, has_threads: bool) -> Self {
        Self {
            source: Arc::new(source),
            has_threads,
            held: Chunks::default(),
            joined: None,
            read: lsn - lsn % BLOCK,
            failed: None,
            unreadable: UnreadableBlocks::default(),
            coming: VecDeque::new(),
            asked: lsn - lsn % BLOCK,
            step: likely.clamp(FIRST_STEP_BYTES_MIN, FIRST_STEP_BYTES_MAX).next_multiple_of(BLOCK),
            further: READ_STEP_BYTES,
            checked: 0..0,
            salt: 0,
            // One processor is left to the threads that read. (Queried once: each query reads
            // control groups.)
            verifiers: if has_threads {
                std::thread::available_parallelism().map_or(1, |all| all.get().saturating_sub(1))
            } else {
                1
            },
        }
    }

    /// Returns the bytes from `lsn` on, which were loaded: a part of the memory.
    pub(super) fn bytes(&mut self, lsn: u64, len: usize) -> Option<Bytes> {
        let lsns = lsn..lsn.checked_add(len as u64)?;
        let joined = self.joined.as_ref().filter(|chunk| chunk.has(&lsns));
        self.held.share(&lsns).or_else(|| joined.map(|chunk| chunk.to_bytes(&lsns)))
    }

    /// Returns the chunk that holds all of this range.
    fn chunk(&self, lsns: &Range<u64>) -> Option<&Chunk> {
        self.held.one_with(lsns).or_else(|| self.joined.as_ref().filter(|chunk| chunk.has(lsns)))
    }

    /// Returns the range of the next step, and counts it as requested.
    fn next_step(&mut self, limit: u64) -> Range<u64> {
        let step = std::mem::replace(&mut self.step, self.further);
        let end = limit.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
        let lsns = self.asked..(self.asked + step).min(end).max(self.asked);
        self.asked = lsns.end;
        lsns
    }

    /// Adds the result of one step.
    fn read_on(&mut self, limit: u64) {
        let step = if let Some(coming) = self.coming.pop_front() {
            coming.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        } else {
            let lsns = self.next_step(limit);
            let memory = self.held.take_spare(chunks(&lsns));
            read(&self.source, lsns, memory)
        };
        self.read = step.chunks.last().map_or(self.read, Chunk::end);
        self.held.extend(step.chunks);
        self.unreadable.extend(step.unreadable);
        self.failed = step.failed;
    }

    /// Starts reading the next steps in the background.
    fn read_ahead(&mut self, limit: u64) {
        while self.has_threads && self.coming.len() < STEPS_AHEAD && self.failed.is_none() {
            let asked = self.asked;
            let lsns = self.next_step(limit);
            if lsns.is_empty() {
                return;
            }
            let source = Arc::clone(&self.source);
            let memory = self.held.take_spare(chunks(&lsns));
            let work = move || read(&source, lsns, memory);
            let Ok(coming) = Builder::new().name("log_reader".to_owned()).spawn(work) else {
                // Without a thread the step is read when it is needed.
                self.asked = asked;
                return;
            };
            self.coming.push_back(coming);
        }
    }

    /// Returns the records in memory that follow each other from `lsn` on by their headers, and
    /// whether they lead past the memory.
    fn follow(&self, lsn: u64, salt: u32, limit: u64) -> (Vec<RecordHeader>, bool) {
        let mut records = Vec::new();
        let mut at = lsn;
        loop {
            if at + RECORD_HEADER_BYTES as u64 > self.read {
                return (records, at < limit);
            }
            let header = self.held.header(at).and_then(|bytes| RecordHeader::decode(&bytes, at, salt));
            let Some(header) = header else {
                return (records, false);
            };
            match header.next() {
                Some(next) if next <= self.read => at = next,
                next => return (records, next.is_some_and(|next| next <= limit)),
            }
            records.push(header);
        }
    }

    /// Returns the position of the first damaged record, or the end of the records.
    fn verify(&self, records: &[RecordHeader]) -> u64 {
        let mut shares = Vec::new();
        let mut rest = records;
        while let Some(first) = rest.first() {
            let behind = rest.iter().position(|header| header.lsn - first.lsn >= VERIFY_SHARE_BYTES);
            let (share, others) = rest.split_at(behind.unwrap_or(rest.len()));
            shares.push(share);
            rest = others;
        }
        let end = records.last().map_or(0, |last| last.lsn + last.size());
        let (good_upto, next) = (AtomicU64::new(end), AtomicUsize::new(0));
        let work = || {
            while let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
                if let Some(bad) = share.iter().find(|header| !self.held.is_whole(header)) {
                    good_upto.fetch_min(bad.lsn, Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.verifiers.min(shares.len()) {
                // The threads that could be started do all the work.
                let _ = Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        good_upto.into_inner()
    }
}

impl LoadedBytes for Journal {
    fn load(&mut self, lsn: u64, len: usize, limit: u64) -> Result<(), Error> {
        self.held.forget(lsn);
        let lsns = lsn..lsn.saturating_add(len as u64).min(limit);
        while self.read < lsns.end {
            if let Some(error) = &self.failed {
                return Err(error.clone());
            }
            self.read_on(limit);
        }
        if !lsns.is_empty() && self.chunk(&lsns).is_none() {
            self.joined = Some(self.held.join(&lsns));
        }
        Ok(())
    }

    fn get(&self, lsn: u64, len: usize) -> Option<&[u8]> {
        let lsns = lsn..lsn.checked_add(len as u64)?;
        Some(self.chunk(&lsns)?.part(&lsns))
    }

    fn look_ahead(&mut self, lsn: u64, salt: u32, limit: u64) -> Result<(), Error> {
        if self.salt == salt && self.checked.contains(&lsn) {
            return Ok(());
        }
        self.load(lsn, RECORD_HEADER_BYTES, limit)?;
        let first =
            self.get(lsn, RECORD_HEADER_BYTES).and_then(|bytes| RecordHeader::decode(bytes, lsn, salt));
        if let Some(header) = first
            && header.next().is_some_and(|next| next <= limit)
        {
            self.load(lsn, RECORD_HEADER_BYTES + header.len, limit)?;
        }
        let (records, leads_out) = self.follow(lsn, salt, limit);
        if leads_out {
            self.read_ahead(limit);
        }
        self.checked = lsn..self.verify(&records);
        self.salt = salt;
        Ok(())
    }

    fn is_whole(&self, header: &RecordHeader) -> bool {
        (self.salt == header.salt && self.checked.contains(&header.lsn)) || self.held.is_whole(header)
    }

    fn unreadable(&self, lsns: &Range<u64>) -> Option<Error> {
        self.unreadable.within(lsns)
    }

    fn end(&self) -> u64 {
        self.source.end()
    }

    fn locate(&self, lsn: u64) -> (PathBuf, u64) {
        self.source.locate(lsn)
    }
}

impl Drop for Journal {
    /// Ensures that nothing reads the files after this.
    fn drop(&mut self) {
        for coming in self.coming.drain(..) {
            // Neither its bytes nor its error are needed.
            let _ = coming.join();
        }
    }
}

/// Returns the number of whole chunks of a step.
fn chunks(lsns: &Range<u64>) -> usize {
    to_usize(lsns.end - lsns.start) / CHUNK_BYTES
}

/// Reads a step into this memory, and allocates more if it is not enough.
fn read(source: &RingSource, lsns: Range<u64>, mut memory: Vec<Mapping>) -> StepResult {
    let len = to_usize(lsns.end - lsns.start);
    let last = len % CHUNK_BYTES;
    memory.resize_with(len / CHUNK_BYTES, || Mapping::new(CHUNK_BYTES));
    memory.extend((last > 0).then(|| Mapping::new(last)));
    memory.iter_mut().for_each(Mapping::touch);
    let RingRead { upto, failed, unreadable } =
        source.read_all(lsns.start, memory.iter_mut().map(|map| &mut **map));
    let starts = (lsns.start..upto).step_by(CHUNK_BYTES);
    let chunk = |(start, map): (u64, Mapping)| {
        let len = to_usize((upto - start).min(map.len() as u64));
        Chunk::read(start, map, len)
    };
    StepResult { chunks: starts.zip(memory).map(chunk).collect(), failed, unreadable }
}

#[cfg(test)]
mod tests {
    use pagekeeper_io::{Access, Io};
    use pagekeeper_simdisk::{Damage, SimDisk};
    use proptest::prelude::*;

    use super::super::ring::Geometry;
    use super::*;
    use crate::record::{EpochAt, RecordKind, RecordReader, encode, encode_padding};

    /// The entries, and the outcome: the end and its salt, or the error.
    type Found = (Vec<(u64, u64, Vec<u8>)>, Result<(u64, u32), Error>);

    fn all<R: LoadedBytes>(mut reader: RecordReader<R>) -> Found {
        let mut entries = Vec::new();
        loop {
            match reader.next() {
                Ok(Some(entry)) => entries.push((entry.lsn, entry.next, entry.body.to_vec())),
                Ok(None) => return (entries, Ok((reader.lsn(), reader.salt()))),
                Err(error) => return (entries, Err(error)),
            }
        }
    }

    proptest! {
        /// Reading through a buffer and reading ahead give the same result, on logs with holes,
        /// epochs, damage and unreadable blocks.
        #[test]
        fn read_ahead_agrees_with_buffered_reading(
            steps in prop::collection::vec((0_usize..20_000, 0_u8..8, 0_u64..60_000), 1..30),
            damage in prop::collection::vec(0_usize..200_000, 0..3),
            longest in prop::option::of(1_u64..20),
            bad in prop::option::of(0_u64..48),
            known in 0_usize..30,
            (first, further) in (1_u64..30, 1_u64..8),
        ) {
            let geometry = Geometry { file_bytes: 64 << 10, files: 3 };
            let mut bytes = Vec::new();
            let mut salt = 1;
            let mut epochs = Vec::new();
            for (len, what, behind) in &steps {
                let lsn = bytes.len() as u64;
                bytes.extend(encode(RecordKind::Data, &vec![*what; *len], lsn, salt, lsn.saturating_sub(behind * 8)));
                let lsn = bytes.len() as u64;
                match what {
                    0..3 => bytes.extend(encode_padding(lsn, salt, lsn.saturating_sub(behind * 8))),
                    3 => {
                        salt += 1;
                        let epoch = EpochAt { previous_end: lsn, salt };
                        bytes.resize(usize::try_from(epoch.start()).unwrap(), 0xee);
                        epochs.push(epoch);
                    }
                    _ => {}
                }
            }
            bytes.resize(usize::try_from(geometry.capacity()).unwrap(), 0);
            for at in damage {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1;
                }
            }
            let disk = SimDisk::new();
            let files: Arc<[_]> = bytes
                .chunks(64 << 10)
                .enumerate()
                .map(|(index, bytes)| {
                    let path = format!("/redo.{index:03}");
                    disk.create(&path, bytes).unwrap();
                    disk.open(path.as_ref(), Access::Direct).unwrap()
                })
                .collect();
            if let Some(block) = bad {
                let path = format!("/redo.{:03}", block / 16);
                let at = block % 16 * BLOCK;
                disk.damage(&path, &Damage::Unreadable(at..at + 1)).unwrap();
            }
            let io: Arc<dyn Io> = Arc::new(disk);
            let source = || RingSource::new(Arc::clone(&io), geometry, Arc::clone(&files), geometry.capacity());
            let longest = longest.map_or(u64::MAX, |blocks| blocks * BLOCK);
            let epochs = || epochs.iter().copied().take(known);
            let expected = all(RecordReader::new(source(), 0, 1).with_longest(longest).with_epochs(epochs()));
            for has_threads in [false, true] {
                let whole = Journal::new(source(), 0, 0, has_threads);
                let mut steps = Journal::new(source(), 0, 0, has_threads);
                (steps.step, steps.further) = (first * BLOCK, further * BLOCK);
                for journal in [whole, steps] {
                    let reader = RecordReader::over(journal, 0, 1);
                    prop_assert_eq!(&all(reader.with_longest(longest).with_epochs(epochs())), &expected);
                }
            }
        }
    }
}
