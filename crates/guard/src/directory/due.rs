//! When the files of a directory are sampled, and what becomes of what was seen of them.
//!
//! Invariant: a file where nothing happens is sampled ever more seldom, at least every [`SELDOM`] ticks; of a database with more than
//! [`MANY`] one without resident pages at least every [`EMPTY`](crate::entry::EMPTY), if it had some or is no new one, is not the last of its
//! log, and all that its process has open is seen (but not what helpers of it have). Such a database's files are not opened for
//! each of these samples (see [`Entry`]).
//!
//! A file that can't be inspected is reported, and sampled seldom from then on.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::ops::{Bound, Range};
use std::os::fd::BorrowedFd;
use std::path::Path;

use pagekeeper_kernel::{Error, InspectedFile, Result, stat_of_name};
use pagekeeper_policy::names::Number;
use pagekeeper_policy::{LogId, Window};

use super::Directory;
use crate::budget::Turn;
use crate::descriptors::FilesInUse;
use crate::entry::{COUNTED, Entry, SELDOM};
use crate::ids::IdMap;
use crate::sample::{Due, Room, Sample, Sampled, sample_again, sample_due};

/// So many files are sampled together, which takes opening their directory once.
const TOGETHER: u64 = 16;
/// Ticks between samples of a file that is open in a process with very many of them: a half to all of so many.
const HELD: u32 = 8;
/// The same where its database has many.
const HELD_OF_MANY: u32 = 64;
/// A directory in which no file is sampled is opened every so many ticks, to see whether its path still leads to it.
const CHECKED: u64 = 16;
/// The same where a database has many.
const CHECKED_OF_MANY: u64 = 64;
/// Of a database with more log files than this, those where nothing happens are sampled less often.
const MANY: usize = 256;
/// Files that are taken in hand at once: before the first of them is sampled all of these are gone through, which is not to take
/// much of a turn.
const AT_ONCE: usize = 256;

/// For how long no file of a directory has to be looked at.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Ticks that the files have not been counted down by.
    pub(super) passed: u32,
    /// Of how many of them none is due, as things stand.
    pub(super) until_due: u32,
    /// Whether some process was at a file of it in the tick before.
    pub(super) was_busy: bool,
}

/// What matters of its database to how often files are sampled.
pub(super) struct OfDatabase {
    /// How many files it has.
    pub(super) files: usize,
    /// Whether it is seen which of them its process has open.
    pub(super) sees_openers: bool,
}

/// What came of sampling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SampledFiles {
    /// Whether anything has changed.
    pub(crate) changed: bool,
    /// Whether there was no room for all windows.
    pub(crate) no_room: bool,
}

impl Directory {
    /// Whether it is to be opened at this tick though no file in it is due. Without any file it always is: nothing else shows
    /// that another takes its place.
    pub(crate) fn is_checked_now(&mut self) -> bool {
        self.ticks = self.ticks.wrapping_add(1);
        // Not all in the same tick.
        let often = if self.is_among_many() { CHECKED_OF_MANY } else { CHECKED };
        self.entries.is_empty() || self.ticks.wrapping_add(self.place()).is_multiple_of(often)
    }

    /// Which of the ticks is its own, so that not all directories have the same.
    fn place(&self) -> u64 {
        self.pin.map_or(0, |pin| pin.inode.ino % (1 << 32))
    }

    /// Takes note of how many files its database has, and whether it is seen which of them its process has open.
    pub(crate) fn of_database_with(&mut self, files: usize, sees_openers: bool) {
        self.database = OfDatabase { files, sees_openers };
    }

    /// Which file is the last of each log: where its writer goes on, unless it uses older ones again.
    fn last_of_logs(&self) -> IdMap<LogId, u64> {
        let mut last: IdMap<LogId, u64> = IdMap::default();
        for entry in self.entries.values() {
            let last = last.entry(entry.log).or_default();
            *last = entry.sequence.max(*last);
        }
        last
    }

    /// Whether its database has many.
    fn is_among_many(&self) -> bool {
        self.database.files.max(self.entries.len()) > MANY
    }

    /// Begins a tick; whether there are files that are to be [sampled](Self::due) in it: those that are due, and those that some process
    /// is at.
    pub(crate) fn begin_tick(&mut self, in_use: &FilesInUse) -> bool {
        let is_busy = in_use.directories.contains(&self.id);
        // Files that were busy until now are held from now on.
        let was_busy = std::mem::replace(&mut self.rest.was_busy, is_busy);
        self.rest.passed += 1;
        if !is_busy && !was_busy && self.rest.passed < self.rest.until_due {
            return false;
        }
        let passed = std::mem::take(&mut self.rest.passed);
        let (place, among_many) = (self.place(), self.is_among_many());
        let half = if among_many { HELD_OF_MANY } else { HELD } / 2;
        for entry in self.entries.values_mut() {
            entry.due = entry.due.saturating_sub(passed);
            if in_use.busy.contains(&entry.id) {
                entry.sample_now();
            } else if in_use.held.contains(&entry.id) {
                // Files that fell quiet together are spread over the ticks.
                let turn = place + entry.id.0 / TOGETHER;
                let spread = u32::try_from(turn % u64::from(half)).expect("it is less than a half");
                entry.due = entry.due.min(half + spread);
            }
        }
        self.rest.until_due = self.entries.values().map(|entry| entry.due).min().unwrap_or(0);
        self.rest.until_due == 0 && !self.entries.is_empty()
    }

