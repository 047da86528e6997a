//! Jobs of databases on file systems that do not answer: how long to wait for them, when to report them, and
//! how many may hang.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;

use crate::directory::{DatabaseKey, Directories};

/// The time that a tick waits for one job.
pub(super) const JOB_WAIT_MAX: Duration = Duration::from_secs(2);
/// Time until the first report that a job does not come back, and the factor by which that time grows with
/// each report.
const HANG_REPORT_AFTER: Duration = Duration::from_secs(5);
const HANG_REPORT_FACTOR: u32 = 12;
/// Limits on hung databases, per user and in all; beyond them no new directory is opened.
pub(super) const HUNG_DATABASES_MAX: (usize, usize) = (16, 128);

/// A job on the directories of one database, run in the worker's thread.
pub(super) type Job<R> = Box<dyn FnOnce(&mut Directories, &JobPlace) -> R + Send>;

/// The index of the directory that a job is working on.
#[derive(Debug, Clone, Default)]
pub(super) struct JobPlace(Arc<AtomicUsize>);

impl JobPlace {
    /// Records that the job continues with the directory of this index.
    pub(super) fn at(&self, index: usize) {
        self.0.store(index, Ordering::Relaxed);
    }

    /// Records that the job continues on a file system that may be none of its directories'.
    pub(super) fn elsewhere(&self) {
        self.at(usize::MAX);
    }
}

/// The state of a job that was left behind.
pub(super) enum JobPoll {
    NotYet,
    Now(Directories),
    Never,
}

/// A database whose job has not come back.
pub(super) struct Hung {
    pub(super) key: DatabaseKey,
    /// Its party when the job began.
    party: Party,
    pub(super) path: PathBuf,
    pub(super) profile: Option<String>,
    /// The devices of its directories, as far as they are known. `place` says at which of them it hangs.
    devices: Vec<Option<u64>>,
    place: JobPlace,
    since: Instant,
    report_after: Duration,
    /// Whether that was reported; then its end is reported as well.
    pub(super) was_reported: bool,
    /// Whether it is not to be watched any more.
    pub(super) is_dropped: bool,
    back: Box<dyn FnMut() -> JobPoll>,
}

impl Hung {
    pub(super) fn new(
        (key, party): (DatabaseKey, Party),
        path: PathBuf,
        profile: Option<String>,
        (devices, place): (Vec<Option<u64>>, JobPlace),
        since: Instant,
        back: Box<dyn FnMut() -> JobPoll>,
    ) -> Self {
        let (report_after, was_reported, is_dropped) = (HANG_REPORT_AFTER, false, false);
        Self {
            key,
            party,
            path,
            profile,
            devices,
            place,
            since,
            report_after,
            was_reported,
            is_dropped,
            back,
        }
    }

    /// Returns whether it is the database of this process.
    pub(super) fn is_of(&self, pid: u32) -> bool {
        self.key.pid() == Some(pid)
    }

    /// Returns the device that does not answer, if it is known.
    pub(super) fn device(&self) -> Option<u64> {
        self.devices.get(self.place.0.load(Ordering::Relaxed)).copied().flatten()
    }

    /// Returns how long the job has not come back.
    pub(super) fn time(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns whether a report is due now.
    pub(super) fn is_report_due(&mut self) -> bool {
        let is_due = !self.is_dropped && self.time() >= self.report_after;
        if is_due {
            self.was_reported = true;
            self.report_after *= HANG_REPORT_FACTOR;
        }
        is_due
    }

    /// Asks whether the job has come back.
    pub(super) fn poll(&mut self) -> JobPoll {
        (self.back)()
    }
}

/// Returns a function that polls a job for its directories.
pub(super) fn back<R: 'static>(waiting: Receiver<(Directories, R)>) -> Box<dyn FnMut() -> JobPoll> {
    Box::new(move || match waiting.try_recv() {
        Ok((directories, _)) => JobPoll::Now(directories),
        Err(TryRecvError::Empty) => JobPoll::NotYet,
        Err(TryRecvError::Disconnected) => JobPoll::Never,
    })
}

/// Returns whether so many jobs hang that nothing new of this database is to be opened.
pub(super) fn hangs_too_much(hung: &[Hung], key: &DatabaseKey, party: Party) -> bool {
    let parties = hung.iter().map(|one| one.party);
    hung.iter().any(|one| one.key == *key) || are_too_many(parties, party, HUNG_DATABASES_MAX)
}

/// Returns whether the limits on hung jobs, per party and in all, are reached.
pub(super) fn are_too_many(
    hung: impl Iterator<Item = Party>,
    party: Party,
    (of_party, of_all): (usize, usize),
) -> bool {
    let (own, all) = hung.fold((0, 0), |(own, all), other| (own + usize::from(other == party), all + 1));
    own >= of_party || all >= of_all
}
