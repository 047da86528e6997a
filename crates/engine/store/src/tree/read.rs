//! Reading: from the root to a leaf, one page per level. No page is copied, or kept longer than needed.
//!
//! Invariant: a page's level is one below that of its parent, so each way down ends.

use std::ops::Range;

use super::TreeError;
use super::error::at;
use super::format::node::{Body, LargeRef, Node};
use super::format::{Fault, MAX_KEY};
use super::value::{self, Value};
use crate::{Page, PageNo, ReadTxn, WriteTxn};

/// Maximum bytes of a value that is copied out of its leaf, instead of keeping the leaf.
const COPIED: usize = 1024;

/// The transaction that a tree is read in: a [`ReadTxn`] or a [`WriteTxn`]. Nothing else implements it.
pub trait Pages: sealed::Sealed {
    /// Returns the payload of a page, as the transaction's `read` does.
    fn page(&self, page: PageNo) -> Result<Page, crate::Error>;

    /// Returns the number of pages.
    fn end(&self) -> u64;
}

mod sealed {
    use crate::page::{SettledPage, ShortPage};
    use crate::{Error, PageNo, ReadTxn, WriteTxn};

    pub trait Sealed {
        /// Returns the payload of a page for a short read, if the fast path finds it.
        fn settled_page(&self, page: PageNo) -> Option<SettledPage<'_>>;

        /// Returns the payload of a page for a short read.
        fn short_page(&self, page: PageNo) -> Result<ShortPage<'_>, Error>;
    }

    impl Sealed for ReadTxn<'_> {
        #[inline]
        fn settled_page(&self, page: PageNo) -> Option<SettledPage<'_>> {
            self.read_settled(page)
        }

        fn short_page(&self, page: PageNo) -> Result<ShortPage<'_>, Error> {
            self.read_short(page)
        }
    }

    impl Sealed for WriteTxn<'_> {
        fn settled_page(&self, _: PageNo) -> Option<SettledPage<'_>> {
            None
        }

        fn short_page(&self, page: PageNo) -> Result<ShortPage<'_>, Error> {
            self.read_short(page)
        }
    }
}

impl Pages for ReadTxn<'_> {
    fn page(&self, page: PageNo) -> Result<Page, crate::Error> {
        self.read(page)
    }

    fn end(&self) -> u64 {
        self.pages()
    }
}

impl Pages for WriteTxn<'_> {
    fn page(&self, page: PageNo) -> Result<Page, crate::Error> {
        self.read(page)
    }

    fn end(&self) -> u64 {
        self.pages()
    }
}

/// Loads a page of a tree, of this level if one is given, and checks its head.
pub(super) fn load(pages: &impl Pages, page: PageNo, level: Option<u8>) -> Result<Page, TreeError> {
    let loaded = pages.page(page)?;
    node_of(page, &loaded, level)?;
    Ok(loaded)
}

/// Parses the page, of this level if one is given.
#[inline]
pub(super) fn node_of(number: PageNo, page: &[u8], level: Option<u8>) -> Result<Node<'_>, TreeError> {
    match Node::of_head(page) {
        Some(found) if level.is_none_or(|wanted| wanted == found.level()) => Ok(found),
        _ => Err(no_node(number, page, level)),
    }
}

/// Returns why it cannot be parsed.
#[cold]
fn no_node(number: PageNo, page: &[u8], level: Option<u8>) -> TreeError {
    at(number)(match Node::parse(page) {
        Ok(found) => Fault::Level { found: found.level(), wanted: level.unwrap_or_default() },
        Err(fault) => fault,
    })
}

/// Parses the page.
pub(super) fn node(number: PageNo, page: &Page) -> Result<Node<'_>, TreeError> {
    node_of(number, page, None)
}

/// An inner page on the way down, and the entry that was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) page: PageNo,
    pub(super) at: usize,
}

