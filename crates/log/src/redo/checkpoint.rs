//! Moves the checkpoint, up to which the ring may be overwritten.
//!
//! Invariant: the new checkpoint is durable in the control file before anything is appended over the space that it frees. A durable
//! record stands at it before the control file names it.

use std::sync::atomic::Ordering;

use pagekeeper_io::AlignedBuf;
use pagekeeper_kernel::mutex::lock;

use super::control::ControlState;
use super::core::Core;
use super::metrics::count;
use crate::Error;
use crate::convert::to_usize;
use crate::record::{BLOCK, BLOCK_LEN, HEADER, Header, Source};

impl Core {
    /// Gives up all before `lsn`.
    pub(super) fn move_checkpoint(&self, lsn: u64) -> Result<(), Error> {
        self.check()?;
        let mut control = lock(&self.checkpoint.control);
        let now = control.state();
        if lsn == now.checkpoint {
            return Ok(());
        }
        let end = self.buffer.reserved();
        if !(now.checkpoint..=end).contains(&lsn) {
            return Err(Error::NotInLog { lsn, from: now.checkpoint, upto: end });
        }
        self.wait_durable(lsn)?;
        self.check_is_record(lsn)?;
        let salt = lock(&self.epoch.epochs).salt_at(lsn);
        control.write(ControlState { checkpoint: lsn, salt, ..now }).map_err(|error| self.poison(error))?;
        {
            let mut epochs = lock(&self.epoch.epochs);
            epochs.first = salt;
            epochs.later.retain(|epoch| epoch.start >= lsn);
        }
        self.checkpoint.lsn.store(lsn, Ordering::Release);
        count(&self.counters.checkpoints);
        self.begin_due_epoch(lsn - lsn % BLOCK + self.ring.geometry.capacity())
    }

    /// Fails unless a record begins at `lsn`, or the log ends or an epoch ended there.
    fn check_is_record(&self, lsn: u64) -> Result<(), Error> {
        let salt = {
            let epochs = lock(&self.epoch.epochs);
            let ended = epochs.due == Some(lsn) || epochs.later.iter().any(|epoch| epoch.previous_end == lsn);
            if ended || lsn == self.durable() {
                return Ok(());
            }
            epochs.salt_at(lsn)
        };
        let not_a_record = Error::NotARecord { lsn };
        if !lsn.is_multiple_of(8) {
            return Err(not_a_record);
        }
        let mut source = self.source(self.durable());
        let mut blocks = AlignedBuf::new(2 * BLOCK_LEN);
        let got = source.read(lsn - lsn % BLOCK, &mut blocks)?;
        let at = to_usize(lsn % BLOCK);
        let header = blocks[..got].get(at..at + HEADER).and_then(|bytes| Header::decode(bytes, lsn, salt));
        header.map(|_| ()).ok_or(not_a_record)
    }
}
