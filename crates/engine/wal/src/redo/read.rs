//! Reads the log while it is open.
//!
//! Reads bypass the page cache if possible, with many requests in flight. They go up to the durable
//! end at the creation of the reader, or to the written end if commits don't wait for syncs. They
//! fail if a checkpoint freed the range and it was overwritten.

use std::path::PathBuf;
use std::sync::Arc;

use pagekeeper_io::Process;
use pagekeeper_kernel::mutex::lock;

use super::core::Core;
use super::lsn::Lsn;
use super::options::FlushPolicy;
use super::ring::RingSource;
use crate::Error;
use crate::record::{BufferedSource, LogSource, RecordReader};

/// A record of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedoRecord {
    /// The start of the record.
    pub lsn: Lsn,
    /// The end of the record, as returned by its append. Continue reading from here.
    pub end: Lsn,
    /// The body as it was appended.
    pub body: Vec<u8>,
}

/// Reads the records of a log in order; from [`RedoLog::read_from`](crate::RedoLog::read_from).
/// After an error it has ended.
pub struct RedoReader {
    reader: RecordReader<BufferedSource<LiveSource>>,
    /// The requested LSN and its log; `None` once a record was found there.
    given: Option<(Arc<Core>, u64)>,
    failed: bool,
    process: Process,
}

impl RedoReader {
    pub(super) fn new(core: &Arc<Core>, lsn: u64) -> Result<Self, Error> {
        let end = match core.config.policy {
            FlushPolicy::EachCommit => core.durable(),
            FlushPolicy::Every(_) | FlushPolicy::Os => core.buffer.taken(),
        };
        let from = core.checkpoint();
        if !(from..=end).contains(&lsn) || !lsn.is_multiple_of(8) {
            return Err(Error::NotInLog { lsn: Lsn::new(lsn), from: Lsn::new(from), upto: Lsn::new(end) });
        }
        let (salt, later, end) = {
            let epochs = lock(&core.epoch.epochs);
            // Nothing stands past the old end of the log until the first append.
            let end = epochs.due.map_or(end, |due| end.min(due.previous_end));
            (epochs.salt_at(lsn), epochs.past(lsn), end)
        };
        let ring = core.source(end);
        let source = LiveSource { ring, core: Arc::clone(core) };
        let reader = RecordReader::new(source, lsn, salt).with_epochs(later.into_iter()).until(end);
        let given = (lsn > from).then(|| (Arc::clone(core), lsn));
        Ok(Self { reader, given, failed: false, process: core.process })
    }

    /// Whether the records from the checkpoint on are intact up to `lsn`, and none of them begins
    /// or ends there.
    fn is_no_record(core: &Arc<Core>, lsn: u64) -> bool {
        let from = core.checkpoint();
        if lsn < from {
            // A checkpoint has meanwhile freed the records that would show whether one begins
            // there.
            return false;
        }
        let Ok(before) = Self::new(core, from) else { return false };
        let mut before = before.map_while(Result::ok).skip_while(|record| record.end.get() < lsn);
        before.next().is_some_and(|record| record.lsn.get() != lsn && record.end.get() != lsn)
    }
}

impl Iterator for RedoReader {
    type Item = Result<RedoRecord, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        match self.process.require().map_err(Error::from).and_then(|()| self.reader.next()) {
            Ok(entry) => {
                self.given = None;
                entry.map(|entry| {
                    Ok(RedoRecord {
                        lsn: Lsn::new(entry.lsn),
                        end: Lsn::new(entry.next),
                        body: entry.body.to_vec(),
                    })
                })
            }
            Err(error) => {
                self.failed = true;
                // A wrong LSN of the caller is not damage.
                let wrong = self.given.take().filter(|_| matches!(error, Error::Corrupt { .. }));
                let wrong = wrong.filter(|(core, lsn)| Self::is_no_record(core, *lsn));
                Some(Err(wrong.map_or(error, |(_, lsn)| Error::NotARecord { lsn: Lsn::new(lsn) })))
            }
        }
    }
}

impl std::fmt::Debug for RedoReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { reader, failed, .. } = self;
        f.debug_struct("RedoReader").field("reader", reader).field("failed", failed).finish_non_exhaustive()
    }
}

/// The ring while it is being written to.
struct LiveSource {
    ring: RingSource,
    core: Arc<Core>,
}

impl LogSource for LiveSource {
    fn read(&mut self, lsn: u64, bytes: &mut [u8]) -> Result<usize, Error> {
        let got = self.ring.read(lsn, bytes)?;
        // After a wraparound these bytes are overwritten only after they were reserved.
        if self.core.buffer.reserved() > lsn + self.core.config.geometry.capacity() {
            return Err(Error::Overtaken { lsn: Lsn::new(lsn) });
        }
        Ok(got)
    }

    fn end(&self) -> u64 {
        self.ring.end()
    }

    fn locate(&self, lsn: u64) -> (PathBuf, u64) {
        self.ring.locate(lsn)
    }
}

impl std::fmt::Debug for LiveSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.ring.fmt(f)
    }
}
