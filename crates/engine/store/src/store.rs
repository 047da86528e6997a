//! The store as its users hold it.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use pagekeeper_policy::stream_pace::StreamPace;

use crate::core::Core;
use crate::handle::Handle;
use crate::{
    Backup, Compaction, Error, FreeList, PageInfo, PageNo, ReadTxn, StoreOptions, StoreStat, SuperblockInfo,
    Verification, WriteTxn, backup_socket, threads,
};

/// A store of pages: a data file, with atomic commits of any number of pages, that opens at once after a crash however large it
/// is.
///
/// One write transaction at a time, begun by [`begin`](Self::begin), and any number of readers beside it, each with a
/// snapshot. Writers that wait for durability don't hold up the next one: all who wait share one sync.
///
/// A commit goes to the journal. In the background, checkpoint by checkpoint, pages go to the data file in page order, wide, and
/// the journal is given up. After a crash an opening reads the journal alone; pages that it changes are put right
/// at their first touch.
///
/// After a write or sync has failed, nothing is committed any more ([`Error::Poisoned`]). What the disk has is found out
/// by opening the store again.
///
/// A store and its transactions belong to the process that opened it: in a forked child every call fails with
/// [`Forked`](pagekeeper_io::Error::Forked) and a drop does nothing.
///
/// ```
/// use pagekeeper_store::{Durability, Store};
///
/// # let temp = tempfile::tempdir_in(".")?;
/// # let dir = &temp.path().join("store");
/// let store = Store::options().memory(64 << 20).open(dir)?;
/// let mut txn = store.begin()?;
/// let page = txn.allocate()?;
/// txn.page_mut(page)?[..7].copy_from_slice(b"balance");
/// txn.set_root(Some(page));
/// txn.commit(Durability::Sync)?;
/// drop(store); // or a crash
///
/// let store = Store::options().open(dir)?;
/// let read = store.begin_read()?;
/// let root = read.root().expect("a root was set");
/// assert_eq!(&read.read(root)?[..7], b"balance");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Store {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
    /// Makes backups for other processes.
    backups: Option<backup_socket::BackupServer>,
    opened: Instant,
    finished: bool,
}

impl Store {
    /// How to make or open one.
    pub fn options() -> StoreOptions {
        StoreOptions::default()
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn start(core: Core) -> Result<Self, Error> {
        // What commits leave below the limit is half used up.
        let read_only = core.config.options.is_read_only();
        if !read_only
            && core.bytes_to_recover()
                > core.config.max_journal_bytes
                    + (core.journal.capacity() - core.config.max_journal_bytes) / 2
        {
            match core.run_checkpoint() {
                // It opens all the same: whoever commits more than there is room for gets the error.
                Err(error) if error.is_no_space() => {}
                done => drop(done?),
            }
        }
        let core = Arc::new(core);
        let mut store =
            Self { core, threads: Vec::new(), backups: None, opened: Instant::now(), finished: false };
        if store.core.config.options.threads && !read_only {
            store.threads.push(threads::start(&store.core)?);
            store.threads.extend(threads::start_reporter(&store.core)?);
        }
        if store.core.config.options.serve_backups && !read_only {
            store.backups = Some(backup_socket::start(&store.core)?);
        }
        Ok(store)
    }

    /// Begins to write; waits until the transaction before is committed or given up, and while the journal is full.
    pub fn begin(&self) -> Result<WriteTxn<'_>, Error> {
        WriteTxn::new(Handle::Borrowed(&self.core))
    }

