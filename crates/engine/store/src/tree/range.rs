//! Scans: the entries of a range, from both ends.
//!
//! Leaves have no links, so that a split changes no neighbour: each end keeps the pages above its leaf.
//!
//! Invariants: each returned entry is between those that both ends have returned, and each key is behind the previous
//! one, or the scan ends in an error. No scan loads more than twice the store's number of pages.

use std::fmt;
use std::ops::Bound;

use super::error::at;
use super::format::node::Node;
use super::format::{Fault, MAX_KEY};
use super::read::{Pages, load, node, value_of};
use super::{TreeError, Value};
use crate::{Page, PageNo};

/// The entries of a range of keys, from both ends, as returned by [`Tree::range`](super::Tree::range).
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
type Cursor = Vec<Level>;

struct Level {
    number: PageNo,
    page: Page,
    /// In an inner page, the entry that was taken. In a leaf, how many entries are before the next one.
    at: usize,
}

/// The end of the range to read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Front,
    Back,
}

/// The start of a bounded range, from one end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start<'k> {
    /// The key that leads down to its leaf.
    pub(super) key: &'k [u8],
    /// Whether it is behind the entry with exactly this key.
    is_behind: bool,
}

impl<'k> Start<'k> {
    /// Returns the start for the bound at this end; `None` if there is none.
    pub(super) fn of(bound: Bound<&'k [u8]>, end: End) -> Option<Self> {
        let (Bound::Included(key) | Bound::Excluded(key)) = bound else { return None };
        // Longer keys than allowed sort behind their longest allowed prefix.
        let is_cut = key.len() > MAX_KEY;
        let is_behind = match end {
            End::Front => is_cut || matches!(bound, Bound::Excluded(_)),
            End::Back => is_cut || matches!(bound, Bound::Included(_)),
        };
        Some(Self { key: &key[..key.len().min(MAX_KEY)], is_behind })
    }

    /// Returns how many entries of its leaf are before it.
    pub(super) fn in_leaf(&self, leaf: &Node<'_>) -> Result<usize, Fault> {
        Ok(match leaf.find(self.key)? {
            Ok(entry) => entry + usize::from(self.is_behind),
            Err(entry) => entry,
        })
    }
}

type Entry = (Vec<u8>, Value);

impl<'t, T: Pages> Range<'t, T> {
    pub(super) fn new(pages: &'t T, root: PageNo, lower: Bound<Vec<u8>>, upper: Bound<Vec<u8>>) -> Self {
        Self { pages, root, lower, upper, front: None, back: None, loaded: 0, is_over: false }
    }

    fn step(&mut self, end: End) -> Option<Result<Entry, TreeError>> {
        if self.is_over {
            return None;
        }
        let found = self.try_step(end).transpose();
        self.is_over = !matches!(found, Some(Ok(_)));
        found
    }

    fn try_step(&mut self, end: End) -> Result<Option<Entry>, TreeError> {
        let cursor = match end {
            End::Front => self.front.take(),
            End::Back => self.back.take(),
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
            End::Front => (is_above, is_below, &mut self.lower),
            End::Back => (is_below, is_above, &mut self.upper),
        };
        if !is_in_order {
            return Err(at(number)(Fault::Order(entry)));
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
            End::Front => self.front = Some(cursor),
            End::Back => self.back = Some(cursor),
        }
        Ok(Some((key, value)))
    }

    /// Returns the position where this end begins.
    fn seek(&mut self, end: End) -> Result<Cursor, TreeError> {
        let bound = match end {
            End::Front => self.lower.clone(),
            End::Back => self.upper.clone(),
        };
        let mut cursor = Cursor::new();
        let Some(start) = Start::of(as_slice(&bound), end) else {
            self.descend(&mut cursor, end, self.root, None)?;
            return Ok(cursor);
        };
        let (mut number, mut level) = (self.root, None);
        loop {
            let page = self.load(number, level)?;
            let found = node(number, &page)?;
            if found.is_leaf() {
                let entry = start.in_leaf(&found).map_err(at(number))?;
                cursor.push(Level { number, page, at: entry });
                return Ok(cursor);
            }
            let entry = found.find_child(start.key).map_err(at(number))?;
            let child = found.child(entry).map_err(at(number))?;
            level = Some(found.level() - 1);
            cursor.push(Level { number, page, at: entry });
            number = child;
        }
    }

    /// Goes down from a page to the leaf at this end.
    fn descend(
        &mut self,
        cursor: &mut Cursor,
        end: End,
        mut number: PageNo,
        mut level: Option<u8>,
    ) -> Result<(), TreeError> {
        loop {
            let page = self.load(number, level)?;
            let found = node(number, &page)?;
            let (count, is_leaf) = (found.count(), found.is_leaf());
            let entry = match end {
                End::Front => 0,
                End::Back if is_leaf => count,
                End::Back => count - 1,
            };
            if is_leaf {
                cursor.push(Level { number, page, at: entry });
                return Ok(());
            }
            let child = found.child(entry).map_err(at(number))?;
            level = Some(found.level() - 1);
            cursor.push(Level { number, page, at: entry });
            number = child;
        }
    }

    fn load(&mut self, number: PageNo, level: Option<u8>) -> Result<Page, TreeError> {
        self.loaded += 1;
        if self.loaded > self.pages.end().saturating_mul(2) {
            return Err(at(number)(Fault::Cycle));
        }
        load(self.pages, number, level)
    }

    /// Returns the leaf with the next entry from this end, and that entry.
    fn advance(&mut self, cursor: &mut Cursor, end: End) -> Result<Option<(PageNo, Page, usize)>, TreeError> {
        loop {
            let Some(leaf) = cursor.last_mut() else { return Ok(None) };
            let count = node(leaf.number, &leaf.page)?.count();
            let entry = match end {
                End::Front if leaf.at < count => Some(leaf.at),
                End::Back => leaf.at.checked_sub(1),
                End::Front => None,
            };
            if let Some(entry) = entry {
                leaf.at = match end {
                    End::Front => entry + 1,
                    End::Back => entry,
                };
                return Ok(Some((leaf.number, leaf.page.clone(), entry)));
            }
            cursor.pop();
            // The lowest page that has another entry.
            let next = loop {
                let Some(above) = cursor.last_mut() else { return Ok(None) };
                let inner = node(above.number, &above.page)?;
                let next = match end {
                    End::Front => Some(above.at + 1).filter(|next| *next < inner.count()),
                    End::Back => above.at.checked_sub(1),
                };
                if let Some(next) = next {
                    above.at = next;
                    let child = inner.child(next).map_err(at(above.number))?;
                    break (child, Some(inner.level() - 1));
                }
                cursor.pop();
            };
            self.descend(cursor, end, next.0, next.1)?;
        }
    }
}

pub(super) fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

#[inline]
pub(super) fn is_above(key: &[u8], lower: Bound<&[u8]>) -> bool {
    match lower {
        Bound::Included(lower) => key >= lower,
        Bound::Excluded(lower) => key > lower,
        Bound::Unbounded => true,
    }
}

#[inline]
pub(super) fn is_below(key: &[u8], upper: Bound<&[u8]>) -> bool {
    match upper {
        Bound::Included(upper) => key <= upper,
        Bound::Excluded(upper) => key < upper,
        Bound::Unbounded => true,
    }
}

impl<T: Pages> Iterator for Range<'_, T> {
    type Item = Result<Entry, TreeError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(End::Front)
    }
}

impl<T: Pages> DoubleEndedIterator for Range<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(End::Back)
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
