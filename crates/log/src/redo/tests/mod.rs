//! What a redo log promises: in plain use, with wrong input, when the disk fails, and after crashes.

mod crashes;
mod faults;
mod residency;
mod story;
mod world;

use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{AlignedBuf, IoFile, SimDisk};

use super::buffer::Buffer;
use super::ring::Geometry;
use super::{RedoLog, RedoOptions, RedoRecord};
use crate::record::{BLOCK, BLOCK_LEN};

/// The smallest ring, of four files, with the smallest buffer.
fn small(disk: &SimDisk) -> RedoOptions {
    RedoLog::options().files(4).file_bytes(16 << 10).buffer_bytes(32 << 10).io(Arc::new(disk.clone()))
}

fn dir() -> &'static Path {
    "/redo".as_ref()
}

/// All that the log has.
fn all(log: &RedoLog) -> Vec<RedoRecord> {
    log.read_from(log.checkpoint_lsn()).unwrap().map(Result::unwrap).collect()
}

/// The bug of [`super::planted::Planted::AppendIntoTornBlock`]: the block in which the log ended is filled as it was.
pub(super) fn go_on_in_block(buffer: &Buffer, files: &[Arc<dyn IoFile>], geometry: Geometry, end: u64) {
    let mut block = AlignedBuf::new(BLOCK_LEN);
    let (file, offset) = geometry.place(end - end % BLOCK);
    files[file].read_at(offset, &mut block).unwrap();
    if let Some(span) = buffer.reserve_beyond_limit(end % BLOCK) {
        let len = usize::try_from(end % BLOCK).unwrap();
        buffer.fill(span, [&block[..len], &[]]);
    }
}
