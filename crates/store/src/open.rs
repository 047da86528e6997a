//! Making a store, and opening one: what is there, what of the journal is not in the data file yet, and going on from there.
//!
//! Invariants:
//! 1. Superblocks and journal are read as the device has them, and made durable before anything is built on them.
//! 2. Nothing is written before all was found to be in order.
//! 3. Every commit of the journal behind the checkpoint LSN is in the index, in order and without a gap. No page of the data file is
//!    read: whether it is newer or older does not matter.
//! 4. A store is made only where neither a superblock nor anything else of one is, or `superblock.new` says that it never had a
//!    commit. One that has neither of the two has lost it, and is left as it is.

use std::collections::HashSet;
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Builder;
use std::time::{Duration, Instant};

use pagekeeper_cache::{LoadedPage, OpenOptions, OwnedFile, PageCache};
use pagekeeper_io::{Create as CreateFile, Io, Lock, open_past_cache};
use pagekeeper_kernel::text::escaped;
use pagekeeper_log::{LogMode, Recovered, RedoLog, RedoOptions};

use crate::buffers::Buffers;
use crate::core::{Checkpoints, Config, Core, GroupCommit, Tail, verify_page};
use crate::data::{self, DataFile, MAX_PAGES};
use crate::format::entry::{self, Change, EntryFault, EntryReader};
use crate::format::page::HEADER;
use crate::format::superblock::{Found, Meta, Superblock, VERSION};
use crate::index::Index;
use crate::opening::Opening;
use crate::options::{Create, FullPageImages, MIN_PAGE_BYTES, StoreOptions};
use crate::page_map::{self, PageMap};
use crate::snapshots::Snapshots;
use crate::superblocks::{self, MADE, SlotsRead, Superblocks};
use crate::{Error, Store};

/// The directory of the journal.
pub(crate) const JOURNAL: &str = "journal";
const LOCK: &str = "lock";
/// What a store's directory may have.
const OURS: [&str; 10] = [
    superblocks::NAME,
    superblocks::UNFINISHED,
    superblocks::REPLACEMENT,
    data::NAME,
    page_map::NAME,
    JOURNAL,
    LOCK,
    crate::warm::NAME,
    crate::warm::NEW,
    // Of the root of a file system.
    "lost+found",
];
/// What is there only where a superblock was, or its making was under way.
const REMAINS: [&str; 6] =
    [JOURNAL, data::NAME, page_map::NAME, superblocks::REPLACEMENT, crate::warm::NAME, crate::warm::NEW];
/// Bytes of the journal that may be appended and not synced: behind its end an opening searches no more than so many.
const MAX_UNSYNCED_BYTES: u64 = 4 << 20;
/// Files of the journal.
const FILES: u32 = 4;

/// The maximum that the cache is opened with: less where stores are opened by the thousand, since its bookkeeping takes 16 MiB for the maximum.
const MAX_CACHED_PAGES: u64 = if cfg!(test) { 1 << 20 } else { MAX_PAGES };

impl StoreOptions {
    /// Opens a store, or makes one, in a directory of its own.
    ///
    /// Returns as soon as the journal was read: pages that it changes are put right at their first touch, and all of them in
    /// the background.
    ///
    /// Fails, having changed nothing, where another has it open ([`pagekeeper_io::Error::Locked`]), for another page size
    /// than asked for, an unknown format, and where commits that were acknowledged can't be read any more ([`Error::Corrupt`],
    /// [`Error::Journal`]).
    pub fn open(self, directory: &Path) -> Result<Store, Error> {
        self.check()?;
        open(&self, directory)
    }
}

