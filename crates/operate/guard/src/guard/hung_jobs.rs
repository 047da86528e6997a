//! Takes back the directories of jobs that hung, once their file systems answer again.

use std::sync::mpsc::TryRecvError;

use pagekeeper_catalog::ownership::FileOwnership;

use super::report::TickContext;
use super::watched::WatchList;
use crate::descriptors::Extent;
use crate::directory::Directory;

impl WatchList {
    /// Takes back databases that answer again, and reports those that do not.
    pub(super) fn take_back(&mut self, tick: &mut TickContext<'_>) {
        if !self.jobs.worker.is_ready() {
            let problem = "no thread can be started (RLIMIT_NPROC, TasksMax or memory): the files of databases are left alone";
            tick.report.problem(self.proc.path().to_path_buf(), &problem);
        }
        for mut hung in std::mem::take(&mut self.jobs.hung) {
            let index = self.databases.iter().position(|database| hung.is_of(database.pid));
            hung.is_dropped |= index.is_none() && hung.key.pid().is_some();
            match (hung.back)() {
                Err(TryRecvError::Empty) => {
                    tick.report.events.extend(hung.report_hang());
                    self.jobs.hung.push(hung);
                }
                _ if hung.is_dropped => {}
                Ok(directories) => {
                    tick.report.events.extend(hung.report_answer());
                    for directory in directories {
                        self.take_up_again(directory, tick);
                    }
                    // The database's process may have changed meanwhile.
                    if let Some(index) = index {
                        self.select_again(index, tick);
                    }
                }
                Err(TryRecvError::Disconnected) => {
                    let problem = "the guard failed at its files: it is examined again";
                    tick.report.problem(hung.path, &problem);
                    if let Some(index) = index {
                        self.databases[index].claims.clear();
                        self.databases[index].descriptors.schedule.ask(Extent::All);
                    }
                }
            }
        }
    }

    /// Watches a directory again that was away, if there is room for it. Uses what its process is
    /// and has open now.
    fn take_up_again(&mut self, mut directory: Box<Directory>, tick: &mut TickContext<'_>) {
        let database = self.databases.iter().find(|database| Some(database.pid) == directory.owner);
        if let Some(database) = database {
            directory.ownership = FileOwnership::Process(database.ownership());
        }
        let taken = self.directories.iter().any(|other| {
            let pins = other.pin.zip(directory.pin);
            pins.is_some_and(|(other, own)| other.is_same(&own))
        });
        if taken || !self.has_room_again(&directory, tick) {
            return;
        }
        directory.came_back();
        self.directories.push(directory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use crate::config::Options;
    use crate::directory::DatabaseKey;
    use crate::event::Event;
    use crate::guard::Guard;
    use crate::guard::jobs::{HANG_REPORT_AFTER, HUNG_DATABASES_MAX, HungJob, JobPlace};
    use pagekeeper_catalog::Party;
    use pagekeeper_catalog::Profile;
    use pagekeeper_catalog::ownership::ProcessOwnership;
    use pagekeeper_kernel::process::ProcRoot;
    use pagekeeper_policy::quota::{DIRECTORIES_MAX, DIRECTORIES_PER_DATABASE};
    use std::collections::HashSet;
    use std::sync::Arc;

    #[test]
    fn hung_jobs_count_for_their_user_after_the_process_has_ended() {
        let mut guard =
            Guard::new(Options { find: false, ..Options::default() }, ProcRoot::default()).unwrap();
        let jobs = &mut guard.watched.jobs;
        let attacker = Party::User(54_321);
        for pid in 0..u32::try_from(HUNG_DATABASES_MAX.0).unwrap() {
            // None of these is among the databases: they have ended.
            jobs.hung.push(HungJob {
                key: DatabaseKey::Process(u32::MAX - pid),
                party: attacker,
                path: "/".into(),
                profile: None,
                devices: Vec::new(),
                place: JobPlace::default(),
                since: Instant::now(),
                report_after: HANG_REPORT_AFTER,
                is_dropped: false,
                back: Box::new(|| Err(TryRecvError::Empty)),
            });
        }
        let keys = [1, 2].map(DatabaseKey::Process);
        let users = keys.clone().into_iter().zip([attacker, Party::User(54_322)]);
        jobs.turns.begin_tick(std::iter::empty(), users, Instant::now());
        assert_eq!(keys.map(|key| jobs.may_not_open(&key)), [true, false]);
        assert!(!jobs.may_not_open(&DatabaseKey::Named("/elsewhere".into())), "the operator's word");
    }

    #[test]
    fn returning_directories_stay_within_the_limits() {
        let profile = Arc::new(Profile::built_in().swap_remove(0));
        let of = |number: usize, pid: u32, party| {
            let ownership =
                FileOwnership::Process(Arc::new(ProcessOwnership::new(None, party, HashSet::new())));
            let path = format!("/{pid}/{number}").into();
            Box::new(Directory::new(path, Some(pid), None, Arc::clone(&profile), ownership))
        };
        let parties = [(1, Party::User(1)), (2, Party::User(1)), (3, Party::User(2)), (4, Party::User(2))];
        let mut guard =
            Guard::new(Options { find: false, ..Options::default() }, ProcRoot::default()).unwrap();
        let (watched, now) = (&mut guard.watched, Instant::now());
        let mut tick = TickContext { settings: &guard.settings, report: &mut guard.report, now };
        for (pid, party) in parties {
            watched.directories.extend((0..DIRECTORIES_PER_DATABASE).map(|number| of(number, pid, party)));
        }
        let count = |watched: &WatchList, pid: u32| {
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
