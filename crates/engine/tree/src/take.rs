//! Changes that return what was there, and removals of many entries.
//!
//! Fails as a lookup and an insertion do. After an error, the transaction has a part of the change.

use std::ops::{ControlFlow, RangeBounds};

use pagekeeper_store::WriteTxn;

use crate::error::TreeError;
use crate::{Tree, Value, owned};

/// Entries that are removed together, so that few keys are in memory.
const REMOVED_TOGETHER: usize = 1024;

/// A key and its value.
type OwnedEntry = (Vec<u8>, Vec<u8>);

impl Tree {
    /// Sets the value of a key, and returns its previous value. [`insert`](Self::insert) does not
    /// read that.
    ///
    /// ```
    /// # use pagekeeper_store::Store;
    /// # use pagekeeper_tree::Tree;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().journal_bytes(1 << 20).open(temp.path().join("store"))?;
    /// # let mut txn = store.begin_write()?;
    /// # let tree = Tree::create(&mut txn)?;
    /// assert_eq!(tree.replace(&mut txn, b"ada", b"1815")?, None);
    /// assert_eq!(tree.replace(&mut txn, b"ada", b"1852")?, Some(b"1815".to_vec()));
    /// assert_eq!(tree.take(&mut txn, b"ada")?, Some(b"1852".to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replace(
        &self,
        txn: &mut WriteTxn<'_>,
        key: &[u8],
        value: &[u8],
    ) -> Result<Option<Vec<u8>>, TreeError> {
        let before = self.get(txn, key)?.map(Value::into_vec);
        self.insert(txn, key, value)?;
        Ok(before)
    }

    /// Removes a key, and returns its value; `None` if there is no such key.
    pub fn take(&self, txn: &mut WriteTxn<'_>, key: &[u8]) -> Result<Option<Vec<u8>>, TreeError> {
        let before = self.get(txn, key)?.map(Value::into_vec);
        self.remove(txn, key)?;
        Ok(before)
    }

    /// Removes the entry with the lowest key, and returns it.
    ///
    /// ```
    /// # use pagekeeper_store::Store;
    /// # use pagekeeper_tree::Tree;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().journal_bytes(1 << 20).open(temp.path().join("store"))?;
    /// # let mut txn = store.begin_write()?;
    /// let queue = Tree::load(&mut txn, [("1", "first"), ("2", "second"), ("3", "third")])?;
    /// assert_eq!(queue.pop_first(&mut txn)?, Some((b"1".to_vec(), b"first".to_vec())));
    /// assert_eq!(queue.pop_last(&mut txn)?, Some((b"3".to_vec(), b"third".to_vec())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pop_first(&self, txn: &mut WriteTxn<'_>) -> Result<Option<OwnedEntry>, TreeError> {
        let first = self.first(txn)?;
        pop(*self, txn, first)
    }

    /// Removes the entry with the highest key, and returns it.
    pub fn pop_last(&self, txn: &mut WriteTxn<'_>) -> Result<Option<OwnedEntry>, TreeError> {
        let last = self.last(txn)?;
        pop(*self, txn, last)
    }

    /// Removes the entries of a range for which `keep` returns false, and returns their number.
    /// `keep` sees each entry once, in order.
    ///
    /// ```
    /// # use pagekeeper_store::Store;
    /// # use pagekeeper_tree::Tree;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().journal_bytes(1 << 20).open(temp.path().join("store"))?;
    /// # let mut txn = store.begin_write()?;
    /// let ages = Tree::load(&mut txn, [("ada", [36]), ("bob", [17]), ("cy", [12])])?;
    /// assert_eq!(ages.retain(&mut txn, "b".., |_, age| age[0] >= 18)?, 2);
    /// assert_eq!(ages.len(&txn)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn retain<K: AsRef<[u8]>>(
        &self,
        txn: &mut WriteTxn<'_>,
        range: impl RangeBounds<K>,
        mut keep: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<u64, TreeError> {
        let (mut from, upto) = owned(&range);
        let mut removed = 0;
        loop {
            let mut due = Vec::new();
            let seen = self.scan_with::<Vec<u8>, _>(txn, (from, upto.clone()), |key, value| {
                if !keep(key, value) {
                    due.push(key.to_vec());
                }
                if due.len() < REMOVED_TOGETHER {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(key.to_vec())
                }
            })?;
            for key in &due {
                self.remove(txn, key)?;
            }
            removed += due.len() as u64;
            let ControlFlow::Break(last) = seen else { return Ok(removed) };
            from = std::ops::Bound::Excluded(last);
        }
    }
}

fn pop(
    tree: Tree,
    txn: &mut WriteTxn<'_>,
    entry: Option<(Vec<u8>, Value)>,
) -> Result<Option<OwnedEntry>, TreeError> {
    let Some((key, value)) = entry else { return Ok(None) };
    let value = value.into_vec();
    tree.remove(txn, &key)?;
    Ok(Some((key, value)))
}
