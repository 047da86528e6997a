//! The parts of a redo log's shared state, grouped by their protection.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, OnceLock};

use super::control::ControlFile;
use super::event_count::EventCount;
use super::group_commit::GroupCommit;
use super::options::{FlushPolicy, OnBackpressure};
use super::ring::{Geometry, Ring};
use crate::record::EpochAt;
use crate::{Error, LogMode};

/// The settings that are fixed when the log is opened.
pub(super) struct Configuration {
    pub(super) policy: FlushPolicy,
    pub(super) directory: PathBuf,
    pub(super) geometry: Geometry,
    /// The random number that the log got at its creation.
    pub(super) log_id: u64,
    /// The requested mode.
    pub(super) asked_mode: LogMode,
    /// Whether nothing is ever written.
    pub(super) read_only: bool,
    /// Bytes that may be appended and not synced; `u64::MAX` if the log has no bound.
    pub(super) max_unsynced: u64,
    /// The position at which appending began.
    pub(super) start: u64,
    /// The positions of paddings that were damaged at opening.
    pub(super) damaged_paddings: Vec<u64>,
    /// The number of bytes in the buffer at which the writer is woken.
    pub(super) write_threshold: u64,
    /// Whether pages are released at all.
    pub(super) releases: bool,
    /// Whether the log has threads that write and flush.
    pub(super) has_threads: bool,
    pub(super) on_backpressure: Option<OnBackpressure>,
    #[cfg(any(test, feature = "injected-faults"))]
    pub(super) injected_fault: Option<crate::injected_fault::InjectedFault>,
}

/// The state for writing. It is created at the first append, so that a log that is only read needs
/// neither room nor permissions.
#[derive(Default)]
pub(super) struct WriteState {
    /// The way of writing, once it was determined.
    pub(super) mode: OnceLock<WritingMode>,
    /// The files, opened at the first write.
    pub(super) ring: OnceLock<Ring>,
}

/// The way a log is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct WritingMode {
    pub(super) mode: LogMode,
    /// Whether a durable write needs no sync after it.
    pub(super) honours_durable: bool,
}

/// The durable end, and the state of the syncs.
pub(super) struct SyncState {
    /// Everything before this is durable.
    pub(super) durable: AtomicU64,
    /// Has the syncer's lock: its holder leads a group commit.
    pub(super) group_commit: GroupCommit,
    /// Held from before the control file is written until a failure is recorded. No lock is taken
    /// under it.
    pub(super) noting: Mutex<()>,
}

/// The limit up to which the ring may be overwritten.
pub(super) struct CheckpointState {
    pub(super) control: Mutex<ControlFile>,
    /// The checkpoint in the control file.
    pub(super) lsn: AtomicU64,
}

/// The salts, and the limit of the current epoch.
pub(super) struct EpochState {
    /// All epochs since the checkpoint, including that of this opening once it was begun.
    pub(super) epochs: Mutex<Epochs>,
    /// The salt of the current epoch. It changes only before the first record.
    pub(super) salt: AtomicU32,
    /// Whether appending was begun: the control file says that the log is in use, and from where
    /// on.
    pub(super) begun: AtomicBool,
    /// Bytes of the longest record that may be appended before the control file must change. It is
    /// raised only under the lock of `control`.
    pub(super) longest: AtomicU64,
    /// The LSN at which the ring wraps around to the checkpoint's block.
    pub(super) ring_limit: AtomicU64,
}

/// The events that threads wait for.
#[derive(Default)]
pub(super) struct EventCounts {
    /// Notified when there is room in the buffer or the ring.
    pub(super) room: EventCount,
    /// Notified when the durable end has moved.
    pub(super) synced: EventCount,
    /// Notified when there is enough to write.
    pub(super) to_write: EventCount,
    /// Notified when there is enough to sync or release.
    pub(super) to_flush: EventCount,
    /// Notified when pages were released.
    pub(super) released: EventCount,
}

/// The state of the log's life, and the urgency of its writes.
#[derive(Default)]
pub(super) struct Lifecycle {
    /// Set while a thread waits for room, so that any amount is worth writing.
    pub(super) urgent: AtomicBool,
    pub(super) stopped: AtomicBool,
    /// The first error of a write or sync.
    pub(super) poison: OnceLock<Error>,
}

/// The salts in force, by position.
#[derive(Debug)]
pub(super) struct Epochs {
    /// The salt at the checkpoint.
    pub(super) first: u32,
    pub(super) later: Vec<EpochAt>,
    /// The change that this opening must record before it appends.
    pub(super) due: Option<DueChange>,
}

/// A change that must be recorded before the first record is appended.
#[derive(Debug, Clone, Copy)]
pub(super) struct DueChange {
    /// The end of the log when it was opened.
    pub(super) previous_end: u64,
    /// Whether the log was not closed: remains of a crash past the end must not be mistaken for new
    /// records.
    pub(super) epoch: bool,
}

impl Epochs {
    /// Returns the salt in force at `lsn`.
    pub(super) fn salt_at(&self, lsn: u64) -> u32 {
        self.later.iter().rev().find(|epoch| epoch.start() <= lsn).map_or(self.first, |epoch| epoch.salt)
    }

    /// Returns the epochs that begin past `lsn`.
    pub(super) fn past(&self, lsn: u64) -> Vec<EpochAt> {
        self.later.iter().copied().filter(|epoch| epoch.start() > lsn).collect()
    }
}
