//! Which misses of a buffered file are answered from the kernel's page cache alone.
//!
//! A page that the kernel has resident costs a copy when it is missed, and no device read. Where every page of this cache is
//! in use, taking it in as well drives out another that will be missed just as soon: two copies and an eviction for
//! nothing. So only one in [`ADMITTED_ONE_IN`] is taken in, which is enough to follow when others come into use; and one that is
//! missed again at once by the same thread, as by small reads in order.
//!
//! Invariants: nothing here keeps a page from being read; no lock, no shared memory.

use std::cell::Cell;

/// One miss in so many is taken in all the same.
const ADMITTED_ONE_IN: u32 = 16;

thread_local! {
    /// The last miss of this thread that was answered by the kernel's cache, by file and page, and how many there were.
    static LAST: Cell<(u64, u32, u32)> = const { Cell::new((0, 0, 0)) };
}

/// Whether this miss is to be answered by the kernel's cache, and the page not admitted to this one.
pub(crate) fn is_refused(file: u64, page: u32) -> bool {
    LAST.with(|last| {
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
