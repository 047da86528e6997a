//! One watched directory: the log files in it, and what was seen of them last.
//!
//! Invariants:
//! 1. No descriptor is held between ticks: a file that the database purges gives its space back at once, and a
//!    file system can be unmounted.
//! 2. A name that leads to another file than before is a new file: it gets a new [`FileId`], and ids are never
//!    reused.
//! 3. A file where nothing happens is sampled ever more seldom, at least every [`SELDOM`] ticks; of a database with more than
//!    [`MANY`] one without resident pages at least every [`EMPTY`](crate::entry::EMPTY), if it had some or is no new one, is not the last of its
//!    log, and all that its process has open is seen (but not what helpers of it have). Such a database's files are not opened for
//!    each of these samples (see [`Entry`]).
//! 4. It is one directory, by its [`Pin`], whatever its path leads to later; and of its files only those are opened that
//!    count by its [`Right`].
//! 5. What was made of its files (their [sums](Sums), what the policy was given, for how long none is due) is kept until
//!    [`Directory::touch`], which all that changes a file, or what is known of it, calls.
//!
//! A file that can't be inspected is reported once and left out; a directory that is gone has no files.
//!
//! What observe's `tree` does is another thing, see there: all files of whole trees, sampled within a time budget and
//! without watches.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::ops::{Bound, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagekeeper_catalog::{LogSpec, Profile};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{Error, Expected, Handle, Inode, InspectedFile, Links, Result, stat_of_name};
use pagekeeper_policy::names::{Number, SegmentSize};
use pagekeeper_policy::{FileId, LogId, Rewrite, RewriteSource, Rule};

use crate::budget::Turn;
use crate::descriptors::FilesInUse;
use crate::entry::{COUNTED, Entry, SELDOM};
use crate::ids::IdMap;
use crate::listing::{Inspection, Listing, NewFile};
use crate::ownership::{Identity, Pin, Right};
use crate::remembered::Remembered;
use crate::sample::{Due, KnownFileSystem, Room, Sample, Sampled, sample_again, sample_due};
use crate::warned::Warned;

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
/// A listing that takes a millisecond is not repeated for so many, whatever comes and goes.
const LIST_SHARE: u32 = 50;
/// Changes between two ticks from which on a directory is listed at intervals instead.
pub(crate) const STORM: usize = 1000;
/// That interval.
const AFTER_STORM: Duration = Duration::from_secs(10);

/// Gives out ids that are never used twice, in any thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ids(Arc<AtomicU64>);

impl Ids {
    pub(crate) fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A number that was never given before.
fn new_version() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Names a directory for as long as it is watched; never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(test, derive(Default))]
pub(crate) struct DirectoryId(u64);

/// Which database a directory is of: the unit of budgets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum DatabaseKey {
    /// A process.
    Process(u32),
    /// A directory that was named.
    Named(PathBuf),
}

impl DatabaseKey {
    /// Its process, if it is one.
    pub(crate) fn pid(&self) -> Option<u32> {
        match self {
            Self::Process(pid) => Some(*pid),
            Self::Named(_) => None,
        }
    }
}

/// Watched directories, each at a place of its own: ticks hand thousands of them from vector to vector.
#[allow(clippy::vec_box, reason = "moving them themselves was a tenth of what a tick takes")]
pub(crate) type Directories = Vec<Box<Directory>>;

