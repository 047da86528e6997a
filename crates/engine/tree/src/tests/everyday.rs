//! Tests of what an engine calls every day: trees by name, bulk loads, previous values, removals of
//! many, and keys of a third of a page. Each is compared with a map of the standard library.

use pagekeeper_testing::Seed;

use super::*;

/// Returns keys of this length that differ at the end.
fn long_key(len: usize, number: u64) -> Vec<u8> {
    let mut key = vec![b'k'; len];
    key[len - 8..].copy_from_slice(&number.to_be_bytes());
    key
}

#[test]
fn keys_of_a_third_of_a_page_split_and_merge_in_any_order() {
    let seed = Seed::new();
    for page_size in [4096, 16 << 10, 64 << 10] {
        let mut rng = seed.rng(page_size as u64);
        let (store, tree) = with_tree(&disk(), page_size);
        let longest = max_key_bytes(store.payload_size());
        let mut model = Model::new();
        let mut txn = store.begin_write().unwrap();
        for round in 0..400 {
            // Keys that share nearly all, or nothing; and short ones between.
            let mut key = long_key(longest, rng.of(0..60));
            if rng.one_in(2) {
                key[0] = rng.number().to_le_bytes()[0];
            }
            if rng.one_in(4) {
                key.truncate(rng.index(longest));
            }
            if rng.of(0..400) > round {
                let value = vec![7; [0, 5, 8, 9, 700][rng.index(5)]];
                tree.insert(&mut txn, &key, &value).unwrap();
                model.insert(key, value);
            } else if let Some(key) = model.keys().nth(rng.index(model.len() + 1)).cloned() {
                assert_eq!(tree.take(&mut txn, &key).unwrap(), model.remove(&key));
            }
            if round % 20 == 0 {
                compare(tree, &txn, &model);
            }
        }
        compare(tree, &txn, &model);
        txn.commit(Durability::Sync).unwrap();
        compare(tree, &store.begin_read().unwrap(), &model);
    }
}

#[test]
fn a_bulk_load_is_the_same_as_insertions_and_changes_like_it() {
    let seed = Seed::new();
    for (life, count) in [0, 1, 2, 50, 3000].into_iter().enumerate() {
        let mut rng = seed.rng(life as u64);
        let store = open(&disk(), 4096).unwrap();
        let mut model: Model =
            (0..count).map(|_| (random_key(&mut rng), random_value(&mut rng, 4064))).collect();
        let mut txn = store.begin_write().unwrap();
        let tree = Tree::load(&mut txn, &model).unwrap();
        compare(tree, &txn, &model);
        for _ in 0..200 {
            let (key, value) = (random_key(&mut rng), random_value(&mut rng, 4064));
            assert_eq!(tree.replace(&mut txn, &key, &value).unwrap(), model.insert(key, value));
        }
        compare(tree, &txn, &model);
    }
}

#[test]
fn a_bulk_load_packs_its_pages_and_refuses_keys_out_of_order() {
    let store = open(&disk(), 4096).unwrap();
    let mut txn = store.begin_write().unwrap();
    let entries = |count: u32| (0..count).map(|number| (number.to_be_bytes(), [7; 90]));
    let tree = Tree::load(&mut txn, entries(40_000)).unwrap();
    let found = tree.check(&txn).unwrap();
    // 40 entries of 100 bytes fit into a leaf.
    assert_eq!((found.entries, found.leaf_pages, found.levels), (40_000, 1000, 3));
    for again in [5, 4] {
        let entries = entries(6).chain([(u32::to_be_bytes(again), [7; 90])]);
        let error = Tree::load(&mut txn, entries).unwrap_err();
        assert!(matches!(error, TreeError::NotInOrder { at: 6 }), "{error}");
    }
}

