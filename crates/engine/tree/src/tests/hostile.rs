//! Damaged pages, and intact pages that the tree should not have there: each gives an error, never
//! a panic or an endless loop.

use std::io::{Seek, SeekFrom, Write};

use pagekeeper_testing::{Seed, disk_dir};

use super::*;
use crate::format::edit;
use crate::format::node::EntryBody;

fn key(number: u64) -> Vec<u8> {
    format!("{:0300}", number * 7).into_bytes()
}

/// Makes a tree of three levels with some large values.
fn fill(store: &Store) -> Tree {
    let mut txn = store.begin_write().unwrap();
    let tree = Tree::create(&mut txn).unwrap();
    txn.set_root(Some(tree.root()));
    for number in 0..1500 {
        let len = if number % 100 == 0 { 9000 } else { 60 };
        tree.insert(&mut txn, &key(number), &vec![5; len]).unwrap();
    }
    txn.commit(Durability::Sync).unwrap();
    let found = tree.check(&store.begin_read().unwrap()).unwrap();
    assert!(found.inner_pages > 1 && found.value_pages > 15, "{found:?}");
    tree
}

/// Runs all operations of a tree. Returns whether all of them succeeded.
fn use_all(store: &Store, tree: Tree, rng: &mut Rng) -> Result<(), TreeError> {
    let mut txn = store.begin_write().unwrap();
    let mut result = Ok(());
    let mut note = |done: Result<(), TreeError>| {
        if result.is_ok() {
            result = done;
        }
    };
    note(Tree::open(&txn, tree.root()).map(drop));
    note(tree.len(&txn).map(drop));
    note(tree.iter(&txn).try_for_each(|entry| entry.map(drop)));
    note(tree.iter(&txn).rev().try_for_each(|entry| entry.map(drop)));
    note(tree.scan_with::<&[u8], ()>(&txn, .., |_, _| ControlFlow::Continue(())).map(drop));
    note(tree.scan_back_with::<&[u8], ()>(&txn, .., |_, _| ControlFlow::Continue(())).map(drop));
    note(tree.check(&txn).map(drop));
    for _ in 0..12 {
        let number = rng.of(0..1600);
        note(tree.get(&txn, &key(number)).map(drop));
        note(tree.range(&txn, key(number)..).take(20).try_for_each(|entry| entry.map(drop)));
        note(tree.range(&txn, ..key(number)).rev().take(20).try_for_each(|entry| entry.map(drop)));
        let len = [3, 60, 61, 500, 9000, 20_000][rng.index(6)];
        note(tree.insert(&mut txn, &key(number), &vec![1; len]).map(drop));
        note(tree.remove(&mut txn, &key(rng.of(0..1600))).map(drop));
    }
    for number in rng.of(0..1000).. {
        if number % 300 == 299 {
            break;
        }
        note(tree.remove(&mut txn, &key(number)).map(drop));
    }
    note(tree.delete(&mut txn));
    result
}

#[test]
fn pages_that_make_no_sense_are_errors() {
    let seed = Seed::new();
    let mut rng = seed.rng(0);
    let (disk, mut failed) = (disk(), 0);
    let store = open(&disk, 4096).unwrap();
    let tree = fill(&store);
    use_all(&store, tree, &mut rng).unwrap();
    for _ in 0..400 {
        let mut txn = store.begin_write().unwrap();
        let changed: Vec<_> = (0..rng.of(1..3)).map(|_| PageNo::new(rng.of(0..txn.pages()))).collect();
        let before: Vec<Vec<u8>> = changed.iter().map(|page| txn.read(*page).unwrap().to_vec()).collect();
        for page in &changed {
            let other = txn.read(PageNo::new(rng.of(0..txn.pages()))).unwrap();
            let payload = txn.page_mut(*page).unwrap();
            match rng.of(0..6) {
                0 => payload.copy_from_slice(&other),
                1 => payload.fill(rng.number().to_le_bytes()[0]),
                2 => payload.iter_mut().for_each(|byte| *byte = rng.number().to_le_bytes()[0]),
                3..5 => {
                    for _ in 0..rng.of(1..4) {
                        payload[rng.index(24)] = rng.number().to_le_bytes()[0];
                    }
                }
                _ => {
                    for _ in 0..rng.of(1..20) {
                        let at = rng.index(payload.len());
                        payload[at] = rng.number().to_le_bytes()[0];
                    }
                }
            }
        }
        txn.commit(Durability::None).unwrap();
        match use_all(&store, tree, &mut rng) {
            Ok(()) => {}
            Err(TreeError::Store(_) | TreeError::NotATree { .. }) => failed += 1,
            Err(error) => panic!("{error}"),
        }
        let mut txn = store.begin_write().unwrap();
        for (page, before) in changed.iter().zip(&before).rev() {
            txn.write(*page, before).unwrap();
        }
        txn.commit(Durability::None).unwrap();
    }
    assert!(failed > 200, "{failed} failed");
    tree.check(&store.begin_read().unwrap()).unwrap();
}

