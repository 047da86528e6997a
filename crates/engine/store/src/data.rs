//! The data file, and the page map's file: growing them, and writing pages in wide writes.
//!
//! Invariants: the file has durable room for all pages that a commit may name before that commit.
//! Writes are of whole pages, and bypass the page cache where possible. A failed write or sync is
//! final, except for a full device: the kernel reports a failure once, so of two syncs at a time
//! the second cannot be trusted.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};

use pagekeeper_io::{
    AlignedBuf, AtomicWrites, Create, Error as IoError, Io, IoFile, OwnedWrite, WriteMode, open_past_cache,
    open_writable_past_cache,
};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

use crate::depth::WriteDepth;
use crate::error::lacks_space;
pub(crate) use crate::format::superblock::MAX_PAGES;
use crate::{Error, PageNo, Seq};

/// The data file's name.
pub(crate) const DATA_NAME: &str = "data";

/// The bounds in bytes of one growth step, which is 1/8 of the file.
const GROWTH_BYTES: Range<u64> = 256 << 10..64 << 20;

/// The access to a file of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileUse {
    /// It exists, and is only read.
    Read,
    /// It exists, and is written.
    Write,
    /// It is created.
    Make,
}

/// Opens a file of the store, past the page cache where possible.
pub(crate) fn open_file(io: &dyn Io, path: &Path, use_of: FileUse) -> Result<Arc<dyn IoFile>, IoError> {
    match use_of {
        FileUse::Read => open_past_cache(io, path),
        FileUse::Write => open_writable_past_cache(io, path, Create::Never),
        FileUse::Make => open_writable_past_cache(io, path, Create::New),
    }
}

/// The open file; writable, unless the store is open read-only.
pub(crate) struct DataFile {
    pub(crate) file: Arc<dyn IoFile>,
    io: Arc<dyn Io>,
    page_size: u64,
    /// Whether each page is written by a write of its own that a crash leaves complete or undone.
    /// Set once this was tested, for a store that may use it.
    atomic: OnceLock<bool>,
    /// Whether the journal has changes that only atomic writes can apply.
    pub(crate) needs_atomic: bool,
    /// Its length in bytes.
    len: AtomicU64,
    /// The length in bytes that is known to be durable.
    durable: AtomicU64,
    /// Held while the file grows, until that is durable. Has the first sync that failed.
    growing: Mutex<Option<Error>>,
    #[cfg(test)]
    pub(crate) injected_fault: Option<crate::injected_fault::InjectedFault>,
}

impl DataFile {
    pub(crate) fn open(
        io: &Arc<dyn Io>,
        directory: &Path,
        name: &str,
        use_of: FileUse,
        page_size: usize,
    ) -> Result<Self, Error> {
        let file = open_file(&**io, &directory.join(name), use_of)?;
        let len = AtomicU64::new(file.stat()?.size);
        Ok(Self {
            file,
            io: Arc::clone(io),
            page_size: page_size as u64,
            atomic: OnceLock::new(),
            needs_atomic: false,
            len,
            durable: AtomicU64::new(0),
            growing: Mutex::new(None),
            #[cfg(test)]
            injected_fault: None,
        })
    }

    /// Tests whether a page can be written so that a crash leaves it either as before or as after.
    /// The test writes, and fails where there is no room for that.
    pub(crate) fn probe_atomic(&self) -> Result<bool, Error> {
        Ok(AtomicWrites::try_probe(&*self.file, self.page_size)? == AtomicWrites::InPlace)
    }

    /// Like [`probe_atomic`](Self::probe_atomic); pages are written atomically from now on.
    pub(crate) fn use_atomic(&self) -> Result<bool, Error> {
        match self.atomic.get() {
            Some(is_atomic) => Ok(*is_atomic),
            None => self.probe_atomic().map(|is_atomic| *self.atomic.get_or_init(|| is_atomic)),
        }
    }

    /// Whether pages are written atomically.
    pub(crate) fn is_atomic(&self) -> bool {
        self.atomic.get().is_some_and(|is_atomic| *is_atomic)
    }

