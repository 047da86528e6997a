//! Reading without blocking: futures that any runtime can poll.
//!
//! Invariants: a poll never waits for the device, nor for another load. Dropping a future loses
//! nothing, since its loads continue and settle by themselves. Pages that get no frame are read
//! past the cache, a bounded number at a time (`bypass_queue`): futures that wait for their turn
//! take no page of memory, and their reads begin without a poll. Fails as [`CachedFile::read_at`]
//! does.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pagekeeper_io::OwnedRead;
use pagekeeper_kernel::mutex::ignore_poison;

use crate::bypass_buffer::BypassBuffer;
use crate::entry::PageEntry;
use crate::frames;
use crate::handle::{CacheState, FileHandle, QueuedRead};
use crate::lookup::LookupAttempt;
use crate::pool::{BeginOutcome, BusyPolicy, LoadReason};
use crate::prefetch::LoadStart;
use crate::sync::{Mutex, Ordering};
use crate::waiter::LoadWaiter;
use crate::{CachedFile, Error, PageNo};

/// Pages of one read whose loads begin before the first is awaited: at most the number of bits in a
/// `u64`.
const AHEAD_PAGES_MAX: u32 = 64;

/// The event that a read waits for.
enum AwaitedEvent {
    /// None: look the page up.
    Nothing,
    /// None, after a load that counts as this read's lookup of the page: look the page up again.
    Counted,
    /// The load of the page, by this read or another.
    Load(Arc<LoadWaiter>),
    /// The read of the page past the cache.
    Bypass(Arc<BypassPage>),
}

/// A page that is read past the cache: its outcome, and its bytes until the future takes them. If
/// it was settled without bytes, the page must be looked up again.
#[derive(Debug)]
struct BypassPage {
    waiter: LoadWaiter,
    buffer: Mutex<Option<BypassBuffer>>,
}

/// A future that waits for such a page.
#[derive(Debug)]
struct BypassRead {
    handle: Arc<FileHandle>,
    page: u32,
    bypass: Arc<BypassPage>,
}

impl QueuedRead for BypassRead {
    fn begin(self: Box<Self>, shared: &Arc<CacheState>) -> Option<OwnedRead> {
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
            Ok(file) => Arc::clone(&*file),
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
        let mut unsettled = UnsettledBypass { shared: Arc::clone(shared), bypass, outcome };
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
struct AheadPages {
    first: u32,
    end: u32,
    /// A bit for each page from `first` on, set if this read began its load.
    begun: u64,
}

impl AheadPages {
    fn has_begun(&self, page: u32) -> bool {
        self.begun >> (page - self.first) & 1 == 1
    }
}

/// A read past the cache in flight. Dropping it wakes the waiting future and lets the next read
/// begin.
struct UnsettledBypass {
    shared: Arc<CacheState>,
    bypass: Arc<BypassPage>,
    outcome: Result<(), Error>,
}

impl Drop for UnsettledBypass {
    fn drop(&mut self) {
        self.bypass.waiter.settle(self.outcome.clone());
        self.shared.bypasses.ended(|reads| self.shared.begin_bypasses(reads));
    }
}

impl CachedFile {
    /// Like [`read_at`](Self::read_at), without blocking the thread. Works with any runtime; ready
    /// at once if all pages are in the cache.
    ///
    /// ```
    /// # use std::future::Future;
    /// # let dir = tempfile::tempdir_in(".")?;
    /// # let path = dir.path().join("000012.sst");
    /// # std::fs::write(&path, b"a block")?;
    /// # let mut future = std::pin::pin!(async move {
    /// let cache = pagekeeper_cache::PageCache::options().memory(16 << 20).build()?;
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
        let mut ahead = AheadPages::default();
        while done < len {
            let at = offset + done as u64;
            let from = handle.offset_in_page(at);
            let part = (len - done).min((1 << shift) - from);
            let page = handle.page_number(PageNo::new(at >> shift))?;
            if page >= ahead.end {
                let last = handle.page_number(PageNo::new((offset + len as u64 - 1) >> shift))?;
                ahead = handle.begin_ahead(page, last)?;
            }
            let buf = &mut buf[done..done + part];
            let mut awaited =
                if ahead.has_begun(page) { AwaitedEvent::Counted } else { AwaitedEvent::Nothing };
            poll_fn(|context| handle.poll_page(context, page, from, buf, &mut awaited)).await?;
            done += part;
        }
        Ok(len)
    }
}

impl FileHandle {
    /// Whether a page was in the cache a moment ago.
    fn is_readable(&self, page: u32) -> bool {
        self.page_table
            .table
            .entry(page)
            .is_some_and(|entry| PageEntry(entry.load(Ordering::Relaxed)).readable().is_some())
    }

