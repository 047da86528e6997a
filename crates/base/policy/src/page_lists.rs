//! A simulation of the page cache of a given size: the two lists of the kernel, and its memory of
//! evicted pages (`mm/swap.c`, `mm/vmscan.c` and `mm/workingset.c`, Linux 5.9 to 6.18, without the
//! multi-generational LRU).
//!
//! - A page comes to the inactive list. Its second use moves it to the active list.
//! - The oldest inactive page is evicted. Meanwhile the oldest active pages move to the inactive
//!   list if that is too small, or if pages came back soon after their eviction.
//! - A page that comes back goes to the active list if fewer pages were evicted and activated since
//!   its eviction than the active list has.
//!
//! Invariants: at most `capacity` pages are resident. Pages are numbers that the caller chooses,
//! small ones, since there is a slot for each. Not simulated: pages that are mapped, dirty or part
//! of large folios, which the kernel keeps longer, and memory that is no page cache.

/// The number of pages that the kernel evicts at a time for a memory cgroup (`MEMCG_CHARGE_BATCH`).
const RECLAIM_BATCH_PAGES: u32 = 64;
/// A page of the active list, in units of [`PageLists::scan_debt`].
const SCAN_DEBT_PAGE: u64 = 1 << 10;
/// Slots before those of pages: the ends of the two lists.
const END_SLOTS: usize = 2;

/// One of the two lists; its number is the slot of its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListKind {
    Inactive = 0,
    Active = 1,
}

/// A page's state, and its neighbours in a circular list.
#[derive(Debug, Clone, Copy, Default)]
struct PageSlot {
    newer: u32,
    older: u32,
    list: Option<ListKind>,
    is_referenced: bool,
    /// Whether it was read in and not used since.
    is_unused: bool,
    /// The lists' age when it was evicted.
    evicted_at: Option<u32>,
}

/// The outcome of a use of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageUse {
    /// It was resident, and used or written before.
    Hit,
    /// It was resident: brought in by a read for this use.
    FirstUse,
    /// It was absent, and is resident now.
    Absent,
}

/// A simulated page cache.
#[derive(Debug, Clone)]
pub struct PageLists {
    capacity: u32,
    /// The bytes that each of its pages stands for.
    page_bytes: u64,
    slots: Vec<PageSlot>,
    lens: [u32; 2],
    /// Evictions and activations so far.
    age: u32,
    /// Active pages that are to be moved, in parts of pages.
    scan_debt: u64,
    /// Evictions since a page came back to the active list.
    evicted_since_return: u32,
    has_evicted: bool,
}

impl PageLists {
    /// Makes an empty cache of at most `capacity` pages, at least one. Each page stands for
    /// `page_bytes` bytes.
    pub fn new(capacity: u32, page_bytes: u64) -> Self {
        let end = |at| PageSlot { newer: at, older: at, ..PageSlot::default() };
        Self {
            capacity: capacity.max(1),
            page_bytes,
            slots: vec![end(0), end(1)],
            lens: [0; 2],
            age: 0,
            scan_debt: 0,
            evicted_since_return: RECLAIM_BATCH_PAGES,
            has_evicted: false,
        }
    }

    /// Changes the capacity and the bytes that each page stands for.
    pub fn resize(&mut self, capacity: u32, page_bytes: u64) {
        (self.capacity, self.page_bytes) = (capacity.max(1), page_bytes);
        self.make_room();
    }

    /// Returns whether a page is resident.
    pub fn is_resident(&self, page: u32) -> bool {
        self.slots.get(slot_of(page)).is_some_and(|slot| slot.list.is_some())
    }

    /// Returns whether the cache was full once: an absent page was then evicted, or never used.
    pub fn has_evicted(&self) -> bool {
        self.has_evicted
    }

    /// Brings a page in by a read. Returns whether it was absent.
    pub fn read_in(&mut self, page: u32) -> bool {
        let is_absent = !self.is_resident(page);
        if is_absent {
            self.insert(page, true);
            self.slots[slot_of(page)].is_unused = true;
        }
        is_absent
    }

    /// Writes to a page, which brings it in. Returns whether it was resident and unused since
    /// [`Self::read_in`]: then it was brought in by this write.
    pub fn write(&mut self, page: u32) -> bool {
        if !self.is_resident(page) {
            self.insert(page, false);
        }
        std::mem::take(&mut self.slots[slot_of(page)].is_unused)
    }

    /// Uses a page, which brings it in.
    pub fn use_page(&mut self, page: u32) -> PageUse {
        let is_absent = !self.is_resident(page);
        if is_absent {
            self.insert(page, true);
        }
        let at = slot_of(page);
        let is_first = std::mem::take(&mut self.slots[at].is_unused);
        self.mark_accessed(at);
        match (is_absent, is_first) {
            (true, _) => PageUse::Absent,
            (false, true) => PageUse::FirstUse,
            (false, false) => PageUse::Hit,
        }
    }

