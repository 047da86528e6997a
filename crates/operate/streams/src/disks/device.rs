//! Workers that release pages, one for each device.
//!
//! Invariants: a device that hangs stalls only its own worker, or those that share it once there
//! are more than [`WORKERS_MAX`] devices. The caller never waits. A worker has a file open only
//! while it works on it, and a mount only while it has work.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Advice, Error, InspectedFile, advise, residency, resident_extents};
use pagekeeper_policy::pacer::Pacer;
use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_policy::stream_pages::{DueRange, ReleaseOutcome};
use pagekeeper_trace::page_events::EventFile;

use crate::disks::drained::DrainedSignal;
use crate::disks::turns::DiskShares;
use crate::disks::writing::Writing;
use crate::open::Opener;
use crate::requests::Beneficiaries;
use crate::{Decide, StayReason, Verdict};

/// Maximum number of workers; further devices share them.
const WORKERS_MAX: usize = 8;
/// Maximum number of ranges that one search for resident pages returns.
const SEARCHED_RANGES_MAX: usize = 4096;
/// Attempts after which pages that stay are paged out of the memory of the processes that brought
/// them in.
const ATTEMPTS_BEFORE_PAGE_OUT: u32 = 2;

/// Ranges of one file that are to be released or written.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) file: EventFile,
    /// The process that the verdict applies to.
    pub(crate) owner: u32,
    /// Followed processes that use the file.
    pub(crate) users: Vec<u32>,
    pub(crate) ranges: Vec<DueRange>,
    /// Ranges that are to be written and kept.
    pub(crate) writes: Vec<Range<u64>>,
    pub(crate) verdict: Option<Verdict>,
    /// The users on whose behalf its pages are released.
    pub(crate) beneficiaries: Beneficiaries,
    pub(crate) path: Option<PathBuf>,
    /// Whether its resident pages are to be looked for.
    pub(crate) searches: bool,
    /// Whether pages of it stayed before because one of its users maps them.
    pub(crate) is_mapped: bool,
    /// Whether others used pages of the file since the job was created.
    pub(crate) is_used: Arc<AtomicBool>,
}

/// The outcome for a range.
#[derive(Debug)]
pub(crate) struct RangeResult {
    pub(crate) range: DueRange,
    pub(crate) outcome: ReleaseOutcome,
    /// The reason why pages of it stayed, if some did.
    pub(crate) why: Option<StayReason>,
    /// Whether it was paged out of the memory of a process.
    pub(crate) was_mapped: bool,
}

/// The outcome of a job, or of its first part.
#[derive(Debug)]
pub(crate) struct JobResult {
    pub(crate) file: EventFile,
    pub(crate) verdict: Option<Verdict>,
    pub(crate) path: Option<PathBuf>,
    pub(crate) ranges: Vec<RangeResult>,
    /// Ranges that were only to be written, and now are.
    pub(crate) written: Vec<Range<u64>>,
    /// All resident pages, if they were looked for.
    pub(crate) resident: Vec<Range<u64>>,
    /// Whether the file is gone or could not be opened.
    pub(crate) is_lost: bool,
    /// The error with which the file could not be opened or examined.
    pub(crate) problem: Option<Error>,
    /// Whether it is the last result of the job.
    pub(crate) is_last: bool,
}

/// A worker, and its queue.
struct Worker {
    /// The device that it works for; others may share the worker.
    dev: u64,
    jobs: Sender<Vec<Job>>,
    /// Jobs that are handed over together.
    batch: Vec<Job>,
    queued: usize,
    /// Maximum bytes that writers to the device may have unwritten.
    bound: Arc<AtomicU64>,
}

/// All workers.
pub(crate) struct Devices {
    workers: Vec<Worker>,
    results: Receiver<(usize, JobResult)>,
    sender: Sender<(usize, JobResult)>,
    decide: Arc<Decide>,
    pace: StreamPace,
    shares: DiskShares,
    /// Raised when a device has nothing more to write.
    pub(crate) drained: DrainedSignal,
}

impl Devices {
    pub(crate) fn new(decide: Decide, pace: StreamPace) -> Self {
        let (sender, results) = channel();
        Self {
            workers: Vec::new(),
            results,
            sender,
            decide: Arc::new(decide),
            pace,
            shares: DiskShares::default(),
            drained: DrainedSignal::new(),
        }
    }

    /// Sets the shares of each disk that workers leave to others, for workers that are started from
    /// now on.
    pub(crate) fn set_shares(&mut self, shares: DiskShares) {
        self.shares = shares;
    }

    /// Returns the maximum of bytes that writers to a device may have unwritten.
    pub(crate) fn bound(&self, dev: u64) -> u64 {
        let known = self.workers.iter().find(|worker| worker.dev == dev);
        known.map_or_else(|| Pacer::new().backlog(), |worker| worker.bound.load(Ordering::Relaxed))
    }