    /// Begins the loads of absent pages from `first` to `last`, up to a bound. Fails in a verifier
    /// of the file if one is absent.
    fn begin_ahead(self: &Arc<Self>, first: u32, last: u32) -> Result<AheadPages, Error> {
        let end = last.saturating_add(1).min(first.saturating_add(AHEAD_PAGES_MAX));
        let mut begun = 0;
        let mut fillings = Vec::new();
        for page in first..end {
            if self.is_readable(page) {
                continue;
            }
            self.check_can_wait(page)?;
            match self.begin_owned(page) {
                LoadStart::Load(filling) => {
                    begun |= 1 << (page - first);
                    fillings.push(filling);
                }
                LoadStart::Present => {}
                LoadStart::Refused => break,
            }
        }
        self.submit(fillings, LoadReason::Read);
        Ok(AheadPages { first, end, begun })
    }

    fn poll_page(
        self: &Arc<Self>,
        context: &mut Context<'_>,
        page: u32,
        from: usize,
        buf: &mut [u8],
        awaited: &mut AwaitedEvent,
    ) -> Poll<Result<(), Error>> {
        // The load may have been begun before a fork.
        if let Err(error) = self.shared.require_own_process() {
            return Poll::Ready(Err(error));
        }
        loop {
            let mut attempt = LookupAttempt::Again;
            match awaited {
                AwaitedEvent::Nothing => attempt = LookupAttempt::First,
                AwaitedEvent::Counted => {}
                AwaitedEvent::Load(waiter) => ready!(waiter.poll(context))?,
                AwaitedEvent::Bypass(bypass) => {
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
            let on_busy =
                if matches!(awaited, AwaitedEvent::Nothing) { BusyPolicy::Wait } else { BusyPolicy::Join };
            *awaited = self.begin_awaited(page, on_busy)?;
        }
    }

    /// Begins the load of an absent page. Fails in a verifier of the file: its thread may be the
    /// one that settles the load.
    fn begin_awaited(self: &Arc<Self>, page: u32, on_busy: BusyPolicy) -> Result<AwaitedEvent, Error> {
        self.check_can_wait(page)?;
        let attempt = || self.shared.pool.begin(&self.page_table, page, on_busy);
        let mut begun = attempt();
        if matches!(begun, BeginOutcome::Full) && self.shared.make_room() {
            begun = attempt();
        }
        Ok(match begun {
            BeginOutcome::Load(ticket) => {
                let filling = frames::LoadingFrame::new(Arc::clone(self), ticket);
                let waiter = filling.join();
                self.submit(vec![filling], LoadReason::Read);
                AwaitedEvent::Load(waiter)
            }
            BeginOutcome::Busy(Some(waiter)) => AwaitedEvent::Load(waiter),
            BeginOutcome::Busy(None) | BeginOutcome::Readable if on_busy == BusyPolicy::Join => {
                AwaitedEvent::Counted
            }
            BeginOutcome::Busy(None) | BeginOutcome::Readable => AwaitedEvent::Nothing,
            BeginOutcome::Closed => return Err(self.closed()),
            BeginOutcome::Full => AwaitedEvent::Bypass(self.begin_bypass(page)),
        })
    }

    /// Queues a read of a page past the cache, in the background.
    fn begin_bypass(self: &Arc<Self>, page: u32) -> Arc<BypassPage> {
        let bypass = Arc::new(BypassPage { waiter: LoadWaiter::new(), buffer: Mutex::new(None) });
        let read = BypassRead { handle: Arc::clone(self), page, bypass: Arc::clone(&bypass) };
        self.shared.bypasses.push(Box::new(read), |reads| self.shared.begin_bypasses(reads));
        bypass
    }
}

impl CacheState {
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
