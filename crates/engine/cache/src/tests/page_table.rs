//! Live pages and taken-up memory of a file, part by part.

use crate::page_table::PageTable;
use crate::sys::memory;
use crate::sys::table::EntryTable;

#[test]
fn pages_are_counted_by_parts() {
    for kernel_page in [4096, 16_384, 65_536].into_iter().filter(|&page| page >= memory::page()) {
        counts_by_parts(kernel_page);
    }
}

fn counts_by_parts(kernel_page: usize) {
    let part = u32::try_from(kernel_page / 4).unwrap();
    let table = EntryTable::new(kernel_page, part + 1, &std::sync::Arc::default()).unwrap();
    let page_table = PageTable::new(1, table);
    assert_eq!((page_table.parts(), page_table.pages_of(1)), (2, part..part + 1));
    assert!(page_table.enters(0));
    assert!(!page_table.enters(part - 1));
    assert!(page_table.enters(part));
    assert_eq!((page_table.live(0), page_table.live(1), page_table.live_pages()), (2, 1, 3));
    page_table.leaves(part);
    assert!(!page_table.enters(part), "its memory is still taken up");
    page_table.leaves(part);
    page_table.forget(1);
    assert!(page_table.enters(part));
}
