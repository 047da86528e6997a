//! An ordered map of byte strings in the pages of a store: a B+tree, and the reference for building
//! on pages.
//!
//! It uses the store as any user can: pages by number, transactions, runs of pages, the root page.
//! So the store's promises hold for it: a commit of a tree's changes is there as a whole or not at
//! all, and readers see the tree as of one commit.
//!
//! ```text
//!   root ─────────── inner page      separators, as short as they can be
//!                    │      │
//!                 leaf      leaf     keys without what all of the page begin with, and short values
//!                             │
//!                             └───── extents: pages in a row with a large value
//! ```
//!
//! Invariants:
//! 1. The root keeps its page: it grows and shrinks in place. So the number of that page identifies
//!    the tree.
//! 2. All keys below an entry of an inner page are at or above its key, and below the next entry's
//!    key. Every key between two keys has their common prefix, so an insertion never changes a
//!    page's prefix.
//! 3. Each page belongs to one tree, and occurs once in it.
//!
//! Fails with [`TreeError::NotATree`] at a page that is intact but invalid, and as the store does;
//! it never panics. `format` specifies the pages.

#[cfg(not(target_os = "linux"))]
compile_error!("pagekeeper-tree needs Linux: its rules are about the Linux page cache");

mod check;
mod error;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod load;
mod names;
mod range;
mod read;
mod scan;
mod take;
#[cfg(test)]
mod tests;
mod value;
mod write;

use std::ops::{Bound, ControlFlow, RangeBounds};

pub use check::TreeCheck;
pub use error::TreeError;
pub use range::Range;
pub use read::Pages;
pub use value::Value;

use pagekeeper_store::{PageNo, WriteTxn};

use range::RangeEnd;

/// Maximum bytes of a key in a store with pages of 4 KiB.
pub const MAX_KEY_BYTES: usize = max_key_bytes(4064);

/// Returns the maximum bytes of a key in a store whose pages have this
/// [payload](pagekeeper_store::Store::payload_size): almost a third of it.
pub const fn max_key_bytes(payload_size: usize) -> usize {
    format::max_key(payload_size)
}

/// Maximum bytes of a value; the journal may take less in one transaction.
pub const MAX_VALUE_BYTES: usize = format::MAX_VALUE;

/// An ordered map of byte strings, in the pages of a store.
///
/// It is only the number of its root page, which it keeps as long as it exists. So it can be stored
/// beside the store, and used in any transaction. A tree is read in a
/// [`ReadTxn`](pagekeeper_store::ReadTxn), as of its snapshot, or in a [`WriteTxn`], with the
/// changes made so far.
///
/// ```
/// use pagekeeper_store::{Durability, Store};
/// use pagekeeper_tree::Tree;
///
/// # let temp = tempfile::tempdir_in(".")?;
/// # let dir = &temp.path().join("store");
/// let store = Store::options().journal_bytes(1 << 20).open(dir)?;
/// let mut txn = store.begin_write()?;
/// let tree = Tree::create(&mut txn)?;
/// txn.set_root(Some(tree.root())); // so that it is found again
/// tree.insert(&mut txn, b"apple", b"red")?;
/// tree.insert(&mut txn, b"banana", b"yellow")?;
/// tree.insert(&mut txn, b"cherry", &[7; 100_000])?; // large values have pages of their own
/// txn.commit(Durability::Sync)?;
///
/// let read = store.begin_read()?;
/// let tree = Tree::open(&read, read.root().expect("it was set"))?;
/// assert_eq!(tree.get(&read, b"apple")?.as_deref(), Some(&b"red"[..]));
/// let mut range = tree.range(&read, "b"..);
/// assert_eq!(range.next().transpose()?.map(|(key, _)| key), Some(b"banana".to_vec()));
/// assert_eq!(range.next_back().transpose()?.map(|(_, value)| value.len()), Some(100_000));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Several trees
///
/// A store may have any number of trees, each with its own root page, and one transaction can
/// change any of them. [`named`](Self::named) finds them by names, and
/// [`named_or_new`](Self::named_or_new) makes them.
///
/// # Limits
///
/// - Keys have at most a third of a page: 0 to [`MAX_KEY_BYTES`] (1336) bytes with pages of 4 KiB,
///   and [`max_key_bytes`] with others. They are ordered by their bytes. Values have 0 to 4 GiB
///   less one byte, if one transaction with all its pages fits into the journal: the change that
///   exceeds it fails with
///   [`Error::TransactionTooLarge`](pagekeeper_store::Error::TransactionTooLarge). All page sizes
///   of a store are supported.
/// - An entry that takes more than a quarter of a page (1016 bytes for 4 KiB pages) has its value
///   in separate pages, unless that has at most 8 bytes: at least one page, of which the tree uses
///   16 bytes.
/// - There is one writer at a time, as for the store. Each page that a transaction changes is in
///   memory until its commit, and so are large values as a whole. A value of more than one page is
///   also in memory while it is read.
/// - It does not know how many entries it has: [`len`](Self::len) reads all leaves.
/// - A leaf that becomes less than a third full is merged with a neighbour if both fit into 7/8 of
///   a page. Pages that lost fewer entries stay as they are.
/// - The last leaf has no upper bound, so it stores its keys in full. If keys come in ascending
///   order and have a long common prefix, leaves are filled with full keys, and have free space
///   once the next leaf has begun.
/// - After an error of a change, the transaction has a part of that change: drop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tree {
    root: PageNo,
}

