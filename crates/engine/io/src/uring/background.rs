//! Background reads and writes: one ring, and a thread that serves it.
//!
//! Invariants: submitters wait only for the queue's lock, which is never held over I/O or a `done`.
//! Each submitted request is completed once, even after the [`BackgroundRing`] is dropped; then the
//! thread ends.
//!
//! The thread waits in the ring. A submitter wakes it through an eventfd, but only if the thread
//! noted, under the same lock, that the queue was empty.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use pagekeeper_kernel::mutex::lock;

use rustix::event::{EventfdFlags, eventfd};

use super::ring::{Ring, unavailable};
use super::ring_transfers::RingTransfers;
use crate::transfers::job::IoRequest;
use crate::{Error, Process, Threads};

/// The submitters' side of the background ring.
#[derive(Debug)]
pub(super) struct BackgroundRing {
    depth: u32,
    shared: OnceLock<Arc<SharedQueue>>,
    /// Held while the thread is started.
    starting: Mutex<()>,
    /// The fallback if there is no ring.
    threads: Threads,
    process: Process,
}

#[derive(Debug)]
struct SharedQueue {
    queue: Mutex<RequestQueue>,
    /// An eventfd.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct RequestQueue {
    waiting: VecDeque<IoRequest>,
    /// Whether the thread found the queue empty: whoever adds to it must wake the thread.
    parked: bool,
    /// Whether no more requests will come.
    closed: bool,
    /// Whether the thread has ended because its ring broke.
    broken: bool,
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, RequestQueue> {
        lock(&self.queue)
    }

    fn wake(&self) {
        // Fails only if the counter is at its maximum, and then the thread has been woken already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl BackgroundRing {
    pub(super) fn new(depth: u32) -> Self {
        let (threads, process) = (Threads::new(), Process::current());
        Self { depth, shared: OnceLock::new(), starting: Mutex::new(()), threads, process }
    }

    /// Returns the fallback if there is no ring.
    pub(super) fn threads(&self) -> &Threads {
        &self.threads
    }

    pub(super) fn submit(&self, requests: Vec<IoRequest>) {
        if requests.is_empty() {
            return;
        }
        let Ok(shared) = self.shared() else {
            return self.threads.request(requests);
        };
        let mut queue = shared.lock();
        if queue.broken {
            drop(queue);
            return self.threads.request(requests);
        }
        queue.waiting.extend(requests);
        let wake = std::mem::replace(&mut queue.parked, false);
        drop(queue);
        if wake {
            shared.wake();
        }
    }

    /// Starts the thread unless it was started. If that fails, the next call tries again.
    fn shared(&self) -> Result<&Arc<SharedQueue>, Error> {
        self.process.require()?;
        if let Some(shared) = self.shared.get() {
            return Ok(shared);
        }
        let _starting = lock(&self.starting);
        if let Some(shared) = self.shared.get() {
            return Ok(shared);
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| unavailable("eventfd", &errno.into()))?;
        let shared = Arc::new(SharedQueue { queue: Mutex::default(), wake });
        // One more slot, for the wake-up.
        let ring = Ring::new(self.depth + 1)?;
        let served = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("pagekeeper-io".to_owned())
            .spawn(move || serve(ring, &served))
            .map_err(|error| unavailable("clone", &error))?;
        Ok(self.shared.get_or_init(|| shared))
    }
}

impl Drop for BackgroundRing {
    fn drop(&mut self) {
        // Not joined: this may run on that very thread, in a `done` that held the last handle. A
        // forked child does not touch the lock, which may be held forever.
        if let Some(shared) = self.shared.get().filter(|_| self.process.is_current()) {
            shared.lock().closed = true;
            shared.wake();
        }
    }
}

/// Runs the thread until no more requests can come and all are done, or the ring breaks.
fn serve(mut ring: Ring, shared: &SharedQueue) {
    let slots = ring.room() - 1;
    let mut transfers: RingTransfers<'_, IoRequest> = RingTransfers::new(&mut ring, slots);
    let mut taken = Vec::new();
    let mut armed = false;
    loop {
        let closed = {
            let mut queue = shared.lock();
            let count = queue.waiting.len().min(transfers.room());
            taken.extend(queue.waiting.drain(..count));
            // If requests remain in the queue, the ring is full, and a completion will wake the
            // thread.
            queue.parked = queue.waiting.is_empty();
            queue.closed
        };
        let mut ended = false;
        for request in taken.drain(..) {
            if let Some((request, result)) = transfers.begin(request) {
                request.finish(result);
                ended = true;
            }
        }
        if ended {
            // There is room for others again.
            continue;
        }
        if closed && transfers.len() == 0 && shared.lock().waiting.is_empty() {
            return;
        }
        if !armed && !closed {
            transfers.wake_by(shared.wake.as_fd());
            armed = true;
        }
        let woken = transfers.wait(1, IoRequest::finish);
        if transfers.is_broken() && transfers.len() == 0 {
            let mut queue = shared.lock();
            queue.broken = true;
            let waiting = std::mem::take(&mut queue.waiting);
            drop(queue);
            // Their submitters do not wait for them, so this thread performs them.
            waiting.into_iter().for_each(IoRequest::run);
            return;
        }
        if woken {
            armed = false;
            let _ = rustix::io::read(&shared.wake, &mut [0_u8; 8]);
        }
    }
}
