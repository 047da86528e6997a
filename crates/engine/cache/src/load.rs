//! Misses: one page, by the thread that wants it. Batches are in `batch`, futures in `future`.
//!
//! A page that is absent is loaded by one caller ([`Handle::miss`]); others wait for that one, parked, and retry when
//! it is there, or get its error. Where no frame can be had at once (all held by guards, or waiting for a reader
//! that was stopped) the page is read past the cache, into memory of the caller's own: slower, never wrong, and
//! waiting for nobody. Where misses are buffered reads, and all pages here are in use, most of them are answered from the
//! kernel's page cache alone (`admission`).
//!
//! Invariants: no lock is held over I/O or the verifier; a page is published only after it was read whole, the file was found
//! unchanged after the read (unless its owner writes it, and says so), and the verifier accepted it.

use std::ops::{Deref, Range};
use std::sync::atomic::Ordering;

use pagekeeper_io::IoFile;

use crate::Error;
use crate::admission;
use crate::bypass_buffer::BypassBuffer;
use crate::frames::{self, Filling};
use crate::handle::Handle;
use crate::lookup::{Attempt, KeptFrame};
use crate::pool::{Begin, LoadReason, OnBusy};
use crate::verifier::LoadedPage;

/// How often room is made before a page is read past the cache. Each but the first goes with an offer of the processor to
/// whoever was preempted while reading.
const TRIES: usize = 16;

/// So many of them wait for frames that were taken out before, and take no others out.
const PATIENT: usize = 8;

/// What a caller that missed is to do.
#[derive(Debug)]
pub(crate) enum Miss<H: Deref<Target = Handle>> {
    /// Look the page up again.
    Again(Attempt),
    /// Load it.
    Load(Filling<H>),
    /// Read it past the cache.
    Bypass,
}

impl Handle {
    /// Where a page lies in the file.
    pub(crate) fn range(&self, page: u32) -> Range<u64> {
        let start = u64::from(page) << self.shared.settings.page_shift;
        start..start + self.page_len(page) as u64
    }

    /// A page was not found: waits for whoever loads it, or is to load it.
    pub(crate) fn miss(&self, page: u32) -> Result<Miss<&Self>, Error> {
        let pool = &self.shared.pool;
        for attempt in 0..TRIES {
            match pool.begin(&self.page_table, page, OnBusy::Wait) {
                Begin::Readable => return Ok(Miss::Again(Attempt::First)),
                Begin::Busy(waiter) => {
                    if let Some(waiter) = waiter {
                        waiter.wait()?;
                    }
                    return Ok(Miss::Again(Attempt::Again));
                }
                Begin::Load(ticket) => {
                    let short = ticket.short;
                    let filling = Filling::new(self, ticket);
                    if short {
                        self.shared.make_room();
                    }
                    return Ok(Miss::Load(filling));
                }
                Begin::Closed => return Err(self.closed()),
                Begin::Full => {
                    let made = if attempt < PATIENT {
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
        Ok(Miss::Bypass)
    }

    /// Whether what was read of a page is the page: whole, and accepted. That the file is unchanged was found after the read.
    pub(crate) fn check_page(&self, page: u32, read: usize, bytes: &[u8]) -> Result<(), Error> {
        if read < bytes.len() {
            if self.is_owned() {
                return Err(Error::PastEnd { path: self.path.clone(), page: page.into() });
            }
            // Short, and the length is what it was: the file was cut and has grown again in between.
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
        verifier(&loaded).map_err(|reason| Error::Rejected {
            path: self.path.clone(),
            page: page.into(),
            reason: reason.into(),
        })
    }

    /// Whether the file is unchanged, and what was read of a page is the page.
    fn check(&self, io: &dyn IoFile, page: u32, read: usize, bytes: &[u8]) -> Result<(), Error> {
        self.check_unchanged(io, self.range(page))?;
        self.check_page(page, read, bytes)
    }

    /// Reads one page into its frame and checks it. On failure the load is settled; `None` if it is to be done again, since the
    /// page was written meanwhile.
    fn fill<'a>(&'a self, mut filling: Filling<&'a Self>) -> Result<Option<Filling<&'a Self>>, Error> {
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

    /// Counts a read past the cache, and checks whether what was read is the page.
    pub(crate) fn settle_bypass(
        &self,
        page: u32,
        read: Result<usize, Error>,
        buffer: &BypassBuffer,
    ) -> Result<(), Error> {
        let device = &self.shared.device;
        let checked = read.and_then(|read| {
            device.add(read);
            device.bypassed.fetch_add(1, Ordering::Relaxed);
            self.check(&**self.io()?, page, read, buffer.bytes(self.page_len(page)))
        });
        if checked.is_err() {
            device.bypass_failures.fetch_add(1, Ordering::Relaxed);
        }
        checked
    }

    /// Reads a part of a page from the kernel's cache without taking it into this one, if that is as well: the kernel has it,
    /// and here it would drive out a page that is as much in use. Single flight is the kernel's matter then.
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
        self.shared.device.bypassed.fetch_add(1, Ordering::Relaxed);
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
                Miss::Again(attempt) => {
                    if frames::copy(self, page, from, buf, attempt) {
                        return Ok(());
                    }
                }
                Miss::Load(filling) => {
                    let Some(filling) = self.fill(filling)? else { continue };
                    buf.copy_from_slice(&filling.bytes(self.page_len(page))[from..from + buf.len()]);
                    filling.publish(LoadReason::Read);
                    return Ok(());
                }
                Miss::Bypass => {
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
                Miss::Again(attempt) => {
                    let found = frames::keep(self, page, by_slot, attempt);
                    if let Some(kept) = found {
                        return Ok(Ok(kept));
                    }
                }
                Miss::Load(filling) => {
                    if let Some(filling) = self.fill(filling)? {
                        return Ok(Ok(filling.publish_kept(by_slot)));
                    }
                }
                Miss::Bypass => return Ok(Err(self.bypass(page)?)),
            }
        }
    }
}
