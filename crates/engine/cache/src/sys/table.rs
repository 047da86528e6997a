//! The page table of a file: one 32-bit entry for each of its pages, in memory that is taken up on
//! first use.
//!
//! The mapping is demand-zero, and a zero entry is an absent page. So a file of a terabyte costs
//! only address space until its pages are touched: the kernel's own page table is the upper level
//! of the two. Parts without resident pages can be forgotten ([`EntryTable::forget`]), which turns
//! their entries back into zeros while other threads read them. A part is the content of one kernel
//! page, the smallest unit that can be given back.
//!
//! Invariants: entries are only accessed as atomics; the mapping lives as long as the value.
//! [`EntryTable::entry`] finds only pages below `open_pages`, which drops to 0 when the file is
//! closed and never rises again.

#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags};

use super::memory;

/// The page table of a file.
#[derive(Debug)]
pub(crate) struct EntryTable {
    entries: NonNull<AtomicU32>,
    open_pages: AtomicU32,
    pages: u32,
    /// Binary logarithm of the number of entries in a part.
    part_shift: u32,
    /// The size of all tables of the cache, in bytes.
    total: Arc<AtomicU64>,
}

// SAFETY: the mapping is owned by this value and accessed as atomics only.
unsafe impl Send for EntryTable {}
// SAFETY: as above.
unsafe impl Sync for EntryTable {}

impl EntryTable {
    /// Creates a table of absent pages. Its [`bytes`](Self::bytes) are part of `total` as long as
    /// it lives. `kernel_page` is the size of a kernel page in bytes: [`memory::page`] or a
    /// multiple of it.
    pub(crate) fn new(kernel_page: usize, pages: u32, total: &Arc<AtomicU64>) -> rustix::io::Result<Self> {
        let total = Arc::clone(total);
        let part_shift = (kernel_page / size_of::<AtomicU32>()).trailing_zeros();
        let mapped = Self::mapped(pages, part_shift);
        let start = memory::map(mapped, MapFlags::NORESERVE)?;
        // Huge pages would take up more memory than is counted.
        // SAFETY: the range is this value's own mapping; the advice changes no content.
        let _ = unsafe { memory::advise(start, mapped, Advice::LinuxNoHugepage) };
        let entries = NonNull::new(start.cast::<AtomicU32>()).ok_or(rustix::io::Errno::NOMEM)?;
        let table = Self { entries, open_pages: AtomicU32::new(pages), pages, part_shift, total };
        table.total.fetch_add(table.bytes(), Ordering::Relaxed);
        Ok(table)
    }

    /// Returns the number of mapped entries: one more than there are pages, for an empty read at
    /// the end of the file.
    fn mapped(pages: u32, part_shift: u32) -> usize {
        (pages as usize + 1).next_multiple_of(1 << part_shift) * size_of::<AtomicU32>()
    }

    /// Returns the number of entries in a part.
    pub(crate) fn part(&self) -> u32 {
        1 << self.part_shift
    }

    /// Returns the memory of the table once all of it has been touched, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (u64::from(self.pages.div_ceil(self.part())) << self.part_shift) * size_of::<AtomicU32>() as u64
    }

    /// Returns the number of the file's pages, closed or not.
    pub(crate) fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns the address of the entries: one for each page, and one that is always absent.
    pub(crate) fn first(&self) -> NonNull<AtomicU32> {
        self.entries
    }

    /// Returns the entry of a page of an open file.
    #[inline]
    pub(crate) fn entry(&self, page: u32) -> Option<&AtomicU32> {
        if page >= self.open_pages.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: `open_pages` is `pages` or 0, so the entry is one of those mapped; the mapping is
        // aligned to a page, zeroed, lives as long as `self`, and is accessed as atomics only.
        Some(unsafe { self.entries.add(page as usize).as_ref() })
    }

    /// Returns the entry of a page, even if the file is closed.
    ///
    /// # Panics
    ///
    /// If there is no such page.
    pub(crate) fn any_entry(&self, page: u32) -> &AtomicU32 {
        assert!(page < self.pages, "page {page} of {}", self.pages);
        // SAFETY: as in `entry`; the bound was checked just now.
        unsafe { self.entries.add(page as usize).as_ref() }
    }

    /// Closes the table: [`entry`](Self::entry) finds nothing from now on. Returns true for the
    /// first caller.
    pub(crate) fn close(&self) -> bool {
        self.open_pages.swap(0, Ordering::SeqCst) != 0
    }

    /// Whether [`entry`](Self::entry) still finds pages. False for a file without pages.
    pub(crate) fn is_open(&self) -> bool {
        self.open_pages.load(Ordering::SeqCst) != 0
    }

    /// Turns the entries of a part into zeros and gives their memory back. The caller ensures that
    /// none of them is resident or loading, and that nobody changes them meanwhile; concurrent
    /// reads are allowed.
    pub(crate) fn forget(&self, part: u32) {
        assert!(part << self.part_shift < self.pages, "part {part} of a table of {} pages", self.pages);
        // SAFETY: the range is one kernel page of this value's mapping. The kernel replaces it by
        // zeros at once for all readers. Every value that an atomic load can see, old or zero, is
        // an absent page by the caller's promise. A race can at most give a wrong guess at how hot
        // a page is.
        let forgotten = unsafe {
            let start = self.entries.as_ptr().add((part as usize) << self.part_shift);
            memory::advise(start.cast(), size_of::<AtomicU32>() << self.part_shift, Advice::LinuxDontNeed)
        };
        debug_assert_eq!(forgotten, Ok(()));
    }

    /// Like [`forget`](Self::forget), for all parts.
    pub(crate) fn forget_all(&self) {
        // SAFETY: the range is this value's mapping; as in `forget`.
        let forgotten = unsafe {
            let start = self.entries.as_ptr().cast();
            memory::advise(start, Self::mapped(self.pages, self.part_shift), Advice::LinuxDontNeed)
        };
        debug_assert_eq!(forgotten, Ok(()));
    }
}

