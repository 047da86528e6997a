//! Misses of one page, loaded by the thread that wants it. Batches are in `batch`, futures in
//! `future`.
//!
//! An absent page is loaded by one caller ([`FileHandle::miss`]). Others wait for it, parked, and
//! retry when the page is there, or get its error. A page that gets no frame at once is read past
//! the cache, into the caller's own memory: slower, never wrong, and without waiting for anybody.
//! This happens if all frames are held by guards or wait for a stopped reader. If misses are
//! buffered reads and all pages of the cache are in use, most misses are answered from the kernel's
//! page cache alone (`admission`).
//!
//! Invariants: no lock is held over I/O or the verifier. A page is published only after it was read
//! whole, the file was found unchanged after the read (unless its owner writes it, and notifies the
//! cache), and the verifier accepted the page.

use std::ops::{Deref, Range};
use std::sync::atomic::Ordering;

use pagekeeper_io::IoFile;

use crate::Error;
use crate::admission;
use crate::bypass_buffer::BypassBuffer;
use crate::frames::{self, LoadingFrame};
use crate::handle::FileHandle;
use crate::lookup::{KeptFrame, LookupAttempt};
use crate::pool::{BeginOutcome, BusyPolicy, LoadReason};
use crate::verifier::{self, FileKey, LoadedPage};

/// Attempts to make room before a page is read past the cache. Each attempt after the first yields
/// the processor, for readers that were preempted.
const ROOM_ATTEMPTS_MAX: usize = 16;

/// The first attempts wait for frames that were taken out before, and take no others out.
const PATIENT_ATTEMPTS_MAX: usize = 8;

/// The next step of a caller that missed.
#[derive(Debug)]
pub(crate) enum MissStep<H: Deref<Target = FileHandle>> {
    /// Look the page up again.
    Again(LookupAttempt),
    /// Load it.
    Load(LoadingFrame<H>),
    /// Read it past the cache.
    Bypass,
}

impl FileHandle {
    /// Returns the byte range of a page in the file.
    pub(crate) fn range(&self, page: u32) -> Range<u64> {
        let start = u64::from(page) << self.shared.settings.page_shift;
        start..start + self.page_len(page) as u64
    }

    /// Handles a page that was not found: waits for its loader, or makes the caller load it.
    pub(crate) fn miss(&self, page: u32) -> Result<MissStep<&Self>, Error> {
        let pool = &self.shared.pool;
        for attempt in 0..ROOM_ATTEMPTS_MAX {
            match pool.begin(&self.page_table, page, BusyPolicy::Wait) {
                BeginOutcome::Readable => return Ok(MissStep::Again(LookupAttempt::First)),
                BeginOutcome::Busy(waiter) => {
                    if let Some(waiter) = waiter {
                        self.check_can_wait(page)?;
                        waiter.wait()?;
                    }
                    return Ok(MissStep::Again(LookupAttempt::Again));
                }
                BeginOutcome::Load(ticket) => {
                    let short = ticket.short;
                    let filling = LoadingFrame::new(self, ticket);
                    if short {
                        self.shared.make_room();
                    }
                    return Ok(MissStep::Load(filling));
                }
                BeginOutcome::Closed => return Err(self.closed()),
                BeginOutcome::Full => {
                    let made = if attempt < PATIENT_ATTEMPTS_MAX {
                        self.shared.make_room_patiently()
                    } else {
                        self.shared.make_room()
                    };
                    if !made {
                        std::thread::yield_now();
                    }
                }
            }
        }
        Ok(MissStep::Bypass)
    }

    /// Fails if this thread verifies a page of the same file: a wait for the load of the page could
    /// be a wait for itself.
    pub(crate) fn check_can_wait(&self, page: u32) -> Result<(), Error> {
        if verifier::is_verifying_file(FileKey::new(&self.page_table)) {
            return Err(Error::WithinVerifier { path: self.path.clone(), page: page.into() });
        }
        Ok(())
    }

    /// Checks that the bytes read are the whole page, and that the verifier accepts it. The caller
    /// has checked after the read that the file is unchanged.
    pub(crate) fn check_page(&self, page: u32, read: usize, bytes: &[u8]) -> Result<(), Error> {
        if read < bytes.len() {
            if self.is_owned() {
                return Err(Error::PastEnd { path: self.path.clone(), page: page.into() });
            }
            // Short, but the length is as before: the file was truncated and has grown again in
            // between.
            return Err(Error::Changed { path: self.path.clone() });
        }
        let Some(verifier) = &self.verifier else { return Ok(()) };
        let loaded = LoadedPage {
            path: &self.path,
            file_id: self.page_table.number,
            page,
            offset: self.range(page).start,
            bytes,
        };
        verifier::verify(verifier, FileKey::new(&self.page_table), &loaded)
    }

