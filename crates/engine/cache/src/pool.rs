//! The frames and all decisions about them, under one lock that no hit takes and that is never held
//! over I/O.
//!
//! ```text
//!               begin              publish                     evict
//!      Free ───────────▶ Loading ───────────▶ Queued(small) ───────────▶ Retired
//!        ▲                  │    ╲                 │    ▲                 │  │
//!        │      abandon     │     ╲  publish       ▼    │ (frequency      │  │
//!        ├──────────────────┘      ╲───────▶ Queued(main)┘  left)         │  │
//!        │                                         │        evict         │  │
//!        │                                         └─────────────────────▶│  │
//!        ├────────────────────────────────────────────────────────────────┘  │
//!        │       grace period over, nobody holds or pins it                  │
//!        └──────────────────────────▶ OnLoan ◀───────────────────────────────┘
//!                    its memory goes to the tables of files, and comes back
//! ```
//!
//! Invariants:
//! 1. An entry that is readable or loading names a frame that no other entry names, and that
//!    frame's record names the entry's file and page.
//! 2. A loading frame belongs to its loader alone: no readable entry names it, and nobody holds it.
//! 3. A frame becomes free only after its entry was made absent, a grace period that began after
//!    that is over, and no hold and no pin names it. Pins are made under a hold or another pin, so
//!    once there are none, none can appear.
//! 4. A loading entry has one ticket, which settles it once: it publishes or abandons the load. If
//!    the page is rewritten, the ticket is superseded (see `rewrite`): the entry no longer names
//!    its frame, and only its loader sees the loaded content. All waiters are woken.
//! 5. Entries change under the lock only, except for the frequency (see `entry`).
//!
//! A load can fail, and its waiters learn of it; the pool itself can only be full.

use std::collections::{HashMap, VecDeque};

use pagekeeper_kernel::mutex::ignore_poison;

use super::arena::FrameArena;
use super::entry::{EntryState, EvictionOrigin, PageEntry, QueueKind};
use super::error::Error;
use super::free_frames::FreeFrames;
use super::page_table::PageTable;
use super::queues::{FramePlace, FrameQueues};
use super::readers::GracePeriod;
use super::s3fifo::S3Fifo;
use super::sync::{Arc, AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, counters};
use super::waiter::LoadWaiter;

/// The behaviour of a caller that finds a page being loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BusyPolicy {
    /// Wait for it.
    Wait,
    /// Wait for it, without counting the caller again: it began this load, or it retries.
    Join,
    /// Leave it to its loader.
    Leave,
}

/// The result of [`FramePool::begin`].
#[derive(Debug)]
pub(crate) enum BeginOutcome {
    /// The page can be read by now.
    Readable,
    /// Another caller loads the page.
    Busy(Option<Arc<LoadWaiter>>),
    /// The caller must load the page.
    Load(LoadTicket),
    /// No frame is free.
    Full,
    /// The file was closed.
    Closed,
}

/// A page that is being loaded into a frame. It must be settled by [`FramePool::publish`],
/// [`FramePool::abandon`] or `FramePool::install`.
#[derive(Debug)]
#[must_use = "a load that is not settled is waited for forever"]
pub(crate) struct LoadTicket {
    pub(crate) page: u32,
    pub(crate) frame: u32,
    pub(super) queue: QueueKind,
    /// The entry as it was before.
    pub(super) before: PageEntry,
    /// Whether few frames are free, so that somebody should make room.
    pub(crate) short: bool,
}

/// The reason for loading a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadReason {
    /// Somebody reads it.
    Read,
    /// It may be read later.
    Prefetch,
}

/// The pool's counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PoolCounts {
    /// Pages published.
    pub(crate) loads: u64,
    /// Published pages that nobody had asked for yet.
    pub(crate) prefetched: u64,
    /// Pages that somebody waited for while another loaded them.
    pub(crate) coalesced: u64,
    /// Pages evicted to make room.
    pub(crate) evictions: u64,
    /// Loads that failed.
    pub(crate) failures: u64,
    /// Pages that their owner rewrote, and whose new content replaced the old.
    pub(crate) installed: u64,
}