/// A watched directory.
#[allow(clippy::struct_excessive_bools, reason = "each says one thing about it")]
pub(crate) struct Directory {
    pub(crate) id: DirectoryId,
    /// As the database sees it.
    pub(crate) path: PathBuf,
    /// The process through whose root it is reached, if it lives in another mount namespace or root than the
    /// guard.
    pub(crate) through: Option<u32>,
    /// The process whose directory it is; none if it was named by the user.
    pub(crate) owner: Option<u32>,
    pub(crate) profile: Arc<Profile>,
    /// Which directory it is, once it could be opened. What its path leads to later is another's, or has to be
    /// examined anew.
    pub(crate) pin: Option<Pin>,
    /// Which files in it count.
    pub(crate) right: Right,
    /// Whether a file in it was refused.
    pub(crate) refused: bool,
    /// What was warned of in it.
    pub(crate) warned: Warned,
    /// Whether what is decided for it is done, and not only reported.
    pub(crate) acts: bool,
    /// Whether its logs are kept tighter: the memory cgroup has too much page cache.
    pub(crate) tight: bool,
    pub(crate) entries: BTreeMap<OsString, Entry>,
    pub(crate) logs: IdMap<LogId, Log>,
    by_stem: HashMap<(usize, Vec<u8>), LogId>,
    /// The command line of the database, for settings.
    command_line: Vec<OsString>,
    /// To be listed again at the next tick.
    pub(crate) stale: bool,
    /// The listing under way.
    listing: Option<Listing>,
    /// Names of the last listing whose files were not taken up yet, the newest last.
    new_names: Vec<OsString>,
    /// Names of files that say whether logs are recycled.
    settings: Vec<OsString>,
    /// How many more log files there are than may be watched.
    pub(crate) left_out: u64,
    /// What the listing under way took so far.
    list_cost: Duration,
    /// No listing begins before.
    list_earliest: Instant,
    /// Ticks in which no file of it was due.
    ticks: u64,
    database: OfDatabase,
    /// Another one each time that files come or go; never used twice.
    version: u64,
    /// Behind which name sampling goes on, where there was no time for all.
    sampled_to: Option<OsString>,
    /// What its files come to, while none of them changes.
    sums: Option<Sums>,
    /// What the policy was given of it, while nothing changes.
    pub(crate) remembered: Remembered,
    rest: Rest,
    /// Of its files.
    file_system: KnownFileSystem,
}

/// What the files of a directory come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Resident bytes.
    pub(crate) resident: u64,
    /// Bytes dirty or under writeback.
    pub(crate) unwritten: u64,
    /// Windows with resident pages that are kept.
    pub(crate) windows: usize,
}

/// For how long no file of a directory has to be looked at.
#[derive(Debug, Default)]
struct Rest {
    /// Ticks that the files have not been counted down by.
    passed: u32,
    /// Of how many of them none is due, as things stand.
    until_due: u32,
    /// Whether some process was at a file of it in the tick before.
    was_busy: bool,
}

/// What matters of its database to how often files are sampled.
struct OfDatabase {
    /// How many files it has.
    files: usize,
    /// Whether it is seen which of them its process has open.
    sees_openers: bool,
}

/// What came of going on with a listing.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// The last file of each log in which files were taken up.
    pub(crate) grown: Vec<FileId>,
    /// A log file that was not, since it is not the database's; no name if that holds for the directory.
    pub(crate) refused: Option<OsString>,
    /// Whether there are more log files than may be watched.
    pub(crate) left_out: bool,
}

/// What came of sampling.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SampledFiles {
    /// Whether anything has changed.
    pub(crate) changed: bool,
    /// Whether there was no time for all.
    pub(crate) unfinished: bool,
    /// Whether there was no room for all windows.
    pub(crate) no_room: bool,
}

/// One log in a directory.
pub(crate) struct Log {
    /// Which of the profile's logs it is.
    pub(crate) spec: usize,
    /// How its writer comes back to old bytes, as far as has been seen.
    pub(crate) rewrite: Rewrite,
    /// Whether the database has the setting that the profile's hint speaks of.
    pub(crate) has_setting: bool,
    /// The size of its segments, if it is PostgreSQL's and a file of it has such a size.
    pub(crate) segment_size: Option<SegmentSize>,
}

