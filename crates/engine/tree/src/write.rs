//! Changing: entries are changed in their leaf, in place if there is room. Full pages are split,
//! and two pages that fit into one are merged.
//!
//! Invariants: the way down is recorded, so that the bounds of a page's keys are known when it is
//! rebuilt. A split in the middle leaves two half-full pages. A split at either end of the tree
//! keeps all entries in one page, so that keys inserted in order fill their pages. A change fails
//! halfway only if the store does, or a page is invalid.

use pagekeeper_store::{Page, PageNo, WriteTxn};

use crate::error::{TreeError, at};
use crate::format::edit::{self, build, entry_len};
use crate::format::node::{EntryBody, LARGE_REF_BYTES, LargeRef, NODE_HEAD_BYTES, Node, common};
use crate::format::{MAX_LEVEL, MAX_VALUE, NodeFault};
use crate::read::{PathStep, leaf_of, load, node};
use crate::value;

/// A leaf's entry takes at most this part of a page, unless its key alone takes more.
const ENTRY_SHARE_MAX: usize = 4;
/// A page that is less than this part full is merged with another one.
const SPARSE_SHARE: usize = 3;
/// Pages are merged only if both fill at most this many eighths, so that the result is not split
/// again at once.
const MERGED_EIGHTHS: usize = 7;

/// An entry on its way to another page.
#[derive(Debug, Clone)]
pub(crate) struct MovedEntry {
    /// The whole key.
    pub(crate) key: Vec<u8>,
    pub(crate) body: OwnedBody,
}

#[derive(Debug, Clone)]
pub(crate) enum OwnedBody {
    Value(Vec<u8>),
    Large(LargeRef),
    Child(u32),
}

impl OwnedBody {
    fn of(body: EntryBody<'_>) -> Self {
        match body {
            EntryBody::Value(value) => Self::Value(value.to_vec()),
            EntryBody::Large(large) => Self::Large(large),
            EntryBody::Child(page) => Self::Child(page),
        }
    }

    pub(crate) fn get(&self) -> EntryBody<'_> {
        match self {
            Self::Value(value) => EntryBody::Value(value),
            Self::Large(large) => EntryBody::Large(*large),
            Self::Child(page) => EntryBody::Child(*page),
        }
    }
}

/// The bounds of a page's keys: at or above the first, below the second. `None` is unbounded.
pub(crate) type KeyBounds = (Option<Vec<u8>>, Option<Vec<u8>>);

/// Returns the common prefix of all keys within bounds.
pub(crate) fn prefix_of((lower, upper): &KeyBounds) -> &[u8] {
    match (lower, upper) {
        (Some(lower), Some(upper)) => &lower[..common(lower, upper)],
        _ => &[],
    }
}

pub(crate) fn create(txn: &mut WriteTxn<'_>) -> Result<PageNo, TreeError> {
    let root = txn.allocate()?;
    build(txn.page_mut(root)?, 0, &[], []).map_err(at(root))?;
    Ok(root)
}

pub(crate) fn insert(
    txn: &mut WriteTxn<'_>,
    root: PageNo,
    key: &[u8],
    value: &[u8],
) -> Result<bool, TreeError> {
    if value.len() > MAX_VALUE {
        return Err(TreeError::ValueTooLong { given: value.len(), max: MAX_VALUE });
    }
    let mut path = Vec::new();
    let (number, page) = leaf_of(txn, root, key, |step| path.push(step))?;
    let leaf = node(number, &page)?;
    let is_large = is_large(key, value, page.len());
    let found = leaf.find(key).map_err(at(number))?;
    let before = match found {
        Ok(place) => Some(OwnedBody::of(leaf.cell(place).map_err(at(number))?.body)),
        Err(_) => None,
    };
    // So that the page is not copied before the change.
    drop(page);
    if let (Ok(place), Some(OwnedBody::Large(before))) = (found, &before) {
        if is_large && value::overwrite(txn, *before, value)? {
            let body = LargeRef { len: length(value), ..*before };
            if body != *before {
                edit::replace(txn.page_mut(number)?, place, EntryBody::Large(body)).map_err(at(number))?;
            }
            return Ok(true);
        }
        value::free(txn, *before)?;
    }
    let large = if is_large { Some(value::write(txn, value)?) } else { None };
    let body = large.map_or(EntryBody::Value(value), EntryBody::Large);
    match (found, before) {
        (Ok(place), Some(before)) => {
            if edit::replace(txn.page_mut(number)?, place, body).map_err(at(number))? {
                if body.len() < before.get().len() {
                    balance(txn, root, path, number)?;
                }
                return Ok(true);
            }
            // It is inserted again, somewhere in the pages that result.
            edit::remove(txn.page_mut(number)?, place).map_err(at(number))?;
            add(txn, path, number, place, (key, body))?;
            Ok(true)
        }
        (Ok(place) | Err(place), _) => {
            add(txn, path, number, place, (key, body))?;
            Ok(false)
        }
    }
}

