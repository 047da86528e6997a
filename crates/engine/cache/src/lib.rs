//! A page cache in user space, for the files of storage engines: immutable ones (SST files,
//! segments, blobs), and those that only their owner writes.
//!
//! It takes the place of mmap, pread or an engine's own LRU. It reads files by direct I/O, so the
//! kernel's page cache holds none of their pages. The engine alone decides what is cached and how
//! much; memory pressure elsewhere on the host neither takes the cache away nor is caused by it.
//!
//! - A **hit** takes no lock: one load from a table, one copy, two plain stores. It adds a
//!   compare-and-swap on the page's entry until the page has been read four times, and again after
//!   eviction has passed the page over.
//! - A **miss** is read once, however many threads want the page; the others wait parked. An error
//!   reaches all waiting threads, and the next caller tries again.
//! - **Eviction** is S3-FIFO with a small queue that adapts: a scan does not wash the cache out.
//! - **Closing** a file is O(1) however many of its pages are cached, and guards keep their bytes.
//! - **Everything counts**: frames, their records and the tables of files stay within one budget.
//!
//! # An SST reader
//!
//! A table of blocks, each preceded by its length and checksum. The last eight bytes are the offset
//! of the index:
//!
//! ```
//! use pagekeeper_cache::{CachedFile, Error, PageCache};
//!
//! struct Table {
//!     file: CachedFile,
//!     blocks: Vec<u64>,
//! }
//!
//! impl Table {
//!     fn open(cache: &PageCache, path: &std::path::Path) -> Result<Self, Error> {
//!         let file = cache.open(path)?; // opened once, however many threads ask
//!         let mut word = [0; 8];
//!         let end = file.len() - 8;
//!         file.read_at(end, &mut word)?;
//!         let mut index = vec![0; (end - u64::from_le_bytes(word)) as usize];
//!         file.read_at(u64::from_le_bytes(word), &mut index)?;
//!         let blocks = index.chunks_exact(8).map(|entry| u64::from_le_bytes(entry.try_into().unwrap()));
//!         Ok(Self { blocks: blocks.collect(), file })
//!     }
//!
//!     fn block(&self, number: usize) -> Result<Vec<u8>, Error> {
//!         let offset = self.blocks[number];
//!         let mut len = [0; 4];
//!         self.file.read_at(offset, &mut len)?;
//!         let mut block = vec![0; u32::from_le_bytes(len) as usize];
//!         self.file.read_at(offset + 4, &mut block)?; // across pages; what is absent is loaded together
//!         Ok(block)
//!     }
//! }
//!
//! # let dir = tempfile::tempdir_in(".")?;
//! # let path = dir.path().join("000012.sst");
//! # std::fs::write(&path, b"\x05\0\0\0first\x06\0\0\0second\0\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x13\0\0\0\0\0\0\0")?;
//! let cache = PageCache::options().memory(64 << 20).build()?;
//! let table = Table::open(&cache, &path)?;
//! assert_eq!(table.block(1)?, b"second");
//! println!("{}", cache.stats());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Ways to read
//!
//! | | copies | waits for a miss | for |
//! |---|---|---|---|
//! | [`read_at`](CachedFile::read_at) | yes | parks the thread | most reads; across pages, at any offset |
//! | [`page`](CachedFile::page) | no | parks the thread | a short read of one page, on one thread |
//! | [`page_ref`](CachedFile::page_ref) | no | parks the thread | a page that is kept for long or goes to another thread |
//! | [`read_many`](CachedFile::read_many) | yes | parks the thread, once for all | batches: point lookups of one request, index scans |
//! | [`read_at_async`](CachedFile::read_at_async) | yes | as a future | any runtime |
//!
//! All of these methods exist on [`OwnedFile`], too.
//!
//! [`prefetch`](CachedFile::prefetch) begins loads that will be wanted soon. `FileTable` of the
//! crate `pagekeeper-file-table` keeps opened readers by path or number, each opened once.
//!
//! # Guarantees when a file changes
//!
//! A [`CachedFile`] must not change while it is open. If it was truncated, grew or was written to,
//! the next load of a page fails; pages that were loaded before are returned as they were. After
//! each read of the device the cache compares the file's length, its time of the last write (mtime)
//! and its time of the last change (ctime) with those at the open. Opening its path again gives the
//! new content, under a new [`id`](CachedFile::id), and shares nothing with the old.
//!
//! If only the ctime changed, the file may have been linked, renamed or given another owner. Or it
//! was written to and its mtime was set back, as by `rsync --inplace --times`. A changed number of
//! links counts as the explanation. Otherwise the cache reads the file's cached pages once more: if
//! one differs, that load and all later ones fail. The cache does not notice these writes:
//!
//! - a write whose mtime was set back, if the number of links changed as well between two loads, or
//!   if none of the written pages is in the cache;
//! - a second store through a mapping, in a file that is read through the kernel's page cache.
//!
//! A file that the engine writes itself is opened by [`PageCache::open_owned`]. It may grow, and
//! loads do not check its length and times. After each write of a page the engine notifies the
//! cache:
//!
//! | | the page is then | for |
//! |---|---|---|
//! | [`install`](OwnedFile::install) | in the cache, with the new content | pages that somebody reads |
//! | [`discard`](OwnedFile::discard), [`discard_many`](OwnedFile::discard_many) | absent | all others |
//!
//! Reads that begin after the notification never return the previous content.
//!
//! # Forks
//!
//! A cache belongs to the process that made it. In a forked child each read and each open fails
//! with [`Forked`](pagekeeper_io::Error::Forked), whether the page is resident or not. A close or a
//! drop does nothing, counts are zero, and no call waits. Pages that guards held at the fork keep
//! their bytes. Make caches after the fork. vfork(2), `posix_spawn(3)` and any child that executes
//! another program are fine.
//!
//! # Memory
//!
//! The budget of `memory(bytes)` bounds:
//!
//! - the frames and their records (32 bytes a frame);
//! - open files: about 1,200 bytes each, at most a quarter of the budget;
//! - the files' tables: 4 bytes for each page *of the open files*, at most half of the budget.
//!   Tables take up whole kernel pages (such as 4 KiB for 1,024 pages), and only where a file is
//!   read. A file of few pages costs about 5 KiB beside its frames.
//!
//! The memory is taken up as the cache fills. Not within the budget:
//!
//! - about 450 bytes for each thread, and four more for each 1,024 pages of open files;
//! - the kernel's page tables: up to 4 KiB for each 2 GiB of a file that is read at scattered
//!   offsets;
//! - the back-end's own memory (rings, threads' stacks);
//! - a page for each blocking read past the cache, while all frames are held by guards or being
//!   loaded.
//!
//! Futures read at most a sixteenth of the pages, and at most 256, past the cache at once; the
//! others wait for their turn. A waiting future takes about 400 bytes beside its own, so 200,000 at
//! once stay within 90 MB. A future whose page was read past the cache keeps that page until it is
//! polled.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

