//! Shrinking the data file: free pages at its end are cut off, and the room of other free pages goes back to the file system.
//!
//! ```text
//! commit without the free pages at the end ─▶ checkpoint ─▶ map: not known ─▶ file cut, holes made, synced ─▶ map: never written
//! ```
//!
//! Page numbers are their users', so that no page is moved.
//!
//! Invariants:
//! 1. What is cut off or made a hole is free as of a superblock, both slots of it: nothing of the journal that counts names it, so that no
//!    recovery needs it, or brings it back.
//! 2. As long as it may be there or not, whatever a crash leaves, the map says that nothing is known of it, durably.
//! 3. A page that is named anew behind the end was never written as far as anybody sees: what an interrupted compaction, or that of a
//!    store that this one follows, left there is cut off before.
//! 4. A free page whose room was given back reads as never written, and is still in the free list: whoever writes is refused it.

use std::ops::Range;
use std::time::{Duration, Instant};

use pagekeeper_kernel::mutex::lock;

use crate::core::Core;
use crate::format::page::{HEADER, PageKind};
use crate::format::page_map::{NEVER, UNKNOWN};
use crate::format::superblock::Meta;
use crate::format::trunk;
use crate::handle::Handle;
use crate::snapshots::Live;
use crate::txn::{Changed, WriteTxn};
use crate::{Durability, Error, PageNo, Seq};

/// The least room that is given back in the midst of the file, in bytes: less would break it into pieces.
const LEAST_HOLE: u64 = if cfg!(test) { 2 * 4096 } else { 64 << 10 };
/// Pages that leave the cache together.
const AT_ONCE: usize = 4096;

/// What a compaction did; from [`Store::compact`](crate::Store::compact).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compaction {
    /// The commit that took the free pages at the end away; the last one, if there were none.
    pub seq: Seq,
    /// Pages before.
    pub pages_before: u64,
    /// Pages now.
    pub pages: u64,
    /// Bytes by which the data file is shorter.
    pub cut: u64,
    /// Bytes of free pages that were given back to the file system in the midst of the file; `None` where it takes none.
    pub given_back: Option<u64>,
    /// From the call to its end.
    pub took: Duration,
}

/// The free list, as it is to be read and made anew.
struct FreeList {
    /// The pages that name others, in ascending order.
    trunks: Vec<PageNo>,
    /// All, in ascending order.
    pages: Vec<PageNo>,
    /// Whether the lowest are allocated first.
    is_ordered: bool,
}

/// Whether a page is in one of these ranges, which ascend.
pub(crate) fn is_within(ranges: &[Range<PageNo>], page: PageNo) -> bool {
    let at = ranges.partition_point(|range| range.end <= page);
    ranges.get(at).is_some_and(|range| range.start <= page)
}

/// Pages, in ascending order, as ranges.
fn ranges(pages: impl Iterator<Item = PageNo>) -> Vec<Range<PageNo>> {
    let mut ranges: Vec<Range<PageNo>> = Vec::new();
    for page in pages {
        match ranges.last_mut() {
            Some(last) if last.end == page => last.end += 1,
            _ => ranges.push(page..page + 1),
        }
    }
    ranges
}

impl Core {
    pub(crate) fn compact(&self) -> Result<Compaction, Error> {
        let began = Instant::now();
        let (seq, pages_before) = self.drop_free_end()?;
        let txn = WriteTxn::new(Handle::Borrowed(self))?;
        // Both slots of the superblock know of it then, and nothing that counts in the journal names a page that is free.
        if !injected!(self.config.options, CompactedBeforeCheckpoint) {
            self.sync()?;
        }
        let pages = txn.meta.pages;
        let cut = self.cut_behind(pages)?;
        let given_back = self.make_holes(&txn.meta)?;
        drop(txn);
        Ok(Compaction { seq, pages_before, pages, cut, given_back, took: began.elapsed() })
    }

