//! Scans: the entries of a range, from both ends.
//!
//! Leaves have no links, so that a split changes no neighbour: each end keeps the pages above its
//! leaf.
//!
//! Invariants: each returned entry is between those that both ends have returned, and each key is
//! behind the previous one, or the scan ends in an error. No scan loads more than twice the store's
//! number of pages.

use std::fmt;
use std::ops::Bound;

use pagekeeper_store::{Page, PageNo};

use crate::error::{TreeError, at};
use crate::format::NodeFault;
use crate::format::node::Node;
use crate::read::{Pages, load, node, value_of};
use crate::value::Value;

/// The entries of a range of keys, from both ends, as returned by
/// [`Tree::range`](crate::Tree::range).
///
/// After an error there are no more.
pub struct Range<'t, T> {
    pages: &'t T,
    root: PageNo,
    lower: Bound<Vec<u8>>,
    upper: Bound<Vec<u8>>,
    /// The position; `None` before the first step.
    front: Option<Cursor>,
    back: Option<Cursor>,
    /// Number of pages that were loaded.
    loaded: u64,
    is_over: bool,
}

/// Pages from the root to a leaf.
type Cursor = Vec<CursorLevel>;

struct CursorLevel {
    number: PageNo,
    page: Page,
    /// In an inner page, the entry that was taken. In a leaf, how many entries are before the next
    /// one.
    at: usize,
}

/// The end of the range to read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RangeEnd {
    Front,
    Back,
}

impl RangeEnd {
    /// Returns the entry after this one, seen from this end; `None` after the last of `count`.
    #[inline]
    pub(crate) fn behind(self, entry: usize, count: usize) -> Option<usize> {
        match self {
            Self::Front => Some(entry + 1).filter(|next| *next < count),
            Self::Back => entry.checked_sub(1),
        }
    }
}

/// The start of a bounded range, from one end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RangeStart<'k> {
    /// The key that leads down to its leaf.
    pub(crate) key: &'k [u8],
    /// Whether it is behind the entry with exactly this key.
    is_behind: bool,
}

impl<'k> RangeStart<'k> {
    /// Returns the start for the bound at this end; `None` if there is none.
    pub(crate) fn of(bound: Bound<&'k [u8]>, end: RangeEnd) -> Option<Self> {
        let (Bound::Included(key) | Bound::Excluded(key)) = bound else { return None };
        let is_behind = match end {
            RangeEnd::Front => matches!(bound, Bound::Excluded(_)),
            RangeEnd::Back => matches!(bound, Bound::Included(_)),
        };
        Some(Self { key, is_behind })
    }

    /// Returns how many entries of its leaf are before it.
    pub(crate) fn in_leaf(&self, leaf: &Node<'_>) -> Result<usize, NodeFault> {
        Ok(match leaf.find(self.key)? {
            Ok(entry) => entry + usize::from(self.is_behind),
            Err(entry) => entry,
        })
    }
}

type KeyValue = (Vec<u8>, Value);

impl<'t, T: Pages> Range<'t, T> {
    pub(crate) fn new(pages: &'t T, root: PageNo, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Self {
        Self { pages, root, lower, upper, front: None, back: None, loaded: 0, is_over: false }
    }

    fn step(&mut self, end: RangeEnd) -> Option<Result<KeyValue, TreeError>> {
        if self.is_over {
            return None;
        }
        let found = self.try_step(end).transpose();
        self.is_over = !matches!(found, Some(Ok(_)));
        found
    }

    fn try_step(&mut self, end: RangeEnd) -> Result<Option<KeyValue>, TreeError> {
        let cursor = match end {
            RangeEnd::Front => self.front.take(),
            RangeEnd::Back => self.back.take(),
        };
        let mut cursor = match cursor {
            Some(cursor) => cursor,
            None => self.seek(end)?,
        };
        let Some((number, page, entry)) = self.advance(&mut cursor, end)? else { return Ok(None) };
        let key = node(number, &page)?.key(entry).map_err(at(number))?;
        let (is_above, is_below) =
            (is_above(&key, as_slice(&self.lower)), is_below(&key, as_slice(&self.upper)));
        let (is_in_order, is_within, bound) = match end {
            RangeEnd::Front => (is_above, is_below, &mut self.lower),
            RangeEnd::Back => (is_below, is_above, &mut self.upper),
        };
        if !is_in_order {
            return Err(at(number)(NodeFault::Order(entry)));
        }
        if !is_within {
            return Ok(None);
        }
        // Reuses its memory.
        match bound {
            Bound::Excluded(last) => last.clone_from(&key),
            bound => *bound = Bound::Excluded(key.clone()),
        }
        let value = value_of(self.pages, number, &page, entry)?;
        match end {
            RangeEnd::Front => self.front = Some(cursor),
            RangeEnd::Back => self.back = Some(cursor),
        }
        Ok(Some((key, value)))
    }