impl PoolCounts {
    fn add_load(&mut self, reason: LoadReason) {
        self.loads += 1;
        self.prefetched += u64::from(reason == LoadReason::Prefetch);
    }
}

/// Frames that were taken out of their entries together.
#[derive(Debug)]
pub(super) struct RetiredBatch {
    pub(super) frames: Vec<u32>,
    pub(super) grace_period: GracePeriod,
}

/// The state that the lock guards.
#[derive(Debug)]
pub(super) struct PoolState {
    pub(super) queues: FrameQueues,
    pub(super) s3fifo: S3Fifo,
    /// Ready for use.
    pub(super) free: FreeFrames,
    /// Frames below this one have memory, even if they were never used.
    pub(super) cleared: u32,
    /// Frames from this one on are on loan, or will be once they are free.
    pub(super) limit: u32,
    /// Frames that were taken out of their entries, with no grace period begun yet.
    pub(super) removed: Vec<u32>,
    /// Frames that wait for their grace period, oldest first.
    pub(super) retired: VecDeque<RetiredBatch>,
    /// Retired frames whose grace period is over, and that guards keep.
    pub(super) held: Vec<u32>,
    waiters: HashMap<(u64, u32), Vec<Arc<LoadWaiter>>>,
    /// Open files, and closed files with pages left, by number.
    pub(super) files: HashMap<u64, Arc<PageTable>>,
    /// Closed files with the next part to sweep.
    pub(super) closed: VecDeque<(Arc<PageTable>, u32)>,
    /// Closed files that were swept, whose tables' memory must be given back.
    pub(super) swept: Vec<Arc<PageTable>>,
    /// Parts of tables whose memory is taken up, oldest first; may contain parts of files that are
    /// gone.
    pub(super) populated: VecDeque<(u64, u32)>,
    /// Number of parts of tables that are taken up.
    pub(super) parts: usize,
    /// Whether a thread is making room.
    pub(super) evicting: bool,
    pub(super) counts: PoolCounts,
}

/// The pool of frames.
#[derive(Debug)]
pub(crate) struct FramePool {
    pub(crate) arena: FrameArena,
    pub(super) pins: Box<[AtomicU32]>,
    state: Mutex<PoolState>,
    /// Files that were closed and not yet passed to eviction. Under a lock of their own, so that
    /// closing waits for nobody.
    pub(super) just_closed: Mutex<Vec<Arc<PageTable>>>,
    /// Maximum number of table parts that may be taken up at once.
    pub(super) parts_max: usize,
    /// Number of all frames, on loan or not.
    pub(super) frames: u32,
    /// Bytes of a part of a table; 0 if no frames are loaned to tables.
    pub(super) part_bytes: u64,
    /// Bytes of a frame, if frames are loaned.
    pub(super) frame_bytes: u64,
    /// Minimum number of frames on loan, whatever the tables take up.
    pub(super) reserved: AtomicU32,
    /// Frames outside a budget that was made smaller; they count as loaned, but to nobody.
    pub(super) withheld: AtomicU32,
    /// Whether the last victims could be found only by passing over many pages that are in use.
    pub(super) in_use: AtomicBool,
}

