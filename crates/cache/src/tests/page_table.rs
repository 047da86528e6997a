//! What a file has live and taken up, part by part.

use crate::page_table::PageTable;
use crate::sys::table::{PART, Table};

#[test]
fn pages_are_counted_by_parts() {
    let page_table = PageTable::new(1, Table::new(PART + 1, &std::sync::Arc::default()).unwrap());
    assert_eq!(page_table.parts(), 2);
    assert!(page_table.enters(0));
    assert!(!page_table.enters(PART - 1));
    assert!(page_table.enters(PART));
    assert_eq!((page_table.live(0), page_table.live(1), page_table.live_pages()), (2, 1, 3));
    page_table.leaves(PART);
    assert!(!page_table.enters(PART), "its memory is still taken up");
    page_table.leaves(PART);
    page_table.forget(1);
    assert!(page_table.enters(PART));
}
