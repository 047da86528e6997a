//! Confirms a backup that another process reports: it is at the requested place, of this store, and
//! intact.
//!
//! That process may have its own mounts, so the same path may be another directory there, and
//! whatever answers at the socket may lie. So its answer counts only as far as the place itself
//! confirms it.
//!
//! Invariant: the backup is only read.

use std::path::Path;

use crate::format::superblock::{SlotContent, Superblock};
use crate::options::Create;
use crate::superblocks;
use crate::{Backup, Error, Store, StoreOptions, destination};

/// Bytes of memory for reading the backup.
const VERIFY_MEMORY_BYTES: u64 = 64 << 20;
/// Number of attempts to read the superblock of a store in use, where one slot may be in the middle
/// of a write.
const READ_ATTEMPTS: usize = 5;

/// Fails if anything exists at the destination of a backup.
pub(crate) fn require_missing(to: &Path) -> Result<(), Error> {
    match to.symlink_metadata() {
        Ok(_) => Err(destination::exists(&*StoreOptions::default().io_or_best(), to)),
        // An error that keeps the caller from looking also keeps it from confirming the backup.
        Err(_) => Ok(()),
    }
}

/// Reads the superblock of a store that another process has open.
pub(crate) fn superblock_of(directory: &Path) -> Result<Superblock, Error> {
    let path = directory.join(superblocks::SUPERBLOCK_NAME);
    let io = StoreOptions::default().io_or_best();
    let mut found = String::new();
    for _ in 0..READ_ATTEMPTS {
        let read =
            superblocks::read(&*io, directory)?.ok_or_else(|| Error::NoStore { path: path.clone() })?;
        if let Some((SlotContent::Superblock(superblock), _)) = read.newest() {
            return Ok(superblock.clone());
        }
        found = read.to_string();
    }
    Err(Error::BrokenSuperblock { path, found })
}

/// Opens and verifies the reported backup of a store that had this superblock before. Returns what
/// was found.
pub(crate) fn confirm(said: &Backup, source: &Superblock, to: &Path) -> Result<Backup, Error> {
    let refuse = |reason: String| Error::BackupNotConfirmed { path: to.to_path_buf(), reason };
    if to.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Err(refuse(NOT_HERE.to_owned()));
    }
    let options =
        Store::options().read_only(true).create(Create::Never).memory(VERIFY_MEMORY_BYTES).without_threads();
    let store = options.open(to).map_err(|error| refuse(error.to_string()))?;
    let (id, stat) = (store.core().config.store_id, store.stats());
    if id != source.store {
        return Err(refuse(format!(
            "it is of another store: its id is {id:016x}, not {:016x}",
            source.store
        )));
    }
    if (stat.seq, stat.pages) != (said.seq, said.pages) || stat.seq < source.checkpoint_seq {
        let Backup { seq, pages, .. } = said;
        return Err(refuse(format!(
            "it has {} pages as of commit {}, where {pages} as of commit {seq} were announced and commit {} was made before",
            stat.pages, stat.seq, source.checkpoint_seq
        )));
    }
    let verified = store.verify().map_err(|error| refuse(error.to_string()))?;
    if let Some(fault) = verified.named.first() {
        return Err(refuse(format!("it is damaged: {fault}: remove it, and make it again")));
    }
    let bytes = (verified.data_pages + verified.free_pages) * stat.page_size as u64;
    Ok(Backup { store: id, page_size: stat.page_size, bytes, ..*said })
}

/// The error for a missing backup, with what to do.
const NOT_HERE: &str = "nothing is there: it may see another directory under this name, as in a container or with mounts of its \
    own, and have its copy there; name a directory that is the same one for both";
