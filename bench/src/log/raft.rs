//! raft-engine, the log of `TiKV`: batches of one small value, synced.
//!
//! A value goes into its memtable, too, which is part of this log's cost. Batches are too short to
//! be compressed. Fails where raft-engine does.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use raft_engine::{Config, Engine, LogBatch, ReadableSize};

use super::{LogKind, MeasuredLog};

/// The subject.
pub(super) const RAFT_ENGINE_LOG: LogKind =
    LogKind { name: "raft-engine", make: |dir, _| Ok(Box::new(RaftEngine::open(dir)?)), check: None };

/// An engine.
struct RaftEngine {
    engine: Engine,
    next: AtomicU64,
}

impl RaftEngine {
    /// Creates an engine in a directory.
    fn open(dir: &Path) -> Result<Self> {
        let config = Config {
            dir: dir.to_string_lossy().into_owned(),
            // Records stay uncompressed, as in all the other logs.
            batch_compression_threshold: ReadableSize(0),
            ..Config::default()
        };
        let engine = Engine::open(config).context("raft-engine")?;
        Ok(Self { engine, next: AtomicU64::new(0) })
    }
}

impl MeasuredLog for RaftEngine {
    fn append(&self, body: &[u8], sync: bool) -> Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut batch = LogBatch::with_capacity(1);
        // Keys are overwritten, so that the memtable stays small.
        batch.put(number % 64, (number / 64 % 16).to_le_bytes().to_vec(), body.to_vec())?;
        self.engine.write(&mut batch, sync)?;
        Ok(())
    }
}
