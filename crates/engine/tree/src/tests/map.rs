//! Compares a tree with a map of the standard library, by random changes.

use pagekeeper_testing::Seed;

use super::*;

/// Changes in one transaction.
const CHANGES: u64 = 40;

/// Makes a tree large, then small, several times, and compares it all the while.
fn grow_and_shrink(page_size: usize, rounds: u64) {
    let seed = Seed::new();
    let mut rng = seed.rng(page_size as u64);
    let disk = disk();
    let (mut store, tree) = with_tree(&disk, page_size);
    let payload = store.payload_size();
    let mut model = Model::new();
    for round in 0..rounds {
        // The insertions among sixteen changes.
        let insertions = if round / 20 % 2 == 0 { 13 } else { 3 };
        let mut txn = store.begin_write().unwrap();
        let mut changed = model.clone();
        for _ in 0..rng.of(1..CHANGES) {
            let key = if insertions < 8 && !changed.is_empty() && !rng.one_in(8) {
                changed.keys().nth(rng.index(changed.len())).unwrap().clone()
            } else {
                random_key(&mut rng)
            };
            let before = tree.get(&txn, &key).unwrap();
            assert_eq!(before.as_deref(), changed.get(&key).map(|value| &value[..]), "{key:?}");
            let in_place = tree.get_with(&txn, &key, |value| before.as_deref() == Some(value)).unwrap();
            assert_eq!(in_place, before.as_ref().map(|_| true), "{key:?}");
            drop(before);
            if rng.of(0..16) < insertions {
                let value = random_value(&mut rng, payload);
                let was_there = tree.insert(&mut txn, &key, &value).unwrap();
                assert_eq!(was_there, changed.insert(key, value).is_some());
            } else {
                assert_eq!(tree.remove(&mut txn, &key).unwrap(), changed.remove(&key).is_some());
            }
        }
        compare_range(tree, &txn, &changed, &mut rng);
        compare_many(tree, &txn, &changed, &mut rng);
        if rng.one_in(8) {
            compare(tree, &txn, &changed);
        }
        if rng.one_in(6) {
            drop(txn); // given up
            compare(tree, &store.begin_read().unwrap(), &model);
        } else {
            let before = store.begin_read().unwrap();
            txn.commit(Durability::None).unwrap();
            if rng.one_in(8) {
                compare(tree, &before, &model);
            }
            model = changed;
        }
        if rng.one_in(16) {
            store.close().unwrap();
            store = open(&disk, page_size).unwrap();
            assert_eq!(store.begin_read().unwrap().root(), Some(tree.root()));
        }
        let read = store.begin_read().unwrap();
        compare_range(tree, &read, &model, &mut rng);
        compare_many(tree, &read, &model, &mut rng);
    }
    let read = store.begin_read().unwrap();
    compare(tree, &read, &model);
    drop(read);
    assert!(store.verify().unwrap().is_sound());
    let mut txn = store.begin_write().unwrap();
    tree.delete(&mut txn).unwrap();
    assert_eq!(unused_pages(&txn, &[]).unwrap(), []);
}

#[test]
fn a_tree_is_a_map_with_pages_of_4_kib() {
    grow_and_shrink(4096, 200);
}

#[test]
fn a_tree_is_a_map_with_pages_of_8_kib() {
    grow_and_shrink(8192, 120);
}

#[test]
fn a_tree_is_a_map_with_pages_of_16_and_32_kib() {
    grow_and_shrink(16_384, 80);
    grow_and_shrink(32_768, 80);
}

#[test]
fn a_tree_is_a_map_with_pages_of_64_kib() {
    grow_and_shrink(65_536, 80);
}