    /// Checks that the file is unchanged, and that the bytes read are the page.
    fn check(&self, io: &dyn IoFile, page: u32, read: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check_unchanged(io, self.range(page))?;
        self.check_page(page, read, bytes)
    }

    /// Reads one page into its frame and checks it. On failure the load is settled. Returns `None`
    /// if the page was written meanwhile and must be loaded again.
    fn fill<'a>(
        &'a self,
        mut filling: LoadingFrame<&'a Self>,
    ) -> Result<Option<LoadingFrame<&'a Self>>, Error> {
        let page = filling.page();
        let result = self.io().and_then(|io| {
            let read = io.read_at(self.range(page).start, filling.bytes_mut())?;
            self.shared.device.add(read);
            self.check(&**io, page, read, filling.bytes(self.page_len(page)))
        });
        match result {
            Ok(()) => Ok(Some(filling)),
            Err(error) => {
                if filling.abandon(&error) {
                    Err(error)
                } else {
                    Ok(None)
                }
            }
        }
    }

    /// Reads one page past the cache.
    fn bypass(&self, page: u32) -> Result<BypassBuffer, Error> {
        let mut buffer = BypassBuffer::new(1 << self.shared.settings.page_shift);
        let start = self.range(page).start;
        let read = self.io().and_then(|io| Ok(io.read_at(start, buffer.whole())?));
        self.settle_bypass(page, read, &buffer)?;
        Ok(buffer)
    }

    fn count_bypass(&self) {
        self.shared.device.bypassed.fetch_add(1, Ordering::Relaxed);
        self.page_table.counts.add_bypass();
    }

    /// Counts a read past the cache, and checks that the bytes read are the page.
    pub(crate) fn settle_bypass(
        &self,
        page: u32,
        read: Result<usize, Error>,
        buffer: &BypassBuffer,
    ) -> Result<(), Error> {
        let device = &self.shared.device;
        let checked = read.and_then(|read| {
            device.add(read);
            self.count_bypass();
            self.check(&**self.io()?, page, read, buffer.bytes(self.page_len(page)))
        });
        if checked.is_err() {
            device.bypass_failures.fetch_add(1, Ordering::Relaxed);
        }
        checked
    }

    /// Reads a part of a page from the kernel's cache without admitting it to this one. It does so
    /// if the kernel has the page, and if the page would evict another that is as much in use.
    /// Single flight is then the kernel's task.
    fn read_from_kernel_cache(&self, page: u32, from: usize, buf: &mut [u8]) -> Result<bool, Error> {
        let may = self.may_read_from_kernel_cache() && self.shared.pool.is_in_use();
        if !may || !admission::is_refused(self.page_table.number, page) {
            return Ok(false);
        }
        let io = self.io()?;
        let start = self.range(page).start + from as u64;
        if io.read_resident(start, buf) != Some(buf.len()) {
            return Ok(false);
        }
        self.check_unchanged(&**io, start..start + buf.len() as u64)?;
        self.count_bypass();
        Ok(true)
    }

    /// Copies a part of a page; `from + buf.len()` is at most the page's length.
    #[cold]
    pub(crate) fn read_missed(&self, page: u32, from: usize, buf: &mut [u8]) -> Result<(), Error> {
        if self.read_from_kernel_cache(page, from, buf)? {
            return Ok(());
        }
        loop {
            match self.miss(page)? {
                MissStep::Again(attempt) => {
                    if frames::copy(self, page, from, buf, attempt) {
                        return Ok(());
                    }
                }
                MissStep::Load(filling) => {
                    let Some(filling) = self.fill(filling)? else { continue };
                    buf.copy_from_slice(&filling.bytes(self.page_len(page))[from..from + buf.len()]);
                    filling.publish(LoadReason::Read);
                    return Ok(());
                }
                MissStep::Bypass => {
                    let buffer = self.bypass(page)?;
                    buf.copy_from_slice(&buffer.bytes(self.page_len(page))[from..from + buf.len()]);
                    return Ok(());
                }
            }
        }
    }

    /// Keeps a page for a guard.
    #[cold]
    pub(crate) fn keep_missed(
        &self,
        page: u32,
        by_slot: bool,
    ) -> Result<Result<KeptFrame, BypassBuffer>, Error> {
        loop {
            match self.miss(page)? {
                MissStep::Again(attempt) => {
                    let found = frames::keep(self, page, by_slot, attempt);
                    if let Some(kept) = found {
                        return Ok(Ok(kept));
                    }
                }
                MissStep::Load(filling) => {
                    if let Some(filling) = self.fill(filling)? {
                        return Ok(Ok(filling.publish_kept(by_slot)));
                    }
                }
                MissStep::Bypass => return Ok(Err(self.bypass(page)?)),
            }
        }
    }
}
