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

/// Maximum bytes of a value that is copied out of its leaf, instead of keeping the leaf.
const COPIED_BYTES_MAX: usize = 1024;

/// The transaction that a tree is read in: a [`ReadTxn`] or a [`WriteTxn`]. Nothing else implements
/// it.
pub trait Pages: sealed::Sealed {
    /// Returns the payload of a page, as the transaction's `read` does.
    fn page(&self, page: PageNo) -> Result<Page, Error>;

    /// Calls `look` with the payload of a page, as the transaction's `read_with` does.
    fn page_with<T>(&self, page: PageNo, look: impl FnOnce(&[u8]) -> T) -> Result<T, Error>;

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
        let below = pages.page_with(number, |page| {
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
            Ok::<_, TreeError>(LookupStep::Page(child, found.level() - 1, read))
        })?;
        match below? {
            LookupStep::Leaf(found) => return Ok(found),
            LookupStep::Page(child, its_level, unused) => {
                (number, level, read) = (child, Some(its_level), unused);
            }
        }
    }
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
    in_leaf(
        pages,
        root,
        key,
        |_| (),
        |number, leaf| {
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
        },
    )
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
