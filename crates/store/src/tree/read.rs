//! Reading: from the root to a leaf, one page for each level, none of them copied.
//!
//! Invariant: a page's level is one below that of the page that names it, so each way down ends.

use super::TreeError;
use super::error::at;
use super::format::node::{Body, Node};
use super::format::{Fault, MAX_KEY};
use super::value::{self, Value};
use crate::{Page, PageNo, ReadTxn, WriteTxn};

/// What a tree is read in: a [`ReadTxn`] or a [`WriteTxn`]. Nothing else implements it.
pub trait Pages: sealed::Sealed {
    /// The payload of a page, as the transaction's `read` gives it.
    fn page(&self, page: PageNo) -> Result<Page, crate::Error>;

    /// How many pages there are.
    fn end(&self) -> u64;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::ReadTxn<'_> {}
    impl Sealed for crate::WriteTxn<'_> {}
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

/// A page of a tree, of this level if one is given. It parses from then on.
pub(super) fn load(pages: &impl Pages, page: PageNo, level: Option<u8>) -> Result<Page, TreeError> {
    let loaded = pages.page(page)?;
    let found = Node::parse(&loaded).map_err(at(page))?.level();
    match level {
        Some(wanted) if wanted != found => Err(at(page)(Fault::Level { found, wanted })),
        _ => Ok(loaded),
    }
}

/// The page, to be read.
pub(super) fn node(number: PageNo, page: &Page) -> Result<Node<'_>, TreeError> {
    Node::parse(page).map_err(at(number))
}

/// An inner page on the way down, and which of its entries was taken.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) page: PageNo,
    pub(super) at: usize,
}

/// The leaf that has a key, if the tree does; each inner page above it is reported.
pub(super) fn leaf_of(
    pages: &impl Pages,
    root: PageNo,
    key: &[u8],
    mut step: impl FnMut(Step),
) -> Result<(PageNo, Page), TreeError> {
    if key.len() > MAX_KEY {
        return Err(TreeError::KeyTooLong { given: key.len(), max: MAX_KEY });
    }
    let (mut number, mut page) = (root, load(pages, root, None)?);
    loop {
        let inner = node(number, &page)?;
        if inner.is_leaf() {
            return Ok((number, page));
        }
        let found = inner.find_child(key).map_err(at(number))?;
        step(Step { page: number, at: found });
        let child = inner.child(found).map_err(at(number))?;
        page = load(pages, child, Some(inner.level() - 1))?;
        number = child;
    }
}

pub(super) fn get(pages: &impl Pages, root: PageNo, key: &[u8]) -> Result<Option<Value>, TreeError> {
    let (number, page) = leaf_of(pages, root, key, |_| ())?;
    let leaf = node(number, &page)?;
    match leaf.find(key).map_err(at(number))? {
        Ok(found) => value_of(pages, number, &page, found).map(Some),
        Err(_) => Ok(None),
    }
}

/// The value of an entry of a leaf.
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

/// How many entries all leaves have.
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
