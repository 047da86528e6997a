//! The ordered map of the page store: values by number, as in the peers, each commit with
//! `Durability::Sync`.
//!
//! Each value has a page of its own, which is found through the tree. Fails where the store does.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::{Context, Result};
use pagekeeper_store::{Durability, Store};
use pagekeeper_tree::Tree;

use super::content::{STORED_VALUE_BYTES, fresh};
use super::load::{PageChange, PageCheck, PageStore, StoreCommitter, StoreKind, StoreSize};

/// The subject.
pub(super) const TREE_STORE: StoreKind =
    StoreKind { name: "pagekeeper-store", open: |dir, room| Ok(Box::new(TreeStore::open(dir, room)?)) };

/// Values written per commit when the map is filled.
const TREE_FILL_VALUES: u64 = 1024;

/// A store with one tree, whose root page is the store's root.
struct TreeStore {
    store: Store,
    tree: Tree,
    pages: u64,
}

impl TreeStore {
    fn open(dir: &Path, room: StoreSize) -> Result<Self> {
        let store = Store::options().memory(room.memory).open(dir.join("tree"))?;
        let read = store.begin_read()?;
        let found = read.root().map(|root| Tree::open(&read, root)).transpose()?;
        drop(read);
        let tree = if let Some(tree) = found {
            tree
        } else {
            let mut txn = store.begin_write()?;
            let tree = Tree::create(&mut txn)?;
            txn.set_root(Some(tree.root()));
            txn.commit(Durability::Sync)?;
            tree
        };
        Ok(Self { store, tree, pages: room.pages })
    }
}

impl PageStore for TreeStore {
    fn fill(&self) -> Result<()> {
        for start in (0..self.pages).step_by(usize::try_from(TREE_FILL_VALUES)?) {
            let mut txn = self.store.begin_write()?;
            for page in start..self.pages.min(start + TREE_FILL_VALUES) {
                self.tree.insert(&mut txn, &page.to_be_bytes(), &fresh(page))?;
            }
            txn.commit(Durability::None)?;
        }
        self.settle()
    }

    fn committer(&self) -> Result<Box<dyn StoreCommitter + '_>> {
        Ok(Box::new(self))
    }

    fn settle(&self) -> Result<()> {
        Ok(self.store.sync()?)
    }

    fn check(&self, pages: std::ops::Range<u64>, see: &mut PageCheck<'_>) -> Result<()> {
        let txn = self.store.begin_read()?;
        let range = pages.start.to_be_bytes()..pages.end.to_be_bytes();
        let seen = self.tree.scan_with(&txn, range, |key, value| {
            let number = key.try_into().map(u64::from_be_bytes).context("a key is no number");
            match number.and_then(|page| see(page, value)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(error),
            }
        })?;
        seen.break_value().map_or(Ok(()), Err)
    }
}

impl StoreCommitter for &TreeStore {
    fn commit(&mut self, pages: &[u64], change: &mut PageChange<'_>) -> Result<()> {
        let mut txn = self.store.begin_write()?;
        let mut value = Vec::with_capacity(STORED_VALUE_BYTES);
        for &page in pages {
            let key = page.to_be_bytes();
            value.clear();
            let found = self.tree.get_with(&txn, &key, |found| value.extend_from_slice(found))?;
            found.with_context(|| format!("page {page} is missing"))?;
            change(page, &mut value)?;
            self.tree.insert(&mut txn, &key, &value)?;
        }
        txn.commit(Durability::Sync)?;
        Ok(())
    }
}
