//! The pool's record of a file: its number, its table, and how many pages of each part of the table
//! are in frames.
//!
//! Invariants: numbers are never reused; `live` and `populated` change under the pool's lock only.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use super::entry::PageEntry;
use super::file_stats::FileCounts;
use super::priority::FilePriority;
use super::table::EntryTable;
use crate::PageNo;
use crate::sys::memory::zeros;

/// The other bits of a part's counter count its live pages.
const POPULATED_BIT: u32 = 1 << 31;

/// The page table of one file.
#[derive(Debug)]
pub(crate) struct PageTable {
    pub(crate) number: u64,
    pub(crate) table: EntryTable,
    pub(crate) priority: FilePriority,
    pub(crate) counts: FileCounts,
    parts: Box<[AtomicU32]>,
    /// Live pages of all parts.
    live: AtomicU32,
    /// Parts whose memory is taken up.
    populated: AtomicU32,
}

impl PageTable {
    pub(crate) fn new(number: u64, table: EntryTable) -> Self {
        let parts = zeros(table.pages().div_ceil(table.part()) as usize);
        Self {
            number,
            table,
            priority: FilePriority::Normal,
            counts: FileCounts::default(),
            parts,
            live: AtomicU32::new(0),
            populated: AtomicU32::new(0),
        }
    }

    /// Sets the priority of the file's pages.
    pub(crate) fn with_priority(self, priority: FilePriority) -> Self {
        Self { priority, ..self }
    }

    pub(crate) fn parts(&self) -> u32 {
        self.table.pages().div_ceil(self.table.part())
    }

    /// Returns the part that contains the entry of a page.
    pub(crate) fn part_of(&self, page: u32) -> u32 {
        page / self.table.part()
    }

    /// Returns the pages whose entries are in a part.
    pub(crate) fn pages_of(&self, part: u32) -> Range<u32> {
        let first = part * self.table.part();
        first..first.saturating_add(self.table.part()).min(self.table.pages())
    }

    /// Notes that a page is in a frame, or being loaded into one. Returns whether its part's memory
    /// was not taken up before.
    pub(crate) fn enters(&self, page: u32) -> bool {
        let part = &self.parts[self.part_of(page) as usize];
        let before = part.load(Ordering::Relaxed);
        part.store((before | POPULATED_BIT) + 1, Ordering::Relaxed);
        self.live.store(self.live.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let first = before & POPULATED_BIT == 0;
        if first {
            self.populated.store(self.populated.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        first
    }

    /// Notes that a page is in no frame any more.
    pub(crate) fn leaves(&self, page: u32) {
        let part = &self.parts[self.part_of(page) as usize];
        let before = part.load(Ordering::Relaxed);
        debug_assert!(before & !POPULATED_BIT > 0, "page {page} left a part in which none was live");
        part.store(before - 1, Ordering::Relaxed);
        self.live.store(self.live.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }

    /// Returns the number of a part's pages that are in frames or being loaded.
    pub(crate) fn live(&self, part: u32) -> u32 {
        self.parts[part as usize].load(Ordering::Relaxed) & !POPULATED_BIT
    }

    /// Returns the number of the file's pages that are in frames or being loaded.
    pub(crate) fn live_pages(&self) -> u64 {
        self.live.load(Ordering::Relaxed).into()
    }

    /// Returns the number of parts whose memory is taken up.
    pub(crate) fn populated(&self) -> usize {
        self.populated.load(Ordering::Relaxed) as usize
    }

    /// Returns the pages that can be read now, as ranges in ascending order. Pages may come or go
    /// meanwhile. Takes no lock.
    pub(crate) fn readable(&self) -> Vec<Range<PageNo>> {
        let mut ranges: Vec<Range<PageNo>> = Vec::new();
        for part in (0..self.parts()).filter(|&part| self.live(part) > 0) {
            for page in self.pages_of(part) {
                let Some(entry) = self.table.entry(page) else { return Vec::new() };
                if PageEntry(entry.load(Ordering::Relaxed)).readable().is_none() {
                    continue;
                }
                let page = PageNo::from(page);
                match ranges.last_mut() {
                    Some(last) if last.end == page => last.end = page + 1,
                    _ => ranges.push(page..page + 1),
                }
            }
        }
        ranges
    }

    /// Gives the memory of a part without live pages back to the kernel.
    pub(crate) fn forget(&self, part: u32) {
        debug_assert_eq!(self.live(part), 0, "live pages in part {part}");
        self.table.forget(part);
        self.parts[part as usize].store(0, Ordering::Relaxed);
        self.populated.store(self.populated.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}
