//! Decides when the files of a directory are sampled, and takes in their samples.
//!
//! Invariant: a file where nothing happens is sampled at growing intervals, but at least every
//! [`IDLE_TICKS_MAX`](pagekeeper_policy::sample_schedule::IDLE_TICKS_MAX) ticks. In a database with more than [`MANY_FILES_MIN`] files, a file without
//! resident pages is sampled at least every
//! [`EMPTY_TICKS_MAX`](pagekeeper_policy::sample_schedule::EMPTY_TICKS_MAX) ticks. That needs that
//! 1. the file had resident pages, or is not new;
//! 2. it is not the last of its log;
//! 3. all files that the database's process has open are seen (those of its helpers may not be).
//!
//! Such a database's files are not opened for each of these samples (see [`Entry`]).
//!
//! A file that can't be inspected is reported, and sampled rarely from then on.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::ops::{Bound, Range};
use std::os::fd::BorrowedFd;
use std::path::Path;

use pagekeeper_kernel::{Error, InspectedFile, Result, stat_of_name};
use pagekeeper_policy::names::FileNumber;
use pagekeeper_policy::{LogId, WindowFacts};

use super::Directory;
use crate::budget::Turn;
use crate::descriptor::FilesInUse;
use crate::entry::{Entry, OfDatabase};
use crate::sample::{DueFile, Sample, SamplingResult, WindowRoom, sample_again, sample_file};

/// Number of files that are sampled together, which takes opening their directory once.
const FILES_PER_OPEN: u64 = 16;
/// A file that is open in a process with very many descriptors is sampled every `HELD_TICKS / 2` to
/// `HELD_TICKS` ticks.
const HELD_TICKS: u32 = 8;
/// The same where its database has many files.
const HELD_TICKS_OF_MANY: u32 = 64;
/// A directory in which no file is sampled is opened every so many ticks, to check that its path
/// still leads to it.
const CHECK_TICKS: u64 = 16;
/// The same where its database has many files.
const CHECK_TICKS_OF_MANY: u64 = 64;
/// In a database with more log files than this, idle files are sampled less often.
const MANY_FILES_MIN: usize = 256;
/// Maximum number of files that are collected at once: all of these are visited before the first
/// one is sampled, and that must not take much of a turn.
const DUE_BATCH_MAX: usize = 256;

impl Directory {
    /// Returns whether it is to be opened at this tick although no file in it is due. A directory
    /// without files always is: nothing else shows that another directory takes its place.
    pub(crate) fn is_checked_now(&mut self) -> bool {
        self.ticks = self.ticks.wrapping_add(1);
        // Directories are spread over the ticks.
        let often = if self.is_among_many() { CHECK_TICKS_OF_MANY } else { CHECK_TICKS };
        self.entries.is_empty() || self.ticks.wrapping_add(self.place()).is_multiple_of(often)
    }

    /// Returns a number that assigns the directory its own ticks, so that directories are spread
    /// over them.
    fn place(&self) -> u64 {
        self.pin.map_or(0, |pin| pin.inode.ino % (1 << 32))
    }

    /// Records how many files its database has, and whether the guard sees which of them its
    /// process has open.
    pub(crate) fn of_database_with(&mut self, files: usize, sees_openers: bool) {
        self.database = OfDatabase { files, sees_openers };
    }

    /// Returns the last file of each log: where its writer continues, unless it reuses older ones.
    fn last_of_logs(&self) -> HashMap<LogId, u64> {
        let mut last: HashMap<LogId, u64> = HashMap::new();
        for entry in self.entries.values() {
            let last = last.entry(entry.log).or_default();
            *last = entry.sequence.max(*last);
        }
        last
    }

    /// Returns whether its database has many files.
    fn is_among_many(&self) -> bool {
        self.database.files.max(self.entries.len()) > MANY_FILES_MIN
    }

    /// Begins a tick. Returns whether there are files to be [sampled](Self::due) in it: those that
    /// are due, and those that some process uses.
    pub(crate) fn begin_tick(&mut self, in_use: &FilesInUse) -> bool {
        let is_busy = in_use.directories.contains(&self.id);
        // Files that were busy until now are held from now on.
        let was_busy = std::mem::replace(&mut self.next_due.was_busy, is_busy);
        self.next_due.passed += 1;
        if !is_busy && !was_busy && self.next_due.passed < self.next_due.until_due {
            return false;
        }
        let passed = std::mem::take(&mut self.next_due.passed);
        let (place, among_many) = (self.place(), self.is_among_many());
        let half = if among_many { HELD_TICKS_OF_MANY } else { HELD_TICKS } / 2;
        for entry in self.entries.values_mut() {
            let schedule = &mut entry.schedule;
            schedule.due = schedule.due.saturating_sub(passed);
            if in_use.busy.contains(&entry.id) {
                schedule.sample_now();
            } else if in_use.held.contains(&entry.id) {
                // Files that became idle together are spread over the ticks.
                let turn = place + entry.id.0 / FILES_PER_OPEN;
                let spread = u32::try_from(turn % u64::from(half)).expect("it is less than a half");
                schedule.due = schedule.due.min(half + spread);
            }
        }
        self.next_due.until_due = self.entries.values().map(|entry| entry.schedule.due).min().unwrap_or(0);
        self.next_due.until_due == 0 && !self.entries.is_empty()
    }