    /// Returns the number of pages that it has room for.
    pub(crate) fn pages(&self) -> u64 {
        self.len.load(Ordering::Acquire) / self.page_size
    }

    /// Whether it has room for this page.
    #[inline]
    pub(crate) fn has(&self, page: PageNo) -> bool {
        page.get() < MAX_PAGES && (page + 1).offset(self.page_size) <= self.len.load(Ordering::Acquire)
    }

    /// Records that a commit or superblock durably says the file has this length. A kill may have
    /// left more behind it.
    pub(crate) fn is_durable_upto(&self, bytes: u64) {
        self.durable.fetch_max(bytes, Ordering::AcqRel);
    }

    /// Returns its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Ensures durable room for this many pages. If `sparse`, the device allocates it as pages are
    /// written.
    pub(crate) fn grow(&self, pages: u64, sparse: bool) -> Result<(), Error> {
        let mut failed = lock(&self.growing);
        let needed = pages.saturating_mul(self.page_size);
        if needed <= self.durable.load(Ordering::Acquire) {
            return Ok(());
        }
        let len = self.len.load(Ordering::Acquire);
        if needed > len {
            self.extend(len, needed, sparse)?;
        }
        if let Err(error) = self.file.sync_all() {
            return Err(failed.get_or_insert(error.into()).clone());
        }
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        self.is_durable_upto(self.len.load(Ordering::Acquire));
        Ok(())
    }

    /// Shortens the file to its previous length, if nothing valid is behind that. Space that cannot
    /// be given back stays.
    pub(crate) fn shrink(&self, bytes: u64) {
        let failed = lock(&self.growing);
        if failed.is_none() && self.len.load(Ordering::Acquire) > bytes && self.file.set_len(bytes).is_ok() {
            self.len.store(bytes, Ordering::Release);
            self.durable.fetch_min(bytes, Ordering::AcqRel);
        }
    }

    /// Durably shortens the file to at most this many pages. Returns how many bytes were cut.
    /// Nothing valid may be behind them, and nobody may grow the file meanwhile.
    pub(crate) fn cut(&self, pages: u64) -> Result<u64, Error> {
        let mut failed = lock(&self.growing);
        // The actual length: a recovery may have written pages that are cut now.
        let (len, wanted) = (self.file.stat()?.size, pages.saturating_mul(self.page_size));
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        // If it is that short already, the process that cut it may have been killed before that was
        // durable.
        if len > wanted {
            self.file.set_len(wanted)?;
        }
        self.len.fetch_min(wanted, Ordering::AcqRel);
        self.durable.fetch_min(wanted, Ordering::AcqRel);
        match self.file.sync_all() {
            Ok(()) => Ok(len.saturating_sub(wanted)),
            Err(error) => Err(failed.get_or_insert(error.into()).clone()),
        }
    }

    /// Returns the byte range of pages.
    fn bytes_of(&self, pages: &Range<PageNo>) -> Range<u64> {
        pages.start.offset(self.page_size)..pages.end.offset(self.page_size)
    }

    /// Gives the space of pages back to the file system; they read as zeros then. Durable after
    /// [`Self::sync_all`].
    pub(crate) fn punch(&self, pages: &Range<PageNo>) -> Result<(), Error> {
        Ok(self.file.punch(self.bytes_of(pages))?)
    }

    /// Like [`Self::sync`], and also makes the file's allocation durable.
    pub(crate) fn sync_all(&self) -> Result<(), Error> {
        let mut failed = lock(&self.growing);
        if let Err(error) = self.file.sync_all() {
            failed.get_or_insert(error.into());
        }
        failed.clone().map_or(Ok(()), Err)
    }

    /// Allocates space for a page that may have none. File systems without such a call allocate it
    /// when the page is written.
    pub(crate) fn make_room(&self, page: PageNo) -> Result<(), Error> {
        match self.file.allocate(self.bytes_of(&(page..page + 1))) {
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => Ok(()),
            made => Ok(made?),
        }
    }

