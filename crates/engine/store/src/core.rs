//! The state that all threads of a store share: reading pages, committing, and what both need.
//!
//! A commit's life, with the function on each edge:
//!
//! ```text
//!             commit::encode           RedoLog::try_append           Core::make_durable
//!  changed ─────────────────▶ encoded ─────────────────▶ appended ─────────────────────▶ durable
//!  (WriteTxn)                    │                          │                               │
//!                 no room for it │        Durability::None, │ Snapshots::show               │ Snapshots::durable
//!                                ▼                          ▼                               ▼
//!                     Core::wait_for_room              visible ◀─────────────────────── visible
//!                                                           │
//!                                              Core::apply, │ once it is durable
//!                                                           ▼
//!  journal given up ◀───────────────── checkpointed ◀──── applied
//!             RedoLog::checkpoint          Core::publish (data file synced before)
//! ```
//!
//! The life of the store:
//!
//! ```text
//!                         open::start                Core::run_checkpoint, the first
//!  open::open ─▶ opening ─────────────▶ recovering ────────────────────────────────▶ open
//!                   │ error                 │ Core::poison                             │ Core::poison
//!                   ▼                       ▼                                          ▼
//!               not opened              poisoned: reads continue, commits fail ◀──────────┘
//!
//!  recovering, open, poisoned ── Store::finish (close or drop) ──▶ closed
//! ```
//!
//! While it is recovering, everything works as when it is open: pages that the journal changes are
//! rebuilt at their first read.
//!
//! Locks, in the order in which they are taken. Locks in one line are never held together.
//!
//! 1. `writer`, for a whole write transaction.
//! 2. `checkpoints.under_way`, for a whole checkpoint.
//! 3. `tail`, while one commit is encoded and appended, and for a checkpoint's start.
//! 4. The locks of the index's shards, the snapshots, and the pages recorded for a backup;
//!    `given_back`; `superblocks`, for one write; `checkpoints.request`, to wait and to notify.
//! 5. `version_file`, then its places.
//!
//! Readers take the locks of a shard of the index and of their part of the snapshots. They rarely
//! wait for them.
//!
//! Invariants:
//! 1. `tail.seq` is the last appended commit; its versions are in the index before the tail is
//!    released.
//! 2. No commit is appended that would raise the journal bytes behind the checkpoint LSN above the
//!    limit; padding comes on top.
//! 3. `checkpoints.seq` and `checkpoints.lsn` never fall, and never pass what is durable in the
//!    journal.
//! 4. After the first error of a write or sync nothing is committed any more, and everyone gets
//!    that error. A full device is the one exception, since what it refused was not half written.

use std::collections::HashSet;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use pagekeeper_cache::{HeldPage, OwnedFile, PageCache, PageGuard, PageRef};
use pagekeeper_io::{FileLock, Io, IoFile, Process, open_past_cache};
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_wal::{Lsn, RedoLog};

use crate::buffers::BufferPool;
use crate::changes::ChangeRecorder;
use crate::data::DataFile;
use crate::format::page::{self, HEADER_BYTES, PageFault, PageKind};
use crate::format::superblock::StoreMeta;
use crate::index::Index;
use crate::opening::Opening;
use crate::options::StoreOptions;
use crate::page::FoundPage;
use crate::page_map::PageMap;
use crate::reports::ProgressQueue;
use crate::snapshots::{LiveSnapshot, Snapshots};
use crate::superblocks::Superblocks;
use crate::version::{
    PageAssembly, PageId, PageReplay, PageVersion, VersionContent, WholePage, kind_and_seq,
};
use crate::version_file::VersionFile;
use crate::writer::{BeginWrite, WriterLock};
use crate::{Error, PageNo, Seq};

/// Longest wait for room in the journal before it is looked for again.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Values that the opening fixed.
pub(crate) struct Config {
    pub(crate) options: StoreOptions,
    pub(crate) io: Arc<dyn Io>,
    pub(crate) directory: PathBuf,
    pub(crate) page_size: usize,
    pub(crate) store_id: u64,
    /// The directory of the journal.
    pub(crate) journal_path: PathBuf,
    /// Maximum journal bytes behind the checkpoint LSN.
    pub(crate) max_journal_bytes: u64,
    /// Maximum bytes of the index before commits wait.
    pub(crate) max_unapplied_bytes: u64,
    /// Whether the first change of a page after a checkpoint start may be a diff.
    pub(crate) diffs_first: bool,
    /// The last commit found in the journal.
    pub(crate) recovered_seq: Seq,
    pub(crate) opening: Opening,
    /// Keeps other processes from opening the store.
    pub(crate) _lock: Option<FileLock>,
}

