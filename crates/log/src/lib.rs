//! Logs that give their pages back, and bulk writes that disturb no one.

mod binlog;
mod bulk;
mod error;
mod layout;
mod mode;
#[allow(dead_code, reason = "the logs that use it are being built")]
mod record;
#[cfg(test)]
mod testing;

pub use binlog::{BinLog, BinLogOptions, Event, Follower, Position, PositionError, Purge};
pub use bulk::{BulkMode, BulkOptions, BulkReport, BulkWriter};
pub use error::Error;
pub use layout::{Backing, Disk, DiskLayout};
pub use mode::{Chosen, LogMode, Syncs, Use};
