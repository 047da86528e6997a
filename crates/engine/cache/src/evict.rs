//! Making room: taking pages out of their entries, and freeing their frames once nobody reads them.
//!
//! Invariants: one thread at a time evicts; work under the lock is bounded by the batch; nobody is
//! waited for. Pages of closed files go first. Nothing can be freed if all frames are held, pinned,
//! loading, or waiting for a stopped reader. The caller learns that, and does without a frame.

use std::ops::Range;

use super::entry::{EntryState, PageEntry, QueueKind};
use super::page_table::PageTable;
use super::pool::{FramePool, PoolState, RetiredBatch};
use super::queues::FramePlace;
use super::readers::ReaderRegistry;
use super::sync::{Arc, Ordering};

/// Steps through the queues for each wanted frame; after these the next page goes whatever its
/// frequency. Each step touches cold memory with the lock held. More steps did not bring more hits,
/// except for caches that want one frame at a time.
const EVICT_STEPS_PER_FRAME: usize = 8;

/// The minimum number of steps: a page with full frequency is passed four times before it goes.
const EVICT_STEPS_MIN: usize = 32;

/// All pages count as in use once this many pages were passed over for each victim. If some pages
/// are idle, a victim takes one or two checks; if all are read again before their turn comes, it
/// takes up to [`EVICT_STEPS_PER_FRAME`].
const IN_USE_PASSES_PER_VICTIM: u64 = 4;

impl FramePool {
    /// Frees frames. Returns whether some are free now.
    pub(crate) fn make_room(&self, readers: &ReaderRegistry) -> bool {
        self.make_room_beyond(readers, 8)
    }

    /// Frees frames, but takes no more out of use while a batch of them waits for readers.
    pub(crate) fn make_room_patiently(&self, readers: &ReaderRegistry) -> bool {
        self.make_room_beyond(readers, u32::MAX)
    }

    /// Frees frames, with up to one part in `share` of them retired at once.
    fn make_room_beyond(&self, readers: &ReaderRegistry, share: u32) -> bool {
        self.settle_loans(readers);
        {
            let mut state = self.lock();
            let state = &mut *state;
            self.collect(state, readers);
            let batch = state.s3fifo.batch();
            if state.evicting || state.free.len(state.limit) >= batch {
                return !state.free.is_empty(state.limit);
            }
            // A reader that is stopped for long must not retire the whole cache.
            let waiting: usize = state.retired.iter().map(|batch| batch.frames.len()).sum();
            let enough = if state.free.is_empty(state.limit) {
                ((state.limit / share) as usize).max(batch)
            } else {
                batch
            };
            if waiting >= enough {
                return !state.free.is_empty(state.limit);
            }
            state.evicting = true;
            state.closed.extend(self.just_closed().drain(..).map(|file| (file, 0)));
            state.sweep_closed(batch);
            // No page in use is evicted while unused frames remain.
            if state.removed.is_empty() {
                self.select(state, batch);
            }
        }
        self.retire(readers);
        let mut state = self.lock();
        state.evicting = false;
        self.collect(&mut state, readers);
        !state.free.is_empty(state.limit)
    }

    /// Removes some pages of closed files. Without this, files that come and go while nobody needs
    /// room would leave memory behind.
    pub(crate) fn tidy(&self, readers: &ReaderRegistry) {
        {
            let mut state = self.lock();
            state.closed.extend(self.just_closed().drain(..).map(|file| (file, 0)));
            if state.closed.is_empty() {
                return;
            }
            let batch = state.s3fifo.batch();
            state.sweep_closed(batch);
        }
        self.retire(readers);
        self.collect(&mut self.lock(), readers);
        self.settle_loans(readers);
    }

    /// Begins the grace period of all frames that were taken out of their entries.
    pub(super) fn retire(&self, readers: &ReaderRegistry) {
        let (frames, swept) = {
            let mut state = self.lock();
            (std::mem::take(&mut state.removed), std::mem::take(&mut state.swept))
        };
        // A handle that somebody keeps also keeps the table, but not the table's memory.
        for file in swept {
            file.table.forget_all();
        }
        if frames.is_empty() {
            return;
        }
        // Not under the lock: the barrier takes microseconds.
        let grace_period = readers.start_grace_period();
        let mut state = self.lock();
        match grace_period {
            Some(grace_period) => state.retired.push_back(RetiredBatch { frames, grace_period }),
            // The readers of these frames are unknown: the frames stay out of use, and reads go
            // past the cache.
            None => state.removed.extend(frames),
        }
    }

    /// Frees retired frames whose grace period is over.
    pub(super) fn collect(&self, state: &mut PoolState, readers: &ReaderRegistry) {
        let mut due = Vec::new();
        state.retired.retain_mut(|batch| {
            let over = batch.grace_period.is_over();
            if over {
                due.append(&mut batch.frames);
            }
            !over
        });
        if due.is_empty() && state.held.is_empty() {
            return;
        }
        due.append(&mut state.held);
        // Holds first, pins second: a pin is made under a hold, so a pin that replaces a hold is
        // seen.
        let holds = readers.held();
        for frame in due {
            let pinned = self.pins[frame as usize].load(Ordering::Acquire) > 0;
            if holds.binary_search(&frame).is_ok() || pinned {
                state.held.push(frame);
            } else {
                self.free(state, frame);
            }
        }
    }

    /// Takes the next victims out of their entries.
    fn select(&self, state: &mut PoolState, want: usize) {
        let before = state.counts.evictions;
        let passed = self.take_victims(state, want);
        let taken = state.counts.evictions - before;
        if taken > 0 {
            self.in_use.store(passed >= IN_USE_PASSES_PER_VICTIM * taken, Ordering::Relaxed);
        }
    }