/// Whether the value has separate pages in a tree whose pages have this payload.
pub(crate) fn is_large(key: &[u8], value: &[u8], payload: usize) -> bool {
    value.len() > LARGE_REF_BYTES && entry_len(key.len(), value.len()) > payload / ENTRY_SHARE_MAX
}

fn length(value: &[u8]) -> u32 {
    u32::try_from(value.len()).unwrap_or_else(|_| unreachable!("it was checked"))
}

/// Inserts an entry into a page, before the entry at an index. Splits the page if necessary.
fn add(
    txn: &mut WriteTxn<'_>,
    path: Vec<PathStep>,
    page: PageNo,
    place: usize,
    (key, body): (&[u8], EntryBody<'_>),
) -> Result<(), TreeError> {
    let bytes = txn.page_mut(page)?;
    let prefix = Node::parse(bytes).and_then(|node| node.suffix(key).map(|suffix| key.len() - suffix.len()));
    let prefix = prefix.map_err(at(page))?;
    if edit::insert(bytes, place, (&key[prefix..], body)).map_err(at(page))? {
        return Ok(());
    }
    split(txn, path, page, place, MovedEntry { key: key.to_vec(), body: OwnedBody::of(body) })
}

/// Returns all entries of a page, with whole keys. The first one of an inner page has no key.
fn moved(node: &Node<'_>) -> Result<Vec<MovedEntry>, NodeFault> {
    let cells = node.cells().enumerate().map(|(number, cell)| {
        let cell = cell?;
        let has_key = node.is_leaf() || number > 0;
        let key = if has_key { [node.prefix(), cell.suffix].concat() } else { Vec::new() };
        Ok(MovedEntry { key, body: OwnedBody::of(cell.body) })
    });
    cells.collect()
}

/// Splits a page that has no room for an entry into two.
fn split(
    txn: &mut WriteTxn<'_>,
    mut path: Vec<PathStep>,
    page: PageNo,
    place: usize,
    entry: MovedEntry,
) -> Result<(), TreeError> {
    let before = txn.read(page)?;
    let node = node(page, &before)?;
    let (level, room) = (node.level(), before.len() - NODE_HEAD_BYTES);
    let mut entries = moved(&node).map_err(at(page))?;
    drop(before);
    entries.insert(place, entry);
    let bounds = bounds(txn, &path)?;
    let middle = middle(&entries, place, &bounds, room).ok_or(NodeFault::Overlap).map_err(at(page))?;
    let mut after = entries.split_off(middle);
    let first = &mut after[0].key;
    let separator = if level == 0 {
        separator(entries.last().map_or(&[], |last| &last.key), first).to_vec()
    } else {
        std::mem::take(first)
    };
    let right = txn.allocate()?;
    let right_bounds = (Some(separator.clone()), bounds.1);
    let left_bounds = (bounds.0, Some(separator.clone()));
    put_together(txn, right, level, prefix_of(&right_bounds), &after)?;
    if let Some(above) = path.pop() {
        put_together(txn, page, level, prefix_of(&left_bounds), &entries)?;
        return add(txn, path, above.page, above.at + 1, (&separator, EntryBody::Child(narrow(right))));
    }
    // The root stays where it is.
    if level == MAX_LEVEL {
        return Err(at(page)(NodeFault::TooHigh));
    }
    let left = txn.allocate()?;
    put_together(txn, left, level, prefix_of(&left_bounds), &entries)?;
    let children = [(&[][..], EntryBody::Child(narrow(left))), (&separator, EntryBody::Child(narrow(right)))];
    build(txn.page_mut(page)?, level + 1, &[], children).map_err(at(page))
}

/// Returns the shortest separator of two keys: above all keys before it, and not above those behind
/// it.
pub(crate) fn separator<'k>(before: &[u8], behind: &'k [u8]) -> &'k [u8] {
    &behind[..behind.len().min(common(before, behind) + 1)]
}