impl Tree {
    /// Makes an empty tree, and allocates its root page.
    pub fn create(txn: &mut WriteTxn<'_>) -> Result<Self, TreeError> {
        write::create(txn).map(|root| Self { root })
    }

    /// Opens the tree with this root page.
    ///
    /// Fails with [`TreeError::NotATree`] if the page belongs to no tree, and as
    /// [`ReadTxn::read`](pagekeeper_store::ReadTxn::read) does.
    pub fn open(pages: &impl Pages, root: PageNo) -> Result<Self, TreeError> {
        read::load(pages, root, None)?;
        Ok(Self { root })
    }

    /// Returns the number of its root page, which stays the same as long as the tree exists.
    pub fn root(&self) -> PageNo {
        self.root
    }

    /// Returns the value of a key. A value of more than 1 KiB that is within one page is not
    /// copied: the page stays in memory as long as the value does.
    ///
    /// Fails with [`TreeError::KeyTooLong`], with [`TreeError::NotATree`], and as
    /// [`ReadTxn::read`](pagekeeper_store::ReadTxn::read) does.
    pub fn get(&self, pages: &impl Pages, key: &[u8]) -> Result<Option<Value>, TreeError> {
        read::get(pages, self.root, key)
    }

    /// Calls `read` with the value of a key, in place if it is within one page, and returns its
    /// result; `None` if there is no such key.
    ///
    /// This is the fastest way to read: nothing is copied or allocated, and memory that other
    /// readers use is not written. The page cannot be evicted while `read` runs, so `read` should
    /// be short.
    ///
    /// ```
    /// # use pagekeeper_store::{Durability, Store};
    /// # use pagekeeper_tree::Tree;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let dir = &temp.path().join("store");
    /// # let store = Store::options().journal_bytes(1 << 20).open(dir)?;
    /// # let mut txn = store.begin_write()?;
    /// # let tree = Tree::create(&mut txn)?;
    /// tree.insert(&mut txn, b"ada", &1815_u16.to_le_bytes())?;
    /// let year = tree.get_with(&txn, b"ada", |value| u16::from_le_bytes([value[0], value[1]]))?;
    /// assert_eq!(year, Some(1815));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Fails as [`get`](Self::get) does.
    pub fn get_with<T>(
        &self,
        pages: &impl Pages,
        key: &[u8],
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, TreeError> {
        read::get_with(pages, self.root, key, read)
    }

    /// Calls `visit` once for each key, in no particular order, with the key's index and its value.
    /// The value is in place if it is within one page, and `None` if there is no such key.
    ///
    /// Lists of at least 16 keys are faster than single calls of [`get_with`](Self::get_with) if
    /// the processor's caches do not hold the pages. `visit` should be short, as there.
    ///
    /// ```
    /// # use pagekeeper_store::{Durability, Store};
    /// # use pagekeeper_tree::Tree;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().journal_bytes(1 << 20).open(temp.path().join("store"))?;
    /// let mut txn = store.begin_write()?;
    /// let tree = Tree::load(&mut txn, [("ada", "1815"), ("alan", "1912"), ("grace", "1906")])?;
    /// let mut years = vec![None; 3];
    /// tree.get_many(&txn, &["grace", "bob", "ada"], |index, value| {
    ///     years[index] = value.map(<[u8]>::to_vec);
    /// })?;
    /// assert_eq!(years, [Some(b"1906".to_vec()), None, Some(b"1815".to_vec())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Fails as [`get`](Self::get) does. `visit` may have been called for some of the keys by then.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        pages: &impl Pages,
        keys: &[K],
        mut visit: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), TreeError> {
        read::get_many(pages, self.root, keys, &mut visit)
    }

