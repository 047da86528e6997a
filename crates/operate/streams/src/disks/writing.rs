//! Writes back what streams have written, in pieces, so that nobody else's sync waits long behind
//! it.
//!
//! Invariants: at most one piece of the device's work is in flight at a time ([`Pacer`]), and
//! nothing during a pause. A file is open while its pages are being written, and closed after each
//! job. A write error is left for the file's owner to see: cachestat(2) watches the pages in
//! flight, and nothing waits for them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagekeeper_kernel::{Error, InspectedFile, residency, start_writeback};
use pagekeeper_policy::pacer::{PIECE_MIN, Pacer, WrittenPart, nanoseconds};
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_policy::stream_pages::DueRange;

use pagekeeper_trace::page_events::EventFile;

use crate::StayReason;
use crate::disks::device::{Job, JobResult, RangeResult, drop_clean, failed};
use crate::disks::turns::DiskShares;
use crate::open::Opener;

/// A part that is not written after this long is left to the kernel, and its range is retried
/// later.
const PART_TIME_MAX: Duration = Duration::from_secs(10);
/// Maximum number of restarts of a part that is written but not released.
const RESTARTS_MAX: u32 = 2;
/// Limits of the time between two checks of pages in flight: an eighth of the time they are
/// expected to take, within these.
const POLL_MIN: Duration = Duration::from_micros(300);
const POLL_MAX: Duration = Duration::from_millis(5);

/// Maximum number of open files: small files go to the disk together, up to one piece.
const OPEN_FILES_MAX: usize = 64;

/// A part of a file that is in flight to the disk.
struct Part {
    range: Range<u64>,
    /// Whether it is written only, not released.
    is_write: bool,
    bytes: u64,
    /// Bytes in flight when it was started, including its own.
    in_flight: u64,
    begun: Instant,
    /// The time when it was last seen in flight.
    seen: Instant,
    /// Number of restarts of its writeback.
    restarts: u32,
}

/// A job whose file is open.
struct OpenJob {
    job: Job,
    file: InspectedFile,
    /// The ranges that are not done, and the number of those at the front of which all is in flight
    /// or written.
    ranges: VecDeque<Purpose>,
    begun: usize,
    /// The offset up to which writeback of the next range has begun.
    begun_to: u64,
    parts: Vec<Part>,
    done: Vec<RangeResult>,
}

/// The purpose of writing a range.
enum Purpose {
    Write(Range<u64>),
    Release(DueRange),
}

impl Purpose {
    fn bytes(&self) -> &Range<u64> {
        match self {
            Self::Write(bytes) => bytes,
            Self::Release(range) => &range.bytes,
        }
    }
}

/// The writeback of one device.
pub(crate) struct Writing {
    pacer: Pacer,
    pace: StreamPace,
    /// Maximum unwritten bytes of all writers, for the module that holds them.
    bound: Arc<AtomicU64>,
    shares: DiskShares,
    waiting: VecDeque<Job>,
    open: VecDeque<OpenJob>,
    /// The time when the last part was written, if another one was in flight or about to start all
    /// the time.
    done_at: Option<Instant>,
    pause_until: Option<Instant>,
}

impl Writing {
    pub(crate) fn new(pace: StreamPace, bound: Arc<AtomicU64>, shares: DiskShares) -> Self {
        let (waiting, open) = (VecDeque::new(), VecDeque::new());
        Self { pacer: Pacer::new(), pace, bound, shares, waiting, open, done_at: None, pause_until: None }
    }

    /// Learns from a part of a device that is written. Returns the nanoseconds for which nothing is
    /// to be started.
    fn learn(&mut self, part: WrittenPart) -> u64 {
        let pause = self.pacer.written(part);
        self.bound.store(self.pacer.backlog(), Ordering::Relaxed);
        if self.pace == StreamPace::Off { 0 } else { pause }
    }

    /// Passes on what is known of others' use of the disk, which may have begun just now.
    fn look_at_others_use(&mut self, file: &EventFile) {
        let others = self.shares.others(file);
        self.pacer.others(others.share);
        self.pacer.users(others.users);
        self.bound.store(self.pacer.backlog(), Ordering::Relaxed);
    }

    /// Adds a job whose ranges have unwritten pages.
    pub(crate) fn push(&mut self, job: Job) {
        self.waiting.push_back(job);
    }