impl Directory {
    pub(crate) fn new(
        path: PathBuf,
        owner: Option<u32>,
        through: Option<u32>,
        profile: Arc<Profile>,
        command_line: Vec<OsString>,
        right: Right,
    ) -> Self {
        Self {
            id: DirectoryId(new_version()),
            path,
            through,
            owner,
            profile,
            pin: None,
            right,
            refused: false,
            warned: Warned::default(),
            acts: true,
            tight: false,
            entries: BTreeMap::new(),
            logs: IdMap::default(),
            by_stem: HashMap::new(),
            command_line,
            stale: true,
            listing: None,
            new_names: Vec::new(),
            settings: Vec::new(),
            left_out: 0,
            list_cost: Duration::ZERO,
            list_earliest: Instant::now(),
            ticks: 0,
            database: OfDatabase { files: 0, sees_openers: true },
            version: new_version(),
            sampled_to: None,
            sums: None,
            remembered: Remembered::default(),
            rest: Rest::default(),
            file_system: None,
        }
    }

    /// Takes note that its files, or what is known of them, changed: what was made of them before holds no more.
    pub(crate) fn touch(&mut self) {
        self.sums = None;
        self.remembered.forget();
        self.rest.until_due = 0;
    }

    /// Asks for samples of those of its files that are wanted when files are next sampled.
    pub(crate) fn sample_now(&mut self, wanted: impl Fn(&Entry) -> bool) {
        self.rest.until_due = 0;
        self.entries.values_mut().filter(|entry| wanted(entry)).for_each(Entry::sample_now);
    }

    /// What its files come to.
    pub(crate) fn sums(&mut self) -> Sums {
        let sum = |sums: Sums, entry: &Entry| Sums {
            resident: sums.resident + entry.sample.resident,
            unwritten: sums.unwritten + entry.sample.unwritten,
            windows: sums.windows + entry.sample.windows.len(),
        };
        let sums = || self.entries.values().fold(Sums::default(), sum);
        debug_assert!(self.sums.is_none_or(|known| known == sums()), "they changed since: {:?}", self.sums);
        *self.sums.get_or_insert_with(sums)
    }

    /// Finds it for one tick's use: to open its files in, not to list them. Fails as if it were gone where its path leads to another
    /// directory than before.
    pub(crate) fn find(&self, proc: &ProcRoot) -> Result<Handle> {
        let (directory, identity) = self.resolve(proc)?;
        let is_another = self.pin.is_some_and(|pin| !pin.is(&identity.pin));
        if is_another || !self.right.may_enter(identity.user) {
            return Err(Error::call("open", &self.path, rustix::io::Errno::STALE));
        }
        Ok(directory)
    }

    /// The same directory, of which no file is known: to be opened elsewhere.
    pub(crate) fn without_files(&self) -> Self {
        let (profile, right) = (Arc::clone(&self.profile), self.right.clone());
        let path = self.path.clone();
        Self { pin: self.pin, ..Self::new(path, self.owner, self.through, profile, Vec::new(), right) }
    }

    /// Finds the directory that its path leads to now, and opens nothing: it may be anybody's.
    pub(crate) fn resolve(&self, proc: &ProcRoot) -> Result<(Handle, Identity)> {
        let directory = match self.through {
            Some(pid) => proc.handle_in_namespace(pid, &self.path),
            None => Handle::at(&self.path, Links::Follow),
        }?;
        if directory.kind() != rustix::fs::FileType::Directory {
            return Err(Error::call("open", &self.path, rustix::io::Errno::NOTDIR));
        }
        let identity = Identity::of(&directory).map_err(|error| Error::call("statx", &self.path, error))?;
        Ok((directory, identity))
    }

    pub(crate) fn spec(&self, log: LogId) -> &LogSpec {
        &self.profile.logs[self.logs[&log].spec]
    }

    /// The rule for a log, as it is in force now.
    pub(crate) fn rule(&self, log: LogId) -> Rule {
        let rule = self.spec(log).rule;
        if self.tight { rule.tightened() } else { rule }
    }

    /// The log that a file of this name, which is in it no more, would be one of.
    pub(crate) fn log_like(&self, path: &Path) -> Option<LogId> {
        let (spec, matched) = self.profile.log_of(path)?;
        self.by_stem.get(&(spec, matched.stem().concat())).copied()
    }

