//! Keeps the log files of a directory up to date by its listings: which came and went, and which
//! log each belongs to.
//!
//! Invariant: a file is taken up only if it is the database's own, or belongs to a log whose files
//! only the database's user can have made. Any other file is refused, and reported.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use pagekeeper_catalog::ownership::{DirectoryAttributes, FileOwnership};
use pagekeeper_catalog::{
    Inspection, LogFormat, LogKey, NameListing, NewFile, of_unknown_format, of_unknown_name,
};
use pagekeeper_kernel::Result;
use pagekeeper_policy::names::{FileNumber, SegmentSize};
use pagekeeper_policy::sample_schedule::SampleSchedule;
use pagekeeper_policy::{FileClass, FileId, LogId, RewriteKind, RewriteSource};

use super::{Directory, Log};
use crate::budget::Turn;
use crate::entry::Entry;
use crate::ids::new_id;
use crate::sample::Sample;

/// A listing that takes a millisecond is not repeated for this many milliseconds, whatever comes
/// and goes.
const RELIST_COST_FACTOR: u32 = 50;

/// Maximum number of files whose format is read in one listing: no ring of redo logs has more.
const FORMATS_READ_MAX: usize = 32;

/// The result of continuing a listing.
#[derive(Debug, Default)]
pub(crate) struct ListingResult {
    /// The last file of each log in which files were taken up.
    pub(crate) grown: Vec<FileId>,
    /// A log file that is not the database's and was not taken up; an empty name if that holds for
    /// the directory.
    pub(crate) refused: Option<OsString>,
    /// New logs that are released because of settings of their database: a file, and the settings.
    pub(crate) decided: Vec<(OsString, String)>,
    /// Reports about logs of unknown form, each with a file.
    pub(crate) unknown: Vec<(OsString, String)>,
}

impl Directory {
    /// Records that a name in it came or went, or, without a name, that the directory itself went.
    pub(crate) fn changed(&mut self, name: Option<&OsStr>) {
        let Some(name) = name else {
            self.stale = true;
            return;
        };
        // Even a file of the same name and inode is another file now.
        let known = self.entries.remove(name).is_some();
        if known {
            self.version = new_id();
            self.touch();
        }
        // The name may be a log file's, or decide whether another file is one.
        let relevant =
            || name.as_bytes().ends_with(b"index") || self.profile.log_of(&self.path.join(name)).is_some();
        self.stale |= known || relevant();
    }

    /// Begins a new listing if it is stale, unless the last one was recent and costly. Returns
    /// whether a listing is in progress.
    pub(crate) fn begin_listing(&mut self, limit: usize, now: Instant) -> bool {
        let due = self.stale || self.entries.len() > limit;
        if !self.is_listed_now() && due && now >= self.list_earliest {
            self.stale = false;
            self.listing = Some(NameListing::new(limit));
            // The directory's server may have been restarted since, which no process shows.
            if self.owner.is_none() {
                self.server = self.server.unread();
            }
            self.list_cost = Duration::ZERO;
        }
        self.is_listed_now()
    }

    /// Returns whether a listing is in progress.
    pub(crate) fn is_listed_now(&self) -> bool {
        self.listing.is_some() || !self.new_names.is_empty()
    }

    /// Continues the listing while the turn lasts. Forgets names that are gone, and takes up new
    /// ones.
    pub(crate) fn list(&mut self, fd: BorrowedFd<'_>, turn: &Turn) -> Result<ListingResult> {
        let before = turn.spent();
        let listed = self.list_on(fd, turn);
        self.list_cost += turn.spent().saturating_sub(before);
        if listed.is_err() {
            self.listing = None;
            self.new_names.clear();
        }
        if !self.is_listed_now() {
            self.list_earliest = Instant::now() + self.list_cost * RELIST_COST_FACTOR;
        }
        listed
    }