/// Opens a store, and makes it first if it is to be.
fn open(options: &StoreOptions, directory: &Path) -> Result<Store, Error> {
    let began = Instant::now();
    let io = options.io_or_best();
    let names = match io.list(directory) {
        Ok(names) => names,
        Err(error) if error.errno() == Some(libc::ENOENT) && options.create != Create::Never => {
            io.create_dir(directory)?;
            io.sync_dir(above(directory))?;
            Vec::new()
        }
        Err(error) if error.errno() == Some(libc::ENOENT) => {
            return Err(Error::NoStore { path: directory.to_path_buf() });
        }
        Err(error) => return Err(error.into()),
    };
    // Before the lock, whose file is made where no store is to be.
    is_to_be_made(options, directory, &names)?;
    let held = io.lock(&directory.join(LOCK))?;
    // Again, since what another has done meanwhile counts: what is made anew is deleted first.
    let is_new = is_to_be_made(options, directory, &io.list(directory)?)?;
    let read = match superblocks::read(&*io, directory)? {
        Some(_) if options.create == Create::New => {
            let found = superblocks::NAME.to_owned();
            return Err(Error::NotEmpty { path: directory.to_path_buf(), found });
        }
        Some(read) => read,
        // It is gone since, or a link to nothing.
        None if !is_new => {
            let (path, found) = (directory.join(superblocks::NAME), superblocks::NAME.to_owned());
            return Err(Error::LostSuperblock { path, found });
        }
        None => {
            make(options, &io, directory)?;
            let made = superblocks::read(&*io, directory)?;
            made.ok_or_else(|| Error::NoStore { path: directory.join(superblocks::NAME) })?
        }
    };
    let path = directory.join(superblocks::NAME);
    match read.newest() {
        Some((Found::Superblock(newest), slot)) => {
            start(options, io, directory, held, (&read, newest, slot), began)
        }
        Some((Found::Version(version), _)) if *version < VERSION => {
            Err(Error::OldVersion { path, version: *version })
        }
        Some((Found::Version(version), _)) => {
            Err(Error::UnknownVersion { path, version: *version, known: VERSION })
        }
        Some((Found::Nothing(_), _)) | None => Err(Error::BrokenSuperblock { path, found: read.to_string() }),
    }
}

/// Whether a store is to be made where these names are: there is none, and nothing that one leaves but what was never finished.
fn is_to_be_made(options: &StoreOptions, directory: &Path, names: &[OsString]) -> Result<bool, Error> {
    let foreign = names.iter().find(|name| !OURS.iter().any(|our| *name == our));
    let has = |name: &str| names.iter().any(|found| found == name);
    let is_unfinished = has(superblocks::UNFINISHED);
    if has(superblocks::NAME) {
        return Ok(false);
    }
    if let Some(found) = REMAINS.into_iter().find(|name| !is_unfinished && has(name)) {
        let (path, found) = (directory.join(superblocks::NAME), found.to_owned());
        return Err(Error::LostSuperblock { path, found });
    }
    match (options.create, foreign) {
        (Create::Never, _) if is_unfinished => Err(Error::Unfinished { path: directory.to_path_buf() }),
        (Create::Never, _) => Err(Error::NoStore { path: directory.join(superblocks::NAME) }),
        (Create::IfMissing | Create::New, Some(found)) => {
            let found = escaped(&found).to_string();
            Err(Error::NotEmpty { path: directory.to_path_buf(), found })
        }
        (Create::IfMissing | Create::New, None) => Ok(true),
    }
}

