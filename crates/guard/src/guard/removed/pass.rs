//! One pass over removed logs of a database, in a job of its own: each is found behind a descriptor, compared with what was seen of it
//! before, and released as far as nobody reads it.
//!
//! Invariants: as in the module above; a file is open for its pass alone. What fails is tried again [`TRIES`](super::TRIES) times.

use std::time::{Duration, Instant};

use pagekeeper_kernel::process::{Access, ProcRoot};
use pagekeeper_kernel::{Error, Expected, Handle, Inode, page_size, residency};

use super::{Known, Opener, Seen};
use crate::budget::{Slice, Turn};
use crate::decision::FileAct;
use crate::directory::Directory;
use crate::guard::carry_out::release_pieces;
use crate::guard::serve::Job;
use crate::ownership::Right;

/// One that is to be looked at.
pub(super) struct Item {
    /// Of which the range is not known yet.
    pub(super) act: FileAct,
    pub(super) database: u32,
    pub(super) openers: Vec<Opener>,
    /// Whether all who may have it open were listed since it was seen.
    pub(super) all_listed: bool,
    pub(super) known: Option<Known>,
}

/// By what a pass goes.
pub(super) struct Pass {
    pub(super) proc: ProcRoot,
    pub(super) quiet: Duration,
    pub(super) is_dry: bool,
    pub(super) now: Instant,
}

/// One that was looked at.
pub(super) struct Examined {
    pub(super) act: FileAct,
    pub(super) known: Option<Known>,
    pub(super) came: Came,
}

impl Examined {
    /// In bytes.
    pub(super) fn released(&self) -> u64 {
        if let Came::Released(released, _) = self.came { released } else { 0 }
    }
}

/// What came of one.
pub(super) enum Came {
    Nothing,
    /// It has changed, or a descriptor of it is where it was not: who has it open is to be listed again.
    Anew,
    /// It would be released up to there.
    Would(u64),
    /// So many bytes were, and so many resisted.
    Released(u64, u64),
    /// It is left.
    Failed(Error),
}

/// What came of a database's.
pub(super) struct PassOutcome {
    pub(super) all: Vec<Examined>,
    pub(super) spent: Duration,
}

/// Why one is not to be touched now.
enum Unclear {
    /// A descriptor is another file, or closed: it may have another number.
    Moved,
    /// It has a name, is not the database's, or that can't be seen.
    LeftAlone,
}

impl Pass {
    /// Looks at some files of one database, as far as its turn lasts.
    pub(super) fn job(self, items: Vec<Item>, slice: Slice) -> Job<PassOutcome> {
        Box::new(move |own, place| {
            let (turn, deadline) = (Turn::begin(slice), Instant::now() + slice.wall);
            let mut all = Vec::new();
            for mut item in items {
                if turn.is_over() {
                    break;
                }
                let directory = item.act.directory;
                place.at(directory);
                let came = self.one(&mut item, &own[directory], deadline);
                all.push(Examined { act: item.act, known: item.known, came });
            }
            PassOutcome { all, spent: turn.spent() }
        })
    }

    /// Looks at one, and releases what may go of it.
    fn one(&self, item: &mut Item, directory: &Directory, deadline: Instant) -> Came {
        let (handle, seen) = match item.find(&self.proc, &directory.right) {
            Ok(found) => found,
            Err(Unclear::Moved) => return Came::Anew,
            Err(Unclear::LeftAlone) => {
                item.known = None;
                return Came::Nothing;
            }
        };
        let known = item.known.get_or_insert_with(|| Known::new(&seen, self.now));
        if known.see(&seen, self.now) {
            return Came::Anew;
        }
        let Some(end) = known.end(&seen, self.quiet, self.now).filter(|_| item.all_listed) else {
            return Came::Nothing;
        };
        let is_dry = self.is_dry || !directory.acts;
        match release_to(handle, item.act.inode, known, end, is_dry, deadline) {
            Ok(came) => came,
            Err(error) if error.is_gone() => Came::Nothing,
            // Who has a lease on it (fcntl(2) `F_SETLEASE`) may give that back.
            Err(error) if known.released(u64::MAX, false) => Came::Failed(error),
            Err(_) => Came::Nothing,
        }
    }
}