    pub(crate) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// Which database it is of.
    pub(crate) fn database(&self) -> DatabaseKey {
        match self.owner {
            Some(pid) => DatabaseKey::Process(pid),
            None => DatabaseKey::Named(self.path.clone()),
        }
    }

    /// What its notifications go by: a path alone may be that of another directory in another namespace.
    pub(crate) fn key(&self) -> (Option<u32>, PathBuf) {
        (self.owner, self.path.clone())
    }

    /// Takes note that so much comes and goes in it that its notifications were given up.
    pub(crate) fn in_storm(&mut self, now: Instant) {
        self.stale = true;
        self.list_earliest = self.list_earliest.max(now + AFTER_STORM);
    }

    /// Takes note that its file system answers again, after a while in which anything may have happened.
    pub(crate) fn came_back(&mut self) {
        self.stale = true;
        self.sample_now(|_| true);
    }

    /// Forgets its files: it is gone, or out of reach for now.
    pub(crate) fn forget_files(&mut self) {
        if !self.entries.is_empty() {
            self.entries.clear();
            self.version = new_version();
            self.touch();
        }
        self.listing = None;
        self.new_names.clear();
    }

    /// Takes note that a name in it came or went, or, without a name, that it went itself.
    pub(crate) fn changed(&mut self, name: Option<&OsStr>) {
        let Some(name) = name else {
            self.stale = true;
            return;
        };
        // Even if there is a file of this name again, and of the same inode, it is another.
        let known = self.entries.remove(name).is_some();
        if known {
            self.version = new_version();
            self.touch();
        }
        // It may be a log file's, or decide whether another is one.
        let relevant =
            || name.as_bytes().ends_with(b"index") || self.profile.log_of(&self.path.join(name)).is_some();
        self.stale |= known || relevant();
    }

    /// Begins to list it anew if it is stale, unless that was just done at some cost. Whether a listing is under way.
    pub(crate) fn begin_listing(&mut self, limit: usize, now: Instant) -> bool {
        let due = self.stale || self.entries.len() > limit;
        if !self.is_listed_now() && due && now >= self.list_earliest {
            self.stale = false;
            self.listing = Some(Listing::new(limit));
            self.list_cost = Duration::ZERO;
        }
        self.is_listed_now()
    }

    /// Whether a listing is under way.
    pub(crate) fn is_listed_now(&self) -> bool {
        self.listing.is_some() || !self.new_names.is_empty()
    }

    /// Goes on with the listing that is under way while the turn lasts. Names that are gone are forgotten, new ones taken
    /// up.
    pub(crate) fn list(&mut self, fd: BorrowedFd<'_>, ids: &Ids, turn: &Turn) -> Result<Listed> {
        let before = turn.spent();
        let listed = self.list_on(fd, ids, turn);
        self.list_cost += turn.spent().saturating_sub(before);
        if listed.is_err() {
            self.listing = None;
            self.new_names.clear();
        }
        if !self.is_listed_now() {
            self.list_earliest = Instant::now() + self.list_cost * LIST_SHARE;
        }
        listed
    }

    fn list_on(&mut self, fd: BorrowedFd<'_>, ids: &Ids, turn: &Turn) -> Result<Listed> {
        let mut listed = Listed::default();
        if let Some(listing) = &mut self.listing {
            if !listing.read(fd, &self.path, &self.profile, turn)? {
                return Ok(listed);
            }
            let names = self.listing.take().map(Listing::finish).unwrap_or_default();
            self.left_out = names.left_out;
            listed.left_out = names.left_out > 0;
            let before = self.entries.len();
            self.entries.retain(|name, _| names.logs.contains(name));
            if self.entries.len() < before {
                self.version = new_version();
                self.touch();
            }
            self.new_names = names.logs.into_iter().filter(|name| !self.entries.contains_key(name)).collect();
            self.settings = names.settings;
            // The newest last, which are taken up first: none is taken for the writer's while newer ones wait.
            let number = |name: &OsString| {
                let path = self.path.join(name);
                let matched = self.profile.log_of(&path);
                matched.map(|(_, matched)| matched.number.sequence(None))
            };
            self.new_names.sort_by_cached_key(number);
            self.refused = false;
        }
        let inspection = Inspection {
            fd,
            path: &self.path,
            profile: &self.profile,
            command_line: &self.command_line,
            settings: &self.settings,
        };
        let found = inspection.run(&mut self.new_names, turn);
        let mut grown = BTreeSet::new();
        let held = self.logs_held(fd, &found);
        for file in found {
            if self.is_its_own(&file) || !file.linked && held.contains(&file.log()) {
                grown.insert(self.add(file, ids));
            } else {
                self.refused = true;
                listed.refused.get_or_insert(file.name);
            }
        }
        self.set_sequences(&grown);
        self.recognise_recycling(&grown);
        if self.new_names.is_empty() {
            self.forget_empty_logs();
        }
        listed.grown = self.last_files_of(&grown);
        Ok(listed)
    }