    /// Returns the next files to be sampled now, beginning after the last one that was sampled;
    /// none if all were.
    pub(crate) fn due(&mut self) -> Vec<DueFile> {
        let among_many = self.is_among_many();
        let due = |(name, entry): (&OsString, &Entry)| {
            let windows = entry.sample.windows.len();
            (entry.schedule.due == 0).then(|| DueFile {
                name: name.clone(),
                inode: entry.inode,
                from: entry.from,
                windows,
                unless: entry.uncounted_while(among_many),
            })
        };
        let files: Vec<DueFile> = match &self.sampled_to {
            None => self.entries.iter().filter_map(due).take(DUE_BATCH_MAX).collect(),
            Some(last) => {
                let behind = self.entries.range::<OsString, _>((Bound::Excluded(last), Bound::Unbounded));
                let before = self.entries.range::<OsString, _>((Bound::Unbounded, Bound::Included(last)));
                behind.chain(before).filter_map(due).take(DUE_BATCH_MAX).collect()
            }
        };
        self.sampled_to = files.get(DUE_BATCH_MAX - 1).map(|last| last.name.clone());
        files
    }

    /// Returns whether more files may be due than were collected.
    pub(crate) fn has_more_due(&self) -> bool {
        self.sampled_to.is_some()
    }

    /// Removes those from `due` that need not be opened, see [`DueFile::unless`], as far as their
    /// path shows it: then the directory need not be opened either. Does nothing where the path is
    /// another process's, since it leads elsewhere here.
    pub(crate) fn take_unchanged(&mut self, due: &mut Vec<DueFile>) {
        if self.through.is_some() {
            return;
        }
        let place = self.place();
        due.retain_mut(|due| {
            let Some(last) = due.unless.take() else { return true };
            let stat = stat_of_name(&self.path.join(&due.name));
            if !stat.is_ok_and(|stat| last.is(due.inode, &stat)) {
                return true;
            }
            if let Some(entry) = self.entries.get_mut(&due.name) {
                entry.schedule.uncounted(place + entry.id.0 / FILES_PER_OPEN);
            }
            false
        });
    }

    /// Samples the files that are [due](Self::due) while the turn lasts, but at least one. Calls
    /// `problem` for those that can't be inspected.
    pub(crate) fn sample(
        &mut self,
        fd: BorrowedFd<'_>,
        due: Vec<DueFile>,
        room: &mut WindowRoom,
        turn: &Turn,
        mut problem: impl FnMut(&Path, &Error),
    ) -> SamplingResult {
        let mut all = SamplingResult::default();
        let (mut resized, mut others) = (BTreeSet::new(), Vec::new());
        let among_many = self.is_among_many();
        let may_rest = !due.is_empty() && self.database.sees_openers && among_many;
        let last = may_rest.then(|| self.last_of_logs());
        let place = self.place();
        let mut waiting = due.len();
        for due in due {
            waiting -= 1;
            let seen = sample_file(fd, &self.path, &mut self.file_system, &due, room, turn);
            let is_over = if matches!(seen, Ok(None)) {
                turn.step()
            } else {
                self.touch();
                turn.is_over()
            };
            let DueFile { name, .. } = due;
            if is_over && waiting > 0 {
                self.sampled_to = Some(name.clone());
            }
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            match seen {
                Ok(None) => entry.schedule.uncounted(place + entry.id.0 / FILES_PER_OPEN),
                Ok(Some(seen)) => {
                    entry.changed = seen.changed;
                    if seen.stat.size != entry.size && matches!(entry.number, FileNumber::WalSegment(_)) {
                        resized.insert(entry.log);
                    }
                    all.no_room |= seen.no_room;
                    let turn = place + entry.id.0 / FILES_PER_OPEN;
                    let is_last = |last: &HashMap<LogId, u64>| last.get(&entry.log) == Some(&entry.sequence);
                    let may_rest = last.as_ref().is_some_and(|last| !is_last(last));
                    all.changed |= entry.take(seen, among_many, may_rest, turn);
                }
                // Another file of that name: the next listing decides whether it counts.
                Err(Error::OtherFile { .. }) => others.push(name),
                Err(error) => {
                    entry.sample = Sample::default();
                    entry.schedule.failed();
                    if error.is_gone() {
                        self.stale = true;
                    } else {
                        problem(&self.path.join(&name), &error);
                    }
                }
            }
            if is_over {
                break;
            }
        }
        for name in others {
            self.changed(Some(&name));
        }
        self.set_sequences(&resized);
        all
    }

    /// Samples a range of a file again after an act on it, and returns the result.
    pub(crate) fn take_sample(
        &mut self,
        path: &Path,
        file: &InspectedFile,
        range: Range<u64>,
    ) -> Result<Vec<WindowFacts>> {
        let found = sample_again(file, range.clone())?;
        let left = found.clone();
        self.touch();
        if let Some(entry) = path.file_name().and_then(|name| self.entries.get_mut(name)) {
            entry.sample.replace(&range, found);
            entry.schedule.sample_now();
            entry.schedule.due = 1;
        }
        Ok(left)
    }
}