/// Readers work in place beside commits, checkpoints and evictions: each snapshot is of one commit.
#[test]
fn readers_in_place_beside_commits_and_checkpoints_see_one_commit() {
    const KEYS: u64 = 1200;
    let dir = pagekeeper_testing::disk_dir();
    // Less memory than the pages take, so that they are evicted and loaded again.
    let options = Store::options().journal_bytes(8 << 20).memory(4 << 20);
    let store = options.open(dir.path().join("store")).unwrap();
    let mut txn = store.begin_write().unwrap();
    let tree = Tree::create(&mut txn).unwrap();
    // Every other one in a separate page.
    let value = |key: u64, round: u64| {
        let len = if key.is_multiple_of(2) { 100 } else { 4000 };
        round.to_le_bytes().into_iter().cycle().take(len).collect::<Vec<u8>>()
    };
    for key in 0..KEYS {
        tree.insert(&mut txn, &key.to_be_bytes(), &value(key, 0)).unwrap();
    }
    txn.commit(Durability::None).unwrap();
    let over = std::sync::atomic::AtomicBool::new(false);
    let is_over = || over.load(std::sync::atomic::Ordering::Relaxed);
    let seeds = Seed::new();
    std::thread::scope(|scope| {
        for reader in 0..3 {
            let (store, mut rng) = (&store, seeds.rng(reader));
            scope.spawn(move || {
                while !is_over() {
                    let txn = store.begin_read().unwrap();
                    let mut at = None;
                    for _ in 0..8 {
                        let key = rng.of(0..KEYS);
                        let round = tree.get_with(&txn, &key.to_be_bytes(), |found| {
                            let round = u64::from_le_bytes(*found.first_chunk().unwrap());
                            assert_eq!(found, value(key, round), "{key}");
                            round
                        });
                        match round {
                            Ok(round) => {
                                assert!(round.is_some(), "{key}");
                                assert_eq!(*at.get_or_insert(round), round, "{key}");
                            }
                            Err(TreeError::Store(Error::SnapshotTooOld)) => break,
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        for round in 1..30 {
            let mut txn = store.begin_write().unwrap();
            for key in 0..KEYS {
                tree.insert(&mut txn, &key.to_be_bytes(), &value(key, round)).unwrap();
            }
            txn.commit(Durability::None).unwrap();
            if round % 3 == 0 {
                store.sync().unwrap();
            }
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_key_that_is_too_long_is_refused_and_one_of_any_other_length_is_not() {
    let (store, tree) = with_tree(&disk(), 4096);
    let mut txn = store.begin_write().unwrap();
    let longest = vec![9; MAX_KEY_BYTES];
    for key in [&b""[..], &longest] {
        assert!(!tree.insert(&mut txn, key, b"value").unwrap());
        assert_eq!(tree.get(&txn, key).unwrap().as_deref(), Some(&b"value"[..]));
    }
    let longer = vec![9; MAX_KEY_BYTES + 1];
    let refused = [
        tree.get(&txn, &longer).map(drop),
        tree.insert(&mut txn, &longer, b"value").map(drop),
        tree.remove(&mut txn, &longer).map(drop),
    ];
    for error in refused {
        assert!(matches!(error, Err(TreeError::KeyTooLong { given: 1337, max: MAX_KEY_BYTES })));
    }
    // As a bound, it is a key like any other.
    let lengths =
        |range: crate::Range<'_, _>| -> Vec<usize> { range.map(|entry| entry.unwrap().0.len()).collect() };
    assert_eq!(lengths(tree.range(&txn, &longer[..]..)), [] as [usize; 0]);
    assert_eq!(lengths(tree.range(&txn, ..&longer[..])), [0, MAX_KEY_BYTES]);
    assert_eq!(lengths(tree.range(&txn, ..&longest[..])), [0]);
    let backwards: Vec<_> =
        tree.range(&txn, ..=&longer[..]).rev().map(|entry| entry.unwrap().0.len()).collect();
    assert_eq!(backwards, [MAX_KEY_BYTES, 0]);
    let mut scanned = Vec::new();
    let mut scan = |key: &[u8], _: &[u8]| -> ControlFlow<()> {
        scanned.push(key.len());
        ControlFlow::Continue(())
    };
    let ends = [
        tree.scan_with(&txn, &longer[..].., &mut scan),
        tree.scan_with(&txn, ..&longer[..], &mut scan),
        tree.scan_back_with(&txn, ..=&longer[..], &mut scan),
        tree.scan_back_with(&txn, ..&longest[..], &mut scan),
    ];
    assert!(ends.into_iter().all(|end| end.unwrap() == ControlFlow::Continue(())));
    assert_eq!(scanned, [0, MAX_KEY_BYTES, MAX_KEY_BYTES, 0, 0]);
}

#[test]
fn values_of_all_lengths_about_a_page_are_there_and_change_into_each_other() {
    let (store, tree) = with_tree(&disk(), 4096);
    let payload = store.payload_size();
    let lengths = [0, 1, 8, 1000, 1003, 1004, 1005, payload - 17, payload - 16, payload - 15, payload];
    let more = [2 * payload - 16, 2 * payload - 15, 10 * payload, 10 * payload - 5];
    let lengths: Vec<usize> = lengths.into_iter().chain(more).collect();
    let mut model = Model::new();
    for (number, from) in lengths.iter().enumerate() {
        for to in &lengths {
            let mut txn = store.begin_write().unwrap();
            for len in [from, to] {
                let value = vec![u8::try_from(number).unwrap() + 1; *len];
                tree.insert(&mut txn, b"of a key", &value).unwrap();
                model.insert(b"of a key".to_vec(), value);
            }
            compare(tree, &txn, &model);
            txn.commit(Durability::None).unwrap();
        }
    }
}

#[test]
fn a_value_too_large_for_the_journal_changes_nothing() {
    let (store, tree) = with_tree(&disk(), 4096);
    let mut txn = store.begin_write().unwrap();
    tree.insert(&mut txn, b"small", b"value").unwrap();
    txn.commit(Durability::Sync).unwrap();
    let pages = store.stats().pages;
    let mut txn = store.begin_write().unwrap();
    let error = tree.insert(&mut txn, b"large", &vec![1; 20 << 20]).unwrap_err();
    assert!(matches!(error, TreeError::Store(Error::TransactionTooLarge { .. })), "{error}");
    drop(txn);
    let model = Model::from([(b"small".to_vec(), b"value".to_vec())]);
    compare(tree, &store.begin_read().unwrap(), &model);
    assert_eq!(store.stats().pages, pages);
}