    /// Returns the position where this end begins.
    fn seek(&mut self, end: RangeEnd) -> Result<Cursor, TreeError> {
        let bound = match end {
            RangeEnd::Front => self.lower.clone(),
            RangeEnd::Back => self.upper.clone(),
        };
        let mut cursor = Cursor::new();
        self.descend(&mut cursor, end, (self.root, None), RangeStart::of(as_slice(&bound), end))?;
        Ok(cursor)
    }

    /// Goes down from a page, of this level if one is given, to the leaf where the range starts, or
    /// to the one at this end.
    fn descend(
        &mut self,
        cursor: &mut Cursor,
        end: RangeEnd,
        (mut number, mut level): (PageNo, Option<u8>),
        start: Option<RangeStart<'_>>,
    ) -> Result<(), TreeError> {
        loop {
            let page = self.load(number, level)?;
            let found = node(number, &page)?;
            let entry = match (start, end) {
                (Some(start), _) if found.is_leaf() => start.in_leaf(&found).map_err(at(number))?,
                (Some(start), _) => found.find_child(start.key).map_err(at(number))?,
                (None, RangeEnd::Front) => 0,
                (None, RangeEnd::Back) => found.count() - usize::from(!found.is_leaf()),
            };
            let below = if found.is_leaf() {
                None
            } else {
                Some((found.child(entry).map_err(at(number))?, Some(found.level() - 1)))
            };
            cursor.push(CursorLevel { number, page, at: entry });
            let Some(below) = below else { return Ok(()) };
            (number, level) = below;
        }
    }

    fn load(&mut self, number: PageNo, level: Option<u8>) -> Result<Page, TreeError> {
        self.loaded += 1;
        if self.loaded > self.pages.end().saturating_mul(2) {
            return Err(at(number)(NodeFault::Cycle));
        }
        load(self.pages, number, level)
    }

    /// Returns the leaf with the next entry from this end, and that entry.
    fn advance(
        &mut self,
        cursor: &mut Cursor,
        end: RangeEnd,
    ) -> Result<Option<(PageNo, Page, usize)>, TreeError> {
        loop {
            let Some(leaf) = cursor.last_mut() else { return Ok(None) };
            let count = node(leaf.number, &leaf.page)?.count();
            let entry = match end {
                RangeEnd::Front if leaf.at < count => Some(leaf.at),
                RangeEnd::Back => leaf.at.checked_sub(1),
                RangeEnd::Front => None,
            };
            if let Some(entry) = entry {
                leaf.at = match end {
                    RangeEnd::Front => entry + 1,
                    RangeEnd::Back => entry,
                };
                return Ok(Some((leaf.number, leaf.page.clone(), entry)));
            }
            cursor.pop();
            // The lowest page that has another entry.
            let next = loop {
                let Some(above) = cursor.last_mut() else { return Ok(None) };
                let inner = node(above.number, &above.page)?;
                if let Some(next) = end.behind(above.at, inner.count()) {
                    above.at = next;
                    let child = inner.child(next).map_err(at(above.number))?;
                    break (child, Some(inner.level() - 1));
                }
                cursor.pop();
            };
            self.descend(cursor, end, next, None)?;
        }
    }
}

/// Returns the bound behind all keys with a prefix.
pub(crate) fn behind(prefix: &[u8]) -> Bound<Vec<u8>> {
    let Some(last) = prefix.iter().rposition(|byte| *byte != u8::MAX) else { return Bound::Unbounded };
    let mut key = prefix[..=last].to_vec();
    key[last] += 1;
    Bound::Excluded(key)
}

pub(crate) fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

#[inline]
pub(crate) fn is_above(key: &[u8], lower: Bound<&[u8]>) -> bool {
    match lower {
        Bound::Included(lower) => key >= lower,
        Bound::Excluded(lower) => key > lower,
        Bound::Unbounded => true,
    }
}

#[inline]
pub(crate) fn is_below(key: &[u8], upper: Bound<&[u8]>) -> bool {
    match upper {
        Bound::Included(upper) => key <= upper,
        Bound::Excluded(upper) => key < upper,
        Bound::Unbounded => true,
    }
}

impl<T: Pages> Iterator for Range<'_, T> {
    type Item = Result<KeyValue, TreeError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(RangeEnd::Front)
    }
}

impl<T: Pages> DoubleEndedIterator for Range<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(RangeEnd::Back)
    }
}

impl<T: Pages> std::iter::FusedIterator for Range<'_, T> {}

impl<T> fmt::Debug for Range<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Range")
            .field("lower", &self.lower)
            .field("upper", &self.upper)
            .finish_non_exhaustive()
    }
}
