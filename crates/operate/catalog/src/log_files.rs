//! Log files that are new in their directory: what each is, and how its log is written, as far as
//! that is known before its writer was seen.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use pagekeeper_kernel::{ExpectedFile, Inode, InspectedFile, page_size, physical_block_size, residency};
use pagekeeper_policy::names::FileNumber;
use pagekeeper_policy::{RewriteKind, RewriteSource};
use rustix::fs::{AtFlags, FileType, StatxFlags};

use crate::checkpoint::innodb;
use crate::directories::ownership;
use crate::log_names::LogKey;
use crate::profile::{CheckpointSpec, FileSpec, LogSpec, Profile};
use crate::settings::{ServerSettings, are_recycled, decide_rewrite};

/// A log file that is new in its directory.
#[derive(Debug)]
pub struct NewFile {
    /// Its name.
    pub name: OsString,
    /// The index of its log in the profile.
    pub spec: usize,
    /// The part of its name that is common to the files of one log.
    pub stem: Vec<u8>,
    /// The number in its name.
    pub number: FileNumber,
    /// Its inode.
    pub inode: Inode,
    /// Its owner.
    pub user: u32,
    /// Whether it has other names as well: hard links.
    pub linked: bool,
    /// Time of birth, in nanoseconds of the epoch, where the file system records it.
    pub born: Option<i128>,
    /// Time of the last change, in nanoseconds of the epoch.
    pub changed: i128,
    /// In bytes.
    pub size: u64,
    /// The way in which its log is rewritten, as far as that is known before the writer was seen.
    pub rewrite: RewriteKind,
    /// What its database's settings say about its log.
    pub settings: LogSettings,
}

/// The content of a database's settings that concerns one of its logs.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// Whether the database has the setting that the profile's hint mentions.
    pub has_setting: bool,
    /// The settings that decide how the log is written, each with its place.
    pub by: Option<Arc<str>>,
    /// The format that its files state.
    pub format: LogFormat,
}

/// The format of a log, as its files state it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
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
    pub fn of_file(fd: BorrowedFd<'_>, directory: &Path, spec: &LogSpec, name: &OsStr) -> Self {
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
    pub fn log(&self) -> LogKey {
        (self.spec, self.stem.clone())
    }
}

/// Inspects the files of a directory, one after another while a turn lasts.
pub struct Inspection<'a> {
    /// The directory.
    pub fd: BorrowedFd<'a>,
    /// Its path.
    pub path: &'a Path,
    /// The profile of its database.
    pub profile: &'a Profile,
    /// The settings of the database's server.
    pub server: &'a ServerSettings,
    /// Names of files that say whether logs are recycled.
    pub settings: &'a [OsString],
}

impl Inspection<'_> {
    /// Takes names off the end of `names` until the turn `is_over`. Returns those that are log
    /// files.
    pub fn run(&self, names: &mut Vec<OsString>, is_over: impl Fn() -> bool) -> Vec<NewFile> {
        let mut found = Vec::new();
        let mut indexed = HashMap::new();
        let mut at_first = HashMap::new();
        while let Some(name) = names.pop() {
            found.extend(self.inspect(&name, &mut indexed, &mut at_first));
            if is_over() {
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
    pub fn known_at_first(&self, spec: &LogSpec, dev: u64) -> (RewriteKind, LogSettings) {
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

/// Returns the report about a log of which only the name is known.
pub fn of_unknown_name(file: &FileSpec) -> String {
    let (what, pattern) = (file.unknown_log.as_deref().unwrap_or_default(), file.files.as_str());
    format!(
        "{what} is a log of an unknown form, and is not watched: name files = \"{pattern}\" in a [[log]] of a profile of your \
         own for this process to have it released"
    )
}

/// Returns the report about a redo log of unknown format.
pub fn of_unknown_format(format: u32) -> String {
    format!(
        "this redo log has an unknown form (format {format:#x}), and is kept: name its files, with how they are written, in a \
         [[log]] of a profile of your own for this process, without checkpoint = \"innodb\", to have it released"
    )
}
