//! Runs the jobs of one database after another, so that each may hang alone.
//!
//! A database's directories move with each job into the worker's thread
//! ([`JobWorker`](pagekeeper_kernel::hang::JobWorker)) and come back with it. A database whose job
//! does not come back is *hung*: its directories are away, and the ticks continue without it. When
//! the job comes back, the database is served again. Databases on the file system at which its job
//! hangs are left alone until then.
//!
//! Not done in jobs: the first look at a process (its names, descriptors and root), which asks only
//! `/proc`. Streams have a thread and workers of their own (`streams`).
//!
//! Invariants:
//! 1. A database has at most one job at a time, so there are no more hung threads than databases.
//! 2. A new directory is not opened while [`HUNG_DATABASES_MAX`] databases of its user are hung.
//!    They still count for that user after their processes have ended.
//! 3. If no thread can be started, nothing is done.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_kernel::hang::JobWorker;
use pagekeeper_kernel::process::measured;
use pagekeeper_policy::quota::are_too_many;
use pagekeeper_policy::turns;

use crate::directory::{DatabaseKey, Directories, Directory};
use crate::event::Event;

/// The time that a tick waits for one job.
const JOB_WAIT_MAX: Duration = Duration::from_secs(2);
/// Time until the first report that a job does not come back, and the factor by which that time
/// grows with each report.
pub(super) const HANG_REPORT_AFTER: Duration = Duration::from_secs(5);
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

/// A job that has not come back.
pub(super) struct HungJob {
    pub(super) key: DatabaseKey,
    /// The party of its database when it began.
    pub(super) party: Party,
    pub(super) path: PathBuf,
    pub(super) profile: Option<String>,
    /// The devices of its directories, as far as they are known. `place` says at which of them it
    /// hangs.
    pub(super) devices: Vec<Option<u64>>,
    pub(super) place: JobPlace,
    pub(super) since: Instant,
    pub(super) report_after: Duration,
    /// Whether its database is not to be watched any more.
    pub(super) is_dropped: bool,
    /// Returns its directories once it has come back.
    pub(super) back: Box<dyn FnMut() -> Result<Directories, TryRecvError>>,
}

impl HungJob {
    /// Returns whether it is a job of the database of this process.
    pub(super) fn is_of(&self, pid: u32) -> bool {
        self.key.pid() == Some(pid)
    }

    /// Returns the device that does not answer, if it is known.
    fn device(&self) -> Option<u64> {
        self.devices.get(self.place.0.load(Ordering::Relaxed)).copied().flatten()
    }

    /// Returns the report that it does not come back, if that is due.
    pub(super) fn report_hang(&mut self) -> Option<Event> {
        let elapsed = self.since.elapsed();
        if self.is_dropped || elapsed < self.report_after {
            return None;
        }
        self.report_after *= HANG_REPORT_FACTOR;
        let (profile, path) = (self.profile.clone(), self.path.clone());
        Some(Event::Hung { pid: self.key.pid(), profile, path, seconds: elapsed.as_secs_f64() })
    }

    /// Returns the report that it has come back, if it was reported before.
    pub(super) fn report_answer(&self) -> Option<Event> {
        let (profile, path) = (self.profile.clone(), self.path.clone());
        let seconds = self.since.elapsed().as_secs_f64();
        let event = Event::Answers { pid: self.key.pid(), profile, path, seconds };
        (self.report_after > HANG_REPORT_AFTER).then_some(event)
    }
}

/// The order of the databases, and how much each may spend.
pub(super) type Turns = turns::Turns<DatabaseKey, Party>;

/// The jobs, and what each database may spend on them.
pub(super) struct Jobs {
    pub(super) worker: JobWorker,
    pub(super) turns: Turns,
    pub(super) hung: Vec<HungJob>,
    /// The duration of the last tick, by database.
    pub(super) took: BTreeMap<DatabaseKey, Duration>,
}

impl Jobs {
    pub(super) fn new(now: Instant) -> Self {
        let turns = Turns::new(now, Party::Operator, |key| match key {
            DatabaseKey::Named(_) => Party::Operator,
            DatabaseKey::Process(_) => Party::Unknown,
        });
        Self { worker: JobWorker::default(), turns, hung: Vec::new(), took: BTreeMap::new() }
    }

