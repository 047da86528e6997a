//! Checks of whole trees: each page occurs once, keys are in order and within the bounds above
//! them, values are complete, and no page is unaccounted for.
//!
//! Fails with the first invalid page.

use std::collections::HashSet;

use pagekeeper_store::{Error, PageNo};

use crate::error::{TreeError, at};
use crate::format::NodeFault;
use crate::format::node::{EntryBody, Node};
use crate::read::{Pages, load, node};
use crate::value;

/// The content of a valid tree, as returned by [`Tree::check`](crate::Tree::check).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TreeCheck {
    /// Number of keys, each with its value.
    pub entries: u64,
    /// Number of pages from the root to a leaf, including both.
    pub levels: u32,
    /// Number of inner pages.
    pub inner_pages: u64,
    /// Number of leaves.
    pub leaf_pages: u64,
    /// Number of pages with large values.
    pub value_pages: u64,
}

pub(crate) fn check(pages: &impl Pages, root: PageNo) -> Result<TreeCheck, TreeError> {
    walk(pages, root, &mut HashSet::new())
}

/// Returns the pages that are in use but belong to none of the trees with these roots, in ascending
/// order.
pub(crate) fn unused_pages(
    pages: &impl Pages,
    roots: impl Iterator<Item = PageNo>,
) -> Result<Vec<PageNo>, TreeError> {
    let mut seen = HashSet::new();
    for root in roots {
        walk(pages, root, &mut seen)?;
    }
    let mut unused = Vec::new();
    let all = PageNo::each(PageNo::new(0)..PageNo::new(pages.end()));
    for page in all.filter(|page| !seen.contains(page)) {
        match pages.page(page) {
            Ok(_) => unused.push(page),
            Err(Error::NotAllocated { .. } | Error::NeverWritten { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(unused)
}

/// A page still to be checked: its number, its level if known, and the bounds of its keys.
struct DuePage {
    page: PageNo,
    level: Option<u8>,
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
}

fn walk(pages: &impl Pages, root: PageNo, seen: &mut HashSet<PageNo>) -> Result<TreeCheck, TreeError> {
    let mut found = TreeCheck::default();
    let mut due = vec![DuePage { page: root, level: None, lower: None, upper: None }];
    while let Some(next) = due.pop() {
        let number = next.page;
        see(number, seen)?;
        let page = load(pages, number, next.level)?;
        let node = node(number, &page)?;
        if next.level.is_none() {
            found.levels = u32::from(node.level()) + 1;
        }
        check_node(&node, &next, page.len()).map_err(at(number))?;
        if !node.is_leaf() {
            found.inner_pages += 1;
            push_children(&node, &next, &mut due).map_err(at(number))?;
            continue;
        }
        found.leaf_pages += 1;
        found.entries += node.count() as u64;
        for cell in node.cells() {
            if let EntryBody::Large(large) = cell.map_err(at(number))?.body {
                for page in value::check(pages, large)? {
                    see(page, seen)?;
                    found.value_pages += 1;
                }
            }
        }
    }
    Ok(found)
}

fn see(page: PageNo, seen: &mut HashSet<PageNo>) -> Result<(), TreeError> {
    let reason = "it is there for another purpose already";
    if seen.insert(page) { Ok(()) } else { Err(TreeError::NotATree { page, reason: reason.to_owned() }) }
}

/// Checks that its entries are in order, within the bounds above, and do not overlap.
fn check_node(node: &Node<'_>, due: &DuePage, payload: usize) -> Result<(), NodeFault> {
    let prefix = node.prefix();
    let is_prefix = |bound: &Option<Vec<u8>>| bound.as_ref().is_some_and(|bound| bound.starts_with(prefix));
    let is_common = prefix.is_empty() || is_prefix(&due.lower) && is_prefix(&due.upper);
    if !is_common {
        return Err(NodeFault::Prefix);
    }
    let first = usize::from(!node.is_leaf());
    let mut before: Option<Vec<u8>> = None;
    for entry in first..node.count() {
        let key = node.key(entry)?;
        let is_above = match (&before, &due.lower) {
            (Some(before), _) => *before < key,
            // A separator is above the key that the page's first entry stands for.
            (None, Some(lower)) if node.is_leaf() => *lower <= key,
            (None, Some(lower)) => *lower < key,
            (None, None) => true,
        };
        if !is_above || due.upper.as_ref().is_some_and(|upper| *upper <= key) {
            return Err(NodeFault::Order(entry));
        }
        before = Some(key);
    }
    let mut places = Vec::with_capacity(node.count());
    for cell in node.cells() {
        let cell = cell?;
        places.push((cell.start, cell.start + cell.len()));
    }
    places.sort_unstable();
    let is_apart = places.iter().zip(places.iter().skip(1)).all(|(one, next)| one.1 <= next.0);
    if is_apart && node.live()? <= payload { Ok(()) } else { Err(NodeFault::Overlap) }
}

fn push_children(node: &Node<'_>, due: &DuePage, to: &mut Vec<DuePage>) -> Result<(), NodeFault> {
    let key = |entry: usize| if entry < node.count() { node.key(entry).map(Some) } else { Ok(None) };
    for entry in (0..node.count()).rev() {
        let lower = if entry == 0 { due.lower.clone() } else { key(entry)? };
        let upper = key(entry + 1)?.or_else(|| due.upper.clone());
        to.push(DuePage { page: node.child(entry)?, level: Some(node.level() - 1), lower, upper });
    }
    Ok(())
}
