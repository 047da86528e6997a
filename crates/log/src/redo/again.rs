//! Reads parts of the log a second time, by where they stand: for who was given bodies by a recovery and kept their places.
//!
//! Invariant: what is given stood in the log all the while it was read. Nothing is verified: who keeps a place keeps a checksum.
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
struct Part {
    lsns: Range<Lsn>,
    /// Where it stands in memory.
    offset: usize,
}

/// What stands at these places, in their order.
pub(super) fn read(core: &Arc<Core>, places: &[Range<Lsn>]) -> Result<Vec<Bytes>, Error> {
    let (from, upto) = (core.checkpoint(), core.durable());
    if let Some(place) = places.iter().find(|place| place.start < from || place.end > upto) {
        return Err(Error::NotInLog { lsn: place.start, from, upto });
    }
    let (parts, len) = parts(places);
    if len == 0 {
        return Ok(vec![Bytes::new(); places.len()]);
    }
    let mut memory = Mapping::new(len);
    memory.touch();
    let mut rest = &mut memory[..];
    let rooms = parts.iter().map(|part| {
        let (room, behind) =
            std::mem::take(&mut rest).split_at_mut(to_usize(part.lsns.end - part.lsns.start));
        rest = behind;
        (part.lsns.start, room)
    });
    if let Some((_, error)) = core.source(upto).read_parts(rooms) {
        return Err(error);
    }
    // After a wraparound the same bytes are written only after they were reserved.
    let first = parts.first().map_or(upto, |part| part.lsns.start);
    if core.buffer.reserved() > first + core.config.geometry.capacity() {
        return Err(Error::Overtaken { lsn: first });
    }
    let memory = Bytes::from_owner(memory);
    let find = |place: &Range<Lsn>| {
        if place.is_empty() {
            return Bytes::new();
        }
        let part = &parts[parts.partition_point(|part| part.lsns.end <= place.start)];
        let offset = part.offset + to_usize(place.start - part.lsns.start);
        memory.slice(offset..offset + to_usize(place.end - place.start))
    };
    Ok(places.iter().map(find).collect())
}

/// What has to be read for these places, in the order of the log; and how many bytes that is.
fn parts(places: &[Range<Lsn>]) -> (Vec<Part>, usize) {
    let mut sorted: Vec<&Range<Lsn>> = places.iter().filter(|place| !place.is_empty()).collect();
    sorted.sort_unstable_by_key(|place| place.start);
    let mut parts: Vec<Part> = Vec::new();
    let mut len = 0;
    for place in sorted {
        let blocks = place.start - place.start % BLOCK..place.end.next_multiple_of(BLOCK);
        match parts.last_mut() {
            Some(last) if blocks.start <= last.lsns.end + NEAR => {
                len += to_usize(blocks.end.saturating_sub(last.lsns.end));
                last.lsns.end = last.lsns.end.max(blocks.end);
            }
            _ => {
                parts.push(Part { lsns: blocks.clone(), offset: len });
                len += to_usize(blocks.end - blocks.start);
            }
        }
    }
    (parts, len)
}
