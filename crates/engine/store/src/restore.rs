//! Restoring: makes a store from a backup.
//!
//! Invariant: the backup is only read. It is copied in the same way as [`crate::backup`] copies an
//! open store.

use std::path::Path;
use std::time::Instant;

use pagekeeper_policy::stream_pace::StreamPace;

use crate::options::{Create, StoreOptions};
use crate::{Backup, Error};

impl StoreOptions {
    /// Makes a store from a backup in `to`, a directory that this call creates. Each page is
    /// checked as it is read. When this returns, `to` is durably a store, as of the backup's
    /// commit.
    ///
    /// Fails with [`Error::Damaged`] if a page of the backup is damaged, with [`Error::Exists`] if
    /// `to` exists, and as opening a store read-only does. Pages copied until then are removed. If
    /// the process ends before this returns, `to` is missing, or is a store that was never finished
    /// ([`Error::Unfinished`]).
    ///
    /// ```
    /// use pagekeeper_store::{Durability, Store};
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let at = |name: &str| temp.path().join(name);
    /// let store = Store::options().journal_bytes(1 << 20).open(at("store"))?;
    /// let mut txn = store.begin_write()?;
    /// let page = txn.allocate()?;
    /// txn.commit(Durability::Sync)?;
    /// store.backup(at("sunday"))?;
    ///
    /// Store::options().restore(at("sunday"), at("again"))?;
    /// assert_eq!(Store::options().open(at("again"))?.begin_read()?.read(page)?[0], 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restore(&self, backup: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Backup, Error> {
        let began = Instant::now();
        let source = self.clone().read_only(true).create(Create::Never).open(backup)?;
        let made = source.core().backup(to.as_ref(), StreamPace::Off)?;
        Ok(Backup { took: began.elapsed(), ..made })
    }
}
