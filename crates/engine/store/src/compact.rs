//! Shrinks the data file: cuts off free pages at its end, and gives the space of other free pages
//! back to the file system.
//!
//! ```text
//! commit without the free pages at the end ─▶ checkpoint ─▶ map: not known ─▶ file cut, holes made, synced ─▶ map: never written
//! ```
//!
//! Page numbers belong to their users, so no page is moved.
//!
//! Invariants:
//! 1. Pages are cut off or made holes only if both slots of the superblock record them as free.
//!    Then no valid journal entry names them, so recovery neither needs them nor brings them back.
//! 2. While a crash may leave such a page there or not, the map durably says that its content is
//!    unknown.
//! 3. A new page behind the end looks as if it was never written. An interrupted compaction, of
//!    this store or the one that it replaces, may have left something there; that is cut off first.
//! 4. A free page whose space was given back reads as never written, and is still in the free list.
//!    Writing to it is refused.

use std::ops::Range;
use std::time::{Duration, Instant};

use pagekeeper_kernel::mutex::lock;

use crate::core::Core;
use crate::format::page::{HEADER_BYTES, PageKind};
use crate::format::page_map::{ENTRY_NEVER_WRITTEN, ENTRY_UNKNOWN};
use crate::format::superblock::StoreMeta;
use crate::format::trunk;
use crate::free_list::{self, FreeListFault};
use crate::handle::StoreHandle;
use crate::snapshots::LiveSnapshot;
use crate::txn::{PageEdit, WriteTxn};
use crate::writer::BeginWrite;
use crate::{Durability, Error, PageNo, Seq};

/// Minimum bytes of a hole in the middle of the file. Smaller holes would fragment it.
const LEAST_HOLE: u64 = if cfg!(test) { 2 * 4096 } else { 64 << 10 };
/// Pages that are removed from the cache together.
const DISCARD_PAGES_MAX: usize = 4096;

/// The result of a compaction, as returned by [`Store::compact`](crate::Store::compact).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compaction {
    /// The commit that removed the free pages at the end; the last commit if there were none.
    pub seq: Seq,
    /// Number of pages before.
    pub pages_before: u64,
    /// Number of pages now.
    pub pages: u64,
    /// Bytes cut off the data file.
    pub cut: u64,
    /// Bytes of free pages in the middle of the file that were given back; `None` if the file
    /// system does not support it.
    pub given_back: Option<u64>,
    /// Time from the call to its end.
    pub took: Duration,
}

/// The free list, as it was read and is to be rewritten.
struct FreeListContent {
    /// The trunk pages, in ascending order.
    trunks: Vec<PageNo>,
    /// All free pages, in ascending order.
    pages: Vec<PageNo>,
    /// Whether the lowest pages are allocated first.
    is_ordered: bool,
}

/// Whether a page is in one of these ascending ranges.
pub(crate) fn is_within(ranges: &[Range<PageNo>], page: PageNo) -> bool {
    let at = ranges.partition_point(|range| range.end <= page);
    ranges.get(at).is_some_and(|range| range.start <= page)
}

/// Returns ascending pages as ranges.
fn ranges(pages: impl Iterator<Item = PageNo>) -> Vec<Range<PageNo>> {
    let mut ranges: Vec<Range<PageNo>> = Vec::new();
    for page in pages {
        match ranges.last_mut() {
            Some(last) if last.end == page => last.end = page + 1,
            _ => ranges.push(page..page + 1),
        }
    }
    ranges
}

impl Core {
    pub(crate) fn compact(&self) -> Result<Compaction, Error> {
        let began = Instant::now();
        let (seq, pages_before) = self.drop_free_end()?;
        let txn = WriteTxn::new(StoreHandle::Borrowed(self), BeginWrite::within(true, None))?;
        // After this, both slots of the superblock cover it, and no valid journal entry names a
        // free page.
        if !injected!(self.config.options, CompactedBeforeCheckpoint) {
            self.sync()?;
        }
        let pages = txn.meta.pages;
        let cut = self.cut_behind(pages)?;
        let given_back = self.make_holes(&txn.meta)?;
        drop(txn);
        Ok(Compaction { seq, pages_before, pages, cut, given_back, took: began.elapsed() })
    }

