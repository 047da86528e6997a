//! The steps before the first append and after the last: the control file records the state of the
//! log.
//!
//! Invariants:
//! 1. Before anything is appended, the control file says durably, in both slots, that the log is in
//!    use, and up to where it is settled. If the log was not closed, it also names the new salt.
//!    Remains of a crash past the end are not records under that salt.
//! 2. A log that is recorded as closed ends where the control file says. Nothing is written to it
//!    before invariant 1 holds again.
//! 3. No record is appended that is longer than the maximum in the control file.
//! 4. Opening without appending changes nothing, unless it is asked to settle the log.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagekeeper_io::{Access, Create, Error as IoError, IoFile};
use pagekeeper_kernel::mutex::lock;

use super::control::{ControlState, EPOCHS_MAX, LogPhase};
use super::core::Core;
use super::own_blocks;
use super::ring::{self, Ring};
use super::salt;
use super::state::{DueChange, Epochs, WritingMode};
use crate::injected_fault::injected_fault;
use crate::mode::honours_durable_writes;
use crate::record::{BLOCK, EpochAt};
use crate::{Error, FileUse, FlushPolicy, LogMode, SyncFrequency};

/// Bytes of the longest record that is allowed from the beginning. Past the end at least this much
/// is searched.
pub(super) const FIRST_LONGEST: u64 = 1 << 20;

impl Core {
    /// Records this size as a possible record size, before the first such record is appended.
    pub(super) fn note_longest(&self, len: u64) -> Result<(), Error> {
        let mut control = lock(&self.checkpoint.control);
        if len <= self.epoch.longest.load(Ordering::Relaxed) {
            return Ok(());
        }
        let longest = len.next_power_of_two();
        if self.epoch.begun.load(Ordering::SeqCst) {
            self.check()?;
            let state = ControlState { longest, ..control.state().clone() };
            self.noting(|| control.write(state).map_err(|error| self.poison_unless_passing(error)))?;
        }
        self.epoch.longest.store(longest, Ordering::Relaxed);
        Ok(())
    }

    /// Returns how the files are written.
    pub(super) fn writing_mode(&self) -> WritingMode {
        *self.write.mode.get_or_init(|| {
            let (config, io) = (&self.config, &*self.io);
            let syncs = if config.policy == FlushPolicy::EachCommit {
                SyncFrequency::EachCommit
            } else {
                SyncFrequency::Seldom
            };
            // If nothing can be tested, for lack of space or permission, the log uses the page
            // cache.
            let chosen = if config.read_only {
                LogMode::Buffered
            } else {
                let chosen = config.asked_mode.choose(io, &config.directory, FileUse::Overwrite, syncs);
                chosen.map_or(LogMode::Buffered, |chosen| chosen.mode)
            };
            let honours_durable = chosen == LogMode::Direct && honours_durable_writes(io, &config.directory);
            WritingMode { mode: chosen, honours_durable }
        })
    }

    /// Begins appending, unless that was done. Returns false if there is no room for another epoch
    /// until the checkpoint moves.
    pub(super) fn begin(&self) -> Result<bool, Error> {
        let mut control = lock(&self.checkpoint.control);
        let mut epochs = lock(&self.epoch.epochs);
        let Some(due) = epochs.due else { return Ok(true) };
        self.check()?;
        let salt_before = self.epoch.salt.load(Ordering::Relaxed);
        let salt =
            if injected_fault!(self.config, SameSalt) { salt_before } else { salt::unlike(salt_before) };
        let now = control.state().clone();
        let Some(next) = self.with_epoch(&epochs, due, salt, now.checkpoint) else { return Ok(false) };
        self.open_ring()?;
        let mut noted = next.later.clone();
        if injected_fault!(self.config, EpochNotNoted) && due.epoch {
            noted.pop();
        }
        let state = ControlState {
            phase: LogPhase::InUse,
            salt: next.first,
            settled: self.config.start - self.config.start % BLOCK,
            longest: self.epoch.longest.load(Ordering::Relaxed),
            epochs: noted,
            ..now
        };
        self.noting(|| control.write(state).map_err(|error| self.poison_unless_passing(error)))?;
        self.epoch.salt.store(next.salt_at(self.config.start), Ordering::Relaxed);
        *epochs = next;
        // Releases the salt to all threads that this store lets in.
        self.epoch.begun.store(true, Ordering::SeqCst);
        self.raise_limit();
        self.events.room.notify_all();
        // The log flusher populates the buffer.
        self.events.to_flush.notify_all();
        Ok(true)
    }

