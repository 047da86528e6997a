//! A round of the background: what was committed goes to the data file, and the journal before it may be written over.
//!
//! ```text
//! cut ─▶ journal durable ─▶ pages written, wide ─▶ data file synced ─▶ superblock durable ─▶ journal given up
//! ```
//!
//! Invariants:
//! 1. What a round covers is fixed before it begins.
//! 2. A page is written only as a commit left it that is durable in the journal.
//! 3. The synced LSN moves only after all pages up to it were written and the sync of that succeeded; the journal is given up
//!    only as far as a superblock says that is durable.
//!
//! A failure poisons the store, but for a full device: then the round is given up, and tried anew when somebody asks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pagekeeper_cache::InstallAs;
use pagekeeper_io::AlignedBuf;

use crate::commit::PADS;
use crate::core::{Core, Cut, lock};
use crate::data::{Flights, Run};
use crate::depth::{self, Depth};
use crate::format::superblock::Superblock;
use crate::page::Page;
use crate::version::{Content, Whole};
use crate::{Error, PageNo, Progress, Seq};

/// Bytes of one write at most.
const MOST_WRITE: usize = 256 << 10;
/// Runs that go to the disk together.
const TOGETHER: usize = 16;
/// Pages whose bases are brought in together.
const AHEAD: usize = 1024;
/// Pages apart that are still read as one.
const NEAR: u64 = 4;
/// Between two reports.
const REPORT: Duration = Duration::from_millis(200);

/// Why a round ended early.
enum Halt {
    /// The store is being closed.
    Interrupted,
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Core {
    /// One round; false if there was nothing to do. At most one at a time.
    pub(crate) fn run_round(&self) -> Result<bool, Error> {
        let _turn = lock(&self.round);
        self.check()?;
        if self.is_synced() && self.unsynced() > PADS {
            self.mark_end()?;
        }
        let cut = self.cut();
        let is_due = cut.lsn > self.synced_lsn.load(Ordering::Acquire);
        let done = if is_due { self.round_to(&cut) } else { Ok(()) };
        self.snapshots.set_cut(None);
        if let Err(halt) = done {
            return self.failed(halt);
        }
        self.bound_what_is_kept();
        drop(lock(&self.wishes));
        self.rounded.notify_all();
        Ok(is_due)
    }

    /// Lets versions go that nobody needs, and ends the oldest snapshots where commits would come to wait for them.
    fn bound_what_is_kept(&self) {
        let mut kept = self.index.prune_all(&self.snapshots.needed());
        while kept > self.most_unapplied / 2 && self.snapshots.end_oldest() {
            kept = self.index.prune_all(&self.snapshots.needed());
        }
    }

    /// Rounds until all that was committed before is synced.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let seq = lock(&self.tail).seq;
        while self.synced_seq.load(Ordering::Acquire) < seq {
            self.run_round()?;
        }
        Ok(())
    }

    fn failed(&self, halt: Halt) -> Result<bool, Error> {
        let Halt::Failed(error) = halt else { return Ok(false) };
        // What is damaged can be written anew.
        if !error.is_no_space() && !matches!(error, Error::Damaged { .. }) {
            return Err(self.poison(error));
        }
        lock(&self.wishes).stuck = Some(error.clone());
        self.rounded.notify_all();
        Err(error)
    }

    fn round_to(&self, cut: &Cut) -> Result<(), Halt> {
        if !planted!(self.options, PageBeforeJournal) {
            self.make_durable(cut.lsn)?;
        }
        if planted!(self.options, SuperblockFirst) {
            self.publish(cut)?;
        }
        self.apply(cut.seq)?;
        if !planted!(self.options, NoSyncOfData) {
            self.data.sync()?;
        }
        if planted!(self.options, PageBeforeJournal) {
            self.make_durable(cut.lsn)?;
        }
        if planted!(self.options, ImagesFromTheEnd) {
            lock(&self.tail).imaged.clear();
        }
        self.publish(cut)?;
        self.journal.checkpoint(cut.lsn).map_err(Error::from)?;
        self.synced_seq.store(cut.seq, Ordering::Release);
        self.synced_lsn.store(cut.lsn, Ordering::Release);
        Ok(())
    }