    /// Takes a job, to be handed over by [`Self::send`]. Returns its result if no thread can be
    /// started.
    pub(crate) fn push(&mut self, job: Job) -> Option<JobResult> {
        let Some(index) = self.worker_for(job.file.dev) else { return Some(failed_to_start(job)) };
        self.workers[index].queued += 1;
        self.workers[index].batch.push(job);
        None
    }

    /// Hands the jobs over, all of a device together: the worker reads leases and mounts once for
    /// them.
    pub(crate) fn send(&mut self) {
        for worker in self.workers.iter_mut().filter(|worker| !worker.batch.is_empty()) {
            // The worker ends only with this value.
            let _ = worker.jobs.send(std::mem::take(&mut worker.batch));
        }
    }

    /// Returns the number of jobs that are not done.
    pub(crate) fn queued(&self) -> usize {
        self.workers.iter().map(|worker| worker.queued).sum()
    }

    /// Returns the results since the last call.
    pub(crate) fn results(&mut self) -> Vec<JobResult> {
        self.drained.reset();
        let mut all = Vec::new();
        for (index, result) in self.results.try_iter() {
            if result.is_last {
                self.workers[index].queued = self.workers[index].queued.saturating_sub(1);
            }
            all.push(result);
        }
        all
    }

    fn worker_for(&mut self, dev: u64) -> Option<usize> {
        if let Some(known) = self.workers.iter().position(|worker| worker.dev == dev) {
            return Some(known);
        }
        let count = self.workers.len();
        let bound = Arc::new(AtomicU64::new(Pacer::new().backlog()));
        if let Some(jobs) = (count < WORKERS_MAX).then(|| self.start(count, &bound)).flatten() {
            self.workers.push(Worker { dev, jobs, batch: Vec::new(), queued: 0, bound });
            return Some(count);
        }
        let least = (0..self.workers.len()).min_by_key(|index| self.workers[*index].queued)?;
        if self.workers[least].queued == 0 {
            self.workers[least].dev = dev;
        }
        Some(least)
    }

    fn start(&self, index: usize, bound: &Arc<AtomicU64>) -> Option<Sender<Vec<Job>>> {
        let (jobs, work) = channel();
        let (results, decide) = (self.sender.clone(), Arc::clone(&self.decide));
        let mut writing = Writing::new(self.pace, Arc::clone(bound), self.shares.clone());
        let drained = self.drained.clone();
        let run = move || {
            // The receiver may be gone.
            let say = |result| drop(results.send((index, result)));
            work_on(&work, &decide, &mut writing, &say, &drained);
        };
        std::thread::Builder::new().name("streams-disk".to_owned()).spawn(run).ok().map(|_| jobs)
    }
}