impl Drop for EntryTable {
    fn drop(&mut self) {
        let mapped = Self::mapped(self.pages, self.part_shift);
        // SAFETY: the mapping is this value's own, made with the same length; nobody borrows from
        // it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.entries.as_ptr().cast(), mapped) };
        debug_assert_eq!(unmapped, Ok(()));
        self.total.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(pages: u32) -> EntryTable {
        EntryTable::new(memory::page(), pages, &Arc::default()).unwrap()
    }

    /// Also fails if a part is smaller than a page of the running kernel: its neighbours would be
    /// dropped with it, or it would stay.
    #[test]
    fn entries_start_absent_and_can_be_forgotten_by_parts() {
        for kernel_page in [4096, 16_384, 65_536].into_iter().filter(|&page| page >= memory::page()) {
            let part = u32::try_from(kernel_page / 4).unwrap();
            let table = EntryTable::new(kernel_page, 3 * part - 72, &Arc::default()).unwrap();
            assert_eq!(table.part(), part);
            for page in 0..table.pages() {
                assert_eq!(table.entry(page).unwrap().load(Ordering::Relaxed), 0);
                table.any_entry(page).store(page + 1, Ordering::Relaxed);
            }
            assert!(table.entry(3 * part - 72).is_none());
            let at = |page| table.any_entry(page).load(Ordering::Relaxed);
            for forgotten in 0..3 {
                table.forget(forgotten);
                for page in 0..table.pages() {
                    let kept = page / part > forgotten;
                    assert_eq!(
                        at(page),
                        if kept { page + 1 } else { 0 },
                        "page {page} after part {forgotten}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_closed_table_finds_nothing_and_keeps_its_entries() {
        let table = table(10);
        table.any_entry(9).store(5, Ordering::Relaxed);
        assert!(table.is_open());
        assert!(table.close());
        assert!(!table.close());
        assert!(!table.is_open());
        assert!(table.entry(9).is_none());
        assert_eq!(table.any_entry(9).load(Ordering::Relaxed), 5);
    }

    #[test]
    fn a_huge_table_costs_nothing_until_touched() {
        // 4 TiB in pages of 4 KiB.
        let table = table(1 << 30);
        assert_eq!(table.entry((1 << 30) - 1).unwrap().load(Ordering::Relaxed), 0);
        assert_eq!(table.bytes(), 4 << 30);
    }

    #[test]
    fn table_sizes_are_added_up() {
        for kernel_page in [4096, 16_384, 65_536] {
            let total = Arc::default();
            let part = u32::try_from(kernel_page / 4).unwrap();
            let one = EntryTable::new(kernel_page, 1, &total).unwrap();
            let other = EntryTable::new(kernel_page, part + 1, &total).unwrap();
            assert_eq!(total.load(Ordering::Relaxed), 3 * kernel_page as u64);
            drop(one);
            assert_eq!(total.load(Ordering::Relaxed), 2 * kernel_page as u64);
            drop(other);
            assert_eq!(total.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn an_empty_file_has_no_entries() {
        let table = table(0);
        assert!(table.entry(0).is_none());
        assert!(!table.close());
    }
}
