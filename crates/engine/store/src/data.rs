//! The data file, and the page map's: growing it, and writing pages wide.
//!
//! Invariants: it has room for all pages that a commit may name, durably, before that commit; writes are of whole pages, and
//! past the page cache where that can be had. A failure of a write or sync is final, but for a full device's: the kernel reports
//! it once, to whoever of two syncs at a time comes first, and the other is not to be trusted.

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

use crate::depth::Depth;
pub(crate) use crate::format::superblock::MAX_PAGES;
use crate::{Error, PageNo};

/// Its name.
pub(crate) const NAME: &str = "data";

/// It grows by an eighth, within these bounds, in bytes.
const STEP: Range<u64> = 256 << 10..64 << 20;

/// What a file of the store is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// It is there, and only read.
    Read,
    /// It is there.
    Write,
    /// It is made.
    Make,
}

/// A file of the store, past the page cache where that can be had.
pub(crate) fn open_file(io: &dyn Io, path: &Path, use_of: Use) -> Result<Arc<dyn IoFile>, IoError> {
    match use_of {
        Use::Read => open_past_cache(io, path),
        Use::Write => open_writable_past_cache(io, path, Create::Never),
        Use::Make => open_writable_past_cache(io, path, Create::New),
    }
}

/// The file, open; to write, unless the store is open to read only.
pub(crate) struct DataFile {
    pub(crate) file: Arc<dyn IoFile>,
    io: Arc<dyn Io>,
    page_size: u64,
    /// Whether each page is written by a write of its own that is there as a whole after a crash, or not at all: once that was
    /// tried for a store that may use it.
    atomic: OnceLock<bool>,
    /// The journal has changes that can only be applied so.
    pub(crate) needs_atomic: bool,
    /// Its length in bytes.
    len: AtomicU64,
    /// As much of it as is known to be durable.
    durable: AtomicU64,
    /// Held by one who makes it longer, until that is durable. The first sync that failed.
    growing: Mutex<Option<Error>>,
    #[cfg(test)]
    pub(crate) injected_fault: Option<crate::injected_fault::InjectedFault>,
}