/// The directory that this one is in.
fn above(directory: &Path) -> &Path {
    directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the store's names durable: who made it, or put a superblock in the place of one that could not be read, may have been
/// killed before that. Its own name is there for good once another superblock was written.
fn sync_names(io: &dyn Io, directory: &Path, is_new: bool) -> Result<(), Error> {
    io.sync_dir(directory)?;
    if !is_new {
        return Ok(());
    }
    match io.sync_dir(above(directory)) {
        // Then it was there before the store.
        Err(error) if error.errno() == Some(libc::EACCES) => Ok(()),
        synced => Ok(synced?),
    }
}

/// Makes a store where none is, or one that was never finished. The superblock's name comes last.
fn make(options: &StoreOptions, io: &Arc<dyn Io>, directory: &Path) -> Result<(), Error> {
    superblocks::begin(&**io, directory)?;
    let journal = directory.join(JOURNAL);
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
    for name in [data::NAME, page_map::NAME] {
        match io.remove(&directory.join(name)) {
            Err(error) if error.errno() == Some(libc::ENOENT) => {}
            removed => removed?,
        }
    }
    let max_journal_bytes = options.journal_bytes;
    // Beside the limit: the last padding, and what rounding takes.
    let ring = max_journal_bytes + (max_journal_bytes / 16).max(64 << 10);
    let file_bytes = ring.div_ceil(u64::from(FILES)).next_multiple_of(4096);
    let made = journal_options(options, io, max_journal_bytes)
        .files(FILES)
        .file_bytes(file_bytes)
        .create(&journal)?;
    let journal_id = made.id();
    made.close()?;
    let page_size = options.page_size.unwrap_or(MIN_PAGE_BYTES);
    let file = DataFile::open(io, directory, data::NAME, CreateFile::New, page_size)?;
    file.file.sync_all()?;
    PageMap::create(io, directory)?;
    io.sync_dir(directory)?;
    let may_be = options
        .disk_of(directory, &*file.file)
        .is_none_or(|disk| disk.atomic_in_place_bytes_max.is_some_and(|max| page_size as u64 <= max));
    let atomic = options.full_page_images == FullPageImages::Auto && may_be && file.is_atomic();
    let first = Superblock {
        number: 0,
        store: RandomState::new().hash_one(std::process::id()),
        page_size: u32::try_from(page_size).unwrap_or_else(|_| unreachable!("at most 65536")),
        checkpoint_seq: 0,
        checkpoint_lsn: 0,
        max_journal_bytes,
        first_diffs: atomic,
        journal: journal_id,
        meta: Meta::default(),
    };
    superblocks::create(&**io, directory, first)
}

fn journal_options(options: &StoreOptions, io: &Arc<dyn Io>, max_journal_bytes: u64) -> RedoOptions {
    let buffer = buffer_bytes(options.memory, max_journal_bytes);
    let journal = RedoLog::options().io(Arc::clone(io)).buffer_bytes(buffer);
    let journal = journal.max_unsynced(MAX_UNSYNCED_BYTES.min(buffer as u64));
    // Read once, by a recovery: a mode that keeps its pages out of the page cache, and syncs with the write.
    let journal = journal.mode(LogMode::Auto);
    #[cfg(test)]
    let journal = with_injected_fault(journal, options);
    if options.threads { journal } else { journal.without_threads() }
}

/// The journal's options for a test.
#[cfg(test)]
fn with_injected_fault(journal: RedoOptions, options: &StoreOptions) -> RedoOptions {
    let journal = match options.injected_fault {
        Some(crate::injected_fault::InjectedFault::Journal(bug)) => journal.injected_fault(bug),
        Some(_) | None => journal,
    };
    journal.mode(options.journal_mode)
}

/// Bytes of the log buffer: a thirty-second part of the budget, within reason, and a power of two.
fn buffer_bytes(memory: u64, max_journal_bytes: u64) -> usize {
    let wanted = (memory / 32).clamp(64 << 10, 8 << 20).min(max_journal_bytes.next_power_of_two());
    1 << wanted.max(64 << 10).ilog2()
}

/// Opens the store that the superblock describes.
fn start(
    options: &StoreOptions,
    io: Arc<dyn Io>,
    directory: &Path,
    held: Lock,
    (read, newest, slot): (&SlotsRead, &Superblock, u64),
    began: Instant,
) -> Result<Store, Error> {
    let page_size = newest.page_size as usize;
    if let Some(wanted) = options.page_size.filter(|wanted| *wanted != page_size) {
        return Err(Error::OtherPageSize { path: directory.to_path_buf(), found: page_size, wanted });
    }
    let max_journal_bytes = newest.max_journal_bytes;
    let path = directory.join(JOURNAL);
    let mut data = DataFile::open(&io, directory, data::NAME, CreateFile::Never, page_size)?;
    let mut superblocks = Superblocks::open(&*io, directory, newest.clone(), slot)?;
    // What does not depend on the journal is made ready while it is read.
    let prepare = || {
        if !injected!(options, NoSyncAtOpen) {
            superblocks.sync()?;
            sync_names(&*io, directory, newest.number <= MADE)?;
        }
        let of = (newest.store, newest.checkpoint_seq, newest.meta.pages);
        let map = PageMap::open(&io, directory, of, map_share(options.memory))?;
        #[cfg(test)]
        let map = map.with_injected_fault(options.injected_fault);
        let map = Arc::new(map);
        let (cache, cached) = cached(options, &io, directory, newest, &map)?;
        Ok::<_, Error>((map, cache, cached))
    };
    let (found, prepared) = std::thread::scope(|scope| {
        let thread = Builder::new().name("store_opener".to_owned());
        let other = options.threads.then(|| thread.spawn_scoped(scope, prepare).ok()).flatten();
        let found = read_journal(options, &io, newest, &path, page_size);
        let prepared = match other {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => prepare(),
        };
        (found, prepared)
    });
    let (JournalRead { log: journal, took: journal_read, bytes: journal_bytes, found }, (map, cache, cached)) =
        (found?, prepared?);
    data.atomic = newest.first_diffs && data.is_atomic();
    check_data(&data, &found, newest, directory)?;
    for (page, crcs) in found.index.diffed() {
        map.accept(crcs.into_iter().map(|crc| (page, crc)));
    }
    superblocks.complete(&*io, directory, read)?;
    // A crash came between the two. What commits may fill is counted from what the superblock says.
    if journal.checkpoint_lsn() < newest.checkpoint_lsn {
        journal.checkpoint(newest.checkpoint_lsn)?;
    }
    #[cfg(test)]
    let (data, superblocks) = {
        let (mut data, mut superblocks) = (data, superblocks);
        (data.injected_fault, superblocks.injected_fault) = (options.injected_fault, options.injected_fault);
        (data, superblocks)
    };
    let meta = Arc::new(found.meta);
    let config = Config {
        options: StoreOptions { disk: options.disk_of(directory, &*data.file), ..options.clone() },
        io,
        directory: directory.to_path_buf(),
        page_size,
        store_id: newest.store,
        max_journal_bytes,
        max_unapplied_bytes: unapplied_share(options.memory),
        diffs_first: data.atomic && options.full_page_images == FullPageImages::Auto,
        recovered_seq: found.seq,
        opening: Opening {
            took: began.elapsed(),
            journal_read,
            journal_bytes,
            commits: found.seq - newest.checkpoint_seq,
            pages: found.index.unapplied_pages(),
        },
        _lock: held,
    };
    let tail = Tail {
        seq: found.seq,
        lsn: found.lsn,
        meta: Arc::clone(&meta),
        logged_since_checkpoint: HashSet::new(),
    };
    let core = Core {
        config,
        journal,
        data,
        map,
        superblocks: Mutex::new(superblocks),
        cache,
        cached,
        buffers: Buffers::new(page_size, max_kept(options.memory, page_size)),
        index: found.index,
        snapshots: Snapshots::new(found.seq, meta),
        writer: Mutex::new(()),
        tail: Mutex::new(tail),
        checkpoints: Checkpoints::new(newest.checkpoint_seq, newest.checkpoint_lsn, found.seq),
        group: GroupCommit::default(),
        poison: OnceLock::new(),
    };
    Store::start(core)
}

/// Whether the data file is such that the journal can be applied to it.
fn check_data(data: &DataFile, found: &Replayed, newest: &Superblock, directory: &Path) -> Result<(), Error> {
    let (len, expected) = (data.bytes(), found.meta.pages.saturating_mul(newest.page_size.into()));
    if len < expected {
        return Err(Error::CutOff { path: directory.join(data::NAME), found: len, expected });
    }
    data.is_durable_upto(expected);
    if newest.first_diffs && !data.atomic && found.index.needs_bases() {
        return Err(Error::NotAtomic { path: directory.to_path_buf() });
    }
    Ok(())
}

/// The journal, and what it says.
struct JournalRead {
    log: RedoLog,
    took: Duration,
    bytes: u64,
    found: Replayed,
}

fn read_journal(
    options: &StoreOptions,
    io: &Arc<dyn Io>,
    newest: &Superblock,
    path: &Path,
    page_size: usize,
) -> Result<JournalRead, Error> {
    let began = Instant::now();
    let journal = journal_options(options, io, newest.max_journal_bytes);
    let (log, records) = journal.recover(path, Some(newest.checkpoint_lsn))?;
    if log.id() != newest.journal {
        let what = "it is the journal of another store".to_owned();
        return Err(Error::Corrupt { path: path.to_path_buf(), what });
    }
    if log.checkpoint_lsn() > newest.checkpoint_lsn {
        let what = "the superblock is older than what of the journal is left".to_owned();
        return Err(Error::Corrupt { path: path.to_path_buf(), what });
    }
    let took = began.elapsed();
    let bytes = records.last().map_or(0, |last| last.end - newest.checkpoint_lsn);
    let found = replay(&records, newest, page_size, path)?;
    Ok(JournalRead { log, took, bytes, found })
}

/// The page cache, and the data file in it.
fn cached(
    options: &StoreOptions,
    io: &Arc<dyn Io>,
    directory: &Path,
    newest: &Superblock,
    map: &Arc<PageMap>,
) -> Result<(PageCache, OwnedFile), Error> {
    let cache = cache(options, io, newest.page_size as usize)?;
    let file = open_past_cache(&**io, &directory.join(data::NAME))?;
    let store = newest.store;
    #[cfg(test)]
    let checks = options.injected_fault != Some(crate::injected_fault::InjectedFault::NoPageChecksum);
    #[cfg(not(test))]
    let checks = true;
    let map = Arc::clone(map);
    let verify = move |page: &LoadedPage<'_>| {
        if checks { verify_page(page.bytes(), page.page(), store, &map) } else { Ok(()) }
    };
    let verifier = OpenOptions::new().verifier(verify);
    let cached = cache.open_owned_with(file, MAX_CACHED_PAGES, verifier)?;
    Ok((cache, cached))
}

