//! Confirms a backup that another process says it made: it is where it was asked for, of this store, and sound.
//!
//! That process may have mounts of its own, so that the same path is another directory there, and whatever answers at the socket may lie. So
//! its answer counts for nothing that is not found at the place itself.
//!
//! Invariant: the backup is only read.

use std::path::Path;

use crate::format::superblock::{Found, Superblock};
use crate::options::Create;
use crate::superblocks;
use crate::{Backup, Error, Store, StoreOptions, destination};

/// Bytes of memory to read the backup with.
const MEMORY: u64 = 64 << 20;
/// How often the superblock is read of a store that is in use: one slot at a time may be being written.
const ATTEMPTS: usize = 5;

/// Fails where anything is at the place where a backup is to be made.
pub(crate) fn require_missing(to: &Path) -> Result<(), Error> {
    match to.symlink_metadata() {
        Ok(_) => Err(destination::exists(&*StoreOptions::default().io_or_best(), to)),
        // What keeps the caller from looking keeps it from confirming the backup.
        Err(_) => Ok(()),
    }
}

/// The superblock of a store that another process has open.
pub(crate) fn superblock_of(directory: &Path) -> Result<Superblock, Error> {
    let path = directory.join(superblocks::NAME);
    let io = StoreOptions::default().io_or_best();
    let mut found = String::new();
    for _ in 0..ATTEMPTS {
        let read =
            superblocks::read(&*io, directory)?.ok_or_else(|| Error::NoStore { path: path.clone() })?;
        if let Some((Found::Superblock(superblock), _)) = read.newest() {
            return Ok(superblock.clone());
        }
        found = read.to_string();
    }
    Err(Error::BrokenSuperblock { path, found })
}

/// Opens and verifies the backup that is said to be there of a store which had this superblock before. Gives what was found.
pub(crate) fn confirm(said: &Backup, source: &Superblock, to: &Path) -> Result<Backup, Error> {
    let refuse = |reason: String| Error::BackupNotConfirmed { path: to.to_path_buf(), reason };
    if to.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        return Err(refuse(NOT_HERE.to_owned()));
    }
    let options = Store::options().read_only(true).create(Create::Never).memory(MEMORY).without_threads();
    let store = options.open(to).map_err(|error| refuse(error.to_string()))?;
    let (id, stat) = (store.core().config.store_id, store.stat());
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

/// Why there is none, and what to do.
const NOT_HERE: &str = "nothing is there: it may see another directory under this name, as in a container or with mounts of its \
    own, and have its copy there; name a directory that is the same one for both";
