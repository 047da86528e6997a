//! Pages of a store: any bytes are parsed or rejected, a sealed page is parsed, and a trunk of the
//! free list works as a stack whatever it contains.
//!
//! The input: the page's number (8 bytes), the store's id (8), how many entries are popped and
//! pushed (1), and the page.

use crate::format::page::{self, HEADER_BYTES, PageFault, PageKind};
use crate::format::trunk;
use crate::{PageNo, Seq};

/// Runs one input.
pub fn fuzz_one(data: &[u8]) {
    let Some((head, bytes)) = data.split_first_chunk::<17>() else { return };
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
    let (number, store, steps) = (PageNo::new(long(0)), long(8), usize::from(head[16]));
    try_checking(bytes, number, store);
    if bytes.len() < HEADER_BYTES {
        return;
    }
    // The same page with a valid checksum.
    let mut sealed = bytes.to_vec();
    let crc = crc32c::crc32c(&sealed[4..]);
    sealed[..4].copy_from_slice(&crc.to_le_bytes());
    try_checking(&sealed, number, store);
    let own = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    try_checking(&sealed, PageNo::new(own(8)), own(24));

    let mut written = bytes.to_vec();
    let crc = page::seal(&mut written, PageKind::Trunk, number, Seq::new(own(16)), store);
    assert_eq!(page::check(&written, number, store).unwrap().crc, crc);

    let payload = &mut written[HEADER_BYTES..];
    let is_sound = trunk::check(payload, own(0)).is_ok();
    let before: Vec<PageNo> = trunk::iter(payload).collect();
    assert!(before.len() <= trunk::capacity(payload.len()));
    assert!(!is_sound || before.iter().all(|page| page.get() < own(0)));
    let popped: Vec<PageNo> = (0..steps).map_while(|_| trunk::pop(payload)).collect();
    assert!(before.iter().rev().take(steps).eq(&popped));
    for page in popped.iter().rev() {
        assert!(trunk::push(payload, *page));
    }
    assert!(trunk::iter(payload).eq(before));
}

fn try_checking(bytes: &[u8], page: PageNo, store: u64) {
    match page::check(bytes, page, store) {
        Ok(found) => {
            assert_eq!((found.page, found.store), (page, store));
            let mut again = bytes.to_vec();
            assert_eq!(page::seal(&mut again, found.kind, page, found.seq, store), found.crc);
            assert_eq!(again, bytes);
        }
        Err(PageFault::NeverWritten) => assert!(bytes.iter().all(|byte| *byte == 0)),
        Err(fault) => assert!(!fault.to_string().is_empty()),
    }
}
