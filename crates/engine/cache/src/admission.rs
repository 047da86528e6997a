//! Decides which misses of a buffered file are answered from the kernel's page cache alone.
//!
//! A missed page that the kernel has resident costs a copy, and no device read. If all pages of
//! this cache are in use, admitting the page evicts another that will be missed just as soon: two
//! copies and an eviction for nothing. Therefore only one such miss in [`ADMITTED_ONE_IN`] is
//! admitted, which suffices to follow a working set that changes. A page that the same thread
//! misses again at once is also admitted, as with small sequential reads.
//!
//! Invariants: nothing here stops a page from being read; no lock, no shared memory.

use std::cell::Cell;

/// One miss in this many is admitted anyway.
const ADMITTED_ONE_IN: u32 = 16;

thread_local! {
    /// The last such miss of this thread, as file and page, and the number of such misses.
    static LAST_MISS: Cell<(u64, u32, u32)> = const { Cell::new((0, 0, 0)) };
}

/// Whether the kernel's cache should answer this miss, without admitting the page to this cache.
pub(crate) fn is_refused(file: u64, page: u32) -> bool {
    LAST_MISS.with(|last| {
        let (last_file, last_page, count) = last.get();
        let count = count.wrapping_add(1);
        let again = (last_file, last_page) == (file, page);
        last.set((file, page, count));
        !again && !count.is_multiple_of(ADMITTED_ONE_IN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_missed_again_is_taken_in_and_one_in_sixteen() {
        let taken_in = |miss: &mut dyn FnMut(u32) -> (u64, u32)| {
            (0..160)
                .filter(|n| {
                    let (file, page) = miss(*n);
                    !is_refused(file, page)
                })
                .count()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(taken_in(&mut |n| (1, n)), 10);
                assert_eq!(taken_in(&mut |n| (u64::from(n), 1)), 10);
                // Two reads of each page.
                assert!(taken_in(&mut |n| (1, n / 2)) >= 80);
            });
        });
    }
}
