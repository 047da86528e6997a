//! What a store is to be like.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pagekeeper_io::{Io, IoFile, Uring};
use pagekeeper_kernel::file_system_id;
use pagekeeper_policy::DiskProfile;

use crate::data::Use;
use crate::format::superblock::{MAX_JOURNAL_BYTES, MIN_JOURNAL_BYTES};
use crate::{Error, Progress, depth};

/// Whether opening makes a store that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Create {
    /// If there is none.
    #[default]
    IfMissing,
    /// No: [`Error::NoStore`].
    Never,
    /// Yes, and it must not be there yet: [`Error::NotEmpty`].
    New,
}

/// What the journal gets at the first change of a page after each checkpoint start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FullPageImages {
    /// The whole page, unless the file system writes pages atomically (`STATX_WRITE_ATOMIC`, Linux 6.11, and a write that works).
    #[default]
    Auto,
    /// The whole page.
    Always,
}

/// Called with what is left to apply.
pub(crate) type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;

/// How a [`Store`](crate::Store) is made and opened; from [`Store::options`](crate::Store::options).
#[derive(Clone)]
#[allow(clippy::struct_excessive_bools, reason = "each says something of its own")]
pub struct StoreOptions {
    pub(crate) page_size: Option<usize>,
    pub(crate) memory: u64,
    pub(crate) journal_bytes: Option<u64>,
    pub(crate) create: Create,
    /// What the files of a store that is there are opened for.
    pub(crate) files: Use,
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
    /// How much of the journal an opening keeps in memory, in place of a share of it.
    #[cfg(test)]
    pub(crate) held_journal_bytes: Option<u64>,
    /// How the journal is written: a simulated disk is not asked what is best.
    #[cfg(test)]
    pub(crate) journal_mode: pagekeeper_log::LogMode,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            page_size: None,
            memory: 256 << 20,
            journal_bytes: None,
            create: Create::default(),
            files: Use::Write,
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
            journal_mode: pagekeeper_log::LogMode::Auto,
        }
    }
}

/// The smallest page, in bytes, and what is taken if nothing is said.
pub(crate) const MIN_PAGE_BYTES: usize = 4096;
const MAX_PAGE_BYTES: usize = 65536;
/// The least memory, in bytes.
const MIN_MEMORY: u64 = 1 << 20;

impl StoreOptions {
    /// Bytes of a page: a power of two from 4096 to 65536; 4096 if not said. Of a store that is there it must be what the store
    /// was made with, if it is said.
    #[must_use]
    pub fn page_size(mut self, bytes: usize) -> Self {
        self.page_size = Some(bytes);
        self
    }

