//! Execution of requests to the simulated disk. The caller of a blocking call or batch performs it
//! itself; submitted requests are performed by a thread of the disk, or by the caller of
//! [`crate::SimDisk::step`].
//!
//! Invariants: the lock is never held over `completed`, `done` or a file's methods. Each submitted
//! request is completed once, even after the last handle of the disk is dropped; then the thread
//! ends.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use libc::iovec;
use pagekeeper_io::backend::{BatchPart, IoRequest, Transfer, TransferJob, TransferKind, scatter};
use pagekeeper_io::{Access, BatchRead, Error, IoFile, WriteMode};
use pagekeeper_kernel::mutex::{ignore_poison, lock};

use crate::builder::SimDiskBuilder;
use crate::state::{DiskState, RequestTicket};

/// The state that all handles, files and holds of a disk share.
#[derive(Debug)]
pub(crate) struct SharedDisk {
    pub(crate) device: u64,
    state: Mutex<DiskState>,
    /// Signals a new request, the end of a hold, or the end of the disk.
    changed: Condvar,
}

/// A read or write in flight.
#[derive(Debug)]
pub(crate) struct CarriedJob<J> {
    job: J,
    transfer: Transfer,
    access: Access,
    inode: u64,
    ticket: RequestTicket,
}

/// The submitted requests.
#[derive(Debug, Default)]
pub(crate) struct SubmittedRequests {
    requests: Vec<CarriedJob<IoRequest>>,
    /// Whether a thread performs them.
    served: bool,
    /// Whether no more will come.
    closed: bool,
}

impl SharedDisk {
    pub(crate) fn lock(&self) -> MutexGuard<'_, DiskState> {
        lock(&self.state)
    }

    /// Waits for a change.
    pub(crate) fn wait<'s>(&self, state: MutexGuard<'s, DiskState>) -> MutexGuard<'s, DiskState> {
        ignore_poison(self.changed.wait(state))
    }

    /// Wakes all waiters for a change.
    pub(crate) fn changed(&self) {
        self.changed.notify_all();
    }

    /// Admits a job to the disk. Returns the result at once if the job needs no disk.
    fn admit<J: TransferJob>(&self, job: J) -> Result<CarriedJob<J>, (J, Result<usize, Error>)> {
        let transfer = Transfer::new(job.kind(), job.offset(), scatter::total(job.pieces()));
        if let Some(result) = transfer.before(job.file()) {
            return Err((job, result));
        }
        let inode = match job.file().stat() {
            Ok(stat) if stat.device == self.device => stat.inode,
            Ok(_) => {
                let path = job.file().path().to_path_buf();
                return Err((job, Err(Error::Foreign { path })));
            }
            Err(error) => return Err((job, Err(error))),
        };
        let access = job.file().access();
        let mut state = self.lock();
        state.count(job.kind());
        let ticket = start(&mut state, &job, &transfer, inode);
        drop(state);
        self.changed();
        Ok(CarriedJob { job, transfer, access, inode, ticket })
    }

    /// Processes the result of a raw request. Returns the result of the job, or `None` if
    /// another raw request was started.
    fn after<J: TransferJob>(
        &self,
        carried: &mut CarriedJob<J>,
        got: Result<usize, i32>,
    ) -> Option<Result<usize, Error>> {
        let CarriedJob { job, transfer, inode, ticket, .. } = carried;
        let asked = scatter::total(&scatter::rest(job.pieces(), transfer.done()));
        let result = transfer.after(asked, got, job.file(), job.pieces());
        if result.is_none() {
            *ticket = start(&mut self.lock(), job, transfer, *inode);
            self.changed();
        }
        result
    }

    /// Writes bytes, and waits until they are written.
    pub(crate) fn write(
        &self,
        file: &dyn IoFile,
        inode: u64,
        offset: u64,
        buf: &[u8],
        mode: WriteMode,
    ) -> Result<(), Error> {
        let pieces = [iovec { iov_base: buf.as_ptr().cast_mut().cast(), iov_len: buf.len() }];
        let mut transfer = Transfer::new(TransferKind::Write(mode), offset, buf.len());
        if let Some(result) = transfer.before(file) {
            return result.map(|_| ());
        }
        self.lock().count(transfer.kind());
        loop {
            let rest = &buf[transfer.done()..];
            let range = transfer.position()..transfer.position() + rest.len() as u64;
            let (mut state, ticket) = self.waited_for(inode, range);
            let got = state.write(ticket, rest, file.access(), mode);
            drop(state);
            if let Some(result) = transfer.after(rest.len(), got, file, &pieces) {
                return result.map(|_| ());
            }
        }
    }

    /// Waits until a request without bytes of its own is served.
    pub(crate) fn served(
        &self,
        inode: u64,
        range: Range<u64>,
        what: impl FnOnce(&mut DiskState) -> Result<(), i32>,
    ) -> Result<(), i32> {
        let (mut state, ticket) = self.waited_for(inode, range);
        state.served(ticket)?;
        what(&mut state)
    }

    /// Starts a request and waits until no hold stops it.
    fn waited_for(&self, inode: u64, range: Range<u64>) -> (MutexGuard<'_, DiskState>, RequestTicket) {
        let mut state = self.lock();
        let ticket = state.start(inode, range);
        while state.is_held(ticket) {
            self.changed();
            state = self.wait(state);
        }
        (state, ticket)
    }

    pub(crate) fn read_batch(
        &self,
        reads: &mut [BatchRead<'_>],
        completed: &mut dyn FnMut(usize, Result<usize, Error>),
    ) {
        let reads = &*reads;
        let mut batch = CarriedBatch { shared: self, parts: Vec::new() };
        for (index, read) in reads.iter().enumerate() {
            // SAFETY: each read is started once, and the caller's buffers are borrowed until the
            // batch is over.
            #[expect(unsafe_code, reason = "the disk writes into the caller's buffers")]
            let part = unsafe { BatchPart::new(index, read) };
            match self.admit(part) {
                Ok(carried) => batch.parts.push(carried),
                Err((part, result)) => completed(part.index(), result),
            }
        }
        while !batch.parts.is_empty() {
            let mut state = self.lock();
            let at = loop {
                match next(&state, &batch.parts, false) {
                    Some(at) => break at,
                    None => state = self.wait(state),
                }
            };
            let got = finish(&mut state, &batch.parts[at]);
            drop(state);
            if let Some(result) = self.after(&mut batch.parts[at], got) {
                let part = batch.parts.swap_remove(at);
                completed(part.job.index(), result);
            }
        }
    }

    /// Concludes a step, without the lock.
    fn conclude(&self, step: EndedStep) {
        let EndedStep { mut carried, got } = step;
        match self.after(&mut carried, got) {
            Some(result) => carried.job.finish(result),
            None => self.lock().submitted.requests.push(carried),
        }
    }

    /// Runs the disk's thread.
    fn serve(&self) {
        let mut state = self.lock();
        loop {
            if let Some(step) = serve_one(&mut state, false) {
                drop(state);
                self.conclude(step);
                state = self.lock();
            } else if state.submitted.closed && state.submitted.requests.is_empty() {
                return;
            } else {
                state = self.wait(state);
            }
        }
    }
}

