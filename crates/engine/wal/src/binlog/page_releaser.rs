//! Decides which pages of the log may be resident and releases the others, by the exact rule of
//! `pagekeeper-policy`.
//!
//! The rule is `ReleaseBehindFollowers`. Windows of 2 MiB that were written or read are remembered
//! until they are released. The kernel is never queried about other pages. Pages that survive a
//! release (mapped, or locked by read-ahead) stay on the list, and their release is retried later.
//!
//! There is something to do in these cases:
//! - a leader's records begin a new window or segment, or [`WRITE_BACK_BYTES`] await writeback;
//! - a follower moves on to the next window.
//!
//! The log's own thread does it ([`super::release_thread`]); without one, whoever caused it does.
//! No lock is held over I/O. One thread at a time releases. A writer that arrives meanwhile
//! continues, unless too much is unwritten: then it waits.
//!
//! Invariants:
//! 1. Writeback is started for unsynced blocks once there are enough of them. It is waited for once
//!    the window is more than the slack behind the writer, even if a follower still needs the
//!    pages. At most the slack plus [`UNWRITTEN_BYTES_MAX`] stay dirty.
//! 2. Errors of writeback end the log. They are observed through the releaser's own descriptor, so
//!    that a sync by the writer's descriptor still reports them, too.
//! 3. Refused advice is not an error: it costs memory, never data.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use pagekeeper_io::{Error as IoError, IoFile};
use pagekeeper_kernel::mutex::{ignore_poison, lock};
use pagekeeper_kernel::page_size;
use pagekeeper_policy::allowance::{Follower, FollowerSet, ReleaseAllowance, WriterPosition};
use pagekeeper_policy::exact::{DueWork, WriteWatermarks, due_work};
use pagekeeper_policy::{READ_AHEAD, Rule, WINDOW};

use crate::position::Position;
use crate::record::BLOCK;

/// The maximum distance of the writer beyond the slack, in bytes, while another thread waits for
/// writeback.
const UNWRITTEN_BYTES_MAX: u64 = 4 * WINDOW;

/// Writeback is started once this many bytes were written, without waiting for the next sync, which
/// then has less to do.
const WRITE_BACK_BYTES: u64 = 256 << 10;

/// The release of pages that resisted is retried after this many passes.
const RETRY_PASSES: u64 = 16;

/// The maximum number of passes that one thread does for others before it returns to its own work.
const PASSES_MAX: usize = 4;

/// The pages of one segment.
struct SegmentPages {
    file: Arc<dyn IoFile>,
    /// Windows that may have resident pages, by their starts. The value is the retry period of the
    /// last failed release, if the window was not used since.
    windows: BTreeMap<u64, Option<u64>>,
    size: u64,
    /// Nothing before this offset is dirty.
    clean: u64,
    /// Writeback was started up to this offset.
    started: u64,
}

impl SegmentPages {
    fn mark(&mut self, range: &Range<u64>) {
        let mut window = range.start - range.start % WINDOW;
        while window < range.end {
            self.windows.insert(window, None);
            window += WINDOW;
        }
    }

    /// Returns the whole blocks whose writeback is worth a call, before the writer leaves a window.
    fn to_write_back(&self) -> Option<Range<u64>> {
        let whole = self.size - self.size % BLOCK;
        (whole >= self.started + WRITE_BACK_BYTES).then_some(self.started..whole)
    }

    /// Returns the windows that may have pages. Leaves out windows that resisted and are not to be
    /// retried yet.
    fn windows_to_try(&self, retry: u64) -> impl Iterator<Item = Range<u64>> {
        let size = self.size;
        let windows =
            self.windows.iter().filter(move |(start, resisted)| **start < size && **resisted != Some(retry));
        windows.map(move |(start, _)| *start..size.min(start + WINDOW))
    }
}

struct ReleaserState {
    segments: BTreeMap<u64, SegmentPages>,
    /// The segment that is written to, and the written end.
    writer: Position,
    /// The positions of the followers in the last pass.
    followers: Vec<(u64, Position)>,
    passes: u64,
    /// A thread is releasing pages.
    busy: bool,
    /// Another thread arrived meanwhile, so one more pass is needed.
    again: bool,
}

/// The releaser of a log's pages.
pub(super) struct PageReleaser {
    state: Mutex<ReleaserState>,
    idle: Condvar,
    near_files: u64,
    slack: u64,
}

/// One action, with its file.
struct PageAction {
    file: Arc<dyn IoFile>,
    segment: u64,
    what: PageOperation,
}

enum PageOperation {
    StartWriteback(Range<u64>),
    WaitForWriteback(Range<u64>),
    Release(Range<u64>),
}

