//! Reads the names of the log files in a directory, in slices, and inspects each file that is new.
//!
//! A directory may hold any number of names. They are read as long as a turn lasts, and from there
//! on in the next turn. The directory is not held open in between; the kernel's own position of the
//! last name serves to continue. Names that come or go meanwhile may be missed, and are in the next
//! listing.
//!
//! Invariant: fewer than twice `limit` names are kept, and at most `limit` in the end, whatever the
//! directory holds. If there are more, the largest logs lose the names with the lowest numbers, or
//! without numbers the files that changed first. Files that are being written and followed are the
//! last of their log.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_catalog::checkpoint::innodb;
use pagekeeper_catalog::settings::{are_recycled, decide_rewrite};
use pagekeeper_catalog::{CheckpointSpec, LogSpec, Profile};
use pagekeeper_kernel::{
    Error, ExpectedFile, Inode, InspectedFile, Result, page_size, physical_block_size, residency,
};
use pagekeeper_policy::names::FileNumber;
use pagekeeper_policy::shares::shares;
use pagekeeper_policy::{FileId, RewriteKind, RewriteSource};
use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom, StatxFlags};

use crate::budget::Turn;
use crate::server_settings::ServerSettings;
use pagekeeper_catalog::ownership;

/// A log of a directory: its index in the profile, and the part of its name that its files have in
/// common.
pub(crate) type LogKey = (usize, Vec<u8>);

/// A listing in progress.
#[derive(Debug)]
pub(crate) struct NameListing {
    limit: usize,
    /// The kernel's position behind the last name that was read.
    position: u64,
    /// The names of each log, each with its number, or with the time of its last change where no
    /// number orders them.
    logs: BTreeMap<LogKey, Vec<(i128, OsString)>>,
    /// The number of these names: less than twice the limit.
    kept: usize,
    /// The newest of the files that say whether logs are recycled, for each log of the profile.
    settings: Vec<Option<(u64, OsString)>>,
    /// A file of each kind of unknown log, by its index among the profile's files.
    unknown: BTreeMap<usize, OsString>,
    /// Names of logs that there was no room for.
    left_out: u64,
}

/// The names that a listing found.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Names of log files, ascending.
    pub(crate) logs: BTreeSet<OsString>,
    /// Names of files that say whether logs are recycled.
    pub(crate) settings: Vec<OsString>,
    /// A file of each kind of unknown log, by its index among the profile's files.
    pub(crate) unknown: BTreeMap<usize, OsString>,
    /// The number of log files beyond those that may be watched.
    pub(crate) left_out: u64,
}

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