    /// Commits a page count without the free pages at the end. Returns the commit and the previous
    /// number of pages.
    pub(crate) fn drop_free_end(&self) -> Result<(Seq, u64), Error> {
        let mut txn = WriteTxn::new(StoreHandle::Borrowed(self), BeginWrite::within(true, None))?;
        let pages_before = txn.meta.pages;
        let mut free = self.read_free_list(&txn.meta)?;
        while free.pages.last().is_some_and(|last| last.get() + 1 == txn.meta.pages) {
            free.pages.pop();
            txn.meta.pages -= 1;
        }
        if txn.meta.pages < pages_before || !free.is_ordered {
            // These pages may become part of a run.
            self.forget_given_back();
            txn.set_free_list(&free)?;
        }
        Ok((txn.commit(Durability::Sync)?, pages_before))
    }

    /// Reads the free list. Under the writer's lock.
    fn read_free_list(&self, meta: &StoreMeta) -> Result<FreeListContent, Error> {
        let mut free = FreeListContent { trunks: Vec::new(), pages: Vec::new(), is_ordered: true };
        let mut named = Vec::new();
        let read = |page| self.page_at(page, Seq::MAX);
        let fault = free_list::walk(meta, read, |head, trunk| {
            free.trunks.push(head);
            free.pages.push(head);
            let first = free.pages.len();
            free.pages.extend(trunk::iter(trunk));
            named.extend(free.pages[first..].iter().rev());
            let is_too_long = free.pages.len() as u64 > meta.free_pages;
            if is_too_long { Err("it names more pages than are free") } else { Ok(()) }
        })?;
        if let Some(FreeListFault { page, reason }) = fault {
            return Err(self.page_id(page, Seq::NONE).damaged(format!("a trunk of the free list: {reason}")));
        }
        free.is_ordered = free.trunks.iter().chain(&named).is_sorted();
        free.trunks.sort_unstable();
        free.pages.sort_unstable();
        Ok(free)
    }

    /// Cuts off everything behind the last page. Called under the writer's lock, when the data file
    /// has all commits.
    fn cut_behind(&self, pages: u64) -> Result<u64, Error> {
        let behind = PageNo::new(pages)..PageNo::new(self.map.pages().max(pages));
        let is_cut = self.data.bytes() <= pages.saturating_mul(self.config.page_size as u64);
        if is_cut && self.map.were_never_written(behind.clone())? {
            return Ok(0);
        }
        let mut cut = 0;
        self.vacate(std::slice::from_ref(&behind), || {
            cut = self.data.cut(pages)?;
            Ok(())
        })?;
        Ok(cut)
    }

