//! The content of pages: each value holds its page number, the number of changes, and the bytes
//! that the changes wrote.
//!
//! A value can be computed from page and count alone, so every value can be checked at the end
//! without a copy. Invariants: a change rewrites the count and [`VALUE_CHANGE_BYTES`] bytes at a
//! new random place; two changes of one page never write the same bytes. Fails with the page's
//! number where a value belongs to another page, or was changed more or less often than
//! acknowledged.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

use crate::pattern;
use crate::rounds::SplitMix;

/// Bytes of a value: the maximum that every subject can store, with its own header, in one page of
/// 4096 bytes.
pub(super) const STORED_VALUE_BYTES: usize = 4000;
/// Bytes that a change writes, beside the count.
pub(super) const VALUE_CHANGE_BYTES: usize = 128;
/// Bytes of page number and count.
const VALUE_HEADER_BYTES: usize = 16;
/// Words of the pattern per page, which is more than a value has.
const PATTERN_WORDS_PER_PAGE: u64 = 4096;

/// Returns the value of a page that was never changed.
pub(super) fn fresh(page: u64) -> [u8; STORED_VALUE_BYTES] {
    let mut value = [0; STORED_VALUE_BYTES];
    pattern::fill(0, page * PATTERN_WORDS_PER_PAGE, &mut value);
    value[..8].copy_from_slice(&page.to_le_bytes());
    value[8..VALUE_HEADER_BYTES].fill(0);
    value
}

/// Changes a page's value once more and returns its number of changes.
pub(super) fn change(page: u64, value: &mut [u8]) -> Result<u32> {
    ensure!(value.len() == STORED_VALUE_BYTES, "page {page} has a value of {} bytes", value.len());
    let (found, count) = head(value)?;
    ensure!(found == page, "page {found} where page {page} should be");
    write_change(page, count + 1, value);
    Ok(count + 1)
}

/// Fails unless `value` is the value of `page` after `count` changes.
pub(super) fn check(page: u64, count: u32, value: &[u8]) -> Result<()> {
    ensure!(value.len() == STORED_VALUE_BYTES, "page {page} has a value of {} bytes", value.len());
    let (found_page, found_count) = head(value)?;
    ensure!(found_page == page, "page {found_page} where page {page} should be");
    ensure!(found_count == count, "page {page} has {found_count} changes, acknowledged were {count}");
    let mut wanted = fresh(page);
    for count in 1..=count {
        write_change(page, count, &mut wanted);
    }
    ensure!(value == wanted, "page {page} has wrong bytes after {count} changes");
    Ok(())
}

fn head(value: &[u8]) -> Result<(u64, u32)> {
    let page = u64::from_le_bytes(value[..8].try_into()?);
    let count = u64::from_le_bytes(value[8..VALUE_HEADER_BYTES].try_into()?);
    Ok((page, u32::try_from(count).with_context(|| format!("page {page} has {count} changes"))?))
}

fn write_change(page: u64, count: u32, value: &mut [u8]) {
    const CHANGE_OFFSETS: u64 = (STORED_VALUE_BYTES - VALUE_HEADER_BYTES - VALUE_CHANGE_BYTES) as u64 + 1;
    value[8..VALUE_HEADER_BYTES].copy_from_slice(&u64::from(count).to_le_bytes());
    let mut random = SplitMix::new(page ^ u64::from(count) << 40);
    let start = VALUE_HEADER_BYTES + usize::try_from(random.below(CHANGE_OFFSETS)).unwrap_or(0);
    for part in value[start..start + VALUE_CHANGE_BYTES].as_chunks_mut::<8>().0 {
        *part = random.next_u64().to_le_bytes();
    }
}

/// The number of acknowledged changes of each page.
pub(super) struct ChangeLedger(Vec<AtomicU32>);

impl ChangeLedger {
    /// Creates a ledger of this many pages without changes.
    pub(super) fn new(pages: u64) -> Self {
        Self((0..pages).map(|_| AtomicU32::new(0)).collect())
    }

    /// Returns the number of pages.
    pub(super) fn pages(&self) -> u64 {
        self.0.len() as u64
    }

    /// Records that a commit which changed a page for the `count`th time was acknowledged.
    pub(super) fn acknowledge(&self, page: u64, count: u32) {
        if let Some(last) = usize::try_from(page).ok().and_then(|page| self.0.get(page)) {
            last.fetch_max(count, Ordering::Relaxed);
        }
    }

    /// Fails unless a page's value has all acknowledged changes and no others. Nobody may commit
    /// meanwhile.
    pub(super) fn check(&self, page: u64, value: &[u8]) -> Result<()> {
        let count = usize::try_from(page).ok().and_then(|page| self.0.get(page));
        let count = count.with_context(|| format!("page {page} was never made"))?;
        check(page, count.load(Ordering::Relaxed), value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_page_and_all_its_changes() {
        let mut value = fresh(7);
        check(7, 0, &value).unwrap();
        for count in 1..20 {
            assert_eq!(change(7, &mut value).unwrap(), count);
            check(7, count, &value).unwrap();
        }
        assert!(
            check(7, 18, &value).is_err() && check(7, 20, &value).is_err() && check(6, 19, &value).is_err()
        );
        assert!(change(8, &mut value).is_err());
        for at in [0, 8, VALUE_HEADER_BYTES, STORED_VALUE_BYTES / 2, STORED_VALUE_BYTES - 1] {
            value[at] ^= 1;
            assert!(check(7, 19, &value).is_err(), "byte {at}");
            value[at] ^= 1;
        }
        assert_ne!(fresh(7)[VALUE_HEADER_BYTES..], fresh(8)[VALUE_HEADER_BYTES..]);
    }

    #[test]
    fn a_ledger_requires_acknowledged_commits() {
        let ledger = ChangeLedger::new(2);
        let mut value = fresh(1);
        ledger.check(1, &value).unwrap();
        ledger.acknowledge(1, change(1, &mut value).unwrap());
        ledger.check(1, &value).unwrap();
        assert!(ledger.check(1, &fresh(1)).is_err(), "an acknowledged change is lost");
        change(1, &mut value).unwrap();
        assert!(ledger.check(1, &value).is_err(), "nobody was informed of this change");
        assert!(ledger.check(2, &fresh(2)).is_err());
    }
}
