//! A store that a backup or a repair makes elsewhere, page by page.
//!
//! Invariants:
//! 1. The directory is created; existing content or a link is never used.
//! 2. It is not a store before all of it is durable: its superblock gets its name last. Until then,
//!    opening it fails with the error for an unfinished one.
//! 3. On failure everything that was made is removed. A killed process leaves a directory that is
//!    marked as unfinished.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagekeeper_io::{AlignedBuf, Io, WriteMode};

use crate::backup::CopiedPiece;
use crate::create::{above, is_atomic, make_journal};
use crate::data::{self, DataFile, FileUse, PageRun, WritesInFlight};
use crate::depth::WriteDepth;
use crate::format::page_map::ENTRY_NEVER_WRITTEN;
use crate::format::superblock::{StoreMeta, Superblock};
use crate::names::JOURNAL_NAME;
use crate::options::StoreOptions;
use crate::page_map::{self, PageMap};
use crate::{Error, PageNo, Seq, superblocks};
use pagekeeper_wal::Lsn;

/// Writes at once, of at most [`PIECE_BYTES`](crate::bulk_read::PIECE_BYTES) bytes each. Few, since
/// the syncs of commits wait behind them.
const WRITES_AT_ONCE: usize = 4;
/// Bytes of the page map that are kept, beside those that wait to be written.
const MAP_BYTES: u64 = 1 << 20;
/// Pages after which the page map is written. Until then it takes 4 bytes of memory for each.
const FLUSH_PAGES: usize = 1 << 20;

/// The parameters of the new store.
#[derive(Debug, Clone)]
pub(crate) struct StoreParameters {
    /// Its id, which is in each of its pages.
    pub(crate) store: u64,
    /// Bytes of a page.
    pub(crate) page_size: usize,
    /// The journal's limit, in bytes.
    pub(crate) max_journal_bytes: u64,
}

/// The new store while it is unfinished.
pub(crate) struct Destination {
    files: DestinationFiles,
    like: StoreParameters,
    journal: u64,
    first_diffs: bool,
    data: DataFile,
    map: PageMap,
}

/// The files that were made. They are removed unless the store is finished.
struct DestinationFiles {
    io: Arc<dyn Io>,
    directory: PathBuf,
    is_finished: bool,
}

impl Destination {
    /// Makes the directory, and everything but the pages.
    ///
    /// Fails with [`Error::Exists`] if anything of this name exists.
    pub(crate) fn create(
        options: &StoreOptions,
        io: &Arc<dyn Io>,
        directory: &Path,
        like: StoreParameters,
    ) -> Result<Self, Error> {
        match io.create_dir(directory) {
            Err(error) if error.errno() == Some(libc::EEXIST) => return Err(exists(&**io, directory)),
            made => made?,
        }
        let files =
            DestinationFiles { io: Arc::clone(io), directory: directory.to_path_buf(), is_finished: false };
        superblocks::begin(&**io, directory, superblocks::COPYING_NAME)?;
        io.sync_dir(above(directory))?;
        let journal = make_journal(options, io, &directory.join(JOURNAL_NAME), like.max_journal_bytes)?;
        let data = DataFile::open(io, directory, data::DATA_NAME, FileUse::Make, like.page_size)?;
        PageMap::create(io, directory)?;
        let map = PageMap::open(io, directory, FileUse::Write, (like.store, Seq::NONE, 0), MAP_BYTES)?;
        let first_diffs = is_atomic(options, directory, &data, like.page_size);
        Ok(Self { files, like, journal, first_diffs, data, map })
    }

    /// Returns a writer for its pages.
    pub(crate) fn writer(&self) -> PageWriter<'_> {
        let writes = WritesInFlight::new(&self.data, WriteDepth::fixed(WRITES_AT_ONCE));
        PageWriter { to: self, writes, noted: 0, pages: 0, seq: Seq::NONE, bytes: 0, rounds: 0 }
    }

    /// Finishes the store as commit `seq` with the page count of `meta`, and makes it durable.
    /// Pages that were not written count as never written.
    pub(crate) fn finish(mut self, seq: Seq, meta: StoreMeta) -> Result<(), Error> {
        self.data.grow(meta.pages, true)?;
        // Pages that were copied before commits removed them.
        self.data.cut(meta.pages)?;
        self.data.sync_all()?;
        self.map.flush(meta.pages, seq, WriteDepth::fixed(WRITES_AT_ONCE))?;
        let DestinationFiles { io, directory, .. } = &self.files;
        io.sync_dir(directory)?;
        let page_size = u32::try_from(self.like.page_size).unwrap_or_else(|_| unreachable!("at most 65536"));
        let superblock = Superblock {
            number: 0,
            store: self.like.store,
            page_size,
            checkpoint_seq: seq,
            checkpoint_lsn: Lsn::new(0),
            max_journal_bytes: self.like.max_journal_bytes,
            first_diffs: self.first_diffs,
            journal: self.journal,
            meta,
        };
        superblocks::create(&**io, directory, superblocks::COPYING_NAME, superblock)?;
        self.files.is_finished = true;
        Ok(())
    }
}