/// Pages of memory that are kept for the next ones: as many as there may be.
fn max_kept(memory: u64, page_size: usize) -> usize {
    usize::try_from(unapplied_share(memory)).unwrap_or(usize::MAX) / page_size
}

/// Bytes that versions in memory may take up: a quarter of the budget.
fn unapplied_share(memory: u64) -> u64 {
    memory / 4
}

/// Bytes that the page map may take up, beside what is to be written of it.
fn map_share(memory: u64) -> u64 {
    memory / 64
}

/// Bytes that are on their way: entries that are made, pages that are being written, and what an allocator has between.
fn in_transit_share(memory: u64) -> u64 {
    (memory / 8).min(64 << 20)
}

/// The cache gets what is left of the budget.
fn cache(options: &StoreOptions, io: &Arc<dyn Io>, page_size: usize) -> Result<PageCache, Error> {
    let memory = options.memory;
    let others = unapplied_share(memory)
        + map_share(memory)
        + in_transit_share(memory)
        + buffer_bytes(memory, u64::MAX >> 1) as u64;
    let rest = memory - others;
    // No cache works with less: of very large pages a small budget holds too few.
    let memory = rest.max(pagekeeper_cache::Builder::memory_for(64, page_size));
    Ok(PageCache::builder().memory(memory).page_size(page_size).io(Arc::clone(io)).build()?)
}

