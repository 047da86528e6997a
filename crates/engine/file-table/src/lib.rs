//! [`FileTable`] keeps opened heavy objects (table readers, files) resident, each opened once
//! however many threads ask for it: `use pagekeeper_file_table::FileTable;`. The page cache keeps
//! its open files in one; an engine keeps its readers in another.
//!
//! Invariants:
//! 1. A hit takes no lock and waits for nobody: it is a lookup in a lock-free map and an upgrade of
//!    a weak reference.
//! 2. The lock-free map only finds values; `entries.rs` owns them. So a removed value is dropped
//!    with its last user, not when the map's memory is reclaimed: a deleted file must not keep its
//!    blocks until then.
//! 3. Every change of the set of keys goes through `entries.rs`, under one lock. The lock is never
//!    held while a value is opened, awaited, judged, cloned or dropped.
//!
//! `entries.rs` decides which caller opens, and `flight.rs` lets the others wait. `model.rs` checks
//! both.

use std::borrow::Borrow;
use std::cell::Cell;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, OnceLock, Weak};

use entries::{KeyEntries, ResidentIndex};

#[cfg(not(target_os = "linux"))]
compile_error!("pagekeeper-file-table needs Linux: its rules are about the Linux page cache");

mod entries;
mod flight;
#[cfg(test)]
mod model;
mod sync;
#[cfg(test)]
mod tests;

/// A table of opened objects by key, for objects that are costly to open and few enough to stay:
/// readers of SST files, segments, open files. **Nothing is evicted, on purpose**: a value stays
/// until it is removed or replaced. A cache that evicts objects is another crate: `quick_cache` or
/// `moka`.
///
/// `V` is returned by `clone`: use an `Arc`. `E` is the error of a failed open, shared by all
/// waiters. Keys are looked up in borrowed form, as in `HashMap`: a `FileTable<PathBuf, _, _>` by
/// `&Path`.
///
/// - Several callers of one absent key cause one call of one caller's opener. The others wait,
///   parked or pending, for its outcome; their own openers are not called. Blocking and awaiting
///   callers may wait for each other.
/// - A failed open reaches all waiters. The table keeps nothing of it: the next caller tries again.
/// - A panic of an opener reaches its own caller. A dropped future drops its opener. In both cases
///   the waiters try again, and one of them opens.
/// - A removal wins over a concurrent open: see [`remove`](Self::remove).
///
/// # Forks
/// A table belongs to the process that created it. In a forked child no call waits for a thread
/// that does not exist there. [`get`](Self::get) finds what the parent's table had, or nothing in a
/// thread that had not used a table before; an open is the caller's own, and the table does not keep
/// its value; removals do nothing. A future that waited before the fork must not be polled.
///
/// # Openers that open
/// No lock is held while an opener runs, so it may use the table and open other keys. It must not
/// ask for its own key. Such a call would wait for the opener that is running on the same thread,
/// by its call or its poll: it **panics**, since it would wait forever. This covers keys that ask
/// for each other on one thread (`a` opens `b`, which opens `a`). It does not cover threads that
/// wait for each other (one in `a` for `b`, one in `b` for `a`): let openers depend on each other
/// in one direction only.
///
/// Do not block in [`get_or_open`](Self::get_or_open) on the only thread that could poll the future
/// that opens the same key.
///
/// # Example
/// A table of SST readers:
/// ```
/// use std::fs::File;
/// use std::io;
/// use std::os::unix::fs::FileExt;
/// use std::path::{Path, PathBuf};
/// use std::sync::Arc;
///
/// use pagekeeper_file_table::FileTable;
///
/// /// Costly to open (here it only reads its footer), cheap to share.
/// struct SstReader {
///     file: File,
///     footer: [u8; 8],
/// }
///
/// impl SstReader {
///     fn open(path: &Path) -> io::Result<Self> {
///         let file = File::open(path)?;
///         let mut footer = [0; 8];
///         let at = file.metadata()?.len().checked_sub(8).ok_or(io::ErrorKind::UnexpectedEof)?;
///         file.read_exact_at(&mut footer, at)?;
///         Ok(Self { file, footer })
///     }
/// }
///
/// struct Readers(FileTable<PathBuf, Arc<SstReader>, io::Error>);
///
/// impl Readers {
///     /// Called by any number of threads; each file is opened once.
///     fn reader(&self, path: &Path) -> Result<Arc<SstReader>, Arc<io::Error>> {
///         self.0.get_or_open(path, || SstReader::open(path).map(Arc::new))
///     }
///
///     /// After a compaction. Those who still read keep their reader, and the last of them closes the file.
///     fn forget(&self, path: &Path) {
///         self.0.remove(path);
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// let readers = Readers(FileTable::new());
/// let path = directory.path().join("000042.sst");
/// assert_eq!(readers.reader(&path).err().unwrap().kind(), io::ErrorKind::NotFound);
///
/// std::fs::write(&path, b"blocks, index, 8 of it")?;
/// let reader = readers.reader(&path)?;
/// assert_eq!(&reader.footer, b", 8 of it".last_chunk().unwrap());
/// assert!(Arc::ptr_eq(&reader, &readers.reader(&path)?));
///
/// readers.forget(&path);
/// assert_eq!(reader.file.metadata()?.len(), 22);
/// # Ok(())
/// # }
/// ```
pub struct FileTable<K, V, E> {
    entries: KeyEntries<K, V, E, ResidentMap<K, V>>,
}

