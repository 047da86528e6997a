//! Logs on simulated disks, and groups to append to them.

use std::sync::Arc;

use pagekeeper_io::Io;
use pagekeeper_simdisk::SimDisk;

use crate::{BinLog, BinLogOptions, Error, Event, Position};

/// The directory of the log on a simulated disk.
pub(super) const DIR: &str = "/binlog";

/// Settings with small segments and a sync for each group.
pub(super) fn options(disk: &SimDisk) -> BinLogOptions {
    BinLog::options().max_segment_bytes(16 << 10).zero_ahead(8 << 10).io(Arc::new(disk.clone()))
}

/// Returns a group that identifies itself: `number` records, the first of `len` bytes.
pub(super) fn group(which: u64, number: usize, len: usize) -> Vec<Vec<u8>> {
    (0..number)
        .map(|at| {
            let mut record = format!("{which}.{at} ").into_bytes();
            let seed = which.wrapping_mul(31).wrapping_add(at as u64);
            let fill = (0_u64..).map(|n| seed.wrapping_add(n).wrapping_mul(0x9e37_79b9).to_le_bytes()[2]);
            let more = (len / (at + 1)).saturating_sub(record.len());
            record.extend(fill.take(more));
            record
        })
        .collect()
}

pub(super) fn append(log: &BinLog, group: &[Vec<u8>]) -> Result<Position, Error> {
    log.append_group(&group.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Returns all groups that can be read without waiting from a position on. Checks each position.
pub(super) fn read_groups(log: &BinLog, from: Position) -> Result<Vec<Vec<Vec<u8>>>, Error> {
    let mut follower = log.follow(from)?;
    let mut groups = Vec::new();
    let mut group = Vec::new();
    let mut last: Option<Event> = None;
    while let Some(event) = follower.try_next()? {
        assert!(event.position < event.next && last.is_none_or(|last| last.next <= event.position));
        assert_eq!(follower.position(), event.next);
        group.push(event.bytes.clone());
        if event.ends_group {
            groups.push(std::mem::take(&mut group));
        }
        last = Some(event);
    }
    assert!(group.is_empty(), "a group without its end");
    Ok(groups)
}

/// Returns the names in the log's directory.
pub(super) fn names(io: &dyn Io) -> Vec<String> {
    io.list(DIR.as_ref()).unwrap().into_iter().map(|name| name.into_string().unwrap()).collect()
}

/// Returns the contents of all files in the log's directory.
pub(super) fn contents(io: &dyn Io) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| {
        let file = io.open(&std::path::Path::new(DIR).join(&name), pagekeeper_io::Access::Buffered).unwrap();
        let mut bytes = vec![0; usize::try_from(file.stat().unwrap().size).unwrap()];
        file.read_at(0, &mut bytes).unwrap();
        (name, bytes)
    };
    names(io).into_iter().map(read).collect()
}
