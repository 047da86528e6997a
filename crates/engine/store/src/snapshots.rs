//! The visible commits: what readers begin with, and what must be kept for them.
//!
//! Readers register in one of several parts, so that readers on different processors write no
//! common memory while no commit comes between.
//!
//! Invariants:
//! 1. Commits become visible in order. Commits that wait for durability become visible when
//!    everything before them is durable.
//! 2. A live snapshot that was not ended finds every page as of its commit. A reader loads the
//!    visible commit while it holds its part's lock. A caller of `needed` loads it before it takes
//!    that lock. So either the caller finds the reader, or the reader sees a commit no older than
//!    the caller does.
//!
//! Locks, in this order: a reader's part, the state. Nothing fails.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use pagekeeper_kernel::mutex::ignore_poison;

use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, READER_PARTS, reader_part};
use crate::Seq;
use crate::format::superblock::StoreMeta;
use pagekeeper_wal::Lsn;

/// A commit that is not visible yet.
#[derive(Debug)]
struct PendingCommit {
    seq: Seq,
    lsn: Lsn,
    meta: Arc<StoreMeta>,
}

/// A snapshot, as its readers see it.
#[derive(Debug)]
pub(crate) struct LiveSnapshot {
    pub(crate) seq: Seq,
    pub(crate) meta: Arc<StoreMeta>,
    /// The part where it is registered.
    part: usize,
    ended: AtomicBool,
}

impl LiveSnapshot {
    /// Whether versions that it needs may be gone.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// The versions that must be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NeededVersions {
    /// Seqs of live snapshots, ascending.
    pub(crate) live: Vec<Seq>,
    /// The commit that a reader beginning now would see; later readers see no older one.
    pub(crate) visible: Seq,
}

impl NeededVersions {
    /// Whether a version that is the newest for these seqs is or can be read.
    pub(crate) fn needs(&self, seqs: Range<Seq>) -> bool {
        if seqs.end > self.visible {
            return true;
        }
        let at = self.live.partition_point(|seq| *seq < seqs.start);
        self.live.get(at).is_some_and(|seq| *seq < seqs.end)
    }
}

#[derive(Debug)]
struct SnapshotState {
    visible: Seq,
    meta: Arc<StoreMeta>,
    pending: VecDeque<PendingCommit>,
    /// The commit up to which the current checkpoint applies.
    checkpoint: Option<Seq>,
}

/// A snapshot, and its number of readers.
#[derive(Debug)]
struct SnapshotReaders {
    live: Arc<LiveSnapshot>,
    number: usize,
}

/// Some of the readers, by ascending seqs, each once. The last one may have no readers: it is kept
/// for reuse.
#[derive(Debug, Default)]
// Two cache lines, since processors fetch them in pairs.
#[repr(align(128))]
struct ReaderPart(Mutex<Vec<SnapshotReaders>>);

impl ReaderPart {
    fn lock(&self) -> MutexGuard<'_, Vec<SnapshotReaders>> {
        ignore_poison(self.0.lock())
    }
}

/// All snapshots.
#[derive(Debug)]
pub(crate) struct Snapshots {
    state: Mutex<SnapshotState>,
    /// The state's `visible`, for reading without its lock. Changed under it.
    visible: AtomicU64,
    parts: Box<[ReaderPart]>,
}

impl Snapshots {
    /// Creates the state in which commit `seq` is visible.
    pub(crate) fn new(seq: Seq, meta: Arc<StoreMeta>) -> Self {
        let state = SnapshotState { visible: seq, meta, pending: VecDeque::new(), checkpoint: None };
        Self {
            state: Mutex::new(state),
            visible: AtomicU64::new(seq.get()),
            parts: (0..READER_PARTS).map(|_| ReaderPart::default()).collect(),
        }
    }

