//! The store as all its threads share it: reading pages, and committing.
//!
//! Locks, in the order that they are taken: the writer's (for a whole transaction), the checkpoint's, the tail (for the
//! encoding and appending of one commit, and for a checkpoint start), then those of index, snapshots and superblocks, each alone.
//!
//! Invariants:
//! 1. `tail.seq` is the last commit that was appended; its versions are in the index before the tail is released.
//! 2. No commit is appended that brings the journal bytes behind the checkpoint LSN above the limit; beside commits there are padding, and an
//!    epoch for each opening.
//! 3. After the first error of a write or sync nothing is committed any more, and everyone gets that error; a full device is the one
//!    exception, since what it refused was not half written.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pagekeeper_cache::{OwnedFile, PageCache};
use pagekeeper_io::{Io, Lock};
use pagekeeper_log::RedoLog;

use crate::buffers::Buffers;
use crate::data::DataFile;
use crate::format::page::{self, HEADER, PageFault, PageKind};
use crate::format::superblock::Meta;
use crate::index::Index;
use crate::options::StoreOptions;
use crate::page::Page;
use crate::snapshots::{Live, Snapshots};
use crate::stat::Opening;
use crate::superblocks::Superblocks;
use crate::version::{Content, PageId, Version, Whole, kind_and_seq};
use crate::{Error, PageNo, Seq};

/// How often a condition is polled that nothing notifies of.
const POLL: Duration = Duration::from_secs(1);

/// Where the last commit that was appended stands.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) seq: Seq,
    /// Just behind it.
    pub(crate) lsn: u64,
    pub(crate) meta: Arc<Meta>,
    /// Pages whose full-page image is in the journal since the last checkpoint start.
    pub(crate) logged_since_checkpoint: HashSet<PageNo>,
}

/// Where a checkpoint started: how far it goes.
#[derive(Debug, Clone)]
pub(crate) struct CheckpointStart {
    pub(crate) seq: Seq,
    pub(crate) lsn: u64,
    pub(crate) meta: Arc<Meta>,
}

/// Who asks for a checkpoint, and why none can be made.
#[derive(Debug, Default)]
pub(crate) struct CheckpointRequest {
    /// A checkpoint is wanted now.
    pub(crate) requested: bool,
    /// The device is full: the error of the last checkpoint.
    pub(crate) blocked_by: Option<Error>,
    pub(crate) stopping: bool,
}

/// The store but for its threads.
pub(crate) struct Core {
    pub(crate) options: StoreOptions,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) directory: PathBuf,
    pub(crate) page_size: usize,
    pub(crate) store: u64,
    pub(crate) journal: RedoLog,
    pub(crate) data: DataFile,
    pub(crate) cache: PageCache,
    pub(crate) cached: OwnedFile,
    pub(crate) superblocks: Mutex<Superblocks>,
    pub(crate) writer: Mutex<()>,
    pub(crate) tail: Mutex<Tail>,
    pub(crate) index: Index,
    pub(crate) snapshots: Snapshots,
    /// Where versions in memory have their pages.
    pub(crate) buffers: Arc<Buffers>,
    /// Held by the checkpoint under way.
    pub(crate) checkpoint_lock: Mutex<()>,
    pub(crate) checkpoint_seq: AtomicU64,
    pub(crate) checkpoint_lsn: AtomicU64,
    /// Maximum journal bytes behind the checkpoint LSN.
    pub(crate) max_journal_bytes: u64,
    /// Maximum bytes of the index before commits wait.
    pub(crate) max_unapplied_bytes: u64,
    /// The first change of a page after a checkpoint start may be a diff.
    pub(crate) diffs_first: bool,
    pub(crate) checkpoint_request: Mutex<CheckpointRequest>,
    /// Notified when the request changes.
    pub(crate) checkpoint_requested: Condvar,
    /// Notified when a checkpoint has ended, or the store is poisoned.
    pub(crate) checkpoint_done: Condvar,
    /// Set when the store is being closed: a checkpoint gives up.
    pub(crate) stopping: AtomicBool,
    pub(crate) groups: Mutex<()>,
    /// Notified after a commit was made durable.
    pub(crate) flushed: Condvar,
    pub(crate) poison: OnceLock<Error>,
    /// The last commit that was found at the opening.
    pub(crate) recovered_seq: Seq,
    pub(crate) opening: Opening,
    pub(crate) _lock: Lock,
}