pub(crate) fn narrow(page: PageNo) -> u32 {
    u32::try_from(page.get()).unwrap_or_else(|_| unreachable!("a store has less than 2^32 pages"))
}

/// Returns the first entry of the second page after an entry was inserted at `place`; `None` if the
/// entries do not fit into two pages.
fn middle(entries: &[MovedEntry], place: usize, bounds: &KeyBounds, room: usize) -> Option<usize> {
    let last = entries.len().checked_sub(1).filter(|last| *last > 0)?;
    // Keys in order extend the tree at one end.
    if place == last && bounds.1.is_none() {
        return Some(last);
    }
    if place == 0 && bounds.0.is_none() {
        return Some(1);
    }
    let prefix = prefix_of(bounds).len();
    let len = |entry: &MovedEntry| entry_len(entry.key.len().saturating_sub(prefix), entry.body.get().len());
    let all: usize = entries.iter().map(len).sum();
    let mut before = 0;
    let middle = entries.iter().position(|entry| {
        before += len(entry);
        before * 2 >= all
    })?;
    let middle = (middle + 1).min(last);
    (all <= 2 * room).then_some(middle)
}

/// Rewrites a page with entries whose keys all begin with the prefix.
pub(crate) fn put_together(
    txn: &mut WriteTxn<'_>,
    page: PageNo,
    level: u8,
    prefix: &[u8],
    entries: &[MovedEntry],
) -> Result<(), TreeError> {
    let cells = entries.iter().enumerate().map(|(number, entry)| {
        let suffix = entry.key.strip_prefix(prefix);
        if level > 0 && number == 0 {
            Some((&[][..], entry.body.get()))
        } else {
            Some((suffix?, entry.body.get()))
        }
    });
    let cells: Option<Vec<_>> = cells.collect();
    let cells = cells.ok_or(NodeFault::Prefix).map_err(at(page))?;
    build(txn.page_mut(page)?, level, prefix, cells).map_err(at(page))
}

/// Returns the bounds of the keys in the page at the end of a path.
fn bounds(txn: &WriteTxn<'_>, path: &[PathStep]) -> Result<KeyBounds, TreeError> {
    let mut bounds = (None, None);
    for step in path.iter().rev() {
        if bounds.0.is_some() && bounds.1.is_some() {
            break;
        }
        let page = txn.read(step.page)?;
        let node = node(step.page, &page)?;
        if bounds.0.is_none() && step.at > 0 {
            bounds.0 = Some(node.key(step.at).map_err(at(step.page))?);
        }
        if bounds.1.is_none() && step.at + 1 < node.count() {
            bounds.1 = Some(node.key(step.at + 1).map_err(at(step.page))?);
        }
    }
    Ok(bounds)
}

pub(crate) fn remove(txn: &mut WriteTxn<'_>, root: PageNo, key: &[u8]) -> Result<bool, TreeError> {
    let mut path = Vec::new();
    let (number, page) = leaf_of(txn, root, key, |step| path.push(step))?;
    let leaf = node(number, &page)?;
    let Ok(place) = leaf.find(key).map_err(at(number))? else { return Ok(false) };
    let before = leaf.cell(place).map_err(at(number))?.body;
    let large = if let EntryBody::Large(large) = before { Some(large) } else { None };
    drop(page);
    if let Some(large) = large {
        value::free(txn, large)?;
    }
    edit::remove(txn.page_mut(number)?, place).map_err(at(number))?;
    let mut leaf = number;
    while balance(txn, root, path, leaf)? {
        path = Vec::new();
        leaf = leaf_of(txn, root, key, |step| path.push(step))?.0;
    }
    Ok(true)
}

