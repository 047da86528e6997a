//! Backups of an open store: copies it page by page as one commit left it, while commits and
//! checkpoints continue.
//!
//! A snapshot is held while pages are copied. If commits meanwhile exceed the memory budget, that
//! snapshot ends. The copying then continues with a new snapshot, and copies again the pages that
//! commits changed since; these are recorded as long as the backup takes. So no commit waits for a
//! backup. A backup ends, however long it takes, if pages are copied faster than they change.
//!
//! The copy is made in pieces. Each batch is read, then written, and then the disk is left to
//! others for as long as they need it ([`TaskPacer`]). At [`StreamPace::Off`], pieces are written
//! while the next ones are read.
//!
//! Invariants:
//! 1. At the end all pages have the state of one commit, the last snapshot's, and that commit is
//!    durable.
//! 2. Each copied page was checked against its own checksum and the one in the page map. A damaged
//!    page is not copied: the backup fails.
//! 3. The source is only read.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_io::{AlignedBuf, IoFile};
use pagekeeper_policy::stream_pace::{StreamPace, TaskPacer};

use crate::bulk_read::{PIECE_BYTES, PageAt, PieceBuf};
use crate::changes::ChangeRecording;
use crate::core::Core;
use crate::destination::{Destination, PageWriter, StoreParameters};
use crate::format::page;
use crate::snapshots::LiveSnapshot;
use crate::{Error, PageNo, Seq};

/// Pieces that are read at once. Few, since the syncs of commits wait behind them; more gain
/// nothing even on a fast disk. One in tests, so that something can happen between pieces in small
/// stores.
const PIECES_AT_ONCE: usize = if cfg!(test) { 1 } else { 4 };
/// Maximum number of snapshots per backup. If they do not suffice, pages change faster than they
/// are copied.
const MAX_SNAPSHOTS: u64 = 1000;

/// A finished backup, as returned by [`Store::backup`](crate::Store::backup) and
/// [`StoreOptions::restore`](crate::StoreOptions::restore).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// The id of the store.
    pub store: u64,
    /// Bytes of a page.
    pub page_size: usize,
    /// The commit whose state the backup has.
    pub seq: Seq,
    /// Its pages, including free ones and pages that were never written.
    pub pages: u64,
    /// Bytes written to its data file.
    pub bytes: u64,
    /// Number of snapshots used. Each one after the first copied again the pages that had changed
    /// meanwhile.
    pub snapshots: u64,
    /// Time from the call to its end.
    pub took: Duration,
}

/// The snapshot whose state all pages have.
struct CopyResult {
    live: Arc<LiveSnapshot>,
    /// Bytes written.
    bytes: u64,
    snapshots: u64,
}

/// Consecutive pages that were read and checked.
pub(crate) struct CopiedPiece {
    pub(crate) first: PageNo,
    /// The pages' bytes; zeros for a page that was never written.
    pub(crate) bytes: AlignedBuf,
    /// The checksum of each page; `None` if it was never written.
    pub(crate) crcs: Vec<Option<u32>>,
}

/// Pages still to be copied, as ranges of at most [`PIECE_BYTES`] bytes.
type PagesLeft = VecDeque<Range<PageNo>>;

impl Core {
    pub(crate) fn backup(&self, to: &Path, pace: StreamPace) -> Result<Backup, Error> {
        let began = Instant::now();
        let io = &self.config.io;
        let store = self.config.store_id;
        let like = StoreParameters {
            store,
            page_size: self.config.page_size,
            max_journal_bytes: self.config.max_journal_bytes,
        };
        let destination = Destination::create(&self.config.options, io, to, like)?;
        let CopyResult { live, bytes, snapshots } = self.copy_to(&mut destination.writer(), pace)?;
        let (seq, meta) = (live.seq, (*live.meta).clone());
        let pages = meta.pages;
        destination.finish(seq, meta)?;
        let page_size = self.config.page_size;
        Ok(Backup { store, page_size, seq, pages, bytes, snapshots, took: began.elapsed() })
    }

    /// Copies all pages.
    fn copy_to(&self, writer: &mut PageWriter<'_>, pace: StreamPace) -> Result<CopyResult, Error> {
        let (noting, lsn) = ChangeRecording::begin(self);
        // Commits that are not recorded are visible to the snapshot then.
        self.make_durable(lsn)?;
        let source = self.open_data()?;
        let mut copy = CopyTask { core: self, source, writer, pace: CopyPace::new(pace) };
        let mut left = PagesLeft::new();
        let mut copied = PageNo::new(0);
        for snapshots in 1..=MAX_SNAPSHOTS {
            let live = self.snapshots.begin();
            self.add(&mut left, noting.upto(live.seq).into_iter().filter(|page| *page < copied));
            let end = PageNo::new(live.meta.pages);
            self.add(&mut left, PageNo::each(copied..end));
            copied = end;
            let done = copy.copy(&live, &mut left);
            self.snapshots.end(&live);
            match done {
                Ok(()) => {
                    let bytes = copy.writer.end()?;
                    // The copy may have a commit that was seen before it was durable: make it
                    // durable too.
                    self.make_durable(self.last_lsn())?;
                    return Ok(CopyResult { live, bytes, snapshots });
                }
                Err(Error::SnapshotTooOld) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::SnapshotTooOld)
    }

    /// Adds pages, in ascending order.
    fn add(&self, left: &mut PagesLeft, pages: impl Iterator<Item = PageNo>) {
        let most = (PIECE_BYTES / self.config.page_size) as u64;
        for page in pages {
            match left.back_mut() {
                Some(last) if last.end == page && last.end - last.start < most => last.end = page + 1,
                _ => left.push_back(page..page + 1),
            }
        }
    }
}

/// The pacers of a copy. Reads and writes have separate pacers, since their costs differ and they
/// may go to different disks.
struct CopyPace {
    start: Instant,
    is_off: bool,
    reads: TaskPacer,
    writes: TaskPacer,
    /// Time still to be left to others.
    owed: Duration,
}

impl CopyPace {
    fn new(pace: StreamPace) -> Self {
        let (reads, writes) = (TaskPacer::new(pace), TaskPacer::new(pace));
        Self { start: Instant::now(), is_off: pace == StreamPace::Off, reads, writes, owed: Duration::ZERO }
    }

