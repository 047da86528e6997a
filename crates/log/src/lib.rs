//! Logs that give their pages back, and bulk writes that disturb no one.

mod binlog;
mod bulk;
#[cfg(test)]
mod chance;
mod error;
mod layout;
mod mode;
mod record;
mod redo;
#[cfg(test)]
mod testing;

pub use binlog::{BinLog, BinLogOptions, Event, Follower, Position, PositionError, Purge};
pub use bulk::{BulkMode, BulkOptions, BulkReport, BulkWriter};
pub use error::Error;
pub use layout::{Backing, Disk, DiskLayout};
pub use mode::{Chosen, LogMode, Syncs, Use};
pub use redo::{Backpressure, FlushPolicy, Lsn, RedoLog, RedoMetrics, RedoOptions, RedoReader, RedoRecord};