    /// Commits that the free pages at the end are none; gives the commit, and how many pages there were.
    pub(crate) fn drop_free_end(&self) -> Result<(Seq, u64), Error> {
        let mut txn = WriteTxn::new(Handle::Borrowed(self))?;
        let pages_before = txn.meta.pages;
        let mut free = self.read_free_list(&txn.meta)?;
        while free.pages.last().is_some_and(|last| last + 1 == txn.meta.pages) {
            free.pages.pop();
            txn.meta.pages -= 1;
        }
        if txn.meta.pages < pages_before || !free.is_ordered {
            // They may become pages of a run.
            self.forget_given_back();
            txn.set_free_list(&free)?;
        }
        Ok((txn.commit(Durability::Sync)?, pages_before))
    }

    /// Reads the free list. Under the writer's lock.
    fn read_free_list(&self, meta: &Meta) -> Result<FreeList, Error> {
        let mut free = FreeList { trunks: Vec::new(), pages: Vec::new(), is_ordered: true };
        let mut named = Vec::new();
        let mut next = meta.free_head;
        while let Some(head) = next {
            let damaged =
                |what: &str| self.page_id(head, 0).damaged(format!("a trunk of the free list: {what}"));
            let found = self.page_at(head, Seq::MAX)?.filter(|page| page.kind() == PageKind::Trunk);
            let Some(found) = found else { return Err(damaged("it is none")) };
            trunk::check(&found, meta.pages).map_err(|fault| damaged(&fault.to_string()))?;
            free.trunks.push(head);
            free.pages.push(head);
            let first = free.pages.len();
            free.pages.extend(trunk::iter(&found));
            named.extend(free.pages[first..].iter().rev());
            if free.pages.len() as u64 > meta.free_pages {
                return Err(damaged("it names more pages than are free"));
            }
            next = trunk::next(&found);
        }
        free.is_ordered = free.trunks.iter().chain(&named).is_sorted();
        free.trunks.sort_unstable();
        free.pages.sort_unstable();
        Ok(free)
    }

    /// Cuts off what stands behind the last page. Under the writer's lock, when the data file has all that was committed.
    fn cut_behind(&self, pages: u64) -> Result<u64, Error> {
        let end = self.map.pages().max(pages);
        let is_cut = self.data.bytes() <= pages.saturating_mul(self.config.page_size as u64);
        if is_cut && self.map.were_never_written(pages..end)? {
            return Ok(0);
        }
        let mut cut = 0;
        self.vacate(std::slice::from_ref(&(pages..end)), || {
            cut = self.data.cut(pages)?;
            Ok(())
        })?;
        Ok(cut)
    }

    /// Gives the room of free pages back to the file system, where there is enough of it in a row. Under the writer's lock, when the
    /// data file has all that was committed.
    fn make_holes(&self, meta: &Meta) -> Result<Option<u64>, Error> {
        let free = self.read_free_list(meta)?;
        let plain = || free.pages.iter().copied().filter(|page| free.trunks.binary_search(page).is_err());
        let mut holes = Vec::new();
        for run in ranges(plain()) {
            let bytes = (run.end - run.start) * self.config.page_size as u64;
            if bytes >= LEAST_HOLE && !self.map.were_never_written(run.clone())? {
                holes.push(run);
            }
        }
        if holes.is_empty() {
            return Ok(Some(0));
        }
        // Found out by trying, behind the end, where nothing is.
        match self.data.punch(&(meta.pages..meta.pages + 1)) {
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => return Ok(None),
            tried => tried?,
        }
        // Before any of them reads as never written.
        *lock(&self.given_back) = Some(ranges(plain()));
        self.vacate(&holes, || {
            holes.iter().try_for_each(|hole| self.data.punch(hole))?;
            self.data.sync_all()
        })?;
        let pages = holes.iter().map(|hole| hole.end - hole.start).sum::<u64>();
        Ok(Some(pages * self.config.page_size as u64))
    }

    /// Makes pages such that were never written, by what makes zeros of them, durably.
    fn vacate(&self, pages: &[Range<PageNo>], zero: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let _guard = lock(&self.checkpoints.under_way);
        let fatal = |error: Error| if error.is_no_space() { error } else { self.poison(error) };
        if !injected!(self.config.options, HolesUnknownToTheMap) {
            self.note_all(pages, UNKNOWN).map_err(fatal)?;
        }
        zero().map_err(fatal)?;
        for pages in pages {
            for start in pages.clone().step_by(AT_ONCE) {
                let some: Vec<_> = (start..pages.end.min(start + AT_ONCE as u64)).collect();
                self.cached.discard_many(&some);
            }
        }
        self.note_all(pages, NEVER).map_err(fatal)
    }