    /// Whether a file counts as the database's by itself.
    fn is_its_own(&self, file: &NewFile) -> bool {
        match &self.right {
            Right::Operator | Right::Owner(_) => self.right.may_enter(file.user),
            Right::Process(right) => right.has_rights_of(file.user) || right.writes.contains(&file.inode),
        }
    }

    /// The logs of which the process has a file open for writing, where only those who may write here can have made
    /// the others.
    fn logs_held(&self, fd: BorrowedFd<'_>, new: &[NewFile]) -> HashSet<(usize, Vec<u8>)> {
        let Right::Process(right) = &self.right else { return HashSet::new() };
        if right.writes.is_empty() || Identity::of(fd).is_ok_and(|directory| directory.open_to_all) {
            return HashSet::new();
        }
        let entries = self.entries.values().filter(|entry| right.writes.contains(&entry.inode));
        let known: HashSet<LogId> = entries.map(|entry| entry.log).collect();
        let known = self.by_stem.iter().filter(|(_, log)| known.contains(log)).map(|(log, _)| log.clone());
        let new = new.iter().filter(|file| right.writes.contains(&file.inode));
        known.chain(new.map(NewFile::log)).collect()
    }

    fn forget_empty_logs(&mut self) {
        let used: HashSet<LogId> = self.entries.values().map(|entry| entry.log).collect();
        self.logs.retain(|id, _| used.contains(id));
        self.by_stem.retain(|_, id| used.contains(id));
    }

    /// Takes up a log file; of which log.
    fn add(&mut self, file: NewFile, ids: &Ids) -> LogId {
        let log = *self.by_stem.entry((file.spec, file.stem)).or_insert_with(|| LogId(ids.next()));
        let (spec, rewrite, has_setting) = (file.spec, file.rewrite, file.has_setting);
        self.logs.entry(log).or_insert(Log { spec, rewrite, has_setting, segment_size: None });
        let entry = Entry {
            id: FileId(ids.next()),
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
            uncounted: 0,
            due: 0,
            interval: 1,
            had_pages: false,
            from: 0,
        };
        self.entries.insert(file.name, entry);
        self.version = new_version();
        self.touch();
        log
    }

    /// Finds the size of each log's segments, and with it which file of the log each is. The size is the one that most of its
    /// files have: one that is just being copied has another, or none that a segment can have.
    fn set_sequences(&mut self, logs: &BTreeSet<LogId>) {
        let is_segment =
            |entry: &&mut Entry| matches!(entry.number, Number::WalSegment(_)) && logs.contains(&entry.log);
        let mut counts: BTreeMap<(LogId, SegmentSize), usize> = BTreeMap::new();
        for entry in self.entries.values_mut().filter(is_segment) {
            if let Some(size) = SegmentSize::of_file(entry.size) {
                *counts.entry((entry.log, size)).or_default() += 1;
            }
        }
        let mut most: BTreeMap<LogId, (usize, SegmentSize)> = BTreeMap::new();
        for ((log, size), count) in counts {
            let best = most.entry(log).or_insert((count, size));
            if count >= best.0 {
                *best = (count, size);
            }
        }
        let size_of = |log: LogId| most.get(&log).map(|(_, size)| *size);
        for entry in self.entries.values_mut().filter(is_segment) {
            entry.sequence = entry.number.sequence(size_of(entry.log));
        }
        for id in logs {
            if let Some(log) = self.logs.get_mut(id) {
                log.segment_size = size_of(*id);
            }
        }
    }