    /// Begins to read what is visible now. Waits for nobody.
    pub fn begin_read(&self) -> Result<ReadTxn<'_>, Error> {
        self.core.process.require()?;
        Ok(ReadTxn::new(Handle::Borrowed(&self.core)))
    }

    /// As [`begin`](Self::begin), with a transaction that has a share of the store: it can be kept in a struct, or moved into a task
    /// or a thread that outlives the caller. Whoever drops the last share closes the store, which may take a sync.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use pagekeeper_store::{Durability, Store, WriteTxn};
    ///
    /// struct Session {
    ///     txn: WriteTxn<'static>,
    /// }
    ///
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// let store = Arc::new(Store::options().open(dir)?);
    /// let mut session = Session { txn: store.begin_owned()? };
    /// let page = session.txn.allocate()?;
    /// let committed = std::thread::spawn(move || session.txn.commit(Durability::Sync));
    /// committed.join().expect("no panic")?;
    /// assert_eq!(store.begin_read_owned()?.read(page)?[0], 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_owned(self: &Arc<Self>) -> Result<WriteTxn<'static>, Error> {
        WriteTxn::new(Handle::Shared(Arc::clone(self)))
    }

    /// As [`begin_read`](Self::begin_read), with a transaction that has a share of the store: it can be kept in a struct, or moved
    /// into a task or a thread that outlives the caller. Whoever drops the last share closes the store, which may take a sync.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use pagekeeper_store::{Durability, ReadTxn, Store};
    ///
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// let store = Arc::new(Store::options().open(dir)?);
    /// let mut txn = store.begin()?;
    /// let page = txn.allocate()?;
    /// txn.commit(Durability::Sync)?;
    ///
    /// let kept: ReadTxn<'static> = store.begin_read_owned()?;
    /// drop(store); // it stays open
    /// assert_eq!(std::thread::spawn(move || kept.read(page)).join().expect("no panic")?[0], 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_read_owned(self: &Arc<Self>) -> Result<ReadTxn<'static>, Error> {
        self.core.process.require()?;
        Ok(ReadTxn::new(Handle::Shared(Arc::clone(self))))
    }

    /// Begins to load pages that are not in memory, all at once, and waits for none: before a transaction, so that the writer's
    /// lock is not held while the disk is waited for. Numbers of no page are passed over.
    ///
    /// ```
    /// # use pagekeeper_store::{Durability, Error, Store};
    /// fn transfer(store: &Store, from: u64, to: u64) -> Result<u64, Error> {
    ///     store.prefetch([from, to]); // both loads are under way
    ///     let mut txn = store.begin()?;
    ///     txn.page_mut(from)?[0] -= 1;
    ///     txn.page_mut(to)?[0] += 1;
    ///     txn.commit(Durability::Sync)
    /// }
    /// ```
    pub fn prefetch(&self, pages: impl IntoIterator<Item = PageNo>) {
        if !self.core.process.is_current() {
            return;
        }
        let (bytes, end) = (self.core.config.page_size as u64, self.core.data.pages());
        for page in pages.into_iter().filter(|page| *page < end && !self.core.index.has(*page)) {
            self.core.cached.prefetch(page * bytes..(page + 1) * bytes);
        }
    }

    /// Bytes of a page.
    pub fn page_size(&self) -> usize {
        self.core.config.page_size
    }

    /// Bytes of a page that are the user's.
    pub fn payload_size(&self) -> usize {
        self.core.payload_size()
    }

    /// Returns when all that was committed before is in the data file, durably, and the journal is given up so far.
    pub fn sync(&self) -> Result<(), Error> {
        self.core.process.require()?;
        self.core.sync()
    }

    /// One checkpoint, for a store [without threads](StoreOptions::without_threads); false if there was nothing to
    /// do.
    pub fn step(&self) -> Result<bool, Error> {
        self.core.process.require()?;
        self.core.run_checkpoint()
    }

    /// Verifies every page, the free list and the superblocks, beside whatever goes on.
    pub fn verify(&self) -> Result<Verification, Error> {
        self.core.process.require()?;
        self.core.verify()
    }

    /// Copies the store as one commit left it, beside whatever goes on: no commit waits for it. Each page is checked against its
    /// checksum and the page map's as it is read, past the page cache. Reads and writes go in pieces, with pauses while others
    /// wait for the disk. `to` is made, and is a store like this one when this returns, durably:
    /// it opens as of that commit, with nothing to recover. It has the id of this store.
    ///
    /// Takes some MiB beside the budget, and 16 bytes or so for each page that is changed meanwhile. One copy at a time: another
    /// one waits for it.
    ///
    /// Fails with [`Error::Exists`] where `to` is there, if only as a link; with [`Error::Damaged`] where a page is; with
    /// [`Error::SnapshotTooOld`] where pages are changed faster than they can be copied. What was copied until then is removed. If the
    /// process ends before this returns, `to` is missing, or a store that was never finished ([`Error::Unfinished`]).
    ///
    /// ```
    /// use pagekeeper_store::{Durability, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let (dir, copy) = (temp.path().join("store"), temp.path().join("copy"));
    /// let store = Store::options().journal_bytes(1 << 20).open(&dir)?;
    /// let mut txn = store.begin()?;
    /// let page = txn.allocate()?;
    /// let seq = txn.commit(Durability::Sync)?;
    /// assert_eq!(store.backup(&copy)?.seq, seq);
    /// assert_eq!(Store::options().open(&copy)?.stat().seq, seq);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup(&self, to: &Path) -> Result<Backup, Error> {
        self.backup_paced(to, StreamPace::Auto)
    }

    /// As [`Self::backup`], at this pace; [`StreamPace::Auto`] is that of `backup`. A rate is that of its reads and writes
    /// together.
    ///
    /// ```
    /// use pagekeeper_policy::stream_pace::StreamPace;
    /// use pagekeeper_store::Store;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let (dir, copy) = (temp.path().join("store"), temp.path().join("copy"));
    /// let store = Store::options().journal_bytes(1 << 20).open(&dir)?;
    /// store.backup_paced(&copy, StreamPace::BytesPerSecond(64 << 20))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup_paced(&self, to: &Path, pace: StreamPace) -> Result<Backup, Error> {
        self.core.process.require()?;
        self.core.backup(to, pace)
    }

    /// Has the process that has the store in `directory` open make a [backup](Self::backup) of it, if that
    /// [serves](StoreOptions::serve_backups) them: with its rights, not those of the caller, which must be the same user, or root.
    ///
    /// Then opens `to`, and checks that it is a backup of this store, as of the commit that it was said to be, and each page as
    /// [`verify`](Self::verify) does: so the caller must be able to read it. `bytes` are those of its written pages, `took` is the time
    /// until it was checked, and `snapshots` is what that process says.
    ///
    /// Fails with [`Error::NoBackupsServed`] where nobody serves there, as if no process has it open: then open it to read only, and back it
    /// up; with [`Error::Exists`] where `to` is there; with [`Error::BackupRefused`] where that process could not make it; with
    /// [`Error::BackupNotConfirmed`] where it says that it made one and `to` is none: it may see another directory under that name.
    ///
    /// ```
    /// use pagekeeper_store::Store;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let (dir, copy) = (temp.path().join("store"), temp.path().join("copy"));
    /// let _store = Store::options().serve_backups(true).open(&dir)?; // elsewhere
    /// assert_eq!(Store::request_backup(&dir, &copy)?.seq, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn request_backup(directory: &Path, to: &Path) -> Result<Backup, Error> {
        Self::request_backup_paced(directory, to, StreamPace::Auto)
    }

    /// As [`Self::request_backup`], at this pace.
    pub fn request_backup_paced(directory: &Path, to: &Path, pace: StreamPace) -> Result<Backup, Error> {
        backup_socket::request_backup(directory, to, pace)
    }

    /// Makes the data file smaller, beside whatever goes on: free pages at its end are cut off, and the room of other free pages goes back to
    /// the file system, where 64 KiB or more of them stand in a row. No page moves, since its number is yours: to have it smaller still,
    /// write the pages at the end to lower ones (which [`allocate`](WriteTxn::allocate) gives first after this), free them, and compact
    /// again.
    ///
    /// Waits for the write transaction and keeps others waiting, for two checkpoints and as long as the file system takes. Readers go on. A free page whose
    /// room was given back reads as never written ([`Error::NeverWritten`]).
    ///
    /// Fails with [`Error::TransactionTooLarge`] where the free list has more parts than the journal takes in one commit (each names
    /// some 500 pages), with [`Error::Damaged`] where it is damaged, and as commits and checkpoints do. What it did until then stays,
    /// and the next one goes on from there.
    ///
    /// ```
    /// use pagekeeper_store::{Durability, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// let store = Store::options().journal_bytes(1 << 20).open(dir)?;
    /// let mut txn = store.begin()?;
    /// let pages: Vec<_> = (0..100).map(|_| txn.allocate()).collect::<Result<_, _>>()?;
    /// txn.commit(Durability::Sync)?;
    /// let mut txn = store.begin()?;
    /// for page in &pages[10..] {
    ///     txn.free(*page)?;
    /// }
    /// txn.commit(Durability::Sync)?;
    ///
    /// let compaction = store.compact()?;
    /// assert_eq!((compaction.pages_before, compaction.pages), (100, 10));
    /// assert_eq!(dir.join("data").metadata()?.len(), 10 * 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact(&self) -> Result<Compaction, Error> {
        self.core.process.require()?;
        self.core.compact()
    }

    /// Pages with their headers, and what is wrong with those that are damaged: for tools that show a store to people. All of them are in
    /// memory together, so ask for some thousands at a time.
    ///
    /// Fails with [`Error::OutOfRange`], and where the data file can't be opened.
    pub fn inspect(&self, pages: Range<PageNo>) -> Result<Vec<PageInfo>, Error> {
        self.core.process.require()?;
        self.core.inspect(pages)
    }

    /// The free list, followed from its head.
    pub fn free_list(&self) -> Result<FreeList, Error> {
        self.core.process.require()?;
        self.core.free_list()
    }

    /// The two superblocks as the device has them; `None` for one that is not whole.
    pub fn superblocks(&self) -> Result<[Option<SuperblockInfo>; 2], Error> {
        self.core.process.require()?;
        self.core.superblock_infos()
    }

    /// Figures as they are now; zeros, but for what never changes, in a forked child.
    pub fn stat(&self) -> StoreStat {
        self.core.stat()
    }

    /// Makes all commits durable and closes the store. The data file's sync is left to the next opening, so that this takes no
    /// longer than the journal does. Dropping the store does the same, but can't report an error.
    ///
    /// Of a store that was in order when it was opened, and to which nothing was committed, at most the note of what is resident is
    /// written ([`StoreOptions::warm`]), and that only if pages are resident that were not noted, or others than were noted
    /// after a minute.
    ///
    /// Fails as well where the journal can't note that it was closed ([`Error::Journal`]): no commit is lost by that; the next
    /// opening goes on as after a crash.
    pub fn close(mut self) -> Result<(), Error> {
        self.finish()?;
        self.end()
    }

    /// As [`close`](Self::close), after all was applied to the data file and synced: the next opening has nothing to do.
    pub fn close_and_sync(mut self) -> Result<(), Error> {
        self.sync()?;
        self.finish()?;
        self.end()
    }

    /// Closes the journal, of a store that is finished.
    fn end(self) -> Result<(), Error> {
        let core = Arc::clone(&self.core);
        drop(self);
        // Only a thread that closes the store from a report of its own has another share; the journal is closed with that.
        Arc::into_inner(core).map_or(Ok(()), |core| Ok(core.journal.close()?))
    }

    /// Forgets all pages of the data file: they are read again.
    #[cfg(test)]
    pub(crate) fn drop_cached(&self) {
        let pages: Vec<_> = self.core.cached.resident().into_iter().flatten().collect();
        self.core.cached.discard_many(&pages);
    }

    fn finish(&mut self) -> Result<(), Error> {
        if let Err(error) = self.core.process.require() {
            // The parent has its threads and its socket, and what it has open is never dropped here.
            std::mem::forget((
                std::mem::take(&mut self.threads),
                self.backups.take(),
                Arc::clone(&self.core),
            ));
            return Err(error.into());
        }
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        self.backups = None;
        threads::stop(&self.core, std::mem::take(&mut self.threads));
        if self.core.config.options.is_read_only() {
            return Ok(());
        }
        self.core.make_durable(self.core.last_lsn())?;
        // Also of commits that were found, and none behind them: they are the last of a store that was closed.
        if !self.core.is_checkpointed() {
            self.core.journal.settle()?;
        }
        if self.core.config.options.warm {
            self.core.save_warm_set(self.opened.elapsed() < threads::WARM);
        }
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("directory", &self.core.config.directory).finish_non_exhaustive()
    }
}
