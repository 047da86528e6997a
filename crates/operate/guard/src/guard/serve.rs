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
//! 2. A new directory is not opened while [`HUNG_DATABASES_MAX`](super::hung::HUNG_DATABASES_MAX) databases of its user are hung. They still
//!    count for that user after their processes have ended.
//! 3. If no thread can be started, nothing is done.

use std::path::Path;
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_kernel::process::thread_cpu_time;

use super::hung::{Hung, JOB_WAIT_MAX, JobPoll, back, hangs_too_much};
pub(super) use super::hung::{Job, JobPlace};
use super::report::TickContext;
use super::watched::Watched;
use crate::descriptors::Extent;
use crate::directory::{DatabaseKey, Directories, Directory};
use crate::event::Event;
use pagekeeper_catalog::ownership::FileOwnership;

/// Runs a job. Returns its result, and the processor time that it took.
pub(super) fn measured<R>(job: impl FnOnce() -> R) -> (R, Duration) {
    let before = thread_cpu_time();
    let result = job();
    (result, thread_cpu_time().saturating_sub(before))
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

    /// Runs one job, which its database pays for. Returns `None` if it hangs: then its directories are away.
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
                let back = back(waiting);
                self.hung.push(Hung::new(whose, path, Some(profile), (devices, place), since, back));
                None
            }
        }
    }

    /// Finds out something about a path for a database, which pays for it; `None` while that hangs.
    pub(super) fn find_out<R: Send + 'static>(
        &mut self,
        key: DatabaseKey,
        path: &Path,
        job: impl FnOnce() -> R + Send + 'static,
    ) -> Option<R> {
        if self.may_not_open(&key) || !self.crew.is_ready() {
            return None;
        }
        let (since, party) = (Instant::now(), self.party(&key));
        match self.crew.run(JOB_WAIT_MAX, move || (Vec::new(), measured(job))) {
            Ok((_, (result, spent))) => {
                self.turns.spend(&key, spent);
                Some(result)
            }
            Err(waiting) => {
                let known = (Vec::new(), JobPlace::default());
                let hung = Hung::new((key, party), path.to_path_buf(), None, known, since, back(waiting));
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
        self.hung.iter().filter(|hung| !hung.is_dropped).count()
    }

    /// Returns how long the first of them has not answered.
    pub(super) fn hung_for(&self) -> Duration {
        let hung = self.hung.iter().filter(|hung| !hung.is_dropped);
        hung.map(Hung::time).max().unwrap_or_default()
    }

    /// Takes back databases that answer again, and reports those that do not.
    pub(super) fn take_back(&mut self, tick: &mut TickContext<'_>) {
        if !self.crew.is_ready() {
            let problem = "no thread can be started (RLIMIT_NPROC, TasksMax or memory): the files of databases are left alone";
            tick.report.problem(self.proc.path().to_path_buf(), &problem);
        }
        for mut hung in std::mem::take(&mut self.hung) {
            let index = self.databases.iter().position(|database| hung.is_of(database.pid));
            hung.is_dropped |= index.is_none() && hung.key.pid().is_some();
            match hung.poll() {
                JobPoll::NotYet => {
                    if hung.is_report_due() {
                        let (pid, seconds) = (hung.key.pid(), hung.time().as_secs_f64());
                        let (profile, path) = (hung.profile.clone(), hung.path.clone());
                        tick.report.events.push(Event::Hung { pid, profile, path, seconds });
                    }
                    self.hung.push(hung);
                }
                JobPoll::Now(_) | JobPoll::Never if hung.is_dropped => {}
                JobPoll::Now(directories) => {
                    if hung.was_reported {
                        let (pid, seconds) = (hung.key.pid(), hung.time().as_secs_f64());
                        let Hung { profile, path, .. } = hung;
                        tick.report.events.push(Event::Answers { pid, profile, path, seconds });
                    }
                    for directory in directories {
                        self.take_up_again(directory, tick);
                    }
                    // Its process may have changed meanwhile.
                    if let Some(index) = index {
                        self.select_again(index, tick);
                    }
                }
                JobPoll::Never => {
                    let problem = "the guard failed at its files: it is examined anew";
                    tick.report.problem(hung.path, &problem);
                    if let Some(index) = index {
                        self.databases[index].claims.clear();
                        self.databases[index].descriptors.schedule.ask(Extent::All);
                    }
                }
            }
        }
    }

    /// Watches a directory again that was away, if there is room for it. Uses what its process is and has
    /// open now.
    fn take_up_again(&mut self, mut directory: Box<Directory>, tick: &mut TickContext<'_>) {
        let database = self.databases.iter().find(|database| Some(database.pid) == directory.owner);
        if let Some(database) = database {
            directory.right = FileOwnership::Process(database.right());
        }
        let taken = self.directories.iter().any(|other| {
            let pins = other.pin.zip(directory.pin);
            pins.is_some_and(|(other, own)| other.is(&own))
        });
        if taken || !self.has_room_again(&directory, tick) {
            return;
        }
        directory.came_back();
        self.directories.push(directory);
    }

    /// Stops watching all databases that do not answer.
    pub(super) fn drop_hung(&mut self) {
        for hung in &mut self.hung {
            hung.is_dropped = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{DIRECTORIES_MAX, DIRECTORIES_PER_DATABASE};
    use crate::config::Options;
    use crate::guard::Guard;
    use crate::guard::hung::HUNG_DATABASES_MAX;
    use pagekeeper_catalog::Profile;
    use pagekeeper_catalog::ownership::ProcessRight;
    use pagekeeper_kernel::process::ProcRoot;
    use std::collections::HashSet;
    use std::sync::Arc;

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
        let (watched, now) = (&mut guard.watched, Instant::now());
        let mut tick = TickContext { settings: &guard.settings, report: &mut guard.report, now };
        for (pid, party) in parties {
            watched.directories.extend((0..DIRECTORIES_PER_DATABASE).map(|number| of(number, pid, party)));
        }
        let count = |watched: &Watched, pid: u32| {
            watched.directories.iter().filter(|directory| directory.owner == Some(pid)).count()
        };
        assert_eq!(watched.directories.len(), DIRECTORIES_MAX);
        // Directories of a process at its limit, and of one whose user is at the limit.
        watched.take_up_again(of(DIRECTORIES_PER_DATABASE, 1, Party::User(1)), &mut tick);
        assert_eq!(count(watched, 1), DIRECTORIES_PER_DATABASE);
        for number in 0..DIRECTORIES_PER_DATABASE {
            watched.take_up_again(of(number, 5, Party::User(2)), &mut tick);
        }
        assert_eq!(
            (watched.directories.len(), count(watched, 1)),
            (DIRECTORIES_MAX, DIRECTORIES_PER_DATABASE)
        );
        assert!((600..DIRECTORIES_PER_DATABASE).contains(&count(watched, 5)), "{}", count(watched, 5));
        // Another user's directories take the places of the user who has most.
        for number in 0..10 {
            watched.take_up_again(of(number, 6, Party::User(3)), &mut tick);
        }
        assert_eq!((watched.directories.len(), count(watched, 6)), (DIRECTORIES_MAX, 10));
        assert!(tick.report.events.iter().any(|event| matches!(event, Event::InPart { .. })));
    }
}