/// The lock of a mutex whose holders never panic half-way: nothing behind it is ever torn.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Core {
    pub(crate) fn payload_size(&self) -> usize {
        self.page_size - HEADER
    }

    pub(crate) fn data_path(&self) -> &Path {
        self.data.file.path()
    }

    /// Fails once anything has.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.poison.get().map_or(Ok(()), |cause| Err(Error::Poisoned { cause: Box::new(cause.clone()) }))
    }

    /// Ends all committing for ever, and wakes everyone who waits.
    pub(crate) fn poison(&self, cause: Error) -> Error {
        let cause = match cause {
            Error::Poisoned { cause } => *cause,
            cause => cause,
        };
        let error = Error::Poisoned { cause: Box::new(self.poison.get_or_init(|| cause).clone()) };
        drop(lock(&self.checkpoint_request));
        self.checkpoint_done.notify_all();
        self.checkpoint_requested.notify_all();
        error
    }

    /// Journal bytes that recovery would read now.
    pub(crate) fn bytes_to_recover(&self) -> u64 {
        self.journal.end().saturating_sub(self.checkpoint_lsn.load(Ordering::Acquire))
    }

    pub(crate) fn page_id(&self, page: PageNo, seq: Seq) -> PageId<'_> {
        PageId { path: self.data_path(), store: self.store, page, seq }
    }

    /// The page as it was at `seq`, whatever it is used for; `None` if it was not written before.
    pub(crate) fn page_at(&self, page: PageNo, seq: Seq) -> Result<Option<Page>, Error> {
        let whole = |version| self.whole(page, version).map(Page::version);
        self.index.find(page, seq, whole, || self.page_in_file(page))
    }

    /// The page as a snapshot sees it.
    pub(crate) fn page_of(&self, live: &Live, page: PageNo) -> Result<Option<Page>, Error> {
        let found = self.page_at(page, live.seq);
        // Checked after the read: what was needed may have gone meanwhile.
        if live.is_ended() { Err(Error::SnapshotTooOld) } else { found }
    }

    /// The page as the data file has it, and its seq; `None` if it was never written.
    pub(crate) fn page_in_file(&self, page: PageNo) -> Result<Option<(Page, Seq)>, Error> {
        if page >= self.data.pages() {
            return Ok(None);
        }
        let found = self.cached.page_ref(page).map_err(|error| match error {
            pagekeeper_cache::Error::Rejected { reason, .. } => {
                self.page_id(page, 0).damaged(reason.to_string())
            }
            error => error.into(),
        })?;
        // Checked when it was loaded; what is there now is its header.
        let Some((kind, seq)) = kind_and_seq(&found) else { return Ok(None) };
        Ok(Some((Page::cached(kind, found), seq)))
    }

    /// The page that a version holds, put together if it was not yet.
    pub(crate) fn whole(&self, page: PageNo, version: Version) -> Result<Whole, Error> {
        let replay = match version.content {
            Content::Whole(whole) => return Ok(whole),
            Content::Replay(replay) => replay,
        };
        let mut bytes = self.buffers.zeroed();
        let room = bytes.make_mut();
        if replay.needs_base() {
            match self.page_in_file(page)? {
                Some((base, _)) => room[HEADER..].copy_from_slice(&base),
                None => {
                    return Err(self
                        .page_id(page, 0)
                        .damaged("the journal changes it, but it was never written"));
                }
            }
        }
        let kind = replay.put_together(&self.page_id(page, version.seq), room)?;
        let whole = Whole::new(kind, bytes);
        self.index.settle(page, version.seq, Content::Whole(whole.clone()));
        Ok(whole)
    }

    /// Waits until `more` bytes go into the journal, and the index is within bounds.
    pub(crate) fn wait_for_room(&self, more: u64) -> Result<(), Error> {
        let has_room = || {
            self.bytes_to_recover() + more <= self.max_journal_bytes
                && self.index.bytes() <= self.max_unapplied_bytes
        };
        if has_room() {
            return Ok(());
        }
        if !self.options.threads {
            self.run_checkpoint()?;
            // One checkpoint makes all the room there is.
            return Ok(());
        }
        let mut request = lock(&self.checkpoint_request);
        request.blocked_by = None;
        loop {
            self.check()?;
            if has_room() {
                return Ok(());
            }
            if let Some(error) = &request.blocked_by {
                return Err(error.clone());
            }
            request.requested = true;
            self.checkpoint_requested.notify_all();
            // A deadline, since nothing notifies when the journal's end moves.
            let waited = self.checkpoint_done.wait_timeout(request, Duration::from_millis(100));
            request = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Requests a checkpoint if there is much to apply.
    pub(crate) fn request_checkpoint_if_due(&self) {
        if !self.options.threads || !self.options.background_apply {
            return;
        }
        if self.bytes_to_recover() > self.max_journal_bytes / 2
            || self.index.bytes() > self.max_unapplied_bytes / 2
        {
            let mut request = lock(&self.checkpoint_request);
            if !request.requested {
                request.requested = true;
                self.checkpoint_requested.notify_all();
            }
        }
    }

    /// Returns when all before `lsn` is durable; it is visible then.
    pub(crate) fn make_durable(&self, lsn: u64) -> Result<(), Error> {
        self.check()?;
        self.journal.sync_upto(lsn).map_err(|error| self.poison(error.into()))?;
        self.snapshots.durable(lsn);
        Ok(())
    }

    /// The same, but leaves the sync to others who commit meanwhile, within the group's delay.
    pub(crate) fn join_group(&self, lsn: u64) -> Result<(), Error> {
        let until = Instant::now().checked_add(self.options.group_delay);
        let mut group = lock(&self.groups);
        while self.options.threads && self.journal.durable_lsn() < lsn {
            let left = until.map_or(Some(POLL), |until| until.checked_duration_since(Instant::now()));
            let Some(left) = left else { break };
            group = self.flushed.wait_timeout(group, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(group);
        self.make_durable(lsn)
    }

    /// Starts a checkpoint: it covers what was committed up to now; from now on pages are journaled as a whole again.
    pub(crate) fn start_checkpoint(&self) -> CheckpointStart {
        let mut tail = lock(&self.tail);
        if !injected!(self.options, FullPagesFromTheEnd) {
            tail.logged_since_checkpoint = HashSet::new();
        }
        let start = CheckpointStart { seq: tail.seq, lsn: tail.lsn, meta: Arc::clone(&tail.meta) };
        // Before the tail is released: the versions of this start are kept from then on.
        self.snapshots.set_checkpoint(Some(start.seq));
        start
    }
}

/// What the cache asks of each page of the data file that it loads.
pub(crate) fn verify_page(bytes: &[u8], page: PageNo, store: u64) -> Result<(), String> {
    match page::check(bytes, page, store) {
        Ok(_) | Err(PageFault::NeverWritten) => Ok(()),
        Err(fault) => Err(fault.to_string()),
    }
}

/// Whether users may read a page of this kind.
pub(crate) fn is_data(kind: PageKind) -> bool {
    kind == PageKind::Data
}