    /// Gives the space of free pages back to the file system where enough are consecutive. Called
    /// under the writer's lock, when the data file has all commits.
    fn make_holes(&self, meta: &StoreMeta) -> Result<Option<u64>, Error> {
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
        // Tests for support behind the end, where no data is.
        let end = PageNo::new(meta.pages);
        match self.data.punch(&(end..end + 1)) {
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

    /// Durably turns pages into ones that were never written, with `zero` to make them zeros.
    fn vacate(&self, pages: &[Range<PageNo>], zero: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let _guard = lock(&self.checkpoints.under_way);
        let fatal = |error: Error| if error.is_no_space() { error } else { self.poison(error) };
        if !injected!(self.config.options, HolesUnknownToTheMap) {
            self.note_all(pages, ENTRY_UNKNOWN).map_err(fatal)?;
        }
        zero().map_err(fatal)?;
        for pages in pages {
            for start in PageNo::each(pages.clone()).step_by(DISCARD_PAGES_MAX) {
                let some = start..pages.end.min(start + DISCARD_PAGES_MAX as u64);
                self.cached.discard_many(&PageNo::each(some).collect::<Vec<_>>());
            }
        }
        self.note_all(pages, ENTRY_NEVER_WRITTEN).map_err(fatal)
    }

    /// Durably sets the map's entry for pages. Called by the holder of `under_way`.
    fn note_all(&self, pages: &[Range<PageNo>], entry: u32) -> Result<(), Error> {
        pages.iter().try_for_each(|pages| self.map.fill(pages.clone(), entry))?;
        let seq = self.checkpoints.seq();
        let depth = crate::depth::WriteDepth::of(self.config.options.disk.as_ref(), false);
        self.map.flush(self.map.pages(), seq, depth)
    }

    /// Makes pages in `wanted`, which are behind the last page, read as never written. Called under
    /// the writer's lock; `pages` is the page count before the transaction.
    pub(crate) fn clear_behind(&self, pages: u64, wanted: Range<PageNo>) -> Result<(), Error> {
        if self.is_clear(&wanted)? {
            return Ok(());
        }
        self.sync()?;
        // Versions that are kept for readers of the previous content.
        self.index.prune_all(&self.snapshots.needed());
        while self.index.has_any(&wanted) && self.snapshots.end_oldest() {
            self.index.prune_all(&self.snapshots.needed());
        }
        self.cut_behind(pages)?;
        Ok(())
    }

    /// Tests whether pages behind the last page read as never written.
    pub(crate) fn is_clear(&self, wanted: &Range<PageNo>) -> Result<bool, Error> {
        Ok(!self.index.has_any(wanted) && self.map.were_never_written(wanted.clone())?)
    }

    /// Allocates space for a page that is allocated again, if its space was given back.
    pub(crate) fn make_room(&self, page: PageNo) -> Result<(), Error> {
        if self.index.get(page, Seq::MAX).is_some() || !self.map.were_never_written(page..page + 1)? {
            return Ok(());
        }
        self.data.make_room(page)
    }

    /// Tests whether a page without content is free. Called under the writer's lock.
    pub(crate) fn is_given_back(&self, base: &StoreMeta, page: PageNo) -> Result<bool, Error> {
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

    /// Forgets which pages are free, since a free page may become one without content that is in
    /// use.
    fn forget_given_back(&self) {
        *lock(&self.given_back) = None;
    }

    /// Whether no snapshot needs a version of this page, which read as zeros and had no version in
    /// memory before. Its space may have been given back meanwhile.
    pub(crate) fn is_blank(&self, live: &LiveSnapshot, page: PageNo) -> bool {
        !self.index.has(page) && !live.is_ended()
    }
}

impl WriteTxn<'_> {
    /// Rewrites the free list. The lowest pages become trunks, and the lowest pages in them are
    /// allocated first.
    fn set_free_list(&mut self, free: &FreeListContent) -> Result<(), Error> {
        let room = trunk::capacity(self.core.payload_size());
        let number = free.pages.len().div_ceil(room + 1);
        let (trunks, named) = free.pages.split_at(number);
        for (at, page) in trunks.iter().enumerate() {
            self.core.make_room(*page)?;
            let mut bytes = self.core.buffers.zeroed();
            let payload = &mut bytes.make_mut()[HEADER_BYTES..];
            trunk::set_next(payload, trunks.get(at + 1).copied());
            let part = named.chunks(room).nth(at).unwrap_or_default();
            let has_room = part.iter().rev().all(|page| trunk::push(payload, *page));
            debug_assert!(has_room, "a part is no longer than a trunk");
            self.changed.insert(*page, PageEdit::Page { kind: PageKind::Trunk, bytes, in_part: false });
        }
        for page in &free.trunks {
            if page.get() < self.meta.pages && trunks.binary_search(page).is_err() {
                self.changed.insert(*page, PageEdit::Free);
            }
        }
        self.meta.free_head = trunks.first().copied();
        self.meta.free_pages = free.pages.len() as u64;
        Ok(())
    }
}
