//! Making room: taking pages out of their entries, and their frames back when nobody looks at them any more.
//!
//! Invariants: one thread at a time evicts; work under the lock is bounded by the batch; nobody is waited for. Pages of
//! closed files go first. Fails to free anything where all frames are held, pinned, loading, or waiting for a reader that
//! was stopped; it says so, and its caller does without a frame.

use super::pool::{Book, Pool, Retired};
use super::queues::Place;
use super::readers::Readers;
use super::sync::{Arc, Ordering};
use super::table::PART;
use super::translation::Translation;
use super::word::{Queue, State, Word};

/// Steps through the queues for each frame that is wished for: after these the next page goes whatever its frequency. Each
/// looks at memory that is cold, with the lock held; more than these were not seen to bring more hits, but for caches
/// that wish for one frame at a time.
const STEPS: usize = 8;

/// Steps at the least: a page with full frequency is passed four times before it goes.
const STEPS_LEAST: usize = 32;

/// Pages passed over for each victim from which on all pages count as in use. Where some are idle, a victim takes one or two
/// looks; where all are read again before their turn comes, as many as [`STEPS`] allows.
const IN_USE: u64 = 4;

impl Pool {
    /// Frees frames; true if some are free now.
    pub(crate) fn make_room(&self, readers: &Readers) -> bool {
        self.make_room_beyond(readers, 8)
    }

    /// Frees frames, but takes no more out of use while a batch of them waits for readers to move on.
    pub(crate) fn make_room_patiently(&self, readers: &Readers) -> bool {
        self.make_room_beyond(readers, u32::MAX)
    }

    /// Frees frames, with up to one part in `share` of them in limbo at once.
    fn make_room_beyond(&self, readers: &Readers, share: u32) -> bool {
        self.settle_lent(readers);
        {
            let mut book = self.book();
            let book = &mut *book;
            self.collect(book, readers);
            let batch = book.rule.batch();
            if book.evicting || book.free.len() >= batch {
                return !book.free.is_empty();
            }
            // A reader that is stopped for long must not drain the cache into limbo.
            let waiting: usize = book.limbo.iter().map(|retired| retired.frames.len()).sum();
            let enough =
                if book.free.is_empty() { ((book.limit / share) as usize).max(batch) } else { batch };
            if waiting >= enough {
                return !book.free.is_empty();
            }
            book.evicting = true;
            book.closed.extend(self.just_closed().drain(..).map(|file| (file, 0)));
            book.sweep_closed(batch);
            // Nothing that is in use goes while there is something that is not.
            if book.out.is_empty() {
                self.select(book, batch);
            }
        }
        self.retire(readers);
        let mut book = self.book();
        book.evicting = false;
        self.collect(&mut book, readers);
        !book.free.is_empty()
    }

    /// Takes some pages of closed files out, so that files that come and go without anyone in need of room leave nothing
    /// behind.
    pub(crate) fn tidy(&self, readers: &Readers) {
        {
            let mut book = self.book();
            book.closed.extend(self.just_closed().drain(..).map(|file| (file, 0)));
            if book.closed.is_empty() {
                return;
            }
            let batch = book.rule.batch();
            book.sweep_closed(batch);
        }
        self.retire(readers);
        self.collect(&mut self.book(), readers);
        self.settle_lent(readers);
    }

    /// Begins the grace of all frames that were taken out of their entries.
    pub(super) fn retire(&self, readers: &Readers) {
        let (frames, swept) = {
            let mut book = self.book();
            (std::mem::take(&mut book.out), std::mem::take(&mut book.swept))
        };
        // A handle that somebody keeps keeps the table, but not what it takes up.
        for file in swept {
            file.table.forget_all();
        }
        if frames.is_empty() {
            return;
        }
        // Not under the lock: the barrier takes microseconds.
        let grace = readers.grace();
        let mut book = self.book();
        match grace {
            Some(grace) => book.limbo.push_back(Retired { frames, grace }),
            // Nobody knows who reads them: they stay out of use, and reads go past the cache.
            None => book.out.extend(frames),
        }
    }

    /// Frees the frames of limbo whose time has come.
    pub(super) fn collect(&self, book: &mut Book, readers: &Readers) {
        let mut due = Vec::new();
        book.limbo.retain_mut(|retired| {
            let over = retired.grace.is_over();
            if over {
                due.append(&mut retired.frames);
            }
            !over
        });
        if due.is_empty() && book.held.is_empty() {
            return;
        }
        due.append(&mut book.held);
        // Holds first, pins second: a pin is made under a hold, so one that replaces a hold is seen.
        let holds = readers.held();
        for frame in due {
            let pinned = self.pins[frame as usize].load(Ordering::Acquire) > 0;
            if holds.binary_search(&frame).is_ok() || pinned {
                book.held.push(frame);
            } else {
                self.free(book, frame);
            }
        }
    }

