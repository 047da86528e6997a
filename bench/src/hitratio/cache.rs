//! The real cache on a trace, with pages of 4 KiB from a disk that costs nothing.
//!
//! Invariants: each page that the cache returns is the requested one; every read counts once, as a hit or a miss; the
//! number of disk reads equals the cache's misses. Blocks keep the trace's numbers, so the file is as long, and as
//! sparsely read, as the traced one. Fails where one of these does not hold, and with the cache's own errors.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use pagekeeper_cache::{BuildError, Builder, CachedFile, PageCache};
use pagekeeper_io::{Access, BatchRead, Error, FileStat, Io, IoFile, OwnedRead};

use super::trace::Trace;
use crate::scratch::Stop;

const PAGE: usize = 4096;
/// Reads between two checks of whether to stop.
const READS_AT_ONCE: usize = 1 << 20;

/// The cache's result for a trace.
#[derive(Debug)]
pub(super) struct Replayed {
    /// Number of frames.
    pub(super) frames: usize,
    /// Its budget in bytes, which includes the file's tables and other bookkeeping.
    pub(super) memory: u64,
    /// Number of hits.
    pub(super) hits: u64,
}

/// Reads the whole trace through a cache of `wanted` frames, or of as few as a cache can have.
pub(super) fn replay(stop: &Stop, trace: &Trace, wanted: usize) -> Result<Replayed> {
    let pages = trace.blocks.iter().max().map_or(0, |last| last + 1);
    let disk = Arc::new(BlankDisk { pages, ..BlankDisk::default() });
    let (cache, file, memory) = cache_of(&disk, wanted)?;
    let before = cache.stats();
    for reads in trace.reads.chunks(READS_AT_ONCE) {
        stop.check()?;
        for &page in reads {
            let block = trace.blocks[page as usize];
            let guard = file.page(block).with_context(|| format!("can't read block {block}"))?;
            ensure!(guard[..8] == block.to_le_bytes(), "the cache gave another page for block {block}");
        }
    }
    let stats = cache.stats();
    ensure!(
        stats.capacity_pages == before.capacity_pages
            && stats.hits + stats.misses == trace.reads.len() as u64,
        "of {} reads the cache counts: {stats}",
        trace.reads.len()
    );
    let loaded = disk.loaded.load(Ordering::Relaxed);
    ensure!(stats.misses == loaded, "{loaded} pages were read from the disk; the cache counts: {stats}");
    Ok(Replayed { frames: usize::try_from(stats.capacity_pages)?, memory, hits: stats.hits })
}

/// Creates a cache that has `wanted` frames once the file is open, whose tables use some, and returns its budget.
fn cache_of(disk: &Arc<BlankDisk>, wanted: usize) -> Result<(PageCache, CachedFile, u64)> {
    let mut asked_for = wanted as u64;
    loop {
        let frames = u32::try_from(asked_for).context("that many frames")?;
        let io: Arc<dyn Io> = Arc::clone(disk) as Arc<dyn Io>;
        let of_memory = |memory| {
            let builder = PageCache::builder().memory(memory).page_size(PAGE).reserve_tables(true);
            builder.io(Arc::clone(&io)).build()
        };
        let mut memory = Builder::memory_for(frames, PAGE);
        let cache = match of_memory(memory) {
            Err(BuildError::TooLittleMemory { least, .. }) => {
                memory = least;
                of_memory(least)
            }
            other => other,
        }?;
        let file = cache.open(NAME)?;
        let missing = (wanted as u64).saturating_sub(cache.stats().capacity_pages);
        if missing == 0 {
            return Ok((cache, file, memory));
        }
        asked_for += missing;
    }
}

const NAME: &str = "a file of the trace's blocks";

/// A disk with one file, whose pages begin with their own number. The rest of a page is never written.
#[derive(Debug, Default)]
struct BlankDisk {
    pages: u64,
    /// Number of pages read.
    loaded: Arc<AtomicU64>,
}

#[derive(Debug)]
struct BlankFile {
    pages: u64,
    loaded: Arc<AtomicU64>,
}

fn unsupported(call: &'static str) -> Error {
    Error::Call { call, path: PathBuf::from(NAME), errno: rustix::io::Errno::OPNOTSUPP.raw_os_error() }
}