/// Returns the error for a destination that exists.
pub(crate) fn exists(io: &dyn Io, directory: &Path) -> Error {
    let is_unfinished = superblocks::is_unfinished(&io.list(directory).unwrap_or_default());
    Error::Exists { path: directory.to_path_buf(), is_unfinished }
}

/// Writes pages, in any order.
pub(crate) struct PageWriter<'a> {
    to: &'a Destination,
    writes: WritesInFlight<'a>,
    /// Pages recorded in the map since it was last written.
    noted: usize,
    /// The minimum number of pages of the store.
    pages: u64,
    /// The newest commit of the written pages.
    seq: Seq,
    bytes: u64,
    /// Number of calls of [`begin`](PageWriter::begin).
    rounds: u64,
}

impl PageWriter<'_> {
    /// Makes room for this many pages. Pages written from now on have the state of this commit.
    /// Earlier writes have ended, so the same pages may come again.
    pub(crate) fn begin(&mut self, pages: u64, seq: Seq) -> Result<(), Error> {
        self.writes.wait(0);
        self.writes.check()?;
        (self.pages, self.seq) = (self.pages.max(pages), seq);
        self.rounds += 1;
        self.to.data.grow(self.pages, true)
    }

    /// Starts writing pieces of consecutive pages, and records the checksums of those pages that
    /// have content.
    pub(crate) fn write(&mut self, pieces: Vec<PageRun>, noted: Vec<(PageNo, u32)>) -> Result<(), Error> {
        self.bytes += pieces.iter().map(|piece| piece.bytes.len() as u64).sum::<u64>();
        self.writes.start(pieces)?;
        while self.writes.next_done().is_some() {}
        self.noted += noted.len();
        self.to.map.set(noted)?;
        if self.noted >= FLUSH_PAGES {
            self.to.map.flush(self.pages, self.seq, WriteDepth::fixed(WRITES_AT_ONCE))?;
            self.noted = 0;
        }
        Ok(())
    }

    /// Starts writing pages that were read from a store, in any order.
    pub(crate) fn write_pieces(&mut self, pieces: Vec<CopiedPiece>) -> Result<(), Error> {
        let (mut runs, mut noted) = (Vec::with_capacity(pieces.len()), Vec::new());
        for CopiedPiece { first, bytes, crcs } in pieces {
            let before = noted.len();
            for (page, crc) in first.onward().zip(crcs) {
                match crc {
                    Some(crc) => noted.push((page, crc)),
                    // A commit removed the page that was copied here, and a later one allocated it
                    // again.
                    None if self.rounds > 1 => self.blank(page)?,
                    None => {}
                }
            }
            // Pages that were never written take no space.
            if noted.len() > before {
                runs.push(PageRun { first, seqs: Vec::new(), bytes });
            }
        }
        self.write(runs, noted)
    }

    /// Turns a page into one that was never written, whatever was written there before the last
    /// [`Self::begin`].
    fn blank(&mut self, page: PageNo) -> Result<(), Error> {
        let pages = page..page + 1;
        if self.to.map.were_never_written(pages.clone())? {
            return Ok(());
        }
        match self.to.data.punch(&pages) {
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => {
                let zeros = AlignedBuf::new(self.to.like.page_size);
                let at = page.offset(zeros.len() as u64);
                self.to.data.file.write_at(at, &zeros, WriteMode::Plain)?;
            }
            punched => punched?,
        }
        self.to.map.fill(pages, ENTRY_NEVER_WRITTEN)
    }

    /// Waits for all writes, and returns how many bytes were written.
    pub(crate) fn end(&mut self) -> Result<u64, Error> {
        self.writes.wait(0);
        self.writes.check()?;
        Ok(self.bytes)
    }
}

impl Drop for DestinationFiles {
    /// Removes what was made, as far as possible. The mark is removed last, so that the remains
    /// do not count as a store.
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        let Self { io, directory, .. } = self;
        let journal = directory.join(JOURNAL_NAME);
        for name in io.list(&journal).unwrap_or_default() {
            let _ = io.remove(&journal.join(name));
        }
        let _ = io.remove_dir(&journal);
        for name in [data::DATA_NAME, page_map::MAP_NAME, superblocks::COPYING_NAME] {
            let _ = io.remove(&directory.join(name));
        }
        let _ = io.remove_dir(directory);
    }
}
