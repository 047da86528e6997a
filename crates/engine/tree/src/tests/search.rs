//! The search within a page, compared with a linear search.

use pagekeeper_store::PageNo;
use pagekeeper_testing::{Rng, Seed};

use crate::format::edit::build;
use crate::format::node::{EntryBody, Node};

/// Bytes of a page.
const PAYLOAD: usize = 4064;

/// Returns random keys. Many have the same first eight bytes or more, or differ only in the number
/// of zeros at the end.
fn key(rng: &mut Rng) -> Vec<u8> {
    let start: &[u8] =
        [&b""[..], b"alikeall", b"alike\0\0\0", b"\xff\xff\xff\xff\xff\xff\xff\xff"][rng.index(4)];
    let more = rng.index(4);
    let mut key = start[..start.len().min(5 + rng.index(4))].to_vec();
    key.extend((0..more).map(|_| [0, 1, b'm', 0xff][rng.index(4)]));
    key
}

#[test]
fn a_search_agrees_with_a_linear_scan() {
    let seed = Seed::new();
    let mut rng = seed.rng(0);
    let mut alike = 0;
    for round in 0..2000 {
        let mut keys: Vec<_> = (0..rng.of(0..60)).map(|_| key(&mut rng)).collect();
        keys.sort();
        keys.dedup();
        let (prefix, level): (&[u8], _) =
            (if round % 3 == 0 { b"pre" } else { b"" }, u8::from(round % 2 == 1));
        if level == 1 {
            // The first one stands for all keys below the second.
            keys.insert(0, Vec::new());
        }
        let child = |at: usize| EntryBody::Child(u32::try_from(at).unwrap());
        let body = |at| if level == 0 { EntryBody::Value(b"v") } else { child(at) };
        let mut page = vec![0; PAYLOAD];
        let entries = keys.iter().enumerate().map(|(at, key)| (&key[..], body(at)));
        build(&mut page, level, prefix, entries).unwrap();
        let node = Node::parse(&page).unwrap();
        alike +=
            keys.windows(2).filter(|two| two[0].len() >= 8 && two[0].get(..8) == two[1].get(..8)).count();
        let others: Vec<_> = (0..40).map(|_| key(&mut rng)).collect();
        for wanted in keys.iter().chain(&others) {
            let whole = [prefix, wanted].concat();
            if level == 0 {
                assert_eq!(node.find(&whole), Ok(keys.binary_search(wanted)), "{wanted:?} in {keys:?}");
            } else {
                let expected = keys[1..].iter().filter(|key| *key <= wanted).count();
                assert_eq!(node.find_child(&whole), Ok(expected), "{wanted:?} in {keys:?}");
                assert_eq!(node.child(expected), Ok(PageNo::new(expected as u64)));
            }
        }
    }
    assert!(alike > 1000, "{alike} keys begin as the one before");
}