    /// The next of the files to be sampled now, the one behind the last that was sampled first; none if all were.
    pub(crate) fn due(&mut self) -> Vec<Due> {
        let among_many = self.is_among_many();
        let due = |(name, entry): (&OsString, &Entry)| {
            let windows = entry.sample.windows.len();
            (entry.due == 0).then(|| Due {
                name: name.clone(),
                inode: entry.inode,
                from: entry.from,
                windows,
                unless: entry.uncounted_while(among_many),
            })
        };
        let files: Vec<Due> = match &self.sampled_to {
            None => self.entries.iter().filter_map(due).take(AT_ONCE).collect(),
            Some(last) => {
                let behind = self.entries.range::<OsString, _>((Bound::Excluded(last), Bound::Unbounded));
                let before = self.entries.range::<OsString, _>((Bound::Unbounded, Bound::Included(last)));
                behind.chain(before).filter_map(due).take(AT_ONCE).collect()
            }
        };
        self.sampled_to = files.get(AT_ONCE - 1).map(|last| last.name.clone());
        files
    }

    /// Whether more files may be due than were taken in hand.
    pub(crate) fn has_more_due(&self) -> bool {
        self.sampled_to.is_some()
    }

    /// Takes those from what is due that are not to be opened, see [`Due::unless`], as far as their path shows it: the directory need not
    /// be opened for them. Not where that path is of another process: there it leads elsewhere.
    pub(crate) fn take_unchanged(&mut self, due: &mut Vec<Due>) {
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
                entry.take_unchanged(place + entry.id.0 / TOGETHER);
            }
            false
        });
    }

    /// Samples the files that are [due](Self::due) while the turn lasts. `problem` is given those that can't be inspected.
    pub(crate) fn sample(
        &mut self,
        fd: BorrowedFd<'_>,
        due: Vec<Due>,
        room: &mut Room,
        turn: &Turn,
        problem: impl FnMut(&Path, &Error),
    ) -> SampledFiles {
        let wanted = due.len();
        let sampled = sample_due(fd, &self.path, &mut self.file_system, due, room, turn);
        if sampled.iter().any(|sampled| !matches!(sampled.seen, Ok(None))) {
            self.touch();
        }
        self.take_samples(sampled, wanted, problem)
    }

    /// Takes in what was seen of files, of so many that were to be sampled.
    fn take_samples(
        &mut self,
        sampled: Vec<Sampled>,
        wanted: usize,
        mut problem: impl FnMut(&Path, &Error),
    ) -> SampledFiles {
        let mut all = SampledFiles::default();
        if sampled.len() < wanted
            && let Some(last) = sampled.last()
        {
            self.sampled_to = Some(last.name.clone());
        }
        let (mut resized, mut others) = (BTreeSet::new(), Vec::new());
        let among_many = self.is_among_many();
        let may_rest = !sampled.is_empty() && self.database.sees_openers && among_many;
        let last = may_rest.then(|| self.last_of_logs());
        let place = self.place();
        for Sampled { name, seen } in sampled {
            let Some(entry) = self.entries.get_mut(&name) else { continue };
            match seen {
                Ok(None) => entry.take_unchanged(place + entry.id.0 / TOGETHER),
                Ok(Some(seen)) => {
                    entry.changed = seen.changed;
                    if seen.stat.size != entry.size && matches!(entry.number, Number::WalSegment(_)) {
                        resized.insert(entry.log);
                    }
                    all.no_room |= seen.no_room;
                    let turn = place + entry.id.0 / TOGETHER;
                    let is_last = |last: &IdMap<LogId, u64>| last.get(&entry.log) == Some(&entry.sequence);
                    let may_rest = last.as_ref().is_some_and(|last| !is_last(last));
                    all.changed |= entry.take(seen, among_many, may_rest, turn);
                }
                // Another file of that name: whether it counts is seen when the directory is listed.
                Err(Error::OtherFile { .. }) => others.push(name),
                Err(error) => {
                    entry.sample = Sample::default();
                    entry.uncounted = COUNTED;
                    entry.due = SELDOM;
                    if error.is_gone() {
                        self.stale = true;
                    } else {
                        problem(&self.path.join(&name), &error);
                    }
                }
            }
        }
        for name in others {
            self.changed(Some(&name));
        }
        self.set_sequences(&resized);
        all
    }

    /// Takes a new sample of a range of a file after an act on it, and returns it.
    pub(crate) fn take_sample(
        &mut self,
        path: &Path,
        file: &InspectedFile,
        range: Range<u64>,
    ) -> Result<Vec<Window>> {
        let found = sample_again(file, range.clone())?;
        let left = found.clone();
        self.touch();
        if let Some(entry) = path.file_name().and_then(|name| self.entries.get_mut(name)) {
            entry.sample.replace(&range, found);
            entry.sample_now();
            entry.due = 1;
        }
        Ok(left)
    }
}
