//! Divides the memory budget, and builds the page cache that gets what the other parts leave.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_cache::{LoadedPage, OpenOptions, OwnedFile, PageCache};
use pagekeeper_io::{Io, open_past_cache};

use crate::Error;
use crate::core::verify_page;
use crate::data::{self, MAX_PAGES};
use crate::format::superblock::Superblock;
use crate::options::StoreOptions;
use crate::page_map::PageMap;

/// The largest maximum that the cache is opened with. Its bookkeeping takes 16 MiB at this maximum,
/// so tests, which open stores by the thousand, use less.
const MAX_CACHED_PAGES: u64 = if cfg!(test) { 1 << 22 } else { MAX_PAGES };

/// The smallest maximum that the cache is opened with where address space is limited: it takes 1
/// MiB of address space.
const MIN_CACHED_PAGES: u64 = 1 << 18;

/// Opens the data file in the cache.
#[cfg_attr(not(test), expect(unused_variables, reason = "tests inject faults"))]
pub(crate) fn cached(
    options: &StoreOptions,
    cache: &PageCache,
    io: &Arc<dyn Io>,
    directory: &Path,
    newest: &Superblock,
    map: &Arc<PageMap>,
) -> Result<OwnedFile, Error> {
    let file = open_past_cache(&**io, directory.join(data::DATA_NAME))?;
    let store = newest.store;
    #[cfg(test)]
    let checks = options.injected_fault != Some(crate::injected_fault::InjectedFault::NoPageChecksum);
    #[cfg(not(test))]
    let checks = true;
    let map = Arc::clone(map);
    let verify = move |page: &LoadedPage<'_>| {
        if checks { verify_page(page.bytes(), page.page(), store, &map) } else { Ok(()) }
    };
    let verifier = OpenOptions::new().verifier(verify);
    let mut max_pages = MAX_CACHED_PAGES;
    loop {
        let opened = cache.open_owned_with(Arc::clone(&file), max_pages, verifier.clone());
        match opened {
            // Its table takes four bytes of address space per page, and address space may be
            // limited.
            Err(pagekeeper_cache::Error::NoMemory { .. })
                if max_pages / 4 >= newest.meta.pages.max(MIN_CACHED_PAGES) =>
            {
                max_pages /= 4;
            }
            opened => return Ok(opened?),
        }
    }
}

/// Returns how many unused page buffers are kept for reuse: as many as may be in use.
pub(crate) fn max_kept(memory: u64, page_size: usize) -> usize {
    usize::try_from(unapplied_share(memory)).unwrap_or(usize::MAX) / page_size
}

/// Returns the bytes that versions in memory may take: a quarter of the budget.
pub(crate) fn unapplied_share(memory: u64) -> u64 {
    memory / 4
}

/// Returns the bytes of the journal that an opening may keep in memory. For the rest, only the
/// places are kept.
pub(crate) fn held_share(options: &StoreOptions) -> u64 {
    #[cfg(test)]
    if let Some(bytes) = options.held_journal_bytes {
        return bytes;
    }
    unapplied_share(options.memory) / 4
}

/// Returns the bytes that the page map may take, beside blocks that wait to be written.
pub(crate) fn map_share(memory: u64) -> u64 {
    memory / 64
}

/// Returns the bytes in transit: entries being encoded, pages being written, and the allocator's
/// overhead.
fn in_transit_share(memory: u64) -> u64 {
    (memory / 8).min(64 << 20)
}

/// Builds the cache with the rest of the budget.
pub(crate) fn cache(options: &StoreOptions, io: &Arc<dyn Io>, page_size: usize) -> Result<PageCache, Error> {
    let memory = options.memory;
    let others = unapplied_share(memory)
        + map_share(memory)
        + in_transit_share(memory)
        + buffer_bytes(memory, u64::MAX >> 1) as u64;
    let rest = memory - others;
    // No cache works with less. With very large pages, a small budget holds too few.
    let memory = rest.max(pagekeeper_cache::CacheOptions::memory_for(64, page_size));
    let cache_options = PageCache::options().memory(memory).page_size(page_size).io(Arc::clone(io));
    Ok(if options.threads { cache_options } else { cache_options.without_threads() }.build()?)
}

/// Returns the bytes of the log buffer: 1/32 of the budget within bounds, rounded down to a power
/// of two.
pub(crate) fn buffer_bytes(memory: u64, max_journal_bytes: u64) -> usize {
    let wanted = (memory / 32).clamp(64 << 10, 8 << 20).min(max_journal_bytes.next_power_of_two());
    1 << wanted.max(64 << 10).ilog2()
}
