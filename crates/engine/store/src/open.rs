//! Opening a store: reads what is there, and continues from there.
//!
//! Invariants:
//! 1. Superblocks and journal are read from the device, and made durable before anything is built
//!    on them.
//! 2. Nothing is written before everything was checked. With a read-only opening nothing is written
//!    at all, and no file is created.

use std::collections::HashSet;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Builder;
use std::time::Instant;

use pagekeeper_io::{FileLock, Io, Process};

use crate::budget::{cache, cached, map_share, max_kept, unapplied_share};
use crate::buffers::BufferPool;
use crate::changes::ChangeRecorder;
use crate::core::{Checkpoints, Config, Core, JournalTail};
use crate::create::{above, check_new, is_to_be_made, make, sync_names};
use crate::data::{self, DataFile};
use crate::format::superblock::{SlotContent, Superblock};
use crate::names::LOCK_NAME;
use crate::opening::Opening;
use crate::options::{Create, FullPageImages, StoreOptions};
use crate::page_map::PageMap;
use crate::replay::{JournalContent, JournalRead, read_journal};
use crate::reports::ProgressQueue;
use crate::snapshots::Snapshots;
use crate::superblocks::{self, FIRST_NUMBER, SlotsRead, Superblocks};
use crate::writer::WriterLock;
use crate::{Error, Store, resize};

impl StoreOptions {
    /// Opens a store in a directory of its own, or makes one there.
    ///
    /// Returns as soon as the journal was read. Pages that it changes are rebuilt at their first
    /// use, and all of them in the background.
    ///
    /// Fails without changing anything:
    ///
    /// - if another process has it open ([`pagekeeper_io::Error::Locked`]);
    /// - if its page size is not the requested one;
    /// - if its format is unknown;
    /// - if acknowledged commits cannot be read any more ([`Error::Corrupt`], [`Error::Journal`]).
    pub fn open(self, directory: impl AsRef<Path>) -> Result<Store, Error> {
        self.check()?;
        open(&self, directory.as_ref())
    }
}

/// Opens a store, and makes it first if necessary.
fn open(options: &StoreOptions, directory: &Path) -> Result<Store, Error> {
    let began = Instant::now();
    let io = options.io_or_best();
    let names = match io.list(directory) {
        Ok(names) => names,
        Err(error) if error.errno() == Some(libc::ENOENT) && options.may_create() => {
            check_new(options)?;
            io.create_dir(directory)?;
            io.sync_dir(above(directory))?;
            Vec::new()
        }
        Err(error) if error.errno() == Some(libc::ENOENT) => {
            return Err(Error::NoStore { path: directory.to_path_buf() });
        }
        Err(error) => return Err(error.into()),
    };
    // Before the lock, so that no lock file is created where no store is to be.
    if is_to_be_made(options, directory, &names)? {
        check_new(options)?;
    }
    let lock = directory.join(LOCK_NAME);
    let held = if options.is_read_only() { io.lock_shared(&lock)? } else { Some(io.lock(&lock)?) };
    // Again, since another process may have acted meanwhile: a store that is created again is
    // deleted first.
    let is_new = is_to_be_made(options, directory, &io.list(directory)?)?;
    let read = match superblocks::read(&*io, directory)? {
        Some(_) if options.create == Create::New && !options.is_read_only() => {
            let found = superblocks::SUPERBLOCK_NAME.to_owned();
            return Err(Error::NotEmpty { path: directory.to_path_buf(), found });
        }
        Some(read) => read,
        // The file was removed meanwhile, or is a dangling symlink.
        None if !is_new => {
            let (path, found) =
                (directory.join(superblocks::SUPERBLOCK_NAME), superblocks::SUPERBLOCK_NAME.to_owned());
            return Err(Error::LostSuperblock { path, found });
        }
        None => {
            make(options, &io, directory)?;
            let made = superblocks::read(&*io, directory)?;
            made.ok_or_else(|| Error::NoStore { path: directory.join(superblocks::SUPERBLOCK_NAME) })?
        }
    };
    let path = directory.join(superblocks::SUPERBLOCK_NAME);
    match read.newest() {
        Some((SlotContent::Superblock(newest), slot)) => {
            if injected!(options, WrittenBeforeChecked) && !options.is_read_only() {
                Superblocks::open(&*io, directory, newest.clone(), slot, options.files)?
                    .write(newest.clone())?;
            }
            let wanted = resize::wanted(options, newest)?;
            let mut core = recover(options, io, directory, held, (&read, newest, slot), began)
                .map_err(Error::or_lost)?;
            if let Some(bytes) = wanted {
                core.resize_journal(bytes)?;
            }
            Store::start(core)
        }
        Some((SlotContent::Version(version), _)) => Err(superblocks::other_version(path, *version)),
        Some((SlotContent::Nothing(_), _)) | None => {
            Err(Error::BrokenSuperblock { path, found: read.to_string() })
        }
    }
}