impl<K: Hash + Eq, V: Clone, E> FileTable<K, V, E> {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self { entries: KeyEntries::new(ResidentMap::new()) }
    }

    /// Returns the key's value if it is resident. Takes no lock, and does not wait for an open.
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entries.index.get(key).map(|value| V::clone(&value))
    }

    /// Returns the key's value. If it is absent, `open` creates it, or the call waits for another
    /// caller's opener.
    ///
    /// # Errors
    /// The opener's error, returned to all waiters. The next call opens again.
    ///
    /// # Panics
    /// If `open` panics (its waiters try again), or if the key's opener is running on this thread,
    /// see [above](Self#openers-that-open).
    pub fn get_or_open<Q>(&self, key: &Q, open: impl FnOnce() -> Result<V, E>) -> Result<V, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.get_or_open_if(key, |_| true, open)
    }

    /// Returns the key's value if `still_good` accepts it. Otherwise the value is removed and
    /// opened again, once for all callers.
    ///
    /// A rejected value leaves the table as soon as its replacement begins, whether that succeeds
    /// or not: [`get`](Self::get) does not find it, and callers of `get_or_open` wait for the new
    /// one. `still_good` judges each value that this caller did not open itself, including one for
    /// which it waited. It is called without a lock, and should be cheap.
    ///
    /// ```
    /// use pagekeeper_file_table::FileTable;
    ///
    /// let table = FileTable::<u64, &str, std::io::Error>::new();
    /// table.get_or_open(&7, || Ok("of yesterday"))?;
    /// let value = table.get_or_open_if(&7, |value| *value != "of yesterday", || Ok("of today"))?;
    /// assert_eq!((value, table.get(&7)), ("of today", Some("of today")));
    /// # Ok::<(), std::sync::Arc<std::io::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`get_or_open`](Self::get_or_open); the key is absent then.
    ///
    /// # Panics
    /// As [`get_or_open`](Self::get_or_open).
    pub fn get_or_open_if<Q>(
        &self,
        key: &Q,
        still_good: impl Fn(&V) -> bool,
        open: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let found = self.entries.index.get(key);
        if let Some(value) = &found
            && still_good(value)
        {
            return Ok(V::clone(value));
        }
        if self.is_forked() {
            return open().map_err(Arc::new);
        }
        self.entries.get_or_open(key, found, still_good, open).map(|value| V::clone(&value))
    }

    /// Does the same as [`get_or_open`](Self::get_or_open) without blocking the thread, on any
    /// runtime.
    ///
    /// Only this caller's task polls `open`, and never if the key is resident or another caller
    /// opens it. If the future is dropped before it is done, so is `open`, and one of the waiters
    /// opens instead.
    ///
    /// ```
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// use pagekeeper_file_table::FileTable;
    ///
    /// async fn length(table: &FileTable<u64, usize, std::io::Error>, id: u64) -> usize {
    ///     table.get_or_open_async(&id, async { Ok("read, one day".len()) }).await.unwrap_or(0)
    /// }
    /// # let table = FileTable::new();
    /// # let mut context = Context::from_waker(Waker::noop());
    /// # assert_eq!(pin!(length(&table, 7)).poll(&mut context), Poll::Ready(13));
    /// ```
    ///
    /// # Errors
    /// As [`get_or_open`](Self::get_or_open).
    ///
    /// # Panics
    /// As [`get_or_open`](Self::get_or_open).
    pub async fn get_or_open_async<Q>(
        &self,
        key: &Q,
        open: impl Future<Output = Result<V, E>>,
    ) -> Result<V, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.get_or_open_if_async(key, |_| true, open).await
    }

    /// Does the same as [`get_or_open_if`](Self::get_or_open_if) without blocking the thread; see
    /// [`get_or_open_async`](Self::get_or_open_async).
    ///
    /// # Errors
    /// As [`get_or_open_if`](Self::get_or_open_if).
    ///
    /// # Panics
    /// As [`get_or_open`](Self::get_or_open).
    pub async fn get_or_open_if_async<Q>(
        &self,
        key: &Q,
        still_good: impl Fn(&V) -> bool,
        open: impl Future<Output = Result<V, E>>,
    ) -> Result<V, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let found = self.entries.index.get(key);
        if let Some(value) = &found
            && still_good(value)
        {
            return Ok(V::clone(value));
        }
        if self.is_forked() {
            return open.await.map_err(Arc::new);
        }
        let opened = self.entries.get_or_open_async(key, found, still_good, open).await;
        opened.map(|value| V::clone(&value))
    }

    /// Removes the key's value and returns it, or `None` if it was not resident. Its last user
    /// drops it.
    ///
    /// A removal wins over a concurrent open of the key: the opener and its waiters get their
    /// value, but the table does not. Later callers open again, so an open from before the removal
    /// and one from after it may overlap.
    pub fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if self.is_forked() { None } else { self.entries.remove(key).map(Arc::unwrap_or_clone) }
    }

    /// Removes the key's value if it is resident and `condition` holds. The removed value is always
    /// the one that was judged: if another replaced it meanwhile, that one is judged as well. An
    /// open in progress is not affected.
    pub fn remove_if<Q>(&self, key: &Q, condition: impl Fn(&V) -> bool) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        while let Some(value) = self.entries.index.get(key) {
            if self.is_forked() || !condition(&value) {
                return None;
            }
            if self.entries.remove_exactly(key, &value) {
                return Some(Arc::unwrap_or_clone(value));
            }
        }
        None
    }

    /// Removes all keys, each as [`remove`](Self::remove) does, in one step.
    pub fn clear(&self) {
        if !self.is_forked() {
            self.entries.clear();
        }
    }

    /// Returns the number of resident values. It may be out of date on return while others change
    /// the table.
    pub fn len(&self) -> usize {
        self.entries.index.map.get().map_or(0, papaya::HashMap::len)
    }

    /// Whether no value is resident. Keys may be being opened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `visit` for each resident value, in no particular order. No lock is held: `visit` may
    /// use the table. A key that others insert or remove meanwhile may be visited or not.
    pub fn for_each(&self, mut visit: impl FnMut(&K, &V)) {
        let Some(found) = self.entries.index.readable() else { return };
        for (key, value) in &found.pin() {
            if let Some(value) = value.upgrade() {
                visit(key, &value);
            }
        }
    }

    /// Returns the keys with resident values, in no particular order, as
    /// [`for_each`](Self::for_each) visits them.
    pub fn keys(&self) -> Vec<K>
    where
        K: Clone,
    {
        let mut keys = Vec::with_capacity(self.len());
        self.for_each(|key, _| keys.push(key.clone()));
        keys
    }
}

