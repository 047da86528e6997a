//! One watched directory: the log files in it, and what was seen of them last.
//!
//! Invariants:
//! 1. No descriptor is held between ticks: a file that the database purges gives its space back at once, and a
//!    file system can be unmounted.
//! 2. A name that leads to another file than before is a new file: it gets a new [`FileId`], and ids are never
//!    reused.
//! 3. A file where nothing happens is sampled ever more seldom, at least every [`SELDOM`] ticks.
//!
//! A file that can't be inspected is reported once and left out; a directory that is gone has no files.
//!
//! What observe's `tree` does is another thing, see there: all files of whole trees, sampled within a time budget and
//! without watches.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_catalog::settings::{are_recycled, size_option};
use pagekeeper_catalog::{LogSpec, Profile};
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{
    Error, Expected, Inode, InspectedFile, Links, Result, open_directory, page_size, physical_block_size,
};
use pagekeeper_policy::names::{Number, SegmentSize};
use pagekeeper_policy::{FileId, LogId, Rewrite, RewriteSource};
use rustix::fs::{AtFlags, RawDir, StatxFlags};

use crate::sample::{Sample, sample};

/// Ticks between samples of a file where nothing happens.
const SELDOM: u32 = 32;
/// In a directory of more log files than this, one with nothing resident and no process at it is sampled
/// seldom from the first.
const MANY: usize = 256;

/// Gives out ids that are never used twice.
#[derive(Debug, Default)]
pub(crate) struct Ids(u64);

impl Ids {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// A watched directory.
pub(crate) struct Directory {
    /// As the database sees it.
    pub(crate) path: PathBuf,
    /// The process through whose root it is reached, if it lives in another mount namespace or root than the
    /// guard.
    pub(crate) through: Option<u32>,
    /// The process whose directory it is; none if it was named by the user.
    pub(crate) owner: Option<u32>,
    pub(crate) profile: Arc<Profile>,
    /// Which directory it is, once it could be opened.
    pub(crate) inode: Option<Inode>,
    pub(crate) entries: BTreeMap<OsString, Entry>,
    pub(crate) logs: HashMap<LogId, Log>,
    by_stem: HashMap<(usize, Vec<u8>), LogId>,
    /// The command line of the database, for settings.
    command_line: Vec<OsString>,
    /// To be listed again at the next tick.
    pub(crate) stale: bool,
}

/// One log in a directory.
pub(crate) struct Log {
    /// Which of the profile's logs it is.
    pub(crate) spec: usize,
    /// How its writer comes back to old bytes, as far as has been seen.
    pub(crate) rewrite: Rewrite,
    /// The size of its segments, if it is PostgreSQL's and a file of it has such a size.
    pub(crate) segment_size: Option<SegmentSize>,
}

/// One log file.
pub(crate) struct Entry {
    pub(crate) id: FileId,
    pub(crate) log: LogId,
    /// The number in its name.
    pub(crate) number: Number,
    /// Which file of its log it is, by that number and the log's segment size.
    pub(crate) sequence: u64,
    pub(crate) inode: Inode,
    /// Time of birth, in nanoseconds of the epoch, where the file system records it.
    born: Option<i128>,
    /// Time of the last change, in nanoseconds of the epoch.
    pub(crate) changed: i128,
    pub(crate) size: u64,
    /// The size in the sample before; 0 before the first.
    pub(crate) previous_size: u64,
    /// Where the writer was at the tick before.
    pub(crate) writer_was_at: Option<u64>,
    pub(crate) sample: Sample,
    /// Ticks until the next sample.
    due: u32,
    /// Ticks between samples.
    interval: u32,
}

impl Entry {
    /// Asks for a sample when files are next sampled.
    pub(crate) fn sample_now(&mut self) {
        self.due = 0;
        self.interval = 1;
    }

    /// Takes in what was seen; whether it is another than before.
    fn take(&mut self, file: &InspectedFile, found: Sample, among_many: bool) -> bool {
        let before = self.interval;
        let same = found == self.sample && file.size() == self.size;
        self.interval = if !same {
            1
        } else if among_many && found.resident == 0 {
            SELDOM
        } else {
            (self.interval * 2).min(SELDOM)
        };
        self.previous_size = self.size;
        self.size = file.size();
        self.sample = found;
        self.due = if before < SELDOM && self.interval == SELDOM {
            // Files that fell quiet together are spread over the ticks.
            1 + u32::try_from(self.id.0 % u64::from(SELDOM)).expect("it is less than SELDOM")
        } else {
            self.interval
        };
        !same
    }
}

impl Directory {
    pub(crate) fn new(
        path: PathBuf,
        owner: Option<u32>,
        through: Option<u32>,
        profile: Arc<Profile>,
        command_line: Vec<OsString>,
    ) -> Self {
        Self {
            path,
            through,
            owner,
            profile,
            inode: None,
            entries: BTreeMap::new(),
            logs: HashMap::new(),
            by_stem: HashMap::new(),
            command_line,
            stale: true,
        }
    }