#[test]
fn a_page_of_something_else_is_named() {
    let (store, tree) = with_tree(&disk(), 4096);
    let mut txn = store.begin_write().unwrap();
    let other = txn.allocate().unwrap();
    txn.page_mut(other).unwrap()[..5].copy_from_slice(b"a log");
    let error = Tree::open(&txn, other).unwrap_err();
    assert_eq!(error.to_string(), "page 1 is not what the tree should have there: it is no page of a tree");
    let error = Tree::open(&txn, PageNo::new(99)).unwrap_err();
    assert!(matches!(error, TreeError::Store(Error::OutOfRange { page, .. }) if page.get() == 99));
    assert_eq!(unused_pages(&txn, &[tree]).unwrap(), [other]);
    // A page cannot belong to two trees.
    let error = unused_pages(&txn, &[tree, tree]).unwrap_err();
    assert!(matches!(error, TreeError::NotATree { page, .. } if page == tree.root()));
}

/// Makes a leaf of one entry: a large value whose first page is page 1.
fn name_large(payload: &mut [u8], len: u32) {
    let cell = [&[1, 0, 0xff, 0xff, b'k'][..], &len.to_le_bytes(), &1_u32.to_le_bytes()].concat();
    let place = payload.len() - cell.len();
    payload[place..].copy_from_slice(&cell);
    payload[4..8].copy_from_slice(&[1, 0, place.to_le_bytes()[0], place.to_le_bytes()[1]]);
    payload[12..14].copy_from_slice(&place.to_le_bytes()[..2]);
}

/// Without this check a small store could claim a value that takes all memory.
#[test]
fn a_value_is_not_larger_than_its_store() {
    let (store, tree) = with_tree(&disk(), 4096);
    let mut txn = store.begin_write().unwrap();
    for (pages, next) in [(3_u32, 2_u32), (2, 3), (1, u32::MAX)] {
        let page = txn.allocate().unwrap();
        let head = [&b"tv\0\0"[..], &pages.to_le_bytes(), &next.to_le_bytes(), &[0; 4]].concat();
        txn.page_mut(page).unwrap()[..16].copy_from_slice(&head);
    }
    name_large(txn.page_mut(tree.root()).unwrap(), 6 * 4064 - 3 * 16);
    let error = tree.get(&txn, b"k").unwrap_err();
    assert!(error.to_string().ends_with("a value's pages don't fit its length"), "{error}");
}

#[test]
fn errors_within_a_page_are_found() {
    let (store, tree) = with_tree(&disk(), 4096);
    let mut txn = store.begin_write().unwrap();
    for key in [b"a", b"b"] {
        tree.insert(&mut txn, key, b"value").unwrap();
    }
    tree.insert(&mut txn, b"c", &[1; 5000]).unwrap();
    let large = PageNo::new(txn.pages() - 1);
    // Behind the end of a value.
    txn.page_mut(large).unwrap()[4000] = 1;
    let error = tree.check(&txn).unwrap_err();
    assert_eq!(
        error.to_string(),
        "page 2 is not what the tree should have there: a value has something behind it"
    );
    txn.page_mut(large).unwrap()[4000] = 0;
    tree.check(&txn).unwrap();
    // Out of order.
    txn.page_mut(tree.root()).unwrap()[12..16].rotate_left(2);
    let keys = |backwards: bool| {
        let mut range = tree.iter(&txn);
        let next = || if backwards { range.next_back() } else { range.next() };
        std::iter::from_fn(next).collect::<Result<Vec<_>, _>>()
    };
    let scanned = [
        tree.scan_with::<&[u8], ()>(&txn, .., |_, _| ControlFlow::Continue(())).map(drop),
        tree.scan_back_with::<&[u8], ()>(&txn, .., |_, _| ControlFlow::Continue(())).map(drop),
    ];
    let others = [keys(false).map(drop), keys(true).map(drop), tree.check(&txn).map(drop)];
    for done in scanned.into_iter().chain(others) {
        assert!(done.unwrap_err().to_string().ends_with("is not in order"));
    }
}

