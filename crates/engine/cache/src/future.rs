//! Reading without blocking: futures that any runtime can poll.
//!
//! Invariants: a poll never waits for the device, nor for another load. Dropping a future loses nothing, since
//! its loads go on and settle by themselves. Pages that get no frame are read past the cache, a bounded number
//! at a time (`bypass_queue`): futures that wait for their turn take no page of memory, and their reads begin
//! without a poll. Fails as [`CachedFile::read_at`] does.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pagekeeper_io::OwnedRead;
use pagekeeper_kernel::mutex::ignore_poison;

use crate::bypass_buffer::BypassBuffer;
use crate::entry::PageEntry;
use crate::frames;
use crate::handle::{Handle, QueuedRead, Shared};
use crate::lookup::Attempt;
use crate::pool::{Begin, LoadReason, OnBusy};
use crate::prefetch::Begun;
use crate::sync::{Mutex, Ordering};
use crate::waiter::Waiter;
use crate::{CachedFile, Error};

/// Pages of one read whose loads begin before the first is awaited: at most the number of bits in a `u64`.
const AHEAD: u32 = 64;

/// The event that a read waits for.
enum Awaited {
    /// None: look the page up.
    Nothing,
    /// None, after a load that counts as this read's lookup of the page: look the page up again.
    Counted,
    /// The load of the page, by this read or another.
    Load(Arc<Waiter>),
    /// The read of the page past the cache.
    Bypass(Arc<Bypass>),
}

/// A page that is read past the cache: its outcome, and its bytes until the future takes them. If it was
/// settled without bytes, the page must be looked up again.
#[derive(Debug)]
struct Bypass {
    waiter: Waiter,
    buffer: Mutex<Option<BypassBuffer>>,
}

/// A future that waits for such a page.
#[derive(Debug)]
struct BypassRead {
    handle: Arc<Handle>,
    page: u32,
    bypass: Arc<Bypass>,
}

impl QueuedRead for BypassRead {
    fn begin(self: Box<Self>, shared: &Arc<Shared>) -> Option<OwnedRead> {
        let Self { handle, page, bypass } = *self;
        if Arc::strong_count(&bypass) == 1 {
            // The future was dropped.
            return None;
        }
        if handle.is_readable(page) {
            // Another load has brought the page into the cache meanwhile.
            bypass.waiter.settle(Ok(()));
            return None;
        }
        let file = match handle.io() {
            Ok(file) => Arc::clone(file),
            Err(error) => {
                bypass.waiter.settle(Err(error));
                return None;
            }
        };
        let mut buffer = BypassBuffer::new(1 << shared.settings.page_shift);
        let target = buffer.target();
        let offset = handle.range(page).start;
        // If the verifier panics, the waiting future gets an error.
        let outcome = Err(Error::LoaderPanicked { path: handle.path.clone(), page: page.into() });
        let mut unsettled = Unsettled { shared: Arc::clone(shared), bypass, outcome };
        handle.note_begun(1);
        let done = Box::new(move |read: Result<usize, pagekeeper_io::Error>| {
            let of = Arc::clone(&handle);
            of.settle_read(move || {
                unsettled.outcome = handle.settle_bypass(page, read.map_err(Error::from), &buffer);
                if unsettled.outcome.is_ok() {
                    *ignore_poison(unsettled.bypass.buffer.lock()) = Some(buffer);
                }
            });
        });
        Some(OwnedRead { file, offset, targets: vec![target], done })
    }
}

/// Pages of a read whose loads began before they are awaited.
#[derive(Debug, Default)]
struct Ahead {
    first: u32,
    end: u32,
    /// A bit for each page from `first` on, set if this read began its load.
    begun: u64,
}

impl Ahead {
    fn has_begun(&self, page: u32) -> bool {
        self.begun >> (page - self.first) & 1 == 1
    }
}

/// A read past the cache in flight. Dropping it wakes the waiting future and lets the next read begin.
struct Unsettled {
    shared: Arc<Shared>,
    bypass: Arc<Bypass>,
    outcome: Result<(), Error>,
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.bypass.waiter.settle(self.outcome.clone());
        self.shared.bypasses.ended(|reads| self.shared.begin_bypasses(reads));
    }
}

impl CachedFile {
    /// Like [`read_at`](Self::read_at), without blocking the thread. Works with any runtime; ready at once if
    /// all pages are in the cache.
    ///
    /// ```
    /// # use std::future::Future;
    /// # let dir = tempfile::tempdir_in(".")?;
    /// # let path = dir.path().join("000012.sst");
    /// # std::fs::write(&path, b"a block")?;
    /// # let mut future = std::pin::pin!(async move {
    /// let cache = pagekeeper_cache::PageCache::builder().memory(16 << 20).build()?;
    /// let file = cache.open(&path)?;
    /// let mut buf = [0; 5];
    /// assert_eq!(file.read_at_async(2, &mut buf).await?, 5);
    /// assert_eq!(&buf, b"block");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # });
    /// # struct Unpark(std::thread::Thread);
    /// # impl std::task::Wake for Unpark { fn wake(self: std::sync::Arc<Self>) { self.0.unpark() } }
    /// # let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    /// # let mut context = std::task::Context::from_waker(&waker);
    /// # loop {
    /// #     if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) { done?; break }
    /// #     std::thread::park();
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`read_at`](Self::read_at).
    pub async fn read_at_async(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Error> {
        let handle = self.handle();
        if handle.fast_path.copy(offset, buf) {
            return Ok(buf.len());
        }
        handle.shared.require_own_process()?;
        let shift = handle.shared.settings.page_shift;
        // At most queries the file's length, which does not reach the device.
        let len = handle.len_within(offset, buf.len())?;
        let mut done = 0;
        let mut ahead = Ahead::default();
        while done < len {
            let at = offset + done as u64;
            let from = handle.offset_in_page(at);
            let part = (len - done).min((1 << shift) - from);
            let page = handle.page_number(at >> shift)?;
            if page >= ahead.end {
                let last = handle.page_number((offset + len as u64 - 1) >> shift)?;
                ahead = handle.begin_ahead(page, last);
            }
            let buf = &mut buf[done..done + part];
            let mut awaited = if ahead.has_begun(page) { Awaited::Counted } else { Awaited::Nothing };
            poll_fn(|context| handle.poll_page(context, page, from, buf, &mut awaited)).await?;
            done += part;
        }
        Ok(len)
    }
}