/// Opens the store that the superblock describes, with the content of its journal.
fn recover(
    options: &StoreOptions,
    io: Arc<dyn Io>,
    directory: &Path,
    held: Option<FileLock>,
    (read, newest, slot): (&SlotsRead, &Superblock, u64),
    began: Instant,
) -> Result<Core, Error> {
    let page_size = newest.page_size as usize;
    if let Some(wanted) = options.page_size.filter(|wanted| *wanted != page_size) {
        return Err(Error::OtherPageSize { path: directory.to_path_buf(), found: page_size, wanted });
    }
    let max_journal_bytes = newest.max_journal_bytes;
    let path = resize::journal_path(&io, directory, newest.journal)?;
    let use_of = options.files;
    let mut data = DataFile::open(&io, directory, data::DATA_NAME, use_of, page_size)?;
    let mut superblocks = Superblocks::open(&*io, directory, newest.clone(), slot, use_of)?;
    let cache = cache(options, &io, page_size)?;
    // Prepares everything that does not depend on the journal while that is read.
    let prepare = || {
        if !(options.is_read_only() || injected!(options, NoSyncAtOpen)) {
            superblocks.sync()?;
            sync_names(&*io, directory, newest.number <= FIRST_NUMBER)?;
        }
        let of = (newest.store, newest.checkpoint_seq, newest.meta.pages);
        let map = PageMap::open(&io, directory, use_of, of, map_share(options.memory))?;
        #[cfg(test)]
        let map = map.with_injected_fault(options.injected_fault);
        let map = Arc::new(map);
        let cached = cached(options, &cache, &io, directory, newest, &map)?;
        Ok::<_, Error>((map, cached))
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
    let (JournalRead { log: journal, took: journal_read, bytes: journal_bytes, found }, (map, cached)) =
        (found?, prepared?);
    let diffed = found.index.diffed();
    data.needs_atomic = newest.first_diffs && !options.is_read_only() && !diffed.is_empty();
    check_data(options, &data, &found, newest, directory)?;
    map.accept(diffed.into_iter());
    if !options.is_read_only() {
        superblocks.complete(&*io, directory, read)?;
        resize::remove_others(&*io, directory, &path)?;
        // A crash came between the two. The room for commits is counted from the superblock's LSN.
        if journal.checkpoint_lsn() < newest.checkpoint_lsn {
            journal.checkpoint(newest.checkpoint_lsn)?;
        }
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
        journal_path: path,
        max_journal_bytes,
        max_unapplied_bytes: unapplied_share(options.memory),
        diffs_first: (data.is_atomic() || newest.first_diffs && options.is_read_only())
            && options.full_page_images == FullPageImages::Auto,
        recovered_seq: found.seq,
        opening: Opening {
            took: began.elapsed(),
            journal_read,
            journal_bytes,
            commits: found.seq - newest.checkpoint_seq,
            pages: found.index.unapplied_pages(meta.pages),
        },
        _lock: held,
    };
    Ok(Core {
        process: Process::current(),
        config,
        journal,
        data,
        map,
        superblocks: Mutex::new(superblocks),
        cache,
        cached,
        buffers: BufferPool::new(page_size, max_kept(options.memory, page_size)),
        index: found.index,
        snapshots: Snapshots::new(found.seq, Arc::clone(&meta)),
        writer: WriterLock::default(),
        tail: Mutex::new(JournalTail {
            seq: found.seq,
            lsn: found.lsn,
            meta: Arc::clone(&meta),
            logged_since_checkpoint: HashSet::new(),
        }),
        checkpoints: Checkpoints::new(newest.checkpoint_seq, newest.checkpoint_lsn, found.seq),
        version_file: Mutex::default(),
        changes: ChangeRecorder::default(),
        given_back: Mutex::default(),
        reports: ProgressQueue::default(),
        poison: OnceLock::new(),
    })
}

/// Checks that the journal can be applied to the data file.
fn check_data(
    options: &StoreOptions,
    data: &DataFile,
    found: &JournalContent,
    newest: &Superblock,
    directory: &Path,
) -> Result<(), Error> {
    let (len, expected) = (data.bytes(), found.meta.pages.saturating_mul(newest.page_size.into()));
    if len < expected && !injected!(options, LengthNotChecked) {
        return Err(Error::CutOff { path: directory.join(data::DATA_NAME), found: len, expected });
    }
    data.is_durable_upto(expected);
    // A reader tears no page.
    if !newest.first_diffs || options.is_read_only() {
        return Ok(());
    }
    match data.use_atomic() {
        Ok(false) if data.needs_atomic => Err(Error::NotAtomic { path: directory.to_path_buf() }),
        // If there is no room for the test, the first checkpoint repeats it. Until then nothing is
        // applied.
        Err(error) if data.needs_atomic && (!error.is_no_space() || injected!(options, OpenNeedsRoom)) => {
            Err(error)
        }
        Ok(_) | Err(_) => Ok(()),
    }
}
