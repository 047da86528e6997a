//! Background checkpoints: commits are written to the data file, and the journal before them may be
//! overwritten.
//!
//! ```text
//! start ─▶ journal durable ─▶ pages written, wide ─▶ data file synced ─▶ superblock durable ─▶ journal given up
//! ```
//!
//! Invariants:
//! 1. The commits that a checkpoint covers are fixed when it starts.
//! 2. A page is written only as of a commit that is durable in the journal.
//! 3. A version leaves the index only when it is durable in the data file: readers still find it if
//!    a failed sync has lost the page.
//! 4. The checkpoint LSN moves only after all pages up to it were written and synced. The journal
//!    is given up only as far as a durable superblock says so.
//!
//! A failure poisons the store, except for a full device: then the checkpoint is abandoned, and
//! retried at the next request.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pagekeeper_cache::InstallAs;
use pagekeeper_io::AlignedBuf;

use pagekeeper_kernel::mutex::lock;
use pagekeeper_text::escaped;

use crate::commit::TAIL_OVERHEAD;
use crate::core::{CheckpointStart, Core};
use crate::data::{PageRun, WritesInFlight};
use crate::depth::{self, WriteDepth};
use crate::format::page;
use crate::format::superblock::Superblock;
use crate::version::{PageVersion, VersionContent, WholePage};
use crate::{Error, PageNo, Progress, Seq};

/// Maximum bytes of one write.
const MAX_WRITE_BYTES: usize = 256 << 10;
/// Runs that are submitted together.
const RUNS_AT_ONCE: usize = 16;
/// Pages whose base pages are prefetched together.
const PREFETCH_PAGES: usize = 1024;
/// Maximum distance between pages that are still read as one range.
const RANGE_GAP_PAGES: u64 = 4;
/// Interval between two reports.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// The reason why a checkpoint ended early.
enum CheckpointAbort {
    /// The store is being closed.
    Interrupted,
    Failed(Error),
}

impl From<Error> for CheckpointAbort {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Core {
    /// Runs one checkpoint. Returns false if there was nothing to do. At most one runs at a time.
    pub(crate) fn run_checkpoint(&self) -> Result<bool, Error> {
        let done = self.next_checkpoint();
        if !self.config.options.threads {
            self.hand_over_reports();
        }
        done
    }

    fn next_checkpoint(&self) -> Result<bool, Error> {
        let _guard = lock(&self.checkpoints.under_way);
        self.check_writable()?;
        if self.is_checkpointed() && self.bytes_to_recover() > TAIL_OVERHEAD {
            self.mark_end()?;
        }
        let start = self.start_checkpoint();
        let is_due = start.lsn > self.checkpoints.lsn();
        let mut done = if is_due { self.checkpoint_to(&start) } else { Ok(()) };
        if let Err(CheckpointAbort::Failed(error)) = &done
            && error.is_no_space()
            && self.give_up_version_file()
        {
            done = self.checkpoint_to(&start);
        }
        self.snapshots.set_checkpoint(None);
        if let Err(halt) = done {
            return self.failed(halt);
        }
        self.bound_what_is_kept();
        self.checkpoints.notify_done();
        Ok(is_due)
    }

    /// Drops versions that nobody needs, and moves those of old snapshots to disk before commits
    /// have to wait for memory. Ends the oldest snapshots if that fails, or the limit is reached.
    fn bound_what_is_kept(&self) {
        let max = self.config.max_unapplied_bytes / 2;
        loop {
            let kept = self.index.prune_all(&self.snapshots.needed());
            if kept <= max {
                break;
            }
            let is_moved = self.move_old_versions(kept - max / 2).unwrap_or_else(|error| {
                tracing::warn!(store = %escaped(&self.config.directory), "an old snapshot ends: {error}");
                false
            });
            if !is_moved && !self.snapshots.end_oldest() {
                break;
            }
        }
        self.drop_unused_version_file();
    }

    /// Runs checkpoints until the data file has all earlier commits.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let seq = lock(&self.tail).seq;
        while self.checkpoints.seq() < seq {
            self.run_checkpoint()?;
        }
        Ok(())
    }