/// The position of the last appended commit.
#[derive(Debug)]
pub(crate) struct JournalTail {
    pub(crate) seq: Seq,
    /// The LSN just behind it.
    pub(crate) lsn: Lsn,
    pub(crate) meta: Arc<StoreMeta>,
    /// Pages whose full-page image was journaled since the last checkpoint start.
    pub(crate) logged_since_checkpoint: HashSet<PageNo>,
}

/// The start of a checkpoint, which fixes how far it goes.
#[derive(Debug, Clone)]
pub(crate) struct CheckpointStart {
    pub(crate) seq: Seq,
    pub(crate) lsn: Lsn,
    pub(crate) meta: Arc<StoreMeta>,
}

/// A request for a checkpoint, and why none can be made.
#[derive(Debug, Default)]
pub(crate) struct CheckpointRequest {
    /// A checkpoint is wanted now.
    pub(crate) requested: bool,
    /// The device is full: the error of the last checkpoint.
    pub(crate) blocked_by: Option<Error>,
    pub(crate) stopping: bool,
}

/// The progress of checkpoints, and who waits for the next one.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    /// Held by the checkpoint in progress.
    pub(crate) under_way: Mutex<()>,
    /// The last commit that the data file has. Written under `under_way`.
    seq: AtomicU64,
    /// The journal position just behind that commit: the checkpoint LSN. Written under `under_way`.
    lsn: AtomicU64,
    /// No page of the data file is of a later commit. Set from the last checkpoint start, or from
    /// recovery.
    newest_in_file: AtomicU64,
    pub(crate) request: Mutex<CheckpointRequest>,
    /// Notified when the request changes.
    pub(crate) requested: Condvar,
    /// Notified when a checkpoint has ended or freed memory, or the store is poisoned.
    pub(crate) done: Condvar,
    /// Set by `threads::stop` when the store is closed: the checkpoint in progress is abandoned.
    pub(crate) stopping: AtomicBool,
}