    fn list_on(&mut self, fd: BorrowedFd<'_>, turn: &Turn) -> Result<ListingResult> {
        let mut listed = ListingResult::default();
        if let Some(listing) = &mut self.listing {
            if !listing.read(fd, &self.path, &self.profile, || turn.step())? {
                return Ok(listed);
            }
            let names = self.listing.take().map(NameListing::finish).unwrap_or_default();
            self.left_out = names.left_out;
            let unknown = names.unknown.into_iter();
            listed.unknown =
                unknown.map(|(file, name)| (name, of_unknown_name(&self.profile.files[file]))).collect();
            let before = self.entries.len();
            self.entries.retain(|name, _| names.logs.contains(name));
            if self.entries.len() < before {
                self.version = new_id();
                self.touch();
            }
            self.new_names = names.logs.into_iter().filter(|name| !self.entries.contains_key(name)).collect();
            self.settings = names.settings;
            // The newest come last, and are taken up first: no file counts as the writer's while
            // newer ones wait.
            let number = |name: &OsString| {
                let path = self.path.join(name);
                let matched = self.profile.log_of(&path);
                matched.map(|(_, matched)| matched.number.sequence(None))
            };
            self.new_names.sort_by_cached_key(number);
            self.refused = false;
        }
        let mut names = std::mem::take(&mut self.new_names);
        let found = self.inspection(fd).run(&mut names, || turn.step());
        self.new_names = names;
        let mut grown = BTreeSet::new();
        let held = self.logs_held(fd, &found);
        for file in found {
            if self.ownership.owns(file.inode, file.user) || !file.linked && held.contains(&file.log()) {
                let (name, format) = (file.name.clone(), file.settings.format);
                let (log, decided) = self.add(file);
                listed.unknown.extend(self.take_format(log, &name, format));
                grown.insert(log);
                listed.decided.extend(decided.map(|by| (name, by)));
            } else if self.profile.logs[file.spec].class != FileClass::Text {
                // Text logs of others in the same directory are not reported: /var/log has those of
                // all programs.
                self.refused = true;
                listed.refused.get_or_insert(file.name);
            }
        }
        self.set_sequences(&grown);
        self.recognise_recycling(&grown);
        if self.new_names.is_empty() {
            self.forget_empty_logs();
            listed.unknown.extend(self.read_formats(fd));
            self.keep_by_settings(fd);
        }
        listed.grown = self.last_files_of(&grown);
        Ok(listed)
    }

    /// Returns an inspection of its files, with what its last listing found.
    fn inspection<'a>(&'a self, fd: BorrowedFd<'a>) -> Inspection<'a> {
        let Self { path, profile, server, settings, .. } = self;
        Inspection { fd, path, profile, server, settings }
    }

    /// Returns the logs of which the process has a file open for writing. Returns none in a
    /// directory that everybody may write to: there others may have made the log's other files.
    fn logs_held(&self, fd: BorrowedFd<'_>, new: &[NewFile]) -> HashSet<LogKey> {
        let FileOwnership::Process(ownership) = &self.ownership else { return HashSet::new() };
        if ownership.writes.is_empty()
            || DirectoryAttributes::of(fd).is_ok_and(|directory| directory.open_to_all)
        {
            return HashSet::new();
        }
        let entries = self.entries.values().filter(|entry| ownership.writes.contains(&entry.inode));
        let known: HashSet<LogId> = entries.map(|entry| entry.log).collect();
        let known = self.by_stem.iter().filter(|(_, log)| known.contains(log)).map(|(log, _)| log.clone());
        let new = new.iter().filter(|file| ownership.writes.contains(&file.inode));
        known.chain(new.map(NewFile::log)).collect()
    }

    fn forget_empty_logs(&mut self) {
        let used: HashSet<LogId> = self.entries.values().map(|entry| entry.log).collect();
        self.logs.retain(|id, _| used.contains(id));
        self.by_stem.retain(|_, id| used.contains(id));
    }

    /// Takes up a log file. Returns its log, and the settings if the log is new and is released
    /// because of them.
    fn add(&mut self, file: NewFile) -> (LogId, Option<String>) {
        let log = *self.by_stem.entry((file.spec, file.stem)).or_insert_with(|| LogId(new_id()));
        let (spec, rewrite, settings) = (file.spec, file.rewrite, file.settings);
        let is_new = !self.logs.contains_key(&log);
        let decided =
            settings.by.as_deref().filter(|_| is_new && !rewrite.needs_old_pages()).map(str::to_owned);
        self.logs.entry(log).or_insert(Log { spec, rewrite, settings, segment_size: None });
        let entry = Entry {
            id: FileId(new_id()),
            log,
            number: file.number,
            sequence: file.number.sequence(None),
            inode: file.inode,
            born: file.born,
            changed: file.changed,
            size: file.size,
            previous_size: 0,
            writer_was_at: None,
            sample: Sample::default(),
            status_changed: 0,
            schedule: SampleSchedule::default(),
            from: 0,
        };
        self.entries.insert(file.name, entry);
        self.version = new_id();
        self.touch();
        (log, decided)
    }

    /// Keeps those logs of a named directory that are overwritten in parts of pages according to
    /// the settings that were read last. Does not release a log that is kept: whether its server
    /// was restarted with these settings is not known.
    fn keep_by_settings(&mut self, fd: BorrowedFd<'_>) {
        if self.owner.is_some() {
            return;
        }
        let inspection = self.inspection(fd);
        let devices: BTreeMap<LogId, u64> =
            self.entries.values().map(|entry| (entry.log, entry.inode.dev)).collect();
        let mut by_spec = BTreeMap::new();
        let mut kept = Vec::new();
        for (id, log) in self.logs.iter().filter(|(_, log)| !log.rewrite.needs_old_pages()) {
            let Some(device) = devices.get(id) else { continue };
            let now = || inspection.known_at_first(&self.profile.logs[log.spec], *device);
            let (rewrite, settings) = by_spec.entry(log.spec).or_insert_with(now);
            if rewrite.needs_old_pages() {
                kept.push((*id, *rewrite, settings.by.clone()));
            }
        }
        for (id, rewrite, by) in kept {
            if let Some(log) = self.logs.get_mut(&id) {
                (log.rewrite, log.settings.by) = (rewrite, by);
                self.touch();
            }
        }
    }

