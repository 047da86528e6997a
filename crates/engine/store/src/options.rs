//! The options of a store.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pagekeeper_io::{Io, IoFile, Uring};
use pagekeeper_kernel::file_system_id;
use pagekeeper_policy::DiskProfile;

use crate::data::FileUse;
use crate::format::superblock::{self, MAX_JOURNAL_BYTES, MIN_JOURNAL_BYTES};
use crate::{Error, Progress, depth};

/// The conditions for making a store when opening it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Create {
    /// Makes a store if there is none.
    #[default]
    IfMissing,
    /// Makes no store: a missing one is [`Error::NoStore`].
    Never,
    /// Makes a store, which must not exist yet: otherwise [`Error::NotEmpty`].
    New,
}

/// The form in which the first change of a page after each checkpoint start is journaled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum FullPageImages {
    /// As the full page, unless the file system writes pages atomically (`STATX_WRITE_ATOMIC`,
    /// Linux 6.11, and a successful test write).
    #[default]
    Auto,
    /// As the full page.
    Always,
}

/// Called with the remaining work.
pub(crate) type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;

/// Options for making and opening a [`Store`](crate::Store), as returned by
/// [`Store::options`](crate::Store::options).
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each says something of its own")]
pub struct StoreOptions {
    pub(crate) page_size: Option<usize>,
    pub(crate) memory: u64,
    pub(crate) journal_bytes: Option<u64>,
    pub(crate) snapshot_bytes: u64,
    pub(crate) create: Create,
    /// The access to the files of an existing store.
    pub(crate) files: FileUse,
    pub(crate) full_page_images: FullPageImages,
    pub(crate) group_delay: Duration,
    pub(crate) io: Option<Arc<dyn Io>>,
    pub(crate) threads: bool,
    pub(crate) background_apply: bool,
    pub(crate) warm: bool,
    pub(crate) serve_backups: bool,
    pub(crate) on_progress: Option<OnProgress>,
    pub(crate) disk: Option<DiskProfile>,
    #[cfg(test)]
    pub(crate) injected_fault: Option<crate::injected_fault::InjectedFault>,
    /// Bytes of the journal that an opening keeps in memory, instead of a share of the budget.
    #[cfg(test)]
    pub(crate) held_journal_bytes: Option<u64>,
    /// The journal's write mode: a simulated disk is not probed for the best one.
    #[cfg(test)]
    pub(crate) journal_mode: pagekeeper_wal::LogMode,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            page_size: None,
            memory: 256 << 20,
            journal_bytes: None,
            snapshot_bytes: 4 << 30,
            create: Create::default(),
            files: FileUse::Write,
            full_page_images: FullPageImages::default(),
            group_delay: Duration::from_millis(2),
            io: None,
            threads: true,
            background_apply: true,
            warm: true,
            serve_backups: false,
            on_progress: None,
            disk: None,
            #[cfg(test)]
            injected_fault: None,
            #[cfg(test)]
            held_journal_bytes: None,
            #[cfg(test)]
            journal_mode: pagekeeper_wal::LogMode::Auto,
        }
    }
}

/// The smallest page size in bytes, and the default.
pub(crate) const PAGE_SIZE_MIN: usize = superblock::MIN_PAGE_BYTES as usize;
const PAGE_SIZE_MAX: usize = superblock::MAX_PAGE_BYTES as usize;
/// The smallest budget, in bytes.
const MIN_MEMORY: u64 = 1 << 20;