    /// Says durably in the map what is known of pages. By the holder of `under_way`.
    fn note_all(&self, pages: &[Range<PageNo>], entry: u32) -> Result<(), Error> {
        pages.iter().try_for_each(|pages| self.map.fill(pages.clone(), entry))?;
        let seq = self.checkpoints.seq.load(std::sync::atomic::Ordering::Acquire);
        let depth = crate::depth::Depth::of(self.config.options.disk.as_ref(), false);
        self.map.flush(self.map.pages(), seq, depth)
    }

    /// Sees to it that pages in `wanted`, behind the last one, read as never written. Under the writer's lock, with `pages` before the
    /// transaction.
    pub(crate) fn clear_behind(&self, pages: u64, wanted: Range<PageNo>) -> Result<(), Error> {
        if self.is_clear(&wanted)? {
            return Ok(());
        }
        self.sync()?;
        // What is kept for those who read what was there.
        self.index.prune_all(&self.snapshots.needed());
        while self.index.has_any(&wanted) && self.snapshots.end_oldest() {
            self.index.prune_all(&self.snapshots.needed());
        }
        self.cut_behind(pages)?;
        Ok(())
    }

    /// Whether pages behind the last one read as never written.
    pub(crate) fn is_clear(&self, wanted: &Range<PageNo>) -> Result<bool, Error> {
        Ok(!self.index.has_any(wanted) && self.map.were_never_written(wanted.clone())?)
    }

    /// Room for a page that is allocated again, if it was given back.
    pub(crate) fn make_room(&self, page: PageNo) -> Result<(), Error> {
        if self.index.get(page, Seq::MAX).is_some() || !self.map.were_never_written(page..page + 1)? {
            return Ok(());
        }
        self.data.make_room(page)
    }

    /// Whether a page that nothing is in is free. Under the writer's lock.
    pub(crate) fn is_given_back(&self, base: &Meta, page: PageNo) -> Result<bool, Error> {
        if base.free_pages == 0 {
            return Ok(false);
        }
        if let Some(ranges) = &*lock(&self.given_back) {
            return Ok(is_within(ranges, page));
        }
        let ranges = ranges(self.read_free_list(base)?.pages.into_iter());
        let is_free = is_within(&ranges, page);
        *lock(&self.given_back) = Some(ranges);
        Ok(is_free)
    }

    /// What is free may become something else that nothing is in.
    fn forget_given_back(&self) {
        *lock(&self.given_back) = None;
    }

    /// Whether a page that was read as zeros, and had no version in memory before, has none that a snapshot needs: its room may have been
    /// given back meanwhile.
    pub(crate) fn is_blank(&self, live: &Live, page: PageNo) -> bool {
        !self.index.has(page) && !live.is_ended()
    }
}

impl WriteTxn<'_> {
    /// Makes the free list anew: the lowest pages name the others, and the lowest of those are the first to be allocated.
    fn set_free_list(&mut self, free: &FreeList) -> Result<(), Error> {
        let room = trunk::capacity(self.core.payload_size());
        let number = free.pages.len().div_ceil(room + 1);
        let (trunks, named) = free.pages.split_at(number);
        for (at, page) in trunks.iter().enumerate() {
            self.core.make_room(*page)?;
            let mut bytes = self.core.buffers.zeroed();
            let payload = &mut bytes.make_mut()[HEADER..];
            trunk::set_next(payload, trunks.get(at + 1).copied());
            let part = named.chunks(room).nth(at).unwrap_or_default();
            let has_room = part.iter().rev().all(|page| trunk::push(payload, *page));
            debug_assert!(has_room, "a part is no longer than a trunk");
            self.changed.insert(*page, Changed::Page { kind: PageKind::Trunk, bytes, in_part: false });
        }
        for page in &free.trunks {
            if *page < self.meta.pages && trunks.binary_search(page).is_err() {
                self.changed.insert(*page, Changed::Free);
            }
        }
        self.meta.free_head = trunks.first().copied();
        self.meta.free_pages = free.pages.len() as u64;
        Ok(())
    }
}