/// Does jobs until there will be no more.
fn work_on(
    jobs: &Receiver<Vec<Job>>,
    decide: &Decide,
    writing: &mut Writing,
    say: &dyn Fn(JobResult),
    drained: &DrainedSignal,
) {
    let mut opener = Opener::new();
    loop {
        let batch = if let Some(pause) = writing.next_poll() {
            jobs.recv_timeout(pause)
        } else {
            opener.rest();
            jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match batch {
            Ok(batch) => {
                for job in batch {
                    do_job(job, &mut opener, decide, writing, say);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let has_output = writing.next_poll().is_some();
        writing.go_on(&mut opener, say);
        if has_output && writing.next_poll().is_none() {
            drained.raise();
        }
    }
}

fn do_job(
    mut job: Job,
    opener: &mut Opener,
    decide: &Decide,
    writing: &mut Writing,
    say: &dyn Fn(JobResult),
) {
    // The kernel drops a block device's pages when its last user closes it. Opening it then would
    // hinder its removal.
    let is_closed = job.file.is_block_device && job.users.is_empty() && !opener.has_users(job.file.dev);
    let result = if is_closed {
        Err(Error::call("open", PathBuf::new(), rustix::io::Errno::NOENT))
    } else {
        opener.open(&job.file, &job.users, job.path.as_deref())
    };
    let file = match result {
        Ok(file) => file,
        Err(error) => return say(failed(job, error)),
    };
    job.path.get_or_insert_with(|| file.path().to_path_buf());
    let verdict = *job.verdict.get_or_insert_with(|| {
        let may_read = job.beneficiaries.may_read(&file);
        if may_read { decide(job.owner, job.path.as_deref()) } else { Verdict::Leave }
    });
    let mut done = Vec::new();
    let mut dirty = Vec::new();
    for range in std::mem::take(&mut job.ranges) {
        let tried = match verdict {
            Verdict::Release => release(&file, &range, &job),
            Verdict::Report => look(&file, &range).map(Some),
            Verdict::Leave => Ok(Some(left(&range))),
        };
        match tried {
            Ok(Some(result)) => done.push(result),
            Ok(None) => dirty.push(range),
            Err(error) => {
                job.ranges.push(range);
                say(JobResult { ranges: done, ..failed(job, error) });
                return;
            }
        }
    }
    if verdict != Verdict::Release {
        job.writes.clear();
    }
    let resident = if job.searches && verdict == Verdict::Release { search(&file) } else { Vec::new() };
    let is_last = dirty.is_empty() && job.writes.is_empty();
    say(JobResult { ranges: done, resident, is_last, ..JobResult::of(&job) });
    if !is_last {
        writing.push(Job { ranges: dirty, ..job });
    }
}

impl JobResult {
    /// Makes an empty result, not the last one.
    pub(crate) fn of(job: &Job) -> Self {
        Self {
            file: job.file,
            verdict: job.verdict,
            path: job.path.clone(),
            ranges: Vec::new(),
            written: Vec::new(),
            resident: Vec::new(),
            is_lost: false,
            problem: None,
            is_last: false,
        }
    }
}

/// Returns the result of a job whose file can't be opened or examined. If the inode was removed,
/// its pages are gone with it.
pub(crate) fn failed(job: Job, error: Error) -> JobResult {
    let is_gone = error.is_gone();
    let result = |range: DueRange| {
        let length = range.bytes.end - range.bytes.start;
        let (gone, stays) = if is_gone { (length, 0) } else { (0, length) };
        let outcome = ReleaseOutcome { released: 0, gone, stays };
        RangeResult { range, outcome, why: (!is_gone).then_some(StayReason::NotOpened), was_mapped: false }
    };
    let said = JobResult::of(&job);
    let ranges = job.ranges.into_iter().map(result).collect();
    JobResult { ranges, is_lost: true, problem: (!is_gone).then_some(error), is_last: true, ..said }
}

/// Returns the result of a job for which there is no thread.
fn failed_to_start(job: Job) -> JobResult {
    let path = job.path.clone().unwrap_or_default();
    failed(job, Error::call("pthread_create", path, std::io::ErrorKind::OutOfMemory))
}

/// Releases a range whose pages are clean; `None` if some are not.
fn release(file: &InspectedFile, range: &DueRange, job: &Job) -> Result<Option<RangeResult>, Error> {
    let before = residency(file, range.bytes.clone())?;
    if before.unwritten() > 0 {
        return Ok(None);
    }
    drop_clean(file, range, before.resident, job).map(Some)
}

/// Drops the pages of a range, of which `resident` bytes are resident. Returns what stayed.
pub(crate) fn drop_clean(
    file: &InspectedFile,
    range: &DueRange,
    resident: u64,
    job: &Job,
) -> Result<RangeResult, Error> {
    let bytes = range.bytes.clone();
    if resident == 0 || job.is_used.load(Ordering::Relaxed) {
        // Pages that others do not use are due again later.
        return Ok(result(range, resident, resident, StayReason::Other));
    }
    advise(file, Advice::DontNeed, bytes.clone(), file.path())?;
    let mut after = residency(file, bytes.clone())?;
    let mut was_mapped = false;
    if after.resident > 0 && (job.is_mapped || range.attempts >= ATTEMPTS_BEFORE_PAGE_OUT) {
        let proc = ProcRoot::default();
        let advised = job.users.iter().filter_map(|pid| proc.page_out(*pid, file.inode(), &bytes).ok());
        was_mapped = advised.sum::<u64>() > 0;
        after = residency(file, bytes)?;
    }
    let why = match (after.unwritten() > 0, was_mapped) {
        (true, _) => StayReason::Unwritten,
        (false, true) => StayReason::Mapped,
        (false, false) => StayReason::Other,
    };
    Ok(RangeResult { was_mapped, ..result(range, resident, after.resident, why) })
}

/// Returns the ranges of a file that are resident, at most [`SEARCHED_RANGES_MAX`]. A file that
/// can't be examined has none.
fn search(file: &InspectedFile) -> Vec<Range<u64>> {
    let ranges = resident_extents(file, 0..u64::MAX).into_iter().flatten();
    ranges.map_while(Result::ok).take(SEARCHED_RANGES_MAX).collect()
}

fn result(range: &DueRange, resident: u64, stays: u64, why: StayReason) -> RangeResult {
    let length = range.bytes.end - range.bytes.start;
    let outcome = ReleaseOutcome {
        released: resident.saturating_sub(stays),
        gone: length.saturating_sub(resident.max(stays)),
        stays,
    };
    RangeResult { range: range.clone(), outcome, why: (stays > 0).then_some(why), was_mapped: false }
}

/// Examines a range that is not to be released.
fn look(file: &InspectedFile, range: &DueRange) -> Result<RangeResult, Error> {
    let resident = residency(file, range.bytes.clone())?.resident;
    Ok(result(range, resident, resident, StayReason::Left))
}

fn left(range: &DueRange) -> RangeResult {
    let length = range.bytes.end - range.bytes.start;
    result(range, length, length, StayReason::Left)
}
