//! The page map in memory: which checksum each page of the data file must have. Blocks are loaded when the first of their pages is, and
//! written by each checkpoint before its superblock.
//!
//! Invariants:
//! 1. The entry of a page is that of what the data file has durably, before its versions leave the index.
//! 2. A block that differs from what the disk has stays in memory. It is written to the place that does not hold its newest; what
//!    a crash leaves of that is in the journal as well, so that the older place is as good.
//! 3. A place that can't be read, or is not whole, fails nothing: the other one is taken, and a page that is newer than it believed.
//!
//! Writing fails as the disk does.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use pagekeeper_io::{AlignedBuf, BatchRead, Create, Io, IoFile};
use pagekeeper_kernel::mutex::ignore_poison;

use crate::data::{DataFile, Run, WritesInFlight};
use crate::depth::Depth;
use crate::format::page::{PageFault, PageHeader};
use crate::format::page_map::{BLOCK, MapBlock, MapFault, PAGES, entry};
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

/// The map of a store.
pub(crate) struct PageMap {
    file: DataFile,
    /// The same, to read.
    source: Arc<dyn IoFile>,
    io: Arc<dyn Io>,
    store: u64,
    /// The commit up to which the map was complete when it was opened.
    upto: Seq,
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
        Ok(DataFile::open(io, directory, NAME, Create::New, BLOCK)?.file.sync_all()?)
    }

    /// The map of a store with so many pages, as of commit `upto`, which takes up so many bytes of memory.
    pub(crate) fn open(
        io: &Arc<dyn Io>,
        directory: &std::path::Path,
        (store, upto, pages): (u64, Seq, u64),
        memory: u64,
    ) -> Result<Self, Error> {
        let file = DataFile::open(io, directory, NAME, Create::Never, BLOCK)?;
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
            upto,
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
        pages.for_each(|(page, crc)| also.entry(page).or_default().push(crc));
    }

    fn shard(&self, block: u64) -> &RwLock<Shard> {
        #[expect(clippy::cast_possible_truncation, reason = "below the number of shards")]
        &self.shards[(block % SHARDS as u64) as usize]
    }

    /// Whether a page that was read is the one that was written last.
    pub(crate) fn check(&self, page: PageNo, found: &Result<PageHeader, PageFault>) -> Result<(), MapFault> {
        if injected!(self, NoPageMap) {
            return Ok(());
        }
        let (number, at) = place_of(page);
        let checked = self.with(number, |block| block.check(block.entries[at], found));
        match (checked, found) {
            (Err(fault), Ok(header)) => {
                let also = ignore_poison(self.also.read());
                let is_accepted = also.get(&page).is_some_and(|crcs| crcs.contains(&header.crc));
                if is_accepted { Ok(()) } else { Err(fault) }
            }
            (checked, _) => checked,
        }
    }

    /// Does something with a block, which is loaded for it.
    fn with<T>(&self, number: u64, what: impl Fn(&MapBlock) -> T) -> T {
        if let Some(loaded) = ignore_poison(self.shard(number).read()).get(&number) {
            return what(&loaded.block);
        }
        let generation = self.generation();
        let block = self.read(number);
        let done = what(&block);
        self.keep(number, block, generation);
        done
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// A block as the disk has it.
    fn read(&self, number: u64) -> MapBlock {
        let mut bytes = AlignedBuf::new(2 * BLOCK);
        let offset = number * 2 * BLOCK as u64;
        match self.source.read_at(offset, &mut bytes) {
            Ok(got) => self.decode(number, &bytes[..got]),
            Err(_) => self.read_apart(number),
        }
    }

    /// The same, where one of its places may be unreadable.
    fn read_apart(&self, number: u64) -> MapBlock {
        let place = |place: u64| {
            let mut bytes = AlignedBuf::new(BLOCK);
            let got = self.source.read_at((number * 2 + place) * BLOCK as u64, &mut bytes).ok()?;
            MapBlock::decode(&bytes[..got], number, self.store, place)
        };
        MapBlock::newest([place(0), place(1)], self.upto)
    }

    fn decode(&self, number: u64, bytes: &[u8]) -> MapBlock {
        let place = |place: u64, bytes: &[u8]| MapBlock::decode(bytes, number, self.store, place);
        let (first, second) = bytes.split_at(bytes.len().min(BLOCK));
        MapBlock::newest([place(0, first), place(1, second)], self.upto)
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

    /// Takes note of what the data file has durably now: pages in ascending order, with their checksums.
    pub(crate) fn set(&self, pages: &[(PageNo, u32)]) {
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
                    self.keep(number, self.read(number), self.generation());
                }
            }
            let mut also = ignore_poison(self.also.write());
            if !also.is_empty() {
                also.retain(|page, _| pages.binary_search_by_key(page, |(page, _)| *page).is_err());
            }
        }
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
                got.map_or_else(|| self.read_apart(*number), |got| self.decode(*number, &bytes[..got]));
            self.keep(*number, block, generation);
        }
    }

    /// Makes the map durable as it is: for a store with so many pages, as of a checkpoint. By one at a time.
    pub(crate) fn flush(&self, pages: u64, seq: Seq, depth: Depth) -> Result<(), Error> {
        self.file.grow(bytes_for(pages) / BLOCK as u64, true)?;
        let mut dirty = Vec::new();
        for shard in &self.shards {
            let shard = ignore_poison(shard.read());
            dirty.extend(shard.iter().filter(|(_, loaded)| loaded.is_dirty).map(|(number, _)| *number));
        }
        if dirty.is_empty() {
            return Ok(());
        }
        dirty.sort_unstable();
        self.generation.fetch_add(1, Ordering::AcqRel);
        let writes = WritesInFlight::new(&self.file, depth);
        for number in &dirty {
            let next =
                self.with(*number, |block| MapBlock { number: block.number + 1, seq, ..block.clone() });
            let mut bytes = AlignedBuf::new(BLOCK);
            next.encode(*number, self.store, &mut bytes);
            let place = next.number % 2;
            writes.start(vec![Run { first: number * 2 + place, seqs: Vec::new(), bytes }])?;
        }
        writes.wait(0);
        writes.check()?;
        self.file.sync()?;
        self.generation.fetch_add(1, Ordering::AcqRel);
        for number in dirty {
            if let Some(loaded) = ignore_poison(self.shard(number).write()).get_mut(&number) {
                (loaded.block.number, loaded.block.seq) = (loaded.block.number + 1, seq);
                loaded.is_dirty = false;
            }
        }
        Ok(())
    }

    /// Blocks of which nothing is known any more, in words, of a store with so many pages. One place that is not whole is no fault: a
    /// crash leaves that.
    pub(crate) fn faults(&self, pages: u64) -> Vec<String> {
        let lost = |number: &u64| self.read_apart(*number).is_lost();
        let fault = |number| format!("page map, block {number}: neither of its two places is whole");
        (0..pages.div_ceil(PAGES as u64)).filter(lost).map(fault).collect()
    }
}

/// Block and entry of a page.
fn place_of(page: PageNo) -> (u64, usize) {
    let at = usize::try_from(page % PAGES as u64).unwrap_or_else(|_| unreachable!("below 1008"));
    (page / PAGES as u64, at)
}
