//! `RocksDB`: a value per page, in batches synced through its write-ahead log. Opening reads the part of the log that
//! is not in tables yet and writes it to one.
//!
//! Fails where `RocksDB` does.

use std::path::Path;

use anyhow::Result;

use super::Engine;
use super::changes::{BODY, Load};
use super::peer::{Peer, engine};
use crate::commit::rocksdb::Values;
use crate::data::MIB;

/// The engine.
pub(super) const ENGINE: Engine = engine::<Values>("RocksDB, synced WAL", "rocksdb");

/// Bytes of its block cache, which is the store's budget.
const MEMORY: u64 = 256 * MIB;

impl Peer for Values {
    fn open(dir: &Path, _: &Load) -> Result<Self> {
        Self::open(dir, MEMORY)
    }

    fn put(&self, pages: &[u64], bodies: &[u8], durably: bool) -> Result<()> {
        self.put(pages, bodies, durably)
    }

    fn settle(&self) -> Result<()> {
        self.flush()?;
        self.wait_until_idle();
        Ok(())
    }

    fn get(&self, page: u64) -> Result<Vec<u8>> {
        let mut body = vec![0; BODY];
        self.get(page, &mut body)?;
        Ok(body)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_was_committed_is_recovered_in_each_round() {
        super::super::peer::recovers_what_was_committed_in_each_round::<super::Values>();
    }
}