    /// Returns how many pieces to read at once.
    fn pieces(&self) -> usize {
        let bytes = self.reads.piece().min(self.writes.piece());
        usize::try_from(bytes).map_or(PIECES_AT_ONCE, |bytes| (bytes / PIECE_BYTES).clamp(1, PIECES_AT_ONCE))
    }

    fn read<T>(&mut self, bytes: usize, read: impl FnOnce() -> T) -> T {
        let (done, pause) = timed(&mut self.reads, self.start, bytes, read);
        self.owed += pause;
        done
    }

    fn write<T>(&mut self, bytes: usize, write: impl FnOnce() -> T) -> T {
        let (done, pause) = timed(&mut self.writes, self.start, bytes, write);
        self.owed += pause;
        done
    }

    /// Leaves the disk to others for as long as they need since the last rest.
    fn rest(&mut self) {
        std::thread::sleep(std::mem::take(&mut self.owed));
    }
}

/// Runs work that waits for the disk. Returns its result and how long to leave the disk to others.
fn timed<T>(pacer: &mut TaskPacer, start: Instant, bytes: usize, work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = start.elapsed();
    let done = work();
    (done, pacer.done_alone(bytes as u64, begun, start.elapsed()))
}

struct CopyTask<'a, 'to> {
    core: &'a Core,
    source: Arc<dyn IoFile>,
    writer: &'a mut PageWriter<'to>,
    pace: CopyPace,
}

impl CopyTask<'_, '_> {
    /// Copies the remaining pages as the snapshot has them. On failure, pages not copied yet remain
    /// in `left`.
    fn copy(&mut self, live: &LiveSnapshot, left: &mut PagesLeft) -> Result<(), Error> {
        self.writer.begin(live.meta.pages, live.seq)?;
        while !left.is_empty() {
            let due = left.len().min(self.pace.pieces());
            self.copy_some(live, left.range(..due).cloned().collect())?;
            left.drain(..due);
        }
        Ok(())
    }

    fn copy_some(&mut self, live: &LiveSnapshot, due: Vec<Range<PageNo>>) -> Result<(), Error> {
        let page_size = self.core.config.page_size;
        let room = |pages: &Range<PageNo>| AlignedBuf::new(PageNo::each(pages.clone()).count() * page_size);
        let mut bufs: Vec<_> = due.iter().map(room).collect();
        let bytes = bufs.iter().map(|buf| buf.len()).sum();
        let with_pages = bufs.iter_mut().zip(&due);
        let mut pieces: Vec<_> =
            with_pages.map(|(buf, pages)| PieceBuf { first: pages.start, bytes: &mut buf[..] }).collect();
        let got = self.pace.read(bytes, || self.core.read_pieces(&*self.source, &mut pieces));
        let mut crcs = Vec::with_capacity(bytes / page_size);
        self.core.each_page(live, &mut pieces, got, |page, bytes, found| {
            crcs.push(self.crc_of(live, page, bytes, found?)?);
            Ok(())
        })?;
        let mut crcs = crcs.into_iter();
        let of_piece = |(pages, bytes): (Range<PageNo>, AlignedBuf)| {
            let crcs = crcs.by_ref().take(bytes.len() / page_size).collect();
            CopiedPiece { first: pages.start, bytes, crcs }
        };
        let read: Vec<_> = due.into_iter().zip(bufs).map(of_piece).collect();
        if self.pace.is_off {
            return self.writer.write_pieces(read);
        }
        // Only now, so that nothing in the index is kept for the copy during the pause.
        self.pace.rest();
        self.pace.write(bytes, || {
            self.writer.write_pieces(read)?;
            self.writer.end().map(drop)
        })?;
        self.pace.rest();
        Ok(())
    }

    /// Turns `bytes` into those of the page as the snapshot has it. Returns its checksum, or `None`
    /// if it was never written.
    fn crc_of(
        &self,
        live: &LiveSnapshot,
        page: PageNo,
        bytes: &mut [u8],
        found: PageAt,
    ) -> Result<Option<u32>, Error> {
        let found = match found {
            PageAt::Unreadable(_) => self.core.read_by_itself(live, page, true)?,
            found => found,
        };
        match found {
            PageAt::InFile(header) => return Ok(Some(header.crc)),
            PageAt::Elsewhere { page, .. } => bytes.copy_from_slice(page.bytes()),
            PageAt::NeverWritten | PageAt::Unreadable(_) => {
                bytes.fill(0);
                return Ok(None);
            }
        }
        Ok(Some(page::crc(bytes)))
    }
}
