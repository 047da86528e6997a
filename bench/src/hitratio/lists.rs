//! Queues of pages with constant-time operations, from which LRU, SIEVE and ARC are built. Each page is in at most one
//! queue.
//!
//! Invariants: a page's links are valid only while it is in a queue; a queue's length is the number of its pages.
//! Adding a page that is in a queue, or removing one that is in none, is a bug of the caller and panics.

/// The link to no page.
const NONE: u32 = u32::MAX;
/// The queue number of a page in no queue.
const NOWHERE: u8 = u8::MAX;

/// `N` doubly linked queues over the pages `0..pages`. New pages enter at the front; the back is the oldest.
#[derive(Debug)]
pub(super) struct Lists<const N: usize> {
    /// The neighbour towards the front.
    newer: Vec<u32>,
    /// The neighbour towards the back.
    older: Vec<u32>,
    list: Vec<u8>,
    front: [u32; N],
    back: [u32; N],
    len: [usize; N],
}

impl<const N: usize> Lists<N> {
    /// Creates empty queues.
    pub(super) fn new(pages: usize) -> Self {
        Self {
            newer: vec![NONE; pages],
            older: vec![NONE; pages],
            list: vec![NOWHERE; pages],
            front: [NONE; N],
            back: [NONE; N],
            len: [0; N],
        }
    }

    /// Returns the queue that a page is in.
    pub(super) fn list_of(&self, page: u32) -> Option<usize> {
        let list = self.list[page as usize];
        (list != NOWHERE).then_some(usize::from(list))
    }

    /// Returns the number of pages in a queue.
    pub(super) fn len(&self, list: usize) -> usize {
        self.len[list]
    }

    /// Returns the oldest page of a queue.
    pub(super) fn back(&self, list: usize) -> Option<u32> {
        some(self.back[list])
    }

    /// Returns the page that entered the queue right after this one.
    pub(super) fn newer(&self, page: u32) -> Option<u32> {
        some(self.newer[page as usize])
    }

    /// Puts a page that is in no queue to the front of one.
    pub(super) fn push_front(&mut self, list: usize, page: u32) {
        let index = page as usize;
        assert_eq!(self.list[index], NOWHERE, "page {page} is in a queue");
        self.list[index] = u8::try_from(list).unwrap_or(NOWHERE);
        self.newer[index] = NONE;
        self.older[index] = self.front[list];
        match some(self.front[list]) {
            Some(second) => self.newer[second as usize] = page,
            None => self.back[list] = page,
        }
        self.front[list] = page;
        self.len[list] += 1;
    }

    /// Removes a page from its queue.
    pub(super) fn remove(&mut self, page: u32) {
        let index = page as usize;
        let list = usize::from(std::mem::replace(&mut self.list[index], NOWHERE));
        assert!(list < N, "page {page} is in no queue");
        let (newer, older) = (self.newer[index], self.older[index]);
        match some(newer) {
            Some(newer) => self.older[newer as usize] = older,
            None => self.front[list] = older,
        }
        match some(older) {
            Some(older) => self.newer[older as usize] = newer,
            None => self.back[list] = newer,
        }
        self.len[list] -= 1;
    }

    /// Removes the oldest page of a queue.
    pub(super) fn pop_back(&mut self, list: usize) -> Option<u32> {
        let page = self.back(list)?;
        self.remove(page);
        Some(page)
    }
}

fn some(page: u32) -> Option<u32> {
    (page != NONE).then_some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_leave_in_the_order_they_came_also_after_one_is_taken_out_of_the_middle() {
        let mut lists = Lists::<2>::new(5);
        for page in 0..4 {
            lists.push_front(0, page);
        }
        lists.push_front(1, 4);
        lists.remove(1);
        assert_eq!((lists.len(0), lists.len(1)), (3, 1));
        assert_eq!((lists.back(0), lists.newer(0), lists.newer(3)), (Some(0), Some(2), None));
        assert_eq!([lists.list_of(1), lists.list_of(2), lists.list_of(4)], [None, Some(0), Some(1)]);
        let left: Vec<u32> = std::iter::from_fn(|| lists.pop_back(0)).collect();
        assert_eq!(left, [0, 2, 3]);
        lists.push_front(0, 1);
        assert_eq!((lists.pop_back(0), lists.pop_back(0), lists.pop_back(1)), (Some(1), None, Some(4)));
    }

    #[test]
    #[should_panic(expected = "page 2 is in a queue")]
    fn a_page_is_in_one_queue_only() {
        let mut lists = Lists::<2>::new(3);
        lists.push_front(0, 2);
        lists.push_front(1, 2);
    }
}