    /// Returns how long there is nothing to do; `None` if nothing is to be written.
    pub(crate) fn next_poll(&self) -> Option<Duration> {
        if self.open.is_empty() && self.waiting.is_empty() {
            return None;
        }
        let pause = self.pause_until.map(|until| until.saturating_duration_since(Instant::now()));
        let expected = Duration::from_nanos(self.pacer.price() / 8).clamp(POLL_MIN, POLL_MAX);
        Some(pause.filter(|pause| !pause.is_zero()).unwrap_or(expected).min(Duration::from_millis(20)))
    }

    /// Checks the parts in flight, and starts what may be started.
    pub(crate) fn go_on(&mut self, opener: &mut Opener, say: &dyn Fn(JobResult)) {
        let mut at = 0;
        while at < self.open.len() || self.open_next(opener, say) {
            let Some(mut open) = self.open.remove(at) else { return };
            match self.work_on(&mut open, say) {
                Ok(true) => say(open.finish()),
                Ok(false) => {
                    let is_begun = open.is_begun();
                    self.open.insert(at, open);
                    at += 1;
                    // Later jobs wait for it; their parts in flight are checked.
                    if !is_begun {
                        self.look_at_others(at, say);
                        return;
                    }
                }
                Err(error) => say(open.fail(error)),
            }
        }
        if self.open.is_empty() {
            self.done_at = None;
        }
    }

    /// Checks parts in flight of later jobs, which may not start anything.
    fn look_at_others(&mut self, mut at: usize, say: &dyn Fn(JobResult)) {
        while let Some(mut open) = self.open.remove(at) {
            match self.poll(&mut open, say) {
                Ok(()) => {
                    self.open.insert(at, open);
                    at += 1;
                }
                Err(error) => say(open.fail(error)),
            }
        }
    }

    /// Opens one more job. Returns `false` if there is none, or enough are in progress.
    fn open_next(&mut self, opener: &mut Opener, say: &dyn Fn(JobResult)) -> bool {
        if self.open.len() >= OPEN_FILES_MAX {
            return false;
        }
        let next = self.next_job(opener, say);
        let is_there = next.is_some();
        self.open.extend(next);
        is_there
    }

    fn next_job(&mut self, opener: &mut Opener, say: &dyn Fn(JobResult)) -> Option<OpenJob> {
        while let Some(mut job) = self.waiting.pop_front() {
            match opener.open(&job.file, &job.users, job.path.as_deref()) {
                Ok(file) => {
                    let writes = std::mem::take(&mut job.writes).into_iter().map(Purpose::Write);
                    let releases = std::mem::take(&mut job.ranges).into_iter().map(Purpose::Release);
                    let ranges: VecDeque<Purpose> = releases.chain(writes).collect();
                    let (begun_to, parts, done) = (0, Vec::new(), Vec::new());
                    return Some(OpenJob { job, file, ranges, begun: 0, begun_to, parts, done });
                }
                Err(error) => say(failed(job, error)),
            }
        }
        None
    }

    /// Returns whether all of a job is done.
    fn work_on(&mut self, open: &mut OpenJob, say: &dyn Fn(JobResult)) -> Result<bool, Error> {
        self.poll(open, say)?;
        // The disk has work while a range before is released.
        while let Some(range) = open.ranges.get(open.begun) {
            let (bytes, is_write) = (range.bytes().clone(), matches!(range, Purpose::Write(_)));
            open.begun_to = open.begun_to.max(bytes.start);
            if open.begun_to < bytes.end {
                if !self.begin(open, bytes.end, is_write)? {
                    break;
                }
            } else {
                (open.begun, open.begun_to) = (open.begun + 1, 0);
            }
        }
        while open.begun > 0 && open.is_first_written() {
            open.finish_first(say)?;
        }
        Ok(open.ranges.is_empty())
    }

