//! Accounts in an ordered map: a transfer commits as a whole, and a reader keeps the state that it
//! began with.
//!
//! Run it by `cargo run -p pagekeeper-tree --example accounts`.

use std::error::Error;

use pagekeeper_store::{Durability, PageNo, Store};
use pagekeeper_tree::{Pages, Tree};

/// Reads an account's balance; an account that is not there has none.
fn balance(tree: Tree, pages: &impl Pages, name: &str) -> Result<u64, Box<dyn Error>> {
    let value = tree.get(pages, name.as_bytes())?;
    Ok(value.map_or(Ok(0), |bytes| bytes[..].try_into().map(u64::from_le_bytes))?)
}

/// Moves an amount between two accounts. An error drops the transaction, and nothing of it stays.
fn transfer(
    store: &Store,
    accounts: PageNo,
    from: &str,
    to: &str,
    amount: u64,
) -> Result<(), Box<dyn Error>> {
    let mut txn = store.begin_write()?;
    let tree = Tree::open(&txn, accounts)?;
    let left = balance(tree, &txn, from)?.checked_sub(amount).ok_or("not enough")?;
    let gained = balance(tree, &txn, to)? + amount;
    tree.insert(&mut txn, from.as_bytes(), &left.to_le_bytes())?;
    tree.insert(&mut txn, to.as_bytes(), &gained.to_le_bytes())?;
    txn.commit(Durability::Sync)?; // durable; threads that commit at the same time share one sync
    Ok(())
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let temp = tempfile::tempdir_in(".")?;
    let path = temp.path().join("store");
    let store = Store::options().memory(64 << 20).open(&path)?;

    let mut txn = store.begin_write()?;
    let tree = Tree::create(&mut txn)?;
    tree.insert(&mut txn, b"ada", &100_u64.to_le_bytes())?;
    txn.set_root(Some(tree.root())); // how the tree is found again
    txn.commit(Durability::Sync)?;

    let before = store.begin_read()?;
    transfer(&store, tree.root(), "ada", "grace", 30)?;
    assert!(transfer(&store, tree.root(), "grace", "ada", 31).is_err());
    assert_eq!(balance(tree, &before, "ada")?, 100); // its snapshot
    drop(before);
    store.close()?;

    let store = Store::options().open(&path)?; // reads the journal, and no page of the data
    let now = store.begin_read()?;
    let tree = Tree::open(&now, now.root().ok_or("no tree")?)?;
    let (ada, grace) = (balance(tree, &now, "ada")?, balance(tree, &now, "grace")?);
    assert_eq!((ada, grace), (70, 30));
    println!("opened again: ada has {ada}, grace has {grace}");
    Ok(())
}