impl Handle {
    /// Whether a page was in the cache a moment ago.
    fn is_readable(&self, page: u32) -> bool {
        self.page_table
            .table
            .entry(page)
            .is_some_and(|entry| PageEntry(entry.load(Ordering::Relaxed)).readable().is_some())
    }

    /// Begins the loads of absent pages from `first` to `last`, up to a bound.
    fn begin_ahead(self: &Arc<Self>, first: u32, last: u32) -> Ahead {
        let end = last.saturating_add(1).min(first.saturating_add(AHEAD));
        let mut begun = 0;
        let mut fillings = Vec::new();
        for page in first..end {
            if self.is_readable(page) {
                continue;
            }
            match self.begin_owned(page) {
                Begun::Load(filling) => {
                    begun |= 1 << (page - first);
                    fillings.push(filling);
                }
                Begun::There => {}
                Begun::Not => break,
            }
        }
        self.submit(fillings, LoadReason::Read);
        Ahead { first, end, begun }
    }

    fn poll_page(
        self: &Arc<Self>,
        context: &mut Context<'_>,
        page: u32,
        from: usize,
        buf: &mut [u8],
        awaited: &mut Awaited,
    ) -> Poll<Result<(), Error>> {
        // Maybe begun before a fork.
        if let Err(error) = self.shared.require_own_process() {
            return Poll::Ready(Err(error));
        }
        loop {
            let mut attempt = Attempt::Again;
            match awaited {
                Awaited::Nothing => attempt = Attempt::First,
                Awaited::Counted => {}
                Awaited::Load(waiter) => ready!(waiter.poll(context))?,
                Awaited::Bypass(bypass) => {
                    ready!(bypass.waiter.poll(context))?;
                    let buffer = ignore_poison(bypass.buffer.lock()).take();
                    if let Some(buffer) = buffer {
                        buf.copy_from_slice(&buffer.bytes(self.page_len(page))[from..from + buf.len()]);
                        return Poll::Ready(Ok(()));
                    }
                }
            }
            if frames::copy(self, page, from, buf, attempt) {
                return Poll::Ready(Ok(()));
            }
            let on_busy = if matches!(awaited, Awaited::Nothing) { OnBusy::Wait } else { OnBusy::Join };
            *awaited = self.begin_awaited(page, on_busy)?;
        }
    }

    /// Begins the load of an absent page.
    fn begin_awaited(self: &Arc<Self>, page: u32, on_busy: OnBusy) -> Result<Awaited, Error> {
        let attempt = || self.shared.pool.begin(&self.page_table, page, on_busy);
        let mut begun = attempt();
        if matches!(begun, Begin::Full) && self.shared.make_room() {
            begun = attempt();
        }
        Ok(match begun {
            Begin::Load(ticket) => {
                let filling = frames::Filling::new(Arc::clone(self), ticket);
                let waiter = filling.join();
                self.submit(vec![filling], LoadReason::Read);
                Awaited::Load(waiter)
            }
            Begin::Busy(Some(waiter)) => Awaited::Load(waiter),
            Begin::Busy(None) | Begin::Readable if on_busy == OnBusy::Join => Awaited::Counted,
            Begin::Busy(None) | Begin::Readable => Awaited::Nothing,
            Begin::Closed => return Err(self.closed()),
            Begin::Full => Awaited::Bypass(self.begin_bypass(page)),
        })
    }

    /// Queues a read of a page past the cache, in the background.
    fn begin_bypass(self: &Arc<Self>, page: u32) -> Arc<Bypass> {
        let bypass = Arc::new(Bypass { waiter: Waiter::new(), buffer: Mutex::new(None) });
        let read = BypassRead { handle: Arc::clone(self), page, bypass: Arc::clone(&bypass) };
        self.shared.bypasses.push(Box::new(read), |reads| self.shared.begin_bypasses(reads));
        bypass
    }
}

impl Shared {
    fn begin_bypasses(self: &Arc<Self>, reads: Vec<Box<dyn QueuedRead>>) {
        let reads = reads.into_iter().filter_map(|read| {
            let begun = read.begin(self);
            if begun.is_none() {
                self.bypasses.ended(|_| unreachable!("the caller begins what may begin"));
            }
            begun
        });
        let reads: Vec<OwnedRead> = reads.collect();
        if !reads.is_empty() {
            self.settings.io.submit(reads);
        }
    }
}