    /// Learns from the parts that are written. Fails once the file's last name is gone.
    fn poll(&mut self, open: &mut OpenJob, say: &dyn Fn(JobResult)) -> Result<(), Error> {
        let mut at = 0;
        while let Some(part) = open.parts.get_mut(at) {
            let counted = residency(&open.file, part.range.clone())?;
            let now = Instant::now();
            let is_late = now.duration_since(part.begun) >= PART_TIME_MAX;
            // A page that is written to all the time is attempted again later.
            let is_over = counted.writeback == Some(0) && part.is_write && part.restarts >= RESTARTS_MAX;
            if counted.unwritten() > 0 && !is_late && !is_over {
                if counted.writeback == Some(0) {
                    // Pages that were busy at the start are left out, or pages were written to
                    // again.
                    start_writeback(&open.file, part.range.clone())?;
                    part.restarts += 1;
                }
                part.seen = now;
                at += 1;
                continue;
            }
            let part = open.parts.swap_remove(at);
            if part.is_write && counted.unwritten() == 0 {
                // Programs may be held until that is known.
                say(JobResult { written: vec![part.range.clone()], ..JobResult::of(&open.job) });
            }
            let pause = self.learn(WrittenPart {
                bytes: part.bytes,
                in_flight: part.in_flight,
                took_min: nanoseconds(part.seen.duration_since(part.begun)),
                took_max: nanoseconds(now.duration_since(part.begun)),
                busy: self.done_at.map(|done_at| nanoseconds(now.duration_since(done_at))),
            });
            self.done_at = Some(now);
            if pause > 0 {
                self.pause_until = Some(now + Duration::from_nanos(pause));
            }
        }
        open.must_have_name()
    }

    /// Starts the next part of the next range, which ends at `end`. Returns `false` if that has to
    /// wait.
    fn begin(&mut self, open: &mut OpenJob, end: u64, is_write: bool) -> Result<bool, Error> {
        if self.pause_until.is_some_and(|until| until > Instant::now()) {
            return Ok(false);
        }
        // A pause says nothing about the disk's rate.
        if let (Some(done_at), Some(until)) = (&mut self.done_at, self.pause_until.take()) {
            *done_at = until.max(*done_at);
        }
        self.look_at_others_use(&open.job.file);
        let step = self.pacer.part().max(PIECE_MIN / 2);
        let range = open.begun_to..(open.begun_to - open.begun_to % step + step).min(end);
        let others = self.open.iter().flat_map(|open| &open.parts);
        let in_flight: u64 = open.parts.iter().chain(others).map(|part| part.bytes).sum();
        let bytes = residency(&open.file, range.clone())?.unwritten();
        if bytes > 0 {
            if in_flight > 0 && in_flight + bytes > self.pacer.piece() {
                return Ok(false);
            }
            let begun = Instant::now();
            start_writeback(&open.file, range.clone())?;
            let in_flight = in_flight + bytes;
            let range = range.clone();
            open.parts.push(Part { range, is_write, bytes, in_flight, begun, seen: begun, restarts: 0 });
        }
        open.begun_to = range.end;
        Ok(true)
    }
}

impl OpenJob {
    /// Fails if the file's last name is gone: keeping it open would keep its space on the disk.
    fn must_have_name(&self) -> Result<(), Error> {
        if self.file.has_name()? {
            return Ok(());
        }
        Err(Error::call("stat", self.file.path().to_path_buf(), rustix::io::Errno::NOENT))
    }

    /// Whether nothing of the first range is in flight.
    fn is_first_written(&self) -> bool {
        let Some(first) = self.ranges.front().map(Purpose::bytes) else { return false };
        !self.parts.iter().any(|part| part.range.start < first.end && first.start < part.range.end)
    }

    /// Drops the first range, all of which was in flight, unless it is only to be written.
    fn finish_first(&mut self, say: &dyn Fn(JobResult)) -> Result<(), Error> {
        let Some(range) = self.ranges.front() else { return Ok(()) };
        let before = residency(&self.file, range.bytes().clone())?;
        match range {
            Purpose::Write(bytes) if before.unwritten() == 0 => {
                say(JobResult { written: vec![bytes.clone()], ..JobResult::of(&self.job) });
            }
            // Requested again.
            Purpose::Write(_) => {}
            Purpose::Release(range) => {
                let mut result = drop_clean(&self.file, range, before.resident, &self.job)?;
                if before.unwritten() > 0 {
                    result.why = result.why.map(|_| StayReason::Unwritten);
                }
                self.done.push(result);
            }
        }
        self.ranges.pop_front();
        self.begun -= 1;
        Ok(())
    }

    /// Returns whether all of it is in flight.
    fn is_begun(&self) -> bool {
        self.begun == self.ranges.len()
    }

    fn fail(mut self, error: Error) -> JobResult {
        let releases = self.ranges.drain(..).filter_map(|range| match range {
            Purpose::Release(range) => Some(range),
            Purpose::Write(_) => None,
        });
        self.job.ranges = releases.collect();
        let result = failed(self.job, error);
        JobResult { ranges: self.done.into_iter().chain(result.ranges).collect(), ..result }
    }

    fn finish(self) -> JobResult {
        JobResult { ranges: self.done, is_last: true, ..JobResult::of(&self.job) }
    }
}
