//! The store as all its threads share it: reading pages, and committing.
//!
//! Locks, in the order that they are taken: the writer's turn (for a whole transaction), the round's turn, the tail (for the
//! encoding and appending of one commit, and for a cut), then those of index, snapshots and superblocks, each alone.
//!
//! Invariants:
//! 1. `tail.seq` is the last commit that was appended; its versions are in the index before the tail is let go.
//! 2. No commit is appended that brings the journal bytes behind the synced LSN above the cap; beside commits there are pads, and an
//!    epoch for each opening.
//! 3. After the first error of a write or sync nothing is committed any more, and everyone is told; a full device is the one
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
use crate::version::{Content, Place, Version, Whole, kind_and_seq};
use crate::{Error, PageNo, Seq};

/// Between two looks at what has no bell.
const LONG: Duration = Duration::from_secs(1);

/// Where the last commit that was appended stands.
#[derive(Debug)]
pub(crate) struct Tail {
    pub(crate) seq: Seq,
    /// Just behind it.
    pub(crate) lsn: u64,
    pub(crate) meta: Arc<Meta>,
    /// Pages whose whole is in the journal since the last cut.
    pub(crate) imaged: HashSet<PageNo>,
}

/// How far a round goes.
#[derive(Debug, Clone)]
pub(crate) struct Cut {
    pub(crate) seq: Seq,
    pub(crate) lsn: u64,
    pub(crate) meta: Arc<Meta>,
}

/// What waits for a round, and what it waits for.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    /// A round is wanted now.
    pub(crate) round: bool,
    /// The device is full: what the last round failed by.
    pub(crate) stuck: Option<Error>,
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
    /// The round's turn.
    pub(crate) round: Mutex<()>,
    pub(crate) synced_seq: AtomicU64,
    pub(crate) synced_lsn: AtomicU64,
    /// The most journal bytes behind the synced LSN.
    pub(crate) cap: u64,
    /// The most bytes of the index before commits wait.
    pub(crate) most_unapplied: u64,
    /// The first change of a page after a cut may be a diff.
    pub(crate) diffs_first: bool,
    pub(crate) wishes: Mutex<Wishes>,
    /// Rung when the wishes change.
    pub(crate) wished: Condvar,
    /// Rung when a round has ended, or the store is poisoned.
    pub(crate) rounded: Condvar,
    /// Set when the store is being closed: a round gives up.
    pub(crate) stopping: AtomicBool,
    pub(crate) groups: Mutex<()>,
    /// Rung after a commit was made durable.
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

    /// Ends all committing for ever, and tells everyone.
    pub(crate) fn poison(&self, cause: Error) -> Error {
        let cause = match cause {
            Error::Poisoned { cause } => *cause,
            cause => cause,
        };
        let error = Error::Poisoned { cause: Box::new(self.poison.get_or_init(|| cause).clone()) };
        drop(lock(&self.wishes));
        self.rounded.notify_all();
        self.wished.notify_all();
        error
    }

    /// Journal bytes that recovery would read now.
    pub(crate) fn unsynced(&self) -> u64 {
        self.journal.end().saturating_sub(self.synced_lsn.load(Ordering::Acquire))
    }

    pub(crate) fn place(&self, page: PageNo, seq: Seq) -> Place<'_> {
        Place { path: self.data_path(), store: self.store, page, seq }
    }

    /// The page as it was at `seq`, whatever it is used for; `None` if it was not written before.
    pub(crate) fn page_at(&self, page: PageNo, seq: Seq) -> Result<Option<Page>, Error> {
        let whole = |version| self.whole(page, version).map(Page::version);
        self.index.find(page, seq, whole, || self.page_in_file(page))
    }

    /// The page as a snapshot sees it.
    pub(crate) fn page_of(&self, live: &Live, page: PageNo) -> Result<Option<Page>, Error> {
        let found = self.page_at(page, live.seq);
        // Looked at behind the read: what was needed may have gone meanwhile.
        if live.is_ended() { Err(Error::SnapshotTooOld) } else { found }
    }

    /// The page as the data file has it, and its seq; `None` if it was never written.
    pub(crate) fn page_in_file(&self, page: PageNo) -> Result<Option<(Page, Seq)>, Error> {
        if page >= self.data.pages() {
            return Ok(None);
        }
        let found = self.cached.page_ref(page).map_err(|error| match error {
            pagekeeper_cache::Error::Rejected { reason, .. } => {
                self.place(page, 0).damaged(reason.to_string())
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
                        .place(page, 0)
                        .damaged("the journal changes it, but it was never written"));
                }
            }
        }
        let kind = replay.put_together(&self.place(page, version.seq), room)?;
        let whole = Whole::new(kind, bytes);
        self.index.settle(page, version.seq, Content::Whole(whole.clone()));
        Ok(whole)
    }

    /// Waits until `more` bytes go into the journal, and the index is within bounds.
    pub(crate) fn wait_for_room(&self, more: u64) -> Result<(), Error> {
        let has_room = || self.unsynced() + more <= self.cap && self.index.bytes() <= self.most_unapplied;
        if has_room() {
            return Ok(());
        }
        if !self.options.threads {
            self.run_round()?;
            // One round makes all the room there is.
            return Ok(());
        }
        let mut wishes = lock(&self.wishes);
        wishes.stuck = None;
        loop {
            self.check()?;
            if has_room() {
                return Ok(());
            }
            if let Some(error) = &wishes.stuck {
                return Err(error.clone());
            }
            wishes.round = true;
            self.wished.notify_all();
            // A deadline, since the journal's end moves without a bell.
            let waited = self.rounded.wait_timeout(wishes, Duration::from_millis(100));
            wishes = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Asks for a round if there is much to apply.
    pub(crate) fn nudge(&self) {
        if !self.options.threads || !self.options.background_apply {
            return;
        }
        if self.unsynced() > self.cap / 2 || self.index.bytes() > self.most_unapplied / 2 {
            let mut wishes = lock(&self.wishes);
            if !wishes.round {
                wishes.round = true;
                self.wished.notify_all();
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

    /// The same, but leaves the sync to others who commit meanwhile, as long as the window is open.
    pub(crate) fn join_group(&self, lsn: u64) -> Result<(), Error> {
        let until = Instant::now().checked_add(self.options.group_window);
        let mut group = lock(&self.groups);
        while self.options.threads && self.journal.durable_lsn() < lsn {
            let left = until.map_or(Some(LONG), |until| until.checked_duration_since(Instant::now()));
            let Some(left) = left else { break };
            group = self.flushed.wait_timeout(group, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(group);
        self.make_durable(lsn)
    }

    /// Cuts: what was committed up to now is the round's; from now on pages are journaled as a whole again.
    pub(crate) fn cut(&self) -> Cut {
        let mut tail = lock(&self.tail);
        if !planted!(self.options, ImagesFromTheEnd) {
            tail.imaged = HashSet::new();
        }
        let cut = Cut { seq: tail.seq, lsn: tail.lsn, meta: Arc::clone(&tail.meta) };
        // Before the tail is let go: the versions of the cut are kept from then on.
        self.snapshots.set_cut(Some(cut.seq));
        cut
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