    fn state(&self) -> MutexGuard<'_, SnapshotState> {
        ignore_poison(self.state.lock())
    }

    /// Returns a snapshot of the visible commit.
    pub(crate) fn begin(&self) -> Arc<LiveSnapshot> {
        let at = reader_part();
        let mut part = self.parts[at].lock();
        let visible = Seq::new(self.visible.load(Ordering::Acquire));
        if let Some(last) = part.last_mut().filter(|last| last.live.seq == visible) {
            last.number += 1;
            return Arc::clone(&last.live);
        }
        let (seq, meta) = self.visible();
        part.retain(|readers| readers.number > 0);
        let live = Arc::new(LiveSnapshot { seq, meta, part: at, ended: false.into() });
        part.push(SnapshotReaders { live: Arc::clone(&live), number: 1 });
        live
    }

    /// Ends one reader of the snapshot.
    pub(crate) fn end(&self, live: &LiveSnapshot) {
        let mut part = self.parts[live.part].lock();
        let is_it = |readers: &SnapshotReaders| std::ptr::eq(&raw const *readers.live, live);
        // A snapshot that was ended is no longer listed.
        let Some(at) = part.iter().rposition(is_it) else { return };
        part[at].number -= 1;
        if part[at].number == 0 && at + 1 < part.len() {
            part.remove(at);
        }
    }

    /// Ends the oldest live snapshot, so that the versions that it needs can go. Returns false if
    /// none is older than the visible commit.
    pub(crate) fn end_oldest(&self) -> bool {
        let visible = self.state().visible;
        let first = |part: &Vec<SnapshotReaders>| {
            let readers = part.iter().find(|readers| readers.number > 0);
            readers.map(|readers| readers.live.seq).filter(|seq| *seq < visible)
        };
        loop {
            let oldest = self
                .parts
                .iter()
                .filter_map(|part| Some((first(&part.lock())?, part)))
                .min_by_key(|found| found.0);
            let Some((seq, part)) = oldest else { return false };
            let mut part = part.lock();
            // The snapshot may have ended meanwhile.
            if let Some(at) = part.iter().position(|readers| readers.live.seq == seq && readers.number > 0) {
                part.remove(at).live.ended.store(true, Ordering::Release);
                return true;
            }
        }
    }

    /// Records that a commit was appended.
    pub(crate) fn committed(&self, seq: Seq, lsn: Lsn, meta: Arc<StoreMeta>) {
        let mut state = self.state();
        let last = state.pending.back().map_or((state.visible, Lsn::new(0)), |last| (last.seq, last.lsn));
        debug_assert!(last.0 < seq && last.1 < lsn, "commit {seq} comes behind {last:?}");
        state.pending.push_back(PendingCommit { seq, lsn, meta });
    }

    /// Records that everything before `lsn` is durable.
    pub(crate) fn durable(&self, lsn: Lsn) {
        self.show_if(|pending| pending.lsn <= lsn);
    }

    /// Makes all commits up to `seq` visible.
    pub(crate) fn show(&self, seq: Seq) {
        self.show_if(|pending| pending.seq <= seq);
    }

    fn show_if(&self, is_due: impl Fn(&PendingCommit) -> bool) {
        let mut state = self.state();
        state.show(is_due);
        self.visible.store(state.visible.get(), Ordering::Release);
    }

    /// Returns the visible commit and its meta.
    pub(crate) fn visible(&self) -> (Seq, Arc<StoreMeta>) {
        let state = self.state();
        (state.visible, Arc::clone(&state.meta))
    }

    /// Sets the commit up to which the current checkpoint applies; `None` if none is running.
    pub(crate) fn set_checkpoint(&self, checkpoint: Option<Seq>) {
        self.state().checkpoint = checkpoint;
    }

    /// Returns what must be kept now. Versions that later readers need are visible already.
    pub(crate) fn needed(&self) -> NeededVersions {
        // Before the parts are read.
        let (visible, checkpoint) = {
            let state = self.state();
            (state.visible, state.checkpoint)
        };
        let mut live: Vec<_> = checkpoint.into_iter().collect();
        for part in &self.parts {
            live.extend(
                part.lock().iter().filter(|readers| readers.number > 0).map(|readers| readers.live.seq),
            );
        }
        live.sort_unstable();
        live.dedup();
        NeededVersions { live, visible }
    }

    /// Returns the oldest live or future snapshot, without the current checkpoint.
    pub(crate) fn oldest(&self) -> Seq {
        // Before the parts are read.
        let visible = self.state().visible;
        let first = |part: &ReaderPart| {
            part.lock().iter().find(|readers| readers.number > 0).map(|readers| readers.live.seq)
        };
        self.parts.iter().filter_map(first).chain([visible]).min().unwrap_or(visible)
    }
}

impl SnapshotState {
    fn show(&mut self, is_due: impl Fn(&PendingCommit) -> bool) {
        while let Some(pending) = self.pending.pop_front() {
            if !is_due(&pending) {
                return self.pending.push_front(pending);
            }
            self.visible = pending.seq;
            self.meta = pending.meta;
        }
    }
}
