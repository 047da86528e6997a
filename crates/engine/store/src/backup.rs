//! Backups of an open store: copies it page by page as one commit left it, while commits and checkpoints go on.
//!
//! A snapshot is held while pages are copied. If commits meanwhile exceed the memory budget, that snapshot ends. The
//! copying then continues with a new snapshot, and copies again the pages that commits changed since; these are
//! recorded as long as the backup takes. So no commit waits for a backup. A backup ends, however long it takes, if
//! pages are copied faster than they change.
//!
//! The copy is made in pieces. Each batch is read, then written, and then the disk is left to others for as long as
//! they need it ([`TaskPacer`]). At [`StreamPace::Off`], pieces are written while the next ones are read.
//!
//! Invariants:
//! 1. At the end all pages are as of one commit, that of the last snapshot, and that commit is durable.
//! 2. Each copied page was checked against its own checksum and the one in the page map. A damaged page is not copied:
//!    the backup fails.
//! 3. The source is only read.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagekeeper_io::{AlignedBuf, BatchRead, IoFile};
use pagekeeper_policy::stream_pace::{StreamPace, TaskPacer};

use crate::changes::Noting;
use crate::core::Core;
use crate::destination::{Destination, Like, Writer};
use crate::format::page::{self, PageFault};
use crate::inspect::PIECE;
use crate::page::Page;
use crate::snapshots::Live;
use crate::{Error, PageNo, Seq};

/// Pieces that are read at once. Few, since the syncs of commits wait behind them; more gain nothing even on a fast
/// disk. One in tests, so that something can happen between pieces in small stores.
const AT_ONCE: usize = if cfg!(test) { 1 } else { 4 };
/// Maximum number of snapshots per backup. If they do not suffice, pages change faster than they are copied.
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
    /// The commit that the backup is as of.
    pub seq: Seq,
    /// Its pages, including free ones and pages that were never written.
    pub pages: u64,
    /// Bytes written to its data file.
    pub bytes: u64,
    /// Number of snapshots used. Each one after the first copied again the pages that had changed meanwhile.
    pub snapshots: u64,
    /// Time from the call to its end.
    pub took: Duration,
}

/// All pages are as of this snapshot.
struct Copied {
    live: Arc<Live>,
    /// Bytes written.
    bytes: u64,
    snapshots: u64,
}

/// Consecutive pages that were read and checked.
pub(crate) struct Piece {
    pub(crate) first: PageNo,
    /// The pages' bytes; zeros for a page that was never written.
    pub(crate) bytes: AlignedBuf,
    /// The checksum of each page; `None` if it was never written.
    pub(crate) crcs: Vec<Option<u32>>,
}

/// Pages still to be copied, as ranges of at most [`PIECE`] bytes.
type Left = VecDeque<Range<PageNo>>;

impl Core {
    pub(crate) fn backup(&self, to: &Path, pace: StreamPace) -> Result<Backup, Error> {
        let began = Instant::now();
        let io = &self.config.io;
        let store = self.config.store_id;
        let like = Like {
            store,
            page_size: self.config.page_size,
            max_journal_bytes: self.config.max_journal_bytes,
        };
        let destination = Destination::create(&self.config.options, io, to, like)?;
        let Copied { live, bytes, snapshots } = self.copy_to(&mut destination.writer(), pace)?;
        let (seq, meta) = (live.seq, (*live.meta).clone());
        let pages = meta.pages;
        destination.finish(seq, meta)?;
        let page_size = self.config.page_size;
        Ok(Backup { store, page_size, seq, pages, bytes, snapshots, took: began.elapsed() })
    }

