//! Moves the checkpoint, up to which the ring may be overwritten.
//!
//! Invariant: the new checkpoint is durable in the control file before anything is appended over
//! the space that it frees. A durable record stands at it before the control file names it.

use std::sync::atomic::Ordering;

use pagekeeper_io::AlignedBuf;
use pagekeeper_kernel::mutex::lock;

use super::control::ControlState;
use super::core::Core;
use super::metrics::count;
use crate::convert::to_usize;
use crate::record::{BLOCK, BLOCK_LEN, LogSource, RECORD_HEADER_BYTES, RecordHeader};
use crate::{Error, Lsn};

impl Core {
    /// Releases everything before `lsn`.
    pub(super) fn move_checkpoint(&self, lsn: u64) -> Result<(), Error> {
        self.check()?;
        let mut control = lock(&self.checkpoint.control);
        let now = control.state().clone();
        let end = self.buffer.reserved();
        if lsn > end {
            return Err(Error::NotInLog {
                lsn: Lsn::new(lsn),
                from: Lsn::new(now.checkpoint),
                upto: Lsn::new(end),
            });
        }
        // Nothing stands past that end until the first append: the salt there is not known yet.
        let lsn = lock(&self.epoch.epochs).due.map_or(lsn, |due| lsn.min(due.previous_end));
        if lsn <= now.checkpoint {
            return Ok(());
        }
        if self.config.read_only {
            return Err(Error::ReadOnly);
        }
        self.wait_durable(lsn)?;
        self.check_is_record(lsn)?;
        let begun = self.epoch.begun.load(Ordering::SeqCst);
        let (salt, later) = {
            let epochs = lock(&self.epoch.epochs);
            (epochs.salt_at(lsn), epochs.past(lsn))
        };
        let settled = if begun { self.durable() } else { now.settled };
        let noted = ControlState { checkpoint: lsn, salt, settled, epochs: later.clone(), ..now };
        self.noting(|| control.write(noted).map_err(|error| self.poison(error)))?;
        {
            let mut epochs = lock(&self.epoch.epochs);
            (epochs.first, epochs.later) = (salt, later);
        }
        self.checkpoint.lsn.store(lsn, Ordering::Release);
        count(&self.counters.checkpoints);
        self.epoch
            .ring_limit
            .fetch_max(lsn - lsn % BLOCK + self.config.geometry.capacity(), Ordering::SeqCst);
        self.raise_limit();
        self.events.room.notify_all();
        Ok(())
    }

    /// Fails unless `lsn` is the start of a record (or of damaged padding), the end of the log, or
    /// the end of an epoch.
    fn check_is_record(&self, lsn: u64) -> Result<(), Error> {
        let salt = {
            let epochs = lock(&self.epoch.epochs);
            let ended = epochs.due.is_some_and(|due| due.previous_end == lsn)
                || epochs.later.iter().any(|epoch| epoch.previous_end == lsn);
            let is_padding = self.config.damaged_paddings.contains(&lsn);
            if ended || is_padding || lsn == self.durable() {
                return Ok(());
            }
            epochs.salt_at(lsn)
        };
        let not_a_record = Error::NotARecord { lsn: Lsn::new(lsn) };
        if !lsn.is_multiple_of(8) {
            return Err(not_a_record);
        }
        let mut source = self.source(self.durable());
        let mut blocks = AlignedBuf::new(2 * BLOCK_LEN);
        let got = source.read(lsn - lsn % BLOCK, &mut blocks)?;
        let at = to_usize(lsn % BLOCK);
        let header = blocks[..got]
            .get(at..at + RECORD_HEADER_BYTES)
            .and_then(|bytes| RecordHeader::decode(bytes, lsn, salt));
        header.map(|_| ()).ok_or(not_a_record)
    }
}