#[test]
fn trees_by_name_are_made_listed_and_deleted_with_all_their_pages() {
    let (store, names) = with_tree(&disk(), 4096);
    let mut txn = store.begin_write().unwrap();
    for name in ["b", "a", ""] {
        let tree = Tree::named_or_new(&mut txn, name).unwrap();
        tree.insert(&mut txn, name.as_bytes(), &[1; 9000]).unwrap();
        assert_eq!(Tree::named_or_new(&mut txn, name).unwrap(), tree);
    }
    txn.commit(Durability::Sync).unwrap();
    let read = store.begin_read().unwrap();
    assert_eq!(Tree::names(&read).unwrap(), [&b""[..], b"a", b"b"]);
    assert_eq!(Tree::named(&read, "c").unwrap(), None);
    let mut txn = store.begin_write().unwrap();
    assert!(Tree::delete_named(&mut txn, "a").unwrap() && Tree::delete_named(&mut txn, "").unwrap());
    assert!(!Tree::delete_named(&mut txn, "a").unwrap());
    let left = Tree::named(&txn, "b").unwrap().unwrap();
    assert_eq!(unused_pages(&txn, &[names, left]).unwrap(), []);
    // A root page that holds something else.
    names.insert(&mut txn, b"odd", b"7").unwrap();
    assert!(matches!(Tree::named(&txn, "odd"), Err(TreeError::NotATree { .. })));
    names.insert(&mut txn, b"far", &[0xff; 8]).unwrap();
    assert!(matches!(Tree::named(&txn, "far"), Err(TreeError::Store(Error::OutOfRange { .. }))));
    assert_eq!(Tree::named(&read, "a").unwrap().map(|tree| tree.len(&read).unwrap()), Some(1));
}

#[test]
fn prefixes_ends_and_retained_entries_are_those_of_a_map() {
    let mut rng = Seed::new().rng(0);
    let store = open(&disk(), 4096).unwrap();
    let mut txn = store.begin_write().unwrap();
    let mut model: Model = (0..4000).map(|_| (random_key(&mut rng), random_value(&mut rng, 100))).collect();
    let tree = Tree::load(&mut txn, &model).unwrap();
    for prefix in [&b""[..], b"p", b"ppp", b"l", &[0xff], &[0xff, 0xff], &[0, 0, 1], b"none"] {
        let found: Vec<_> = tree.prefix(&txn, prefix).map(|entry| entry.unwrap().0).collect();
        let expected: Vec<_> = model.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
        assert_eq!(found, expected, "{prefix:?}");
    }
    for _ in 0..50 {
        assert_eq!(tree.pop_first(&mut txn).unwrap(), model.pop_first());
        assert_eq!(tree.pop_last(&mut txn).unwrap(), model.pop_last());
    }
    let mut seen = Vec::new();
    let removed = tree.retain(&mut txn, &b"\0\0\x02"[..].., |key, value| {
        seen.push(key.to_vec());
        value.first().is_some_and(|byte| byte % 3 == 0)
    });
    assert_eq!(seen, model.keys().filter(|key| key[..] >= b"\0\0\x02"[..]).cloned().collect::<Vec<_>>());
    let before = model.len();
    model.retain(|key, value| key[..] < b"\0\0\x02"[..] || value.first().is_some_and(|byte| byte % 3 == 0));
    assert_eq!(removed.unwrap(), (before - model.len()) as u64);
    assert!(before - model.len() > 1024, "more than one batch");
    compare(tree, &txn, &model);
    assert_eq!(tree.retain::<&[u8]>(&mut txn, .., |_, _| false).unwrap(), model.len() as u64);
    assert_eq!((tree.pop_first(&mut txn).unwrap(), tree.pop_last(&mut txn).unwrap()), (None, None));
}

#[test]
fn an_insertion_that_exceeds_the_journal_fails_and_commits_before_it_fit() {
    let options = Store::options().io(Arc::new(disk())).journal_bytes(1 << 20).memory(16 << 20);
    let store = options.warm(false).without_threads().open(Path::new("/store")).unwrap();
    let mut most = 0;
    // The transaction one entry shorter than the one that is refused can be committed.
    for is_last in [false, true] {
        let mut txn = store.begin_write().unwrap();
        let tree = Tree::create(&mut txn).unwrap();
        let mut insert = |number: u64| {
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            tree.insert(&mut txn, &key, &[number.to_le_bytes()[0] | 1; 200])
        };
        if is_last {
            (0..most).for_each(|number| assert!(!insert(number).unwrap()));
            txn.commit(Durability::Sync).unwrap();
        } else {
            let error = loop {
                match insert(most) {
                    Ok(_) => most += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, TreeError::Store(Error::TransactionTooLarge { .. })), "{error}");
            assert!(matches!(txn.commit(Durability::Sync), Err(Error::TransactionTooLarge { .. })));
        }
    }
    assert!(most > 2000, "{most}");
}
