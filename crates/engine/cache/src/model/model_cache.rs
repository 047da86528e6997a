//! The state that the threads of a model share, and their operations: the steps of `frames` and
//! `load`, with numbers in place of bytes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::{Condvar, Mutex};

use super::arena::FrameArena;
use super::entry::{EntryState, PageEntry};
use super::error::Error;
use super::lookup::{self, KeptFrame, LookupAttempt};
use super::page_table::PageTable;
use super::pool::{BeginOutcome, BusyPolicy, FramePool, LoadReason, LoadTicket};
use super::queues::FramePlace;
use super::readers::{ReadSection, ReaderRegistry, ReaderSlot};
use super::sync::{AtomicU64, BarrierPair};
use super::table::EntryTable;
use super::waiter::LoadWaiter;
use crate::PageNo;

/// Attempts to make room before a page is read past the cache.
const MODEL_ROOM_ATTEMPTS: usize = 2;

/// The result of a read: the content of the page.
pub(super) type ReadOutcome = Result<u64, Error>;

/// A cache of few frames and few pages.
pub(super) struct ModelCache {
    pub(super) pool: FramePool,
    pub(super) readers: ReaderRegistry,
    pub(super) files: Vec<Arc<PageTable>>,
    /// The callers' slots, in the callers' order.
    pub(super) slots: Vec<Arc<ReaderSlot>>,
    frames: u32,
    /// Not loom's, like the next field: they are not checked, and each step would multiply the
    /// orders.
    loads: AtomicUsize,
    /// Number of writes of each page of the first file. Loom's: a load comes before or after a
    /// write.
    versions: Vec<AtomicU64>,
    bypasses: AtomicUsize,
}

/// Difference between the contents of two versions of a page.
pub(super) const VERSION_STRIDE: u64 = 1000;

/// Returns the content of a page that was never rewritten.
pub(super) fn content(file: usize, page: u32) -> u64 {
    file as u64 * 100 + u64::from(page) + 1
}

/// Returns a load's failure, identified by its number.
fn failure(number: usize) -> Error {
    Error::Rejected { path: PathBuf::new(), page: PageNo::new(0), reason: number.to_string().into() }
}

impl ModelCache {
    /// Creates files of the given numbers of pages, whose tables take up at most `parts_max` parts.
    pub(super) fn new(frames: u32, pages: &[u32], parts_max: usize) -> Self {
        let pool = FramePool::new(FrameArena::new(frames), frames, parts_max);
        let files: Vec<_> = (0..)
            .zip(pages)
            .map(|(number, &pages)| Arc::new(PageTable::new(number, EntryTable::new(pages))))
            .collect();
        for file in &files {
            pool.add(Arc::clone(file));
        }
        let readers = ReaderRegistry::new(BarrierPair);
        let (loads, bypasses) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let versions = Vec::new();
        Self { pool, readers, files, slots: Vec::new(), frames, loads, versions, bypasses }
    }

    /// Adds an owner who writes the pages of the first file.
    pub(super) fn written(mut self) -> Self {
        self.versions = (0..self.files[0].table.pages()).map(|_| AtomicU64::new(0)).collect();
        self
    }

    /// Makes these pages of the first file resident.
    pub(super) fn with(self, pages: &[u32]) -> Self {
        for &page in pages {
            assert!(self.load(0, page, LoadReason::Read));
        }
        self.loads.store(0, Ordering::Relaxed);
        self
    }

    /// Makes a page of the first file resident, and reads it until its frequency is at the maximum.
    pub(super) fn with_settled(self, page: u32) -> Self {
        let cache = self.with(&[page]);
        let slot = cache.readers.register();
        for _ in 0..3 {
            cache.copy(&slot, 0, page);
        }
        slot.give_back();
        cache
    }

    /// Prefetches a page of the first file.
    pub(super) fn with_unread(self, page: u32) -> Self {
        assert!(self.load(0, page, LoadReason::Prefetch));
        self.loads.store(0, Ordering::Relaxed);
        self
    }

    /// Loads a page if there is a frame for it.
    pub(super) fn load(&self, file: usize, page: u32, reason: LoadReason) -> bool {
        let begun = self.pool.begin(&self.files[file], page, BusyPolicy::Leave);
        let BeginOutcome::Load(ticket) = begun else { return false };
        self.fill(file, &ticket);
        self.pool.publish(&self.files[file], ticket, reason, Self::closed);
        true
    }

    pub(super) fn loads(&self) -> usize {
        self.loads.load(Ordering::Relaxed)
    }

    pub(super) fn bypasses(&self) -> usize {
        self.bypasses.load(Ordering::Relaxed)
    }

    pub(super) fn closed() -> Error {
        Error::Closed { path: PathBuf::new() }
    }

    pub(super) fn close(&self, file: usize) {
        self.pool.close(&self.files[file]);
    }

    pub(super) fn make_room(&self) -> bool {
        self.pool.make_room(&self.readers)
    }

