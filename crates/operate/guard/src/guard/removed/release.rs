//! Notes the removed files that processes have open, and releases those that may go.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagekeeper_catalog::Party;
use pagekeeper_kernel::process::{OpenFile, measured, thread_cpu_time};
use pagekeeper_policy::Rule;
use pagekeeper_policy::turns::Slice;

use super::ListedSince;
use super::pass::{PassOutcome, RemovalItem, RemovalOutcome, RemovalPass};
use crate::directory::{DatabaseKey, Directory};
use crate::event::Event;
use crate::guard::jobs::Turns;
use crate::guard::report::TickContext;
use crate::guard::watched::WatchList;

/// The longest time for a pass.
const PASS_TIME_MAX: Duration = Duration::from_millis(250);

impl WatchList {
    /// Records the removed files that a process has open, a list that may be incomplete. `index`
    /// is the database that it is, or whose child it is.
    pub(in crate::guard) fn note_removed(
        &mut self,
        pid: u32,
        index: Option<usize>,
        (open, is_cut): (Vec<OpenFile>, bool),
        now: Instant,
    ) {
        if open.is_empty() && !is_cut {
            self.removed.forget(pid);
            return;
        }
        let before = thread_cpu_time();
        let database = index.map(|index| &self.databases[index]);
        let party =
            database.map_or_else(|| Party::of(&self.proc, pid), |database| database.ownership().party());
        let of = database.map(|database| database.pid);
        let own = self.directories.iter().filter(|directory| of.is_some() && directory.owner == of);
        let own: HashMap<&Path, &Directory> =
            own.map(|directory| (directory.path.as_path(), &**directory)).collect();
        let view = OnceCell::new();
        // Most are in the same few directories.
        let mut parents: HashMap<PathBuf, PathBuf> = HashMap::new();
        let place = |file: &OpenFile| {
            let shown = file.path.parent().filter(|_| !own.is_empty())?;
            if !parents.contains_key(shown) {
                let view = view.get_or_init(|| self.proc.view_of(pid));
                parents.insert(shown.to_path_buf(), view.path(shown));
            }
            let directory = own.get(parents.get(shown)?.as_path())?;
            let pin = directory.pin.filter(|pin| pin.inode.dev == file.inode.dev)?;
            let log = directory.log_like(&directory.path_of(file.path.file_name()?))?;
            (directory.rule(log) != Rule::Keep).then_some(pin.inode)
        };
        self.removed.note(pid, (party, of), (open, is_cut), place, now);
        self.listing_time.spend(thread_cpu_time().saturating_sub(before));
    }

    /// Releases the pages that may go, or reports that it would. Returns the bytes released, and
    /// the number of acts.
    pub(in crate::guard) fn release_removed(&mut self, tick: &mut TickContext<'_>) -> (u64, usize) {
        let mut done = (0, 0);
        if tick.now < self.removed.due {
            return done;
        }
        self.removed.begin(&self.proc, tick.now);
        let mut files = self.removed.by_database();
        if files.is_empty() {
            return done;
        }
        let (mut openers, listed) = (self.removed.openers(), self.all_listed());
        let deadline = Instant::now() + PASS_TIME_MAX;
        let Self { proc, directories, jobs, .. } = self;
        let removed = RefCell::new(&mut self.removed);
        let prepare = |turns: &mut Turns, key: &DatabaseKey, _: &[usize], own: &mut [Box<Directory>]| {
            let files = files.remove(&key.pid()?)?;
            let slice = turns.slice_on_account(key)?;
            let wall = slice.wall.min(deadline.saturating_duration_since(Instant::now()));
            if wall.is_zero() {
                return None;
            }
            let removed = removed.borrow();
            let all_listed = listed.since(own.first()?.ownership.party());
            let (items, spent) = measured(|| removed.items(files, &mut openers, own, all_listed));
            turns.spend(key, spent);
            let pass = RemovalPass {
                proc: proc.clone(),
                quiet: removed.quiet,
                is_dry: tick.settings.options.dry_run,
                now: tick.now,
            };
            (!items.is_empty()).then(|| pass.job(items, Slice { wall, ..slice }))
        };
        let take = |turns: &mut Turns, key: &DatabaseKey, own: &mut [Box<Directory>], looked: PassOutcome| {
            let released = looked.all.iter().map(|(_, outcome)| outcome.released()).sum();
            turns.earn(key, looked.spent, released);
            for (RemovalItem { act, known, .. }, outcome) in looked.all {
                if let Some(file) = removed.borrow_mut().files.get_mut(&act.inode) {
                    file.known = known;
                    if matches!(outcome, RemovalOutcome::Anew) {
                        file.since = tick.now;
                    }
                }
                match outcome {
                    RemovalOutcome::Nothing | RemovalOutcome::Anew => {}
                    RemovalOutcome::Would(end) => {
                        let (path, action) = (act.path, act.action);
                        tick.report.events.push(Event::Would { path, action, start: 0, end });
                    }
                    RemovalOutcome::Released(released, kept) => {
                        done = (done.0 + released, done.1 + 1);
                        tick.report.act_done(&act, &mut own[act.directory], released, kept);
                    }
                    RemovalOutcome::Failed(error) => tick.report.problem(act.path, &error),
                }
            }
        };
        jobs.serve(directories, prepare, take);
        done
    }

    /// Returns since when all processes were listed.
    fn all_listed(&mut self) -> ListedSince {
        let before = thread_cpu_time();
        let mut listed = ListedSince { anybody: self.others.all_read_since(), own: BTreeMap::new() };
        for database in &self.databases {
            let since = database.descriptors.schedule.listed.filter(|_| database.sees_descriptors);
            // The party of a process that was never listed is not known yet.
            let party = match since {
                Some(_) => database.ownership().party(),
                None => Party::of(&self.proc, database.pid),
            };
            listed.note(party, since);
        }
        for process in self.removed.held.values().filter(|process| process.is_cut) {
            listed.note(process.party, None);
        }
        self.listing_time.spend(thread_cpu_time().saturating_sub(before));
        listed
    }
}