    /// Takes the next victims of the rule out of their entries.
    fn select(&self, book: &mut Book, want: usize) {
        let before = book.counts.evictions;
        let passed = self.take_victims(book, want);
        let taken = book.counts.evictions - before;
        if taken > 0 {
            self.in_use.store(passed >= IN_USE * taken, Ordering::Relaxed);
        }
    }

    /// The same; how many pages were passed over since they are in use.
    fn take_victims(&self, book: &mut Book, want: usize) -> u64 {
        let mut passed = 0;
        let mut file: Option<Arc<Translation>> = None;
        let mut steps = (STEPS * want).max(STEPS_LEAST);
        while book.out.len() < want {
            let queue = book.rule.victim(book.queues.len(Queue::Small), book.queues.len(Queue::Main));
            let Some(frame) = book.queues.front(queue) else { break };
            steps = steps.saturating_sub(1);
            let record = *book.queues.frame(frame);
            if file.as_ref().is_none_or(|file| file.number != record.file) {
                file = book.files.get(&record.file).cloned();
            }
            let Some(file) = &file else { unreachable!("frame {frame} is of an unknown file {record:?}") };
            let entry = file.table.any_entry(record.page);
            let seen = entry.load(Ordering::Relaxed);
            let frequency = match Word(seen).state() {
                State::Resident { frequency, .. } => frequency,
                State::Unread { .. } => 0,
                other => unreachable!("frame {frame} is queued and its entry says {other:?}"),
            };
            // Relaxed: what a reader that still finds the old word does is the grace's matter.
            let replace = |with: Word| {
                entry.compare_exchange(seen, with.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            };
            if frequency > 0 && steps > 0 {
                let left = if queue == Queue::Small { 0 } else { frequency - 1 };
                passed += 1;
                if replace(Word::resident(frame, left)) {
                    book.queues.move_to(Queue::Main, frame);
                }
                continue;
            }
            if self.pins[frame as usize].load(Ordering::Relaxed) > 0 {
                // Not worth taking out while it is pinned, and out of the way of those on probation. If all are, the
                // steps run out.
                book.queues.move_to(Queue::Main, frame);
                if steps == 0 {
                    break;
                }
                continue;
            }
            let mut rule = book.rule.clone();
            if replace(rule.evict(queue)) {
                book.rule = rule;
                book.queues.remove(frame);
                book.counts.evictions += 1;
                file.leaves(record.page);
                book.out.push(frame);
            }
        }
        passed
    }

    /// A frame that nobody has any more.
    pub(super) fn free(&self, book: &mut Book, frame: u32) {
        if frame >= book.limit {
            self.give_back(frame);
            book.queues.set(frame, Place::Lent, None);
        } else {
            book.queues.set(frame, Place::Free, None);
            book.free.push(frame);
        }
    }
}

impl Book {
    /// Takes pages of closed files out of their entries, part by part.
    fn sweep_closed(&mut self, want: usize) {
        // Empty parts cost a look each; no more of them under one lock than this.
        let mut looks = 1024;
        while self.out.len() < want && looks > 0 {
            let Some((file, part)) = self.closed.front_mut() else { return };
            if *part == file.parts() || file.live_pages() == 0 {
                // Loads under way are settled by their own tickets, which need no number.
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
            looks -= 1;
            if file.live(swept) > 0 {
                self.take_out(&file, swept);
            }
        }
    }

    /// Takes all pages of a part out of their entries, but for those that are loading.
    pub(super) fn take_out(&mut self, file: &Translation, part: u32) {
        let end = (part * PART).saturating_add(PART).min(file.table.pages());
        for page in part * PART..end {
            self.take_out_page(file, page);
        }
    }

    /// Takes a page out of its entry, and forgets that it was ever seen.
    pub(super) fn take_out_page(&mut self, file: &Translation, page: u32) {
        let entry = file.table.any_entry(page);
        let Some(frame) = Word(entry.load(Ordering::Relaxed)).readable() else { return };
        // A hit that raises the frequency at the same time fails to: it compares with the word that was there.
        entry.store(Word::NEVER_SEEN.0, Ordering::Relaxed);
        self.queues.remove(frame);
        file.leaves(page);
        self.out.push(frame);
    }
}
