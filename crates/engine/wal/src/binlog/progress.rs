//! Progress of the log: its written and synced ends, its segments, and the positions of its
//! followers.
//!
//! Invariants:
//! 1. `durable <= end`; both only grow, unless the end is cut off, and move to a new segment only
//!    when the previous one is sealed here.
//! 2. A follower's position here is never ahead of its next unread record.
//! 3. A segment is listed here while a follower is in it or before it. Only a forced purge, or a
//!    truncation, removes it earlier, and then the followers in it are cut off.
//! 4. No waker is called under the lock.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use pagekeeper_kernel::mutex::ignore_poison;

use super::segment::SEGMENT_HEADER_BYTES;
use super::sync::{Arc, AtomicBool, Condvar, Mutex, MutexGuard, Ordering};
use crate::Error;
use crate::position::Position;

/// A segment of the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) salt: u32,
    /// The end of its records, in bytes, once it is settled.
    pub(super) sealed: Option<u64>,
}

/// The limit up to which a follower may read in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadLimit {
    /// Up to this byte now, perhaps further later.
    Now(u64),
    /// Up to this byte; the next segment follows.
    Sealed(u64),
}

/// One follower, as the log sees it.
#[derive(Debug)]
struct FollowerState {
    at: Position,
    durable_only: bool,
    waker: Option<Waker>,
    cut_off: Arc<AtomicBool>,
}

#[derive(Debug)]
struct ProgressState {
    end: Position,
    durable: Position,
    segments: VecDeque<Segment>,
    followers: BTreeMap<u64, FollowerState>,
    next_follower: u64,
    /// Number of threads that wait for the condition variable.
    asleep: usize,
    failed: Option<Error>,
    closed: bool,
}

impl ProgressState {
    fn first(&self) -> Position {
        Position {
            segment: self.segments.front().map_or(self.end.segment, |first| first.number),
            offset: SEGMENT_HEADER_BYTES,
        }
    }

    fn segment(&self, number: u64) -> Option<&Segment> {
        let first = self.segments.front()?.number;
        self.segments.get(usize::try_from(number.checked_sub(first)?).ok()?)
    }

    /// Returns the position up to which a follower may read now. After a failure, unsynced records
    /// may be gone.
    fn readable(&self, durable_only: bool) -> Position {
        if durable_only || self.failed.is_some() { self.durable } else { self.end }
    }

    /// Whether a follower at `at` has something to do: read, move on, or end.
    fn has_news(&self, at: Position, durable_only: bool) -> bool {
        self.readable(durable_only) > at || self.closed || self.failed.is_some()
    }
}

/// The state that the writer and the followers share.
#[derive(Debug)]
pub(super) struct LogProgress {
    state: Mutex<ProgressState>,
    news: Condvar,
}

/// A follower's registration.
#[derive(Debug)]
pub(super) struct FollowerRegistration {
    pub(super) id: u64,
    pub(super) segment: Segment,
    pub(super) cut_off: Arc<AtomicBool>,
}

