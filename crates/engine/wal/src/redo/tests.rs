//! The promises of a redo log: in plain use, with wrong input, when the disk fails, and after
//! crashes.

mod bad_disk;
mod crashes;
mod faults;
mod full_disk;
mod opening;
mod residency;
mod rot;
mod story;
mod world;

use std::path::Path;
use std::sync::Arc;

use pagekeeper_simdisk::SimDisk;

use super::{RedoLog, RedoOptions, RedoRecord};
use crate::record::BLOCK;

/// Returns the settings of the smallest ring, of four files, with the smallest buffer.
pub(super) fn small(disk: &SimDisk) -> RedoOptions {
    RedoLog::options().files(4).file_bytes(16 << 10).buffer_bytes(32 << 10).io(Arc::new(disk.clone()))
}

pub(super) fn dir() -> &'static Path {
    "/redo".as_ref()
}

/// Returns all records of the log.
fn all(log: &RedoLog) -> Vec<RedoRecord> {
    log.read_from(log.checkpoint_lsn()).unwrap().map(Result::unwrap).collect()
}