    /// Reads the formats of logs whose format was not seen yet. Returns reports about unknown
    /// formats, each with a file.
    fn read_formats(&mut self, fd: BorrowedFd<'_>) -> Vec<(OsString, String)> {
        let is_unseen = |log: &LogId| self.logs[log].settings.format == LogFormat::Unseen;
        let files = self.entries.iter().filter(|(_, entry)| is_unseen(&entry.log)).take(FORMATS_READ_MAX);
        let of_file = |name: &OsString, log: LogId| LogFormat::of_file(fd, &self.path, self.spec(log), name);
        let read = files.map(|(name, entry)| (name.clone(), entry.log, of_file(name, entry.log)));
        let read: Vec<_> = read.collect();
        read.into_iter().filter_map(|(name, log, format)| self.take_format(log, &name, format)).collect()
    }

    /// Records the format that a file of a log states. A log of an unknown format is kept,
    /// whatever the settings say. Returns the report about it.
    fn take_format(&mut self, log: LogId, name: &OsStr, format: LogFormat) -> Option<(OsString, String)> {
        let known = self.logs.get_mut(&log)?;
        if format != LogFormat::Unseen {
            known.settings.format = format;
        }
        let LogFormat::Unknown(number) = format else { return None };
        known.rewrite = RewriteKind::SubPages;
        self.touch();
        Some((name.to_os_string(), of_unknown_format(number)))
    }

    /// Finds the segment size of each log, and with it each file's place in the log.
    pub(super) fn set_sequences(&mut self, logs: &BTreeSet<LogId>) {
        if logs.is_empty() {
            return;
        }
        let is_segment = |entry: &&mut Entry| {
            matches!(entry.number, FileNumber::WalSegment(_)) && logs.contains(&entry.log)
        };
        let segments = self.entries.values_mut().filter(is_segment);
        let sizes = SegmentSize::of_logs(segments.map(|entry| (entry.log, entry.size)));
        let size_of = |log: LogId| sizes.get(&log).copied();
        for entry in self.entries.values_mut().filter(is_segment) {
            entry.sequence = entry.number.sequence(size_of(entry.log));
        }
        for id in logs {
            if let Some(log) = self.logs.get_mut(id) {
                log.segment_size = size_of(*id);
            }
        }
    }

    /// Recognises recycled logs. A log that only appends creates its files in the order of their
    /// numbers, so a file that is older than its predecessor was renamed, and the log is recycled.
    fn recognise_recycling(&mut self, logs: &BTreeSet<LogId>) {
        let may_be = |id: &LogId| {
            self.logs[id].rewrite == RewriteKind::Never && self.spec(*id).rewrite == RewriteSource::Detect
        };
        let logs: BTreeSet<LogId> = logs.iter().copied().filter(may_be).collect();
        let mut files: Vec<(LogId, u64, i128)> = self
            .entries
            .values()
            .filter(|entry| logs.contains(&entry.log))
            .filter_map(|entry| Some((entry.log, entry.sequence, entry.born?)))
            .collect();
        files.sort_unstable();
        for pair in files.windows(2) {
            if pair[0].0 == pair[1].0 && pair[1].2 < pair[0].2 {
                self.overwrites(pair[1].0);
            }
        }
    }

    /// Records that a log's writer was seen to overwrite a file, where the profile leaves that to
    /// detection.
    pub(crate) fn overwrites(&mut self, log: LogId) {
        if self.spec(log).rewrite == RewriteSource::Detect
            && let Some(log) = self.logs.get_mut(&log)
        {
            log.rewrite = RewriteKind::SubPages;
            self.touch();
        }
    }

    /// Returns the last file of each of these logs.
    fn last_files_of(&self, logs: &BTreeSet<LogId>) -> Vec<FileId> {
        // Mostly no file came, and there may be very many files.
        if logs.is_empty() {
            return Vec::new();
        }
        let mut last: BTreeMap<LogId, &Entry> = BTreeMap::new();
        for entry in self.entries.values().filter(|entry| logs.contains(&entry.log)) {
            let last = last.entry(entry.log).or_insert(entry);
            if (entry.sequence, entry.changed) > (last.sequence, last.changed) {
                *last = entry;
            }
        }
        last.into_values().map(|entry| entry.id).collect()
    }
}