impl LogProgress {
    /// Creates the progress of a log that ends at this offset of its last segment.
    pub(super) fn new(segments: VecDeque<Segment>, offset: u64) -> Self {
        let end = Position { segment: segments.back().map_or(1, |last| last.number), offset };
        let state = ProgressState {
            end,
            durable: end,
            segments,
            followers: BTreeMap::new(),
            next_follower: 0,
            asleep: 0,
            failed: None,
            closed: false,
        };
        Self { state: Mutex::new(state), news: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        ignore_poison(self.state.lock())
    }

    /// Changes the state, and wakes all followers.
    fn update(&self, change: impl FnOnce(&mut ProgressState)) {
        let mut state = self.lock();
        let before = (state.end, state.durable);
        change(&mut state);
        debug_assert!(state.durable <= state.end && before.0 <= state.end && before.1 <= state.durable);
        let wakers: Vec<_> =
            state.followers.values_mut().filter_map(|follower| follower.waker.take()).collect();
        let asleep = state.asleep > 0;
        drop(state);
        if asleep {
            self.news.notify_all();
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(super) fn wrote(&self, end: Position) {
        self.update(|state| state.end = end);
    }

    pub(super) fn synced(&self, durable: Position) {
        self.update(|state| state.durable = durable);
    }

    /// Seals the last segment and adds the new one.
    pub(super) fn rotated(&self, sealed: u64, new: Segment) {
        self.update(|state| {
            if let Some(last) = state.segments.back_mut() {
                last.sealed = Some(sealed);
            }
            state.segments.push_back(new);
            state.end = Position { segment: new.number, offset: SEGMENT_HEADER_BYTES };
            state.durable = state.end;
        });
    }

    pub(super) fn failed(&self, error: &Error) {
        self.update(|state| {
            state.failed.get_or_insert_with(|| error.clone());
        });
    }

    pub(super) fn closed(&self) {
        self.update(|state| state.closed = true);
    }

    pub(super) fn first(&self) -> Position {
        self.lock().first()
    }

    pub(super) fn end(&self) -> Position {
        self.lock().end
    }

    pub(super) fn durable(&self) -> Position {
        self.lock().durable
    }

    /// Returns the position of each follower.
    pub(super) fn followers(&self) -> Vec<(u64, Position)> {
        self.lock().followers.iter().map(|(id, follower)| (*id, follower.at)).collect()
    }

    /// Registers a follower.
    pub(super) fn register(&self, from: Position, durable_only: bool) -> Result<FollowerRegistration, Error> {
        let mut state = self.lock();
        let first = state.first();
        let at = Position { offset: from.offset.max(SEGMENT_HEADER_BYTES), ..from };
        if at < first {
            return Err(Error::Purged { position: from, first });
        }
        let segment = state.segment(at.segment).copied();
        let end = match segment {
            Some(Segment { sealed: Some(sealed), number, .. }) => {
                Position { segment: number, offset: sealed }
            }
            _ => state.end,
        };
        let Some(segment) = segment.filter(|_| at <= end) else {
            return Err(Error::PastEnd { position: from, end });
        };
        let id = state.next_follower;
        state.next_follower += 1;
        let cut_off = Arc::<AtomicBool>::default();
        let follows = FollowerState { at, durable_only, waker: None, cut_off: Arc::clone(&cut_off) };
        state.followers.insert(id, follows);
        Ok(FollowerRegistration { id, segment, cut_off })
    }

    /// Notes that a follower has read everything before `at`. Returns its previous position.
    pub(super) fn moved(&self, id: u64, at: Position) -> Position {
        let mut state = self.lock();
        state.followers.get_mut(&id).map_or(at, |follower| mem::replace(&mut follower.at, at))
    }

    /// Returns a segment, if it exists and the follower was not cut off, and notes that the follower
    /// begins to read it.
    pub(super) fn enter(&self, id: u64, at: Position) -> Option<Segment> {
        let mut state = self.lock();
        let segment = state.segment(at.segment).copied()?;
        if let Some(follower) = state.followers.get_mut(&id) {
            if follower.cut_off.load(Ordering::Acquire) {
                return None;
            }
            follower.at = at;
        }
        Some(segment)
    }

    pub(super) fn left(&self, id: u64) {
        self.lock().followers.remove(&id);
    }

    /// Returns the limit up to which a follower may read in the segment of `at`. If there is
    /// nothing more to read, returns the error of a failed log, or `Ok(None)` for a closed one.
    pub(super) fn limit(&self, at: Position, durable_only: bool) -> Result<Option<ReadLimit>, Error> {
        let state = self.lock();
        let readable = state.readable(durable_only);
        if readable <= at {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if state.closed {
                return Ok(None);
            }
        }
        Ok(Some(match state.segment(at.segment).and_then(|segment| segment.sealed) {
            Some(sealed) => ReadLimit::Sealed(sealed),
            None if readable.segment == at.segment => ReadLimit::Now(readable.offset),
            None => ReadLimit::Now(SEGMENT_HEADER_BYTES),
        }))
    }

    /// Waits until there is news for a follower. Returns false at the deadline if there is none.
    pub(super) fn wait(
        &self,
        at: Position,
        durable_only: bool,
        cut_off: &AtomicBool,
        until: Option<Instant>,
    ) -> bool {
        let mut state = self.lock();
        loop {
            if state.has_news(at, durable_only) || cut_off.load(Ordering::Acquire) {
                return true;
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            state.asleep += 1;
            state = match left {
                None => ignore_poison(self.news.wait(state)),
                Some(left) => ignore_poison(self.news.wait_timeout(state, left)).0,
            };
            state.asleep -= 1;
        }
    }

    /// Checks for news like [`Self::wait`], but leaves a waker instead of waiting.
    pub(super) fn poll(&self, id: u64, at: Position, context: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        let Some(follower) = state.followers.get(&id) else { return Poll::Ready(()) };
        let durable_only = follower.durable_only;
        if state.has_news(at, durable_only) || follower.cut_off.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if let Some(follower) = state.followers.get_mut(&id) {
            match &mut follower.waker {
                Some(waker) => waker.clone_from(context.waker()),
                none => *none = Some(context.waker().clone()),
            }
        }
        Poll::Pending
    }

    /// Removes the segments before `number`, and returns them. Fails if a follower is in one of
    /// them, unless forced: then that follower is cut off.
    pub(super) fn purge(&self, number: u64, forced: bool) -> Result<Vec<Segment>, Error> {
        let mut purged = Vec::new();
        let mut result = Ok(());
        self.update(|state| {
            let inside = state
                .followers
                .values()
                .filter(|follower| follower.at.segment < number && !follower.cut_off.load(Ordering::Acquire));
            if let Some(position) = inside.map(|follower| follower.at).min().filter(|_| !forced) {
                result = Err(Error::Followed { position });
                return;
            }
            for follower in state.followers.values().filter(|follower| follower.at.segment < number) {
                follower.cut_off.store(true, Ordering::Release);
            }
            while state.segments.front().is_some_and(|first| first.number < number) {
                purged.extend(state.segments.pop_front());
            }
        });
        result.map(|()| purged)
    }

    /// Returns the segments, oldest first.
    pub(super) fn segments(&self) -> Vec<Segment> {
        self.lock().segments.iter().copied().collect()
    }

    /// Returns the segment of a position, and the end of its records; `None` if that is the log's
    /// end.
    pub(super) fn place_of(&self, position: Position) -> Result<Option<(Segment, u64)>, Error> {
        let state = self.lock();
        let (first, end) = (state.first(), state.end);
        let Some(segment) = state.segment(position.segment).filter(|_| position >= first) else {
            let purged = Error::Purged { position, first };
            return Err(if position < first { purged } else { Error::PastEnd { position, end } });
        };
        let last = segment.sealed.unwrap_or(end.offset);
        if position.offset > last {
            return Err(Error::PastEnd { position, end: Position { offset: last, ..position } });
        }
        Ok(Some((*segment, last)).filter(|_| position < end))
    }

    /// Fails if a follower is in this segment or a later one, unless forced.
    pub(super) fn check_followers(&self, number: u64, forced: bool) -> Result<(), Error> {
        let inside = self.followers().into_iter().filter(|(_, at)| at.segment >= number && !forced);
        inside.map(|(_, at)| at).min().map_or(Ok(()), |position| Err(Error::Followed { position }))
    }

    /// Sets the end of the log back. Followers in its segment or later ones are cut off.
    pub(super) fn truncated(&self, end: Position) {
        let mut state = self.lock();
        state.segments.retain(|segment| segment.number <= end.segment);
        if let Some(last) = state.segments.back_mut() {
            // No segment follows until the next append.
            last.sealed = None;
        }
        (state.end, state.durable) = (end, end);
        let cut_off = state.followers.values_mut().filter(|follower| follower.at.segment >= end.segment);
        let wakers: Vec<_> = cut_off
            .filter_map(|follower| {
                follower.cut_off.store(true, Ordering::Release);
                follower.waker.take()
            })
            .collect();
        drop(state);
        self.news.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns why a follower at this position was cut off.
    pub(super) fn reason(&self, position: Position) -> Error {
        let first = self.first();
        if position.segment < first.segment {
            Error::Purged { position, first }
        } else {
            Error::Truncated { position }
        }
    }

    /// Restores segments whose purge failed.
    pub(super) fn restore(&self, purged: &[Segment]) {
        let mut state = self.lock();
        for segment in purged.iter().rev() {
            state.segments.push_front(*segment);
        }
    }
}