impl Checkpoints {
    /// Creates the state for a data file that has all commits up to `seq`, whose entry ends before
    /// `lsn`, and may have some up to `recovered`.
    pub(crate) fn new(seq: Seq, lsn: Lsn, recovered: Seq) -> Self {
        Self {
            under_way: Mutex::new(()),
            seq: AtomicU64::new(seq.get()),
            lsn: AtomicU64::new(lsn.get()),
            newest_in_file: AtomicU64::new(recovered.get()),
            request: Mutex::new(CheckpointRequest::default()),
            requested: Condvar::new(),
            done: Condvar::new(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Returns the last commit that the data file has.
    pub(crate) fn seq(&self) -> Seq {
        Seq::new(self.seq.load(Ordering::Acquire))
    }

    /// Returns a commit that no page of the data file is newer than.
    #[inline]
    pub(crate) fn newest_in_file(&self) -> Seq {
        Seq::new(self.newest_in_file.load(Ordering::Acquire))
    }

    /// Returns the checkpoint LSN.
    pub(crate) fn lsn(&self) -> Lsn {
        Lsn::new(self.lsn.load(Ordering::Acquire))
    }

    /// Wakes everyone who waits for a checkpoint.
    pub(crate) fn notify_done(&self) {
        // A thread that checked the condition under this lock is waiting by now.
        drop(lock(&self.request));
        self.done.notify_all();
    }

    /// Records that a checkpoint has reached this commit. Called by the holder of `under_way`.
    pub(crate) fn advance(&self, to: &CheckpointStart) {
        debug_assert!(self.seq() <= to.seq);
        debug_assert!(self.lsn() <= to.lsn);
        self.seq.store(to.seq.get(), Ordering::Release);
        self.lsn.store(to.lsn.get(), Ordering::Release);
    }
}

/// The store without its threads.
pub(crate) struct Core {
    /// Checked by each external call before any lock is taken.
    pub(crate) process: Process,
    pub(crate) config: Config,
    /// Has its own locks.
    pub(crate) journal: RedoLog,
    /// Has its own lock, for growing.
    pub(crate) data: DataFile,
    /// Has its own locks. Written under `checkpoints.under_way`.
    pub(crate) map: Arc<PageMap>,
    pub(crate) superblocks: Mutex<Superblocks>,
    /// Has its own locks, as the next field.
    pub(crate) cache: PageCache,
    /// The data file in the cache.
    pub(crate) cached: OwnedFile,
    /// The pool for pages of versions in memory.
    pub(crate) buffers: Arc<BufferPool>,
    /// Each shard has a lock.
    pub(crate) index: Index,
    /// Has its own lock.
    pub(crate) snapshots: Snapshots,
    /// Held by the write transaction.
    pub(crate) writer: WriterLock,
    pub(crate) tail: Mutex<JournalTail>,
    pub(crate) checkpoints: Checkpoints,
    /// The file for old versions, if there are any.
    pub(crate) version_file: Mutex<Option<Arc<VersionFile>>>,
    /// Has its own locks.
    pub(crate) changes: ChangeRecorder,
    /// Pages that were free when this was set, or when space was given back; `None` if not known
    /// yet. Used under the writer's lock.
    pub(crate) given_back: Mutex<Option<Vec<Range<PageNo>>>>,
    /// Has its own lock.
    pub(crate) reports: ProgressQueue,
    /// The first failure. Set once, by whichever thread meets it.
    pub(crate) poison: OnceLock<Error>,
}

impl Core {
    pub(crate) fn payload_size(&self) -> usize {
        self.config.page_size - HEADER_BYTES
    }

    pub(crate) fn data_path(&self) -> &Path {
        self.data.file.path()
    }

    /// Opens the data file once more, for reading all of it past the page cache.
    pub(crate) fn open_data(&self) -> Result<Arc<dyn IoFile>, Error> {
        open_past_cache(&*self.config.io, self.data_path()).map_err(|error| Error::from(error).or_lost())
    }

    /// Fails if the store is poisoned.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.poison.get().map_or(Ok(()), |cause| Err(Error::Poisoned { cause: Box::new(cause.clone()) }))
    }

    /// Fails if the store is poisoned or read-only.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if self.config.options.is_read_only() { Err(Error::ReadOnly) } else { self.check() }
    }

    /// Ends all committing for good, and wakes everyone who waits.
    pub(crate) fn poison(&self, cause: Error) -> Error {
        let cause = match cause {
            Error::Poisoned { cause } => *cause,
            cause => cause,
        };
        let error = Error::Poisoned { cause: Box::new(self.poison.get_or_init(|| cause).clone()) };
        self.checkpoints.notify_done();
        self.checkpoints.requested.notify_all();
        error
    }

    /// Returns the journal bytes that a recovery would read now.
    pub(crate) fn bytes_to_recover(&self) -> u64 {
        self.journal.end().saturating_sub(self.checkpoints.lsn())
    }

    pub(crate) fn page_id(&self, page: PageNo, seq: Seq) -> PageId<'_> {
        PageId { path: self.data_path(), store: self.config.store_id, page, seq }
    }

    /// Returns the page as of `seq`, of any kind; `None` if it was not written before.
    pub(crate) fn page_at(&self, page: PageNo, seq: Seq) -> Result<Option<FoundPage<PageRef>>, Error> {
        self.find_page(page, seq, || self.cached.page_ref(page))
    }

