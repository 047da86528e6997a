//! Reads parts of the log a second time, by their LSNs, for callers that kept the positions of
//! recovered bodies.
//!
//! Places are read in the order of the log, in steps of as many bytes as may be read at once.
//!
//! Invariants:
//! 1. The returned bytes stood in the log during the whole read. Nothing is verified: a caller that
//!    keeps a place keeps a checksum.
//! 2. The returned bytes keep no more memory than their size and a seventh more. If more than that
//!    was read beside them, they are copied.
//!
//! Fails as the disk does, and if a place is no longer in the log.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::core::Core;
use super::mapping::Mapping;
use crate::convert::to_usize;
use crate::record::BLOCK;
use crate::{Error, Lsn};

/// Up to this gap in bytes, one read over it is cheaper than two requests.
const NEAR_GAP_BYTES: u64 = 16 << 10;

/// Whole blocks that hold one or more places.
#[derive(Debug)]
struct BlockRun {
    lsns: Range<u64>,
    /// The offset of the blocks in memory.
    offset: usize,
}

/// The parts that are read at once.
#[derive(Debug, Default)]
struct ReadStep {
    /// The parts in the order of the log.
    parts: Vec<BlockRun>,
    /// Bytes of all parts.
    len: usize,
    /// The indices of the places in the parts, in the order of their starts.
    places: Vec<usize>,
}

/// Reads these places, in their order. At most `at_once` bytes are read at a time, unless one place
/// is longer.
pub(super) fn read(core: &Arc<Core>, places: &[Range<u64>], at_once: usize) -> Result<Vec<Bytes>, Error> {
    let (from, upto) = (core.checkpoint(), core.durable());
    if let Some(place) = places.iter().find(|place| place.start < from || place.end > upto) {
        return Err(Error::NotInLog {
            lsn: Lsn::new(place.start),
            from: Lsn::new(from),
            upto: Lsn::new(upto),
        });
    }
    let mut found = vec![Bytes::new(); places.len()];
    for step in steps(places, at_once) {
        let memory = step.read(core, upto)?;
        step.give(places, memory, &mut found);
    }
    Ok(found)
}

impl ReadStep {
    /// Returns the additional bytes to read for these blocks, which begin behind all others or
    /// within the last ones.
    fn more(&self, blocks: &Range<u64>) -> usize {
        let from = match self.parts.last() {
            Some(last) if blocks.start <= last.lsns.end + NEAR_GAP_BYTES => last.lsns.end,
            _ => blocks.start,
        };
        to_usize(blocks.end.saturating_sub(from))
    }

    fn add(&mut self, index: usize, blocks: Range<u64>) {
        let more = self.more(&blocks);
        match self.parts.last_mut() {
            Some(last) if blocks.start <= last.lsns.end + NEAR_GAP_BYTES => {
                last.lsns.end = last.lsns.end.max(blocks.end);
            }
            _ => self.parts.push(BlockRun { lsns: blocks, offset: self.len }),
        }
        self.len += more;
        self.places.push(index);
    }

    fn read(&self, core: &Arc<Core>, upto: u64) -> Result<Mapping, Error> {
        let mut memory = Mapping::new(self.len);
        memory.touch();
        let mut rest = &mut memory[..];
        let rooms = self.parts.iter().map(|part| {
            let (room, behind) =
                std::mem::take(&mut rest).split_at_mut(to_usize(part.lsns.end - part.lsns.start));
            rest = behind;
            (part.lsns.start, room)
        });
        if let Some((_, error)) = core.source(upto).read_parts(rooms) {
            return Err(error);
        }
        // After a wraparound these bytes are overwritten only after they were reserved.
        let first = self.parts.first().map_or(upto, |part| part.lsns.start);
        if core.buffer.reserved() > first + core.config.geometry.capacity() {
            return Err(Error::Overtaken { lsn: Lsn::new(first) });
        }
        Ok(memory)
    }

    /// Gives each place its part of the bytes that were read.
    fn give(&self, places: &[Range<u64>], memory: Mapping, found: &mut [Bytes]) {
        let wanted = self.places.iter().map(|index| len(&places[*index])).sum::<usize>();
        if self.len <= wanted + wanted / 7 {
            let memory = Bytes::from_owner(memory);
            for index in &self.places {
                found[*index] = memory.slice(self.offsets(&places[*index]));
            }
            return;
        }
        let mut copied = Vec::with_capacity(wanted);
        for index in &self.places {
            copied.extend_from_slice(&memory[self.offsets(&places[*index])]);
        }
        let mut copied = Bytes::from(copied);
        for index in &self.places {
            found[*index] = copied.split_to(len(&places[*index]));
        }
    }