    /// Returns the epochs with the due one; `None` if there are too many. An epoch without records
    /// does not count.
    #[cfg_attr(
        not(any(test, feature = "injected-faults")),
        expect(clippy::unused_self, reason = "tests inject faults")
    )]
    fn with_epoch(&self, epochs: &Epochs, due: DueChange, salt: u32, checkpoint: u64) -> Option<Epochs> {
        let (mut first, mut later) = (epochs.first, epochs.later.clone());
        let epoch = EpochAt { previous_end: due.previous_end, salt };
        let mut is_due = due.epoch;
        if injected_fault!(self.config, NoEpoch) {
            is_due = false;
        }
        if injected_fault!(self.config, AppendIntoTornBlock) {
            is_due = false;
        }
        if is_due {
            if let Some(last) = later.last_mut().filter(|last| last.start() == epoch.start()) {
                last.salt = salt;
            } else if epoch.start() <= checkpoint {
                first = salt;
            } else if later.len() < EPOCHS_MAX {
                later.push(epoch);
            } else {
                return None;
            }
        }
        Some(Epochs { first, later, due: None })
    }

    /// Opens the files for writing, if they are not open. From then on they share no blocks with
    /// other files.
    fn open_ring(&self) -> Result<(), Error> {
        if self.write.ring.get().is_none() {
            let access =
                if self.writing_mode().mode == LogMode::Direct { Access::Direct } else { Access::Buffered };
            let open = |index| {
                let path = self.config.directory.join(ring::name(index));
                let file = self.io.open_writable(&path, access, Create::Never)?;
                own_blocks::unshare(&*file, self.config.geometry.file_bytes)?;
                Ok(file)
            };
            let files: Result<Vec<Arc<dyn IoFile>>, IoError> =
                (0..self.config.geometry.files).map(open).collect();
            let _ = self.write.ring.set(Ring { geometry: self.config.geometry, files: files? });
        }
        Ok(())
    }

    /// Whether the log was not closed when it was opened, and nothing was appended since.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.config.read_only && lock(&self.epoch.epochs).due.is_some_and(|due| due.epoch)
    }

    /// Whether anything may have been appended since the log was opened.
    pub(super) fn has_begun(&self) -> bool {
        self.epoch.begun.load(Ordering::SeqCst)
    }

    /// Records the end of the log, once all of it is durable and nothing more is appended.
    pub(super) fn note_end(&self) -> Result<(), Error> {
        if !self.epoch.begun.swap(false, Ordering::SeqCst) {
            return Ok(());
        }
        let mut control = lock(&self.checkpoint.control);
        let state =
            ControlState { phase: LogPhase::Closed, settled: self.durable(), ..control.state().clone() };
        self.noting(|| control.write(state).map_err(|error| self.poison(error)))
    }

    fn poison_unless_passing(&self, error: Error) -> Error {
        if is_passing(&error) { error } else { self.poison(error) }
    }
}

/// Whether nothing was accepted and nothing lost, so that a later attempt may succeed.
fn is_passing(error: &Error) -> bool {
    let Error::Io(error) = error else { return false };
    let is_sync = matches!(error, IoError::Sync { .. });
    !is_sync
        && error.errno().is_some_and(|errno| {
            matches!(
                errno,
                libc::ENOSPC | libc::EDQUOT | libc::EMFILE | libc::ENFILE | libc::EROFS | libc::EACCES
            )
        })
}