    /// A log that only appends makes its files in the order of their numbers. One that is older than a file
    /// before it was renamed: it is recycled.
    fn recognise_recycling(&mut self, logs: &BTreeSet<LogId>) {
        let may_be = |id: &LogId| {
            self.logs[id].rewrite == Rewrite::Never && self.spec(*id).rewrite == RewriteSource::Detect
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

    /// Takes note that a log's writer was seen to overwrite a file, where the profile leaves that to be seen.
    pub(crate) fn overwrites(&mut self, log: LogId) {
        if self.spec(log).rewrite == RewriteSource::Detect
            && let Some(log) = self.logs.get_mut(&log)
        {
            log.rewrite = Rewrite::SubPages;
            self.touch();
        }
    }

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

    /// The last file of each of these logs.
    fn last_files_of(&self, logs: &BTreeSet<LogId>) -> Vec<FileId> {
        // Mostly nothing came, and there may be very many files.
        if logs.is_empty() {
            return Vec::new();
        }
        let mut last: BTreeMap<LogId, &Entry> = BTreeMap::new();
        for entry in self.entries.values().filter(|entry| logs.contains(&entry.log)) {
            let last = last.entry(entry.log).or_insert(entry);
            if entry.sequence > last.sequence {
                *last = entry;
            }
        }
        last.into_values().map(|entry| entry.id).collect()
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

    /// Which files it has: another number each time that one came or went, in any directory.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The files to be sampled now: those that are due, and those that some process is at. The one behind the last that was
    /// sampled comes first.
    pub(crate) fn due(&mut self, in_use: &FilesInUse) -> Vec<Due> {
        let is_busy = in_use.directories.contains(&self.id);
        // Files that were busy until now are held from now on.
        let was_busy = std::mem::replace(&mut self.rest.was_busy, is_busy);
        self.rest.passed += 1;
        if !is_busy && !was_busy && self.rest.passed < self.rest.until_due {
            return Vec::new();
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
        let Some(last) = &self.sampled_to else { return self.entries.iter().filter_map(due).collect() };
        let behind = self.entries.range::<OsString, _>((Bound::Excluded(last), Bound::Unbounded));
        let before = self.entries.range::<OsString, _>((Bound::Unbounded, Bound::Included(last)));
        behind.chain(before).filter_map(due).collect()
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
        let mut all = SampledFiles { unfinished: sampled.len() < wanted, ..SampledFiles::default() };
        self.sampled_to = sampled.last().filter(|_| all.unfinished).map(|last| last.name.clone());
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
                    all.unfinished |= seen.next.is_some();
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

    /// Opens a file of it for an act, if the path still leads to that file.
    pub(crate) fn open_file(
        &self,
        proc: &ProcRoot,
        path: &Path,
        inode: Inode,
    ) -> Result<Option<InspectedFile>> {
        let Some(name) = path.file_name() else { return Ok(None) };
        let directory = self.find(proc)?;
        match InspectedFile::open_in(directory.as_fd(), name, Expected::Inode(inode), path.to_path_buf()) {
            Err(Error::OtherFile { .. }) => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Takes a new sample of a range of a file after an act on it.
    pub(crate) fn take_sample(&mut self, path: &Path, file: &InspectedFile, range: Range<u64>) -> Result<()> {
        let found = sample_again(file, range.clone())?;
        self.touch();
        if let Some(entry) = path.file_name().and_then(|name| self.entries.get_mut(name)) {
            entry.sample.replace(&range, found);
            entry.sample_now();
            entry.due = 1;
        }
        Ok(())
    }
}
