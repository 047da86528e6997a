//! Makes a store where there is none.
//!
//! Invariant: a store is made only where neither a superblock nor any other part of a store is, or
//! where `superblock.new` says that it never had a commit. A store with neither of these two files
//! has lost its superblock, and is left as it is. So is an unfinished copy, which `superblock.copy`
//! marks. The superblock gets its name last.

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::Io;
use pagekeeper_text::escaped;

use crate::commit::{max_entry_bytes, max_page_entry};
use crate::data::{self, DataFile, FileUse};
use crate::format::superblock::{StoreMeta, Superblock};
use crate::names::{BACKUP_SOCKET_NAME, JOURNAL_NAME, LOCK_NAME, OTHER_JOURNAL_NAME, VERSIONS_NAME};
use crate::options::{Create, FullPageImages, PAGE_SIZE_MIN, StoreOptions};
use crate::page_map::{self, PageMap};
use crate::replay::{journal_options, longest_record};
use crate::{Error, Seq, superblocks};
use pagekeeper_wal::Lsn;

/// Names that a store's directory may have.
const STORE_NAMES: [&str; 14] = [
    superblocks::SUPERBLOCK_NAME,
    superblocks::UNFINISHED_NAME,
    superblocks::COPYING_NAME,
    superblocks::REPLACEMENT_NAME,
    data::DATA_NAME,
    page_map::MAP_NAME,
    JOURNAL_NAME,
    OTHER_JOURNAL_NAME,
    LOCK_NAME,
    crate::warm::WARM_NAME,
    crate::warm::WARM_NEW_NAME,
    BACKUP_SOCKET_NAME,
    VERSIONS_NAME,
    // In the root of a file system.
    "lost+found",
];
/// Names that exist only where a superblock was, or a store was being made.
const NAMES_OF_REMAINS: [&str; 7] = [
    JOURNAL_NAME,
    OTHER_JOURNAL_NAME,
    data::DATA_NAME,
    page_map::MAP_NAME,
    superblocks::REPLACEMENT_NAME,
    crate::warm::WARM_NAME,
    crate::warm::WARM_NEW_NAME,
];
/// Number of journal files.
const JOURNAL_FILES: u32 = 4;

/// Tests whether a store is to be made in a directory with these names: it has no store, and no
/// remains except those of one that was never finished.
pub(crate) fn is_to_be_made(
    options: &StoreOptions,
    directory: &Path,
    names: &[OsString],
) -> Result<bool, Error> {
    let foreign = names.iter().find(|name| !STORE_NAMES.iter().any(|our| *name == our));
    let has = |name: &str| names.iter().any(|found| found == name);
    let is_unfinished = has(superblocks::UNFINISHED_NAME);
    if has(superblocks::SUPERBLOCK_NAME) {
        return Ok(false);
    }
    // The caller wants the store that was copied, not a new one without its pages.
    if has(superblocks::COPYING_NAME) {
        return Err(Error::Unfinished { path: directory.to_path_buf() });
    }
    if let Some(found) = NAMES_OF_REMAINS.into_iter().find(|name| !is_unfinished && has(name))
        && !injected!(options, MadeAnewOverLost)
    {
        let (path, found) = (directory.join(superblocks::SUPERBLOCK_NAME), found.to_owned());
        return Err(Error::LostSuperblock { path, found });
    }
    let create = if options.may_create() { options.create } else { Create::Never };
    match (create, foreign) {
        (Create::Never, _) if is_unfinished => Err(Error::Unfinished { path: directory.to_path_buf() }),
        (Create::Never, _) => Err(Error::NoStore { path: directory.join(superblocks::SUPERBLOCK_NAME) }),
        (Create::IfMissing | Create::New, Some(found)) => {
            let found = escaped(&found).to_string();
            Err(Error::NotEmpty { path: directory.to_path_buf(), found })
        }
        (Create::IfMissing | Create::New, None) => Ok(true),
    }
}

/// Checks that the journal of a new store can take any page.
pub(crate) fn check_new(options: &StoreOptions) -> Result<(), Error> {
    let page = options.page_size.unwrap_or(PAGE_SIZE_MIN) as u64;
    check_journal(options, options.new_journal_bytes(), page)
}

