//! What a file has live and taken up, part by part.

use crate::sys::table::{PART, Table};
use crate::translation::Translation;

#[test]
fn pages_are_counted_by_parts() {
    let translation = Translation::new(1, Table::new(PART + 1, &std::sync::Arc::default()).unwrap());
    assert_eq!(translation.parts(), 2);
    assert!(translation.enters(0));
    assert!(!translation.enters(PART - 1));
    assert!(translation.enters(PART));
    assert_eq!((translation.live(0), translation.live(1), translation.live_pages()), (2, 1, 3));
    translation.leaves(PART);
    assert!(!translation.enters(PART), "its memory is still taken up");
    translation.leaves(PART);
    translation.forget(1);
    assert!(translation.enters(PART));
}