    /// Returns the offsets of a place in memory.
    fn offsets(&self, place: &Range<u64>) -> Range<usize> {
        let part = &self.parts[self.parts.partition_point(|part| part.lsns.end <= place.start)];
        let offset = part.offset + to_usize(place.start - part.lsns.start);
        offset..offset + len(place)
    }
}

fn len(place: &Range<u64>) -> usize {
    to_usize(place.end - place.start)
}

/// Returns the reads for these places, in the order of the log.
fn steps(places: &[Range<u64>], at_once: usize) -> Vec<ReadStep> {
    let mut sorted: Vec<usize> = (0..places.len()).filter(|index| !places[*index].is_empty()).collect();
    sorted.sort_unstable_by_key(|index| places[*index].start);
    let mut steps: Vec<ReadStep> = Vec::new();
    for index in sorted {
        let place = &places[index];
        let blocks = place.start - place.start % BLOCK..place.end.next_multiple_of(BLOCK);
        if steps.last().is_none_or(|step| step.len + step.more(&blocks) > at_once) {
            steps.push(ReadStep::default());
        }
        if let Some(step) = steps.last_mut() {
            step.add(index, blocks);
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use pagekeeper_simdisk::SimDisk;

    use super::super::tests::{dir, small};
    use super::*;

    /// Overwrites the log between the check of its start and the read.
    #[test]
    fn overwritten_bytes_are_not_returned() {
        let disk = SimDisk::new();
        let log = small(&disk).file_bytes(64 << 10).without_threads().create(dir()).unwrap();
        log.wait_flushed(log.append(&[7; 100]).unwrap()).unwrap();
        let places = std::slice::from_ref(&(30..40));
        let steps = steps(places, 4096);
        let mut found = [Bytes::new()];
        steps[0].give(places, steps[0].read(&log.core, log.durable_lsn().get()).unwrap(), &mut found);
        assert_eq!(found[0], vec![7; 10]);
        let capacity = log.core.config.geometry.capacity();
        while log.end() < Lsn::new(capacity + 4096) {
            let end = log.append(&[8; 3000]).unwrap();
            log.wait_flushed(end).unwrap();
            log.checkpoint(end).unwrap();
        }
        let error = steps[0].read(&log.core, log.durable_lsn().get()).unwrap_err();
        assert_eq!(error, Error::Overtaken { lsn: Lsn::new(0) });
    }

    #[test]
    fn each_step_stays_within_its_limit_or_reads_one_long_place() {
        let sparse = |gap: u64| (0..1000).map(|n| n * gap + 100..n * gap + 108).collect::<Vec<_>>();
        // Places in separate blocks, near ones and far ones.
        for (gap, len) in [(4096, 4096 * 1000), (16 << 10, (999 << 14) + 4096), (32 << 10, 4096 * 1000)] {
            let mut places = sparse(gap);
            for at_once in [4096, 64 << 10, 1 << 20, usize::MAX] {
                let steps = steps(&places, at_once);
                assert!(steps.iter().all(|step| step.len <= at_once));
                let read: usize = steps.iter().map(|step| step.len).sum();
                assert!(read <= len && (at_once < usize::MAX || (read, steps.len()) == (len, 1)));
                // Two steps in a row would have been too much for one.
                let narrow =
                    |pair: &[ReadStep]| pair[0].len + pair[1].len <= at_once.saturating_sub(20 << 10);
                assert!(!steps.windows(2).any(narrow));
            }
            let long = 1 << 30..(1 << 30) + (1 << 20) + 1;
            places.insert(500, long);
            let steps = steps(&places, 64 << 10);
            let (last, others) = steps.split_last().unwrap();
            assert_eq!((last.len, &last.places[..]), ((1 << 20) + 4096, &[500][..]));
            assert!(others.iter().all(|step| step.len <= 64 << 10));
        }
        assert_eq!(steps(&[5..5, 0..0], 4096).len(), 0);
    }
}