#[cfg(not(target_os = "linux"))]
compile_error!("pagekeeper-cache needs Linux: its rules are about the Linux page cache");

mod admission;
mod batch;
mod bypass_buffer;
mod bypass_queue;
mod cache;
mod cache_options;
mod clear_ahead;
mod content_check;
mod descriptors;
mod entry;
mod error;
mod evict;
mod fast_path;
mod file;
mod file_stats;
mod frame_loan;
mod frames;
mod free_frames;
mod future;
mod guard;
mod handle;
mod inode_change;
mod kernel_leftovers;
mod load;
mod lookup;
#[cfg(test)]
mod model;
mod options;
mod owned;
mod page_no;
mod page_table;
mod pool;
mod prefetch;
mod priority;
mod queues;
mod read;
mod readers;
mod rewrite;
mod s3fifo;
mod settings;
mod settlers;
mod stats;
mod sync;
mod sys;
/// Tests of the sources that `model` compiles a second time.
#[cfg(test)]
mod tests {
    mod bypass_queue;
    mod page_table;
    mod readers;
    mod waiter;
}
mod thread;
mod verifier;
mod waiter;

use sys::{arena, table};

pub use batch::ReadRequest;
pub use cache::PageCache;
pub use cache_options::{Backend, CacheOptions};
pub use error::{BuildError, Error};
pub use file::CachedFile;
pub use file_stats::FileStats;
pub use guard::{HeldPage, PageGuard, PageRef};
pub use options::OpenOptions;
pub use owned::{InstallAs, OwnedFile};
pub use page_no::PageNo;
pub use priority::FilePriority;
pub use settings::HugePages;
pub use stats::CacheStats;
pub use verifier::LoadedPage;
