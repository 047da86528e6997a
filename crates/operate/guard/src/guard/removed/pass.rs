//! One pass over the removed logs of a database, in a job of its own. Each file is found behind a
//! descriptor, compared with its earlier state, and released as far as nobody reads it.
//!
//! Invariants: as in the module above; a file is open for its pass alone. A failed release is
//! retried a [few times](RemovedFileState::released).

use std::time::{Duration, Instant};

use pagekeeper_catalog::ownership::FileOwnership;
use pagekeeper_kernel::process::{AccessMode, ProcRoot};
use pagekeeper_kernel::{Error, ExpectedFile, Inode, PathHandle, page_size, release_pieces, residency};
use pagekeeper_policy::removed_file::{RemovedFileStat, RemovedFileState};
use pagekeeper_policy::turns::Slice;

use super::FileOpener;
use crate::budget::Turn;
use crate::decision::FileAct;
use crate::directory::Directory;
use crate::guard::jobs::Job;

/// A file that is to be examined.
pub(super) struct RemovalItem {
    /// The act, whose range is not known yet.
    pub(super) act: FileAct,
    pub(super) database: u32,
    pub(super) openers: Vec<FileOpener>,
    /// Whether all processes that may have it open were listed since it was first seen.
    pub(super) all_listed: bool,
    pub(super) known: Option<RemovedFileState>,
}

/// The parameters of a pass.
pub(super) struct RemovalPass {
    pub(super) proc: ProcRoot,
    pub(super) quiet: Duration,
    pub(super) is_dry: bool,
    pub(super) now: Instant,
}

/// The outcome for one file.
pub(super) enum RemovalOutcome {
    Nothing,
    /// It has changed, or a descriptor is not where it was: its openers are to be listed again.
    Anew,
    /// It would be released up to this offset.
    Would(u64),
    /// Bytes released, and bytes that stayed.
    Released(u64, u64),
    /// It failed and is given up.
    Failed(Error),
}

impl RemovalOutcome {
    /// Returns the bytes released.
    pub(super) fn released(&self) -> u64 {
        if let Self::Released(released, _) = self { *released } else { 0 }
    }
}

/// The outcomes for the files of a database.
pub(super) struct PassOutcome {
    pub(super) all: Vec<(RemovalItem, RemovalOutcome)>,
    pub(super) spent: Duration,
}

/// The reason why a file is not to be touched now.
enum RemovalObstacle {
    /// A descriptor is closed or another file by now: the file may have another descriptor.
    Moved,
    /// It has a name, is not the database's, or that can't be seen.
    LeftAlone,
}

impl RemovalPass {
    /// Examines files of one database while its turn lasts.
    pub(super) fn job(self, items: Vec<RemovalItem>, slice: Slice) -> Job<PassOutcome> {
        Box::new(move |own, place| {
            let (turn, deadline) = (Turn::begin(slice), Instant::now() + slice.wall);
            let mut all = Vec::new();
            for mut item in items {
                if turn.is_over() {
                    break;
                }
                let directory = item.act.directory;
                place.at(directory);
                let outcome = self.one(&mut item, &own[directory], deadline);
                all.push((item, outcome));
            }
            PassOutcome { all, spent: turn.spent() }
        })
    }

    /// Examines one file, and releases the pages that may go.
    fn one(&self, item: &mut RemovalItem, directory: &Directory, deadline: Instant) -> RemovalOutcome {
        let (handle, seen) = match item.find(&self.proc, &directory.ownership) {
            Ok(found) => found,
            Err(RemovalObstacle::Moved) => return RemovalOutcome::Anew,
            Err(RemovalObstacle::LeftAlone) => {
                item.known = None;
                return RemovalOutcome::Nothing;
            }
        };
        let known = item.known.get_or_insert_with(|| RemovedFileState::new(&seen, self.now));
        if known.see(&seen, self.now) {
            return RemovalOutcome::Anew;
        }
        let Some(end) = known.end(&seen, self.quiet, self.now).filter(|_| item.all_listed) else {
            return RemovalOutcome::Nothing;
        };
        let is_dry = self.is_dry || !directory.acts;
        match release_to(handle, item.act.inode, known, end, is_dry, deadline) {
            Ok(outcome) => outcome,
            Err(error) if error.is_gone() => RemovalOutcome::Nothing,
            // A process that has a lease on it (fcntl(2) `F_SETLEASE`) may give that back.
            Err(error) if known.released(u64::MAX, false) => RemovalOutcome::Failed(error),
            Err(_) => RemovalOutcome::Nothing,
        }
    }
}