    /// Says durably that the data file has all up to the cut.
    fn publish(&self, cut: &Cut) -> Result<(), Error> {
        let mut superblocks = lock(&self.superblocks);
        let superblock = Superblock {
            synced_seq: cut.seq,
            synced_lsn: cut.lsn,
            meta: (*cut.meta).clone(),
            ..superblocks.newest().clone()
        };
        superblocks.write(superblock)
    }

    /// Writes all pages as they were at `seq`, in page order.
    fn apply(&self, seq: Seq) -> Result<(), Halt> {
        let pages = self.index.unapplied(seq);
        let recovering = self.synced_seq.load(Ordering::Acquire) < self.recovered_seq;
        let depth = Depth::of(self.options.disk.as_ref(), recovering);
        let mut report = Report::new(self, pages.len(), recovering);
        let mut flights = Flights::new(&self.data, depth);
        let mut runs = Vec::new();
        let mut run: Option<Building> = None;
        let mut damaged = None;
        let most = if self.data.atomic { 1 } else { (self.most_write() / self.page_size).max(1) };
        for (at, page) in pages.iter().enumerate() {
            if at % AHEAD == 0 {
                self.bring_bases(&pages[at..pages.len().min(at + AHEAD)], seq);
            }
            let (whole, of) = match self.to_apply(*page, seq) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                // The others go on; the round does not count.
                Err(error @ Error::Damaged { .. }) => {
                    damaged.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            if run.as_ref().is_some_and(|run| run.end() != *page || run.seqs.len() == most) {
                runs.extend(run.take().map(|run| run.close(self.page_size)));
            }
            if runs.len() == TOGETHER {
                if self.stopping() {
                    return Err(Halt::Interrupted);
                }
                flights.start(std::mem::take(&mut runs))?;
                report.applied(self.land(&mut flights));
            }
            run.get_or_insert_with(|| Building::at(*page)).push(whole, of);
        }
        runs.extend(run.map(|run| run.close(self.page_size)));
        flights.start(runs)?;
        flights.wait(0);
        report.applied(self.land(&mut flights));
        flights.check()?;
        damaged.map_or(Ok(()), |error| Err(Halt::Failed(error)))
    }

    /// Bytes of one write: all that can be in flight are an eighth part of the budget.
    fn most_write(&self) -> usize {
        let share = self.options.memory / 8 / depth::MOST as u64;
        usize::try_from(share).unwrap_or(MOST_WRITE).min(MOST_WRITE)
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Has pages of the data file brought into the cache, wide, that are needed to put others together. A failure is told where
    /// the page is used.
    fn bring_bases(&self, pages: &[PageNo], seq: Seq) {
        let oldest = self.snapshots.oldest();
        let mut wanted: Option<std::ops::Range<u64>> = None;
        for page in pages {
            let replay = self.index.get(*page, seq).is_some_and(
                |version| matches!(&version.content, Content::Replay(replay) if replay.needs_base()),
            );
            if !replay && !self.index.base_is_needed(*page, oldest) {
                continue;
            }
            match &mut wanted {
                Some(range) if *page < range.end + NEAR => range.end = page + 1,
                _ => {
                    self.bring(wanted.take());
                    wanted = Some(*page..page + 1);
                }
            }
        }
        self.bring(wanted);
    }

    fn bring(&self, pages: Option<std::ops::Range<u64>>) {
        if let Some(pages) = pages {
            let bytes = self.page_size as u64;
            self.cached.prefetch(pages.start * bytes..pages.end * bytes);
        }
    }

    /// The page as it is to be written, and its seq; `None` if it was applied meanwhile. What older snapshots need is kept.
    fn to_apply(&self, page: PageNo, seq: Seq) -> Result<Option<(Whole, Seq)>, Error> {
        let in_file = || {
            let found = self.page_in_file(page)?;
            Ok::<_, Error>(found.map(|(base, of)| (Content::Whole(owned(self, &base)), of)))
        };
        // Where it can't be read it is about to be written anew: only those have to go who would still read it.
        while self.index.keep_base(page, self.snapshots.oldest(), in_file).is_err()
            && self.snapshots.end_oldest()
        {}
        let Some(version) = self.index.get(page, seq).filter(|version| !version.applied) else {
            return Ok(None);
        };
        let of = version.seq;
        // Older ones that are kept can't be put together any more once it is written over. One that can't be now is damaged, and
        // stays so for those who read it.
        for older in self.index.replays_before(page, of) {
            let _ = self.whole(page, older);
        }
        if planted!(self.options, SkippedByPage)
            && self.page_in_file(page)?.is_some_and(|(_, in_file)| in_file >= of)
        {
            self.index.applied(page, of, &self.snapshots.needed());
            return Ok(None);
        }
        Ok(Some((self.whole(page, version)?, of)))
    }

    /// Takes note of what was written: it is in the cache and no longer in the index. Gives the number of pages.
    fn land(&self, flights: &mut Flights<'_>) -> usize {
        let mut pages = 0;
        let needed = self.snapshots.needed();
        while let Some(run) = flights.next_done() {
            for ((page, seq), bytes) in (run.first..).zip(&run.seqs).zip(run.bytes.chunks(self.page_size)) {
                // Where it can't be had it is loaded when it is read.
                let _ = self.cached.install(page, bytes, InstallAs::Prefetched);
                self.index.applied(page, *seq, &needed);
                pages += 1;
            }
        }
        // Those who wait for room need not wait for the round's end; but not to come one by one.
        if pages > 0 && self.index.bytes() <= self.most_unapplied / 8 * 7 {
            drop(lock(&self.wishes));
            self.rounded.notify_all();
        }
        pages
    }
}

/// A copy of a page that outlives its frame.
fn owned(core: &Core, page: &Page) -> Whole {
    Whole::new(page.kind(), core.buffers.copy(page.bytes()))
}

/// Pages in a row, as they are gathered.
struct Building {
    first: PageNo,
    pages: Vec<Whole>,
    seqs: Vec<Seq>,
}

impl Building {
    fn at(first: PageNo) -> Self {
        Self { first, pages: Vec::new(), seqs: Vec::new() }
    }

    fn end(&self) -> PageNo {
        self.first + self.pages.len() as u64
    }

    fn push(&mut self, whole: Whole, seq: Seq) {
        self.pages.push(whole);
        self.seqs.push(seq);
    }

    fn close(self, page_size: usize) -> Run {
        let mut bytes = AlignedBuf::new(self.pages.len() * page_size);
        for (room, page) in bytes.chunks_mut(page_size).zip(&self.pages) {
            room.copy_from_slice(page.bytes());
        }
        Run { first: self.first, seqs: self.seqs, bytes }
    }
}

/// Tells how the first round after an opening gets on.
struct Report<'a> {
    core: &'a Core,
    total: u64,
    left: u64,
    began: Instant,
    told: Instant,
    is_due: bool,
}

impl<'a> Report<'a> {
    fn new(core: &'a Core, pages: usize, is_due: bool) -> Self {
        let now = Instant::now();
        Self {
            core,
            total: pages as u64,
            left: pages as u64,
            began: now,
            told: now,
            is_due: is_due && pages > 0,
        }
    }

    fn applied(&mut self, pages: usize) {
        self.left -= pages as u64;
        if !self.is_due || (self.left > 0 && self.told.elapsed() < REPORT) {
            return;
        }
        self.told = Instant::now();
        let progress = Progress::new(self.left, self.total, self.began.elapsed());
        tracing::info!(store = %self.core.directory.display(), "{progress}");
        if let Some(told) = &self.core.options.on_progress {
            // Its panic is reported by the panic hook, and must not end the thread that commits depend on.
            let _ = catch_unwind(AssertUnwindSafe(|| told(&progress)));
        }
    }
}
