//! Files in the data directory of a PostgreSQL server that state something about its WAL: the
//! control file, replication slots, and the notes of the archiver.
//!
//! Invariants: a directory holds any files that its owner put there. At most [`SLOTS_MAX`] slots
//! are read. At most one that can't be read is reported, and always the same: their owner may make
//! ever new ones.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_kernel::{ExpectedFile, InspectedFile, Links, PathHandle, Result, first_names};
use pagekeeper_text::escaped;

use super::slot::{self, ReplicationSlot};
use crate::checkpoint::postgresql::{CONTROL_FILE_BYTES, ControlFile};
use crate::checkpoint::read_header;

/// The most slots that are read; PostgreSQL has 10 unless `max_replication_slots` says otherwise.
const SLOTS_MAX: usize = 256;

/// The data directory of a server.
#[derive(Debug, Clone, Copy)]
pub struct DataDirectory<'a> {
    /// The place where processes are seen.
    pub proc: &'a ProcRoot,
    /// The server's process, if it is known.
    pub pid: Option<u32>,
    /// The directory of its WAL, as it sees it.
    pub wal: &'a Path,
}

impl DataDirectory<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.wal.parent().unwrap_or(Path::new("/")).join(name)
    }

    /// Opens a directory in the server's working directory, or beside the directory of the WAL.
    fn open(&self, name: &str) -> Result<OwnedFd> {
        match self.pid {
            // The WAL may be elsewhere, behind a link; the server's working directory is its data
            // directory.
            Some(pid) => self.proc.open_directory_in_namespace(pid, Path::new(name)),
            None => PathHandle::at(self.path(name), Links::Refuse)?.open_directory(ExpectedFile::Any),
        }
    }

    /// Reads `global/pg_control`.
    pub fn control_file(&self) -> std::result::Result<ControlFile, String> {
        let path = self.path("global/pg_control");
        let opened = self
            .open("global")
            .and_then(|global| InspectedFile::open_in(global.as_fd(), "pg_control", ExpectedFile::Any, path));
        let mut bytes = [0; CONTROL_FILE_BYTES];
        let len = read_header(&opened.map_err(|error| error.to_string())?, &mut bytes)?;
        ControlFile::parse(&bytes[..len]).map_err(|error| format!("pg_control: {error}"))
    }
}

/// The replication slots of a server, by their files in `pg_replslot`.
#[derive(Debug, Default)]
pub struct ReplicationSlots {
    /// The slots, each with the name of its directory.
    pub found: Vec<(OsString, ReplicationSlot)>,
    /// Reports about what could not be read.
    pub problems: Vec<(PathBuf, String)>,
    /// The report of the first slot that could not be read.
    odd: Option<(PathBuf, String)>,
}

impl ReplicationSlots {
    /// Reads them again; a file system may block that for any time.
    pub fn read(&mut self, data: &DataDirectory<'_>) {
        self.found.clear();
        let path = data.path("pg_replslot");
        let names = data
            .open("pg_replslot")
            .and_then(|opened| Ok((first_names(opened.as_fd(), &path, SLOTS_MAX + 1)?, opened)));
        let (mut names, opened) = match names {
            Ok(names) => names,
            Err(error) if error.is_gone() => return,
            Err(error) => return self.problems.push((path, known_in_part(&error))),
        };
        if names.len() > SLOTS_MAX {
            let problem =
                format!("it has more than {SLOTS_MAX} slots: the readers of others are not waited for");
            self.problems.push((path.clone(), problem));
            names.truncate(SLOTS_MAX);
        }
        let mut has_odd = false;
        for name in names {
            let state = path.join(&name).join("state");
            let reason = match read_slot(opened.as_fd(), &name, state.clone()) {
                Ok(Ok(slot)) => {
                    self.found.push((name, slot));
                    continue;
                }
                Ok(Err(reason)) => format!("{}: {reason}", escaped(&state)),
                Err(error) if error.is_gone() => continue,
                Err(error) => error.to_string(),
            };
            has_odd = true;
            self.odd.get_or_insert_with(|| {
                (path.clone(), format!("the readers of some of its slots are not waited for: {reason}"))
            });
        }
        self.problems.extend(self.odd.clone().filter(|_| has_odd));
    }
}

fn read_slot(
    directory: BorrowedFd<'_>,
    name: &OsStr,
    path: PathBuf,
) -> Result<std::result::Result<ReplicationSlot, String>> {
    let file = InspectedFile::open_below(directory, Path::new(name).join("state"), ExpectedFile::Any, path)?;
    let mut bytes = [0; slot::SLOT_BYTES];
    let len = match file.file().read_at(&mut bytes, 0) {
        Ok(len) => len,
        Err(error) => return Ok(Err(format!("it can't be read: {error}"))),
    };
    Ok(ReplicationSlot::parse(&bytes[..len]).map_err(|error| error.to_string()))
}

/// Returns the report about files that say who has yet to read WAL, and can't be read.
pub fn known_in_part(error: &pagekeeper_kernel::Error) -> String {
    format!("the readers of WAL are known only in part: {error}")
}

/// The note that `archive_status` has for a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveNote {
    /// It is archived, and stays so.
    Done,
    /// It is to be archived.
    Ready,
    /// The server makes the note once the segment is full.
    Missing,
}

impl ArchiveNote {
    /// Returns the note of a segment in a directory of notes.
    pub fn of(status: BorrowedFd<'_>, path: &Path, segment: &OsStr) -> Self {
        let exists = |suffix: &str| {
            let mut name = segment.to_owned();
            name.push(suffix);
            PathHandle::in_directory(status, name.as_os_str(), path.join(&name)).is_ok()
        };
        if exists(".done") {
            Self::Done
        } else if exists(".ready") {
            Self::Ready
        } else {
            Self::Missing
        }
    }
}
