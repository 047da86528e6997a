//! Which commits can be seen, and by whom: what readers begin with, and what must be kept for them.
//!
//! Invariants: commits become visible in order, those that wait for durability when all before them is durable. A snapshot
//! that is live, and was not ended, finds every page as its commit left it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use pagekeeper_kernel::mutex::ignore_poison;

use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering};
use crate::Seq;
use crate::format::superblock::Meta;

/// A commit that nobody sees yet.
#[derive(Debug)]
struct Pending {
    seq: Seq,
    lsn: u64,
    meta: Arc<Meta>,
}

/// What a reader sees.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) seq: Seq,
    pub(crate) meta: Arc<Meta>,
    id: u64,
    ended: AtomicBool,
}

impl Live {
    /// Whether versions that it needs may be gone.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// Which versions must be kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Needed {
    /// Seqs that somebody reads, ascending.
    pub(crate) live: Vec<Seq>,
    /// What a reader would see who began now; later ones see no less.
    pub(crate) visible: Seq,
}

impl Needed {
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
    meta: Arc<Meta>,
    pending: VecDeque<Pending>,
    live: BTreeMap<(Seq, u64), Arc<Live>>,
    next_id: u64,
    /// What the checkpoint under way is to apply.
    checkpoint: Option<Seq>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Snapshots {
    state: Mutex<SnapshotState>,
}

impl Snapshots {
    /// The commit `seq` is visible.
    pub(crate) fn new(seq: Seq, meta: Arc<Meta>) -> Self {
        let (pending, live) = (VecDeque::new(), BTreeMap::new());
        Self {
            state: Mutex::new(SnapshotState {
                visible: seq,
                meta,
                pending,
                live,
                next_id: 0,
                checkpoint: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, SnapshotState> {
        ignore_poison(self.state.lock())
    }

    /// A snapshot of what is visible now.
    pub(crate) fn begin(&self) -> Arc<Live> {
        let mut state = self.state();
        let id = state.next_id;
        state.next_id += 1;
        let live =
            Arc::new(Live { seq: state.visible, meta: Arc::clone(&state.meta), id, ended: false.into() });
        state.live.insert((live.seq, id), Arc::clone(&live));
        live
    }

    /// Nobody reads it any more.
    pub(crate) fn end(&self, live: &Live) {
        self.state().live.remove(&(live.seq, live.id));
    }

    /// Ends the oldest snapshot that lives, so that what it needs can go; false if there is none older than what is visible.
    pub(crate) fn end_oldest(&self) -> bool {
        let mut state = self.state();
        let visible = state.visible;
        match state.live.first_entry() {
            Some(entry) if entry.key().0 < visible => {
                entry.remove().ended.store(true, Ordering::Release);
                true
            }
            _ => false,
        }
    }

    /// A commit was appended.
    pub(crate) fn committed(&self, seq: Seq, lsn: u64, meta: Arc<Meta>) {
        let mut state = self.state();
        let last = state.pending.back().map_or((state.visible, 0), |last| (last.seq, last.lsn));
        debug_assert!(last.0 < seq && last.1 < lsn, "commit {seq} comes behind {last:?}");
        state.pending.push_back(Pending { seq, lsn, meta });
    }

    /// All before `lsn` is durable.
    pub(crate) fn durable(&self, lsn: u64) {
        self.state().show(|pending| pending.lsn <= lsn);
    }

    /// All up to `seq` are to be seen.
    pub(crate) fn show(&self, seq: Seq) {
        self.state().show(|pending| pending.seq <= seq);
    }

    /// What is visible.
    pub(crate) fn visible(&self) -> (Seq, Arc<Meta>) {
        let state = self.state();
        (state.visible, Arc::clone(&state.meta))
    }

    /// The checkpoint under way applies what was committed up to `seq`; `None`: none is under way.
    pub(crate) fn set_checkpoint(&self, checkpoint: Option<Seq>) {
        self.state().checkpoint = checkpoint;
    }

    /// What must be kept now. What a reader needs who begins later is visible already.
    pub(crate) fn needed(&self) -> Needed {
        let state = self.state();
        let mut live: Vec<_> = state.live.keys().map(|(seq, _)| *seq).chain(state.checkpoint).collect();
        live.sort_unstable();
        live.dedup();
        Needed { live, visible: state.visible }
    }

    /// The oldest snapshot that lives or can come; the checkpoint under way does not count.
    pub(crate) fn oldest(&self) -> Seq {
        let state = self.state();
        state.live.keys().next().map_or(state.visible, |(seq, _)| *seq)
    }
}

impl SnapshotState {
    fn show(&mut self, is_due: impl Fn(&Pending) -> bool) {
        while let Some(pending) = self.pending.pop_front() {
            if !is_due(&pending) {
                return self.pending.push_front(pending);
            }
            self.visible = pending.seq;
            self.meta = pending.meta;
        }
    }
}
