//! [`FileTable`] keeps opened heavy objects (table readers, files) resident, each opened once however many threads ask for it:
//! `use pagekeeper_file_table::FileTable;`. The page cache keeps its open files in one; an engine keeps its readers in another.
//!
//! Invariants:
//! 1. A hit takes no lock and waits for nobody: it is a lookup in a lock-free map and an upgrade of a weak reference.
//! 2. The lock-free map only finds values; `entries.rs` owns them. So a removed value is dropped with its last user,
//!    not when the map's memory is reclaimed: a deleted file must not keep its blocks until then.
//! 3. Whatever changes which keys are there goes through `entries.rs`, under one lock that is never held while
//!    something is opened, awaited, judged, cloned or dropped.
//!
//! How one open serves many is in `entries.rs` (who opens) and `flight.rs` (who waits), both checked by `model.rs`.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, OnceLock, Weak};

use entries::{Entries, Index};

mod entries;
mod flight;
#[cfg(test)]
mod model;
mod sync;
#[cfg(test)]
mod tests;

/// A table of opened objects by key, for those that are costly to open and few enough to stay: readers of SST files,
/// segments, open files. Nothing is evicted; what is there stays until it is removed or replaced.
///
/// `V` is handed out by `clone`: give it an `Arc`. `E` is why an open failed; all who waited get the same one.
/// Keys are looked up in borrowed form, as in `HashMap`: a `FileTable<PathBuf, _, _>` by `&Path`.
///
/// - Many callers that want one absent key cause one call of one caller's opener. The others wait, parked or pending,
///   for its outcome; their own openers are not called. Callers that block and callers that await may wait for one
///   another.
/// - A failed open reaches all who waited. Nothing is kept of it: the next caller tries again.
/// - An opener that panics panics its own caller. An opener's future that is dropped ends with it. In both cases those
///   who waited try again, and one of them opens.
/// - A removal wins over an open that it meets: see [`remove`](Self::remove).
///
/// # Forks
/// A table belongs to the process that made it. In a forked child only [`get`](Self::get) is safe: other calls may wait for a thread that is
/// not there.
///
/// # Openers that open
/// No lock is held while an opener runs, so it may use the table, and open other keys. It must not ask for its own key:
/// a caller that would wait, on the thread on which a step (the call, or one poll) of the key's opener is running, for
/// that opener, **panics**, as it would wait forever. This covers keys that ask for each other on one thread (`a`
/// opens `b`, which opens `a`), but not threads that wait for each other (one in `a` for `b`, one in `b` for `a`): let
/// openers depend on each other in one direction only.
///
/// Do not block in [`get_or_open`](Self::get_or_open) on the only thread that could poll the future which opens that
/// key.
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
    entries: Entries<K, V, E, Found<K, V>>,
}