impl DataFile {
    pub(crate) fn open(
        io: &Arc<dyn Io>,
        directory: &Path,
        name: &str,
        use_of: Use,
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

    /// Whether a page can be written so that after a crash it is there as before or as after, and nothing between. Tries it, which
    /// fails where there is no room for that.
    pub(crate) fn probe_atomic(&self) -> Result<bool, Error> {
        Ok(AtomicWrites::try_probe(&*self.file, self.page_size)? == AtomicWrites::InPlace)
    }

    /// The same, and pages are written so from now on.
    pub(crate) fn use_atomic(&self) -> Result<bool, Error> {
        match self.atomic.get() {
            Some(is_atomic) => Ok(*is_atomic),
            None => self.probe_atomic().map(|is_atomic| *self.atomic.get_or_init(|| is_atomic)),
        }
    }

    /// Whether pages are written so.
    pub(crate) fn is_atomic(&self) -> bool {
        self.atomic.get().is_some_and(|is_atomic| *is_atomic)
    }

    /// Pages that it has room for.
    pub(crate) fn pages(&self) -> u64 {
        self.len.load(Ordering::Acquire) / self.page_size
    }

    /// Whether it has room for this page.
    #[inline]
    pub(crate) fn has(&self, page: PageNo) -> bool {
        page < MAX_PAGES && (page + 1) * self.page_size <= self.len.load(Ordering::Acquire)
    }

    /// A commit or superblock says that it is so long, durably. What was found behind that may be what a kill has left.
    pub(crate) fn is_durable_upto(&self, bytes: u64) {
        self.durable.fetch_max(bytes, Ordering::AcqRel);
    }

    /// Its length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Sees to it that it has room for so many pages, durably. Where they are `sparse` the device gives it as they are written.
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

    /// Makes it as short again as it was, where nothing that counts stands behind that. What can't be given back stays.
    pub(crate) fn shrink(&self, bytes: u64) {
        let failed = lock(&self.growing);
        if failed.is_none() && self.len.load(Ordering::Acquire) > bytes && self.file.set_len(bytes).is_ok() {
            self.len.store(bytes, Ordering::Release);
            self.durable.fetch_min(bytes, Ordering::AcqRel);
        }
    }

    /// Makes it no longer than so many pages, durably; gives how many bytes shorter it is. Nothing that counts stands behind that, and
    /// nobody grows it meanwhile.
    pub(crate) fn cut(&self, pages: u64) -> Result<u64, Error> {
        let mut failed = lock(&self.growing);
        // As it is: a recovery may have written pages that are none any more.
        let (len, wanted) = (self.file.stat()?.size, pages.saturating_mul(self.page_size));
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        // If it is so short already, whoever made it so may have been killed before that was durable.
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

    /// Gives the room of pages back to the file system: they are zeros then. Durable after [`Self::sync_all`].
    pub(crate) fn punch(&self, pages: &Range<PageNo>) -> Result<(), Error> {
        Ok(self.file.punch(pages.start * self.page_size..pages.end * self.page_size)?)
    }

    /// As [`Self::sync`], and where the file has room.
    pub(crate) fn sync_all(&self) -> Result<(), Error> {
        let mut failed = lock(&self.growing);
        if let Err(error) = self.file.sync_all() {
            failed.get_or_insert(error.into());
        }
        failed.clone().map_or(Ok(()), Err)
    }

    /// Has the file system give a page room that it may have none of. Where it can't say, it gives that when the page is written.
    pub(crate) fn make_room(&self, page: PageNo) -> Result<(), Error> {
        match self.file.allocate(page * self.page_size..(page + 1) * self.page_size) {
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => Ok(()),
            made => Ok(made?),
        }
    }

    /// Makes it longer than `len`.
    fn extend(&self, len: u64, needed: u64, sparse: bool) -> Result<(), Error> {
        let step = (len / 8).clamp(STEP.start, STEP.end).next_multiple_of(self.page_size);
        let end = if sparse { needed } else { needed.max(len.saturating_add(step)) };
        let grown = if sparse { self.file.set_len(end) } else { self.file.allocate(len..end) };
        match grown {
            Err(error) if error.errno() == Some(libc::EOPNOTSUPP) => self.file.set_len(end)?,
            grown => grown?,
        }
        self.len.store(end, Ordering::Release);
        Ok(())
    }

    /// Makes all durable that was written.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let synced = self.file.sync_data();
        if injected!(self, SyncTriedAgain) && synced.is_err() {
            return Ok(self.file.sync_data()?);
        }
        // One that failed while the file was made longer may have been the report of what was written for this one.
        let mut failed = lock(&self.growing);
        if let Err(error) = synced {
            failed.get_or_insert(error.into());
        }
        failed.clone().map_or(Ok(()), Err)
    }
}

/// Pages in a row on their way to the data file.
pub(crate) struct Run {
    pub(crate) first: PageNo,
    /// The seq of each page as it is written.
    pub(crate) seqs: Vec<u64>,
    pub(crate) bytes: AlignedBuf,
}

#[derive(Default)]
struct WriteState {
    in_flight: usize,
    done: VecDeque<Run>,
    failed: Option<IoError>,
}

impl WriteState {
    /// The first error counts, but for a full device: any other is worse.
    fn fail(&mut self, error: IoError) {
        if self.failed.as_ref().is_none_or(|failed| failed.errno() == Some(libc::ENOSPC)) {
            self.failed = Some(error);
        }
    }
}

/// Writes in flight. All are waited for before it goes, also after an error.
pub(crate) struct WritesInFlight<'a> {
    data: &'a DataFile,
    state: Arc<(Mutex<WriteState>, Condvar)>,
    depth: Depth,
}

impl<'a> WritesInFlight<'a> {
    /// At most so many writes at once as `depth` says.
    pub(crate) fn new(data: &'a DataFile, depth: Depth) -> Self {
        Self { data, state: Arc::default(), depth }
    }

    /// Starts writes; waits first as long as too many are in flight.
    pub(crate) fn start(&self, runs: Vec<Run>) -> Result<(), Error> {
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
            let Run { first, seqs, bytes } = run;
            let state = Arc::clone(&self.state);
            OwnedWrite {
                file: Arc::clone(&self.data.file),
                offset: first * self.data.page_size,
                buf: bytes,
                mode: if self.data.is_atomic() { WriteMode::Atomic } else { WriteMode::Plain },
                done: Box::new(move |bytes, result| {
                    let (mutex, changed) = &*state;
                    let mut state = lock(mutex);
                    state.in_flight -= 1;
                    match result {
                        Ok(()) => state.done.push_back(Run { first, seqs, bytes }),
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

    /// Waits until at most so many are in flight.
    pub(crate) fn wait(&self, max: usize) {
        let (mutex, changed) = &*self.state;
        let state = lock(mutex);
        drop(ignore_poison(changed.wait_while(state, |state| state.in_flight > max)));
    }

    /// One that has ended since the last call.
    pub(crate) fn next_done(&mut self) -> Option<Run> {
        let run = lock(&self.state.0).done.pop_front()?;
        self.depth.done(1);
        Some(run)
    }

    /// The first error.
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
