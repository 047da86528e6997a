//! Bulk loads: a tree from sorted entries, each page written once.
//!
//! Each level has a page that is being filled. When an entry does not fit, the page is written and
//! gets an entry in the level above. The last page of the highest level becomes the root.
//!
//! Fails as an insertion does, and at the first key that is not above the one before it.

use pagekeeper_store::{PageNo, WriteTxn};

use crate::Tree;
use crate::error::TreeError;
use crate::format::edit::entry_len;
use crate::format::node::NODE_HEAD_BYTES;
use crate::format::{MAX_VALUE, max_key};
use crate::value;
use crate::write::{MovedEntry, OwnedBody, is_large, narrow, prefix_of, put_together, separator};

/// A page that is being filled.
#[derive(Default)]
struct OpenNode {
    entries: Vec<MovedEntry>,
    /// Bytes of the entries, with whole keys.
    bytes: usize,
    /// The lower bound of its keys.
    lower: Option<Vec<u8>>,
}

struct TreeLoader<'l, 's> {
    txn: &'l mut WriteTxn<'s>,
    payload: usize,
    /// From the leaf up.
    levels: Vec<OpenNode>,
}

impl Tree {
    /// Makes a tree with these entries, whose keys ascend. Fills each page once, so this is faster
    /// than insertions, and leaves no page half empty.
    ///
    /// Fails with [`TreeError::NotInOrder`], and as [`insert`](Self::insert) does. The transaction
    /// has a part of the tree then: drop it. To load more than the journal takes in one
    /// transaction, continue by [`insert`](Self::insert) in the next ones.
    ///
    /// ```
    /// # use pagekeeper_store::{Durability, Store};
    /// # use pagekeeper_tree::Tree;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().journal_bytes(1 << 20).open(temp.path().join("store"))?;
    /// let mut txn = store.begin_write()?;
    /// let tree = Tree::load(&mut txn, (0..1000_u32).map(|number| (number.to_be_bytes(), b"value")))?;
    /// assert_eq!(tree.len(&txn)?, 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn load<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        txn: &mut WriteTxn<'_>,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self, TreeError> {
        let tree = Self::create(txn)?;
        let payload = txn.read(tree.root)?.len();
        let mut loader = TreeLoader { txn: &mut *txn, payload, levels: vec![OpenNode::default()] };
        let mut last: Option<Vec<u8>> = None;
        for (at, (key, value)) in (0..).zip(entries) {
            let key = key.as_ref();
            if last.as_ref().is_some_and(|last| key <= &last[..]) {
                return Err(TreeError::NotInOrder { at });
            }
            let between = last.as_ref().map(|last| separator(last, key).to_vec());
            let entry = loader.entry(key, value.as_ref())?;
            loader.push(0, entry, between.as_deref())?;
            last = Some(key.to_vec());
        }
        loader.finish(tree.root)?;
        txn.check_size()?;
        Ok(tree)
    }
}

impl TreeLoader<'_, '_> {
    /// Returns a leaf's entry, after its value was written if it is large.
    fn entry(&mut self, key: &[u8], value: &[u8]) -> Result<MovedEntry, TreeError> {
        if key.len() > max_key(self.payload) {
            return Err(TreeError::KeyTooLong { given: key.len(), max: max_key(self.payload) });
        }
        if value.len() > MAX_VALUE {
            return Err(TreeError::ValueTooLong { given: value.len(), max: MAX_VALUE });
        }
        let body = if is_large(key, value, self.payload) {
            OwnedBody::Large(value::write(self.txn, value)?)
        } else {
            OwnedBody::Value(value.to_vec())
        };
        Ok(MovedEntry { key: key.to_vec(), body })
    }

    /// Adds an entry to the open page of a level. `between` separates it from the one before it.
    fn push(&mut self, level: u8, entry: MovedEntry, between: Option<&[u8]>) -> Result<(), TreeError> {
        let at = usize::from(level);
        if self.levels.len() == at {
            self.levels.push(OpenNode::default());
        }
        let len = entry_len(entry.key.len(), entry.body.get().len());
        if self.levels[at].bytes + len > self.payload - NODE_HEAD_BYTES {
            self.close(level, between)?;
        }
        let open = &mut self.levels[at];
        // The first entry of an inner page has no key.
        open.bytes +=
            if level > 0 && open.entries.is_empty() { entry_len(0, entry.body.get().len()) } else { len };
        open.entries.push(entry);
        Ok(())
    }

    /// Writes the open page of a level, whose keys are below `upper`, and begins another one.
    fn close(&mut self, level: u8, upper: Option<&[u8]>) -> Result<(), TreeError> {
        let lower = upper.map(<[u8]>::to_vec);
        let next = OpenNode { lower: lower.clone(), ..OpenNode::default() };
        let full = std::mem::replace(&mut self.levels[usize::from(level)], next);
        let page = self.txn.allocate()?;
        let bounds = (full.lower, lower);
        put_together(self.txn, page, level, prefix_of(&bounds), &full.entries)?;
        let key = bounds.0.unwrap_or_default();
        let entry = MovedEntry { key: key.clone(), body: OwnedBody::Child(narrow(page)) };
        self.push(level + 1, entry, Some(&key))
    }

    /// Writes the last page of each level, the highest one to the root.
    fn finish(mut self, root: PageNo) -> Result<(), TreeError> {
        let mut level = 0;
        while usize::from(level) + 1 < self.levels.len() {
            self.close(level, None)?;
            level += 1;
        }
        put_together(self.txn, root, level, &[], &self.levels[usize::from(level)].entries)
    }
}
