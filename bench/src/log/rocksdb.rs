//! `RocksDB`'s write-ahead log: synced puts.
//!
//! A put goes into the memtable, too, which is part of this log's cost. The memtable is so large that it is never
//! flushed. Fails where `RocksDB` does, with its message.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::{Kind, Log};
use crate::rocksdb::Values;

/// The subject.
pub(super) const KIND: Kind = Kind {
    name: "RocksDB's log",
    make: |dir, _| {
        Ok(Box::new(Wal { values: Values::open(dir, 0, Some(MEMTABLE))?, next: AtomicU64::new(0) }))
    },
    check: None,
};

/// Bytes of the memtable: more than a sample writes.
const MEMTABLE: u64 = 4 << 30;

/// A database of which only the log matters.
struct Wal {
    values: Values,
    next: AtomicU64,
}

impl Log for Wal {
    fn append(&self, body: &[u8], sync: bool) -> Result<()> {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        self.values.put(&[key], body, sync)
    }
}
