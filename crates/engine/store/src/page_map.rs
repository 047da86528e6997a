//! The page map in memory: which checksum each page of the data file must have. Blocks are loaded when the first of their pages is, and
//! written by each checkpoint before its superblock.
//!
//! Invariants:
//! 1. The entry of a page is that of what the data file has durably, before its versions leave the index.
//! 2. A block that differs from what the disk has stays in memory. It is written to the place that does not hold its newest, and when
//!    that is durable to the other one: then both say the same, and either may be lost. What a crash leaves of the first write is in the
//!    journal as well, so that the older place is as good. The newest is durable by then, also where a process that was killed has
//!    written it.
//! 3. A place that is not whole fails nothing: the other one is taken, and a page that is newer than it believed. Nor does one that
//!    can't be read, if it is the one that is written next; else what it holds may count later, and nothing is taken for the block.
//!
//! Reading a block fails where its newer place may be the one that can't be read; writing fails as the disk does.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use pagekeeper_io::{AlignedBuf, BatchRead, Error as IoError, Io, IoFile};
use pagekeeper_kernel::mutex::ignore_poison;

use crate::data::{DataFile, Run, Use, WritesInFlight};
use crate::depth::Depth;
use crate::format::page::{PageFault, PageHeader};
use crate::format::page_map::{BLOCK, MapBlock, MapFault, NEVER, PAGES, entry};
use crate::{Error, PageNo, Seq};

/// Its name.
pub(crate) const NAME: &str = "map";

/// Parts with a lock each.
const SHARDS: usize = 16;
/// Blocks that are loaded at once.
const AT_ONCE: usize = 128;
/// The least that is kept.
const MIN_KEPT: usize = 64;

struct Loaded {
    block: MapBlock,
    /// It is to be written.
    is_dirty: bool,
}

type Shard = HashMap<u64, Loaded>;