impl FramePool {
    /// Creates a pool of all the arena's frames, all free. Tables may take up `parts_max` parts.
    pub(crate) fn new(arena: FrameArena, frames: u32, parts_max: usize) -> Self {
        let state = PoolState {
            queues: FrameQueues::new(frames),
            s3fifo: S3Fifo::new(frames),
            free: FreeFrames::new(frames),
            cleared: 0,
            limit: frames,
            removed: Vec::new(),
            retired: VecDeque::new(),
            held: Vec::new(),
            waiters: HashMap::new(),
            files: HashMap::new(),
            closed: VecDeque::new(),
            swept: Vec::new(),
            populated: VecDeque::new(),
            parts: 0,
            evicting: false,
            counts: PoolCounts::default(),
        };
        let pins = counters(frames as usize);
        Self {
            arena,
            pins,
            state: Mutex::new(state),
            just_closed: Mutex::new(Vec::with_capacity(64)),
            parts_max,
            frames,
            part_bytes: 0,
            frame_bytes: 0,
            reserved: AtomicU32::new(0),
            withheld: AtomicU32::new(0),
            in_use: AtomicBool::new(false),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, PoolState> {
        ignore_poison(self.state.lock())
    }

    /// Whether loading a page would evict one that is used as often, judged by the last victims.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Adds a file.
    pub(crate) fn add(&self, file: Arc<PageTable>) {
        self.lock().files.insert(file.number, file);
    }

    /// Closes a file, in O(1): its pages can't be found any more, and their frames are reused
    /// first. Returns false if the file was closed before.
    pub(crate) fn close(&self, file: &Arc<PageTable>) -> bool {
        let first = file.table.close();
        if first {
            // The file's frames are available at once.
            self.in_use.store(false, Ordering::Relaxed);
            self.just_closed().push(Arc::clone(file));
        }
        first
    }

    pub(super) fn just_closed(&self) -> MutexGuard<'_, Vec<Arc<PageTable>>> {
        ignore_poison(self.just_closed.lock())
    }

    /// Checks a page again under the lock, and takes a frame for it if it is absent.
    pub(crate) fn begin(&self, file: &PageTable, page: u32, on_busy: BusyPolicy) -> BeginOutcome {
        let mut state = self.lock();
        let state = &mut *state;
        let Some(entry) = file.table.entry(page) else { return BeginOutcome::Closed };
        let before = PageEntry(entry.load(Ordering::Relaxed));
        match before.state() {
            EntryState::Resident { .. } | EntryState::Unread { .. } => BeginOutcome::Readable,
            EntryState::Loading { .. } => BeginOutcome::Busy((on_busy != BusyPolicy::Leave).then(|| {
                let waiter = Arc::new(LoadWaiter::new());
                state.waiters.entry((file.number, page)).or_default().push(Arc::clone(&waiter));
                state.counts.coalesced += u64::from(on_busy == BusyPolicy::Wait);
                waiter
            })),
            EntryState::Absent(evicted) => {
                let Some(frame) = state.free.take(state.limit) else { return BeginOutcome::Full };
                let queue = state.admit(file, evicted);
                state.queues.set(frame, FramePlace::Loading, Some((file.number, page)));
                if file.enters(page) {
                    self.populate(state, file, page);
                }
                entry.store(PageEntry::loading(frame).0, Ordering::Release);
                let short = self.is_short(state);
                BeginOutcome::Load(LoadTicket { page, frame, queue, before, short })
            }
        }
    }

    /// Whether few frames are free, and nobody is about to change that.
    pub(super) fn is_short(&self, state: &PoolState) -> bool {
        let low = state.s3fifo.batch() / 4;
        !state.evicting
            && (state.free.len(state.limit) < low
                || state.limit as usize > self.usable_frames(state) as usize + low)
    }

    /// Adds a waiter for a page whose load the caller itself has begun.
    pub(crate) fn join(&self, file: &PageTable, ticket: &LoadTicket) -> Arc<LoadWaiter> {
        let waiter = Arc::new(LoadWaiter::new());
        let mut state = self.lock();
        if state.is_superseded(ticket.frame) {
            drop(state);
            waiter.settle(Ok(()));
        } else {
            state.waiters.entry((file.number, ticket.page)).or_default().push(Arc::clone(&waiter));
        }
        waiter
    }

    /// Publishes a loaded page: it can be read from now on, unless the file was closed or the page
    /// rewritten meanwhile.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is settled once")]
    pub(crate) fn publish(
        &self,
        file: &PageTable,
        ticket: LoadTicket,
        reason: LoadReason,
        closed: impl Fn() -> Error,
    ) {
        let mut state = self.lock();
        let LoadTicket { page, frame, queue, .. } = ticket;
        file.counts.add_load(reason == LoadReason::Prefetch);
        if state.is_superseded(frame) {
            state.counts.add_load(reason);
            return state.retire_superseded(frame);
        }
        debug_assert_eq!(
            state.queues.frame(frame).place,
            FramePlace::Loading,
            "frame {frame} of page {page}"
        );
        let entry = file.table.any_entry(page);
        if !file.table.is_open() {
            entry.store(PageEntry::NEVER_SEEN.0, Ordering::Release);
            file.leaves(page);
            state.retire_superseded(frame);
            return Self::settle_waiters(state, file, page, &Err(closed()));
        }
        state.queues.push(queue, frame);
        state.counts.add_load(reason);
        let value = match reason {
            LoadReason::Read => PageEntry::resident(frame, file.priority.first_frequency()),
            LoadReason::Prefetch => PageEntry::unread(frame),
        };
        // Released: a reader that finds the frame by this value sees the page in it.
        entry.store(value.0, Ordering::Release);
        Self::settle_waiters(state, file, page, &Ok(()));
    }

    /// Settles all waiters for a page, without the lock.
    fn settle_waiters(
        mut state: MutexGuard<'_, PoolState>,
        file: &PageTable,
        page: u32,
        outcome: &Result<(), Error>,
    ) {
        let waiters = state.take_waiters(file.number, page);
        drop(state);
        for waiter in waiters {
            waiter.settle(outcome.clone());
        }
    }

    /// Fails a load: the page is absent as before, and all waiters get the error. Returns false if
    /// the page was rewritten meanwhile: then the failure says nothing about the page, and nobody
    /// waits for this load any more.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is settled once")]
    pub(crate) fn abandon(&self, file: &PageTable, ticket: LoadTicket, error: &Error) -> bool {
        let mut state = self.lock();
        let LoadTicket { page, frame, before, .. } = ticket;
        if state.is_superseded(frame) {
            self.free(&mut state, frame);
            return false;
        }
        debug_assert_eq!(
            state.queues.frame(frame).place,
            FramePlace::Loading,
            "frame {frame} of page {page}"
        );
        file.table.any_entry(page).store(before.0, Ordering::Release);
        file.leaves(page);
        // A reader may have seen the frame number in the entry, but only while the entry was not
        // readable.
        self.free(&mut state, frame);
        state.counts.failures += 1;
        Self::settle_waiters(state, file, page, &Err(error.clone()));
        true
    }

    /// Adds a pin. The caller holds the frame, has it pinned, or loads it.
    pub(crate) fn pin(&self, frame: u32) {
        let before = self.pins[frame as usize].fetch_add(1, Ordering::Relaxed);
        // 2^31 live guards of one page are a leak; the check stops well before the count wraps.
        assert!(before < u32::MAX / 2, "frame {frame} is pinned {before} times");
    }

    /// Removes a pin.
    pub(crate) fn unpin(&self, frame: u32) {
        self.pins[frame as usize].fetch_sub(1, Ordering::Release);
    }

    /// Returns the number of pages in frames, and the counters.
    pub(crate) fn totals(&self) -> (u64, PoolCounts) {
        let state = self.lock();
        let pages = state.queues.len(QueueKind::Small) + state.queues.len(QueueKind::Main);
        (pages as u64, state.counts)
    }
}

impl PoolState {
    /// Returns the queue for a missed page of a file, given what its entry remembers.
    pub(super) fn admit(&mut self, file: &PageTable, evicted: Option<(EvictionOrigin, u32)>) -> QueueKind {
        let small = self.queues.len(QueueKind::Small);
        file.priority.queue().unwrap_or_else(|| self.s3fifo.admit(evicted, small))
    }

    /// Whether the entry was taken from the load into this frame.
    fn is_superseded(&self, frame: u32) -> bool {
        self.queues.frame(frame).place == FramePlace::Detached
    }

    /// Retires a frame that only its loader sees, and may already keep for a guard.
    ///  No readable entry ever named it, so it needs no grace period.
    fn retire_superseded(&mut self, frame: u32) {
        self.queues.set(frame, FramePlace::Retired, None);
        self.held.push(frame);
    }

    pub(super) fn take_waiters(&mut self, file: u64, page: u32) -> Vec<Arc<LoadWaiter>> {
        if self.waiters.is_empty() {
            Vec::new()
        } else {
            self.waiters.remove(&(file, page)).unwrap_or_default()
        }
    }
}