/// The result of an action on a segment.
enum ActionResult {
    Started,
    /// Nothing in the range is dirty.
    Written(u64, Range<u64>),
    /// The release is done. The windows that begin at these offsets still have pages.
    Released(u64, Vec<u64>),
}

impl PageReleaser {
    pub(super) fn new(near_files: u64, slack: u64) -> Self {
        let writer = Position { segment: 0, offset: 0 };
        let state = ReleaserState {
            segments: BTreeMap::new(),
            writer,
            followers: Vec::new(),
            passes: 0,
            busy: false,
            again: false,
        };
        Self { state: Mutex::new(state), idle: Condvar::new(), near_files, slack }
    }

    fn lock(&self) -> MutexGuard<'_, ReleaserState> {
        lock(&self.state)
    }

    /// Notes that the writer has moved on to a new segment; `file` is the releaser's own descriptor
    /// of it. The previous segment is synced.
    pub(super) fn begun(&self, segment: u64, file: Arc<dyn IoFile>, offset: u64) {
        let mut state = self.lock();
        let last = state.writer;
        if let Some(pages) = state.segments.get_mut(&last.segment) {
            (pages.clean, pages.started, pages.size) = (last.offset, last.offset, last.offset);
        }
        state.writer = Position { segment, offset };
        let windows = BTreeMap::from([(0, None)]);
        let pages = SegmentPages { file, windows, size: offset, clean: offset, started: offset };
        state.segments.insert(segment, pages);
    }

    /// Notes that the writer has written up to this offset. Returns whether there may be something
    /// to do.
    pub(super) fn wrote(&self, offset: u64) -> bool {
        let mut state = self.lock();
        let from = mem::replace(&mut state.writer.offset, offset);
        let segment = state.writer.segment;
        let Some(pages) = state.segments.get_mut(&segment) else { return false };
        pages.size = offset;
        pages.mark(&(from..offset));
        from / WINDOW != offset / WINDOW || pages.to_write_back().is_some()
    }

    /// Notes that everything up to this offset is synced.
    pub(super) fn synced(&self, offset: u64) {
        let mut state = self.lock();
        let segment = state.writer.segment;
        if let Some(pages) = state.segments.get_mut(&segment) {
            pages.clean = offset;
            pages.started = pages.started.max(offset);
        }
    }

    /// Notes that a follower reads this range of a segment of `size` bytes. The range and the
    /// read-ahead behind it may become resident.
    pub(super) fn reads(&self, segment: u64, file: &Arc<dyn IoFile>, range: &Range<u64>, size: u64) {
        let mut state = self.lock();
        let pages = state.segments.entry(segment).or_insert_with(|| SegmentPages {
            file: Arc::clone(file),
            windows: BTreeMap::new(),
            size,
            clean: size,
            started: size,
        });
        let ahead = range.end.saturating_add(READ_AHEAD).min(pages.size);
        pages.mark(&(range.start..ahead.max(range.end)));
    }

    /// Notes that the segments behind this one are gone.
    pub(super) fn truncated(&self, number: u64) {
        self.lock().segments.retain(|segment, _| *segment <= number);
    }

    /// Notes that the segments before this one are gone.
    pub(super) fn purged(&self, number: u64) {
        let mut state = self.lock();
        state.segments = state.segments.split_off(&number);
    }

    /// Performs the due actions. `followers` returns the positions of the followers. An error ends
    /// the log.
    pub(super) fn run(&self, followers: impl Fn() -> Vec<(u64, Position)>) -> Result<(), IoError> {
        let mut state = self.lock();
        while state.busy {
            state.again = true;
            if !self.is_too_far_ahead(&state) {
                return Ok(());
            }
            state = ignore_poison(self.idle.wait(state));
        }
        state.busy = true;
        let mut result = Ok(());
        for _ in 0..PASSES_MAX {
            state.again = false;
            let actions = self.decide(&mut state, followers());
            drop(state);
            let done: Vec<_> = actions.into_iter().map(PageAction::run).collect();
            state = self.lock();
            for done in done {
                match done {
                    Ok(done) => state.record(done),
                    Err(error) => result = Err(error),
                }
            }
            state.forget_empty();
            if !state.again || result.is_err() {
                break;
            }
        }
        state.busy = false;
        drop(state);
        self.idle.notify_all();
        result
    }

    /// Whether the writer has to help, or to wait.
    pub(super) fn is_behind(&self) -> bool {
        self.is_too_far_ahead(&self.lock())
    }

    /// Whether the writer should wait for the thread that waits for writeback.
    fn is_too_far_ahead(&self, state: &ReleaserState) -> bool {
        let clean = state.segments.get(&state.writer.segment).map_or(0, |pages| pages.clean);
        state.writer.offset.saturating_sub(clean) > self.slack.saturating_add(UNWRITTEN_BYTES_MAX)
    }

    fn decide(&self, state: &mut ReleaserState, followers: Vec<(u64, Position)>) -> Vec<PageAction> {
        state.passes += 1;
        let retry = state.retry();
        let rule = Rule::ReleaseBehindFollowers { near_files: self.near_files, slack: self.slack };
        let all: Vec<Follower> = followers
            .iter()
            .map(|seen| Follower {
                sequence: seen.1.segment,
                offset: Some(seen.1.offset),
                moved: !state.followers.contains(seen),
                near_files: 0,
            })
            .collect();
        state.followers = followers;
        let (place, mut actions) = (state.writer, Vec::new());
        // Handles the writer's segment first: it has the dirty pages.
        for (&segment, pages) in state.segments.iter_mut().rev() {
            let writer = if segment == place.segment {
                WriterPosition::At(place.offset)
            } else {
                WriterPosition::Elsewhere
            };
            let followers = FollowerSet { writer: place.segment, all: &all };
            let allowance =
                ReleaseAllowance::new(rule, writer, pages.size).with_followers(rule, segment, followers);
            let size = pages.size;
            let marks = WriteWatermarks { written: size, started: pages.started, clean: pages.clean };
            let DueWork { start, wait, release } = due_work(&allowance, marks, pages.windows_to_try(retry));
            let start = pages.to_write_back().or(start);
            let started = start.as_ref().map_or(pages.started, |range| range.end);
            let release: Vec<_> = release.collect();
            // Removes the windows from the list before it unlocks: a use of a window during its
            // release puts it back.
            for range in &release {
                pages.windows.retain(|start, _| !range.contains(start));
            }
            let mut add = |what| actions.push(PageAction::new(pages, segment, what));
            start.map(PageOperation::StartWriteback).into_iter().for_each(&mut add);
            wait.map(PageOperation::WaitForWriteback).into_iter().for_each(&mut add);
            release.into_iter().map(PageOperation::Release).for_each(add);
            pages.started = started;
        }
        actions
    }

    /// Returns the resident bytes of the log's segments, as far as the kernel reports them.
    pub(super) fn resident(&self) -> Option<u64> {
        let files: Vec<_> = self.lock().segments.values().map(|pages| Arc::clone(&pages.file)).collect();
        let resident = |file: &Arc<dyn IoFile>| Some(file.residency(0..u64::MAX).ok()??.resident);
        files.iter().map(resident).sum()
    }
}

