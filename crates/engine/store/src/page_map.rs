//! The page map in memory: the checksum that each page of the data file must have. A block is
//! loaded with the first of its pages, and written by each checkpoint before its superblock.
//!
//! Invariants:
//! 1. Before a page's versions leave the index, its entry is that of the durable page in the data
//!    file.
//! 2. A block that differs from the disk stays in memory. It is written to the place that does not
//!    hold its newest version and, when that is durable, to the other place. Then both are the
//!    same, and either may be lost. Whatever a crash leaves of the first write, the journal has
//!    those changes as well, so the older place is as good. Before that write, the newest place is
//!    made durable, even if a killed process had written it.
//! 3. A corrupt place causes no failure: the other place is used, and pages newer than its entries
//!    are accepted. An unreadable place causes none either if it is the one that is written next.
//!    Otherwise its content may become valid later, so reading the block fails.
//!
//! Reading a block fails if the unreadable place may be its newer one. Writing fails as the disk
//! does.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use pagekeeper_io::{AlignedBuf, BatchRead, Error as IoError, Io, IoFile};
use pagekeeper_kernel::mutex::ignore_poison;

use crate::data::{DataFile, FileUse, PageRun, WritesInFlight};
use crate::depth::WriteDepth;
use crate::format::page::{PageFault, PageHeader};
use crate::format::page_map::{BLOCK_BYTES, BLOCK_PAGES, ENTRY_NEVER_WRITTEN, MapBlock, MapFault, entry};
use crate::{Error, PageNo, Seq};

/// The file's name.
pub(crate) const MAP_NAME: &str = "map";

/// Number of shards, each with its own lock.
const MAP_SHARDS: usize = 16;
/// Blocks that are loaded together.
const BLOCKS_AT_ONCE: usize = 128;
/// Minimum number of blocks that are kept.
const MIN_KEPT: usize = 64;

struct LoadedBlock {
    block: MapBlock,
    /// Whether it is still to be written.
    is_dirty: bool,
}

type MapShard = HashMap<u64, LoadedBlock>;

