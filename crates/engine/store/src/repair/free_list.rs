//! The free list of a damaged store: used as it is if it is intact, otherwise rebuilt from the free
//! pages.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use pagekeeper_io::AlignedBuf;

use crate::compact::is_within;
use crate::data::PageRun;
use crate::destination::PageWriter;
use crate::format::page::{self, HEADER_BYTES, PageKind};
use crate::format::trunk;
use crate::{Error, PageNo, Seq};

/// Writes in flight.
const TRUNK_WRITES_MAX: usize = 4;

/// A trunk of the list: the next one, and the pages that it lists.
struct SavedTrunk {
    next: Option<PageNo>,
    names: Vec<PageNo>,
}

/// Free pages that were saved.
#[derive(Default)]
pub(super) struct FreePages {
    /// All free pages.
    pages: BTreeSet<PageNo>,
    /// The free pages that are trunks.
    trunks: HashMap<PageNo, SavedTrunk>,
    /// Pages without content, in ascending order: of a run, or free ones whose space was given
    /// back.
    blank: Vec<Range<PageNo>>,
}

/// The pages that the list contains.
struct ListedPages {
    pages: BTreeSet<PageNo>,
    is_whole: bool,
}

impl FreePages {
    /// Adds a free page.
    pub(super) fn add(&mut self, page: PageNo) {
        self.pages.insert(page);
    }

    /// Adds the content of a trunk.
    pub(super) fn add_trunk(&mut self, page: PageNo, payload: &[u8]) {
        let trunk = SavedTrunk { next: trunk::next(payload), names: trunk::iter(payload).collect() };
        self.trunks.insert(page, trunk);
    }

    /// Adds a page without content. Called in ascending order.
    pub(super) fn add_blank(&mut self, page: PageNo) {
        match self.blank.last_mut() {
            Some(last) if last.end == page => last.end = page + 1,
            _ => self.blank.push(page..page + 1),
        }
    }

    /// Counts as free those pages without content that the list contains.
    pub(super) fn take_blank(&mut self, head: Option<PageNo>) {
        let blank = std::mem::take(&mut self.blank);
        self.take_listed(head, |page| is_within(&blank, page));
    }

    fn walk(&self, head: Option<PageNo>) -> ListedPages {
        let mut listed = ListedPages { pages: BTreeSet::new(), is_whole: true };
        let mut next = head;
        while let Some(page) = next {
            let Some(trunk) = self.trunks.get(&page).filter(|_| !listed.pages.contains(&page)) else {
                listed.is_whole = false;
                break;
            };
            listed.pages.insert(page);
            for page in &trunk.names {
                listed.is_whole &= listed.pages.insert(*page);
            }
            next = trunk.next;
        }
        listed
    }

    /// Whether the list that begins at `head` contains exactly these pages, and `count` of them.
    pub(super) fn are_listed(&self, head: Option<PageNo>, count: u64) -> bool {
        let ListedPages { pages, is_whole } = self.walk(head);
        is_whole && pages == self.pages && pages.len() as u64 == count
    }

    /// Counts as free those lost pages that the list contains: they had no content to lose.
    pub(super) fn take_listed(&mut self, head: Option<PageNo>, is_lost: impl Fn(PageNo) -> bool) {
        let listed = self.walk(head).pages;
        self.pages.extend(listed.into_iter().filter(|page| is_lost(*page)));
    }

    /// Removes the free pages that the list does not contain, if it is intact and has `count`
    /// pages: they are in use. Returns them.
    pub(super) fn take_unlisted(&mut self, head: Option<PageNo>, count: u64) -> Vec<PageNo> {
        let ListedPages { pages, is_whole } = self.walk(head);
        if !is_whole || pages.len() as u64 != count {
            return Vec::new();
        }
        let unlisted = self.pages.difference(&pages).copied().collect();
        self.pages.retain(|page| pages.contains(page));
        unlisted
    }

    pub(super) fn has(&self, page: PageNo) -> bool {
        self.pages.contains(&page)
    }

    pub(super) fn count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Writes all of them as a new list, and returns its head. No write may be in flight.
    pub(super) fn write(
        &self,
        writer: &mut PageWriter<'_>,
        (page_size, store, seq): (usize, u64, Seq),
    ) -> Result<Option<PageNo>, Error> {
        let pages: Vec<_> = self.pages.iter().copied().collect();
        let parts: Vec<_> = pages.chunks(trunk::capacity(page_size - HEADER_BYTES) + 1).collect();
        let (mut runs, mut noted) = (Vec::new(), Vec::new());
        for (at, part) in parts.iter().enumerate() {
            for page in *part {
                let mut bytes = AlignedBuf::new(page_size);
                let is_trunk = *page == part[0];
                if is_trunk {
                    let payload = &mut bytes[HEADER_BYTES..];
                    trunk::set_next(payload, parts.get(at + 1).map(|next| next[0]));
                    let has_room = part[1..].iter().all(|page| trunk::push(payload, *page));
                    debug_assert!(has_room, "a part is no longer than a trunk");
                }
                let kind = if is_trunk { PageKind::Trunk } else { PageKind::Free };
                noted.push((*page, page::seal(&mut bytes, kind, *page, seq, store)));
                runs.push(PageRun { first: *page, seqs: Vec::new(), bytes });
                if runs.len() == TRUNK_WRITES_MAX {
                    writer.write(std::mem::take(&mut runs), std::mem::take(&mut noted))?;
                }
            }
        }
        writer.write(runs, noted)?;
        Ok(pages.first().copied())
    }
}