impl<K: Hash + Eq, V: Clone, E> FileTable<K, V, E> {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self { entries: Entries::new(Found(OnceLock::new())) }
    }

    /// The key's value if it is resident. Takes no lock, and waits for no open.
    pub fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entries.index.get(key).map(|value| V::clone(&value))
    }

    /// The key's value; if it is absent, `open` makes it, or another caller's does and this one waits.
    ///
    /// # Errors
    /// What the opener said, to all who waited for it; the next call opens again.
    ///
    /// # Panics
    /// If `open` panics (those who wait try again), or if the key's opener is running on this thread, see
    /// [above](Self#openers-that-open).
    pub fn get_or_open<Q>(&self, key: &Q, open: impl FnOnce() -> Result<V, E>) -> Result<V, Arc<E>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.get_or_open_if(key, |_| true, open)
    }

    /// The key's value if `still_good` says so; else it is taken out and opened again, once for all who ask.
    ///
    /// A value that is no longer good is out of the table from the moment its replacement is begun, whether that
    /// succeeds or not: [`get`](Self::get) does not find it, and who calls `get_or_open` waits for the new one.
    /// `still_good` is asked about each value that this caller did not open itself, so also about one for which it
    /// waited. It is called without a lock, and should be cheap.
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
        self.entries.get_or_open(key, found, still_good, open).map(|value| V::clone(&value))
    }

    /// As [`get_or_open`](Self::get_or_open), without blocking the thread, on any runtime.
    ///
    /// `open` is polled by this caller's task only, and not at all if the key is resident or another opens it. If the
    /// future is dropped before it is done, so is `open`, and one of those who wait opens in its stead.
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

    /// As [`get_or_open_if`](Self::get_or_open_if), without blocking the thread; see
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
        let opened = self.entries.get_or_open_async(key, found, still_good, open).await;
        opened.map(|value| V::clone(&value))
    }

    /// Takes the key's value out; the last who uses it drops it. None if it was not resident.
    ///
    /// A removal wins over an open of the key that is under way: the opener and those who wait for it get their value,
    /// but it is not put in, and who asks from now on opens again (so that two opens of one key, one begun before the
    /// removal and one after it, may overlap).
    pub fn remove<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.entries.remove(key).map(Arc::unwrap_or_clone)
    }

    /// Takes the key's value out if it is resident and `condition` holds. The value that was judged is the one that is
    /// taken out: if another has come meanwhile, that is judged in its turn. An open that is under way is left alone.
    pub fn remove_if<Q>(&self, key: &Q, condition: impl Fn(&V) -> bool) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        while let Some(value) = self.entries.index.get(key) {
            if !condition(&value) {
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
        self.entries.clear();
    }

    /// How many values are resident. While others change the table, it may be out of date when it returns.
    pub fn len(&self) -> usize {
        self.entries.index.0.get().map_or(0, papaya::HashMap::len)
    }

    /// True if no value is resident; keys may be being opened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `visit` for each value that is resident, in no order. No lock is held: `visit` may use the table. Of keys
    /// that others put in or remove meanwhile, each may be visited or not.
    pub fn for_each(&self, mut visit: impl FnMut(&K, &V)) {
        let Some(found) = self.entries.index.0.get() else { return };
        for (key, value) in &found.pin() {
            if let Some(value) = value.upgrade() {
                visit(key, &value);
            }
        }
    }

    /// The keys whose values are resident, in no order, as [`for_each`](Self::for_each) visits them.
    pub fn keys(&self) -> Vec<K>
    where
        K: Clone,
    {
        let mut keys = Vec::with_capacity(self.len());
        self.for_each(|key, _| keys.push(key.clone()));
        keys
    }
}

impl<K: Hash + Eq, V: Clone, E> Default for FileTable<K, V, E> {
    fn default() -> Self {
        Self::new()
    }
}

/// How many keys are resident and how many are being opened; neither keys nor values.
impl<K: Hash + Eq, V: Clone, E> fmt::Debug for FileTable<K, V, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FileTable")
            .field("resident", &self.len())
            .field("opening", &self.entries.opening())
            .finish()
    }
}

/// The values that are resident, found without a lock.
///
/// Weak: the map drops what is removed from it some time later, when no reader can use it. All that is late
/// then is the memory of a key and of a dropped `V`, not the `V`.
///
/// Made with the first value: the first map of a process registers it for membarrier(2), which takes 10 ms and more where there are other
/// threads. A table that has nothing costs nothing.
struct Found<K, V>(OnceLock<papaya::HashMap<K, Weak<V>>>);

impl<K: Hash + Eq, V> Found<K, V> {
    fn map(&self) -> &papaya::HashMap<K, Weak<V>> {
        self.0.get_or_init(papaya::HashMap::new)
    }

    fn get<Q>(&self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.0.get()?.pin().get(key)?.upgrade()
    }
}

impl<K: Hash + Eq, V> Index<K, V> for Found<K, V> {
    fn publish(&self, key: K, value: &Arc<V>) {
        self.map().pin().insert(key, Arc::downgrade(value));
    }

    fn retract<Q: Hash + Eq + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(map) = self.0.get() {
            map.pin().remove(key);
        }
    }

    fn clear(&self) {
        if let Some(map) = self.0.get() {
            map.pin().clear();
        }
    }
}
