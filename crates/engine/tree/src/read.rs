//! Reading: from the root to a leaf, one page per level. No page is copied, or kept longer than
//! needed.
//!
//! Invariant: a page's level is one below that of its parent, so each way down ends.

use std::ops::Range;

use pagekeeper_store::{Error, Page, PageNo, ReadTxn, WriteTxn};

use crate::error::{TreeError, at};
use crate::format::node::{EntryBody, LargeRef, Node};
use crate::format::{NodeFault, max_key};
use crate::value::{self, Value};

/// Keys of a list that go down the tree together.
const KEYS_TOGETHER: usize = 32;

/// Number of keys ahead for which the processor fetches the page of the next step.
const KEYS_AHEAD: usize = 4;

/// Maximum bytes of a value that is copied out of its leaf, instead of keeping the leaf.
const COPIED_BYTES_MAX: usize = 1024;

/// The transaction that a tree is read in: a [`ReadTxn`] or a [`WriteTxn`]. Nothing else implements
/// it.
pub trait Pages: sealed::Sealed {
    /// Returns the payload of a page, as the transaction's `read` does.
    fn page(&self, page: PageNo) -> Result<Page, Error>;

    /// Calls `look` with the payload of a page, as the transaction's `read_with` does.
    fn page_with<T>(&self, page: PageNo, look: impl FnOnce(&[u8]) -> T) -> Result<T, Error>;

    /// Tells the processor to fetch a page that will be read soon, if it is in the cache.
    fn fetch(&self, page: PageNo);

    /// Returns the number of pages.
    fn end(&self) -> u64;

    /// Returns the root page of the store.
    fn root_page(&self) -> Option<PageNo>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

macro_rules! pages_of {
    ($txn:ident) => {
        impl sealed::Sealed for $txn<'_> {}

        impl Pages for $txn<'_> {
            fn page(&self, page: PageNo) -> Result<Page, Error> {
                self.read(page)
            }

            #[inline]
            fn page_with<T>(&self, page: PageNo, look: impl FnOnce(&[u8]) -> T) -> Result<T, Error> {
                self.read_with(page, look)
            }

            #[inline]
            fn fetch(&self, page: PageNo) {
                self.fetch_page(page);
            }

            fn end(&self) -> u64 {
                self.pages()
            }

            fn root_page(&self) -> Option<PageNo> {
                self.root()
            }
        }
    };
}

pages_of!(ReadTxn);
pages_of!(WriteTxn);

/// Loads a page of a tree, of this level if one is given, and checks its head.
pub(crate) fn load(pages: &impl Pages, page: PageNo, level: Option<u8>) -> Result<Page, TreeError> {
    let loaded = pages.page(page)?;
    node_of(page, &loaded, level)?;
    Ok(loaded)
}

/// Parses the page, of this level if one is given.
#[inline]
pub(crate) fn node_of(number: PageNo, page: &[u8], level: Option<u8>) -> Result<Node<'_>, TreeError> {
    match Node::of_head(page) {
        Some(found) if level.is_none_or(|wanted| wanted == found.level()) => Ok(found),
        _ => Err(no_node(number, page, level)),
    }
}

/// Returns why it cannot be parsed.
#[cold]
fn no_node(number: PageNo, page: &[u8], level: Option<u8>) -> TreeError {
    at(number)(match Node::parse(page) {
        Ok(found) => NodeFault::Level { found: found.level(), wanted: level.unwrap_or_default() },
        Err(fault) => fault,
    })
}

/// Parses the page.
pub(crate) fn node(number: PageNo, page: &Page) -> Result<Node<'_>, TreeError> {
    node_of(number, page, None)
}

/// An inner page on the way down, and the entry that was taken.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PathStep {
    pub(crate) page: PageNo,
    pub(crate) at: usize,
}

/// Returns the leaf that has a key, if the tree has it. Reports each inner page above to `step`.
pub(crate) fn leaf_of(
    pages: &impl Pages,
    root: PageNo,
    key: &[u8],
    step: impl FnMut(PathStep),
) -> Result<(PageNo, Page), TreeError> {
    let number = in_leaf(pages, root, key, step, |number, _| Ok(number))?;
    Ok((number, load(pages, number, Some(0))?))
}