    /// Sets the value of a key. Returns true if it had one before.
    ///
    /// A value that is as long as the previous one, or takes as many pages, is changed in place, so
    /// that the journal gets only the difference. Fails with [`TreeError::KeyTooLong`] and
    /// [`TreeError::ValueTooLong`], with [`TreeError::NotATree`], and as the store does
    /// ([`WriteTxn::page_mut`], [`WriteTxn::allocate`], [`WriteTxn::free`]).
    pub fn insert(&self, txn: &mut WriteTxn<'_>, key: &[u8], value: &[u8]) -> Result<bool, TreeError> {
        let was_there = write::insert(txn, self.root, key, value)?;
        txn.check_size()?;
        Ok(was_there)
    }

    /// Removes a key and its value, and frees the value's pages. Returns false if there is no such
    /// key.
    ///
    /// Fails as [`insert`](Self::insert) does.
    pub fn remove(&self, txn: &mut WriteTxn<'_>, key: &[u8]) -> Result<bool, TreeError> {
        let was_there = write::remove(txn, self.root, key)?;
        txn.check_size()?;
        Ok(was_there)
    }

    /// Frees all pages of the tree, including its root, so that it no longer exists. Reads all of
    /// it except the values.
    ///
    /// Fails as [`insert`](Self::insert) does.
    pub fn delete(self, txn: &mut WriteTxn<'_>) -> Result<(), TreeError> {
        write::delete(txn, self.root)?;
        Ok(txn.check_size()?)
    }

