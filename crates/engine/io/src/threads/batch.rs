//! A batch of reads, shared by the threads of a pool and its caller.
//!
//! Invariants: a counter lets each read be claimed once; its claimant reports its result. The
//! caller does not leave, even by a panic, before all claimed reads are reported, and from then on
//! nothing can be claimed. So no thread touches the batch after its caller left, however late the
//! thread comes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use pagekeeper_kernel::mutex::{ignore_poison, lock};

use super::pool::{PoolJob, ThreadPool};
use crate::transfers::{pread, scatter};
use crate::{BatchRead, Error};

/// The state that helpers and caller share.
struct SharedBatch {
    /// The caller's reads.
    reads: *const BatchRead<'static>,
    count: usize,
    /// The first unclaimed read; may exceed the count.
    next: AtomicUsize,
    handed_in: Mutex<HandedInReads>,
    more: Condvar,
}

#[derive(Default)]
struct HandedInReads {
    results: Vec<(usize, Result<usize, Error>)>,
    /// Number of reads handed in so far, including those whose results were already taken.
    count: usize,
}

// SAFETY: only `read` follows the pointer, for a claimed index, while the caller waits for it (the
// module's invariant). Any thread may use the reads behind it: files are `Sync`, and the memory of
// a claimed read belongs to its claimant.
#[expect(unsafe_code, reason = "a borrowed batch is shared with threads that are not scoped")]
unsafe impl Send for SharedBatch {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "as above")]
unsafe impl Sync for SharedBatch {}

impl SharedBatch {
    fn claim(&self) -> Option<usize> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < self.count).then_some(index)
    }

    /// # Safety
    ///
    /// The caller must have claimed the index, and not yet handed it in.
    #[expect(unsafe_code, reason = "follows the pointer into the batch")]
    unsafe fn read(&self, index: usize) -> Result<usize, Error> {
        // SAFETY: claimed and not handed in, so the batch still exists (the module's invariant) and
        // contains the index.
        let read = unsafe { &*self.reads.add(index) };
        // SAFETY: the batch borrows its buffers exclusively, and the claim makes this thread the
        // only user of this read's.
        unsafe { pread::read(read.file, read.offset, scatter::of_slices(&read.bufs)) }
    }

    fn lock(&self) -> MutexGuard<'_, HandedInReads> {
        lock(&self.handed_in)
    }
}

/// A helper's job: to read as long as there is something to claim.
pub(super) struct BatchHelp(Arc<SharedBatch>);

impl BatchHelp {
    pub(super) fn run(self) {
        while let Some(index) = self.0.claim() {
            let mut handing_in = HandInGuard {
                shared: &self.0,
                index,
                result: Err(Error::Unavailable { what: "a thread", call: "read", errno: libc::EIO }),
            };
            // SAFETY: claimed just now; handed in below.
            #[expect(unsafe_code, reason = "follows the pointer into the batch")]
            let result = unsafe { self.0.read(index) };
            handing_in.result = result;
        }
    }
}

/// Hands in a claimed read when dropped, even if a file's method panics.
struct HandInGuard<'s> {
    shared: &'s SharedBatch,
    index: usize,
    result: Result<usize, Error>,
}

impl Drop for HandInGuard<'_> {
    fn drop(&mut self) {
        let mut handed_in = self.shared.lock();
        handed_in.count += 1;
        let result = std::mem::replace(&mut self.result, Ok(0));
        handed_in.results.push((self.index, result));
        self.shared.more.notify_one();
    }
}

/// The caller's end: when dropped, nobody uses the batch any more.
struct BatchCaller {
    shared: Arc<SharedBatch>,
    /// Number of reads that the caller has claimed itself.
    claimed: usize,
}

impl Drop for BatchCaller {
    fn drop(&mut self) {
        let claimed = self.shared.next.swap(self.shared.count, Ordering::Relaxed).min(self.shared.count);
        let mut handed_in = self.shared.lock();
        while handed_in.count < claimed - self.claimed {
            handed_in = ignore_poison(self.shared.more.wait(handed_in));
        }
    }
}

pub(super) fn run(
    pool: &ThreadPool,
    reads: &mut [BatchRead<'_>],
    completed: &mut dyn FnMut(usize, Result<usize, Error>),
) {
    let count = reads.len();
    let shared = Arc::new(SharedBatch {
        reads: reads.as_ptr().cast(),
        count,
        next: AtomicUsize::new(0),
        handed_in: Mutex::default(),
        more: Condvar::new(),
    });
    let helpers = (count - 1).min(pool.threads_max());
    // The caller performs refused jobs itself.
    drop(pool.add((0..helpers).map(|_| PoolJob::BatchHelp(BatchHelp(Arc::clone(&shared)))).collect()));
    let mut caller = BatchCaller { shared, claimed: 0 };
    let mut reported = 0;
    let mut results = Vec::new();
    while reported < count {
        let claimed = caller.shared.claim();
        if let Some(index) = claimed {
            caller.claimed += 1;
            // SAFETY: claimed just now.
            #[expect(unsafe_code, reason = "follows the pointer into the batch")]
            let result = unsafe { caller.shared.read(index) };
            completed(index, result);
            reported += 1;
        }
        {
            let mut handed_in = caller.shared.lock();
            while claimed.is_none() && handed_in.results.is_empty() {
                handed_in = ignore_poison(caller.shared.more.wait(handed_in));
            }
            std::mem::swap(&mut results, &mut handed_in.results);
        }
        for (index, result) in results.drain(..) {
            completed(index, result);
            reported += 1;
        }
    }
}