impl NameListing {
    /// Begins a listing of at most `limit` names.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit: limit.max(1),
            position: 0,
            logs: BTreeMap::new(),
            kept: 0,
            settings: Vec::new(),
            unknown: BTreeMap::new(),
            left_out: 0,
        }
    }

    /// Continues while the turn lasts. Returns whether the end was reached. `path` is the
    /// directory's.
    pub(crate) fn read(
        &mut self,
        fd: BorrowedFd<'_>,
        path: &Path,
        profile: &Profile,
        turn: &Turn,
    ) -> Result<bool> {
        if self.position > 0 {
            let failed = |errno| Error::call("lseek", path, errno);
            rustix::fs::seek(fd, SeekFrom::Start(self.position)).map_err(failed)?;
        }
        self.settings.resize(profile.logs.len(), None);
        // Patterns may name the directory as well.
        let mut whole = path.join("").into_os_string().into_encoded_bytes();
        let above = whole.len();
        let mut buffer = Vec::with_capacity(32 << 10);
        let mut listing = RawDir::new(fd, buffer.spare_capacity_mut());
        while let Some(entry) = listing.next() {
            let entry = entry.map_err(|errno| Error::call("getdents64", path, errno))?;
            self.position = entry.next_entry_cookie();
            if matches!(entry.file_type(), FileType::RegularFile | FileType::Unknown) {
                whole.truncate(above);
                whole.extend_from_slice(entry.file_name().to_bytes());
                self.take(fd, Path::new(OsStr::from_bytes(&whole)), profile);
            }
            if turn.step() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn take(&mut self, fd: BorrowedFd<'_>, path: &Path, profile: &Profile) {
        let Some(name) = path.file_name() else { return };
        for (log, newest) in profile.logs.iter().zip(&mut self.settings) {
            let Some(recycled) = &log.recycled_if else { continue };
            let Some(matched) = recycled.file.matches_name(name) else { continue };
            let number = matched.number.sequence(None);
            if newest.as_ref().is_none_or(|(other, _)| *other < number) {
                *newest = Some((number, name.to_os_string()));
            }
        }
        if let Some((file, _)) = profile.unknown_log(path) {
            self.unknown.entry(file).or_insert_with(|| name.to_os_string());
            return;
        }
        let Some((spec, matched)) = profile.log_of(path) else { return };
        let order = match matched.number {
            FileNumber::None => last_change(fd, name),
            FileNumber::Counted(_) | FileNumber::WalSegment(_) => matched.number.sequence(None).into(),
        };
        self.logs.entry((spec, matched.log())).or_default().push((order, name.to_os_string()));
        self.kept += 1;
        if self.kept >= self.limit.saturating_mul(2) {
            self.cut();
        }
    }

    /// Cuts the largest logs, so that at most `limit` names are kept.
    fn cut(&mut self) {
        let wanted: Vec<usize> = self.logs.values().map(Vec::len).collect();
        for (names, share) in self.logs.values_mut().zip(shares(self.limit, &wanted)) {
            if names.len() > share {
                names.sort_unstable_by(|one, other| other.cmp(one));
                names.truncate(share);
            }
        }
        self.logs.retain(|_, names| !names.is_empty());
        let kept = self.logs.values().map(Vec::len).sum();
        self.left_out += (self.kept - kept) as u64;
        self.kept = kept;
    }

    /// Returns the names that were found, once the end was reached.
    pub(crate) fn finish(mut self) -> Names {
        self.cut();
        Names {
            logs: self.logs.into_values().flatten().map(|(_, name)| name).collect(),
            settings: self.settings.into_iter().flatten().map(|(_, name)| name).collect(),
            unknown: self.unknown,
            left_out: self.left_out,
        }
    }
}

/// Returns when a file was changed last, in nanoseconds of the epoch; the least value if it is
/// gone.
fn last_change(fd: BorrowedFd<'_>, name: &OsStr) -> i128 {
    let stat = rustix::fs::statx(fd, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MTIME);
    stat.map_or(i128::MIN, |stat| ownership::nanoseconds(stat.stx_mtime))
}

/// A log file that is new in its directory.
#[derive(Debug)]
pub(crate) struct NewFile {
    pub(crate) name: OsString,
    /// The index of its log in the profile.
    pub(crate) spec: usize,
    /// The part of its name that is common to the files of one log.
    pub(crate) stem: Vec<u8>,
    pub(crate) number: FileNumber,
    pub(crate) inode: Inode,
    /// Its owner.
    pub(crate) user: u32,
    /// Whether it has other names as well: hard links.
    pub(crate) linked: bool,
    /// Time of birth, in nanoseconds of the epoch, where the file system records it.
    pub(crate) born: Option<i128>,
    /// Time of the last change, in nanoseconds of the epoch.
    pub(crate) changed: i128,
    pub(crate) size: u64,
    /// The way in which its log is rewritten, as far as that is known before the writer was seen.
    pub(crate) rewrite: RewriteKind,
    pub(crate) settings: LogSettings,
}

/// The content of a database's settings that concerns one of its logs.
#[derive(Debug, Clone)]
pub(crate) struct LogSettings {
    /// Whether the database has the setting that the profile's hint mentions.
    pub(crate) has_setting: bool,
    /// The settings that decide how the log is written, each with its place.
    pub(crate) by: Option<Arc<str>>,
    pub(crate) format: LogFormat,
}

/// The format of a log, as its files state it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Not seen yet: the start of no file was in memory.
    Unseen,
    /// A known format, or a log whose files state none.
    Known,
    /// An unknown format, with its number.
    Unknown(u32),
}

impl LogFormat {
    /// Returns the format that a file states. Reads only the formats of InnoDB's redo log, and only
    /// if that part of the file is in memory: a file in direct I/O is left out of the page cache.
    pub(crate) fn of_file(fd: BorrowedFd<'_>, directory: &Path, spec: &LogSpec, name: &OsStr) -> Self {
        if spec.checkpoint != CheckpointSpec::Innodb {
            return Self::Known;
        }
        Self::read(fd, directory, name).unwrap_or(Self::Unseen)
    }

    fn read(fd: BorrowedFd<'_>, directory: &Path, name: &OsStr) -> Option<Self> {
        let file = InspectedFile::open_in(fd, name, ExpectedFile::Any, directory.join(name)).ok()?;
        if residency(&file, 0..page_size()).ok()?.resident == 0 {
            return None;
        }
        let _call = file.announce_call().ok()?;
        let mut start = [0; 4];
        file.file().read_exact_at(&mut start, 0).ok()?;
        Some(innodb::unknown_format(start).map_or(Self::Known, Self::Unknown))
    }
}

impl NewFile {
    /// Returns the log of the directory that it belongs to.
    pub(crate) fn log(&self) -> LogKey {
        (self.spec, self.stem.clone())
    }
}