/// Returns the leaf that has a key, if the tree has it. Reports each inner page above to `step`.
pub(super) fn leaf_of(
    pages: &impl Pages,
    root: PageNo,
    key: &[u8],
    step: impl FnMut(Step),
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
    mut step: impl FnMut(Step),
    read: impl FnOnce(PageNo, Node<'_>) -> Result<T, TreeError>,
) -> Result<T, TreeError> {
    if key.len() > MAX_KEY {
        return Err(TreeError::KeyTooLong { given: key.len(), max: MAX_KEY });
    }
    let (mut number, mut level) = (root, None);
    loop {
        let (settled, short);
        let page: &[u8] = if let Some(found) = pages.settled_page(number) {
            settled = found;
            &settled
        } else {
            short = pages.short_page(number)?;
            &short
        };
        let found = node_of(number, page, level)?;
        if found.is_leaf() {
            return read(number, found);
        }
        let entry = found.find_child(key).map_err(at(number))?;
        step(Step { page: number, at: entry });
        level = Some(found.level() - 1);
        number = found.child(entry).map_err(at(number))?;
    }
}

/// The result of looking up a key in a leaf.
enum Found<T> {
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
) -> Result<Found<T>, TreeError> {
    in_leaf(
        pages,
        root,
        key,
        |_| (),
        |number, leaf| {
            let Ok(entry) = leaf.find(key).map_err(at(number))? else { return Ok(Found::Nothing) };
            let cell = leaf.cell(entry).map_err(at(number))?;
            match cell.body {
                Body::Value(value) => {
                    let start = cell.body_start();
                    let in_leaf = || Found::InLeaf(number, start..start + value.len());
                    Ok(read(value).map_or_else(in_leaf, Found::Read))
                }
                Body::Large(large) => Ok(Found::Large(large)),
                Body::Child(_) => Err(at(number)(Fault::Entry(entry))),
            }
        },
    )
}

pub(super) fn get(pages: &impl Pages, root: PageNo, key: &[u8]) -> Result<Option<Value>, TreeError> {
    let copy = |value: &[u8]| (value.len() <= COPIED).then(|| Value::of(value.to_vec()));
    Ok(match find(pages, root, key, copy)? {
        Found::Nothing => None,
        Found::Read(value) => Some(value),
        Found::InLeaf(number, bytes) => Some(Value::in_page(pages.page(number)?, bytes)),
        Found::Large(large) => Some(value::read(pages, large)?),
    })
}

pub(super) fn get_with<T>(
    pages: &impl Pages,
    root: PageNo,
    key: &[u8],
    read: impl FnOnce(&[u8]) -> T,
) -> Result<Option<T>, TreeError> {
    let mut read = Some(read);
    let mut once = |value: &[u8]| read.take().map(|read| read(value));
    Ok(match find(pages, root, key, &mut once)? {
        Found::Nothing | Found::InLeaf(..) => None,
        Found::Read(found) => Some(found),
        Found::Large(large) => value::read_with(pages, large, &mut Vec::new(), once)?,
    })
}

/// Returns the value of a leaf's entry.
pub(super) fn value_of(
    pages: &impl Pages,
    number: PageNo,
    page: &Page,
    entry: usize,
) -> Result<Value, TreeError> {
    let cell = node(number, page)?.cell(entry).map_err(at(number))?;
    match cell.body {
        Body::Value(value) => {
            let start = cell.body_start();
            Ok(Value::in_page(page.clone(), start..start + value.len()))
        }
        Body::Large(large) => value::read(pages, large),
        Body::Child(_) => Err(at(number)(Fault::Entry(entry))),
    }
}

/// Counts the entries of all leaves.
pub(super) fn len(pages: &impl Pages, root: PageNo) -> Result<u64, TreeError> {
    let (mut len, mut seen) = (0, 0);
    let mut due = vec![(root, None)];
    while let Some((number, level)) = due.pop() {
        seen += 1;
        if seen > pages.end() {
            return Err(at(number)(Fault::Cycle));
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