    /// Extends it beyond `len`.
    fn extend(&self, len: u64, needed: u64, sparse: bool) -> Result<(), Error> {
        let step = (len / 8).clamp(GROWTH_BYTES.start, GROWTH_BYTES.end).next_multiple_of(self.page_size);
        let end = if sparse { needed } else { needed.max(len.saturating_add(step)) };
        let grown = if sparse { self.file.set_len(end) } else { self.file.allocate(len..end) };
        match grown {
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => self.file.set_len(end)?,
            grown => grown?,
        }
        self.len.store(end, Ordering::Release);
        Ok(())
    }

    /// Makes all writes durable.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let synced = self.file.sync_data();
        if injected!(self, SyncTriedAgain) && synced.is_err() {
            return Ok(self.file.sync_data()?);
        }
        // A sync that failed while the file grew may have been the report for these writes.
        let mut failed = lock(&self.growing);
        if let Err(error) = synced {
            failed.get_or_insert(error.into());
        }
        failed.clone().map_or(Ok(()), Err)
    }
}

/// Consecutive pages on their way to the data file.
pub(crate) struct PageRun {
    pub(crate) first: PageNo,
    /// The seq of each page as it is written.
    pub(crate) seqs: Vec<Seq>,
    pub(crate) bytes: AlignedBuf,
}

#[derive(Default)]
struct WriteState {
    in_flight: usize,
    done: VecDeque<PageRun>,
    failed: Option<IoError>,
}

impl WriteState {
    /// Keeps the first error, but one for lack of space gives way to any other, which is worse.
    fn fail(&mut self, error: IoError) {
        if self.failed.as_ref().is_none_or(|failed| lacks_space(failed.errno())) {
            self.failed = Some(error);
        }
    }
}

/// Writes in flight. Waits for all of them when dropped, also after an error.
pub(crate) struct WritesInFlight<'a> {
    data: &'a DataFile,
    state: Arc<(Mutex<WriteState>, Condvar)>,
    depth: WriteDepth,
}

impl<'a> WritesInFlight<'a> {
    /// Creates it with at most as many writes in flight as `depth` says.
    pub(crate) fn new(data: &'a DataFile, depth: WriteDepth) -> Self {
        Self { data, state: Arc::default(), depth }
    }

    /// Starts writes. Waits first while too many are in flight.
    pub(crate) fn start(&self, runs: Vec<PageRun>) -> Result<(), Error> {
        self.wait(self.depth.now().saturating_sub(runs.len()));
        let (mutex, _) = &*self.state;
        {
            let mut state = lock(mutex);
            if let Some(error) = &state.failed {
                return Err(error.clone().into());
            }
            state.in_flight += runs.len();
        }
        let writes = runs.into_iter().map(|run| {
            let PageRun { first, seqs, bytes } = run;
            let state = Arc::clone(&self.state);
            OwnedWrite {
                file: Arc::clone(&self.data.file),
                offset: first.offset(self.data.page_size),
                buf: bytes,
                mode: if self.data.is_atomic() { WriteMode::Atomic } else { WriteMode::Plain },
                done: Box::new(move |bytes, result| {
                    let (mutex, changed) = &*state;
                    let mut state = lock(mutex);
                    state.in_flight -= 1;
                    match result {
                        Ok(()) => state.done.push_back(PageRun { first, seqs, bytes }),
                        Err(error) => state.fail(error),
                    }
                    drop(state);
                    changed.notify_all();
                }),
            }
        });
        self.data.io.submit_writes(writes.collect());
        Ok(())
    }

    /// Waits until at most `max` are in flight.
    pub(crate) fn wait(&self, max: usize) {
        let (mutex, changed) = &*self.state;
        let state = lock(mutex);
        drop(ignore_poison(changed.wait_while(state, |state| state.in_flight > max)));
    }

    /// Returns a run whose write has ended since the last call.
    pub(crate) fn next_done(&mut self) -> Option<PageRun> {
        let run = lock(&self.state.0).done.pop_front()?;
        self.depth.done(1);
        Some(run)
    }

    /// Fails with the first error.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let state = lock(&self.state.0);
        state.failed.clone().map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Drop for WritesInFlight<'_> {
    fn drop(&mut self) {
        self.wait(0);
    }
}