impl Item {
    /// Finds it behind a descriptor of the database's, and where its readers are.
    fn find(&self, proc: &ProcRoot, right: &Right) -> Result<(Handle, Seen), Unclear> {
        let mut handle = None;
        for opener in self.openers.iter().filter(|opener| opener.is_own) {
            match Handle::of_magic_link(&proc.fd_path(opener.pid, opener.fd), self.act.path.clone()) {
                Ok(found) if found.inode() == self.act.inode => {
                    handle = Some(found);
                    break;
                }
                Ok(_) => {}
                Err(error) if error.is_gone() => {}
                Err(_) => return Err(Unclear::LeftAlone),
            }
        }
        let Some(handle) = handle else { return Err(Unclear::Moved) };
        let (mut readers, mut is_written_by_it) = (None, false);
        for opener in &self.openers {
            let info = match proc.fd_info(opener.pid, opener.fd) {
                Ok(info) => info,
                Err(error) if error.is_gone() && proc.start_time(opener.pid).is_err() => continue,
                Err(error) if error.is_gone() => return Err(Unclear::Moved),
                Err(_) => return Err(Unclear::LeftAlone),
            };
            // Before Linux 5.14, which has no counts of pages either.
            if info.inode_number.is_none() || opener.shown.is_none() {
                return Err(Unclear::LeftAlone);
            }
            if info.inode_number != opener.shown {
                return Err(Unclear::Moved);
            }
            let writes = matches!(info.access(), Access::WriteOnly | Access::ReadWrite);
            is_written_by_it |= writes && opener.pid == self.database;
            let at = match info.access() {
                Access::ReadOnly => info.position,
                // Who writes by pwrite(2) has it at 0, and who reads has moved it.
                Access::ReadWrite if info.position > 0 => info.position,
                Access::ReadWrite | Access::WriteOnly | Access::Neither => continue,
            };
            readers = Some(readers.map_or(at, |other: u64| other.min(at)));
        }
        let stat = handle.stat();
        let is_its_own = match right {
            Right::Process(right) => is_written_by_it || right.has_rights_of(stat.st_uid),
            Right::Operator | Right::Owner(_) => false,
        };
        let size = u64::try_from(stat.st_size).ok();
        let Some(size) = size.filter(|_| stat.st_nlink == 0 && is_its_own) else {
            return Err(Unclear::LeftAlone);
        };
        let changed = [
            stat.st_mtime,
            stat.st_mtime_nsec.cast_signed(),
            stat.st_ctime,
            stat.st_ctime_nsec.cast_signed(),
        ];
        Ok((handle, Seen { size, changed, readers }))
    }
}

/// Releases one up to there, as far as there is time, unless it has yet to be written: pages that are thrown away with the last
/// descriptor are not worth a write.
fn release_to(
    handle: Handle,
    inode: Inode,
    known: &mut Known,
    end: u64,
    is_dry: bool,
    deadline: Instant,
) -> Result<Came, Error> {
    let file = handle.open(Expected::Inode(inode))?;
    let start = known.released_to;
    let range = start..end.min(file.size().next_multiple_of(page_size()));
    // Without counts (on overlayfs, or an older kernel) it is not known what has yet to be written, and all of the file would be mapped.
    if range.is_empty() || residency(&file, start..start + 1)?.dirty.is_none() {
        known.released(u64::MAX, true);
        return Ok(Came::Nothing);
    }
    let found = residency(&file, range.clone())?;
    if found.resident == 0 {
        known.released(end, true);
        return Ok(Came::Nothing);
    }
    if found.unwritten() > 0 {
        return Ok(Came::Nothing);
    }
    if is_dry {
        known.released(end, true);
        return Ok(Came::Would(range.end));
    }
    let (released, kept, rest) = release_pieces(&file, &range, deadline)?;
    match rest {
        Some(rest) => known.released_to = rest.start,
        None => _ = known.released(end, kept == 0),
    }
    Ok(Came::Released(released, kept))
}