impl ReleaserState {
    /// Returns the retry period. A release that failed is retried when this number has changed.
    fn retry(&self) -> u64 {
        self.passes / RETRY_PASSES
    }

    fn record(&mut self, done: ActionResult) {
        match done {
            ActionResult::Started => {}
            ActionResult::Written(segment, range) => {
                if let Some(pages) = self.segments.get_mut(&segment) {
                    pages.clean = pages.clean.max(range.end);
                }
            }
            ActionResult::Released(segment, stayed) => {
                let retry = self.retry();
                if let Some(pages) = self.segments.get_mut(&segment) {
                    for start in stayed {
                        pages.windows.entry(start).or_insert(Some(retry));
                    }
                }
            }
        }
    }

    fn forget_empty(&mut self) {
        let writer = self.writer.segment;
        self.segments.retain(|number, pages| *number == writer || !pages.windows.is_empty());
    }
}

impl PageAction {
    fn new(pages: &SegmentPages, segment: u64, what: PageOperation) -> Self {
        Self { file: Arc::clone(&pages.file), segment, what }
    }

    fn run(self) -> Result<ActionResult, IoError> {
        let (file, segment) = (self.file, self.segment);
        match self.what {
            PageOperation::StartWriteback(range) => {
                unless_missing(file.start_writeback(range))?;
                Ok(ActionResult::Started)
            }
            PageOperation::WaitForWriteback(range) => {
                unless_missing(file.wait_writeback(range.clone()))?;
                Ok(ActionResult::Written(segment, range))
            }
            PageOperation::Release(range) => {
                // The kernel drops the last page only if the advice reaches the end of that page.
                let pages = range.start..range.end.next_multiple_of(page_size());
                let stayed = match file.release(pages.clone()) {
                    Ok(()) if is_gone(&*file, &pages) => Vec::new(),
                    Ok(()) => windows(&range)
                        .filter(|window| !is_gone(&*file, window))
                        .map(|window| window.start)
                        .collect(),
                    Err(_) => windows(&range).map(|window| window.start).collect(),
                };
                Ok(ActionResult::Released(segment, stayed))
            }
        }
    }
}