/// A submitted job whose raw request has ended.
struct EndedStep {
    carried: CarriedJob<IoRequest>,
    got: Result<usize, i32>,
}

/// Ends the next submitted request.
fn serve_one(state: &mut DiskState, held_too: bool) -> Option<EndedStep> {
    let at = next(state, &state.submitted.requests, held_too)?;
    let carried = state.submitted.requests.swap_remove(at);
    let got = finish(state, &carried);
    Some(EndedStep { carried, got })
}

fn start<J: TransferJob>(state: &mut DiskState, job: &J, transfer: &Transfer, inode: u64) -> RequestTicket {
    let asked = scatter::total(&scatter::rest(job.pieces(), transfer.done()));
    state.start(inode, transfer.position()..transfer.position() + asked as u64)
}

/// Returns the index of the one that ends next.
fn next<J>(state: &DiskState, carried: &[CarriedJob<J>], held_too: bool) -> Option<usize> {
    let free = carried.iter().enumerate().filter(|(_, c)| held_too || !state.is_held(c.ticket));
    free.min_by_key(|(_, carried)| carried.ticket).map(|(at, _)| at)
}

fn finish<J: TransferJob>(state: &mut DiskState, carried: &CarriedJob<J>) -> Result<usize, i32> {
    let rest = scatter::rest(carried.job.pieces(), carried.transfer.done());
    match carried.job.kind() {
        // SAFETY: a part of the job's memory, which is valid for writes and belongs to the job
        // while it is carried.
        #[expect(unsafe_code, reason = "the promise of TransferJob is taken up")]
        TransferKind::Read => unsafe { state.read(carried.ticket, &rest, carried.access) },
        TransferKind::Write(mode) => {
            let Some(piece) = rest.first() else { return Err(libc::EINVAL) };
            // SAFETY: a part of the job's memory, which is valid for reads and not changed while it
            // is carried.
            #[expect(unsafe_code, reason = "the promise of TransferJob is taken up")]
            let bytes = unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) };
            state.write(carried.ticket, bytes, carried.access, mode)
        }
    }
}

/// A batch in flight. If a panic drops it early, the disk forgets its remaining requests.
struct CarriedBatch<'s, 'r> {
    shared: &'s SharedDisk,
    parts: Vec<CarriedJob<BatchPart<'r>>>,
}

impl Drop for CarriedBatch<'_, '_> {
    fn drop(&mut self) {
        for part in &self.parts {
            self.shared.lock().forget(part.ticket);
        }
    }
}

/// The part of a disk that all handles hold together. When it is dropped, no more requests come.
#[derive(Debug)]
pub(crate) struct DiskHandle {
    pub(crate) shared: Arc<SharedDisk>,
    pub(crate) of: SimDiskBuilder,
}

impl DiskHandle {
    pub(crate) fn new(of: SimDiskBuilder, state: DiskState, device: u64) -> Self {
        let shared = Arc::new(SharedDisk { device, state: Mutex::new(state), changed: Condvar::new() });
        Self { shared, of }
    }

    /// Performs one submitted request, if that is the caller's task.
    pub(crate) fn step(&self) -> bool {
        if !self.of.by_steps {
            return false;
        }
        let step = serve_one(&mut self.shared.lock(), false);
        step.is_some_and(|step| {
            self.shared.conclude(step);
            true
        })
    }

    pub(crate) fn submit(&self, requests: Vec<IoRequest>) {
        for request in requests {
            match self.shared.admit(request) {
                Ok(carried) => self.shared.lock().submitted.requests.push(carried),
                Err((request, result)) => request.finish(result),
            }
        }
        if self.of.at_once {
            while self.step() {}
        }
        if !self.of.by_steps {
            let served = std::mem::replace(&mut self.shared.lock().submitted.served, true);
            if !served {
                let shared = Arc::clone(&self.shared);
                std::thread::spawn(move || shared.serve());
            }
        }
        self.shared.changed();
    }
}

impl Drop for DiskHandle {
    fn drop(&mut self) {
        self.shared.lock().submitted.closed = true;
        self.shared.changed();
        if self.of.by_steps {
            // Nobody else performs them.
            loop {
                let Some(step) = serve_one(&mut self.shared.lock(), true) else { return };
                self.shared.conclude(step);
            }
        }
    }
}
