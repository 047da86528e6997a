//! The redo log and the binlog.
//!
//! The redo log's checkpoint follows half a ring behind, as in an engine that writes its pages
//! meanwhile. So records are freed in order, and the last half is read again at the end. Fails as
//! the logs do.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use pagekeeper_wal::{BinLog, FlushPolicy, Lsn, RedoLog};

use super::{LogKind, LogLoad, MeasuredLog};

/// Files of the ring.
pub(super) const RING_FILES: u32 = 4;
/// Bytes of each file.
pub(super) const RING_FILE_BYTES: u64 = 64 << 20;
/// Bytes of a segment.
pub(super) const SEGMENT_BYTES: u64 = 128 << 20;

/// The redo log with default settings.
pub(super) const REDO_LOG: LogKind = LogKind { name: "redo log", make: make_redo, check: Some(check_redo) };
/// The binlog with default settings.
pub(super) const BINLOG: LogKind = LogKind { name: "binlog", make: make_bin, check: Some(check_bin) };

struct OurRedoLog {
    log: RedoLog,
    /// The next position of the checkpoint.
    checkpoint: AtomicU64,
}

fn make_redo(dir: &Path, load: LogLoad) -> Result<Box<dyn MeasuredLog>> {
    // The flush policy decides how a ring is best written.
    let policy = if load.bytes == 0 { FlushPolicy::EachCommit } else { FlushPolicy::Os };
    let options = RedoLog::options().files(RING_FILES).file_bytes(RING_FILE_BYTES);
    let log = options.flush_policy(policy).create(dir.join("redo"))?;
    let checkpoint = AtomicU64::new(log.checkpoint_lsn().get());
    Ok(Box::new(OurRedoLog { log, checkpoint }))
}

impl MeasuredLog for OurRedoLog {
    fn append(&self, body: &[u8], sync: bool) -> Result<()> {
        let lsn = self.log.append(body)?;
        if sync {
            self.log.sync_upto(lsn)?;
        }
        let half = self.log.capacity() / 2;
        let (last, end) = (self.checkpoint.load(Ordering::Relaxed), lsn.get());
        // One thread advances the checkpoint, by a quarter of the ring at a time, to the end of a
        // record.
        if lsn - self.log.checkpoint_lsn() > half
            && end > last + half / 2
            && self.checkpoint.compare_exchange(last, end, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && last > self.log.checkpoint_lsn().get()
        {
            self.log.checkpoint(Lsn::new(last))?;
        }
        Ok(())
    }

    fn hand_over(&self) -> Result<()> {
        Ok(self.log.wait_flushed(self.log.end())?)
    }
}

fn check_redo(dir: &Path, see: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let log = RedoLog::options().open(dir.join("redo"))?;
    for record in log.read_from(log.checkpoint_lsn())? {
        see(&record?.body)?;
    }
    Ok(())
}

struct OurBinlog {
    log: BinLog,
    synced: bool,
}

fn make_bin(dir: &Path, load: LogLoad) -> Result<Box<dyn MeasuredLog>> {
    let each_group = load.bytes == 0;
    let options = BinLog::options().max_segment_bytes(SEGMENT_BYTES).sync_every(u64::from(each_group));
    let log = options.open(dir.join("binlog"))?;
    Ok(Box::new(OurBinlog { log, synced: each_group }))
}

impl MeasuredLog for OurBinlog {
    fn append(&self, body: &[u8], sync: bool) -> Result<()> {
        self.log.append_group(&[body])?;
        if sync && !self.synced {
            self.log.sync()?;
        }
        Ok(())
    }
}

fn check_bin(dir: &Path, see: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let log = BinLog::options().max_segment_bytes(SEGMENT_BYTES).open(dir.join("binlog"))?;
    let mut follower = log.follow(log.first())?;
    while let Some(event) = follower.try_next()? {
        see(&event.bytes)?;
    }
    Ok(())
}
