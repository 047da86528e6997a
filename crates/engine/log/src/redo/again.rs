//! Reads parts of the log a second time, by where they stand: for who was given bodies by a recovery and kept their places.
//!
//! Places are read in the order of the log, by steps of as many bytes as may be read at once.
//!
//! Invariants:
//! 1. What is given stood in the log all the while it was read. Nothing is verified: who keeps a place keeps a checksum.
//! 2. What is given keeps no more memory than its bytes and a seventh part more. Where more than that was read beside them they are copied.
//!
//! Fails as the disk does, and where a place is not in the log any more.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::core::Core;
use super::mapping::Mapping;
use super::ring::Lsn;
use crate::Error;
use crate::convert::to_usize;
use crate::record::BLOCK;

/// Bytes between two places for which it takes less to read them than to ask twice.
const NEAR: u64 = 16 << 10;

/// Whole blocks with one place or several.
#[derive(Debug)]
struct Part {
    lsns: Range<Lsn>,
    /// Where it stands in memory.
    offset: usize,
}

/// What is read at once.
#[derive(Debug, Default)]
struct Step {
    /// In the order of the log.
    parts: Vec<Part>,
    /// Bytes of all parts.
    len: usize,
    /// Which places are in them, by where they begin.
    places: Vec<usize>,
}

/// What stands at these places, in their order; no more than `at_once` bytes are read at a time, but for a place that is longer.
pub(super) fn read(core: &Arc<Core>, places: &[Range<Lsn>], at_once: usize) -> Result<Vec<Bytes>, Error> {
    let (from, upto) = (core.checkpoint(), core.durable());
    if let Some(place) = places.iter().find(|place| place.start < from || place.end > upto) {
        return Err(Error::NotInLog { lsn: place.start, from, upto });
    }
    let mut found = vec![Bytes::new(); places.len()];
    for step in steps(places, at_once) {
        let memory = step.read(core, upto)?;
        step.give(places, memory, &mut found);
    }
    Ok(found)
}

impl Step {
    /// Bytes that there are more to read with these blocks, which begin behind all others or within the last ones.
    fn more(&self, blocks: &Range<Lsn>) -> usize {
        let from = match self.parts.last() {
            Some(last) if blocks.start <= last.lsns.end + NEAR => last.lsns.end,
            _ => blocks.start,
        };
        to_usize(blocks.end.saturating_sub(from))
    }

    fn add(&mut self, index: usize, blocks: Range<Lsn>) {
        let more = self.more(&blocks);
        match self.parts.last_mut() {
            Some(last) if blocks.start <= last.lsns.end + NEAR => {
                last.lsns.end = last.lsns.end.max(blocks.end);
            }
            _ => self.parts.push(Part { lsns: blocks, offset: self.len }),
        }
        self.len += more;
        self.places.push(index);
    }

    fn read(&self, core: &Arc<Core>, upto: Lsn) -> Result<Mapping, Error> {
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
        // After a wraparound the same bytes are written only after they were reserved.
        let first = self.parts.first().map_or(upto, |part| part.lsns.start);
        if core.buffer.reserved() > first + core.config.geometry.capacity() {
            return Err(Error::Overtaken { lsn: first });
        }
        Ok(memory)
    }

    /// Gives each place what stands there in what was read.
    fn give(&self, places: &[Range<Lsn>], memory: Mapping, found: &mut [Bytes]) {
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

    /// Where a place stands in memory.
    fn offsets(&self, place: &Range<Lsn>) -> Range<usize> {
        let part = &self.parts[self.parts.partition_point(|part| part.lsns.end <= place.start)];
        let offset = part.offset + to_usize(place.start - part.lsns.start);
        offset..offset + len(place)
    }
}

fn len(place: &Range<Lsn>) -> usize {
    to_usize(place.end - place.start)
}

/// What has to be read for these places, in the order of the log.
fn steps(places: &[Range<Lsn>], at_once: usize) -> Vec<Step> {
    let mut sorted: Vec<usize> = (0..places.len()).filter(|index| !places[*index].is_empty()).collect();
    sorted.sort_unstable_by_key(|index| places[*index].start);
    let mut steps: Vec<Step> = Vec::new();
    for index in sorted {
        let place = &places[index];
        let blocks = place.start - place.start % BLOCK..place.end.next_multiple_of(BLOCK);
        if steps.last().is_none_or(|step| step.len + step.more(&blocks) > at_once) {
            steps.push(Step::default());
        }
        if let Some(step) = steps.last_mut() {
            step.add(index, blocks);
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use pagekeeper_io::SimDisk;

    use super::super::tests::{dir, small};
    use super::*;

    /// Between the look at where the log begins and the read.
    #[test]
    fn what_is_written_over_meanwhile_is_not_given() {
        let disk = SimDisk::new();
        let log = small(&disk).file_bytes(64 << 10).without_threads().create(dir()).unwrap();
        log.wait_flushed(log.append(&[7; 100]).unwrap()).unwrap();
        let places = std::slice::from_ref(&(30..40));
        let steps = steps(places, 4096);
        let mut found = [Bytes::new()];
        steps[0].give(places, steps[0].read(&log.core, log.durable_lsn()).unwrap(), &mut found);
        assert_eq!(found[0], vec![7; 10]);
        let capacity = log.core.config.geometry.capacity();
        while log.end() < capacity + 4096 {
            let end = log.append(&[8; 3000]).unwrap();
            log.wait_flushed(end).unwrap();
            log.checkpoint(end).unwrap();
        }
        let error = steps[0].read(&log.core, log.durable_lsn()).unwrap_err();
        assert_eq!(error, Error::Overtaken { lsn: 0 });
    }

    #[test]
    fn no_step_reads_more_than_it_may_but_for_a_place_that_is_longer() {
        let sparse = |gap: u64| (0..1000).map(|n| n * gap + 100..n * gap + 108).collect::<Vec<_>>();
        // Blocks of their own, near ones and far ones.
        for (gap, len) in [(4096, 4096 * 1000), (16 << 10, (999 << 14) + 4096), (32 << 10, 4096 * 1000)] {
            let mut places = sparse(gap);
            for at_once in [4096, 64 << 10, 1 << 20, usize::MAX] {
                let steps = steps(&places, at_once);
                assert!(steps.iter().all(|step| step.len <= at_once));
                let read: usize = steps.iter().map(|step| step.len).sum();
                assert!(read <= len && (at_once < usize::MAX || (read, steps.len()) == (len, 1)));
                // Two in a row would have been too much.
                let narrow = |pair: &[Step]| pair[0].len + pair[1].len <= at_once.saturating_sub(20 << 10);
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