impl Io for BlankDisk {
    fn open(&self, _: &Path, _: Access) -> Result<Arc<dyn IoFile>, Error> {
        Ok(Arc::new(BlankFile { pages: self.pages, loaded: Arc::clone(&self.loaded) }))
    }

    fn adopt(&self, _: File, _: Access) -> Result<Arc<dyn IoFile>, Error> {
        Err(unsupported("adopt"))
    }

    fn read_batch(
        &self,
        reads: &mut [BatchRead<'_>],
        completed: &mut dyn FnMut(usize, Result<usize, Error>),
    ) {
        for (index, read) in reads.iter_mut().enumerate() {
            let mut done = 0;
            for buf in &mut read.bufs {
                match read.file.read_at(read.offset + done as u64, buf) {
                    Ok(count) => done += count,
                    Err(error) => {
                        completed(index, Err(error));
                        return;
                    }
                }
            }
            completed(index, Ok(done));
        }
    }

    /// Fails each read: the cache does not read in the background here.
    fn submit(&self, reads: Vec<OwnedRead>) {
        for read in reads {
            (read.done)(Err(unsupported("submit")));
        }
    }

    fn name(&self) -> &'static str {
        "blank disk"
    }
}

impl IoFile for BlankFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let left = (self.pages * PAGE as u64).saturating_sub(offset);
        let len = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        for (number, page) in (offset / PAGE as u64..).zip(buf[..len].chunks_exact_mut(PAGE)) {
            page[..8].copy_from_slice(&number.to_le_bytes());
            self.loaded.fetch_add(1, Ordering::Relaxed);
        }
        Ok(len)
    }

    fn stat(&self) -> Result<FileStat, Error> {
        let never = (0, 0);
        Ok(FileStat { size: self.pages * PAGE as u64, device: 0, inode: 1, modified: never, changed: never })
    }

    fn access(&self) -> Access {
        Access::Direct
    }

    fn path(&self) -> &Path {
        Path::new(NAME)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::ours::Ours;
    use super::super::peers::hits;
    use super::super::trace::Zipf;
    use super::*;

    #[test]
    fn the_cache_does_as_its_rule_and_the_same_each_time() {
        let trace = Trace::zipf_with_scans(&Zipf::new(20_000, 0.9), 60_000, 5);
        let stop = Stop::never();
        let real = replay(&stop, &trace, 2000).unwrap();
        assert!((2000..2040).contains(&real.frames), "{}", real.frames);
        assert!(real.memory > 2000 * PAGE as u64);
        let again = replay(&stop, &trace, 2000).unwrap();
        assert_eq!((real.frames, real.hits), (again.frames, again.hits));
        let rule = hits(&mut Ours::new(trace.pages(), real.frames), &trace.reads);
        // Within a point of the hit ratio; most of the difference is frames that wait for the next check of the
        // readers.
        assert!(real.hits.abs_diff(rule) < trace.reads.len() as u64 / 100, "{} of {rule}", real.hits);
    }

    #[test]
    fn a_cache_is_no_smaller_than_it_can_be() {
        let trace = Trace::zipf_with_scans(&Zipf::new(1000, 0.9), 2000, 5);
        assert!(replay(&Stop::never(), &trace, 1).unwrap().frames > 1);
    }

    #[test]
    fn a_table_as_large_as_the_frames_leaves_their_number_alone() {
        let trace = Trace::zipf_with_scans(&Zipf::new(300_000, 0.9), 400_000, 5);
        assert!((300..400).contains(&replay(&Stop::never(), &trace, 300).unwrap().frames));
    }

    #[test]
    fn each_page_of_the_blank_disk_begins_with_its_number() {
        let disk = BlankDisk { pages: 10, ..BlankDisk::default() };
        let file = disk.open(Path::new(NAME), Access::Direct).unwrap();
        let mut buf = vec![7; 3 * PAGE];
        assert_eq!(file.read_at(4 * PAGE as u64, &mut buf).unwrap(), buf.len());
        assert_eq!([&buf[..8], &buf[PAGE..PAGE + 8]], [4_u64.to_le_bytes(), 5_u64.to_le_bytes()]);
        assert_eq!(buf[8], 7);
        assert_eq!(file.read_at(9 * PAGE as u64, &mut buf).unwrap(), PAGE);
        assert_eq!(disk.loaded.load(Ordering::Relaxed), 4);
    }
}