    fn failed(&self, halt: CheckpointAbort) -> Result<bool, Error> {
        let CheckpointAbort::Failed(error) = halt else { return Ok(false) };
        // Damaged pages can be rewritten.
        if !error.is_no_space() && !matches!(error, Error::Damaged { .. }) {
            return Err(self.poison(error));
        }
        lock(&self.checkpoints.request).blocked_by = Some(error.clone());
        self.checkpoints.done.notify_all();
        Err(error)
    }

    fn checkpoint_to(&self, start: &CheckpointStart) -> Result<(), CheckpointAbort> {
        if !injected!(self.config.options, PageBeforeJournal) {
            self.make_durable(start.lsn)?;
        }
        if injected!(self.config.options, SuperblockFirst) {
            self.publish(start)?;
        }
        self.apply(start.seq)?;
        if injected!(self.config.options, PageBeforeJournal) {
            self.make_durable(start.lsn)?;
        }
        if injected!(self.config.options, FullPagesFromTheEnd) {
            lock(&self.tail).logged_since_checkpoint.clear();
        }
        debug_assert!(self.journal.durable_lsn() >= start.lsn, "a checkpoint of what is not durable");
        debug_assert!(self.index.unapplied(start.seq).is_empty(), "a checkpoint of what is not applied");
        let depth = WriteDepth::of(self.config.options.disk.as_ref(), false);
        self.map.flush(start.meta.pages, start.seq, depth)?;
        // All files share a disk's cache. A journal sync that failed meanwhile may have lost
        // data-file writes, and the data file's own sync then had no error left to report. So wait
        // for journal syncs in progress.
        self.make_durable(self.journal.end())?;
        self.publish(start)?;
        self.journal.checkpoint(start.lsn).map_err(Error::from)?;
        self.checkpoints.advance(start);
        Ok(())
    }

    /// Makes durable in the superblock that the data file has all commits up to the start.
    fn publish(&self, start: &CheckpointStart) -> Result<(), Error> {
        let mut superblocks = lock(&self.superblocks);
        let superblock = Superblock {
            checkpoint_seq: start.seq,
            checkpoint_lsn: start.lsn,
            meta: (*start.meta).clone(),
            ..superblocks.newest().clone()
        };
        superblocks.write(superblock)
    }