    /// Runs a job on the directories of each database, in turn. `prepare` returns the job, if there
    /// is one; `done` takes its result.
    pub(super) fn serve<R: Send + 'static>(
        &mut self,
        directories: &mut Directories,
        mut prepare: impl FnMut(&mut Turns, &DatabaseKey, &[usize], &mut [Box<Directory>]) -> Option<Job<R>>,
        mut done: impl FnMut(&mut Turns, &DatabaseKey, &mut [Box<Directory>], R),
    ) {
        let order = self.turns.order(directories.iter().map(|directory| directory.database()));
        let mut slots: Vec<Option<Box<Directory>>> =
            std::mem::take(directories).into_iter().map(Some).collect();
        for (key, indices) in order {
            let mut own: Directories = indices.iter().filter_map(|index| slots[*index].take()).collect();
            let may_begin = !self.is_hung(&own) && self.worker.is_ready();
            let job = if may_begin { prepare(&mut self.turns, &key, &indices, &mut own) } else { None };
            if let Some(job) = job {
                let Some((mut back, result)) = self.attempt(&key, own, job) else { continue };
                done(&mut self.turns, &key, &mut back, result);
                own = back;
            }
            for (index, directory) in indices.into_iter().zip(own) {
                slots[index] = Some(directory);
            }
        }
        *directories = slots.into_iter().flatten().collect();
    }

    /// Runs one job, which its database pays for. Returns `None` if it hangs: then its directories
    /// are away.
    pub(super) fn attempt<R: Send + 'static>(
        &mut self,
        key: &DatabaseKey,
        own: Directories,
        job: Job<R>,
    ) -> Option<(Directories, R)> {
        let first = own.first()?;
        let (party, path, profile) =
            (first.ownership.party(), first.path.clone(), Some(first.profile.name.clone()));
        self.run(key, party, path, profile, own, job)
    }

    /// Finds out something about a path for a database, which pays for it; `None` while that hangs.
    pub(super) fn find_out<R: Send + 'static>(
        &mut self,
        key: &DatabaseKey,
        path: &Path,
        job: impl FnOnce() -> R + Send + 'static,
    ) -> Option<R> {
        if self.may_not_open(key) || !self.worker.is_ready() {
            return None;
        }
        let (party, job) = (self.turns.user(key), Box::new(|_: &mut Directories, _: &JobPlace| job()));
        self.run(key, party, path.to_path_buf(), None, Vec::new(), job).map(|(_, result)| result)
    }

    fn run<R: Send + 'static>(
        &mut self,
        key: &DatabaseKey,
        party: Party,
        path: PathBuf,
        profile: Option<String>,
        own: Directories,
        job: Job<R>,
    ) -> Option<(Directories, R)> {
        let devices = own.iter().map(|directory| Some(directory.pin?.inode.dev)).collect();
        let (place, since) = (JobPlace::default(), Instant::now());
        let of_job = place.clone();
        let outcome = self.worker.run(JOB_WAIT_MAX, move || {
            let mut own = own;
            let result = measured(|| job(&mut own, &of_job));
            (own, result)
        });
        *self.took.entry(key.clone()).or_default() += since.elapsed();
        match outcome {
            Ok((own, (result, spent))) => {
                self.turns.spend(key, spent);
                Some((own, result))
            }
            Err(waiting) => {
                let back = Box::new(move || waiting.try_recv().map(|(own, _)| own));
                let (key, report_after, is_dropped) = (key.clone(), HANG_REPORT_AFTER, false);
                let hung = HungJob {
                    key,
                    party,
                    path,
                    profile,
                    devices,
                    place,
                    since,
                    report_after,
                    is_dropped,
                    back,
                };
                self.hung.push(hung);
                None
            }
        }
    }

    /// Returns whether any of these directories is on a file system that does not answer.
    fn is_hung(&self, directories: &[Box<Directory>]) -> bool {
        let on_hung = |directory: &Directory| {
            let device = directory.pin.map(|pin| pin.inode.dev);
            device.is_some() && self.hung.iter().any(|hung| hung.device() == device)
        };
        directories.iter().any(|directory| on_hung(directory))
    }

    /// Returns whether no new directory of a database is to be opened now: so many of its jobs
    /// hang, or of its user's.
    pub(super) fn may_not_open(&self, key: &DatabaseKey) -> bool {
        let parties = self.hung.iter().map(|hung| hung.party);
        self.hung.iter().any(|hung| hung.key == *key)
            || are_too_many(parties, self.turns.user(key), HUNG_DATABASES_MAX)
    }

    fn watched(&self) -> impl Iterator<Item = &HungJob> {
        self.hung.iter().filter(|hung| !hung.is_dropped)
    }

    /// Returns the number of databases whose file systems do not answer.
    pub(super) fn hung_databases(&self) -> usize {
        self.watched().count()
    }

    /// Returns how long the first of them has not answered.
    pub(super) fn hung_for(&self) -> Duration {
        self.watched().map(|hung| hung.since.elapsed()).max().unwrap_or_default()
    }

    /// Stops watching all databases that do not answer.
    pub(super) fn drop_hung(&mut self) {
        self.hung.iter_mut().for_each(|hung| hung.is_dropped = true);
    }
}