    /// Opens it for one tick's use.
    pub(crate) fn open(&self, proc: &ProcRoot) -> Result<OwnedFd> {
        match self.through {
            Some(pid) => proc.open_directory_in_namespace(pid, &self.path),
            None => open_directory(&self.path, Links::Follow),
        }
    }

    pub(crate) fn spec(&self, log: LogId) -> &LogSpec {
        &self.profile.logs[self.logs[&log].spec]
    }

    pub(crate) fn path_of(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    /// What its notifications go by: a path alone may be that of another directory in another namespace.
    pub(crate) fn key(&self) -> (Option<u32>, PathBuf) {
        (self.owner, self.path.clone())
    }

    /// Takes note that a name in it came or went, or, without a name, that it went itself.
    pub(crate) fn changed(&mut self, name: Option<&OsStr>) {
        let Some(name) = name else {
            self.stale = true;
            return;
        };
        // Even if there is a file of this name again, and of the same inode, it is another.
        let known = self.entries.remove(name).is_some();
        // It may be a log file's, or decide whether another is one.
        let relevant =
            || name.as_bytes().ends_with(b"index") || self.profile.log_of(&self.path.join(name)).is_some();
        self.stale |= known || relevant();
    }

    /// Lists it anew: names that are gone are forgotten, new ones taken up. Whether there are new ones.
    pub(crate) fn list(&mut self, fd: BorrowedFd<'_>, ids: &mut Ids) -> Result<bool> {
        let mut names = Vec::new();
        let mut buffer = Vec::with_capacity(32 << 10);
        let mut listing = RawDir::new(fd, buffer.spare_capacity_mut());
        while let Some(entry) = listing.next() {
            let entry = entry.map_err(|e| Error::call("getdents64", &self.path, e))?;
            names.push(OsStr::from_bytes(entry.file_name().to_bytes()).to_os_string());
        }
        names.sort_unstable();
        self.entries.retain(|name, _| names.binary_search(name).is_ok());
        let mut grown = BTreeSet::new();
        for name in &names {
            if !self.entries.contains_key(name) {
                grown.extend(self.add(fd, name, &names, ids));
            }
        }
        for &log in &grown {
            self.set_sequences(log);
            self.recognise_recycling(log);
        }
        self.forget_empty_logs();
        Ok(!grown.is_empty())
    }

    fn forget_empty_logs(&mut self) {
        let used: HashSet<LogId> = self.entries.values().map(|entry| entry.log).collect();
        self.logs.retain(|id, _| used.contains(id));
        self.by_stem.retain(|_, id| used.contains(id));
    }

    /// Takes up a name if it is a log file, and says of which log; `names` are all names of the directory.
    fn add(&mut self, fd: BorrowedFd<'_>, name: &OsStr, names: &[OsString], ids: &mut Ids) -> Option<LogId> {
        let path = self.path.join(name);
        let (spec, matched) = self.profile.log_of(&path)?;
        if self.profile.logs[spec].indexed && names.binary_search(&matched.index_name()).is_err() {
            return None;
        }
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = rustix::fs::statx(fd, name, AtFlags::SYMLINK_NOFOLLOW, wanted).ok()?;
        let regular =
            rustix::fs::FileType::from_raw_mode(stat.stx_mode.into()) == rustix::fs::FileType::RegularFile;
        if !regular {
            return None;
        }
        let nanoseconds = |time: rustix::fs::StatxTimestamp| {
            i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
        };
        let dev = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        let log = *self.by_stem.entry((spec, matched.stem().concat())).or_insert_with(|| LogId(ids.next()));
        if !self.logs.contains_key(&log) {
            let rewrite = self.rewrite_at_first(&self.profile.logs[spec], dev, fd, names);
            self.logs.insert(log, Log { spec, rewrite, segment_size: None });
        }
        let born = (stat.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| nanoseconds(stat.stx_btime));
        let entry = Entry {
            id: FileId(ids.next()),
            log,
            number: matched.number,
            sequence: matched.number.sequence(None),
            inode: Inode { dev, ino: stat.stx_ino },
            born,
            changed: nanoseconds(stat.stx_mtime),
            size: stat.stx_size,
            previous_size: 0,
            writer_was_at: None,
            sample: Sample::default(),
            due: 0,
            interval: 1,
        };
        self.entries.insert(name.to_os_string(), entry);
        Some(log)
    }

    /// What is known of a log before anything was seen of its writer.
    fn rewrite_at_first(&self, spec: &LogSpec, dev: u64, fd: BorrowedFd<'_>, names: &[OsString]) -> Rewrite {
        match spec.rewrite {
            RewriteSource::Known(rewrite) => rewrite,
            RewriteSource::DeviceBlocks => {
                let device = physical_block_size(Path::new("/sys"), dev).unwrap_or(512);
                let option =
                    spec.block_option.as_ref().and_then(|name| size_option(&self.command_line, name));
                if device.max(option.unwrap_or(0)) >= page_size() {
                    Rewrite::WholePages
                } else {
                    Rewrite::SubPages
                }
            }
            RewriteSource::Detect => match &spec.recycled_if {
                Some(recycled) if are_recycled(fd, names, recycled) => Rewrite::SubPages,
                _ => Rewrite::Never,
            },
        }
    }

    /// Finds the size of a log's segments, and with it which file of the log each is. The size is the one that most of its files
    /// have: one that is just being copied has another, or none that a segment can have.
    fn set_sequences(&mut self, log: LogId) {
        let is_segment =
            |entry: &&mut Entry| entry.log == log && matches!(entry.number, Number::WalSegment(_));
        let mut counts: BTreeMap<SegmentSize, usize> = BTreeMap::new();
        for entry in self.entries.values_mut().filter(is_segment) {
            if let Some(size) = SegmentSize::of_file(entry.size) {
                *counts.entry(size).or_default() += 1;
            }
        }
        let size = counts.into_iter().max_by_key(|(_, count)| *count).map(|(size, _)| size);
        for entry in self.entries.values_mut().filter(is_segment) {
            entry.sequence = entry.number.sequence(size);
        }
        if let Some(log) = self.logs.get_mut(&log) {
            log.segment_size = size;
        }
    }

    /// A log that only appends makes its files in the order of their numbers. One that is older than a file
    /// before it was renamed: it is recycled.
    fn recognise_recycling(&mut self, log: LogId) {
        if self.logs[&log].rewrite != Rewrite::Never || self.spec(log).rewrite != RewriteSource::Detect {
            return;
        }
        let mut files: Vec<(u64, i128)> = self
            .entries
            .values()
            .filter(|entry| entry.log == log)
            .filter_map(|entry| Some((entry.sequence, entry.born?)))
            .collect();
        files.sort_unstable();
        if files.windows(2).any(|pair| pair[1].1 < pair[0].1) {
            self.overwrites(log);
        }
    }

    /// Takes note that a log's writer was seen to overwrite a file, where the profile leaves that to be seen.
    pub(crate) fn overwrites(&mut self, log: LogId) {
        if self.spec(log).rewrite == RewriteSource::Detect
            && let Some(log) = self.logs.get_mut(&log)
        {
            log.rewrite = Rewrite::SubPages;
        }
    }

    /// Samples the files that are due, and those that some process is at (`busy`). `problem` is given those that can't be inspected.
    /// Whether anything has changed.
    pub(crate) fn sample(
        &mut self,
        fd: BorrowedFd<'_>,
        busy: &HashSet<FileId>,
        ids: &mut Ids,
        mut problem: impl FnMut(&Path, &Error),
    ) -> bool {
        let mut changed = false;
        let mut resized = BTreeSet::new();
        let among_many = self.entries.len() > MANY;
        for (name, entry) in &mut self.entries {
            entry.due = entry.due.saturating_sub(1);
            if busy.contains(&entry.id) {
                entry.sample_now();
            }
            if entry.due > 0 {
                continue;
            }
            let path = self.path.join(name);
            let sampled = InspectedFile::open_in(fd, name.as_os_str(), Expected::Any, path.clone())
                .and_then(|file| Ok((sample(&file)?, file)));
            match sampled {
                Ok((found, file)) => {
                    if file.inode() != entry.inode {
                        entry.id = FileId(ids.next());
                        entry.inode = file.inode();
                        self.stale = true;
                    }
                    if let Ok(stat) = rustix::fs::fstat(&file) {
                        entry.changed =
                            i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
                    }
                    if file.size() != entry.size && matches!(entry.number, Number::WalSegment(_)) {
                        resized.insert(entry.log);
                    }
                    changed |= entry.take(&file, found, among_many);
                }
                Err(error) => {
                    entry.sample = Sample::default();
                    entry.due = SELDOM;
                    if error.is_gone() {
                        self.stale = true;
                    } else {
                        problem(&path, &error);
                    }
                }
            }
        }
        for log in resized {
            self.set_sequences(log);
        }
        changed
    }

    /// Opens a file of it for an act, if the path still leads to that file.
    pub(crate) fn open_file(
        &self,
        proc: &ProcRoot,
        path: &Path,
        inode: Inode,
    ) -> Result<Option<InspectedFile>> {
        let Some(name) = path.file_name() else { return Ok(None) };
        let fd = self.open(proc)?;
        match InspectedFile::open_in(fd.as_fd(), name, Expected::Inode(inode), path.to_path_buf()) {
            Err(Error::OtherFile { .. }) => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Takes a new sample of a file after an act on it.
    pub(crate) fn take_sample(&mut self, path: &Path, file: &InspectedFile) -> Result<()> {
        let found = sample(file)?;
        if let Some(entry) = path.file_name().and_then(|name| self.entries.get_mut(name)) {
            entry.sample = found;
            entry.sample_now();
            entry.due = 1;
        }
        Ok(())
    }
}