/// What the journal says.
struct Replayed {
    index: Index,
    seq: u64,
    /// Just behind its last entry.
    lsn: u64,
    meta: Meta,
}

fn replay(
    records: &[Recovered],
    newest: &Superblock,
    page_size: usize,
    path: &Path,
) -> Result<Replayed, Error> {
    let corrupt = |what: String| Error::Corrupt { path: path.to_path_buf(), what };
    let mut found = Replayed {
        index: Index::with_room_for(
            records.iter().map(|record| record.body.len()).sum::<usize>() / page_size,
        ),
        seq: newest.checkpoint_seq,
        lsn: newest.checkpoint_lsn,
        meta: newest.meta.clone(),
    };
    let mut reader = EntryReader::new(page_size - HEADER);
    for record in records {
        if record.body.is_empty() {
            // It says nothing: the end was marked.
            found.lsn = record.end;
            continue;
        }
        let read = reader.read(&record.body).map_err(|fault| match fault {
            EntryFault::Version(version) if version > entry::VERSION => Error::UnknownVersion {
                path: path.to_path_buf(),
                version: version.into(),
                known: entry::VERSION.into(),
            },
            fault => corrupt(format!("at LSN {}: {fault}", record.lsn)),
        })?;
        let Some(entry) = read else { continue };
        if entry.seq != found.seq + 1 {
            let (lsn, due) = (record.lsn, found.seq + 1);
            return Err(corrupt(format!("commit {} at LSN {lsn} where commit {due} is due", entry.seq)));
        }
        for (page, change) in entry.changes {
            if matches!(change, Change::Diff { .. }) && !newest.first_diffs && !found.index.has(page) {
                let seq = entry.seq;
                return Err(corrupt(format!(
                    "commit {seq} changes a part of page {page}, whose whole is missing"
                )));
            }
            found.index.replay(page, entry.seq, change);
        }
        (found.seq, found.lsn, found.meta) = (entry.seq, record.end, entry.meta);
    }
    Ok(found)
}
