//! The follower of the models: like the real one, but it reads everything available at once.

use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use super::progress::{FollowerRegistration, ReadLimit};
use super::segment::SEGMENT_HEADER_BYTES;
use super::sync::{AtomicBool, Condvar, Mutex, Ordering};
use super::world::ModelLog;
use crate::Error;
use crate::position::Position;

/// A follower, with the groups it has read.
pub(super) struct ModelFollower<'a> {
    log: &'a ModelLog,
    id: u64,
    at: Position,
    durable_only: bool,
    cut_off: Arc<AtomicBool>,
    pub(super) read: Vec<u8>,
}

/// The result of looking for more groups.
enum NextGroups {
    Groups,
    /// Nothing to read yet.
    Nothing,
    /// Nothing will follow.
    End,
}

impl<'a> ModelFollower<'a> {
    /// Creates a follower that begins at the start of the first segment.
    pub(super) fn new(log: &'a ModelLog, durable_only: bool) -> Result<Self, Error> {
        let at = Position { segment: 1, offset: SEGMENT_HEADER_BYTES };
        let FollowerRegistration { id, cut_off, .. } = log.progress.register(at, durable_only)?;
        let follower = Self { log, id, at, durable_only, cut_off, read: Vec::new() };
        follower.assert_is_there();
        Ok(follower)
    }

    /// Asserts that the segment can be opened, or was purged by force.
    fn assert_is_there(&self) {
        let is_there = self.log.disk(|disk| disk.segments.contains_key(&self.at.segment));
        assert!(is_there || self.cut_off.load(Ordering::Acquire));
    }

    /// Reads until it has this many groups or the log is closed. Sleeps while there is nothing to
    /// read.
    pub(super) fn read(&mut self, groups: usize) -> Result<(), Error> {
        while self.read.len() < groups {
            match self.find()? {
                NextGroups::Groups => {}
                NextGroups::End => break,
                NextGroups::Nothing => {
                    assert!(self.log.progress.wait(self.at, self.durable_only, &self.cut_off, None));
                }
            }
        }
        Ok(())
    }

    /// Reads until the log is closed.
    pub(super) fn read_all(&mut self) -> Result<(), Error> {
        self.read(usize::MAX)
    }

    /// Reads all like [`Self::read_all`], but sleeps until its waker is called.
    pub(super) fn poll_all(&mut self) -> Result<(), Error> {
        let alarm = Arc::new(WakeSignal::default());
        let waker = Waker::from(Arc::clone(&alarm));
        loop {
            match self.find()? {
                NextGroups::Groups => {}
                NextGroups::End => return Ok(()),
                NextGroups::Nothing => {
                    if self.log.progress.poll(self.id, self.at, &Context::from_waker(&waker)).is_pending() {
                        alarm.wait();
                    }
                }
            }
        }
    }

    fn find(&mut self) -> Result<NextGroups, Error> {
        loop {
            if self.cut_off.load(Ordering::Acquire) {
                return Err(Error::Purged { position: self.at, first: self.log.progress.first() });
            }
            let failed = self.log.disk(|disk| disk.failed);
            let end = match self.log.progress.limit(self.at, self.durable_only)? {
                None => return Ok(NextGroups::End),
                Some(ReadLimit::Sealed(end)) if self.at.offset >= end => {
                    self.go_on()?;
                    continue;
                }
                Some(ReadLimit::Now(end)) if self.at.offset >= end => return Ok(NextGroups::Nothing),
                Some(ReadLimit::Sealed(end) | ReadLimit::Now(end)) => end,
            };
            self.log.progress.moved(self.id, self.at);
            self.assert_is_there();
            self.take(end, self.durable_only || failed);
            return Ok(NextGroups::Groups);
        }
    }

    /// Reads up to `end`, which must be written, and durable if `durable` is set.
    fn take(&mut self, end: u64, durable: bool) {
        self.log.disk(|disk| {
            let upto = Position { offset: end, ..self.at };
            assert!(!durable || upto <= disk.durable);
            // A segment that was purged by force stays readable while the file is open.
            let Some(bytes) = disk.segments.get(&self.at.segment) else { return };
            let range =
                [self.at.offset, end].map(|offset| usize::try_from(offset - SEGMENT_HEADER_BYTES).unwrap());
            self.read.extend(bytes[range[0]..range[1]].iter().skip(24).step_by(32));
        });
        self.at.offset = end;
    }

    fn go_on(&mut self) -> Result<(), Error> {
        let next = Position { segment: self.at.segment + 1, offset: SEGMENT_HEADER_BYTES };
        if self.log.progress.enter(self.id, next).is_none() {
            assert!(self.cut_off.load(Ordering::Acquire));
            return Err(Error::Purged { position: self.at, first: self.log.progress.first() });
        }
        self.at = next;
        self.assert_is_there();
        Ok(())
    }
}

impl Drop for ModelFollower<'_> {
    fn drop(&mut self) {
        self.log.progress.left(self.id);
    }
}

/// A sleeper that its waker wakes.
#[derive(Default)]
struct WakeSignal {
    notified: Mutex<bool>,
    condition: Condvar,
}

impl WakeSignal {
    fn wait(&self) {
        let mut notified = self.notified.lock().unwrap();
        while !*notified {
            notified = self.condition.wait(notified).unwrap();
        }
        *notified = false;
    }
}

impl Wake for WakeSignal {
    fn wake(self: Arc<Self>) {
        *self.notified.lock().unwrap() = true;
        self.condition.notify_one();
    }
}