    /// Copies all pages.
    fn copy_to(&self, writer: &mut Writer<'_>, pace: StreamPace) -> Result<Copied, Error> {
        let (noting, lsn) = Noting::begin(self);
        // Commits that are not recorded are visible to the snapshot then.
        self.make_durable(lsn)?;
        let source = self.open_data()?;
        let mut copy = Copy { core: self, source, writer, pace: CopyPace::new(pace) };
        let mut left = Left::new();
        let mut copied = 0;
        for snapshots in 1..=MAX_SNAPSHOTS {
            let live = self.snapshots.begin();
            self.add(&mut left, noting.upto(live.seq).into_iter().filter(|page| *page < copied));
            self.add(&mut left, copied..live.meta.pages);
            copied = live.meta.pages;
            let done = copy.copy(&live, &mut left);
            self.snapshots.end(&live);
            match done {
                Ok(()) => {
                    let bytes = copy.writer.end()?;
                    // The copy may have a commit that was seen before it was durable: make it durable too.
                    self.make_durable(self.last_lsn())?;
                    return Ok(Copied { live, bytes, snapshots });
                }
                Err(Error::SnapshotTooOld) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::SnapshotTooOld)
    }

    /// Adds pages, in ascending order.
    fn add(&self, left: &mut Left, pages: impl Iterator<Item = PageNo>) {
        let most = (PIECE / self.config.page_size) as u64;
        for page in pages {
            match left.back_mut() {
                Some(last) if last.end == page && last.end - last.start < most => last.end = page + 1,
                _ => left.push_back(page..page + 1),
            }
        }
    }
}

/// The pacers of a copy. Reads and writes have separate pacers, since their costs differ and they may go to different
/// disks.
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
        usize::try_from(bytes).map_or(AT_ONCE, |bytes| (bytes / PIECE).clamp(1, AT_ONCE))
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

struct Copy<'a, 'to> {
    core: &'a Core,
    source: Arc<dyn IoFile>,
    writer: &'a mut Writer<'to>,
    pace: CopyPace,
}

impl Copy<'_, '_> {
    /// Copies the remaining pages as the snapshot has them. On failure, pages not copied yet remain in `left`.
    fn copy(&mut self, live: &Live, left: &mut Left) -> Result<(), Error> {
        self.writer.begin(live.meta.pages, live.seq)?;
        while !left.is_empty() {
            let due = left.len().min(self.pace.pieces());
            self.copy_some(live, left.range(..due).cloned().collect())?;
            left.drain(..due);
        }
        Ok(())
    }

    fn copy_some(&mut self, live: &Live, due: Vec<Range<PageNo>>) -> Result<(), Error> {
        let page_size = self.core.config.page_size;
        let mut brought_in = self.core.bring_in(due.clone().into_iter().flatten(), live.seq);
        // Before the pages are read: a version that leaves the index later is newer than what is read.
        let newer: Vec<bool> = due.iter().cloned().flatten().map(|page| self.core.index.has(page)).collect();
        let mut pieces: Vec<_> =
            due.iter().map(|pages| AlignedBuf::new(pages.clone().count() * page_size)).collect();
        let mut got = vec![Ok(0); due.len()];
        let mut reads: Vec<_> = pieces
            .iter_mut()
            .zip(&due)
            .map(|(room, pages)| BatchRead {
                file: &*self.source,
                offset: pages.start * page_size as u64,
                bufs: vec![IoSliceMut::new(room)],
            })
            .collect();
        let bytes = reads.iter().flat_map(|read| &read.bufs).map(|buf| buf.len()).sum();
        self.pace.read(bytes, || {
            self.core.config.io.read_batch(&mut reads, &mut |index, result| got[index] = result);
        });
        drop(reads);
        let (mut read, mut newer) = (Vec::with_capacity(due.len()), newer.into_iter());
        for ((pages, mut bytes), got) in due.into_iter().zip(pieces).zip(got) {
            // If the read failed, none of its bytes count.
            let got = got.unwrap_or(0);
            let first = pages.start;
            let mut crcs = Vec::with_capacity(newer.len());
            for ((page, newer), (at, bytes)) in
                pages.zip(&mut newer).zip((0..).step_by(page_size).zip(bytes.chunks_mut(page_size)))
            {
                brought_in.reach(page);
                let is_read = at + page_size <= got && !newer;
                crcs.push(self.page(live, page, is_read, bytes)?);
            }
            read.push(Piece { first, bytes, crcs });
        }
        drop(brought_in);
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

    /// Turns `bytes` into those of the page as the snapshot has it. Returns its checksum, or `None` if it was never
    /// written.
    fn page(&self, live: &Live, page: PageNo, is_read: bool, bytes: &mut [u8]) -> Result<Option<u32>, Error> {
        let found = page::check(bytes, page, self.core.config.store_id);
        if is_read && self.core.map.check(page, &found).is_ok() {
            match found {
                Ok(header) if header.seq <= live.seq => return Ok(Some(header.crc)),
                Err(PageFault::NeverWritten) if self.core.is_blank(live, page) => return Ok(None),
                Ok(_) | Err(_) => {}
            }
        }
        // Not applied yet, being written, or damaged. The cache may have the page as it was before that.
        let found = if self.core.index.has(page) {
            self.core.page_of(live, page)?
        } else {
            self.core.page_read_again(live, page)?
        };
        let Some(found) = found.as_ref().map(Page::bytes) else {
            bytes.fill(0);
            return Ok(None);
        };
        bytes.copy_from_slice(found);
        Ok(Some(page::crc(found)))
    }
}