    /// Writes all pages as of `seq`, in page order. Pages that an opening left in the journal are
    /// read in as many batches as memory requires.
    fn apply(&self, seq: Seq) -> Result<(), CheckpointAbort> {
        if self.data.needs_atomic && !self.data.use_atomic()? {
            return Err(Error::NotAtomic { path: self.config.directory.clone() }.into());
        }
        let pages = self.index.unapplied(seq);
        let recovering = self.checkpoints.seq() < self.config.recovered_seq;
        let depth = WriteDepth::of(self.config.options.disk.as_ref(), recovering);
        let mut report = ProgressReport::new(self, pages.len(), recovering);
        let mut writes = WritesInFlight::new(&self.data, depth);
        let mut written = WrittenPages::default();
        let mut runs = Vec::new();
        let mut run: Option<RunBuilder> = None;
        let mut damaged = None;
        let max_pages =
            if self.data.is_atomic() { 1 } else { (self.max_write_bytes() / self.config.page_size).max(1) };
        for pages in self.batches(pages, seq) {
            let mut brought_in = self.load_places(pages.iter().copied(), seq);
            for (at, page) in pages.iter().enumerate() {
                if at % PREFETCH_PAGES == 0 {
                    self.prefetch_bases(&pages[at..pages.len().min(at + PREFETCH_PAGES)], seq);
                }
                brought_in.reach(*page);
                let (whole, of) = match self.to_apply(*page, seq) {
                    Ok(Some(found)) => found,
                    Ok(None) => continue,
                    // The other pages are written, but the checkpoint does not count.
                    Err(error @ Error::Damaged { .. }) => {
                        damaged.get_or_insert(error);
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                if run.as_ref().is_some_and(|run| run.end() != *page || run.seqs.len() == max_pages) {
                    runs.extend(run.take().map(|run| run.close(self.config.page_size)));
                }
                if runs.len() == RUNS_AT_ONCE {
                    if self.stopping() {
                        return Err(CheckpointAbort::Interrupted);
                    }
                    self.start_writes(&writes, std::mem::take(&mut runs))?;
                    written.take(&mut writes, self);
                    // Pages that wait for the sync take up memory.
                    if written.bytes >= self.config.max_unapplied_bytes / 4 {
                        writes.wait(0);
                        written.take(&mut writes, self);
                        writes.check()?;
                        report.applied(self.sync_written(&mut written)?);
                    }
                }
                run.get_or_insert_with(|| RunBuilder::at(*page)).push(whole, of);
            }
        }
        runs.extend(run.map(|run| run.close(self.config.page_size)));
        self.start_writes(&writes, runs)?;
        writes.wait(0);
        written.take(&mut writes, self);
        writes.check()?;
        report.applied(self.sync_written(&mut written)?);
        damaged.map_or(Ok(()), |error| Err(CheckpointAbort::Failed(error)))
    }

    /// Returns the maximum bytes of one write, so that all writes in flight take at most 1/8 of the
    /// budget.
    fn max_write_bytes(&self) -> usize {
        let share = self.config.options.memory / 8 / depth::DEPTH_MAX as u64;
        usize::try_from(share).unwrap_or(MAX_WRITE_BYTES).min(MAX_WRITE_BYTES)
    }

    fn stopping(&self) -> bool {
        self.checkpoints.stopping.load(Ordering::Relaxed)
    }

    /// Prefetches, with wide reads, the pages of the data file that are needed to rebuild others. A
    /// failure is reported where the page is used.
    fn prefetch_bases(&self, pages: &[PageNo], seq: Seq) {
        let oldest = self.snapshots.oldest();
        let mut wanted: Option<std::ops::Range<PageNo>> = None;
        for page in pages {
            let replay = self.index.get(*page, seq).is_some_and(
                |version| matches!(&version.content, VersionContent::Replay(replay) if replay.needs_base()),
            );
            if !replay && !self.index.base_is_needed(*page, oldest) {
                continue;
            }
            match &mut wanted {
                Some(range) if *page < range.end + RANGE_GAP_PAGES => range.end = *page + 1,
                _ => {
                    self.prefetch(wanted.take());
                    wanted = Some(*page..*page + 1);
                }
            }
        }
        self.prefetch(wanted);
    }

    fn prefetch(&self, pages: Option<std::ops::Range<PageNo>>) {
        if let Some(pages) = pages {
            let bytes = self.config.page_size as u64;
            self.cached.prefetch(pages.start.offset(bytes)..pages.end.offset(bytes));
        }
    }

    /// Returns the page as it is to be written, and its seq; `None` if it was applied meanwhile.
    /// Keeps versions that older snapshots need.
    fn to_apply(&self, page: PageNo, seq: Seq) -> Result<Option<(WholePage, Seq)>, Error> {
        let in_file = || {
            let found = self.page_in_file(page)?;
            Ok::<_, Error>(found.map(|(base, of)| (VersionContent::Whole(self.copied(&base)), of)))
        };
        // If it cannot be read, it is about to be rewritten anyway: only snapshots that would still
        // read it have to end.
        while self.index.keep_base(page, self.snapshots.oldest(), in_file).is_err()
            && self.snapshots.end_oldest()
        {}
        let Some(version) = self.index.get(page, seq).filter(|version| !version.applied) else {
            return Ok(None);
        };
        let of = version.seq;
        // Older versions that are kept cannot be rebuilt once the page is overwritten and the
        // journal given up.
        for older in self.index.replays_before(page, of) {
            self.settle_older(page, &older, of);
        }
        if injected!(self.config.options, SkippedByPage)
            && self.page_in_file(page)?.is_some_and(|(_, in_file)| in_file >= of)
        {
            self.index.applied(page, of, &self.snapshots.needed());
            return Ok(None);
        }
        Ok(Some((self.settled(page, version)?, of)))
    }

    /// Rebuilds versions older than `newer`, which only snapshots need. A damaged page stays
    /// damaged for its readers. If a page cannot be read, the snapshots that need it are ended.
    fn settle_older(&self, page: PageNo, older: &PageVersion, newer: Seq) {
        let is_in_file = matches!(older.content, VersionContent::InFile);
        match self.settled(page, older.clone()) {
            Ok(_) => {}
            Err(Error::Damaged { .. }) if !is_in_file => {}
            // Snapshots that cannot be ended are over by now: the visible commit is as new as the
            // applied one.
            Err(_) => while self.snapshots.oldest() < newer && self.snapshots.end_oldest() {},
        }
    }

    fn start_writes(&self, writes: &WritesInFlight<'_>, runs: Vec<PageRun>) -> Result<(), Error> {
        for run in &runs {
            // Until the sync, a reader may find either these pages or the previous ones.
            let crcs = run.bytes.chunks(self.config.page_size).map(page::crc);
            self.map.accept(run.first.onward().zip(crcs));
        }
        writes.start(runs)
    }

    /// Makes the written pages durable, and moves them from the index to the cache. Returns their
    /// number.
    fn sync_written(&self, written: &mut WrittenPages) -> Result<usize, Error> {
        if injected!(self.config.options, AppliedBeforeSync) {
            self.release_written(&written.pages)?;
        }
        if !injected!(self.config.options, NoSyncOfData) {
            self.data.sync()?;
        }
        let WrittenPages { pages, .. } = std::mem::take(written);
        self.release_written(&pages)?;
        // Commits that wait for room need not wait for the checkpoint's end.
        if !pages.is_empty() {
            self.checkpoints.notify_done();
        }
        Ok(pages.len())
    }

    fn release_written(&self, pages: &[(PageNo, Seq)]) -> Result<(), Error> {
        let crc = |(page, seq): &(PageNo, Seq)| {
            let version = self.index.get(*page, *seq)?;
            if let VersionContent::Whole(whole) = version.content { Some((*page, whole.crc())) } else { None }
        };
        self.map.set(pages.iter().filter_map(crc).collect())?;
        let needed = self.snapshots.needed();
        for (page, seq) in pages {
            // If the cache has no room for it, it is loaded when it is read.
            match self.index.get(*page, *seq).map(|version| version.content) {
                Some(VersionContent::Whole(whole)) => {
                    let _ = self.cached.install(*page, whole.bytes(), InstallAs::Prefetched);
                }
                _ => self.cached.discard(*page),
            }
            self.index.applied(*page, *seq, &needed);
        }
        Ok(())
    }
}

/// Pages that were written but not synced yet.
#[derive(Default)]
struct WrittenPages {
    pages: Vec<(PageNo, Seq)>,
    bytes: u64,
}

impl WrittenPages {
    /// Takes the runs whose writes have ended.
    fn take(&mut self, writes: &mut WritesInFlight<'_>, core: &Core) {
        while let Some(run) = writes.next_done() {
            self.bytes += (run.seqs.len() * core.config.page_size) as u64;
            self.pages.extend(run.first.onward().zip(run.seqs));
        }
    }
}

/// Consecutive pages, while they are collected.
struct RunBuilder {
    first: PageNo,
    pages: Vec<WholePage>,
    seqs: Vec<Seq>,
}

impl RunBuilder {
    fn at(first: PageNo) -> Self {
        Self { first, pages: Vec::new(), seqs: Vec::new() }
    }

    fn end(&self) -> PageNo {
        self.first + self.pages.len() as u64
    }

    fn push(&mut self, whole: WholePage, seq: Seq) {
        self.pages.push(whole);
        self.seqs.push(seq);
    }

    fn close(self, page_size: usize) -> PageRun {
        let mut bytes = AlignedBuf::new(self.pages.len() * page_size);
        for (room, page) in bytes.chunks_mut(page_size).zip(&self.pages) {
            room.copy_from_slice(page.bytes());
        }
        PageRun { first: self.first, seqs: self.seqs, bytes }
    }
}

/// Reports the progress of the first checkpoint after an opening.
struct ProgressReport<'a> {
    core: &'a Core,
    total: u64,
    left: u64,
    began: Instant,
    reported: Instant,
    is_due: bool,
}

impl<'a> ProgressReport<'a> {
    fn new(core: &'a Core, pages: usize, is_due: bool) -> Self {
        let now = Instant::now();
        Self {
            core,
            total: pages as u64,
            left: pages as u64,
            began: now,
            reported: now,
            is_due: is_due && pages > 0,
        }
    }

    fn applied(&mut self, pages: usize) {
        self.left -= pages as u64;
        if !self.is_due || (self.left > 0 && self.reported.elapsed() < REPORT_INTERVAL) {
            return;
        }
        self.reported = Instant::now();
        let progress = Progress::new(self.left, self.total, self.began.elapsed());
        tracing::info!(store = %escaped(&self.core.config.directory), "{progress}");
        if self.core.config.options.on_progress.is_some() {
            self.core.reports.add(progress);
        }
    }
}
