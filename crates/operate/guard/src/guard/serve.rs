//! Runs the jobs of one database after another, so that each may hang alone.
//!
//! A database's directories move with each job into the worker's thread
//! ([`Crew`](pagekeeper_kernel::hang::Crew)) and come back with it. A database whose job does not come back
//! is *hung*: its directories are away, and the ticks go on without it. When the job comes back, the database
//! is served again. Databases on the file system at which its job hangs are left alone until then.
//!
//! Not done in jobs: the first look at a process (its names, descriptors and root), which asks only `/proc`.
//! Streams have a thread and workers of their own (`streams`).
//!
//! Invariants:
//! 1. A database has at most one job at a time, so there are no more hung threads than databases.
//! 2. A new directory is not opened while [`HUNG_DATABASES_MAX`] databases of its user are hung. They still
//!    count for that user after their processes have ended.
//! 3. If no thread can be started, nothing is done.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;

use super::hang_timer::{HangTimer, JOB_WAIT_MAX, are_too_many};
use super::report::Report;
use super::watched::{Database, Watched};
use crate::config::Settings;
use crate::descriptors::Extent;
use crate::directory::{DatabaseKey, Directories, Directory};
use crate::event::Event;
use crate::ownership::FileOwnership;

/// Limits on hung databases, per user and in all; beyond them no new directory is opened.
const HUNG_DATABASES_MAX: (usize, usize) = (16, 128);

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

/// A database whose job has not come back.
pub(super) struct Hung {
    key: DatabaseKey,
    /// Its party when the job began.
    party: Party,
    path: PathBuf,
    profile: Option<String>,
    /// The devices of its directories, as far as they are known. `place` says at which of them it hangs.
    devices: Vec<Option<u64>>,
    place: JobPlace,
    hang_timer: HangTimer,
    /// Whether it is not to be watched any more.
    dropped: bool,
    back: Box<dyn FnMut() -> JobPoll>,
}

enum JobPoll {
    NotYet,
    Now(Directories),
    Never,
}

impl Hung {
    fn new(
        (key, party): (DatabaseKey, Party),
        path: PathBuf,
        profile: Option<String>,
        (devices, place): (Vec<Option<u64>>, JobPlace),
        since: Instant,
        back: Box<dyn FnMut() -> JobPoll>,
    ) -> Self {
        let (hang_timer, dropped) = (HangTimer::new(since), false);
        Self { key, party, path, profile, devices, place, hang_timer, dropped, back }
    }

    /// Returns whether it is the database of this process.
    pub(super) fn is_of(&self, pid: u32) -> bool {
        self.key.pid() == Some(pid)
    }

    /// Returns the device that does not answer, if it is known.
    fn device(&self) -> Option<u64> {
        self.devices.get(self.place.0.load(Ordering::Relaxed)).copied().flatten()
    }
}

/// Returns a function that polls a job for its directories.
fn back<R: 'static>(waiting: Receiver<(Directories, R)>) -> Box<dyn FnMut() -> JobPoll> {
    Box::new(move || match waiting.try_recv() {
        Ok((directories, _)) => JobPoll::Now(directories),
        Err(TryRecvError::Empty) => JobPoll::NotYet,
        Err(TryRecvError::Disconnected) => JobPoll::Never,
    })
}

/// Returns whether so many jobs hang that nothing new of this database is to be opened.
fn hangs_too_much(hung: &[Hung], key: &DatabaseKey, party: Party) -> bool {
    let parties = hung.iter().map(|one| one.party);
    hung.iter().any(|one| one.key == *key) || are_too_many(parties, party, HUNG_DATABASES_MAX)
}

