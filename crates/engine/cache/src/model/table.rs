//! Replaces `table`: the entries are loom's, and a part is one page, so that models of few pages
//! forget parts.

use super::sync::{AtomicU32, Ordering};

/// The entries of a file.
#[derive(Debug)]
pub(crate) struct EntryTable {
    entries: Vec<AtomicU32>,
    open_pages: AtomicU32,
}

impl EntryTable {
    pub(crate) fn new(pages: u32) -> Self {
        let entries = (0..pages).map(|_| AtomicU32::entry()).collect();
        Self { entries, open_pages: AtomicU32::new(pages) }
    }

    #[expect(clippy::cast_possible_truncation, reason = "made of so many")]
    pub(crate) fn pages(&self) -> u32 {
        self.entries.len() as u32
    }

    pub(crate) fn entry(&self, page: u32) -> Option<&AtomicU32> {
        (page < self.open_pages.load(Ordering::Relaxed)).then(|| self.any_entry(page))
    }

    pub(crate) fn any_entry(&self, page: u32) -> &AtomicU32 {
        &self.entries[page as usize]
    }

    pub(crate) fn close(&self) -> bool {
        self.open_pages.swap(0, Ordering::SeqCst) != 0
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open_pages.load(Ordering::SeqCst) != 0
    }

    #[expect(clippy::unused_self, reason = "the real one has parts of more")]
    pub(crate) fn part(&self) -> u32 {
        1
    }

    pub(crate) fn forget(&self, part: u32) {
        self.any_entry(part).store(0, Ordering::Relaxed);
    }

    pub(crate) fn forget_all(&self) {
        for page in 0..self.pages() {
            self.any_entry(page).store(0, Ordering::Relaxed);
        }
    }
}