/// Why a page does not count.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckFault {
    #[error(transparent)]
    Page(#[from] MapFault),
    #[error("what was written there last is not known: {0}")]
    Unreadable(#[from] IoError),
}

/// The map of a store.
pub(crate) struct PageMap {
    file: DataFile,
    /// The same, to read.
    source: Arc<dyn IoFile>,
    io: Arc<dyn Io>,
    store: u64,
    /// The commit up to which the disk has the map: that of the last flush.
    upto: AtomicU64,
    /// What the opening found was synced.
    is_durable: AtomicBool,
    shards: Box<[RwLock<Shard>]>,
    /// Blocks that are kept at most, beside those that are to be written.
    max_kept: usize,
    kept: AtomicUsize,
    /// Changes when blocks are written: what was read before is not kept.
    generation: AtomicU64,
    /// Pages that are not applied, and which checksums they may have by now: being written, or as the journal, which changes a part of them,
    /// has them.
    also: RwLock<HashMap<PageNo, Vec<u32>>>,
    #[cfg(test)]
    pub(crate) injected_fault: Option<crate::injected_fault::InjectedFault>,
}

/// Bytes of the file for so many pages.
pub(crate) fn bytes_for(pages: u64) -> u64 {
    pages.div_ceil(PAGES as u64) * 2 * BLOCK as u64
}

impl PageMap {
    /// Makes the file, durably but for its name.
    pub(crate) fn create(io: &Arc<dyn Io>, directory: &std::path::Path) -> Result<(), Error> {
        Ok(DataFile::open(io, directory, NAME, Use::Make, BLOCK)?.file.sync_all()?)
    }

    /// The map of a store with so many pages, as of commit `upto`, which takes up so many bytes of memory.
    pub(crate) fn open(
        io: &Arc<dyn Io>,
        directory: &std::path::Path,
        use_of: Use,
        (store, upto, pages): (u64, Seq, u64),
        memory: u64,
    ) -> Result<Self, Error> {
        let file = DataFile::open(io, directory, NAME, use_of, BLOCK)?;
        let (found, expected) = (file.file.stat()?.size, bytes_for(pages));
        if found < expected {
            return Err(Error::CutOff { path: directory.join(NAME), found, expected });
        }
        file.is_durable_upto(expected);
        let max_kept = usize::try_from(memory / BLOCK as u64).unwrap_or(usize::MAX).max(MIN_KEPT);
        Ok(Self {
            source: Arc::clone(&file.file),
            file,
            io: Arc::clone(io),
            store,
            upto: AtomicU64::new(upto),
            is_durable: AtomicBool::new(false),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
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

    /// Each of these pages may also have this checksum by now, until it is applied.
    pub(crate) fn accept(&self, pages: impl Iterator<Item = (PageNo, u32)>) {
        let mut also = ignore_poison(self.also.write());
        for (page, crc) in pages {
            let crcs = also.entry(page).or_default();
            if !crcs.contains(&crc) {
                crcs.push(crc);
            }
        }
    }

    fn shard(&self, block: u64) -> &RwLock<Shard> {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of shards")]
        &self.shards[(block % SHARDS as u64) as usize]
    }

    /// Whether a page that was read is the one that was written last.
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

    /// Does something with a block, which is loaded for it.
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

    /// A block as the disk has it.
    fn read(&self, number: u64) -> Result<MapBlock, IoError> {
        let mut bytes = AlignedBuf::new(2 * BLOCK);
        let offset = number * 2 * BLOCK as u64;
        match self.source.read_at(offset, &mut bytes) {
            Ok(got) => Ok(self.decode(number, &bytes[..got])),
            Err(_) => self.read_apart(number),
        }
    }

    /// The same, where one of its places may be unreadable.
    fn read_apart(&self, number: u64) -> Result<MapBlock, IoError> {
        let place = |place: u64| {
            let mut bytes = AlignedBuf::new(BLOCK);
            let got = self.source.read_at((number * 2 + place) * BLOCK as u64, &mut bytes)?;
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
        self.upto.load(Ordering::Acquire)
    }

    fn decode(&self, number: u64, bytes: &[u8]) -> MapBlock {
        let place = |place: u64, bytes: &[u8]| MapBlock::decode(bytes, number, self.store, place);
        let (first, second) = bytes.split_at(bytes.len().min(BLOCK));
        MapBlock::newest([place(0, first), place(1, second)], self.upto())
    }

    /// Keeps a block, unless it is there by now or was written since it was read, and lets another go for it.
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
        shard.insert(number, Loaded { block, is_dirty: false });
        self.kept.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes note of what the data file has durably now: pages in any order, with their checksums. What the map has of those that
    /// it fails for can't be read: until the store is opened again they are to be taken for not applied.
    pub(crate) fn set(&self, mut pages: Vec<(PageNo, u32)>) -> Result<(), Error> {
        // Writes end in any order; blocks are loaded in theirs, each once.
        pages.sort_unstable();
        for pages in pages.chunks(AT_ONCE) {
            self.load(pages);
            for (page, crc) in pages {
                let (number, at) = place_of(*page);
                let shard = self.shard(number);
                loop {
                    if let Some(loaded) = ignore_poison(shard.write()).get_mut(&number) {
                        loaded.block.entries[at] = entry(*crc);
                        loaded.is_dirty = true;
                        break;
                    }
                    let generation = self.generation();
                    self.keep(number, self.read(number)?, generation);
                }
            }
            let mut also = ignore_poison(self.also.write());
            for (page, _) in pages {
                also.remove(page);
            }
        }
        Ok(())
    }

    /// Takes the same note of pages in a row: [`NEVER`](crate::format::page_map::NEVER) or
    /// [`UNKNOWN`](crate::format::page_map::UNKNOWN).
    pub(crate) fn fill(&self, pages: Range<PageNo>, entry: u32) -> Result<(), Error> {
        for (number, within) in blocks_of(pages) {
            let shard = self.shard(number);
            loop {
                if let Some(loaded) = ignore_poison(shard.write()).get_mut(&number) {
                    let entries = &mut loaded.block.entries[within];
                    loaded.is_dirty |= entries.iter().any(|before| *before != entry);
                    entries.fill(entry);
                    break;
                }
                let generation = self.generation();
                self.keep(number, self.read(number)?, generation);
            }
        }
        Ok(())
    }

    /// Whether it says of all these pages that they were never written.
    pub(crate) fn were_never_written(&self, pages: Range<PageNo>) -> Result<bool, Error> {
        for (number, within) in blocks_of(pages) {
            let is_in_file = number * 2 * (BLOCK as u64) < self.file.bytes();
            let is_loaded = || ignore_poison(self.shard(number).read()).contains_key(&number);
            if (is_in_file || is_loaded())
                && !self
                    .with(number, |block| block.entries[within.clone()].iter().all(|entry| *entry == NEVER))?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Pages that its file has room for.
    pub(crate) fn pages(&self) -> u64 {
        self.file.bytes() / (2 * BLOCK as u64) * PAGES as u64
    }

    /// Loads the blocks of these pages at once.
    fn load(&self, pages: &[(PageNo, u32)]) {
        let mut missing: Vec<u64> = pages.iter().map(|(page, _)| place_of(*page).0).collect();
        missing.dedup();
        missing.retain(|number| !ignore_poison(self.shard(*number).read()).contains_key(number));
        if missing.len() < 2 {
            return;
        }
        let mut bytes = AlignedBuf::new(missing.len() * 2 * BLOCK);
        let mut reads: Vec<_> = bytes
            .chunks_mut(2 * BLOCK)
            .zip(&missing)
            .map(|(room, number)| BatchRead {
                file: &*self.source,
                offset: number * 2 * BLOCK as u64,
                bufs: vec![IoSliceMut::new(room)],
            })
            .collect();
        let generation = self.generation();
        let mut got = vec![None; missing.len()];
        self.io.read_batch(&mut reads, &mut |index, result| got[index] = result.ok());
        drop(reads);
        for ((number, got), bytes) in missing.iter().zip(got).zip(bytes.chunks(2 * BLOCK)) {
            let block =
                got.map_or_else(|| self.read_apart(*number), |got| Ok(self.decode(*number, &bytes[..got])));
            // One that can't be read is reported where it is needed.
            if let Ok(block) = block {
                self.keep(*number, block, generation);
            }
        }
    }

    /// Makes the map durable as it is: for a store with so many pages, as of a checkpoint. By one at a time.
    pub(crate) fn flush(&self, pages: u64, seq: Seq, depth: Depth) -> Result<(), Error> {
        let mut dirty = Vec::new();
        for shard in &self.shards {
            let shard = ignore_poison(shard.read());
            dirty.extend(shard.iter().filter(|(_, loaded)| loaded.is_dirty).map(|(number, _)| *number));
        }
        // Pages that were written may be none any more.
        let blocks = dirty.iter().max().map_or(0, |last| last + 1).max(pages.div_ceil(PAGES as u64));
        self.file.grow(blocks * 2, true)?;
        if dirty.is_empty() {
            self.upto.fetch_max(seq, Ordering::AcqRel);
            return Ok(());
        }
        dirty.sort_unstable();
        // One that was killed may have written the places that count now, and not synced them.
        if !self.is_durable.load(Ordering::Acquire) {
            self.file.sync()?;
            self.is_durable.store(true, Ordering::Release);
        }
        self.write_next(&dirty, seq, depth.clone())?;
        if !injected!(self, MapInOnePlace) {
            self.write_next(&dirty, seq, depth)?;
        }
        // Before any of them may go: one that is read again is judged by what the disk has.
        self.upto.fetch_max(seq, Ordering::AcqRel);
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
    fn write_next(&self, dirty: &[u64], seq: Seq, depth: Depth) -> Result<(), Error> {
        self.generation.fetch_add(1, Ordering::AcqRel);
        let writes = WritesInFlight::new(&self.file, depth);
        for number in dirty {
            let next =
                self.with(*number, |block| MapBlock { number: block.number + 1, seq, ..block.clone() })?;
            let mut bytes = AlignedBuf::new(BLOCK);
            next.encode(*number, self.store, &mut bytes);
            let place = next.number % 2;
            writes.start(vec![Run { first: number * 2 + place, seqs: Vec::new(), bytes }])?;
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

    /// Lets blocks go that are not to be written, until at most so many are left.
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

    /// Blocks in memory.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        let kept = self.shards.iter().map(|shard| ignore_poison(shard.read()).len()).sum();
        assert_eq!(kept, self.kept.load(Ordering::Relaxed));
        kept
    }

    /// Blocks of which nothing is known any more, in words, of a store with so many pages. One place that is not whole is no fault: a
    /// crash leaves that.
    pub(crate) fn faults(&self, pages: u64) -> Vec<String> {
        let fault = |number| match self.read_apart(number) {
            Ok(block) if block.is_lost() => {
                Some(format!("page map, block {number}: neither of its two places is whole"))
            }
            Ok(_) => None,
            Err(error) => Some(format!("page map, block {number}: {error}")),
        };
        (0..pages.div_ceil(PAGES as u64)).filter_map(fault).collect()
    }
}

/// What one place holds, if the next write of the block goes to the other one, `unreadable`: else what that may hold would win over it.
fn written_before(place: Option<MapBlock>, unreadable: u64) -> Option<MapBlock> {
    place.filter(|block| (block.number + 1) % 2 == unreadable)
}

/// Blocks that have pages of these, and which entries of each that are.
fn blocks_of(pages: Range<PageNo>) -> impl Iterator<Item = (u64, Range<usize>)> {
    let end = pages.end;
    let first = pages.start;
    let last = if first < end { end.div_ceil(PAGES as u64) } else { 0 };
    (first / PAGES as u64..last).map(move |number| {
        let start = number * PAGES as u64;
        let within = |page: u64| usize::try_from(page - start).unwrap_or(PAGES).min(PAGES);
        (number, within(first.max(start))..within(end))
    })
}

/// Block and entry of a page.
pub(crate) fn place_of(page: PageNo) -> (u64, usize) {
    let at = usize::try_from(page % PAGES as u64).unwrap_or_else(|_| unreachable!("below 1008"));
    (page / PAGES as u64, at)
}
