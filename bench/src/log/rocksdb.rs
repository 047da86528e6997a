//! `RocksDB`'s write-ahead log: synced puts.
//!
//! A put goes into the memtable, too, which is part of this log's cost. The memtable is so large
//! that it is never flushed. Fails where `RocksDB` does, with its message.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::{LogKind, MeasuredLog};
use crate::rocksdb::RocksDbValues;

/// The subject.
pub(super) const ROCKSDB_LOG: LogKind = LogKind {
    name: "RocksDB's log",
    make: |dir, _| {
        Ok(Box::new(RocksDbWal {
            values: RocksDbValues::open(dir, 0, Some(MEMTABLE_BYTES))?,
            next: AtomicU64::new(0),
        }))
    },
    check: None,
};

/// Bytes of the memtable: more than a sample writes.
const MEMTABLE_BYTES: u64 = 4 << 30;

/// A database of which only the log matters.
struct RocksDbWal {
    values: RocksDbValues,
    next: AtomicU64,
}

impl MeasuredLog for RocksDbWal {
    fn append(&self, body: &[u8], sync: bool) -> Result<()> {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        self.values.put(&[key], body, sync)
    }
}