/// The reason why a page is not valid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckFault {
    #[error(transparent)]
    Page(#[from] MapFault),
    #[error("the last write there is unknown: {0}")]
    Unreadable(#[from] IoError),
}

/// The map of a store.
pub(crate) struct PageMap {
    file: DataFile,
    /// The same file, for reading.
    source: Arc<dyn IoFile>,
    io: Arc<dyn Io>,
    store: u64,
    /// The commit up to which the map on disk is complete: that of the last flush.
    upto: AtomicU64,
    /// Whether the map that the opening found was synced.
    is_durable: AtomicBool,
    shards: Box<[RwLock<MapShard>]>,
    /// Maximum number of blocks that are kept, beside those that wait to be written.
    max_kept: usize,
    kept: AtomicUsize,
    /// Changes when blocks are written: blocks read before that are not kept.
    generation: AtomicU64,
    /// Further valid checksums of pages that are not applied: of the version being written, or of
    /// any version that the journal's partial changes lead to.
    also: RwLock<HashMap<PageNo, Vec<u32>>>,
    #[cfg(test)]
    pub(crate) injected_fault: Option<crate::injected_fault::InjectedFault>,
}

/// Returns the bytes of the file for this many pages.
pub(crate) fn bytes_for(pages: u64) -> u64 {
    pages.div_ceil(BLOCK_PAGES as u64) * 2 * BLOCK_BYTES as u64
}

impl PageMap {
    /// Creates the file, durably except for its name.
    pub(crate) fn create(io: &Arc<dyn Io>, directory: &std::path::Path) -> Result<(), Error> {
        Ok(DataFile::open(io, directory, MAP_NAME, FileUse::Make, BLOCK_BYTES)?.file.sync_all()?)
    }

    /// Opens the map of a store with this many pages, as of commit `upto`, with this many bytes of
    /// memory.
    pub(crate) fn open(
        io: &Arc<dyn Io>,
        directory: &std::path::Path,
        use_of: FileUse,
        (store, upto, pages): (u64, Seq, u64),
        memory: u64,
    ) -> Result<Self, Error> {
        let file = DataFile::open(io, directory, MAP_NAME, use_of, BLOCK_BYTES)?;
        let (found, expected) = (file.file.stat()?.size, bytes_for(pages));
        if found < expected {
            return Err(Error::CutOff { path: directory.join(MAP_NAME), found, expected });
        }
        file.is_durable_upto(expected);
        let max_kept = usize::try_from(memory / BLOCK_BYTES as u64).unwrap_or(usize::MAX).max(MIN_KEPT);
        Ok(Self {
            source: Arc::clone(&file.file),
            file,
            io: Arc::clone(io),
            store,
            upto: AtomicU64::new(upto.get()),
            is_durable: AtomicBool::new(false),
            shards: (0..MAP_SHARDS).map(|_| RwLock::default()).collect(),
            max_kept,
            kept: AtomicUsize::new(0),
            generation: AtomicU64::new(0),
            also: RwLock::default(),
            #[cfg(test)]
            injected_fault: None,
        })
    }

    #[cfg(test)]
    pub(crate) fn with_injected_fault(
        self,
        injected_fault: Option<crate::injected_fault::InjectedFault>,
    ) -> Self {
        Self { injected_fault, ..self }
    }

    /// Each of these pages may also have this checksum until it is applied.
    pub(crate) fn accept(&self, pages: impl Iterator<Item = (PageNo, u32)>) {
        let mut also = ignore_poison(self.also.write());
        for (page, crc) in pages {
            let crcs = also.entry(page).or_default();
            if !crcs.contains(&crc) {
                crcs.push(crc);
            }
        }
    }

    fn shard(&self, block: u64) -> &RwLock<MapShard> {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of shards")]
        &self.shards[(block % MAP_SHARDS as u64) as usize]
    }

    /// Checks that a page that was read is the one that was written last.
    pub(crate) fn check(
        &self,
        page: PageNo,
        found: &Result<PageHeader, PageFault>,
    ) -> Result<(), CheckFault> {
        if injected!(self, NoPageMap) {
            return Ok(());
        }
        let (number, at) = place_of(page);
        let checked = self.with(number, |block| block.check(block.entries[at], found))?;
        match (checked, found) {
            (Err(fault), Ok(header)) => {
                let also = ignore_poison(self.also.read());
                let is_accepted = also.get(&page).is_some_and(|crcs| crcs.contains(&header.crc));
                if is_accepted { Ok(()) } else { Err(fault.into()) }
            }
            (checked, _) => Ok(checked?),
        }
    }

    /// Calls `what` with a block, which is loaded if necessary.
    fn with<T>(&self, number: u64, what: impl Fn(&MapBlock) -> T) -> Result<T, IoError> {
        if let Some(loaded) = ignore_poison(self.shard(number).read()).get(&number) {
            return Ok(what(&loaded.block));
        }
        let generation = self.generation();
        let block = self.read(number)?;
        let done = what(&block);
        self.keep(number, block, generation);
        Ok(done)
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Reads a block from the disk.
    fn read(&self, number: u64) -> Result<MapBlock, IoError> {
        let mut bytes = AlignedBuf::new(2 * BLOCK_BYTES);
        let offset = number * 2 * BLOCK_BYTES as u64;
        match self.source.read_at(offset, &mut bytes) {
            Ok(got) => Ok(self.decode(number, &bytes[..got])),
            Err(_) => self.read_apart(number),
        }
    }

    /// Reads a block of which one place may be unreadable.
    fn read_apart(&self, number: u64) -> Result<MapBlock, IoError> {
        let place = |place: u64| {
            let mut bytes = AlignedBuf::new(BLOCK_BYTES);
            let got = self.source.read_at((number * 2 + place) * BLOCK_BYTES as u64, &mut bytes)?;
            Ok(MapBlock::decode(&bytes[..got], number, self.store, place))
        };
        let places = match (place(0), place(1)) {
            (Ok(first), Ok(second)) => [first, second],
            (Err(error), Ok(second)) => [None, Some(written_before(second, 0).ok_or(error)?)],
            (Ok(first), Err(error)) => [Some(written_before(first, 1).ok_or(error)?), None],
            (Err(error), Err(_)) => return Err(error),
        };
        Ok(MapBlock::newest(places, self.upto()))
    }

    fn upto(&self) -> Seq {
        Seq::new(self.upto.load(Ordering::Acquire))
    }

    fn decode(&self, number: u64, bytes: &[u8]) -> MapBlock {
        let place = |place: u64, bytes: &[u8]| MapBlock::decode(bytes, number, self.store, place);
        let (first, second) = bytes.split_at(bytes.len().min(BLOCK_BYTES));
        MapBlock::newest([place(0, first), place(1, second)], self.upto())
    }

    /// Keeps a block, unless it is in memory by now or was written since it was read. Evicts
    /// another one for it.
    fn keep(&self, number: u64, block: MapBlock, generation: u64) {
        let mut shard = ignore_poison(self.shard(number).write());
        if shard.contains_key(&number) || self.generation() != generation {
            return;
        }
        if self.kept.load(Ordering::Relaxed) >= self.max_kept {
            let clean = shard.iter().find(|(_, loaded)| !loaded.is_dirty).map(|(number, _)| *number);
            if let Some(clean) = clean {
                shard.remove(&clean);
                self.kept.fetch_sub(1, Ordering::Relaxed);
            }
        }
        shard.insert(number, LoadedBlock { block, is_dirty: false });
        self.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Records pages that are durable in the data file now, in any order, with their checksums.
    /// Fails if a block of the map cannot be read. Until the store is opened again, pages for which
    /// this failed must count as not applied.
    pub(crate) fn set(&self, mut pages: Vec<(PageNo, u32)>) -> Result<(), Error> {
        // Writes end in any order. Sorted, each block is loaded once.
        pages.sort_unstable();
        for pages in pages.chunks(BLOCKS_AT_ONCE) {
            self.load(pages);
            for (page, crc) in pages {
                let (number, at) = place_of(*page);
                self.change(number, |loaded| {
                    loaded.block.entries[at] = entry(*crc);
                    loaded.is_dirty = true;
                })?;
            }
            let mut also = ignore_poison(self.also.write());
            for (page, _) in pages {
                also.remove(page);
            }
        }
        Ok(())
    }

    /// Sets the entries of consecutive pages: they were never written, or their content is unknown.
    pub(crate) fn fill(&self, pages: Range<PageNo>, entry: u32) -> Result<(), Error> {
        for (number, within) in blocks_of(pages) {
            self.change(number, |loaded| {
                let entries = &mut loaded.block.entries[within.clone()];
                loaded.is_dirty |= entries.iter().any(|before| *before != entry);
                entries.fill(entry);
            })?;
        }
        Ok(())
    }

    /// Changes a block in memory, which is loaded if necessary.
    fn change(&self, number: u64, what: impl Fn(&mut LoadedBlock)) -> Result<(), Error> {
        loop {
            if let Some(loaded) = ignore_poison(self.shard(number).write()).get_mut(&number) {
                what(loaded);
                return Ok(());
            }
            let generation = self.generation();
            self.keep(number, self.read(number)?, generation);
        }
    }

    /// Tests whether all these pages are recorded as never written.
    pub(crate) fn were_never_written(&self, pages: Range<PageNo>) -> Result<bool, Error> {
        for (number, within) in blocks_of(pages) {
            let is_in_file = number * 2 * (BLOCK_BYTES as u64) < self.file.bytes();
            let is_loaded = || ignore_poison(self.shard(number).read()).contains_key(&number);
            if (is_in_file || is_loaded())
                && !self.with(number, |block| {
                    block.entries[within.clone()].iter().all(|entry| *entry == ENTRY_NEVER_WRITTEN)
                })?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the number of pages that its file has room for.
    pub(crate) fn pages(&self) -> u64 {
        self.file.bytes() / (2 * BLOCK_BYTES as u64) * BLOCK_PAGES as u64
    }

    /// Loads the blocks of these pages together.
    fn load(&self, pages: &[(PageNo, u32)]) {
        let mut missing: Vec<u64> = pages.iter().map(|(page, _)| place_of(*page).0).collect();
        missing.dedup();
        missing.retain(|number| !ignore_poison(self.shard(*number).read()).contains_key(number));
        if missing.len() < 2 {
            return;
        }
        let mut bytes = AlignedBuf::new(missing.len() * 2 * BLOCK_BYTES);
        let mut reads: Vec<_> = bytes
            .chunks_mut(2 * BLOCK_BYTES)
            .zip(&missing)
            .map(|(room, number)| BatchRead {
                file: &*self.source,
                offset: number * 2 * BLOCK_BYTES as u64,
                bufs: vec![IoSliceMut::new(room)],
            })
            .collect();
        let generation = self.generation();
        let mut got = vec![None; missing.len()];
        self.io.read_batch(&mut reads, &mut |index, result| got[index] = result.ok());
        drop(reads);
        for ((number, got), bytes) in missing.iter().zip(got).zip(bytes.chunks(2 * BLOCK_BYTES)) {
            let block =
                got.map_or_else(|| self.read_apart(*number), |got| Ok(self.decode(*number, &bytes[..got])));
            // A block that cannot be read is reported where it is needed.
            if let Ok(block) = block {
                self.keep(*number, block, generation);
            }
        }
    }

    /// Makes the current map durable, for a store with this many pages, as of a checkpoint. One
    /// caller at a time.
    pub(crate) fn flush(&self, pages: u64, seq: Seq, depth: WriteDepth) -> Result<(), Error> {
        let mut dirty = Vec::new();
        for shard in &self.shards {
            let shard = ignore_poison(shard.read());
            dirty.extend(shard.iter().filter(|(_, loaded)| loaded.is_dirty).map(|(number, _)| *number));
        }
        // Pages that were written may have been removed since.
        let blocks = dirty.iter().max().map_or(0, |last| last + 1).max(pages.div_ceil(BLOCK_PAGES as u64));
        self.file.grow(blocks * 2, true)?;
        if dirty.is_empty() {
            self.upto.fetch_max(seq.get(), Ordering::AcqRel);
            return Ok(());
        }
        dirty.sort_unstable();
        // A killed process may have written the newest places without syncing them.
        if !self.is_durable.load(Ordering::Acquire) {
            self.file.sync()?;
            self.is_durable.store(true, Ordering::Release);
        }
        self.write_next(&dirty, seq, depth.clone())?;
        if !injected!(self, MapInOnePlace) {
            self.write_next(&dirty, seq, depth)?;
        }
        // Before any block may be evicted: a block that is read again is compared with the map's
        // commit on disk.
        self.upto.fetch_max(seq.get(), Ordering::AcqRel);
        self.generation.fetch_add(1, Ordering::AcqRel);
        for number in dirty {
            if let Some(loaded) = ignore_poison(self.shard(number).write()).get_mut(&number) {
                loaded.is_dirty = false;
            }
        }
        self.evict(self.max_kept);
        Ok(())
    }

    /// Writes each of these blocks to the place whose turn it is, and makes that durable.
    fn write_next(&self, dirty: &[u64], seq: Seq, depth: WriteDepth) -> Result<(), Error> {
        self.generation.fetch_add(1, Ordering::AcqRel);
        let writes = WritesInFlight::new(&self.file, depth);
        for number in dirty {
            let next =
                self.with(*number, |block| MapBlock { number: block.number + 1, seq, ..block.clone() })?;
            let mut bytes = AlignedBuf::new(BLOCK_BYTES);
            next.encode(*number, self.store, &mut bytes);
            let place = next.number % 2;
            let first = PageNo::new(number * 2 + place);
            writes.start(vec![PageRun { first, seqs: Vec::new(), bytes }])?;
        }
        writes.wait(0);
        writes.check()?;
        self.file.sync()?;
        for number in dirty {
            if let Some(loaded) = ignore_poison(self.shard(*number).write()).get_mut(number) {
                (loaded.block.number, loaded.block.seq) = (loaded.block.number + 1, seq);
            }
        }
        Ok(())
    }

    /// Evicts clean blocks until at most `max` blocks are left.
    pub(crate) fn evict(&self, max: usize) {
        for shard in &self.shards {
            if self.kept.load(Ordering::Relaxed) <= max {
                return;
            }
            ignore_poison(shard.write()).retain(|_, loaded| {
                let stays = loaded.is_dirty || self.kept.load(Ordering::Relaxed) <= max;
                if !stays {
                    self.kept.fetch_sub(1, Ordering::Relaxed);
                }
                stays
            });
        }
    }

    /// Returns the number of blocks in memory.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        let kept = self.shards.iter().map(|shard| ignore_poison(shard.read()).len()).sum();
        assert_eq!(kept, self.kept.load(Ordering::Relaxed));
        kept
    }

    /// Describes the blocks that are lost, of a store with this many pages. One corrupt place is no
    /// fault, since a crash may leave that.
    pub(crate) fn faults(&self, pages: u64) -> Vec<String> {
        let fault = |number| match self.read_apart(number) {
            Ok(block) if block.is_lost() => {
                Some(format!("page map, block {number}: neither of its two places is whole"))
            }
            Ok(_) => None,
            Err(error) => Some(format!("page map, block {number}: {error}")),
        };
        (0..pages.div_ceil(BLOCK_PAGES as u64)).filter_map(fault).collect()
    }
}

/// Returns the content of the readable place if the block's next write goes to the `unreadable`
/// one. Otherwise the unreadable place may be the newer one.
fn written_before(place: Option<MapBlock>, unreadable: u64) -> Option<MapBlock> {
    place.filter(|block| (block.number + 1) % 2 == unreadable)
}

/// Returns the blocks of these pages, each with the range of their entries.
fn blocks_of(pages: Range<PageNo>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let (first, end) = (pages.start.get(), pages.end.get());
    let last = if first < end { end.div_ceil(BLOCK_PAGES as u64) } else { 0 };
    (first / BLOCK_PAGES as u64..last).map(move |number| {
        let start = number * BLOCK_PAGES as u64;
        let within = |page: u64| usize::try_from(page - start).unwrap_or(BLOCK_PAGES).min(BLOCK_PAGES);
        (number, within(first.max(start))..within(end))
    })
}

/// Returns the block and entry of a page.
pub(crate) fn place_of(page: PageNo) -> (u64, usize) {
    let (page, pages) = (page.get(), BLOCK_PAGES as u64);
    let at = usize::try_from(page % pages).unwrap_or_else(|_| unreachable!("below 1008"));
    (page / pages, at)
}