/// Inspects the files of a directory, one after another while a turn lasts.
pub(crate) struct Inspection<'a> {
    /// The directory.
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) path: &'a Path,
    pub(crate) profile: &'a Profile,
    /// The settings of the database's server.
    pub(crate) server: &'a ServerSettings,
    /// Names of files that say whether logs are recycled.
    pub(crate) settings: &'a [OsString],
}

impl Inspection<'_> {
    /// Takes names off the end of `names` while the turn lasts. Returns those that are log files.
    pub(crate) fn run(&self, names: &mut Vec<OsString>, turn: &Turn) -> Vec<NewFile> {
        let mut found = Vec::new();
        let mut indexed = HashMap::new();
        let mut at_first = HashMap::new();
        while let Some(name) = names.pop() {
            found.extend(self.inspect(&name, &mut indexed, &mut at_first));
            if turn.step() {
                break;
            }
        }
        found
    }

    fn inspect(
        &self,
        name: &OsStr,
        indexed: &mut HashMap<OsString, bool>,
        at_first: &mut HashMap<usize, (RewriteKind, LogSettings)>,
    ) -> Option<NewFile> {
        let path = self.path.join(name);
        let (spec, matched) = self.profile.log_of(&path)?;
        let log = &self.profile.logs[spec];
        if log.indexed {
            let exists = |index: &OsString| {
                rustix::fs::statat(self.fd, index.as_os_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok()
            };
            if !*indexed.entry(matched.index_name()).or_insert_with_key(exists) {
                return None;
            }
        }
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let stat = rustix::fs::statx(self.fd, name, AtFlags::SYMLINK_NOFOLLOW, wanted).ok()?;
        if FileType::from_raw_mode(stat.stx_mode.into()) != FileType::RegularFile {
            return None;
        }
        let inode = ownership::inode(&stat);
        let known = at_first.entry(spec).or_insert_with(|| self.known_at_first(log, inode.dev));
        if known.1.format == LogFormat::Unseen {
            known.1.format = LogFormat::of_file(self.fd, self.path, log, name);
        }
        let (rewrite, settings) = known.clone();
        // The file itself counts more than any setting.
        let is_unknown = matches!(settings.format, LogFormat::Unknown(_));
        let rewrite = if is_unknown { RewriteKind::SubPages } else { rewrite };
        Some(NewFile {
            name: name.to_os_string(),
            spec,
            stem: matched.log(),
            number: matched.number,
            inode,
            user: stat.stx_uid,
            linked: stat.stx_nlink > 1,
            born: ownership::born(&stat),
            changed: ownership::nanoseconds(stat.stx_mtime),
            size: stat.stx_size,
            rewrite,
            settings,
        })
    }

    /// Returns how a log is rewritten as far as that is known before its writer was seen, and what
    /// the database's settings say about it.
    pub(crate) fn known_at_first(&self, spec: &LogSpec, dev: u64) -> (RewriteKind, LogSettings) {
        let recycled = spec.recycled_if.as_ref();
        let recycled =
            recycled.map(|recycled| are_recycled(self.fd, self.settings, recycled, || self.server.get()));
        let device = match spec.rewrite {
            RewriteSource::DeviceBlocks => physical_block_size(Path::new("/sys"), dev).unwrap_or(512),
            RewriteSource::Known(_) | RewriteSource::Detect => 0,
        };
        let decided = decide_rewrite(spec, device, page_size(), || self.server.get());
        let rewrite = decided.rewrite.unwrap_or(match recycled {
            Some(Some(true)) => RewriteKind::SubPages,
            _ => RewriteKind::Never,
        });
        let has_setting = recycled != Some(None);
        (rewrite, LogSettings { has_setting, by: decided.by.map(Into::into), format: LogFormat::Unseen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Slice;
    use pagekeeper_catalog::find_profile;
    use std::os::fd::AsFd;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_full_listing_keeps_the_text_logs_that_were_changed_last() {
        let dir = tempfile::tempdir().unwrap();
        let rotated = (1..8).map(|number| format!("slow.log.{number}"));
        for (age, name) in (0..).zip(["slow.log".to_owned()].into_iter().chain(rotated)) {
            let file = std::fs::File::create(dir.path().join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - age)).unwrap();
        }
        let profiles = Profile::built_in();
        let mariadb = find_profile(&profiles, "mariadb").unwrap();
        let endless = Duration::from_secs(3600);
        let turn = Turn::begin(Slice { cpu: endless, wall: endless });
        let fd = std::fs::File::open(dir.path()).unwrap();
        let mut listing = NameListing::new(2);
        assert!(listing.read(fd.as_fd(), dir.path(), mariadb, &turn).unwrap());
        let names = listing.finish();
        assert_eq!(names.logs.iter().collect::<Vec<_>>(), ["slow.log", "slow.log.1"]);
        assert_eq!(names.left_out, 6);
    }
}