    /// Like [`page_at`](Self::page_at), for a short read: nothing is allocated for it, and memory
    /// that other readers use is not written.
    pub(crate) fn short_page_at(
        &self,
        page: PageNo,
        seq: Seq,
    ) -> Result<Option<FoundPage<PageGuard<'_>>>, Error> {
        self.find_page(page, seq, || self.cached.page(page))
    }

    fn find_page<C: Deref<Target = [u8]>>(
        &self,
        page: PageNo,
        seq: Seq,
        load: impl Fn() -> Result<C, pagekeeper_cache::Error>,
    ) -> Result<Option<FoundPage<C>>, Error> {
        let whole = |version| self.whole(page, version).map(FoundPage::version);
        self.index.find(page, seq, whole, || self.checked_in_file(page, &load))
    }

    /// Returns the page as a snapshot sees it.
    pub(crate) fn page_of(
        &self,
        live: &LiveSnapshot,
        page: PageNo,
    ) -> Result<Option<FoundPage<PageRef>>, Error> {
        Self::unless_ended(live, self.page_at(page, live.seq))
    }

    /// Like [`page_of`](Self::page_of), for a short read.
    pub(crate) fn short_page_of(
        &self,
        live: &LiveSnapshot,
        page: PageNo,
    ) -> Result<Option<FoundPage<PageGuard<'_>>>, Error> {
        Self::unless_ended(live, self.short_page_at(page, live.seq))
    }

    /// Returns a data page as a snapshot sees it, if only the data file can have it, it has been
    /// read a few times, and nothing is wrong with it. This is the fast path that most reads take.
    #[inline]
    pub(crate) fn settled_page_of(&self, live: &LiveSnapshot, page: PageNo) -> Option<HeldPage<'_>> {
        // Before the file's page is looked up: see `IndexShard::len`. In a forked child, the cache
        // finds nothing.
        if self.index.has_near(page) || !self.data.has(page) {
            return None;
        }
        let found = self.cached.page_shortest(page)?;
        let (kind, seq) = kind_and_seq(&found)?;
        let newest = self.checkpoints.newest_in_file();
        let is_it = kind == PageKind::Data && seq <= live.seq && seq <= newest && !live.is_ended();
        #[cfg(test)]
        SETTLED_READS.set(SETTLED_READS.get() + u64::from(is_it));
        is_it.then_some(found)
    }

    /// Returns the result of a snapshot's read unless the snapshot was ended. Checked after the
    /// read, since a version that it needed may be gone.
    fn unless_ended<T>(live: &LiveSnapshot, found: Result<T, Error>) -> Result<T, Error> {
        if live.is_ended() { Err(Error::SnapshotTooOld) } else { found }
    }

    /// Returns the page in the data file, and its seq; `None` if it was never written.
    pub(crate) fn page_in_file(&self, page: PageNo) -> Result<Option<(FoundPage<PageRef>, Seq)>, Error> {
        self.checked_in_file(page, || self.cached.page_ref(page))
    }

    /// Returns the page of the data file as the cache loads it, and its seq; `None` if it was never
    /// written.
    fn checked_in_file<C: Deref<Target = [u8]>>(
        &self,
        page: PageNo,
        load: impl FnOnce() -> Result<C, pagekeeper_cache::Error>,
    ) -> Result<Option<(FoundPage<C>, Seq)>, Error> {
        if !self.data.has(page) {
            return Ok(None);
        }
        let found = load().map_err(|error| match error {
            pagekeeper_cache::Error::Rejected { reason, .. } => {
                self.page_id(page, Seq::NONE).damaged(reason.to_string())
            }
            error => error.into(),
        })?;
        // The page was checked when it was loaded, so its header can be read.
        let Some((kind, seq)) = kind_and_seq(&found) else { return Ok(None) };
        let newest = self.checkpoints.newest_in_file();
        if seq > newest {
            let reason = format!(
                "it is whole, as of commit {seq}, and commit {newest} is the last that can be there: commits were lost"
            );
            return Err(self.page_id(page, Seq::NONE).damaged(reason));
        }
        Ok(Some((FoundPage::cached(kind, found), seq)))
    }

    /// Returns a copy of a page that outlives its frame.
    pub(crate) fn copied(&self, page: &FoundPage<PageRef>) -> WholePage {
        WholePage::new(page.kind(), self.buffers.copy(page.bytes()))
    }

    /// Returns the page that a version holds, and rebuilds it if necessary.
    pub(crate) fn whole(&self, page: PageNo, version: PageVersion) -> Result<WholePage, Error> {
        // Beyond its share of memory, a page is rebuilt for each read. A passing replay is in
        // memory only for a reader of all pages.
        let is_kept = |replay: &PageReplay| {
            !replay.is_passing() && self.index.bytes() <= self.config.max_unapplied_bytes
        };
        self.rebuilt(page, version, is_kept)
    }

    /// Like [`whole`](Self::whole), and keeps the rebuilt page.
    pub(crate) fn settled(&self, page: PageNo, version: PageVersion) -> Result<WholePage, Error> {
        self.rebuilt(page, version, |_| true)
    }

    fn rebuilt(
        &self,
        page: PageNo,
        version: PageVersion,
        is_kept: impl FnOnce(&PageReplay) -> bool,
    ) -> Result<WholePage, Error> {
        let replay = match version.content {
            VersionContent::Whole(whole) => return Ok(whole),
            VersionContent::Replay(replay) => replay,
            VersionContent::OnDisk(moved) => {
                return moved.read(&self.buffers, &self.page_id(page, version.seq));
            }
            VersionContent::InFile => return self.left_in_file(page, version.seq),
        };
        let whole = self.put_together(page, version.seq, &replay)?;
        if is_kept(&replay) {
            self.index.settle(page, version.seq, VersionContent::Whole(whole.clone()));
        }
        Ok(whole)
    }

    /// Returns the data file's page, which is as of this commit, and keeps it.
    fn left_in_file(&self, page: PageNo, seq: Seq) -> Result<WholePage, Error> {
        match self.page_in_file(page)? {
            Some((found, of)) if of == seq => {
                let whole = self.copied(&found);
                self.index.settle(page, seq, VersionContent::Whole(whole.clone()));
                Ok(whole)
            }
            Some(_) | None => Err(self.page_id(page, seq).damaged("it is not what was written there")),
        }
    }

    fn put_together(&self, page: PageNo, seq: Seq, replay: &PageReplay) -> Result<WholePage, Error> {
        let id = self.page_id(page, seq);
        let mut bytes = self.buffers.zeroed();
        let room = bytes.make_mut();
        if replay.needs_base() {
            match self.page_in_file(page)? {
                Some((base, _)) => room[HEADER_BYTES..].copy_from_slice(base.payload()),
                None => {
                    return Err(self
                        .page_id(page, Seq::NONE)
                        .damaged("the journal changes it, but it was never written"));
                }
            }
        }
        let mut assembly = PageAssembly::new(room);
        for changes in replay.parts(self.loaded_places_share()) {
            assembly.apply(&self.with_bytes(&id, changes)?);
        }
        let kind = assembly.finish(&id)?;
        Ok(WholePage::new(kind, bytes))
    }

    /// Waits until the journal has room for `more` bytes, and the index is within its bounds.
    pub(crate) fn wait_for_room(&self, more: u64, begin: BeginWrite) -> Result<(), Error> {
        let has_room = || {
            self.bytes_to_recover() + more <= self.config.max_journal_bytes
                && self.index.bytes() <= self.config.max_unapplied_bytes
        };
        if has_room() {
            return Ok(());
        }
        if !self.config.options.threads {
            self.run_checkpoint()?;
            // One checkpoint makes all the room there is.
            return Ok(());
        }
        let mut request = lock(&self.checkpoints.request);
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
            self.checkpoints.requested.notify_all();
            // A timeout, since nothing notifies when the journal's end moves.
            let wait = begin.wait_time(ROOM_CHECK_INTERVAL)?;
            let waited = self.checkpoints.done.wait_timeout(request, wait);
            request = ignore_poison(waited).0;
        }
    }

    /// Requests a checkpoint if there is much to apply.
    pub(crate) fn request_checkpoint_if_due(&self) {
        if !self.config.options.threads || !self.config.options.background_apply {
            return;
        }
        if self.bytes_to_recover() > self.config.max_journal_bytes / 2
            || self.index.bytes() > self.config.max_unapplied_bytes / 2
        {
            let mut request = lock(&self.checkpoints.request);
            if !request.requested {
                request.requested = true;
                self.checkpoints.requested.notify_all();
            }
        }
    }

    /// Returns when everything before `lsn` is durable, and so visible.
    pub(crate) fn make_durable(&self, lsn: Lsn) -> Result<(), Error> {
        self.check()?;
        self.journal.sync_upto(lsn).map_err(|error| self.poison(error.into()))?;
        // A failed sync of another file may meanwhile have lost what was written for this one.
        self.check()?;
        self.snapshots.durable(lsn);
        Ok(())
    }

    /// Like [`make_durable`](Self::make_durable), but leaves the sync to commits that come within
    /// the group's delay.
    pub(crate) fn join_group(&self, lsn: Lsn) -> Result<(), Error> {
        if self.config.options.threads {
            self.journal.wait_for_others(lsn, self.config.options.group_delay)?;
        }
        self.make_durable(lsn)
    }

    /// Starts a checkpoint that covers all commits so far. From now on, full pages are journaled
    /// again.
    pub(crate) fn start_checkpoint(&self) -> CheckpointStart {
        let mut tail = lock(&self.tail);
        if !injected!(self.config.options, FullPagesFromTheEnd) {
            tail.logged_since_checkpoint = HashSet::new();
        }
        let start = CheckpointStart { seq: tail.seq, lsn: tail.lsn, meta: Arc::clone(&tail.meta) };
        self.checkpoints.newest_in_file.store(start.seq.get(), Ordering::Release);
        // Before the tail is released: from then on the versions of this start are kept.
        self.snapshots.set_checkpoint(Some(start.seq));
        start
    }
}

#[cfg(test)]
thread_local! {
    /// Pages that this thread found by [`Core::settled_page_of`].
    static SETTLED_READS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
pub(crate) fn settled_reads() -> u64 {
    SETTLED_READS.get()
}

/// Verifies a page of the data file when the cache loads it: it is intact, and it is the one
/// written last.
pub(crate) fn verify_page(bytes: &[u8], page: PageNo, store: u64, map: &PageMap) -> Result<(), String> {
    let found = page::check(bytes, page, store);
    match &found {
        Ok(_) | Err(PageFault::NeverWritten) => map.check(page, &found).map_err(|fault| fault.to_string()),
        Err(fault) => Err(fault.to_string()),
    }
}
