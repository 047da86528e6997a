//! The page map of a damaged store: its intact blocks are used, and the entries of the others are
//! unknown.

use std::path::Path;
use std::sync::Arc;

use pagekeeper_io::{AlignedBuf, Io, IoFile, open_past_cache};

use crate::format::page::{PageFault, PageHeader};
use crate::format::page_map::{
    BLOCK_BYTES, BLOCK_PAGES, ENTRY_NEVER_WRITTEN, ENTRY_UNKNOWN, MapBlock, MapFault,
};
use crate::page_map::{MAP_NAME, place_of};
use crate::{Error, PageNo, Seq};

/// The map, read block by block.
pub(super) struct DamagedMap {
    file: Option<Arc<dyn IoFile>>,
    store: u64,
    /// The commit of the map, according to the superblock.
    upto: Seq,
    /// Blocks that a checkpoint has written: behind them, the file may end.
    checkpointed: u64,
    current: Option<(u64, MapBlock)>,
    /// Blocks whose newest place is lost, or may be.
    lost: u64,
}

impl DamagedMap {
    /// Opens the map of a store whose superblock has this many pages as of `upto`.
    pub(super) fn open(
        io: &dyn Io,
        from: &Path,
        (store, upto, pages): (u64, Seq, u64),
    ) -> Result<Self, Error> {
        let file = match open_past_cache(io, from.join(MAP_NAME)) {
            Err(error) if error.errno() == Some(libc::ENOENT) => None,
            opened => Some(opened?),
        };
        let checkpointed = pages.div_ceil(BLOCK_PAGES as u64);
        Ok(Self { file, store, upto, checkpointed, current: None, lost: 0 })
    }

    /// Checks that a page that was read is the one that was written last, as far as that is known.
    /// Fastest for pages in order.
    pub(super) fn check(
        &mut self,
        page: PageNo,
        found: &Result<PageHeader, PageFault>,
    ) -> Result<(), MapFault> {
        let (block, at) = self.entry(page);
        block.check(block.entries[at], found)
    }

    /// Whether the map says that a page was written.
    pub(super) fn was_written(&mut self, page: PageNo) -> bool {
        let (block, at) = self.entry(page);
        ![ENTRY_NEVER_WRITTEN, ENTRY_UNKNOWN].contains(&block.entries[at])
    }

    /// Returns the number of pages that it has room for.
    pub(super) fn pages(&self) -> Result<u64, Error> {
        let Some(file) = &self.file else { return Ok(0) };
        Ok(file.stat()?.size / (2 * BLOCK_BYTES as u64) * BLOCK_PAGES as u64)
    }

    /// Returns the block of a page, and the index of its entry.
    fn entry(&mut self, page: PageNo) -> (&MapBlock, usize) {
        let (number, at) = place_of(page);
        let current = match self.current.take() {
            Some(current) if current.0 == number => current,
            Some(_) | None => {
                let (block, is_known) = self.read(number);
                self.lost += u64::from(!is_known);
                (number, block)
            }
        };
        (&self.current.insert(current).1, at)
    }

    /// Returns a block, and whether it is as of the superblock: if one place is lost, it may be the
    /// newer one.
    fn read(&self, number: u64) -> (MapBlock, bool) {
        let Some(file) = &self.file else { return (MapBlock::of(ENTRY_UNKNOWN), true) };
        let place = |place: u64| {
            let mut bytes = AlignedBuf::new(BLOCK_BYTES);
            // A place that is cut off or unreadable says nothing.
            match file.read_at((number * 2 + place) * BLOCK_BYTES as u64, &mut bytes) {
                Ok(BLOCK_BYTES) => MapBlock::decode(&bytes, number, self.store, place),
                Ok(0) if number >= self.checkpointed => Some(MapBlock::of(ENTRY_NEVER_WRITTEN)),
                Ok(_) | Err(_) => None,
            }
        };
        let places = [place(0), place(1)];
        let are_whole = places.iter().all(Option::is_some);
        let block = MapBlock::newest(places, self.upto);
        let is_known = are_whole || !(block.is_lost() || block.doubt.is_some());
        (block, is_known)
    }

    /// Describes the damage of the map. Called after all pages were checked.
    pub(super) fn fault(&self) -> Option<String> {
        let unknown = "it is not known whether a page is the last one written";
        match (&self.file, self.lost) {
            (None, _) => Some(format!("page map: missing, so {unknown}")),
            (Some(_), 0) => None,
            (Some(_), 1) => Some(format!("page map: one block is lost; for its pages {unknown}")),
            (Some(_), lost) => Some(format!("page map: {lost} blocks are lost; for their pages {unknown}")),
        }
    }
}