/// Merges a page that has become sparse with a neighbour, and then pages above it that become
/// sparse. Returns true if the page had no neighbour, but has got one because pages above it were
/// merged.
fn balance(
    txn: &mut WriteTxn<'_>,
    root: PageNo,
    mut path: Vec<PathStep>,
    mut page: PageNo,
) -> Result<bool, TreeError> {
    let mut was_alone = false;
    while let Some(above) = path.pop() {
        let is_sparse = {
            let loaded = txn.read(page)?;
            node(page, &loaded)?.live().map_err(at(page))? * SPARSE_SHARE < loaded.len()
        };
        if !is_sparse {
            return Ok(false);
        }
        let children = node(above.page, &txn.read(above.page)?)?.count();
        let mut is_merged = false;
        for left in [above.at.checked_sub(1), Some(above.at)].into_iter().flatten() {
            if left + 1 < children && merge(txn, &path, above.page, left)? {
                is_merged = true;
                break;
            }
        }
        if is_merged && was_alone {
            shrink(txn, root)?;
            return Ok(true);
        }
        if !is_merged && children > 1 {
            return Ok(false);
        }
        was_alone |= !is_merged;
        page = above.page;
    }
    shrink(txn, root)?;
    Ok(false)
}

/// Moves all entries of a child's right neighbour into the child, if it has room for them.
fn merge(txn: &mut WriteTxn<'_>, path: &[PathStep], above: PageNo, left: usize) -> Result<bool, TreeError> {
    let above_page = txn.read(above)?;
    let parent = node(above, &above_page)?;
    let level = Some(parent.level().checked_sub(1).ok_or(NodeFault::Head).map_err(at(above))?);
    let child = |entry: usize| -> Result<(PageNo, Page), TreeError> {
        let number = parent.child(entry).map_err(at(above))?;
        Ok((number, load(txn, number, level)?))
    };
    let ((left_number, left_page), (right_number, right_page)) = (child(left)?, child(left + 1)?);
    if left_number == right_number {
        return Err(at(above)(NodeFault::Order(left + 1)));
    }
    let (left_node, right_node) = (node(left_number, &left_page)?, node(right_number, &right_page)?);
    let most = left_page.len() / 8 * MERGED_EIGHTHS;
    let used = |prefix: usize| -> Result<usize, TreeError> {
        let left = left_node.used(prefix).map_err(at(left_number))?;
        Ok(left + right_node.used(prefix).map_err(at(right_number))?)
    };
    // The entries take at least this much.
    if used(usize::MAX)? > most {
        return Ok(false);
    }
    let to = |entry| [path, &[PathStep { page: above, at: entry }]].concat();
    let bounds = (bounds(txn, &to(left))?.0, bounds(txn, &to(left + 1))?.1);
    let prefix = prefix_of(&bounds);
    let separator = parent.key(left + 1).map_err(at(above))?;
    let separator_len = if left_node.is_leaf() { 0 } else { separator.len() };
    if NODE_HEAD_BYTES + prefix.len() + used(prefix.len())? + separator_len > most {
        return Ok(false);
    }
    let mut entries = moved(&left_node).map_err(at(left_number))?;
    let behind = entries.len();
    entries.extend(moved(&right_node).map_err(at(right_number))?);
    if !left_node.is_leaf() {
        entries[behind].key = separator;
    }
    let level = left_node.level();
    drop((left_page, right_page, above_page));
    put_together(txn, left_number, level, prefix, &entries)?;
    txn.free(right_number)?;
    edit::remove(txn.page_mut(above)?, left + 1).map_err(at(above))?;
    Ok(true)
}

/// Removes levels from a root with only one child, which replaces it.
fn shrink(txn: &mut WriteTxn<'_>, root: PageNo) -> Result<(), TreeError> {
    loop {
        let page = txn.read(root)?;
        let inner = node(root, &page)?;
        if inner.is_leaf() || inner.count() > 1 {
            return Ok(());
        }
        let child = inner.child(0).map_err(at(root))?;
        let below = load(txn, child, Some(inner.level() - 1))?;
        drop(page);
        txn.write(root, &below)?;
        drop(below);
        txn.free(child)?;
    }
}

pub(crate) fn delete(txn: &mut WriteTxn<'_>, root: PageNo) -> Result<(), TreeError> {
    let mut due = vec![(root, None)];
    while let Some((number, level)) = due.pop() {
        let page = load(txn, number, level)?;
        let found = node(number, &page)?;
        let mut large = Vec::new();
        for cell in found.cells() {
            match cell.map_err(at(number))?.body {
                EntryBody::Value(_) => {}
                EntryBody::Large(value) => large.push(value),
                EntryBody::Child(child) => due.push((child.into(), Some(found.level().saturating_sub(1)))),
            }
        }
        drop(page);
        for value in large {
            value::free(txn, value)?;
        }
        txn.free(number)?;
    }
    Ok(())
}