    /// Returns the entries whose keys are in a range, from both ends. A range that ends before it
    /// begins is empty.
    ///
    /// ```
    /// # use pagekeeper_store::{Durability, Store};
    /// # use pagekeeper_tree::Tree;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().journal_bytes(1 << 20).open(temp.path().join("store"))?;
    /// let mut txn = store.begin_write()?;
    /// let tree = Tree::create(&mut txn)?;
    /// for key in ["a", "b", "c", "d"] {
    ///     tree.insert(&mut txn, key.as_bytes(), b"")?;
    /// }
    /// let keys = |entries: pagekeeper_tree::Range<'_, _>| -> Result<Vec<u8>, _> {
    ///     entries.map(|entry| entry.map(|(key, _)| key[0])).collect()
    /// };
    /// assert_eq!(keys(tree.range(&txn, "b"..="c"))?, b"bc");
    /// let backwards: Result<Vec<_>, _> = tree.range(&txn, .."c").rev().collect();
    /// assert_eq!(backwards?[0].0, b"b");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range<'t, T: Pages, K: AsRef<[u8]>>(
        &self,
        pages: &'t T,
        range: impl RangeBounds<K>,
    ) -> Range<'t, T> {
        let (lower, upper) = owned(&range);
        Range::new(pages, self.root, lower, upper)
    }

    /// Returns the entries whose keys begin with a prefix, from both ends.
    ///
    /// ```
    /// # use pagekeeper_store::Store;
    /// # use pagekeeper_tree::Tree;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().journal_bytes(1 << 20).open(temp.path().join("store"))?;
    /// # let mut txn = store.begin_write()?;
    /// let tree = Tree::load(&mut txn, [("a", ""), ("user:1", "ada"), ("user:2", "bob"), ("z", "")])?;
    /// assert_eq!(tree.prefix(&txn, b"user:").count(), 2);
    /// assert_eq!(&tree.prefix(&txn, b"user:").next_back().expect("two")?.1[..], b"bob");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefix<'t, T: Pages>(&self, pages: &'t T, prefix: &[u8]) -> Range<'t, T> {
        Range::new(pages, self.root, Bound::Included(prefix.to_vec()), range::behind(prefix))
    }

    /// Calls `visit` with the entries whose keys are in a range, in order, until it breaks. Returns
    /// the value that it broke with.
    ///
    /// This is the fastest way to read many entries: it borrows keys and values, while
    /// [`range`](Self::range) returns owned ones. Nothing is allocated for an entry, and a value
    /// within one page is not copied. While `visit` runs, its leaf and the value's page cannot be
    /// evicted, so `visit` should be short.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// # use pagekeeper_store::{Durability, Store};
    /// # use pagekeeper_tree::Tree;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().journal_bytes(1 << 20).open(temp.path().join("store"))?;
    /// let mut txn = store.begin_write()?;
    /// let tree = Tree::create(&mut txn)?;
    /// for (key, value) in [("ada", 3), ("bob", 5), ("cy", 40), ("dan", 1)] {
    ///     tree.insert(&mut txn, key.as_bytes(), &[value])?;
    /// }
    /// let mut sum = 0;
    /// let all = tree.scan_with(&txn, "ada".."cy", |_, value| {
    ///     sum += value[0];
    ///     ControlFlow::<()>::Continue(())
    /// })?;
    /// assert_eq!((all, sum), (ControlFlow::Continue(()), 8));
    ///
    /// let first_above = |limit: u8| {
    ///     tree.scan_with(&txn, "a".., |key, value| {
    ///         if value[0] > limit { ControlFlow::Break(key.to_vec()) } else { ControlFlow::Continue(()) }
    ///     })
    /// };
    /// assert_eq!(first_above(4)?, ControlFlow::Break(b"bob".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Fails with [`TreeError::NotATree`], and as
    /// [`ReadTxn::read`](pagekeeper_store::ReadTxn::read) does. Entries that were visited before
    /// remain valid.
    pub fn scan_with<K: AsRef<[u8]>, B>(
        &self,
        pages: &impl Pages,
        range: impl RangeBounds<K>,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>, TreeError> {
        scan::TreeScan::new(pages, borrowed(&range), RangeEnd::Front, visit).run(self.root)
    }

    /// Like [`scan_with`](Self::scan_with), from the highest key of the range down.
    ///
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use pagekeeper_store::{Durability, Store};
    /// # use pagekeeper_tree::Tree;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().journal_bytes(1 << 20).open(temp.path().join("store"))?;
    /// # let mut txn = store.begin_write()?;
    /// # let tree = Tree::create(&mut txn)?;
    /// for number in 0..1000_u32 {
    ///     tree.insert(&mut txn, &number.to_be_bytes(), b"")?;
    /// }
    /// let mut highest = Vec::new();
    /// tree.scan_back_with(&txn, ..500_u32.to_be_bytes(), |key, _| {
    ///     highest.push(key[3]);
    ///     if highest.len() < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    /// })?;
    /// assert_eq!(highest, [243, 242, 241]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan_back_with<K: AsRef<[u8]>, B>(
        &self,
        pages: &impl Pages,
        range: impl RangeBounds<K>,
        visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<ControlFlow<B>, TreeError> {
        scan::TreeScan::new(pages, borrowed(&range), RangeEnd::Back, visit).run(self.root)
    }

    /// Returns all entries, from both ends.
    pub fn iter<'t, T: Pages>(&self, pages: &'t T) -> Range<'t, T> {
        self.range::<T, &[u8]>(pages, ..)
    }

    /// Returns the entry with the lowest key.
    pub fn first(&self, pages: &impl Pages) -> Result<Option<(Vec<u8>, Value)>, TreeError> {
        self.iter(pages).next().transpose()
    }

    /// Returns the entry with the highest key.
    pub fn last(&self, pages: &impl Pages) -> Result<Option<(Vec<u8>, Value)>, TreeError> {
        self.iter(pages).next_back().transpose()
    }

    /// Tests whether there are no entries.
    pub fn is_empty(&self, pages: &impl Pages) -> Result<bool, TreeError> {
        Ok(self.first(pages)?.is_none())
    }

    /// Counts the entries, in all leaves.
    pub fn len(&self, pages: &impl Pages) -> Result<u64, TreeError> {
        read::len(pages, self.root)
    }

    /// Walks the whole tree, including its values, and fails with the first invalid page. Each page
    /// must occur once, levels must decrease by one, and keys must be in order and within the
    /// bounds above them. Takes a few bytes of memory for each page of the tree.
    ///
    /// [`unused_pages`] finds pages that belong to no tree.
    pub fn check(&self, pages: &impl Pages) -> Result<TreeCheck, TreeError> {
        check::check(pages, self.root)
    }
}

/// Returns the pages that are in use but belong to none of these trees, in ascending order. With
/// all trees of a store, these are the pages that others have allocated.
///
/// Checks the trees as [`Tree::check`] does, and reads all pages of the store. Fails as that does,
/// and also if two trees share a page.
pub fn unused_pages(pages: &impl Pages, trees: &[Tree]) -> Result<Vec<PageNo>, TreeError> {
    check::unused_pages(pages, trees.iter().map(Tree::root))
}

fn owned<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let owned = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
    (owned(range.start_bound()), owned(range.end_bound()))
}

fn borrowed<'r, K: AsRef<[u8]> + 'r>(range: &'r impl RangeBounds<K>) -> (Bound<&'r [u8]>, Bound<&'r [u8]>) {
    (range.start_bound().map(AsRef::as_ref), range.end_bound().map(AsRef::as_ref))
}