/// Calls `read` with the leaf that has a key, if the tree has it.
#[inline]
fn in_leaf<T>(
    pages: &impl Pages,
    root: PageNo,
    key: &[u8],
    mut step: impl FnMut(PathStep),
    read: impl FnOnce(PageNo, Node<'_>) -> Result<T, TreeError>,
) -> Result<T, TreeError> {
    let (mut number, mut level, mut read) = (root, None, read);
    loop {
        match step_down(pages, number, level, key, &mut step, read)? {
            LookupStep::Leaf(found) => return Ok(found),
            LookupStep::Page(child, its_level, unused) => {
                (number, level, read) = (child, Some(its_level), unused);
            }
        }
    }
}

/// Goes from an inner page to the one below that has a key, or calls `read` with the leaf.
#[inline]
fn step_down<T, F: FnOnce(PageNo, Node<'_>) -> Result<T, TreeError>>(
    pages: &impl Pages,
    number: PageNo,
    level: Option<u8>,
    key: &[u8],
    step: &mut impl FnMut(PathStep),
    read: F,
) -> Result<LookupStep<T, F>, TreeError> {
    pages.page_with(number, |page| {
        let found = node_of(number, page, level)?;
        if key.len() > max_key(page.len()) {
            return Err(TreeError::KeyTooLong { given: key.len(), max: max_key(page.len()) });
        }
        if found.is_leaf() {
            return Ok(LookupStep::Leaf(read(number, found)?));
        }
        let entry = found.find_child(key).map_err(at(number))?;
        step(PathStep { page: number, at: entry });
        let child = found.child(entry).map_err(at(number))?;
        Ok(LookupStep::Page(child, found.level() - 1, read))
    })?
}

/// The result of one step down.
enum LookupStep<T, F> {
    /// The page was the leaf, and this was read in it.
    Leaf(T),
    /// The page below, its level, and the reader of the leaf.
    Page(PageNo, u8, F),
}

/// The result of looking up a key in a leaf.
enum LookupResult<T> {
    Nothing,
    /// The value was read in place.
    Read(T),
    /// The value's place in the leaf.
    InLeaf(PageNo, Range<usize>),
    Large(LargeRef),
}

/// Looks up a key in its leaf, and calls `read` with the value unless that is large.
fn find<T>(
    pages: &impl Pages,
    root: PageNo,
    key: &[u8],
    read: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<LookupResult<T>, TreeError> {
    in_leaf(pages, root, key, |_| (), |number, leaf| find_in(number, leaf, key, read))
}

#[inline]
fn find_in<T>(
    number: PageNo,
    leaf: Node<'_>,
    key: &[u8],
    read: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<LookupResult<T>, TreeError> {
    let Ok(entry) = leaf.find(key).map_err(at(number))? else { return Ok(LookupResult::Nothing) };
    let cell = leaf.cell(entry).map_err(at(number))?;
    match cell.body {
        EntryBody::Value(value) => {
            let start = cell.body_start();
            let in_leaf = || LookupResult::InLeaf(number, start..start + value.len());
            Ok(read(value).map_or_else(in_leaf, LookupResult::Read))
        }
        EntryBody::Large(large) => Ok(LookupResult::Large(large)),
        EntryBody::Child(_) => Err(at(number)(NodeFault::Entry(entry))),
    }
}

pub(crate) fn get(pages: &impl Pages, root: PageNo, key: &[u8]) -> Result<Option<Value>, TreeError> {
    let copy = |value: &[u8]| (value.len() <= COPIED_BYTES_MAX).then(|| Value::of(value.to_vec()));
    Ok(match find(pages, root, key, copy)? {
        LookupResult::Nothing => None,
        LookupResult::Read(value) => Some(value),
        LookupResult::InLeaf(number, bytes) => Some(Value::in_page(pages.page(number)?, bytes)),
        LookupResult::Large(large) => Some(value::read(pages, large)?),
    })
}

pub(crate) fn get_with<T>(
    pages: &impl Pages,
    root: PageNo,
    key: &[u8],
    read: impl FnOnce(&[u8]) -> T,
) -> Result<Option<T>, TreeError> {
    let mut read = Some(read);
    let mut once = |value: &[u8]| read.take().map(|read| read(value));
    Ok(match find(pages, root, key, &mut once)? {
        LookupResult::Nothing | LookupResult::InLeaf(..) => None,
        LookupResult::Read(found) => Some(found),
        LookupResult::Large(large) => value::read_with(pages, large, &mut Vec::new(), once)?,
    })
}

/// Calls `visit` with the index and the value of each key. Groups of keys go down level by level,
/// so that the processor fetches pages of some keys while it searches those of others.
pub(crate) fn get_many<K: AsRef<[u8]>>(
    pages: &impl Pages,
    root: PageNo,
    keys: &[K],
    visit: &mut impl FnMut(usize, Option<&[u8]>),
) -> Result<(), TreeError> {
    let mut buffer = Vec::new();
    for (first, keys) in (0..).step_by(KEYS_TOGETHER).zip(keys.chunks(KEYS_TOGETHER)) {
        let mut group = KeyGroup { keys, numbers: [root; KEYS_TOGETHER], level: None };
        while let Some(level) =
            group.descend(pages, &mut buffer, |index, value| visit(first + index, value))?
        {
            group.level = Some(level);
        }
    }
    Ok(())
}

/// Keys on their way down the tree. All are at one level, since all leaves have the same distance
/// from the root.
struct KeyGroup<'k, K> {
    keys: &'k [K],
    /// The page of each key.
    numbers: [PageNo; KEYS_TOGETHER],
    /// The level of these pages; `None` for the root.
    level: Option<u8>,
}

impl<K: AsRef<[u8]>> KeyGroup<'_, K> {
    /// Goes one page down with each key, and returns the level of the pages below; or visits the
    /// values, if the pages were leaves.
    fn descend(
        &mut self,
        pages: &impl Pages,
        buffer: &mut Vec<u8>,
        mut visit: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<Option<u8>, TreeError> {
        let mut below = None;
        for (index, key) in self.keys.iter().map(AsRef::as_ref).enumerate() {
            // The root is in the processor's caches.
            if self.level.is_some() && index + KEYS_AHEAD < self.keys.len() {
                pages.fetch(self.numbers[index + KEYS_AHEAD]);
            }
            let mut read = |value: &[u8]| visit(index, Some(value));
            let in_leaf = |number, leaf: Node<'_>| {
                find_in(number, leaf, key, |value| {
                    read(value);
                    Some(())
                })
            };
            match step_down(pages, self.numbers[index], self.level, key, &mut |_| (), in_leaf)? {
                LookupStep::Page(child, level, _) => {
                    (self.numbers[index], below) = (child, Some(level));
                    if index < KEYS_AHEAD {
                        pages.fetch(child);
                    }
                }
                LookupStep::Leaf(LookupResult::Large(large)) => value::read_with(pages, large, buffer, read)?,
                LookupStep::Leaf(LookupResult::Nothing) => visit(index, None),
                LookupStep::Leaf(LookupResult::Read(()) | LookupResult::InLeaf(..)) => {}
            }
        }
        Ok(below)
    }
}

/// Returns the value of a leaf's entry.
pub(crate) fn value_of(
    pages: &impl Pages,
    number: PageNo,
    page: &Page,
    entry: usize,
) -> Result<Value, TreeError> {
    let cell = node(number, page)?.cell(entry).map_err(at(number))?;
    match cell.body {
        EntryBody::Value(value) => {
            let start = cell.body_start();
            Ok(Value::in_page(page.clone(), start..start + value.len()))
        }
        EntryBody::Large(large) => value::read(pages, large),
        EntryBody::Child(_) => Err(at(number)(NodeFault::Entry(entry))),
    }
}

/// Counts the entries of all leaves.
pub(crate) fn len(pages: &impl Pages, root: PageNo) -> Result<u64, TreeError> {
    let (mut len, mut seen) = (0, 0);
    let mut due = vec![(root, None)];
    while let Some((number, level)) = due.pop() {
        seen += 1;
        if seen > pages.end() {
            return Err(at(number)(NodeFault::Cycle));
        }
        let page = load(pages, number, level)?;
        let found = node(number, &page)?;
        if found.is_leaf() {
            len += found.count() as u64;
            continue;
        }
        for entry in 0..found.count() {
            due.push((found.child(entry).map_err(at(number))?, Some(found.level() - 1)));
        }
    }
    Ok(len)
}
