//! One ring: submits transfers and reaps completions.
//!
//! Invariants: at most `depth` transfers are in the ring, so that neither queue overflows. Each
//! submitted transfer comes back exactly once, as a completion or, once the ring has broken, as
//! given up. Until then the kernel owns its memory. Only one thread at a time uses a ring.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};
use libc::iovec;

use crate::Error;
use crate::transfers::pwrite;
use crate::transfers::transfer::TransferKind;

/// A completion: the token of its transfer, and the byte count or the error number.
pub(super) type Completion = (u64, Result<usize, i32>);

pub(super) struct Ring {
    queues: IoUring,
    depth: usize,
    /// Transfers that were put in and not yet taken out.
    in_flight: usize,
    /// The error with which [`Self::enter`] failed for good.
    broken: Option<i32>,
}

impl Ring {
    /// Creates a ring for `depth` concurrent transfers.
    pub(super) fn new(depth: u32) -> Result<Self, Error> {
        if is_under_valgrind() {
            let (what, call) = ("io_uring under valgrind", "io_uring_setup");
            return Err(Error::Unavailable { what, call, errno: libc::EOPNOTSUPP });
        }
        let entries = depth.next_power_of_two();
        let mut builder = IoUring::builder();
        // Completions wait until the thread enters the kernel, which it does anyway to wait for
        // them, and do not interrupt it: Linux 5.19.
        let queues =
            builder.setup_coop_taskrun().build(entries).or_else(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => IoUring::new(entries),
                _ => Err(error),
            });
        let queues = queues.map_err(|error| unavailable("io_uring_setup", &error))?;
        Ok(Self { queues, depth: depth as usize, in_flight: 0, broken: None })
    }

    /// Returns how many more transfers fit.
    pub(super) fn room(&self) -> usize {
        self.depth - self.in_flight
    }

    /// Returns how many transfers are in the ring.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the error with which the ring failed for good: it takes and returns nothing more.
    pub(super) fn broken(&self) -> Option<i32> {
        self.broken
    }

    /// Puts a read or write into the ring and starts it.
    ///
    /// # Safety
    ///
    /// The pieces of memory must be valid for writes and used by nobody else (for a write: valid
    /// for reads and not changed), and the list itself must not move, until the transfer has come
    /// out. There must be room.
    #[expect(unsafe_code, reason = "the kernel writes where it is asked to")]
    pub(super) unsafe fn transfer(
        &mut self,
        kind: TransferKind,
        fd: BorrowedFd<'_>,
        pieces: &[iovec],
        offset: u64,
        token: u64,
    ) {
        let fd = types::Fd(fd.as_raw_fd());
        // A longer piece comes back short and is continued, as with preadv(2) above 2 GiB.
        let len = |piece: &iovec| u32::try_from(piece.iov_len).unwrap_or(1 << 30);
        let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
        let entry = match (kind, pieces) {
            (TransferKind::Read, [piece]) => {
                opcode::Read::new(fd, piece.iov_base.cast(), len(piece)).offset(offset).build()
            }
            (TransferKind::Read, pieces) => {
                opcode::Readv::new(fd, pieces.as_ptr(), count).offset(offset).build()
            }
            (TransferKind::Write(mode), pieces) => {
                let flags = pwrite::flags(mode).bits().cast_signed();
                opcode::Writev::new(fd, pieces.as_ptr(), count).offset(offset).rw_flags(flags).build()
            }
        };
        // SAFETY: the caller guarantees memory and list. The descriptor need not outlive the call:
        // the kernel holds the file once the transfer has started, and a wrong number would only
        // give EBADF.
        unsafe { self.push(&entry.user_data(token)) };
    }

    /// Adds a poll that completes when `fd` becomes readable.
    pub(super) fn wait_readable(&mut self, fd: BorrowedFd<'_>, token: u64) {
        let events = u32::try_from(libc::POLLIN).unwrap_or(1);
        let entry = opcode::PollAdd::new(types::Fd(fd.as_raw_fd()), events).build().user_data(token);
        // SAFETY: a poll touches no memory of this process.
        #[expect(unsafe_code, reason = "all entries go through one unsafe function")]
        unsafe {
            self.push(&entry);
        }
    }

    /// # Safety
    ///
    /// The memory that the entry points at must be valid until it has come out.
    #[expect(unsafe_code, reason = "the kernel writes where it is asked to")]
    unsafe fn push(&mut self, entry: &io_uring::squeue::Entry) {
        assert!(self.room() > 0, "no room in the ring");
        // SAFETY: the caller guarantees the entry.
        let pushed = unsafe { self.queues.submission().push(entry) };
        // The queue is at least as deep as the ring, and entries leave it before they come out.
        assert!(pushed.is_ok(), "the submission queue is smaller than the depth");
        self.in_flight += 1;
        // Each by itself: from three entries on, the kernel collects their requests and passes them
        // to the device together (`IO_PLUG_THRESHOLD`). That saves CPU time but lets the device
        // idle, at the cost of throughput.
        self.enter(0);
    }

    /// Starts entries that could not be started yet, and waits until `want` (at most the number in
    /// the ring) have completed.
    ///
    /// Returns early on a signal. An error breaks the ring: started transfers still complete, the
    /// others were not begun.
    pub(super) fn enter(&mut self, want: usize) {
        if self.broken.is_some() {
            return;
        }
        let want = want.min(self.in_flight);
        // Completions arrive with every call into the kernel, including those that submit.
        if want > 0 && self.queues.submission().is_empty() && self.queues.completion().len() >= want {
            return;
        }
        let Err(error) = self.queues.submit_and_wait(want) else { return };
        match error.raw_os_error().unwrap_or(libc::EIO) {
            libc::EINTR => {}
            // No memory at the moment, or completions must be taken out first.
            libc::EAGAIN | libc::EBUSY | libc::ENOMEM => std::thread::sleep(Duration::from_micros(100)),
            errno => self.broken = Some(errno),
        }
    }

    /// Moves completions into `completions`; from a broken ring, those of all started transfers.
    pub(super) fn take(&mut self, completions: &mut Vec<Completion>) {
        if self.broken.is_some() {
            self.give_up(completions);
        } else {
            self.take_completed(completions);
        }
    }

    fn take_completed(&mut self, completions: &mut Vec<Completion>) {
        for entry in self.queues.completion() {
            self.in_flight -= 1;
            completions.push((entry.user_data(), parse_result(entry.result())));
        }
    }

    /// Waits for everything in the ring and discards the results.
    pub(super) fn drain(&mut self) {
        let mut completions = Vec::new();
        while self.in_flight > 0 {
            self.enter(self.in_flight);
            self.take(&mut completions);
            completions.clear();
        }
    }

    /// Waits for all started transfers after [`Self::enter`] has failed, and takes them out. The
    /// others were never begun and never will be: the ring accepts nothing more.
    fn give_up(&mut self, completions: &mut Vec<Completion>) {
        loop {
            self.take_completed(completions);
            let unsubmitted = self.queues.submission().len();
            if self.in_flight == unsubmitted {
                self.in_flight = 0;
                return;
            }
            // Completions are posted when the thread returns from any call into the kernel.
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("depth", &self.depth)
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.drain();
    }
}

/// Whether valgrind runs this process. It runs one thread at a time, and all others stand still
/// while one waits in a ring; and it does not see what the kernel writes. Reads the environment at
/// the first call only.
fn is_under_valgrind() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    // No `OnceLock`: a fork during the first call would leave it locked in the child.
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        let state = if has_valgrind_core(preloaded.as_encoded_bytes()) { YES } else { NO };
        STATE.store(state, Ordering::Relaxed);
    }
    STATE.load(Ordering::Relaxed) == YES
}

/// Whether a list of preloaded libraries has the one that valgrind adds for all its tools.
pub(super) fn has_valgrind_core(preloaded: &[u8]) -> bool {
    let mut components = preloaded.split(|byte| b": /".contains(byte));
    components.any(|component| component.starts_with(b"vgpreload_core"))
}

fn parse_result(result: i32) -> Result<usize, i32> {
    usize::try_from(result).map_err(|_| -result)
}

pub(super) fn unavailable(call: &'static str, error: &std::io::Error) -> Error {
    Error::Unavailable { what: "io_uring", call, errno: error.raw_os_error().unwrap_or(libc::ENOSYS) }
}