/// Checks that a journal with this limit can take a page of this size, both in bytes.
pub(crate) fn check_journal(options: &StoreOptions, bytes: u64, page_size: u64) -> Result<(), Error> {
    if max_entry_bytes(bytes) < max_page_entry(page_size, longest_record(options, bytes)) {
        let wanted = "a page does not go into it: give 131072 bytes or more for pages of 32 or 64 KiB";
        return Err(Error::Setting { what: "a journal", given: bytes, wanted });
    }
    Ok(())
}

/// Returns the parent directory.
pub(crate) fn above(directory: &Path) -> &Path {
    directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the store's names durable. A process that made the store, or replaced an unreadable
/// superblock, may have been killed before it did that. The directory's own name is durable once a
/// second superblock was written.
pub(crate) fn sync_names(io: &dyn Io, directory: &Path, is_new: bool) -> Result<(), Error> {
    io.sync_dir(directory)?;
    if !is_new {
        return Ok(());
    }
    match io.sync_dir(above(directory)) {
        // Then the directory was there before the store.
        Err(error) if error.errno() == Some(libc::EACCES) => Ok(()),
        synced => Ok(synced?),
    }
}

/// Makes a store where there is none, or where one was never finished. The superblock gets its name
/// last.
pub(crate) fn make(options: &StoreOptions, io: &Arc<dyn Io>, directory: &Path) -> Result<(), Error> {
    superblocks::begin(&**io, directory, superblocks::UNFINISHED_NAME)?;
    let journal = directory.join(JOURNAL_NAME);
    let remains = match io.list(&journal) {
        Err(error) if error.errno() == Some(libc::ENOENT) => Vec::new(),
        names => names?,
    };
    let is_ours = |name: &OsString| {
        name.to_str().is_some_and(|name| name == "control" || name == "lock" || name.starts_with("redo."))
    };
    if let Some(foreign) = remains.iter().find(|name| !is_ours(name)) {
        let found = escaped(foreign).to_string();
        return Err(Error::NotEmpty { path: journal, found });
    }
    for name in remains {
        io.remove(&journal.join(name))?;
    }
    for name in [data::DATA_NAME, page_map::MAP_NAME] {
        match io.remove(&directory.join(name)) {
            Err(error) if error.errno() == Some(libc::ENOENT) => {}
            removed => removed?,
        }
    }
    let max_journal_bytes = options.new_journal_bytes();
    let journal_id = make_journal(options, io, &journal, max_journal_bytes)?;
    let page_size = options.page_size.unwrap_or(PAGE_SIZE_MIN);
    let file = DataFile::open(io, directory, data::DATA_NAME, FileUse::Make, page_size)?;
    file.file.sync_all()?;
    PageMap::create(io, directory)?;
    io.sync_dir(directory)?;
    let first = Superblock {
        number: 0,
        store: RandomState::new().hash_one(std::process::id()),
        page_size: u32::try_from(page_size).unwrap_or_else(|_| unreachable!("at most 65536")),
        checkpoint_seq: Seq::NONE,
        checkpoint_lsn: Lsn::new(0),
        max_journal_bytes,
        first_diffs: is_atomic(options, directory, &file, page_size),
        journal: journal_id,
        meta: StoreMeta::default(),
    };
    superblocks::create(&**io, directory, superblocks::UNFINISHED_NAME, first)
}

/// Makes a journal in a directory that has none, and returns its id.
pub(crate) fn make_journal(
    options: &StoreOptions,
    io: &Arc<dyn Io>,
    journal: &Path,
    max_journal_bytes: u64,
) -> Result<u64, Error> {
    // Beyond the limit: the last padding, and rounding.
    let ring = max_journal_bytes + (max_journal_bytes / 16).max(64 << 10);
    let file_bytes = ring.div_ceil(u64::from(JOURNAL_FILES)).next_multiple_of(4096);
    let options = journal_options(options, io, max_journal_bytes).files(JOURNAL_FILES).file_bytes(file_bytes);
    let made = options.create(journal)?;
    let id = made.id();
    made.close()?;
    Ok(id)
}

/// Whether pages are written atomically there, as far as that may be used.
pub(crate) fn is_atomic(options: &StoreOptions, directory: &Path, data: &DataFile, page_size: usize) -> bool {
    let may_be = options
        .disk_of(directory, &*data.file)
        .is_none_or(|disk| disk.atomic_in_place_bytes_max.is_some_and(|max| page_size as u64 <= max));
    options.full_page_images == FullPageImages::Auto && may_be && data.probe_atomic().unwrap_or(false)
}
