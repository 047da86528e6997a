//! Tests of how many pages a tree takes, for keys in all orders, that it gives them back, and how
//! much of the journal it takes.

use super::*;

/// Makes a tree with these keys, committed now and then, each with a value of 20 bytes.
fn filled(keys: impl Iterator<Item = Vec<u8>>) -> (Store, Tree, Model) {
    let (store, tree) = with_tree(&disk(), 4096);
    let mut model = Model::new();
    let mut txn = store.begin_write().unwrap();
    for (number, key) in keys.enumerate() {
        let value = [key.last().copied().unwrap_or(0); 20];
        assert!(!tree.insert(&mut txn, &key, &value).unwrap());
        model.insert(key, value.to_vec());
        if number % 500 == 499 {
            txn.commit(Durability::None).unwrap();
            txn = store.begin_write().unwrap();
        }
    }
    txn.commit(Durability::None).unwrap();
    compare(tree, &store.begin_read().unwrap(), &model);
    (store, tree, model)
}

fn number(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// Returns how many pages this many entries fill, with keys of this length.
fn full_pages(entries: u64, key: u64) -> u64 {
    (entries * (2 + 4 + key + 20)).div_ceil(4096)
}

#[test]
fn keys_that_come_in_order_fill_their_pages_from_either_side() {
    const KEYS: u64 = 20_000;
    let filled_by = |keys: &mut dyn Iterator<Item = u64>| {
        let (store, tree, _) = filled(keys.map(number));
        let found = tree.check(&store.begin_read().unwrap()).unwrap();
        assert_eq!(found.entries, KEYS);
        found.leaf_pages
    };
    let most = full_pages(KEYS, 8) * 11 / 10;
    let (up, down) = (filled_by(&mut (0..KEYS)), filled_by(&mut (0..KEYS).rev()));
    assert!(up <= most && down <= most, "{up} and {down} leaves, {most} would do");
    // In random order, they are at least half full, and more on average.
    let mixed = filled_by(&mut (0..KEYS).map(|at| at * 7919 % KEYS));
    assert!(mixed <= most * 8 / 5, "{mixed} leaves, full would be {most}");
}

#[test]
fn a_common_prefix_is_stored_once_per_page() {
    const KEYS: u64 = 5000;
    let key = |number: u64| [vec![b'/'; 480], format!("{number:08}").into_bytes()].concat();
    let (store, tree, _) = filled((0..KEYS).map(|at| at * 1237 % KEYS).map(key));
    let found = tree.check(&store.begin_read().unwrap()).unwrap();
    // Without that, a page would hold 8.
    assert!(found.leaf_pages <= KEYS / 40, "{found:?}");
    // Separators are cut behind the byte that distinguishes two keys, but that byte is behind the
    // common prefix.
    assert!(found.inner_pages <= 8, "{found:?}");
}

#[test]
fn separators_are_no_longer_than_they_have_to_be() {
    let key = |number: u64| [&number.to_be_bytes()[6..], &[b'-'; 400]].concat();
    let (store, tree, _) = filled((0..3000).map(key));
    let found = tree.check(&store.begin_read().unwrap()).unwrap();
    // With whole keys, a page would hold 10.
    assert_eq!((found.levels, found.inner_pages), (2, 1), "{found:?}");
    assert!(found.leaf_pages > 300, "{found:?}");
}

#[test]
fn a_page_omits_the_common_prefix_of_its_separators() {
    let key = |number: u64| {
        let group = format!("{:02}", number / 400).into_bytes();
        [vec![b'a'; 200], group, vec![b'b'; 200], format!("{number:05}").into_bytes()].concat()
    };
    let (store, tree, _) = filled((0..12_000).map(|at| at * 5003 % 12_000).map(key));
    let found = tree.check(&store.begin_read().unwrap()).unwrap();
    // With separators further up, a page would hold 17, since fewer than 200 bytes would be left
    // out.
    assert!(found.levels > 2 && found.leaf_pages < 300, "{found:?}");
}

/// A leaf that is alone below its inner page is merged after that page was.
#[test]
fn a_leaf_without_neighbours_gets_some() {
    let (store, tree) = with_tree(&disk(), 4096);
    let key = |number: u16| [vec![b'k'; 490], number.to_be_bytes().to_vec()].concat();
    let mut txn = store.begin_write().unwrap();
    let found = |txn: &pagekeeper_store::WriteTxn<'_>| tree.check(txn).unwrap();
    let mut last = 0;
    while found(&txn).levels < 3 {
        tree.insert(&mut txn, &key(last), &[1; 500]).unwrap();
        last += 1;
    }
    // The last entry is in its own leaf, and that in its own inner page. The other one becomes half
    // full.
    let before = found(&txn);
    assert_eq!(before.inner_pages, 3);
    // So does the leaf before the last one: without its keys' common prefix, it has room for no
    // more.
    for number in (0..last / 2).chain(last - 3..last - 1) {
        tree.remove(&mut txn, &key(number)).unwrap();
    }
    let half = found(&txn);
    assert!(half.leaf_pages < before.leaf_pages && half.inner_pages == 3, "{half:?}");
    tree.remove(&mut txn, &key(last - 1)).unwrap();
    let after = found(&txn);
    assert_eq!((after.inner_pages, after.leaf_pages), (1, half.leaf_pages - 1));
}

#[test]
fn removals_free_pages() {
    let orders: [fn(u64) -> u64; 4] =
        [|at| at, |at| 5999 - at, |at| at * 4513 % 6000, |at| (at % 2) * 3000 + at / 2];
    let key = |number: u64| match number % 3 {
        0 => [vec![b'x'; 400], number.to_be_bytes().to_vec()].concat(),
        _ => number.to_be_bytes().to_vec(),
    };
    for order in orders {
        let (store, tree, mut model) = filled((0..6000).map(key));
        let most = store.stats().pages;
        for at in 0..6000 {
            let mut txn = store.begin_write().unwrap();
            let removed = key(order(at));
            assert!(tree.remove(&mut txn, &removed).unwrap());
            assert!(!tree.remove(&mut txn, &removed).unwrap());
            txn.commit(Durability::None).unwrap();
            model.remove(&removed);
            if at % 1000 == 999 {
                compare(tree, &store.begin_read().unwrap(), &model);
            }
        }
        let found = tree.check(&store.begin_read().unwrap()).unwrap();
        assert_eq!((found.leaf_pages, found.inner_pages), (1, 0));
        assert_eq!(store.stats().free_pages, store.stats().pages - 1);
        // The freed pages are used again.
        let mut txn = store.begin_write().unwrap();
        for at in 0..5000 {
            tree.insert(&mut txn, &key(at), &[1; 20]).unwrap();
        }
        txn.commit(Durability::None).unwrap();
        assert_eq!(store.stats().pages, most);
    }
}

#[test]
fn pages_that_much_was_removed_from_are_merged() {
    let (store, tree, mut model) = filled((0..20_000).map(number));
    let before = tree.check(&store.begin_read().unwrap()).unwrap();
    let mut txn = store.begin_write().unwrap();
    for at in (0..20_000).filter(|at| at % 10 != 0) {
        tree.remove(&mut txn, &number(at)).unwrap();
        model.remove(&number(at));
    }
    compare(tree, &txn, &model);
    let after = tree.check(&txn).unwrap();
    assert!(after.leaf_pages * 4 < before.leaf_pages, "{before:?} {after:?}");
}

#[test]
fn a_value_that_shrinks_gives_its_room_back() {
    let (store, tree) = with_tree(&disk(), 4096);
    let mut txn = store.begin_write().unwrap();
    for len in [900, 1] {
        for at in 0..1000 {
            tree.insert(&mut txn, &number(at), &vec![7; len]).unwrap();
        }
    }
    let found = tree.check(&txn).unwrap();
    assert!(found.leaf_pages < 20, "{found:?}");
}

#[test]
fn large_values_are_written_over_in_place_and_their_pages_are_used_again() {
    let (store, tree) = with_tree(&disk(), 4096);
    let payload = store.payload_size();
    let put = |key: &[u8], len: usize, byte: u8| {
        let mut txn = store.begin_write().unwrap();
        tree.insert(&mut txn, key, &vec![byte; len]).unwrap();
        txn.commit(Durability::None).unwrap();
        assert_eq!(tree.get(&store.begin_read().unwrap(), key).unwrap().unwrap()[..], vec![byte; len]);
        let found = tree.check(&store.begin_read().unwrap()).unwrap();
        (store.stats().pages, store.stats().free_pages, found.value_pages)
    };
    assert_eq!(put(b"a", 10 * payload - 16, 1), (11, 0, 10));
    assert_eq!(put(b"a", 9 * payload + 1, 2), (11, 0, 10));
    assert_eq!(put(b"b", 3 * payload, 3), (15, 0, 14));
    // The others are in between: free pages are not consecutive, so each piece has a head.
    assert_eq!(put(b"a", 100, 4).2, 4);
    assert_eq!(put(b"c", 12 * payload, 5), (18, 0, 17));
    assert_eq!(put(b"b", 100, 6).2, 13);
    assert_eq!(put(b"d", 6 * payload, 7).2, 20);
    let mut txn = store.begin_write().unwrap();
    for key in [b"a", b"b", b"c", b"d"] {
        assert!(tree.remove(&mut txn, key).unwrap());
    }
    txn.commit(Durability::None).unwrap();
    assert_eq!(store.stats().free_pages, store.stats().pages - 1);
}

#[test]
fn a_small_change_takes_little_of_the_journal() {
    let (store, tree, _) = filled((0..20_000).map(|at| number(at * 2)));
    store.sync().unwrap();
    let journaled = |key: u64, value: &[u8]| {
        let before = store.stats().journal_bytes;
        let mut txn = store.begin_write().unwrap();
        tree.insert(&mut txn, &number(key), value).unwrap();
        txn.commit(Durability::None).unwrap();
        store.stats().journal_bytes - before
    };
    // First the whole page, once.
    assert!(journaled(2000, &[1; 20]) > 4000);
    let over = journaled(2002, &[2; 20]);
    assert!(over < 200, "{over} bytes for 20 that are written over");
    let inserted = journaled(2003, &[3; 20]);
    assert!(inserted < 600, "{inserted} bytes for an entry of 34");
}
