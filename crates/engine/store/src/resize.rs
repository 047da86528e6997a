//! Finds the directory of the journal, and replaces the journal by one of another size.
//!
//! ```text
//! all commits in the data file ─▶ a journal made in the other directory ─▶ both superblocks name it ─▶ the old one removed
//! ```
//!
//! Invariants:
//! 1. The journal is in that one of two directories whose log has the id in the superblock. A
//!    second directory is left by a crash while it was made or removed.
//! 2. A superblock names the new journal only when the data file has all commits of the old one,
//!    and the new one is durable.
//! 3. The other directory is removed only when both slots of the superblock name the remaining
//!    journal.
//!
//! Fails as the disk does. If there is no room for the new journal, or a damaged page cannot be
//! applied, the old journal stays.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_io::Io;
use pagekeeper_kernel::mutex::ignore_poison;
use pagekeeper_text::escaped;
use pagekeeper_wal::{Lsn, RedoLog};

use crate::Error;
use crate::core::{Checkpoints, Core};
use crate::create::{check_journal, make_journal};
use crate::error::lacks_space;
use crate::format::superblock::Superblock;
use crate::names::{JOURNAL_NAME, OTHER_JOURNAL_NAME};
use crate::options::StoreOptions;
use crate::replay::journal_options;

/// Returns those directories of the store that may have the journal and exist.
pub(crate) fn places(io: &dyn Io, directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let names = io.list(directory)?;
    let is_there = |name: &&str| names.iter().any(|found| found == OsStr::new(name));
    Ok([JOURNAL_NAME, OTHER_JOURNAL_NAME]
        .into_iter()
        .filter(is_there)
        .map(|name| directory.join(name))
        .collect())
}

/// Returns the directory of the journal with this id. If neither of two has it, returns the first
/// one, so that opening it reports the error.
pub(crate) fn journal_path(io: &Arc<dyn Io>, directory: &Path, id: u64) -> Result<PathBuf, Error> {
    let places = places(&**io, directory)?;
    if let [only] = &places[..] {
        return Ok(only.clone());
    }
    let options = RedoLog::options().io(Arc::clone(io));
    // An unreadable directory does not count, as long as the other one has it.
    let has_it = |path: &&PathBuf| matches!(options.read_id(path), Ok(Some(found)) if found == id);
    Ok(places.iter().find(has_it).cloned().unwrap_or_else(|| directory.join(JOURNAL_NAME)))
}

/// Removes what a crash left beside the journal at `path`, when both slots of the superblock name
/// that journal.
pub(crate) fn remove_others(io: &dyn Io, directory: &Path, path: &Path) -> Result<(), Error> {
    for other in places(io, directory)?.iter().filter(|other| *other != path) {
        remove(io, other)?;
        io.sync_dir(directory)?;
    }
    Ok(())
}

/// Removes a journal. Its control file goes first, so that the remains are no log.
fn remove(io: &dyn Io, path: &Path) -> Result<(), Error> {
    let mut names = match io.list(path) {
        Err(error) if error.errno() == Some(libc::ENOENT) => return Ok(()),
        names => names?,
    };
    names.sort_by_key(|name| name != "control");
    for name in names {
        io.remove(&path.join(name))?;
    }
    Ok(io.remove_dir(path)?)
}

/// Returns the journal's requested limit, if it differs from the current one.
///
/// Fails if a page does not fit into it.
pub(crate) fn wanted(options: &StoreOptions, newest: &Superblock) -> Result<Option<u64>, Error> {
    let is_another = |bytes: &u64| *bytes != newest.max_journal_bytes && !options.is_read_only();
    let Some(bytes) = options.journal_bytes.filter(is_another) else { return Ok(None) };
    check_journal(options, bytes, newest.page_size.into())?;
    Ok(Some(bytes))
}

impl Core {
    /// Replaces the journal by one with this limit. Called before anybody else has the store.
    pub(crate) fn resize_journal(&mut self, bytes: u64) -> Result<(), Error> {
        if !injected!(self.config.options, ResizedBeforeCheckpoint)
            && let Err(error) = self.sync()
        {
            let stays = error.is_no_space() || matches!(error, Error::Damaged { .. });
            return self.keep_journal(bytes, error, stays);
        }
        let (io, directory) = (Arc::clone(&self.config.io), self.config.directory.clone());
        let old = self.config.journal_path.clone();
        let is_first = old.file_name() == Some(OsStr::new(JOURNAL_NAME));
        let new = directory.join(if is_first { OTHER_JOURNAL_NAME } else { JOURNAL_NAME });
        match self.make_journal_beside(&new, bytes) {
            Ok(made) => self.name_journal(&new, bytes, made)?,
            Err(error) => {
                // The next opening removes it if this fails.
                let _ = remove(&*io, &new);
                let is_full = lacks_space(error.errno());
                return self.keep_journal(bytes, error, is_full);
            }
        }
        // The same here.
        let _ = remove(&*io, &old).and_then(|()| Ok(io.sync_dir(&directory)?));
        Ok(())
    }

    /// Continues with the old journal, if this error allows it.
    fn keep_journal(&self, bytes: u64, error: Error, may_stay: bool) -> Result<(), Error> {
        if !may_stay {
            return Err(error);
        }
        let store = escaped(&self.config.directory).to_string();
        tracing::warn!(%store, %error, bytes, "the journal keeps its size");
        Ok(())
    }

    /// Makes another journal that no superblock names. Returns its id and the open journal.
    fn make_journal_beside(&self, path: &Path, bytes: u64) -> Result<(u64, RedoLog), Error> {
        let (options, io) = (&self.config.options, &self.config.io);
        let id = make_journal(options, io, path, bytes)?;
        io.sync_dir(&self.config.directory)?;
        Ok((id, journal_options(options, io, bytes).recover(path, Some(Lsn::new(0)))?.0))
    }

    /// Makes the superblocks name an empty journal, and continues with that.
    fn name_journal(&mut self, path: &Path, bytes: u64, (id, log): (u64, RedoLog)) -> Result<(), Error> {
        if injected!(self.config.options, OldJournalGoneFirst) {
            remove(&*self.config.io, &self.config.journal_path)?;
        }
        let superblocks = ignore_poison(self.superblocks.get_mut());
        superblocks.write(Superblock {
            journal: id,
            checkpoint_lsn: Lsn::new(0),
            max_journal_bytes: bytes,
            ..superblocks.newest().clone()
        })?;
        (self.config.journal_path, self.config.max_journal_bytes) = (path.to_path_buf(), bytes);
        let tail = ignore_poison(self.tail.get_mut());
        tail.lsn = Lsn::new(0);
        self.checkpoints = Checkpoints::new(self.checkpoints.seq(), Lsn::new(0), tail.seq);
        self.journal = log;
        Ok(())
    }
}