    /// The budget in bytes, 1 MiB or more; 256 MiB if not said. Cached pages, pages that are committed and not yet applied, and
    /// the log buffer are within it; the pages of transactions that are open are not, nor are up to 80 MiB that an opening reads a long journal
    /// through, up to 16 MiB that a backup or a verification reads through, and the pages of the data file that an inspection was asked for. It
    /// is taken as it is needed: of a store that was just opened a few MiB are resident.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// The maximum of journal bytes that the data file does not have, 64 KiB to 1 TiB. It bounds the time to open after a crash, and
    /// commits wait rather than exceed it. If not said, a store that is made has 256 MiB, and one that is there keeps what it has.
    ///
    /// A store that is there and has another limit gets a journal of this one when it is opened to write: what was recovered is applied
    /// to the data file first, and a crash leaves the one journal or the other. Where the device has no room for it the store opens with
    /// the journal that it has, which [`StoreStat::max_journal_bytes`](crate::StoreStat::max_journal_bytes) says.
    ///
    /// ```
    /// use pagekeeper_store::Store;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// Store::options().journal_bytes(1 << 20).open(dir)?.close()?;
    /// assert_eq!(Store::options().open(dir)?.stat().max_journal_bytes, 1 << 20);
    /// assert_eq!(Store::options().journal_bytes(4 << 20).open(dir)?.stat().max_journal_bytes, 4 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn journal_bytes(mut self, bytes: u64) -> Self {
        self.journal_bytes = Some(bytes);
        self
    }

    /// The journal's limit of a store that is made.
    pub(crate) fn new_journal_bytes(&self) -> u64 {
        self.journal_bytes.unwrap_or(256 << 20)
    }

    /// Whether a store is made where there is none; it is, if not said.
    #[must_use]
    pub fn create(mut self, create: Create) -> Self {
        self.create = create;
        self
    }

    /// Opens a store that is there to read only; not, if not said. Not one byte is written then, and no file made, so that it can also be
    /// read on a read-only or full file system, and by who may not write its files.
    ///
    /// What the journal has that the data file has not is found in memory, as after each opening, and is not applied: that is
    /// at most [`journal_bytes`](Self::journal_bytes) beside the budget. What a crash left is as the device has it at the time.
    /// Others may read the store at the same time; while it is open to write, this fails with
    /// [`pagekeeper_io::Error::Locked`], and the other way round. What would change something fails with [`Error::ReadOnly`].
    ///
    /// ```
    /// use pagekeeper_store::{Durability, Error, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// let store = Store::options().open(dir)?;
    /// let mut txn = store.begin()?;
    /// let page = txn.allocate()?;
    /// txn.commit(Durability::Sync)?;
    /// drop(store);
    ///
    /// let store = Store::options().read_only(true).open(dir)?;
    /// assert_eq!(store.begin_read()?.read(page)?[0], 0);
    /// assert!(matches!(store.begin(), Err(Error::ReadOnly)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.files = if read_only { Use::Read } else { Use::Write };
        self
    }

    /// Whether pages are journaled as a whole at their first change after each checkpoint start; as the file system needs it, if not said.
    #[must_use]
    pub fn full_page_images(mut self, images: FullPageImages) -> Self {
        self.full_page_images = images;
        self
    }

    /// How long a commit with [`Durability::Group`](crate::Durability::Group) waits for others at most; 2 ms if not said.
    #[must_use]
    pub fn group_delay(mut self, delay: Duration) -> Self {
        self.group_delay = delay;
        self
    }

    /// The disk; [`pagekeeper_io::best`] if not said.
    #[must_use]
    pub fn io(mut self, io: Arc<dyn Io>) -> Self {
        self.io = Some(io);
        self
    }

    /// Leaves all work of the background to the callers ([`Store::step`](crate::Store::step)), so that it is done in an order that repeats: for
    /// tests, and for engines with a loop of their own.
    #[must_use]
    pub fn without_threads(mut self) -> Self {
        self.threads = false;
        self
    }

    /// Whether committed pages are applied in the background before the journal's limit asks for it; yes, if not said.
    #[must_use]
    pub fn background_apply(mut self, apply: bool) -> Self {
        self.background_apply = apply;
        self
    }

    /// Whether the store remembers which pages were resident, and its background thread brings them back after it was opened; yes, if
    /// not said.
    #[must_use]
    pub fn warm(mut self, warm: bool) -> Self {
        self.warm = warm;
        self
    }

    /// Whether other processes of this user, or of root, can have this one make backups while it has the store open: `pagekeeper store
    /// backup`, and [`Store::request_backup`](crate::Store::request_backup). No, if not said.
    ///
    /// A thread of its own waits for them at a socket in the store's directory (`backup.sock`, see unix(7)), and makes backups with this
    /// process's rights, one at a time; whoever asked for one then checks it. Closing the store waits for one that is being made. Opening fails where no socket can be made; a
    /// store that is opened to read only serves none.
    #[must_use]
    pub fn serve_backups(mut self, serve: bool) -> Self {
        self.serve_backups = serve;
        self
    }

    /// What `pagekeeper probe` measured of the disk (`pagekeeper_catalog::disks::saved`). How many writes are in flight then follows its width
    /// from the start, where otherwise a recovery finds that out: twice the width in a recovery, half of it (16 to 256) beside
    /// commits. Where nothing is atomic by the profile, a new store does not try it; that something is atomic is tried all the
    /// same. A profile of another file system, by its number, is not used.
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
    /// let store = Store::options().disk(&disk).open(&directory.path().join("store"))?; // 128 in flight in a recovery
    /// # drop(store);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn disk(mut self, disk: &DiskProfile) -> Self {
        self.disk = Some(disk.clone());
        self
    }

    /// Called now and then while pages that were found in the journal at the opening are applied, and once when none are
    /// left; on a thread of its own, or, in a store without threads, by the call that applied them. It may call the store.
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
        self.files == Use::Read
    }

    pub(crate) fn io_or_best(&self) -> Arc<dyn Io> {
        self.io.clone().unwrap_or_else(|| {
            // Deep enough for the widest disks.
            let depth = u32::try_from(depth::MAX).unwrap_or_else(|_| unreachable!("it is 1024"));
            Uring::with_depth(depth).map_or_else(|_| pagekeeper_io::best(), |uring| Arc::new(uring))
        })
    }

    /// The profile, if it is of the file system that the store's directory and its file are on. A simulated disk is believed
    /// to be the one.
    pub(crate) fn disk_of(&self, directory: &Path, file: &dyn IoFile) -> Option<DiskProfile> {
        let is_the_same = |disk: &&DiskProfile| {
            file.fd().is_none()
                || matches!(file_system_id(directory), Ok(Some(id)) if id == disk.file_system_id)
        };
        self.disk.as_ref().filter(is_the_same).cloned()
    }

    /// Whether a store can work with these settings.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let setting = |what, given, wanted| Err(Error::Setting { what, given, wanted });
        if let Some(size) = self.page_size
            && (!size.is_power_of_two() || !(MIN_PAGE_BYTES..=MAX_PAGE_BYTES).contains(&size))
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
            .field("create", &self.create)
            .field("files", &self.files)
            .field("full_page_images", &self.full_page_images)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use pagekeeper_io::{Access, Create as CreateFile, SimDisk};

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
