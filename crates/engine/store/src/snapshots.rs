//! Which commits can be seen, and by whom: what readers begin with, and what must be kept for them.
//!
//! Readers register in a part of their own, of which there are some: those of different processors write no memory in common, as long
//! as no commit comes between.
//!
//! Invariants:
//! 1. Commits become visible in order, those that wait for durability when all before them is durable.
//! 2. A snapshot that is live, and was not ended, finds every page as its commit left it: a reader learns what is visible while it
//!    holds the lock of its part, and who asks what is needed learns it before it takes that lock. So either the reader is found, or
//!    it sees no less than who asked.
//!
//! Locks, in this order: a reader's part, the state. Nothing fails.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use pagekeeper_kernel::mutex::ignore_poison;

use super::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, READER_PARTS, reader_part};
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
    /// Where it is registered.
    part: usize,
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
    /// What the checkpoint under way is to apply.
    checkpoint: Option<Seq>,
}

/// A snapshot, and how many read it.
#[derive(Debug)]
struct Readers {
    live: Arc<Live>,
    number: usize,
}

/// Some readers: by ascending seqs, each once. The last one may have no readers: it is kept for the next.
#[derive(Debug, Default)]
// Two lines of the processor's cache, which fetches them in pairs.
#[repr(align(128))]
struct Part(Mutex<Vec<Readers>>);

impl Part {
    fn lock(&self) -> MutexGuard<'_, Vec<Readers>> {
        ignore_poison(self.0.lock())
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Snapshots {
    state: Mutex<SnapshotState>,
    /// The state's, to be read without its lock. Changed under it.
    visible: AtomicU64,
    parts: Box<[Part]>,
}

impl Snapshots {
    /// The commit `seq` is visible.
    pub(crate) fn new(seq: Seq, meta: Arc<Meta>) -> Self {
        let state = SnapshotState { visible: seq, meta, pending: VecDeque::new(), checkpoint: None };
        Self {
            state: Mutex::new(state),
            visible: AtomicU64::new(seq),
            parts: (0..READER_PARTS).map(|_| Part::default()).collect(),
        }
    }

    fn state(&self) -> MutexGuard<'_, SnapshotState> {
        ignore_poison(self.state.lock())
    }

    /// A snapshot of what is visible now.
    pub(crate) fn begin(&self) -> Arc<Live> {
        let at = reader_part();
        let mut part = self.parts[at].lock();
        let visible = self.visible.load(Ordering::Acquire);
        if let Some(last) = part.last_mut().filter(|last| last.live.seq == visible) {
            last.number += 1;
            return Arc::clone(&last.live);
        }
        let (seq, meta) = self.visible();
        part.retain(|readers| readers.number > 0);
        let live = Arc::new(Live { seq, meta, part: at, ended: false.into() });
        part.push(Readers { live: Arc::clone(&live), number: 1 });
        live
    }

    /// One reads it no more.
    pub(crate) fn end(&self, live: &Live) {
        let mut part = self.parts[live.part].lock();
        let is_it = |readers: &Readers| std::ptr::eq(&raw const *readers.live, live);
        // One that was ended is not there any more.
        let Some(at) = part.iter().rposition(is_it) else { return };
        part[at].number -= 1;
        if part[at].number == 0 && at + 1 < part.len() {
            part.remove(at);
        }
    }

    /// Ends snapshots that live and are the oldest, so that what they need can go; false if there is none older than what is visible.
    pub(crate) fn end_oldest(&self) -> bool {
        let visible = self.state().visible;
        let first = |part: &Vec<Readers>| {
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
            // It may have ended meanwhile.
            if let Some(at) = part.iter().position(|readers| readers.live.seq == seq && readers.number > 0) {
                part.remove(at).live.ended.store(true, Ordering::Release);
                return true;
            }
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
        self.show_if(|pending| pending.lsn <= lsn);
    }

    /// All up to `seq` are to be seen.
    pub(crate) fn show(&self, seq: Seq) {
        self.show_if(|pending| pending.seq <= seq);
    }

    fn show_if(&self, is_due: impl Fn(&Pending) -> bool) {
        let mut state = self.state();
        state.show(is_due);
        self.visible.store(state.visible, Ordering::Release);
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
        // Before the parts are asked.
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
        Needed { live, visible }
    }

    /// The oldest snapshot that lives or can come; the checkpoint under way does not count.
    pub(crate) fn oldest(&self) -> Seq {
        // Before the parts are asked.
        let visible = self.state().visible;
        let first = |part: &Part| {
            part.lock().iter().find(|readers| readers.number > 0).map(|readers| readers.live.seq)
        };
        self.parts.iter().filter_map(first).chain([visible]).min().unwrap_or(visible)
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