impl Watched {
    /// Runs a job on the directories of each database, in turn. `prepare` returns the job, if there is one;
    /// `done` takes its result. Neither finds directories in `self` meanwhile.
    pub(super) fn serve<R: Send + 'static>(
        &mut self,
        mut prepare: impl FnMut(&mut Self, &DatabaseKey, &[usize], &mut [Box<Directory>]) -> Option<Job<R>>,
        mut done: impl FnMut(&mut Self, &DatabaseKey, &mut [Box<Directory>], R),
    ) {
        let order = self.turns.order(&self.directories);
        let mut slots: Vec<Option<Box<Directory>>> =
            std::mem::take(&mut self.directories).into_iter().map(Some).collect();
        for (key, indices) in order {
            let mut own: Directories = indices.iter().filter_map(|index| slots[*index].take()).collect();
            let may_begin = !self.is_hung(&own) && self.crew.is_ready();
            let job = if may_begin { prepare(self, &key, &indices, &mut own) } else { None };
            if let Some(job) = job {
                let Some((mut back, result)) = self.attempt(&key, own, job) else { continue };
                done(self, &key, &mut back, result);
                own = back;
            }
            for (index, directory) in indices.into_iter().zip(own) {
                slots[index] = Some(directory);
            }
        }
        self.directories = slots.into_iter().flatten().collect();
    }

    /// Runs one job. Returns `None` if it hangs: then its directories are away.
    pub(super) fn attempt<R: Send + 'static>(
        &mut self,
        key: &DatabaseKey,
        own: Directories,
        job: Job<R>,
    ) -> Option<(Directories, R)> {
        let first = own.first()?;
        let (path, profile) = (first.path.clone(), first.profile.name.clone());
        let whose = (key.clone(), first.right.party());
        let devices = own.iter().map(|directory| Some(directory.pin?.inode.dev)).collect();
        let place = JobPlace::default();
        let of_job = place.clone();
        let since = Instant::now();
        let outcome = self.crew.run(JOB_WAIT_MAX, move || {
            let mut own = own;
            let result = job(&mut own, &of_job);
            (own, result)
        });
        *self.took.entry(key.clone()).or_default() += since.elapsed();
        let hangs = |waiting| Hung::new(whose, path, Some(profile), (devices, place), since, back(waiting));
        outcome.map_err(|waiting| self.hung.push(hangs(waiting))).ok()
    }

    /// Finds out something about a path for a database; `None` while that hangs.
    pub(super) fn find_out<R: Send + 'static>(
        &mut self,
        key: DatabaseKey,
        path: &Path,
        job: impl FnOnce() -> R + Send + 'static,
    ) -> Option<R> {
        if self.may_not_open(&key) || !self.crew.is_ready() {
            return None;
        }
        let since = Instant::now();
        let party = self.party(&key);
        let outcome = self.crew.run(JOB_WAIT_MAX, move || (Vec::new(), job()));
        let known = (Vec::new(), JobPlace::default());
        let hangs = |waiting| Hung::new((key, party), path.to_path_buf(), None, known, since, back(waiting));
        outcome.map(|(_, result)| result).map_err(|waiting| self.hung.push(hangs(waiting))).ok()
    }

    /// Returns whether any of these directories is on a file system that does not answer.
    fn is_hung(&self, directories: &[Box<Directory>]) -> bool {
        let on_hung = |directory: &Directory| {
            let device = directory.pin.map(|pin| pin.inode.dev);
            device.is_some() && self.hung.iter().any(|hung| hung.device() == device)
        };
        directories.iter().any(|directory| on_hung(directory))
    }

    /// Returns whether no new directory of a database is to be opened now.
    pub(super) fn may_not_open(&self, key: &DatabaseKey) -> bool {
        hangs_too_much(&self.hung, key, self.party(key))
    }

    /// Returns the party of a database.
    fn party(&self, key: &DatabaseKey) -> Party {
        let Some(pid) = key.pid() else { return Party::Operator };
        let database = self.databases.iter().find(|database| database.pid == pid);
        database.map_or(Party::Unknown, |database| database.right().party())
    }

    /// Returns the number of databases whose file systems do not answer.
    pub(super) fn hung_databases(&self) -> usize {
        self.hung.iter().filter(|hung| !hung.dropped).count()
    }

    /// Returns how long the first of them has not answered.
    pub(super) fn hung_for(&self) -> Duration {
        let hung = self.hung.iter().filter(|hung| !hung.dropped);
        hung.map(|hung| hung.hang_timer.time()).max().unwrap_or_default()
    }

    /// Takes back databases that answer again, and reports those that do not.
    pub(super) fn take_back(&mut self, settings: &Settings, report: &mut Report, now: Instant) {
        if !self.crew.is_ready() {
            let problem = "no thread can be started (RLIMIT_NPROC, TasksMax or memory): the files of databases are left alone";
            report.problem(self.proc.path().to_path_buf(), &problem);
        }
        for mut hung in std::mem::take(&mut self.hung) {
            let gone = |pid: &u32| self.databases.iter().all(|database| database.pid != *pid);
            hung.dropped |= matches!(&hung.key, DatabaseKey::Process(pid) if gone(pid));
            let seconds = hung.hang_timer.time().as_secs_f64();
            match (hung.back)() {
                JobPoll::Now(_) | JobPoll::Never if hung.dropped => {}
                JobPoll::Now(directories) => {
                    if hung.hang_timer.was_reported() {
                        report.events.push(Event::Answers {
                            pid: hung.key.pid(),
                            profile: hung.profile,
                            path: hung.path,
                            seconds,
                        });
                    }
                    for directory in directories {
                        self.take_up_again(directory, report, now);
                    }
                    // Its process may have changed meanwhile.
                    let is_of = |database: &Database| Some(database.pid) == hung.key.pid();
                    if let Some(index) = self.databases.iter().position(is_of) {
                        self.select_again(index, settings, report, now);
                    }
                }
                JobPoll::Never => {
                    let problem = "the guard failed at its files: it is examined anew";
                    report.problem(hung.path, &problem);
                    if let Some(database) =
                        self.databases.iter_mut().find(|database| Some(database.pid) == hung.key.pid())
                    {
                        database.claims.clear();
                        database.descriptors.schedule.ask(Extent::All);
                    }
                }
                JobPoll::NotYet => {
                    if !hung.dropped && hung.hang_timer.is_due() {
                        report.events.push(Event::Hung {
                            pid: hung.key.pid(),
                            profile: hung.profile.clone(),
                            path: hung.path.clone(),
                            seconds,
                        });
                    }
                    self.hung.push(hung);
                }
            }
        }
    }

    /// Watches a directory again that was away, if there is room for it. Uses what its process is and has
    /// open now.
    fn take_up_again(&mut self, mut directory: Box<Directory>, report: &mut Report, now: Instant) {
        let database = self.databases.iter().find(|database| Some(database.pid) == directory.owner);
        if let Some(database) = database {
            directory.right = FileOwnership::Process(database.right());
        }
        let taken = self.directories.iter().any(|other| {
            let pins = other.pin.zip(directory.pin);
            pins.is_some_and(|(other, own)| other.is(&own))
        });
        if taken || !self.has_room_again(&directory, report, now) {
            return;
        }
        directory.came_back();
        self.directories.push(directory);
    }

    /// Stops watching all databases that do not answer.
    pub(super) fn drop_hung(&mut self) {
        for hung in &mut self.hung {
            hung.dropped = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{DIRECTORIES_MAX, DIRECTORIES_PER_DATABASE};
    use crate::config::Options;
    use crate::guard::Guard;
    use crate::ownership::ProcessRight;
    use pagekeeper_catalog::Profile;
    use pagekeeper_kernel::process::ProcRoot;
    use std::collections::HashSet;

    #[test]
    fn hung_databases_stay_their_users_when_their_processes_have_ended() {
        let mut guard =
            Guard::new(Options { find: false, ..Options::default() }, ProcRoot::default()).unwrap();
        let watched = &mut guard.watched;
        let attacker = Party::User(54_321);
        for pid in 0..u32::try_from(HUNG_DATABASES_MAX.0).unwrap() {
            // None of these is among the databases: they have ended.
            let whose = (DatabaseKey::Process(u32::MAX - pid), attacker);
            let nothing = (Vec::new(), JobPlace::default());
            let never_back = Box::new(|| JobPoll::NotYet);
            watched.hung.push(Hung::new(whose, "/".into(), None, nothing, Instant::now(), never_back));
        }
        let key = DatabaseKey::Process(1);
        assert!(hangs_too_much(&watched.hung, &key, attacker));
        assert!(!hangs_too_much(&watched.hung, &key, Party::User(54_322)));
        assert!(!watched.may_not_open(&DatabaseKey::Named("/elsewhere".into())), "the operator's word");
    }

    #[test]
    fn what_comes_back_finds_no_more_places_than_there_are() {
        let profile = Arc::new(Profile::built_in().swap_remove(0));
        let of = |number: usize, pid: u32, party| {
            let right = FileOwnership::Process(Arc::new(ProcessRight::new(None, party, HashSet::new())));
            let path = format!("/{pid}/{number}").into();
            Box::new(Directory::new(path, Some(pid), None, Arc::clone(&profile), right))
        };
        let parties = [(1, Party::User(1)), (2, Party::User(1)), (3, Party::User(2)), (4, Party::User(2))];
        let mut guard =
            Guard::new(Options { find: false, ..Options::default() }, ProcRoot::default()).unwrap();
        let (watched, report, now) = (&mut guard.watched, &mut guard.report, Instant::now());
        for (pid, party) in parties {
            watched.directories.extend((0..DIRECTORIES_PER_DATABASE).map(|number| of(number, pid, party)));
        }
        let count = |watched: &Watched, pid: u32| {
            watched.directories.iter().filter(|directory| directory.owner == Some(pid)).count()
        };
        assert_eq!(watched.directories.len(), DIRECTORIES_MAX);
        // Directories of a process at its limit, and of one whose user is at the limit.
        watched.take_up_again(of(DIRECTORIES_PER_DATABASE, 1, Party::User(1)), report, now);
        assert_eq!(count(watched, 1), DIRECTORIES_PER_DATABASE);
        for number in 0..DIRECTORIES_PER_DATABASE {
            watched.take_up_again(of(number, 5, Party::User(2)), report, now);
        }
        assert_eq!(
            (watched.directories.len(), count(watched, 1)),
            (DIRECTORIES_MAX, DIRECTORIES_PER_DATABASE)
        );
        assert!((600..DIRECTORIES_PER_DATABASE).contains(&count(watched, 5)), "{}", count(watched, 5));
        // Another user's directories take the places of the user who has most.
        for number in 0..10 {
            watched.take_up_again(of(number, 6, Party::User(3)), report, now);
        }
        assert_eq!((watched.directories.len(), count(watched, 6)), (DIRECTORIES_MAX, 10));
        assert!(report.events.iter().any(|event| matches!(event, Event::InPart { .. })));
    }
}
