//! A trunk of the free list: the payload of a page that lists free pages, and the next trunk.
//!
//! | bytes | what (little endian) |
//! |---|---|
//! | 0..8 | number of the next trunk's page, and 1; 0: this is the last |
//! | 8..12 | how many pages it names |
//! | 12..16 | zeros |
//! | 16.. | their numbers, 8 bytes each |
//!
//! Invariants: a payload of zeros is a trunk that lists no page and is the last one. Unused places
//! are zeros, so that a full-page image of the page stays short.

use crate::PageNo;

const ENTRIES_OFFSET: usize = 16;

/// The reason why a payload is not a trunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TrunkFault {
    #[error("it names {0} free pages, and has no room for so many")]
    Count(u32),
    #[error("it names page {0} as free, which is behind the last page")]
    Page(PageNo),
    #[error("it names page {0} as the next trunk, which is behind the last page")]
    Next(PageNo),
}

/// Returns the maximum number of pages that a payload of this length lists.
pub(crate) const fn capacity(payload: usize) -> usize {
    payload.saturating_sub(ENTRIES_OFFSET) / 8
}

/// Returns the next trunk's page.
pub(crate) fn next(payload: &[u8]) -> Option<PageNo> {
    long(payload, 0).checked_sub(1).map(PageNo::new)
}

/// Sets the next trunk's page.
pub(crate) fn set_next(payload: &mut [u8], next: Option<PageNo>) {
    debug_assert_ne!(next, Some(PageNo::new(u64::MAX)));
    put(payload, 0, next.map_or(0, |page| page.get().wrapping_add(1)));
}

/// Returns the number of pages that it lists, limited to its capacity.
pub(crate) fn count(payload: &[u8]) -> usize {
    (said(payload) as usize).min(capacity(payload.len()))
}

/// Lists one more page as free; `false` if there is no room for it.
#[must_use]
pub(crate) fn push(payload: &mut [u8], page: PageNo) -> bool {
    let count = count(payload);
    let has_room = count < capacity(payload.len());
    if has_room {
        put(payload, ENTRIES_OFFSET + count * 8, page.get());
        set_count(payload, count + 1);
    }
    has_room
}

/// Removes the page that was listed last, and returns it.
pub(crate) fn pop(payload: &mut [u8]) -> Option<PageNo> {
    let last = count(payload).checked_sub(1)?;
    let page = PageNo::new(long(payload, ENTRIES_OFFSET + last * 8));
    put(payload, ENTRIES_OFFSET + last * 8, 0);
    set_count(payload, last);
    Some(page)
}

/// Returns the pages that it lists, oldest first.
pub(crate) fn iter(payload: &[u8]) -> impl Iterator<Item = PageNo> {
    (0..count(payload)).map(|entry| PageNo::new(long(payload, ENTRIES_OFFSET + entry * 8)))
}

/// Checks that it is valid in a store of this many pages.
pub(crate) fn check(payload: &[u8], pages: u64) -> Result<(), TrunkFault> {
    if said(payload) as usize > capacity(payload.len()) {
        return Err(TrunkFault::Count(said(payload)));
    }
    if let Some(next) = next(payload).filter(|next| next.get() >= pages) {
        return Err(TrunkFault::Next(next));
    }
    match iter(payload).find(|page| page.get() >= pages) {
        Some(page) => Err(TrunkFault::Page(page)),
        None => Ok(()),
    }
}

/// Returns the count of pages as stored.
fn said(payload: &[u8]) -> u32 {
    payload.get(8..12).map_or(0, |bytes| u32::from_le_bytes(std::array::from_fn(|byte| bytes[byte])))
}

fn set_count(payload: &mut [u8], count: usize) {
    let Ok(count) = u32::try_from(count) else { unreachable!("{count} pages in one trunk") };
    payload[8..12].copy_from_slice(&count.to_le_bytes());
}

fn long(payload: &[u8], at: usize) -> u64 {
    payload.get(at..at + 8).map_or(0, |bytes| u64::from_le_bytes(std::array::from_fn(|byte| bytes[byte])))
}

fn put(payload: &mut [u8], at: usize, number: u64) {
    payload[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// These bytes are on users' disks and must stay readable.
    #[test]
    fn the_format_of_a_trunk_is_fixed() {
        let mut payload = [0; 48];
        check(&payload, 0).unwrap();
        assert_eq!((next(&payload), count(&payload), pop(&mut payload)), (None, 0, None));
        set_next(&mut payload, Some(PageNo::new(0)));
        for page in [5, 300, 6].map(PageNo::new) {
            assert!(push(&mut payload, page));
        }
        assert_eq!(pop(&mut payload), Some(PageNo::new(6)));
        let mut expected =
            b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x2c\x01\0\0\0\0\0\0".to_vec();
        expected.resize(48, 0);
        assert_eq!(payload[..], expected);
        assert_eq!((next(&payload), count(&payload), capacity(payload.len())), (Some(PageNo::new(0)), 2, 4));
        assert_eq!(iter(&payload).collect::<Vec<_>>(), [5, 300].map(PageNo::new));
        assert_eq!(capacity(4096 - 32), 506);
    }

    #[test]
    fn nonsense_is_reported() {
        let mut payload = [0; 32];
        set_next(&mut payload, Some(PageNo::new(9)));
        assert_eq!([3, 12, 4].map(|page| push(&mut payload, PageNo::new(page))), [true, true, false]);
        assert_eq!(check(&payload, 13), Ok(()));
        assert_eq!(check(&payload, 12), Err(TrunkFault::Page(PageNo::new(12))));
        assert_eq!(check(&payload, 9), Err(TrunkFault::Next(PageNo::new(9))));
        payload[8] = 3;
        assert_eq!(check(&payload, 13), Err(TrunkFault::Count(3)));
        assert_eq!(iter(&payload).count(), 2);
    }

    proptest! {
        #[test]
        fn a_trunk_is_a_stack(steps in prop::collection::vec(prop::option::of(any::<u64>()), 0..40)) {
            let mut payload = [0; ENTRIES_OFFSET + 8 * 10];
            let mut model = Vec::new();
            for step in steps {
                if let Some(page) = step.map(PageNo::new) {
                    let has_room = model.len() < 10;
                    prop_assert_eq!(push(&mut payload, page), has_room);
                    if has_room {
                        model.push(page);
                    }
                } else {
                    prop_assert_eq!(pop(&mut payload), model.pop());
                }
                prop_assert_eq!(iter(&payload).collect::<Vec<_>>(), &model[..]);
            }
            while pop(&mut payload).is_some() {}
            prop_assert!(payload.iter().all(|byte| *byte == 0), "unused bytes are not zeros");
        }

        #[test]
        fn random_bytes_cause_no_panic(payload: Vec<u8>, pages: u64) {
            let _ = check(&payload, pages);
            prop_assert_eq!(iter(&payload).count(), count(&payload));
            let mut payload = payload;
            while pop(&mut payload).is_some() {}
        }
    }
}
