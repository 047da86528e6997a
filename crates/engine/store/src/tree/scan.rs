//! Scans in place: each entry of a range is visited where it is.
//!
//! While the entries of a leaf are visited, only that leaf, and the page of the value, are kept from eviction. The scan
//! keeps the numbers of the pages above, and loads them again when the next leaf is due.
//!
//! Invariants: as in [`super::range`], entries are visited in order and within the range, or the scan ends in an error.
//! No scan loads more than twice the store's number of pages from the tree: each page once on the way down, and its
//! parent once more for the next one. The pages of a large value are as many as its length requires.

use std::ops::{Bound, ControlFlow};

use super::TreeError;
use super::error::at;
use super::format::Fault;
use super::format::node::{Body, Node};
use super::range::{End, Start, is_above, is_below};
use super::read::{Pages, Step, node_of};
use super::value;
use crate::PageNo;

/// A scan from one end.
pub(super) struct Scan<'t, T, V> {
    pages: &'t T,
    lower: Bound<&'t [u8]>,
    upper: Bound<&'t [u8]>,
    end: End,
    visit: V,
    /// The pages above the leaf.
    above: Vec<Step>,
    /// The last visited key, if any.
    key: Vec<u8>,
    is_begun: bool,
    /// The buffer for values of more than one page.
    value: Vec<u8>,
    /// Number of pages that were loaded.
    loaded: u64,
}

impl<'t, T, V, B> Scan<'t, T, V>
where
    T: Pages,
    V: FnMut(&[u8], &[u8]) -> ControlFlow<B>,
{
    pub(super) fn new(
        pages: &'t T,
        (lower, upper): (Bound<&'t [u8]>, Bound<&'t [u8]>),
        end: End,
        visit: V,
    ) -> Self {
        let (above, key, value) = (Vec::new(), Vec::new(), Vec::new());
        Self { pages, lower, upper, end, visit, above, key, is_begun: false, value, loaded: 0 }
    }

    /// Visits all entries, until `visit` breaks.
    pub(super) fn run(mut self, root: PageNo) -> Result<ControlFlow<B>, TreeError> {
        let bound = if self.end == End::Front { self.lower } else { self.upper };
        let start = Start::of(bound, self.end);
        let mut ended = self.descend(root, None, start)?;
        while ended.is_none() {
            let Some((next, level)) = self.next()? else { break };
            ended = self.descend(next, Some(level), None)?;
        }
        Ok(ended.unwrap_or(ControlFlow::Continue(())))
    }

    /// Goes down to a leaf, and visits its entries. Returns how the scan ended, if it did.
    fn descend(
        &mut self,
        mut number: PageNo,
        mut level: Option<u8>,
        start: Option<Start<'_>>,
    ) -> Result<Option<ControlFlow<B>>, TreeError> {
        let pages = self.pages;
        loop {
            self.count(number)?;
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
                return self.leaf(number, found, start);
            }
            let entry = match (start, self.end) {
                (Some(start), _) => found.find_child(start.key).map_err(at(number))?,
                (None, End::Front) => 0,
                (None, End::Back) => found.count() - 1,
            };
            self.above.push(Step { page: number, at: entry });
            level = Some(found.level() - 1);
            number = found.child(entry).map_err(at(number))?;
        }
    }

    /// Counts one more loaded page.
    fn count(&mut self, number: PageNo) -> Result<(), TreeError> {
        self.loaded += 1;
        let most = self.pages.end().saturating_mul(2);
        if self.loaded > most { Err(at(number)(Fault::Cycle)) } else { Ok(()) }
    }

    /// Returns the page below which the next leaf is, and its level.
    fn next(&mut self) -> Result<Option<(PageNo, u8)>, TreeError> {
        while let Some(Step { page: number, at: entry }) = self.above.pop() {
            self.count(number)?;
            let page = self.pages.short_page(number)?;
            let found = node_of(number, &page, None)?;
            let next = match self.end {
                End::Front => Some(entry + 1).filter(|next| *next < found.count()),
                End::Back => entry.checked_sub(1),
            };
            if let Some(next) = next {
                self.above.push(Step { page: number, at: next });
                return Ok(Some((found.child(next).map_err(at(number))?, found.level() - 1)));
            }
        }
        Ok(None)
    }

    /// Visits the entries of a leaf.
    fn leaf(
        &mut self,
        number: PageNo,
        leaf: Node<'_>,
        start: Option<Start<'_>>,
    ) -> Result<Option<ControlFlow<B>>, TreeError> {
        let start = start.map(|start| start.in_leaf(&leaf)).transpose().map_err(at(number))?;
        let mut left = match self.end {
            End::Front => start.unwrap_or(0)..leaf.count(),
            End::Back => 0..start.unwrap_or(leaf.count()),
        };
        let mut before: Option<&[u8]> = None;
        while let Some(entry) = if self.end == End::Front { left.next() } else { left.next_back() } {
            let cell = leaf.cell(entry).map_err(at(number))?;
            if before.is_none() {
                self.check_first(&leaf, cell.suffix).map_err(|()| at(number)(Fault::Order(entry)))?;
                self.key.clear();
                self.key.extend_from_slice(leaf.prefix());
            } else if before.is_some_and(|before| !self.is_next(before, cell.suffix)) {
                return Err(at(number)(Fault::Order(entry)));
            }
            before = Some(cell.suffix);
            self.key.truncate(leaf.prefix().len());
            self.key.extend_from_slice(cell.suffix);
            let is_within = match self.end {
                End::Front => is_below(&self.key, self.upper),
                End::Back => is_above(&self.key, self.lower),
            };
            if !is_within {
                return Ok(Some(ControlFlow::Continue(())));
            }
            let (key, visit) = (&self.key[..], &mut self.visit);
            let flow = match cell.body {
                Body::Value(value) => visit(key, value),
                Body::Large(large) => {
                    value::read_with(self.pages, large, &mut self.value, |value| visit(key, value))?
                }
                Body::Child(_) => return Err(at(number)(Fault::Entry(entry))),
            };
            self.is_begun = true;
            if flow.is_break() {
                return Ok(Some(flow));
            }
        }
        Ok(None)
    }

    /// Checks that the first key of a leaf is behind the last visited one or, if there is none, within the range from
    /// this end.
    fn check_first(&self, leaf: &Node<'_>, suffix: &[u8]) -> Result<(), ()> {
        let key = [leaf.prefix(), suffix].concat();
        let is_sound = match (self.is_begun, self.end) {
            (true, _) => self.is_next(&self.key, &key),
            (false, End::Front) => is_above(&key, self.lower),
            (false, End::Back) => is_below(&key, self.upper),
        };
        if is_sound { Ok(()) } else { Err(()) }
    }

    fn is_next(&self, before: &[u8], key: &[u8]) -> bool {
        if self.end == End::Front { before < key } else { key < before }
    }
}