/// Whether nothing is resident, or residency is unknown.
fn is_gone(file: &dyn IoFile, range: &Range<u64>) -> bool {
    !matches!(file.residency(range.clone()), Ok(Some(found)) if found.resident > 0)
}

/// Ignores that the kernel lacks the call, which loses nothing.
fn unless_missing(result: Result<(), IoError>) -> Result<(), IoError> {
    match result {
        Err(error) if matches!(error.errno(), Some(libc::ENOSYS | libc::EOPNOTSUPP)) => Ok(()),
        result => result,
    }
}

/// Returns the windows of a range that begins at the start of a window.
fn windows(range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let end = range.end;
    let starts = std::iter::successors(Some(range.start), |start| start.checked_add(WINDOW));
    starts.take_while(move |start| *start < end).map(move |start| start..end.min(start + WINDOW))
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use pagekeeper_io::{Access, FileStat, ResidentBytes};

    use super::*;

    /// A file that only accepts advice.
    #[derive(Default)]
    struct Advised {
        resists: AtomicBool,
        released: Mutex<Vec<Range<u64>>>,
        /// Called once, during a release.
        meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    }

    impl IoFile for Advised {
        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize, IoError> {
            unreachable!("the releaser reads nothing")
        }

        fn stat(&self) -> Result<FileStat, IoError> {
            unreachable!("the releaser is given the size")
        }

        fn access(&self) -> Access {
            Access::Buffered
        }

        fn path(&self) -> &Path {
            Path::new("segment")
        }

        fn fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn start_writeback(&self, _: Range<u64>) -> Result<(), IoError> {
            Ok(())
        }

        fn wait_writeback(&self, _: Range<u64>) -> Result<(), IoError> {
            Ok(())
        }

        fn release(&self, range: Range<u64>) -> Result<(), IoError> {
            lock(&self.released).push(range);
            let meanwhile = lock(&self.meanwhile).take();
            if let Some(act) = meanwhile {
                act();
            }
            Ok(())
        }

        fn residency(&self, _: Range<u64>) -> Result<Option<ResidentBytes>, IoError> {
            let resident = if self.resists.load(Ordering::Relaxed) { page_size() } else { 0 };
            Ok(Some(ResidentBytes { resident, unwritten: 0 }))
        }
    }

    const SEGMENT_BYTES: u64 = 3 * WINDOW + 5;
    const PAST_RANGE: Range<u64> = 0..3 * WINDOW;

    /// Returns a segment that is written up to [`SEGMENT_BYTES`], without followers and without
    /// slack behind its writer.
    fn written() -> (Arc<Advised>, Arc<PageReleaser>) {
        let (file, releaser) = (Arc::new(Advised::default()), Arc::new(PageReleaser::new(3, 0)));
        releaser.begun(1, Arc::clone(&file) as Arc<dyn IoFile>, 0);
        releaser.wrote(SEGMENT_BYTES);
        (file, releaser)
    }

    #[test]
    fn pages_read_during_a_release_are_released_again() {
        let (file, releaser) = written();
        let (read, by) = (Arc::clone(&file) as Arc<dyn IoFile>, Arc::clone(&releaser));
        *lock(&file.meanwhile) = Some(Box::new(move || by.reads(1, &read, &(0..100), SEGMENT_BYTES)));
        releaser.run(Vec::new).unwrap();
        assert_eq!(*lock(&file.released), [PAST_RANGE]);
        releaser.run(Vec::new).unwrap();
        assert_eq!(*lock(&file.released), [PAST_RANGE, PAST_RANGE]);
        releaser.run(Vec::new).unwrap();
        assert_eq!(lock(&file.released).len(), 2, "nothing is left");
    }

    #[test]
    fn resisting_pages_are_retried_later_or_after_use() {
        let (file, releaser) = written();
        file.resists.store(true, Ordering::Relaxed);
        let releases_after = |passes: u64| {
            for _ in 0..passes {
                releaser.run(Vec::new).unwrap();
            }
            lock(&file.released).len()
        };
        assert_eq!(releases_after(6), 1);
        releaser.reads(1, &(Arc::clone(&file) as Arc<dyn IoFile>), &(0..100), SEGMENT_BYTES);
        assert_eq!(releases_after(2), 2);
        assert_eq!(releases_after(RETRY_PASSES), 3);
        assert_eq!(releases_after(RETRY_PASSES), 4);
    }
}