impl<K, V, E> FileTable<K, V, E> {
    /// Whether this process was forked from the one that created the table, whose threads may have
    /// held its lock at the fork.
    fn is_forked(&self) -> bool {
        self.entries.index.process != std::process::id()
    }
}

impl<K: Hash + Eq, V: Clone, E> Default for FileTable<K, V, E> {
    fn default() -> Self {
        Self::new()
    }
}

/// Shows the numbers of resident keys and of keys being opened, but neither keys nor values.
impl<K: Hash + Eq, V: Clone, E> fmt::Debug for FileTable<K, V, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FileTable")
            .field("resident", &self.len())
            .field("opening", &if self.is_forked() { 0 } else { self.entries.opening() })
            .finish()
    }
}

/// The resident values, found without a lock.
///
/// They are weak: the map drops a removed entry some time later, when no reader can use it. Only
/// the memory of a key and of a dropped `V` is delayed by that, not the drop of the `V`.
///
/// The map is created with the first value: the first map of a process registers it for
/// membarrier(2), which takes 10 ms and more if there are other threads. An empty table costs
/// nothing.
struct ResidentMap<K, V> {
    map: OnceLock<papaya::HashMap<K, Weak<V>>>,
    /// The process that created the table.
    process: u32,
}

thread_local! {
    /// Whether this thread has a number among the readers of such maps. It takes one under a lock,
    /// which a thread of the parent may have held at a fork.
    static IS_READER: Cell<bool> = const { Cell::new(false) };
}

impl<K: Hash + Eq, V> ResidentMap<K, V> {
    fn new() -> Self {
        Self { map: OnceLock::new(), process: std::process::id() }
    }

    fn map(&self) -> &papaya::HashMap<K, Weak<V>> {
        self.map.get_or_init(papaya::HashMap::new)
    }

    /// Returns the map, if there is one and this thread can read it without a lock.
    fn readable(&self) -> Option<&papaya::HashMap<K, Weak<V>>> {
        let map = self.map.get()?;
        if !IS_READER.get() {
            if self.process != std::process::id() {
                return None;
            }
            IS_READER.set(true);
        }
        Some(map)
    }

    fn get<Q>(&self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.readable()?.pin().get(key)?.upgrade()
    }
}

impl<K: Hash + Eq, V> ResidentIndex<K, V> for ResidentMap<K, V> {
    fn publish(&self, key: K, value: &Arc<V>) {
        self.map().pin().insert(key, Arc::downgrade(value));
    }

    fn retract<Q: Hash + Eq + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(map) = self.map.get() {
            map.pin().remove(key);
        }
    }

    fn clear(&self) {
        if let Some(map) = self.map.get() {
            map.pin().clear();
        }
    }
}
