//! Finds out the store and the page size from intact pages, where no superblock has them.

use std::collections::HashMap;

use pagekeeper_io::{AlignedBuf, IoFile};

use crate::format::page;
use crate::format::superblock::{MAX_PAGE_BYTES, MIN_PAGE_BYTES};
use crate::options::PAGE_SIZE_MIN;
use crate::{Error, PageNo};

/// Bytes of one read; whole pages of any size.
const READ_BYTES: usize = 1 << 20;
/// This many intact pages of one store and size are enough.
const PAGES_ENOUGH: u64 = 64;

/// Returns the store's id and the page size in bytes; `None` if no page is intact.
pub(super) fn from_pages(data: &dyn IoFile) -> Result<Option<(u64, usize)>, Error> {
    let bytes = data.stat()?.size;
    let mut found: HashMap<(u64, usize), u64> = HashMap::new();
    let mut buf = AlignedBuf::new(READ_BYTES);
    for offset in (0..bytes).step_by(READ_BYTES) {
        let got = read(data, offset, &mut buf);
        for size in (MIN_PAGE_BYTES.ilog2()..=MAX_PAGE_BYTES.ilog2()).map(|shift| 1_usize << shift) {
            for (at, bytes) in (offset..).step_by(size).zip(buf[..got].chunks_exact(size)) {
                let store = u64::from_le_bytes(std::array::from_fn(|byte| bytes[24 + byte]));
                if page::check(bytes, PageNo::new(at / size as u64), store).is_ok() {
                    *found.entry((store, size)).or_default() += 1;
                }
            }
        }
        if found.values().any(|pages| *pages >= PAGES_ENOUGH) {
            break;
        }
    }
    Ok(found.into_iter().max_by_key(|(_, pages)| *pages).map(|(of, _)| of))
}

/// Reads as much as there is. Unreadable parts are zeros.
fn read(data: &dyn IoFile, offset: u64, buf: &mut [u8]) -> usize {
    if let Ok(got) = data.read_at(offset, buf) {
        return got;
    }
    let mut upto = 0;
    for (at, block) in (0..).step_by(PAGE_SIZE_MIN).zip(buf.chunks_mut(PAGE_SIZE_MIN)) {
        if let Ok(got) = data.read_at(offset + at as u64, block) {
            upto = at + got;
        } else {
            block.fill(0);
            upto = at + PAGE_SIZE_MIN;
        }
    }
    upto
}
