//! How the memory budget is shared out, and the page cache that gets the rest of it.

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

/// The maximum that the cache is opened with: less where stores are opened by the thousand, since its bookkeeping takes 16 MiB for the maximum.
const MAX_CACHED_PAGES: u64 = if cfg!(test) { 1 << 22 } else { MAX_PAGES };

/// The least maximum that it is opened with, where address space is limited: 1 MiB of it.
const MIN_CACHED_PAGES: u64 = 1 << 18;

/// The data file in the cache.
#[cfg_attr(not(test), expect(unused_variables, reason = "tests inject faults"))]
pub(crate) fn cached(
    options: &StoreOptions,
    cache: &PageCache,
    io: &Arc<dyn Io>,
    directory: &Path,
    newest: &Superblock,
    map: &Arc<PageMap>,
) -> Result<OwnedFile, Error> {
    let file = open_past_cache(&**io, &directory.join(data::NAME))?;
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
            // Its table takes four bytes of address space a page, which may be limited.
            Err(pagekeeper_cache::Error::NoMemory { .. })
                if max_pages / 4 >= newest.meta.pages.max(MIN_CACHED_PAGES) =>
            {
                max_pages /= 4;
            }
            opened => return Ok(opened?),
        }
    }
}

/// Pages of memory that are kept for the next ones: as many as there may be.
pub(crate) fn max_kept(memory: u64, page_size: usize) -> usize {
    usize::try_from(unapplied_share(memory)).unwrap_or(usize::MAX) / page_size
}

/// Bytes that versions in memory may take up: a quarter of the budget.
pub(crate) fn unapplied_share(memory: u64) -> u64 {
    memory / 4
}

/// Bytes of the journal that an opening may keep in memory; of what is behind them places are kept.
pub(crate) fn held_share(options: &StoreOptions) -> u64 {
    #[cfg(test)]
    if let Some(bytes) = options.held_journal_bytes {
        return bytes;
    }
    unapplied_share(options.memory) / 4
}

/// Bytes that the page map may take up, beside what is to be written of it.
pub(crate) fn map_share(memory: u64) -> u64 {
    memory / 64
}

/// Bytes that are on their way: entries that are made, pages that are being written, and what an allocator has between.
fn in_transit_share(memory: u64) -> u64 {
    (memory / 8).min(64 << 20)
}

/// The cache gets what is left of the budget.
pub(crate) fn cache(options: &StoreOptions, io: &Arc<dyn Io>, page_size: usize) -> Result<PageCache, Error> {
    let memory = options.memory;
    let others = unapplied_share(memory)
        + map_share(memory)
        + in_transit_share(memory)
        + buffer_bytes(memory, u64::MAX >> 1) as u64;
    let rest = memory - others;
    // No cache works with less: of very large pages a small budget holds too few.
    let memory = rest.max(pagekeeper_cache::Builder::memory_for(64, page_size));
    let builder = PageCache::builder().memory(memory).page_size(page_size).io(Arc::clone(io));
    Ok(if options.threads { builder } else { builder.without_threads() }.build()?)
}

/// Bytes of the log buffer: a thirty-second part of the budget, within reason, and a power of two.
pub(crate) fn buffer_bytes(memory: u64, max_journal_bytes: u64) -> usize {
    let wanted = (memory / 32).clamp(64 << 10, 8 << 20).min(max_journal_bytes.next_power_of_two());
    1 << wanted.max(64 << 10).ilog2()
}
