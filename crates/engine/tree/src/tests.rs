//! Tests of a tree's promises: as a map, after crashes, in its use of pages, and on foreign pages.

mod crashes;
mod everyday;
mod hostile;
mod in_place;
mod map;
mod search;
mod space;

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::path::Path;
use std::sync::Arc;

use pagekeeper_simdisk::SimDisk;
use pagekeeper_store::{Durability, Error, PageNo, Store};
use pagekeeper_testing::Rng;

use super::{MAX_KEY_BYTES, Pages, Tree, TreeError, max_key_bytes, unused_pages};

/// The expected content of a tree.
type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn disk() -> SimDisk {
    SimDisk::builder().at_once().build()
}

fn open(disk: &SimDisk, page_size: usize) -> Result<Store, Error> {
    let options = Store::options().page_size(page_size).journal_bytes(16 << 20).memory(64 << 20);
    let options = options.io(Arc::new(disk.clone()));
    options.warm(false).without_threads().open(Path::new("/store"))
}

/// Makes a store with one tree, whose root page is the store's root.
fn with_tree(disk: &SimDisk, page_size: usize) -> (Store, Tree) {
    let store = open(disk, page_size).unwrap();
    let mut txn = store.begin_write().unwrap();
    let tree = Tree::create(&mut txn).unwrap();
    txn.set_root(Some(tree.root()));
    txn.commit(Durability::Sync).unwrap();
    (store, tree)
}

/// Returns a random key of any kind, from few enough that keys repeat.
fn random_key(rng: &mut Rng) -> Vec<u8> {
    match rng.of(0..8) {
        0..4 => u32::try_from(rng.of(0..3000)).unwrap().to_be_bytes().to_vec(),
        4..6 => [vec![b'p'; 300], format!("{:05}", rng.of(0..800)).into_bytes()].concat(),
        6 => (0..rng.of(0..7)).map(|_| if rng.one_in(2) { 0 } else { 0xff }).collect(),
        _ => {
            let mut key = vec![b'l'; MAX_KEY_BYTES];
            key[rng.index(4) * 127] = b'a' + u8::try_from(rng.of(0..26)).unwrap();
            key[MAX_KEY_BYTES - 1 - rng.index(2)] = b'0' + u8::try_from(rng.of(0..10)).unwrap();
            key
        }
    }
}

fn random_value(rng: &mut Rng, payload: usize) -> Vec<u8> {
    let len = match rng.of(0..16) {
        0..10 => rng.index(40),
        10..13 => rng.index(payload / 4 + 20),
        13 => payload - 16 - rng.index(3),
        14 => payload * 2 - 17 + rng.index(3),
        _ => rng.index(payload * 5),
    };
    let first = rng.number();
    (0..len as u64).map(|at| (first ^ at.wrapping_mul(31)).to_le_bytes()[0]).collect()
}

/// Checks that a tree is valid and has the expected content, from both ends, and that the store has
/// lost no page.
fn compare(tree: Tree, pages: &impl Pages, model: &Model) {
    let checked = tree.check(pages).unwrap();
    assert_eq!(checked.entries, model.len() as u64);
    assert_eq!(tree.len(pages).unwrap(), checked.entries);
    assert_eq!(unused_pages(pages, &[tree]).unwrap(), []);
    let found = tree.iter(pages).map(|entry| entry.unwrap()).map(|(key, value)| (key, value.to_vec()));
    assert!(found.eq(model.iter().map(|(key, value)| (key.clone(), value.clone()))), "forwards");
    let found = tree.iter(pages).rev().map(|entry| entry.unwrap().0);
    assert!(found.eq(model.keys().rev().cloned()), "backwards");
    compare_scan::<&[u8]>(tree, pages, .., model.iter(), usize::MAX);
    assert_eq!(tree.is_empty(pages).unwrap(), model.is_empty());
    let ends = [tree.first(pages), tree.last(pages)].map(|end| end.unwrap().map(|(key, _)| key));
    assert_eq!(ends, [model.keys().next().cloned(), model.keys().next_back().cloned()]);
}

/// Checks that a scan in place visits the first entries of these, or all, and that a scan back does
/// the same from the other end.
fn compare_scan<'m, K: AsRef<[u8]>>(
    tree: Tree,
    pages: &impl Pages,
    range: impl RangeBounds<K> + Clone,
    model: impl DoubleEndedIterator<Item = (&'m Vec<u8>, &'m Vec<u8>)> + Clone,
    most: usize,
) {
    let expected = model.clone().take(most);
    let (mut forwards, mut backwards) = (expected, model.rev().take(most));
    let mut left = most;
    let mut flow = || {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let there = tree.scan_with(pages, range.clone(), |key, value| {
        assert_eq!(forwards.next().map(|(key, value)| (&key[..], &value[..])), Some((key, value)));
        flow()
    });
    assert_eq!(forwards.next(), None);
    assert_eq!(there.unwrap().is_break(), left == 0);
    left = most;
    let mut flow = || {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let back = tree.scan_back_with(pages, range, |key, value| {
        assert_eq!(backwards.next().map(|(key, value)| (&key[..], &value[..])), Some((key, value)));
        flow()
    });
    assert_eq!(backwards.next(), None);
    assert_eq!(back.unwrap().is_break(), left == 0);
}

/// Checks that a list of keys, some of which are absent or occur twice, gets the values of each.
fn compare_many(tree: Tree, pages: &impl Pages, model: &Model, rng: &mut Rng) {
    for len in [0, 1, 4, 5, 32, 33, rng.index(70)] {
        let mut key = || match model.keys().nth(rng.index(model.len() + 1)) {
            Some(key) if !rng.one_in(4) => key.clone(),
            _ => random_key(rng),
        };
        let keys: Vec<_> = (0..len).map(|_| key()).collect();
        let mut found = vec![None; keys.len()];
        let visit = |index: usize, value: Option<&[u8]>| {
            assert!(found[index].replace(value.map(<[u8]>::to_vec)).is_none(), "key {index} came twice");
        };
        tree.get_many(pages, &keys, visit).unwrap();
        let expected: Vec<_> = keys.iter().map(|key| Some(model.get(key).cloned())).collect();
        assert_eq!(found, expected, "{keys:?}");
    }
}

/// Does the same for a random range, taken from both ends in turns.
fn compare_range(tree: Tree, pages: &impl Pages, model: &Model, rng: &mut Rng) {
    let mut bound = || match rng.of(0..5) {
        0 => Bound::Unbounded,
        1..3 => Bound::Included(random_key(rng)),
        _ => Bound::Excluded(random_key(rng)),
    };
    let range = (bound(), bound());
    let is_within = |key: &Vec<u8>| {
        let from = match &range.0 {
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
            Bound::Unbounded => true,
        };
        let to = match &range.1 {
            Bound::Included(to) => key <= to,
            Bound::Excluded(to) => key < to,
            Bound::Unbounded => true,
        };
        from && to
    };
    let mut expected = model.iter().filter(|(key, _)| is_within(key));
    compare_scan(tree, pages, range.clone(), expected.clone(), rng.index(200) + 1);
    let mut found = tree.range(pages, range.clone());
    let most = rng.of(1..4000);
    for _ in 0..most {
        let (found, expected) = if rng.one_in(2) {
            (found.next(), expected.next())
        } else {
            (found.next_back(), expected.next_back())
        };
        let found = found.transpose().unwrap();
        assert_eq!(found.as_ref().map(|(key, _)| key), expected.map(|(key, _)| key), "{range:?}");
        assert!(found.iter().all(|(_, value)| value[..] == expected.unwrap().1[..]));
        if expected.is_none() {
            break;
        }
    }
}
