//! Trees by name. The store's root page is a tree of its own, whose values are the numbers of root
//! pages as eight bytes, little endian.
//!
//! Fails with [`TreeError::NotATree`] if the store's root page is something else.

use pagekeeper_store::{PageNo, WriteTxn};

use crate::error::TreeError;
use crate::{Pages, Tree};

impl Tree {
    /// Opens the tree with a name; `None` if there is none.
    ///
    /// Names are kept in a tree at the store's [root page](WriteTxn::set_root), so use that for
    /// nothing else then.
    ///
    /// ```
    /// # use pagekeeper_store::{Durability, Store};
    /// # use pagekeeper_tree::Tree;
    /// # let temp = tempfile::tempdir_in(".")?;
    /// # let store = Store::options().journal_bytes(1 << 20).open(temp.path().join("store"))?;
    /// let mut txn = store.begin_write()?;
    /// let users = Tree::named_or_new(&mut txn, "users")?;
    /// users.insert(&mut txn, b"ada", b"1815")?;
    /// Tree::named_or_new(&mut txn, "drafts")?;
    /// txn.commit(Durability::Sync)?;
    ///
    /// let mut txn = store.begin_write()?;
    /// assert_eq!(Tree::names(&txn)?, [b"drafts".to_vec(), b"users".to_vec()]);
    /// assert!(Tree::delete_named(&mut txn, "drafts")?);
    /// assert_eq!(Tree::named(&txn, "users")?, Some(users));
    /// assert_eq!(Tree::named(&txn, "drafts")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn named(pages: &impl Pages, name: impl AsRef<[u8]>) -> Result<Option<Self>, TreeError> {
        let Some(names) = directory(pages)? else { return Ok(None) };
        let Some(root) = names.get_with(pages, name.as_ref(), page_number)? else { return Ok(None) };
        let reason = "its value for a name is no page number".to_owned();
        let root = root.ok_or(TreeError::NotATree { page: names.root, reason })?;
        Self::open(pages, root).map(Some)
    }

    /// Opens the tree with a name, and makes it first if there is none.
    pub fn named_or_new(txn: &mut WriteTxn<'_>, name: impl AsRef<[u8]>) -> Result<Self, TreeError> {
        if let Some(found) = Self::named(txn, name.as_ref())? {
            return Ok(found);
        }
        let names = match directory(txn)? {
            Some(names) => names,
            None => Self::create(txn)?,
        };
        txn.set_root(Some(names.root));
        let tree = Self::create(txn)?;
        names.insert(txn, name.as_ref(), &tree.root.get().to_le_bytes())?;
        Ok(tree)
    }

    /// Deletes the tree with a name, as [`delete`](Self::delete) does. Returns false if there is
    /// none.
    pub fn delete_named(txn: &mut WriteTxn<'_>, name: impl AsRef<[u8]>) -> Result<bool, TreeError> {
        let Some(tree) = Self::named(txn, name.as_ref())? else { return Ok(false) };
        tree.delete(txn)?;
        directory(txn)?.map_or(Ok(false), |names| names.remove(txn, name.as_ref()))
    }

    /// Returns the names of all trees that have one, in order.
    pub fn names(pages: &impl Pages) -> Result<Vec<Vec<u8>>, TreeError> {
        let Some(names) = directory(pages)? else { return Ok(Vec::new()) };
        names.iter(pages).map(|entry| Ok(entry?.0)).collect()
    }
}

/// Opens the tree of names, if the store has one.
fn directory(pages: &impl Pages) -> Result<Option<Tree>, TreeError> {
    pages.root_page().map(|root| Tree::open(pages, root)).transpose()
}

fn page_number(value: &[u8]) -> Option<PageNo> {
    Some(PageNo::new(u64::from_le_bytes(value.try_into().ok()?)))
}
