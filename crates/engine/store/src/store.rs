//! The store's public handle.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pagekeeper_policy::stream_pace::StreamPace;

use crate::core::Core;
use crate::handle::StoreHandle;
use crate::writer::BeginWrite;
use crate::{
    Backup, Compaction, Error, FreeList, PageInfo, PageNo, ReadTxn, StoreOptions, StoreStats, SuperblockInfo,
    Verification, WriteTxn, backup_socket, threads,
};

/// A store of pages: a data file with atomic commits of any number of pages, which opens at once
/// after a crash, however large it is.
///
/// There is one write transaction at a time, begun by [`begin_write`](Self::begin_write), and any
/// number of readers beside it, each with a snapshot. Writers that wait for durability do not block
/// the next one: all of them share one sync.
///
/// A commit goes to the journal. In the background, each checkpoint writes pages to the data file
/// in page order, with wide writes, and gives the journal up. After a crash, an opening reads only
/// the journal. Pages that it changes are rebuilt at their first use.
///
/// After a write or sync has failed, nothing is committed any more ([`Error::Poisoned`]). Opening
/// the store again shows what the disk has.
///
/// A store and its transactions belong to the process that opened it: in a forked child every call
/// fails with [`Forked`](pagekeeper_io::Error::Forked) and a drop does nothing.
///
/// ```
/// use pagekeeper_store::{Durability, Store};
///
/// # let temp = tempfile::tempdir_in(".")?;
/// # let dir = &temp.path().join("store");
/// let store = Store::options().memory(64 << 20).open(dir)?;
/// let mut txn = store.begin_write()?;
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
    /// Returns the options for making or opening a store.
    pub fn options() -> StoreOptions {
        StoreOptions::default()
    }

    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn start(core: Core) -> Result<Self, Error> {
        // More than half of the room beyond the commits' limit is used.
        let read_only = core.config.options.is_read_only();
        if !read_only
            && core.bytes_to_recover()
                > core.config.max_journal_bytes
                    + (core.journal.capacity() - core.config.max_journal_bytes) / 2
        {
            match core.run_checkpoint() {
                // The store opens nevertheless. A commit that finds no room gets the error.
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

    /// Begins a write transaction. Waits until the previous one is committed or dropped, and while
    /// the journal is full.
    ///
    /// Fails with [`Error::OwnTransaction`] if this thread began the previous one by this function
    /// or one of its variants with a timeout: it would wait for itself.
    pub fn begin_write(&self) -> Result<WriteTxn<'_>, Error> {
        WriteTxn::new(StoreHandle::Borrowed(&self.core), BeginWrite::within(true, None))
    }

    /// Like [`begin_write`](Self::begin_write), but fails with [`Error::WriteTimeout`] if it would
    /// wait for another transaction or a thread. If the journal is full, a store
    /// [without threads](StoreOptions::without_threads) runs a checkpoint in this call, which takes
    /// as long as the disk does.
    pub fn try_begin_write(&self) -> Result<WriteTxn<'_>, Error> {
        self.begin_write_timeout(Duration::ZERO)
    }

    /// Like [`begin_write`](Self::begin_write), but fails with [`Error::WriteTimeout`] if it would
    /// wait for longer than `timeout`, whoever has the previous transaction. If the journal is
    /// full, a store [without threads](StoreOptions::without_threads) runs a checkpoint in this
    /// call, and the timeout does not limit it.
    ///
    /// A timeout past the end of the clock, such as [`Duration::MAX`], is not a limit: the call is
    /// then [`begin_write`](Self::begin_write), and can fail with [`Error::OwnTransaction`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use pagekeeper_store::{Error, Store};
    ///
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().journal_bytes(1 << 20).open(temp.path().join("store"))?;
    /// let open = store.begin_write()?;
    /// assert!(matches!(store.try_begin_write(), Err(Error::WriteTimeout)));
    /// assert!(matches!(store.begin_write(), Err(Error::OwnTransaction)));
    /// drop(open);
    /// store.begin_write_timeout(Duration::from_secs(1))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_write_timeout(&self, timeout: Duration) -> Result<WriteTxn<'_>, Error> {
        WriteTxn::new(StoreHandle::Borrowed(&self.core), BeginWrite::within(true, Some(timeout)))
    }

    /// Begins to read the visible commit. Does not wait.
    pub fn begin_read(&self) -> Result<ReadTxn<'_>, Error> {
        self.core.process.require()?;
        Ok(ReadTxn::new(StoreHandle::Borrowed(&self.core)))
    }

    /// Like [`begin_write`](Self::begin_write), with a transaction that shares ownership of the
    /// store. It can be kept in a struct, or moved into a task or thread that outlives the caller.
    /// Whoever drops the last owner closes the store, which may take a sync.
    ///
    /// Waits for a previous transaction that this function began, even on this thread, since
    /// another thread may end that one. Fails with [`Error::OwnTransaction`] if this thread began
    /// the previous one by [`begin_write`](Self::begin_write) or one of its variants with a
    /// timeout.
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
    /// let mut session = Session { txn: store.begin_write_owned()? };
    /// let page = session.txn.allocate()?;
    /// let committed = std::thread::spawn(move || session.txn.commit(Durability::Sync));
    /// committed.join().expect("no panic")?;
    /// assert_eq!(store.begin_read_owned()?.read(page)?[0], 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin_write_owned(self: &Arc<Self>) -> Result<WriteTxn<'static>, Error> {
        WriteTxn::new(StoreHandle::Shared(Arc::clone(self)), BeginWrite::within(false, None))
    }

    /// Like [`begin_write_owned`](Self::begin_write_owned), but fails with [`Error::WriteTimeout`]
    /// if it would wait for longer than `timeout`. The timeout is that of
    /// [`begin_write_timeout`](Self::begin_write_timeout).
    pub fn begin_write_owned_timeout(
        self: &Arc<Self>,
        timeout: Duration,
    ) -> Result<WriteTxn<'static>, Error> {
        WriteTxn::new(StoreHandle::Shared(Arc::clone(self)), BeginWrite::within(false, Some(timeout)))
    }

    /// Begins an owned transaction that the caller ends on this thread, for the C interface.
    /// Without a timeout it fails as [`begin_write`](Self::begin_write) does.
    #[doc(hidden)]
    pub fn begin_write_here(self: &Arc<Self>, timeout: Option<Duration>) -> Result<WriteTxn<'static>, Error> {
        WriteTxn::new(StoreHandle::Shared(Arc::clone(self)), BeginWrite::within(true, timeout))
    }

    /// Like [`begin_read`](Self::begin_read), with a transaction that shares ownership of the
    /// store. It can be kept in a struct, or moved into a task or thread that outlives the caller.
    /// Whoever drops the last owner closes the store, which may take a sync.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use pagekeeper_store::{Durability, ReadTxn, Store};
    ///
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// let store = Arc::new(Store::options().open(dir)?);
    /// let mut txn = store.begin_write()?;
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
        Ok(ReadTxn::new(StoreHandle::Shared(Arc::clone(self))))
    }

    /// Begins to load all given pages that are not in memory, and waits for none. Use it before a
    /// transaction, so that the writer's lock is not held while the disk is busy. Invalid page
    /// numbers are skipped.
    ///
    /// ```
    /// # use pagekeeper_store::{Durability, Error, PageNo, Seq, Store};
    /// fn transfer(store: &Store, from: PageNo, to: PageNo) -> Result<Seq, Error> {
    ///     store.prefetch([from, to]); // both loads are in progress
    ///     let mut txn = store.begin_write()?;
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
        for page in pages.into_iter().filter(|page| page.get() < end && !self.core.index.has(*page)) {
            self.core.cached.prefetch(page.offset(bytes)..(page + 1).offset(bytes));
        }
    }

    /// Returns the bytes of a page.
    pub fn page_size(&self) -> usize {
        self.core.config.page_size
    }

    /// Returns the bytes of a page that belong to the user.
    pub fn payload_size(&self) -> usize {
        self.core.payload_size()
    }

    /// Returns when all earlier commits are durable in the data file, and the journal is given up
    /// to there.
    pub fn sync(&self) -> Result<(), Error> {
        self.core.process.require()?;
        self.core.sync()
    }

    /// Runs one checkpoint, for a store [without threads](StoreOptions::without_threads). Returns
    /// false if there was nothing to do.
    pub fn step(&self) -> Result<bool, Error> {
        self.core.process.require()?;
        self.core.run_checkpoint()
    }

    /// Verifies every page, the free list and the superblocks, while the store stays in use.
    pub fn verify(&self) -> Result<Verification, Error> {
        self.core.process.require()?;
        self.core.verify()
    }

    /// Copies the store as of one commit while it stays in use: no commit waits for it. Each page
    /// is read past the page cache, and checked against its own checksum and the page map's. Reads
    /// and writes go in pieces, with pauses while others wait for the disk. `to` is created. When
    /// this returns, `to` is durably a store like this one, with the same id: it opens as of that
    /// commit, with nothing to recover.
    ///
    /// Takes a few MiB beside the budget, and about 16 bytes for each page that changes meanwhile.
    /// One backup runs at a time; others wait for it.
    ///
    /// Fails with [`Error::Exists`] if `to` exists, even as a link; with [`Error::Damaged`] if a
    /// page is damaged; with [`Error::SnapshotTooOld`] if pages change faster than they can be
    /// copied. Pages copied until then are removed. If the process ends before this returns, `to`
    /// is missing, or is a store that was never finished ([`Error::Unfinished`]).
    ///
    /// ```
    /// use pagekeeper_store::{Durability, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let (dir, copy) = (temp.path().join("store"), temp.path().join("copy"));
    /// let store = Store::options().journal_bytes(1 << 20).open(&dir)?;
    /// let mut txn = store.begin_write()?;
    /// let page = txn.allocate()?;
    /// let seq = txn.commit(Durability::Sync)?;
    /// assert_eq!(store.backup(&copy)?.seq, seq);
    /// assert_eq!(Store::options().open(&copy)?.stats().seq, seq);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<Backup, Error> {
        self.backup_paced(to, StreamPace::Auto)
    }

    /// Like [`Self::backup`], at this pace; `backup` uses [`StreamPace::Auto`]. A rate limits reads
    /// and writes together.
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
    pub fn backup_paced(&self, to: impl AsRef<Path>, pace: StreamPace) -> Result<Backup, Error> {
        self.core.process.require()?;
        self.core.backup(to.as_ref(), pace)
    }

    /// Has the process that has the store in `directory` open make a [backup](Self::backup), if it
    /// [serves](StoreOptions::serve_backups) them. The backup is made with that process's
    /// permissions, not the caller's. The caller must be the same user, or root.
    ///
    /// Then opens `to` and checks that it is a backup of this store, as of the reported commit, and
    /// each page as [`verify`](Self::verify) does. So the caller must be able to read it. `bytes`
    /// are those of its written pages, `took` is the time until it was checked, and `snapshots` is
    /// what that process reports.
    ///
    /// Fails with:
    ///
    /// - [`Error::NoBackupsServed`] if no process serves backups there, for example because none
    ///   has the store open: then open it read-only, and back it up;
    /// - [`Error::Exists`] if `to` exists;
    /// - [`Error::BackupRefused`] if that process could not make the backup;
    /// - [`Error::BackupNotConfirmed`] if it reports a backup and `to` is none: it may see another
    ///   directory under that name.
    ///
    /// ```
    /// use pagekeeper_store::Store;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let (dir, copy) = (temp.path().join("store"), temp.path().join("copy"));
    /// let _store = Store::options().serve_backups(true).open(&dir)?; // elsewhere
    /// assert_eq!(Store::request_backup(&dir, &copy)?.seq.get(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn request_backup(directory: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Backup, Error> {
        Self::request_backup_paced(directory, to, StreamPace::Auto)
    }

    /// Like [`Self::request_backup`], at this pace.
    pub fn request_backup_paced(
        directory: impl AsRef<Path>,
        to: impl AsRef<Path>,
        pace: StreamPace,
    ) -> Result<Backup, Error> {
        backup_socket::request_backup(directory.as_ref(), to.as_ref(), pace)
    }

    /// Shrinks the data file while the store stays in use. Free pages at its end are cut off, and
    /// the space of other free pages goes back to the file system, where at least 64 KiB of them
    /// are consecutive. No page moves, since its number is yours. To shrink the file further, write
    /// the pages at the end to lower ones (which [`allocate`](WriteTxn::allocate) returns first
    /// after this), free them, and compact again.
    ///
    /// Waits for the write transaction and blocks others, for two checkpoints and as long as the
    /// file system takes. Readers continue. A free page whose space was given back reads as never
    /// written ([`Error::NeverWritten`]).
    ///
    /// Fails with [`Error::TransactionTooLarge`] if the free list has more trunks than the journal
    /// takes in one commit (each lists about 500 pages), with [`Error::Damaged`] if it is damaged,
    /// with [`Error::OwnTransaction`] as [`begin_write`](Self::begin_write) does, and as commits
    /// and checkpoints do. Completed steps stay, and the next call continues from there.
    ///
    /// ```
    /// use pagekeeper_store::{Durability, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// let store = Store::options().journal_bytes(1 << 20).open(dir)?;
    /// let mut txn = store.begin_write()?;
    /// let pages: Vec<_> = (0..100).map(|_| txn.allocate()).collect::<Result<_, _>>()?;
    /// txn.commit(Durability::Sync)?;
    /// let mut txn = store.begin_write()?;
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

    /// Returns pages with their headers, and what is wrong with damaged ones: for tools that show a
    /// store to people. All of them are in memory together, so ask for a few thousand at a time.
    ///
    /// Fails with [`Error::OutOfRange`], and if the data file cannot be opened.
    pub fn inspect(&self, pages: Range<PageNo>) -> Result<Vec<PageInfo>, Error> {
        self.core.process.require()?;
        self.core.inspect(pages)
    }

    /// Returns the free list, followed from its head.
    pub fn free_list(&self) -> Result<FreeList, Error> {
        self.core.process.require()?;
        self.core.free_list()
    }

    /// Returns the two superblocks as the device has them; `None` for a corrupt one.
    pub fn superblocks(&self) -> Result<[Option<SuperblockInfo>; 2], Error> {
        self.core.process.require()?;
        self.core.superblock_infos()
    }

    /// Returns the current statistics. In a forked child they are zeros, except for values that
    /// never change.
    pub fn stats(&self) -> StoreStats {
        self.core.stats()
    }

    /// Makes all commits durable and closes the store. The data file's sync is left to the next
    /// opening, so this takes no longer than the journal does. Dropping the store does the same,
    /// but cannot report an error.
    ///
    /// A store that was in order when it was opened, and got no commit, writes at most the list of
    /// resident pages ([`StoreOptions::warm`]). After less than a minute, it writes that only if
    /// pages are resident that the list lacks; later, if the list differs at all.
    ///
    /// Also fails if the journal cannot record that it was closed ([`Error::Journal`]). No commit
    /// is lost then; the next opening recovers as after a crash.
    pub fn close(mut self) -> Result<(), Error> {
        self.finish()?;
        self.end()
    }

    /// Like [`close`](Self::close), after everything was applied to the data file and synced: the
    /// next opening has nothing to do.
    pub fn close_and_sync(self) -> Result<(), Error> {
        self.sync()?;
        self.close()
    }

    /// Closes the journal of a finished store.
    fn end(self) -> Result<(), Error> {
        let core = Arc::clone(&self.core);
        drop(self);
        // Only a thread that closes the store from its own progress report leaves another owner;
        // the journal is closed with that.
        Arc::into_inner(core).map_or(Ok(()), |core| Ok(core.journal.close()?))
    }

    /// Drops all pages of the data file from the cache, so that they are read again.
    #[cfg(test)]
    pub(crate) fn drop_cached(&self) {
        let pages: Vec<_> = self.core.cached.resident().into_iter().flat_map(PageNo::each).collect();
        self.core.cached.discard_many(&pages);
    }

    fn finish(&mut self) -> Result<(), Error> {
        if let Err(error) = self.core.process.require() {
            // The threads and the socket belong to the parent, and its open files are never dropped
            // here.
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
        // Also for recovered commits without a later one: they are the last commits of a closed
        // store.
        if !self.core.is_checkpointed() {
            self.core.journal.settle()?;
        }
        if self.core.config.options.warm {
            self.core.save_warm_set(self.opened.elapsed() < threads::WARM_SAVE_INTERVAL);
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