    /// Writes a page of the first file to the device, as its owner does.
    pub(super) fn write(&self, page: u32) {
        self.versions[page as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the content of a page on the device.
    fn on_device(&self, file: usize, page: u32) -> u64 {
        // By a swap, which sees the last write whatever the order, like a read of the device.
        let version = |version: &AtomicU64| version.fetch_add(0, Ordering::Relaxed);
        let version = if file == 0 { self.versions.get(page as usize).map_or(0, version) } else { 0 };
        content(file, page) + VERSION_STRIDE * version
    }

    /// Does `OwnedFile::discard` for a page of the first file.
    pub(super) fn discard(&self, page: u32) {
        self.pool.discard(&self.files[0], &[page]);
    }

    /// Does `OwnedFile::install` for a page of the first file, with its content on the device.
    pub(super) fn install(&self, page: u32, reason: LoadReason) -> bool {
        let file = &self.files[0];
        let attempt = || self.pool.begin_install(file, page);
        let Some(ticket) = attempt().or_else(|| self.make_room().then(attempt).flatten()) else {
            self.discard(page);
            return false;
        };
        self.pool.arena.write(ticket.frame, self.on_device(0, page));
        self.pool.install(file, ticket, reason)
    }

    /// Acts as the device: writes the page into the frame.
    pub(super) fn fill(&self, file: usize, ticket: &LoadTicket) -> usize {
        self.pool.arena.write(ticket.frame, self.on_device(file, ticket.page));
        self.loads.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Does `frames::copy`: returns the content of the page, if it can be read.
    pub(super) fn copy(&self, slot: &ReaderSlot, file: usize, page: u32) -> Option<u64> {
        let (barrier, table) = (self.readers.barrier(), &self.files[file].table);
        lookup::lookup(slot, barrier, table, page, LookupAttempt::First, |frame| self.pool.arena.read(frame))
    }

    /// Does `frames::keep`.
    pub(super) fn keep(&self, slot: &ReaderSlot, file: usize, page: u32, by_slot: bool) -> Option<KeptFrame> {
        let (barrier, table) = (self.readers.barrier(), &self.files[file].table);
        lookup::lookup(slot, barrier, table, page, LookupAttempt::First, |frame| {
            lookup::keep(slot, &self.pool, frame, by_slot)
        })
    }

    /// Pins a kept frame.
    pub(super) fn pin(&self, slot: &ReaderSlot, kept: &KeptFrame) -> KeptFrame {
        lookup::keep(slot, &self.pool, kept.frame, false)
    }

    /// Does `frames::release`.
    pub(super) fn release(&self, slot: &ReaderSlot, kept: KeptFrame) {
        lookup::release(Some(slot), &self.pool, kept);
    }

    /// Does `FileHandle::keep_missed` for an absent page, up to `LoadingFrame::publish_kept`.
    /// `None` if there is no frame.
    pub(super) fn load_kept(
        &self,
        slot: &ReaderSlot,
        file: usize,
        page: u32,
        by_slot: bool,
    ) -> Option<KeptFrame> {
        let of = &self.files[file];
        let BeginOutcome::Load(ticket) = self.pool.begin(of, page, BusyPolicy::Leave) else { return None };
        self.fill(file, &ticket);
        let kept = lookup::keep(slot, &self.pool, ticket.frame, by_slot);
        self.pool.publish(of, ticket, LoadReason::Read, Self::closed);
        Some(kept)
    }

    /// Starts a read that is stopped in the middle. Returns the frame that it found, and the
    /// section that it does not leave.
    pub(super) fn stop_within(
        &self,
        slot: &ReaderSlot,
        file: usize,
        page: u32,
    ) -> (Option<u32>, ReadSection) {
        let section = slot.enter(self.readers.barrier());
        let entry = self.files[file].table.entry(page);
        (entry.and_then(|entry| PageEntry(entry.load(Ordering::Acquire)).readable()), section)
    }

    /// Returns the decoded entry of a page.
    pub(super) fn state(&self, file: usize, page: u32) -> EntryState {
        PageEntry(self.files[file].table.any_entry(page).load(Ordering::Relaxed)).state()
    }

    /// Reads through a guard.
    pub(super) fn read_kept(&self, kept: &KeptFrame) -> u64 {
        self.pool.arena.read(kept.frame)
    }

    /// Does `read_at`: a hit, or a load.
    pub(super) fn read(&self, slot: &ReaderSlot, file: usize, page: u32) -> ReadOutcome {
        self.read_by(slot, file, page, |_| Ok(()), LoadWaiter::wait)
    }

    /// Reads a page; if it must be loaded, the load fails, with its number.
    pub(super) fn read_failing(&self, slot: &ReaderSlot, file: usize, page: u32) -> ReadOutcome {
        self.read_by(slot, file, page, |load| Err(failure(load)), LoadWaiter::wait)
    }

    /// Reads like a future that awaits another's load, and is polled again when it is woken.
    pub(super) fn read_async(&self, slot: &ReaderSlot, file: usize, page: u32) -> ReadOutcome {
        self.read_by(slot, file, page, |_| Ok(()), |waiter| block_on(|context| waiter.poll(context)))
    }

    /// Does `FileHandle::begin_awaited`: begins the load, then waits for it as one of its waiters,
    /// while it ends on another thread. Here it ends before the wait.
    pub(super) fn read_joined(&self, slot: &ReaderSlot, file: usize, page: u32) -> ReadOutcome {
        let of = &self.files[file];
        if let BeginOutcome::Load(ticket) = self.pool.begin(of, page, BusyPolicy::Leave) {
            let waiter = self.pool.join(of, &ticket);
            self.fill(file, &ticket);
            self.pool.publish(of, ticket, LoadReason::Read, Self::closed);
            block_on(|context| waiter.poll(context))?;
        }
        self.read(slot, file, page)
    }

    /// Does `FileHandle::miss` and `FileHandle::read_missed`.
    fn read_by(
        &self,
        slot: &ReaderSlot,
        file: usize,
        page: u32,
        check: impl Fn(usize) -> Result<(), Error>,
        wait: impl Fn(&LoadWaiter) -> Result<(), Error>,
    ) -> ReadOutcome {
        let of = &self.files[file];
        'read: loop {
            if let Some(read) = self.copy(slot, file, page) {
                return Ok(read);
            }
            for _ in 0..MODEL_ROOM_ATTEMPTS {
                match self.pool.begin(of, page, BusyPolicy::Wait) {
                    BeginOutcome::Readable => continue 'read,
                    BeginOutcome::Busy(waiter) => {
                        wait(&waiter.expect("one who waits"))?;
                        continue 'read;
                    }
                    BeginOutcome::Load(ticket) => {
                        let load = self.fill(file, &ticket);
                        if let Err(error) = check(load) {
                            if self.pool.abandon(of, ticket, &error) {
                                return Err(error);
                            }
                            continue 'read;
                        }
                        let read = self.pool.arena.read(ticket.frame);
                        self.pool.publish(of, ticket, LoadReason::Read, Self::closed);
                        return Ok(read);
                    }
                    BeginOutcome::Closed => return Err(Self::closed()),
                    BeginOutcome::Full => {
                        self.make_room();
                    }
                }
            }
            self.bypasses.fetch_add(1, Ordering::Relaxed);
            return Ok(self.on_device(file, page));
        }
    }

    /// Checks the state when nobody reads or loads any more. Each page that can be read has its
    /// frame and its content; each frame is in one place, and none is lost.
    pub(super) fn assert_sound(&self) {
        // Retired frames come back, now that all readers have left.
        self.make_room();
        let state = self.pool.lock();
        let mut frames = Vec::new();
        for (number, file) in self.files.iter().enumerate() {
            let before = frames.len();
            for page in 0..file.table.pages() {
                match self.state(number, page) {
                    EntryState::Resident { frame, .. } | EntryState::Unread { frame } => {
                        let record = state.queues.frame(frame);
                        assert_eq!((record.file, record.page), (number as u64, page), "frame {frame}");
                        assert_eq!(
                            self.pool.arena.read(frame),
                            self.on_device(number, page),
                            "frame {frame}"
                        );
                        frames.push(frame);
                    }
                    EntryState::Absent(_) => {}
                    loading @ EntryState::Loading { .. } => {
                        panic!("page {page} of file {number}: {loading:?}")
                    }
                }
            }
            assert_eq!(file.live_pages(), (frames.len() - before) as u64, "of file {number}");
        }
        let parts: usize = state.files.values().map(|file| file.populated()).sum();
        assert_eq!(state.parts, parts, "parts of tables");
        let queued = |frame: &u32| matches!(state.queues.frame(*frame).place, FramePlace::Queued(_));
        assert!(frames.iter().all(queued), "pages in frames that are in no queue");
        assert!(state.retired.is_empty() && state.held.is_empty(), "nobody reads them");
        frames.extend(state.free.used().iter().chain(&state.removed));
        frames.extend(state.free.first_unused()..self.frames);
        frames
            .extend((0..self.frames).filter(|&frame| state.queues.frame(frame).place == FramePlace::OnLoan));
        frames.sort_unstable();
        assert_eq!(frames, (0..self.frames).collect::<Vec<_>>(), "each frame in one place");
    }
}

/// Wakes a thread that is in [`block_on`].
struct ThreadSignal {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for ThreadSignal {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

fn block_on<T>(poll: impl Fn(&Context<'_>) -> Poll<T>) -> T {
    let signal = Arc::new(ThreadSignal { woken: Mutex::new(false), changed: Condvar::new() });
    let waker = Waker::from(Arc::clone(&signal));
    loop {
        if let Poll::Ready(value) = poll(&Context::from_waker(&waker)) {
            return value;
        }
        let mut woken = signal.woken.lock().unwrap();
        while !*woken {
            woken = signal.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
}