    /// Forgets a page, resident or evicted.
    pub fn forget(&mut self, page: u32) {
        let at = slot_of(page);
        if at < self.slots.len() {
            self.unlink(at);
            self.slots[at] = PageSlot::default();
        }
    }

    fn insert(&mut self, page: u32, is_read: bool) {
        let at = slot_of(page);
        if at >= self.slots.len() {
            self.slots.resize(at + 1, PageSlot::default());
        }
        let active = self.lens[ListKind::Active as usize];
        let evicted_at = self.slots[at].evicted_at.take().filter(|_| is_read);
        let returns = evicted_at.is_some_and(|then| self.age.wrapping_sub(then) <= active);
        if returns {
            self.age = self.age.wrapping_add(1);
            self.evicted_since_return = 0;
        }
        self.slots[at] = PageSlot::default();
        self.push(at, if returns { ListKind::Active } else { ListKind::Inactive });
        self.make_room();
    }

    /// Does what `folio_mark_accessed()` does.
    fn mark_accessed(&mut self, at: usize) {
        let slot = &mut self.slots[at];
        if !slot.is_referenced {
            slot.is_referenced = true;
        } else if slot.list == Some(ListKind::Inactive) {
            slot.is_referenced = false;
            self.unlink(at);
            self.push(at, ListKind::Active);
            self.age = self.age.wrapping_add(1);
        }
    }

    fn make_room(&mut self) {
        while self.lens[0] + self.lens[1] > self.capacity {
            self.age_active_list();
            if self.lens[ListKind::Inactive as usize] == 0 {
                self.deactivate_oldest();
            }
            self.evict_oldest();
        }
    }

    /// Moves as large a part of the active list as one eviction takes of the inactive one.
    fn age_active_list(&mut self) {
        let [inactive, active] = self.lens.map(u64::from);
        let is_low = inactive * self.inactive_ratio() < active;
        if !is_low && self.evicted_since_return >= RECLAIM_BATCH_PAGES {
            self.scan_debt = 0;
            return;
        }
        self.scan_debt += active * SCAN_DEBT_PAGE / inactive.max(1);
        while self.scan_debt >= SCAN_DEBT_PAGE && self.lens[ListKind::Active as usize] > 0 {
            self.scan_debt -= SCAN_DEBT_PAGE;
            self.deactivate_oldest();
        }
    }

    /// Returns the ratio of the active to the inactive list up to which pages stay active
    /// (`inactive_is_low()`).
    fn inactive_ratio(&self) -> u64 {
        let pages = u64::from(self.lens[0] + self.lens[1]);
        let gib = pages.saturating_mul(self.page_bytes) >> 30;
        if gib == 0 { 1 } else { (10 * gib).isqrt() }
    }

    fn deactivate_oldest(&mut self) {
        let at = self.slots[ListKind::Active as usize].newer as usize;
        if at >= END_SLOTS {
            self.unlink(at);
            self.push(at, ListKind::Inactive);
        }
    }

    fn evict_oldest(&mut self) {
        let at = self.slots[ListKind::Inactive as usize].newer as usize;
        if at < END_SLOTS {
            return;
        }
        self.unlink(at);
        self.slots[at] = PageSlot { evicted_at: Some(self.age), ..PageSlot::default() };
        self.age = self.age.wrapping_add(1);
        self.evicted_since_return = self.evicted_since_return.saturating_add(1);
        self.has_evicted = true;
    }

    /// Makes a page the newest of a list. The end's `older` is the newest page, and its `newer` the
    /// oldest one.
    fn push(&mut self, at: usize, list: ListKind) {
        let end = list as usize;
        let next = self.slots[end].older;
        (self.slots[at].newer, self.slots[at].older, self.slots[at].list) = (number(end), next, Some(list));
        self.slots[next as usize].newer = number(at);
        self.slots[end].older = number(at);
        self.lens[end] += 1;
    }

    fn unlink(&mut self, at: usize) {
        let PageSlot { newer, older, list, .. } = self.slots[at];
        if let Some(list) = list {
            self.slots[newer as usize].older = older;
            self.slots[older as usize].newer = newer;
            self.slots[at].list = None;
            self.lens[list as usize] -= 1;
        }
    }
}

fn slot_of(page: u32) -> usize {
    page as usize + END_SLOTS
}

fn number(slot: usize) -> u32 {
    u32::try_from(slot).unwrap_or(u32::MAX)
}