    /// Takes the next victims. Returns the number of pages that were passed over because they are
    /// in use.
    fn take_victims(&self, state: &mut PoolState, want: usize) -> u64 {
        let mut passed = 0;
        let mut file: Option<Arc<PageTable>> = None;
        let mut steps = (EVICT_STEPS_PER_FRAME * want).max(EVICT_STEPS_MIN);
        while state.removed.len() < want {
            let queue =
                state.s3fifo.victim(state.queues.len(QueueKind::Small), state.queues.len(QueueKind::Main));
            let Some(frame) = state.queues.front(queue) else { break };
            steps = steps.saturating_sub(1);
            let record = *state.queues.frame(frame);
            if file.as_ref().is_none_or(|file| file.number != record.file) {
                file = state.files.get(&record.file).cloned();
            }
            let Some(file) = &file else { unreachable!("frame {frame} is of an unknown file {record:?}") };
            let entry = file.table.any_entry(record.page);
            let seen = entry.load(Ordering::Relaxed);
            let frequency = match PageEntry(seen).state() {
                EntryState::Resident { frequency, .. } => file.priority.counted(frequency),
                EntryState::Unread { .. } => 0,
                other => unreachable!("frame {frame} is queued and its entry says {other:?}"),
            };
            // Relaxed: the grace period covers readers that still find the old word.
            let replace = |with: PageEntry| {
                entry.compare_exchange(seen, with.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            };
            if steps > 0
                && let Some(left) = state.s3fifo.spare(queue, frequency)
            {
                passed += 1;
                if replace(PageEntry::resident(frame, left)) {
                    state.queues.move_to(QueueKind::Main, frame);
                }
                continue;
            }
            if self.pins[frame as usize].load(Ordering::Relaxed) > 0 {
                // Not worth evicting while pinned, and moved out of the way of pages on probation.
                // If all pages are pinned, the steps run out.
                state.queues.move_to(QueueKind::Main, frame);
                if steps == 0 {
                    break;
                }
                continue;
            }
            let mut s3fifo = state.s3fifo.clone();
            if replace(s3fifo.evict(queue, frequency)) {
                state.s3fifo = s3fifo;
                state.queues.remove(frame);
                state.counts.evictions += 1;
                file.counts.add_eviction();
                file.leaves(record.page);
                state.removed.push(frame);
            }
        }
        passed
    }

    /// Takes the readable pages of a range out of their entries. Returns their number.
    pub(crate) fn forget(&self, file: &PageTable, pages: Range<u32>, readers: &ReaderRegistry) -> u64 {
        let mut taken = 0;
        let parts =
            if pages.is_empty() { 0..0 } else { file.part_of(pages.start)..file.part_of(pages.end - 1) + 1 };
        for part in parts.filter(|&part| file.live(part) > 0) {
            let within = file.pages_of(part);
            let mut state = self.lock();
            let before = state.removed.len();
            if file.table.is_open() {
                for page in within.start.max(pages.start)..within.end.min(pages.end) {
                    state.take_out_page(file, page);
                }
            }
            taken += (state.removed.len() - before) as u64;
        }
        if taken > 0 {
            self.retire(readers);
            self.collect(&mut self.lock(), readers);
        }
        taken
    }

    /// Frees a frame that nobody references any more.
    pub(super) fn free(&self, state: &mut PoolState, frame: u32) {
        debug_assert!(
            matches!(
                state.queues.frame(frame).place,
                FramePlace::Loading | FramePlace::Detached | FramePlace::Retired
            ),
            "frame {frame} is freed from {:?}",
            state.queues.frame(frame).place
        );
        if frame >= state.limit {
            self.give_back(state, frame);
            state.queues.set(frame, FramePlace::OnLoan, None);
        } else {
            state.queues.set(frame, FramePlace::Free, None);
            state.free.put(frame);
        }
    }
}

impl PoolState {
    /// Takes pages of closed files out of their entries, part by part.
    fn sweep_closed(&mut self, want: usize) {
        // Empty parts cost a check each; this bounds the checks under one lock.
        let mut probes = 1024;
        while self.removed.len() < want && probes > 0 {
            let Some((file, part)) = self.closed.front_mut() else { return };
            if *part == file.parts() || file.live_pages() == 0 {
                // The tickets of loads in flight settle those loads, and need no number.
                if self.files.remove(&file.number).is_some() {
                    self.parts -= file.populated();
                }
                if let Some((file, _)) = self.closed.pop_front() {
                    self.swept.push(file);
                }
                continue;
            }
            let (file, swept) = (Arc::clone(file), *part);
            *part += 1;
            probes -= 1;
            if file.live(swept) > 0 {
                self.take_out(&file, swept);
            }
        }
    }

    /// Takes all pages of a part out of their entries, except those that are loading.
    pub(super) fn take_out(&mut self, file: &PageTable, part: u32) {
        for page in file.pages_of(part) {
            self.take_out_page(file, page);
        }
    }

    /// Takes a page out of its entry, and forgets that it was ever seen.
    pub(super) fn take_out_page(&mut self, file: &PageTable, page: u32) {
        let entry = file.table.any_entry(page);
        let Some(frame) = PageEntry(entry.load(Ordering::Relaxed)).readable() else { return };
        // A hit that raises the frequency at the same time fails to: it compares with the value
        // from before.
        entry.store(PageEntry::NEVER_SEEN.0, Ordering::Relaxed);
        self.queues.remove(frame);
        file.leaves(page);
        self.removed.push(frame);
    }
}