#[test]
fn a_page_that_is_its_own_child_ends_every_way() {
    let (store, tree) = with_tree(&disk(), 4096);
    let mut txn = store.begin_write().unwrap();
    // A large value whose only extent continues in itself.
    let extent = txn.allocate().unwrap();
    let head =
        [&b"tv\0\0\x01\0\0\0"[..], &u32::try_from(extent.get()).unwrap().to_le_bytes(), &[0; 4]].concat();
    txn.page_mut(extent).unwrap()[..16].copy_from_slice(&head);
    for len in [9000, u32::MAX] {
        name_large(txn.page_mut(tree.root()).unwrap(), len);
        let done = [
            tree.get(&txn, b"k").map(drop),
            tree.check(&txn).map(drop),
            tree.insert(&mut txn, b"k", &[1; 9000]).map(drop),
            tree.remove(&mut txn, b"k").map(drop),
        ];
        assert!(done.iter().all(Result::is_err), "{done:?}");
    }
    // An inner page whose two children are both itself.
    let payload = txn.page_mut(tree.root()).unwrap();
    payload.fill(0);
    payload[..2].copy_from_slice(b"ti");
    payload[2] = 9;
    payload[4..8].copy_from_slice(&[2, 0, 0x80, 0x0f]);
    payload[12..16].copy_from_slice(&[0x80, 0x0f, 0x90, 0x0f]);
    payload[0xf80..0xf88].copy_from_slice(&[0, 0, 4, 0, 0, 0, 0, 0]);
    payload[0xf90..0xf99].copy_from_slice(&[1, 0, 4, 0, b'm', 0, 0, 0, 0]);
    Tree::open(&txn, tree.root()).unwrap();
    for done in [tree.len(&txn).map(drop), tree.first(&txn).map(drop), tree.last(&txn).map(drop)] {
        assert!(matches!(done, Err(TreeError::NotATree { page, .. }) if page == tree.root()), "{done:?}");
    }
    assert!(tree.insert(&mut txn, b"z", b"").is_err() && tree.check(&txn).is_err());
}

/// All children of each page are the next page, so that 2^31 paths lead to the leaf.
#[test]
fn pages_that_are_there_over_and_over_end_every_way() {
    let store = open(&disk(), 4096).unwrap();
    let mut txn = store.begin_write().unwrap();
    for level in (1..=31).rev() {
        let page = txn.allocate().unwrap();
        let child = EntryBody::Child(u32::try_from(page.get()).unwrap() + 1);
        let children = [(&b""[..], child), (&b"k"[..], child)];
        edit::build(txn.page_mut(page).unwrap(), level, &[], children).unwrap();
    }
    Tree::create(&mut txn).unwrap();
    let tree = Tree::open(&txn, PageNo::new(0)).unwrap();
    let scans = [
        tree.scan_with::<&[u8], ()>(&txn, .., |_, _| ControlFlow::Continue(())).map(drop),
        tree.scan_back_with::<&[u8], ()>(&txn, .., |_, _| ControlFlow::Continue(())).map(drop),
    ];
    let others = [tree.len(&txn).map(drop), tree.first(&txn).map(drop), tree.last(&txn).map(drop)];
    for done in scans.into_iter().chain(others) {
        assert!(done.unwrap_err().to_string().ends_with("more pages than there are"));
    }
    assert!(tree.check(&txn).is_err() && tree.delete(&mut txn).is_err());
}

#[test]
fn a_damaged_page_is_the_stores_error_and_other_pages_are_read() {
    let temp = disk_dir();
    let dir = temp.path().join("store");
    let options = || Store::options().journal_bytes(4 << 20).memory(8 << 20).warm(false);
    let store = options().open(&dir).unwrap();
    let tree = fill(&store);
    store.close_and_sync().unwrap();
    let store = options().open(&dir).unwrap();
    // The leaf with the first key.
    let read = store.begin_read().unwrap();
    let (leaf, _) = crate::read::leaf_of(&read, tree.root(), &key(0), |_| ()).unwrap();
    drop(read);
    store.close_and_sync().unwrap();
    let mut data = std::fs::OpenOptions::new().write(true).open(dir.join("data")).unwrap();
    data.seek(SeekFrom::Start(leaf.offset(4096) + 2000)).unwrap();
    data.write_all(&[0x55; 3]).unwrap();
    drop(data);
    let store = options().open(&dir).unwrap();
    let read = store.begin_read().unwrap();
    let damaged = |error: Option<TreeError>| matches!(error, Some(TreeError::Store(Error::Damaged { page, .. })) if page == leaf);
    assert!(damaged(tree.get(&read, &key(0)).err()));
    assert!(damaged(tree.check(&read).err()));
    assert!(damaged(tree.iter(&read).find_map(Result::err)));
    assert_eq!(tree.get(&read, &key(1499)).unwrap().unwrap().len(), 60);
    assert!(tree.range(&read, key(1000)..).all(|entry| entry.is_ok()));
    let mut txn = store.begin_write().unwrap();
    assert!(damaged(tree.insert(&mut txn, &key(0), b"again").err()));
}