impl RemovalItem {
    /// Finds the file behind a descriptor of the database's, and where its readers are.
    fn find(
        &self,
        proc: &ProcRoot,
        ownership: &FileOwnership,
    ) -> Result<(PathHandle, RemovedFileStat), RemovalObstacle> {
        let mut handle = None;
        for opener in self.openers.iter().filter(|opener| opener.is_own) {
            match PathHandle::of_magic_link(&proc.fd_path(opener.pid, opener.fd), self.act.path.clone()) {
                Ok(found) if found.inode() == self.act.inode => {
                    handle = Some(found);
                    break;
                }
                Ok(_) => {}
                Err(error) if error.is_gone() => {}
                Err(_) => return Err(RemovalObstacle::LeftAlone),
            }
        }
        let Some(handle) = handle else { return Err(RemovalObstacle::Moved) };
        let (mut readers, mut is_written_by_it) = (None, false);
        for opener in &self.openers {
            let info = match proc.fd_info(opener.pid, opener.fd) {
                Ok(info) => info,
                Err(error) if error.is_gone() && proc.start_time(opener.pid).is_err() => continue,
                Err(error) if error.is_gone() => return Err(RemovalObstacle::Moved),
                Err(_) => return Err(RemovalObstacle::LeftAlone),
            };
            // Before Linux 5.14, which has no counts of pages either.
            if info.inode_number.is_none() || opener.shown.is_none() {
                return Err(RemovalObstacle::LeftAlone);
            }
            if info.inode_number != opener.shown {
                return Err(RemovalObstacle::Moved);
            }
            let writes = info.access().writes();
            is_written_by_it |= writes && opener.pid == self.database;
            let at = match info.access() {
                AccessMode::ReadOnly => info.position,
                // A writer by pwrite(2) leaves the position at 0; a reader has moved it.
                AccessMode::ReadWrite if info.position > 0 => info.position,
                AccessMode::ReadWrite | AccessMode::WriteOnly | AccessMode::Neither => continue,
            };
            readers = Some(readers.map_or(at, |other: u64| other.min(at)));
        }
        let stat = handle.stat();
        let is_its_own = match ownership {
            FileOwnership::Process(ownership) => {
                is_written_by_it || ownership.has_permissions_of(stat.st_uid)
            }
            FileOwnership::Operator | FileOwnership::Owner(_) => false,
        };
        let size = u64::try_from(stat.st_size).ok();
        let Some(size) = size.filter(|_| stat.st_nlink == 0 && is_its_own) else {
            return Err(RemovalObstacle::LeftAlone);
        };
        let changed = [
            stat.st_mtime,
            stat.st_mtime_nsec.cast_signed(),
            stat.st_ctime,
            stat.st_ctime_nsec.cast_signed(),
        ];
        Ok((handle, RemovedFileStat { size, changed, readers }))
    }
}

/// Releases a file up to `end`, as far as there is time. Does nothing while pages are still to be
/// written: pages that vanish with the last descriptor are not worth a write.
fn release_to(
    handle: PathHandle,
    inode: Inode,
    known: &mut RemovedFileState,
    end: u64,
    is_dry: bool,
    deadline: Instant,
) -> Result<RemovalOutcome, Error> {
    let file = handle.open(ExpectedFile::Inode(inode))?;
    let start = known.released_to;
    let range = start..end.min(file.size().next_multiple_of(page_size()));
    // Without counts (on overlayfs, or an older kernel) it is not known which pages are still to be
    // written, and the whole file would be mapped.
    if range.is_empty() || residency(&file, start..start + 1)?.dirty.is_none() {
        known.released(u64::MAX, true);
        return Ok(RemovalOutcome::Nothing);
    }
    let found = residency(&file, range.clone())?;
    if found.resident == 0 {
        known.released(end, true);
        return Ok(RemovalOutcome::Nothing);
    }
    if found.unwritten() > 0 {
        return Ok(RemovalOutcome::Nothing);
    }
    if is_dry {
        known.released(end, true);
        return Ok(RemovalOutcome::Would(range.end));
    }
    let (released, kept, rest) = release_pieces(&file, &range, deadline)?;
    match rest {
        Some(rest) => known.released_to = rest.start,
        None => _ = known.released(end, kept == 0),
    }
    Ok(RemovalOutcome::Released(released, kept))
}
