//! Scans in place: each entry of a range is visited where it is.
//!
//! While the entries of a leaf are visited, only that leaf, and the page of the value, are kept
//! from eviction. The scan keeps the numbers of the pages above, and loads them again when the next
//! leaf is due. From the second leaf on, the processor is told to fetch the next one. Values in
//! pages of their own are not fetched ahead: that made their scans slower.
//!
//! Invariants: as in [`crate::range`], entries are visited in order and within the range, or the
//! scan ends in an error. No scan loads more than twice the store's number of pages from the tree:
//! each page once on the way down, and its parent once more for the next one. The pages of a large
//! value are as many as its length requires.

use std::ops::{Bound, ControlFlow};

use pagekeeper_store::PageNo;

use crate::error::{TreeError, at};
use crate::format::NodeFault;
use crate::format::node::{EntryBody, Node};
use crate::range::{RangeEnd, RangeStart, is_above, is_below};
use crate::read::{Pages, PathStep, node_of};
use crate::value;

/// The result of one step down.
enum ScanStep<B> {
    /// The page was a leaf. How the scan ended there, if it did.
    Leaf(Option<ControlFlow<B>>),
    /// The page below, and its level.
    Page(PageNo, u8),
}

/// A scan from one end.
pub(crate) struct TreeScan<'t, T, V> {
    pages: &'t T,
    lower: Bound<&'t [u8]>,
    upper: Bound<&'t [u8]>,
    end: RangeEnd,
    visit: V,
    /// The pages above the leaf.
    above: Vec<PathStep>,
    /// The last visited key, if any.
    key: Vec<u8>,
    is_begun: bool,
    /// The buffer for values of more than one page.
    value: Vec<u8>,
    /// Number of pages that were loaded.
    loaded: u64,
}

impl<'t, T, V, B> TreeScan<'t, T, V>
where
    T: Pages,
    V: FnMut(&[u8], &[u8]) -> ControlFlow<B>,
{
    pub(crate) fn new(
        pages: &'t T,
        (lower, upper): (Bound<&'t [u8]>, Bound<&'t [u8]>),
        end: RangeEnd,
        visit: V,
    ) -> Self {
        let (above, key, value) = (Vec::new(), Vec::new(), Vec::new());
        Self { pages, lower, upper, end, visit, above, key, is_begun: false, value, loaded: 0 }
    }

    /// Visits all entries, until `visit` breaks.
    pub(crate) fn run(mut self, root: PageNo) -> Result<ControlFlow<B>, TreeError> {
        let bound = if self.end == RangeEnd::Front { self.lower } else { self.upper };
        let start = RangeStart::of(bound, self.end);
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
        start: Option<RangeStart<'_>>,
    ) -> Result<Option<ControlFlow<B>>, TreeError> {
        let pages = self.pages;
        loop {
            self.count(number)?;
            let below = pages.page_with(number, |page| {
                let found = node_of(number, page, level)?;
                if found.is_leaf() {
                    return self.leaf(number, found, start).map(ScanStep::Leaf);
                }
                let entry = match (start, self.end) {
                    (Some(start), _) => found.find_child(start.key).map_err(at(number))?,
                    (None, RangeEnd::Front) => 0,
                    (None, RangeEnd::Back) => found.count() - 1,
                };
                self.above.push(PathStep { page: number, at: entry });
                let child = found.child(entry).map_err(at(number))?;
                Ok(ScanStep::Page(child, found.level() - 1))
            })?;
            match below? {
                ScanStep::Leaf(ended) => return Ok(ended),
                ScanStep::Page(child, its_level) => (number, level) = (child, Some(its_level)),
            }
        }
    }

    /// Counts one more loaded page.
    fn count(&mut self, number: PageNo) -> Result<(), TreeError> {
        self.loaded += 1;
        let most = self.pages.end().saturating_mul(2);
        if self.loaded > most { Err(at(number)(NodeFault::Cycle)) } else { Ok(()) }
    }

    /// Returns the page below which the next leaf is, and its level.
    fn next(&mut self) -> Result<Option<(PageNo, u8)>, TreeError> {
        while let Some(PathStep { page: number, at: entry }) = self.above.pop() {
            self.count(number)?;
            let (pages, end) = (self.pages, self.end);
            let next = pages.page_with(number, |page| {
                let found = node_of(number, page, None)?;
                let Some(next) = end.behind(entry, found.count()) else { return Ok(None) };
                let child = found.child(next).map_err(at(number))?;
                if let Some(later) = end.behind(next, found.count()).and_then(|later| found.child(later).ok())
                {
                    pages.fetch(later);
                }
                Ok::<_, TreeError>(Some((next, child, found.level() - 1)))
            })??;
            if let Some((next, child, level)) = next {
                self.above.push(PathStep { page: number, at: next });
                return Ok(Some((child, level)));
            }
        }
        Ok(None)
    }

    /// Visits the entries of a leaf.
    fn leaf(
        &mut self,
        number: PageNo,
        leaf: Node<'_>,
        start: Option<RangeStart<'_>>,
    ) -> Result<Option<ControlFlow<B>>, TreeError> {
        let start = start.map(|start| start.in_leaf(&leaf)).transpose().map_err(at(number))?;
        let mut left = match self.end {
            RangeEnd::Front => start.unwrap_or(0)..leaf.count(),
            RangeEnd::Back => 0..start.unwrap_or(leaf.count()),
        };
        let mut before: Option<&[u8]> = None;
        while let Some(entry) = if self.end == RangeEnd::Front { left.next() } else { left.next_back() } {
            let cell = leaf.cell(entry).map_err(at(number))?;
            if before.is_none() {
                self.check_first(&leaf, cell.suffix).map_err(|()| at(number)(NodeFault::Order(entry)))?;
                self.key.clear();
                self.key.extend_from_slice(leaf.prefix());
            } else if before.is_some_and(|before| !self.is_next(before, cell.suffix)) {
                return Err(at(number)(NodeFault::Order(entry)));
            }
            before = Some(cell.suffix);
            self.key.truncate(leaf.prefix().len());
            self.key.extend_from_slice(cell.suffix);
            let is_within = match self.end {
                RangeEnd::Front => is_below(&self.key, self.upper),
                RangeEnd::Back => is_above(&self.key, self.lower),
            };
            if !is_within {
                return Ok(Some(ControlFlow::Continue(())));
            }
            let (key, visit) = (&self.key[..], &mut self.visit);
            let flow = match cell.body {
                EntryBody::Value(value) => visit(key, value),
                EntryBody::Large(large) => {
                    value::read_with(self.pages, large, &mut self.value, |value| visit(key, value))?
                }
                EntryBody::Child(_) => return Err(at(number)(NodeFault::Entry(entry))),
            };
            self.is_begun = true;
            if flow.is_break() {
                return Ok(Some(flow));
            }
        }
        Ok(None)
    }

    /// Checks that the first key of a leaf is behind the last visited one or, if there is none,
    /// within the range from this end.
    fn check_first(&self, leaf: &Node<'_>, suffix: &[u8]) -> Result<(), ()> {
        let key = [leaf.prefix(), suffix].concat();
        let is_sound = match (self.is_begun, self.end) {
            (true, _) => self.is_next(&self.key, &key),
            (false, RangeEnd::Front) => is_above(&key, self.lower),
            (false, RangeEnd::Back) => is_below(&key, self.upper),
        };
        if is_sound { Ok(()) } else { Err(()) }
    }

    fn is_next(&self, before: &[u8], key: &[u8]) -> bool {
        if self.end == RangeEnd::Front { before < key } else { key < before }
    }
}
