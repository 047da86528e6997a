//! The parts of a redo log's shared state, grouped by what protects them.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Mutex, OnceLock};

use super::control::Control;
use super::event_count::EventCount;
use super::group_commit::GroupCommit;
use super::options::{FlushPolicy, OnBackpressure};
use super::ring::{Geometry, Lsn, Ring};
use crate::record::EpochAt;
use crate::{Error, LogMode};

/// What is fixed when the log is opened.
pub(super) struct Configuration {
    pub(super) policy: FlushPolicy,
    pub(super) directory: PathBuf,
    pub(super) geometry: Geometry,
    /// The random number that it was given when it was made.
    pub(super) log_id: u64,
    /// As it was asked for.
    pub(super) asked_mode: LogMode,
    /// Nothing is ever written.
    pub(super) read_only: bool,
    /// Bytes that may be appended and not synced; all there are, if the log has no bound.
    pub(super) max_unsynced: u64,
    /// Where appending began.
    pub(super) start: u64,
    /// Where paddings stand that were damaged then.
    pub(super) damaged_paddings: Vec<Lsn>,
    /// Bytes in the buffer that are worth waking the writer.
    pub(super) write_threshold: u64,
    /// Whether pages are given back at all.
    pub(super) releases: bool,
    /// The log has threads that write and flush.
    pub(super) has_threads: bool,
    pub(super) on_backpressure: Option<OnBackpressure>,
    #[cfg(any(test, feature = "injected-faults"))]
    pub(super) injected_fault: Option<crate::injected_fault::InjectedFault>,
}

/// What writing takes: opened when the first record is appended, so that a log that is only read needs neither room nor rights.
#[derive(Default)]
pub(super) struct WriteState {
    /// How it is written, once that was found out.
    pub(super) mode: OnceLock<WritingMode>,
    /// The files, once there is something to write.
    pub(super) ring: OnceLock<Ring>,
}

/// How a log is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct WritingMode {
    pub(super) mode: LogMode,
    /// A durable write needs no sync behind it.
    pub(super) honours_durable: bool,
}

/// What is durable, and who makes it so.
pub(super) struct SyncState {
    /// The syncer's lock: its holder leads a group commit.
    pub(super) leader: Mutex<()>,
    /// All before it is durable.
    pub(super) durable: AtomicU64,
    pub(super) group_commit: GroupCommit,
    /// Held while the control file is written, until a failure is noted. No lock is taken under it.
    pub(super) noting: Mutex<()>,
}

/// What the ring may be written over.
pub(super) struct CheckpointState {
    pub(super) control: Mutex<Control>,
    /// As the control file has it.
    pub(super) lsn: AtomicU64,
}

/// Salts, and how far the epoch that is written now may go.
pub(super) struct EpochState {
    /// All epochs since the checkpoint, that of this opening included once it was begun.
    pub(super) epochs: Mutex<Epochs>,
    /// The salt of the epoch that is written now. It changes before the first record only.
    pub(super) salt: AtomicU32,
    /// Appending was begun: the control file says that the log is in use, and from where on.
    pub(super) begun: AtomicBool,
    /// Bytes of the longest record that may be appended before the control file says another. It is raised under the lock of
    /// `control` only.
    pub(super) longest: AtomicU64,
    /// Where the ring wraps around to the checkpoint's block.
    pub(super) ring_limit: AtomicU64,
}

/// What threads wait on.
#[derive(Default)]
pub(super) struct EventCounts {
    /// Notified when there is room in the buffer or the ring.
    pub(super) room: EventCount,
    /// Notified when there is enough to write.
    pub(super) to_write: EventCount,
    /// Notified when there is enough to sync or release.
    pub(super) to_flush: EventCount,
    /// Notified when pages were released.
    pub(super) released: EventCount,
}

/// Whether the log goes on, and how hurriedly.
#[derive(Default)]
pub(super) struct Lifecycle {
    /// Set while a thread waits for room, so that any amount is worth writing.
    pub(super) urgent: AtomicBool,
    pub(super) stopped: AtomicBool,
    /// The first error of a write or sync.
    pub(super) poison: OnceLock<Error>,
}

/// Which salt is in force where.
#[derive(Debug)]
pub(super) struct Epochs {
    /// At the checkpoint.
    pub(super) first: u32,
    pub(super) later: Vec<EpochAt>,
    /// What this opening has to note before it appends.
    pub(super) due: Option<Due>,
}

/// What is to be noted before the first record is appended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Due {
    /// Where the log ended.
    pub(super) previous_end: u64,
    /// It was not closed: what a crash left past the end must not be taken for what is appended now.
    pub(super) epoch: bool,
}

impl Epochs {
    /// In force at `lsn`.
    pub(super) fn salt_at(&self, lsn: u64) -> u32 {
        self.later.iter().rev().find(|epoch| epoch.start() <= lsn).map_or(self.first, |epoch| epoch.salt)
    }

    /// Those that begin past `lsn`.
    pub(super) fn past(&self, lsn: u64) -> Vec<EpochAt> {
        self.later.iter().copied().filter(|epoch| epoch.start() > lsn).collect()
    }
}