impl StoreOptions {
    /// Sets the page size in bytes: a power of two from 4096 to 65536; 4096 by default. For an
    /// existing store, it must be the size that the store was made with, if it is set.
    #[must_use]
    pub fn page_size(mut self, bytes: usize) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// Sets the memory budget in bytes, at least 1 MiB; 256 MiB by default.
    ///
    /// It covers cached pages, pages that are committed but not yet applied, and the log buffer. It
    /// does not cover:
    ///
    /// - the pages of open transactions;
    /// - up to 80 MiB for reading a long journal during an opening;
    /// - up to 16 MiB for reading in a backup or verification;
    /// - the pages of the data file that an inspection returns.
    ///
    /// Memory is allocated as it is needed: a store that was just opened has a few MiB resident.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets the maximum bytes of the journal that are not in the data file, 64 KiB to 1 TiB. It
    /// bounds the time to open after a crash; commits wait rather than exceed it. By default, a new
    /// store has 256 MiB, and an existing one keeps its limit.
    ///
    /// An existing store with another limit gets a new journal when it is opened for writing.
    /// Recovered changes are applied to the data file first, and a crash leaves one journal or the
    /// other. If the device has no room for the new journal, the store opens with its old one, as
    /// [`StoreStats::max_journal_bytes`](crate::StoreStats::max_journal_bytes) shows.
    ///
    /// ```
    /// use pagekeeper_store::Store;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// Store::options().journal_bytes(1 << 20).open(dir)?.close()?;
    /// assert_eq!(Store::options().open(dir)?.stats().max_journal_bytes, 1 << 20);
    /// assert_eq!(Store::options().journal_bytes(4 << 20).open(dir)?.stats().max_journal_bytes, 4 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn journal_bytes(mut self, bytes: u64) -> Self {
        self.journal_bytes = Some(bytes);
        self
    }

    /// Sets the maximum bytes of old versions of pages on disk; 4 GiB by default. Snapshots that
    /// are read for long need them while others commit.
    ///
    /// They take an eighth of the memory budget first. Then the oldest move to a file in the
    /// store's directory, which has no name and ends with the process. Each page there takes about
    /// 150 bytes of memory beside the budget. At the limit, or if the device is full, the oldest
    /// snapshot is ended ([`Error::SnapshotTooOld`]); all that need the file, if a checkpoint lacks
    /// its space.
    ///
    /// ```
    /// use pagekeeper_store::Store;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// let store = Store::options().snapshot_bytes(64 << 30).open(dir)?;
    /// let _kept = store.begin_read()?; // for hours
    /// assert_eq!(store.stats().snapshot_bytes, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn snapshot_bytes(mut self, bytes: u64) -> Self {
        self.snapshot_bytes = bytes;
        self
    }

    /// Returns the journal's limit for a new store.
    pub(crate) fn new_journal_bytes(&self) -> u64 {
        self.journal_bytes.unwrap_or(256 << 20)
    }

    /// Sets whether a missing store is made; by default it is.
    #[must_use]
    pub fn create(mut self, create: Create) -> Self {
        self.create = create;
        self
    }

    /// Opens an existing store read-only; off by default. Nothing is written then, and no file is
    /// created. So the store can be read on a read-only or full file system, and by users who may
    /// not write its files.
    ///
    /// Changes that are only in the journal are read into memory, as with each opening, but not
    /// applied. They take at most [`journal_bytes`](Self::journal_bytes) beside the budget. After a
    /// crash, the store is as the device has it at that time. Several processes may read the store
    /// at the same time. While it is open for writing, opening it read-only fails with
    /// [`pagekeeper_io::Error::Locked`], and the other way round. Calls that would change something
    /// fail with [`Error::ReadOnly`].
    ///
    /// ```
    /// use pagekeeper_store::{Durability, Error, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// let store = Store::options().open(dir)?;
    /// let mut txn = store.begin_write()?;
    /// let page = txn.allocate()?;
    /// txn.commit(Durability::Sync)?;
    /// drop(store);
    ///
    /// let store = Store::options().read_only(true).open(dir)?;
    /// assert_eq!(store.begin_read()?.read(page)?[0], 0);
    /// assert!(matches!(store.begin_write(), Err(Error::ReadOnly)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.files = if read_only { FileUse::Read } else { FileUse::Write };
        self
    }

    /// Sets whether full pages are journaled at their first change after each checkpoint start; by
    /// default, if the file system requires it.
    #[must_use]
    pub fn full_page_images(mut self, images: FullPageImages) -> Self {
        self.full_page_images = images;
        self
    }

    /// Sets how long a commit with [`Durability::Group`](crate::Durability::Group) waits for others
    /// at most; 2 ms by default.
    #[must_use]
    pub fn group_delay(mut self, delay: Duration) -> Self {
        self.group_delay = delay;
        self
    }

    /// Sets the disk; [`pagekeeper_io::best`] by default.
    #[must_use]
    pub fn io(mut self, io: Arc<dyn Io>) -> Self {
        self.io = Some(io);
        self
    }

    /// Leaves all background work to the callers ([`Store::step`](crate::Store::step)), so that its
    /// order is repeatable: for tests, and for engines with their own event loop.
    #[must_use]
    pub fn without_threads(mut self) -> Self {
        self.threads = false;
        self
    }

    /// Sets whether committed pages are applied in the background before the journal's limit
    /// requires it; on by default.
    #[must_use]
    pub fn background_apply(mut self, apply: bool) -> Self {
        self.background_apply = apply;
        self
    }

    /// Sets whether the store remembers which pages were resident, so that its background thread
    /// loads them again after an opening; on by default.
    #[must_use]
    pub fn warm(mut self, warm: bool) -> Self {
        self.warm = warm;
        self
    }

    /// Sets whether other processes of this user, or of root, can have this process make backups
    /// while it has the store open: with `pagekeeper store backup`, or
    /// [`Store::request_backup`](crate::Store::request_backup). Off by default.
    ///
    /// A separate thread waits for requests at a socket in the store's directory (`backup.sock`,
    /// see unix(7)). It makes backups with this process's permissions, one at a time; the caller
    /// then checks its backup. Closing the store waits for a backup that is being made. Opening
    /// fails if the socket cannot be created. A read-only store serves no backups.
    #[must_use]
    pub fn serve_backups(mut self, serve: bool) -> Self {
        self.serve_backups = serve;
        self
    }

    /// Sets the disk's profile, as measured by `pagekeeper probe`
    /// (`pagekeeper_catalog::disks::saved`). The number of writes in flight then follows the disk's
    /// width from the start: twice the width in a recovery, half of it (16 to 256) beside commits.
    /// Without a profile, a recovery finds it out.
    ///
    /// If the profile says that the disk has no atomic writes, a new store does not test for them.
    /// If it says that it has, they are tested all the same. A profile of another file system, by
    /// its id, is not used.
    ///
    /// ```
    /// use pagekeeper_policy::{DepthProfile, DiskProfile};
    /// use pagekeeper_store::Store;
    ///
    /// let directory = tempfile::tempdir_in("/var/tmp")?;
    /// let read = |depth, per_second| DepthProfile { depth, per_second, p50_us: 2000.0, p99_us: 2100.0 };
    /// let disk = DiskProfile {
    ///     // As `pagekeeper probe` has it: `pagekeeper_catalog::disks::saved(directory)`, or `read(file)`.
    ///     file_system_id: pagekeeper_kernel::file_system_id(directory.path())?.unwrap_or_default(),
    ///     reads: vec![read(1, 500.0), read(64, 30_000.0), read(256, 31_000.0)],
    ///     ..DiskProfile::default()
    /// };
    /// let store = Store::options().disk(&disk).open(directory.path().join("store"))?; // 128 in flight in a recovery
    /// # drop(store);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn disk(mut self, disk: &DiskProfile) -> Self {
        self.disk = Some(disk.clone());
        self
    }

    /// Sets a function that is called now and then while pages found in the journal at the opening
    /// are applied, and once when none are left. It runs on a thread of its own or, in a store
    /// without threads, in the call that applied them. It may call the store.
    #[must_use]
    pub fn on_progress(mut self, report: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(Arc::new(report));
        self
    }

    /// Whether a store may be made.
    pub(crate) fn may_create(&self) -> bool {
        self.create != Create::Never && !self.is_read_only()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.files == FileUse::Read
    }

    pub(crate) fn io_or_best(&self) -> Arc<dyn Io> {
        self.io.clone().unwrap_or_else(|| {
            // Deep enough for the widest disks.
            let depth = u32::try_from(depth::DEPTH_MAX).unwrap_or_else(|_| unreachable!("it is 1024"));
            Uring::with_depth(depth).map_or_else(|_| pagekeeper_io::best(), |uring| Arc::new(uring))
        })
    }

    /// Returns the profile if its file system is that of the store's directory and of its file. A
    /// simulated disk always counts as the same.
    pub(crate) fn disk_of(&self, directory: &Path, file: &dyn IoFile) -> Option<DiskProfile> {
        let is_the_same = |disk: &&DiskProfile| {
            file.fd().is_none()
                || matches!(file_system_id(directory), Ok(Some(id)) if id == disk.file_system_id)
        };
        self.disk.as_ref().filter(is_the_same).cloned()
    }

    /// Checks that a store can work with these settings.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let setting = |what, given, wanted| Err(Error::Setting { what, given, wanted });
        if let Some(size) = self.page_size
            && (!size.is_power_of_two() || !(PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&size))
        {
            return setting("a page size", size as u64, "give a power of two from 4096 to 65536");
        }
        if self.memory < MIN_MEMORY {
            return setting("a memory budget", self.memory, "give 1048576 bytes or more");
        }
        if let Some(bytes) = self.journal_bytes
            && !(MIN_JOURNAL_BYTES..=MAX_JOURNAL_BYTES).contains(&bytes)
        {
            return setting("a journal", bytes, "give 65536 bytes or more, up to 1 TiB");
        }
        Ok(())
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOptions")
            .field("page_size", &self.page_size)
            .field("memory", &self.memory)
            .field("journal_bytes", &self.journal_bytes)
            .field("snapshot_bytes", &self.snapshot_bytes)
            .field("create", &self.create)
            .field("files", &self.files)
            .field("full_page_images", &self.full_page_images)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use pagekeeper_io::{Access, Create as CreateFile};
    use pagekeeper_simdisk::SimDisk;

    use super::*;

    #[test]
    fn a_profile_of_another_file_system_is_not_used() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let file = pagekeeper_io::best()
            .open_writable(&dir.path().join("data"), Access::Buffered, CreateFile::New)
            .unwrap();
        let simulated =
            SimDisk::new().open_writable("/data".as_ref(), Access::Buffered, CreateFile::New).unwrap();
        let foreign = DiskProfile { file_system_id: "0123456789abcdef".to_owned(), ..DiskProfile::default() };
        let options = StoreOptions::default().disk(&foreign);
        assert_eq!(options.disk_of(dir.path(), &*file), None);
        assert_eq!(options.disk_of("/".as_ref(), &*simulated), Some(foreign));
        if let Some(file_system_id) = file_system_id(dir.path()).unwrap() {
            let own = DiskProfile { file_system_id, ..DiskProfile::default() };
            assert_eq!(StoreOptions::default().disk(&own).disk_of(dir.path(), &*file), Some(own));
        }
        assert_eq!(StoreOptions::default().disk_of(dir.path(), &*file), None);
    }
}
