//! A test of pages for random input: hidden, and built only with the feature `fuzzing`.
//!
//! Any bytes are parsed or rejected, as are any changes made to them. If the entries of a
//! page are complete and do not overlap, a change has its specified effect and no other.
//!
//! The input: the number of changes (1 byte), the changes (4 bytes each: kind, entry, length, a
//! byte of content), and the page.

use crate::format::edit::{self, NewEntry};
use crate::format::extent::Extent;
use crate::format::max_key;
use crate::format::node::{EntryBody, LargeRef, Node, common};

/// Bytes of a page that has room for changes.
const PAYLOAD: usize = 4064;

/// Runs one input.
pub fn fuzz_one(data: &[u8]) {
    let Some((count, rest)) = data.split_first() else { return };
    let at = rest.len().min(4 * usize::from(count % 32));
    let (changes, page) = rest.split_at(at);
    if let Ok(extent) = Extent::parse(page) {
        assert_eq!(extent.encode()[..], page[..16]);
    }
    try_reading(page);
    try_changing(page.to_vec(), changes);
    // With room between the directory and the entries, which are at the end of the page.
    let mut roomy = vec![0; PAYLOAD];
    if let Ok(node) = Node::parse(page)
        && let Ok(cells) = node.cells().collect::<Result<Vec<_>, _>>()
    {
        let entries = cells.iter().map(|cell| (cell.suffix, cell.body));
        let longest = cells.iter().map(|cell| node.prefix().len() + cell.suffix.len()).max();
        let is_short = longest.unwrap_or(0).max(node.prefix().len()) <= max_key(PAYLOAD);
        if is_short && edit::build(&mut roomy, node.level(), node.prefix(), entries).is_ok() {
            assert_eq!(contents(&roomy), contents(page));
            try_changing(roomy, changes);
        }
    }
}

fn try_reading(page: &[u8]) {
    let Ok(node) = Node::parse(page) else { return };
    assert!(node.prefix().len() <= max_key(page.len()) && node.is_leaf() == (node.level() == 0));
    for entry in 0..node.count() + 2 {
        let Ok(key) = node.key(entry) else { continue };
        assert!(
            entry < node.count()
                && key.len() <= max_key(page.len())
                && common(&key, node.prefix()) == node.prefix().len()
        );
        match node.cell(entry).expect("it has a key").body {
            EntryBody::Child(child) => assert_eq!(node.child(entry), Ok(child.into())),
            EntryBody::Value(_) | EntryBody::Large(_) => assert!(node.child(entry).is_err()),
        }
        if node.is_leaf() {
            if let Ok(Ok(found)) = node.find(&key) {
                assert_eq!(node.key(found).as_ref(), Ok(&key));
            }
        } else if let Ok(found) = node.find_child(&key) {
            assert!(found < node.count());
        }
    }
    if let (Ok(live), Ok(used)) = (node.live(), node.used(0)) {
        assert!(live >= 12 + node.prefix().len() && used + 12 + node.prefix().len() >= live);
    }
}

type Contents = Vec<(Vec<u8>, Vec<u8>)>;

/// Returns a page's entries, if all of them are complete.
fn contents(page: &[u8]) -> Option<Contents> {
    let node = Node::parse(page).ok()?;
    let cells =
        node.cells().map(|cell| cell.map(|cell| (cell.suffix.to_vec(), format!("{:?}", cell.body).into())));
    cells.collect::<Result<_, _>>().ok()
}

/// Returns a page's entries, if all of them are complete and none overlaps another.
fn apart(page: &[u8]) -> Option<Contents> {
    let node = Node::parse(page).ok()?;
    let mut places: Vec<_> = node
        .cells()
        .map(|cell| cell.map(|cell| (cell.start, cell.start + cell.len())))
        .collect::<Result<_, _>>()
        .ok()?;
    places.sort_unstable();
    let is_apart = places.iter().zip(places.iter().skip(1)).all(|(one, next)| one.1 <= next.0);
    if is_apart { contents(page) } else { None }
}

fn try_changing(mut page: Vec<u8>, changes: &[u8]) {
    for change in changes.as_chunks::<4>().0 {
        let before = apart(&page);
        let [what, entry, len, byte] = *change;
        let (entry, bytes) = (usize::from(entry), vec![byte; usize::from(len)]);
        let (is_leaf, prefix) =
            Node::parse(&page).map_or((true, 0), |node| (node.is_leaf(), node.prefix().len()));
        let body = match what >> 4 {
            _ if !is_leaf => EntryBody::Child(byte.into()),
            0 => EntryBody::Large(LargeRef { len: len.into(), page: byte.into() }),
            _ => EntryBody::Value(&bytes),
        };
        let suffix = &bytes[..bytes.len() / 2];
        let shown = || format!("{body:?}").into_bytes();
        let (done, after) = match what % 3 {
            0 => {
                let new: NewEntry<'_> = (suffix, body);
                let done = edit::insert(&mut page, entry, new);
                let after = before.clone().filter(|before| entry <= before.len()).map(|mut after| {
                    after.insert(entry, (suffix.to_vec(), shown()));
                    after
                });
                (done, after)
            }
            1 => {
                let done = edit::remove(&mut page, entry).map(|()| true);
                let after = before.clone().filter(|before| entry < before.len()).map(|mut after| {
                    after.remove(entry);
                    after
                });
                (done, after)
            }
            _ => {
                let done = edit::replace(&mut page, entry, body);
                let after = before.clone().filter(|before| entry < before.len()).map(|mut after| {
                    after[entry].1 = shown();
                    after
                });
                (done, after)
            }
        };
        let Some(before) = before else { continue };
        match done {
            // An inner page without entries is invalid. The caller of an insertion checks the
            // length of the key.
            Ok(true) if !is_leaf && after.as_ref().is_some_and(Vec::is_empty) => {}
            Ok(true) if apart(&page).is_none() => {
                assert!(prefix + suffix.len() > max_key(page.len()), "a change left no page");
            }
            Ok(true) => assert_eq!(apart(&page), after),
            Ok(false) | Err(_) => assert_eq!(apart(&page), Some(before)),
        }
        try_reading(&page);
    }
}
