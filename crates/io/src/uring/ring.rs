//! One ring: submits transfers and reaps completions.
//!
//! Invariants: at most `depth` transfers are in the ring, so that neither queue overflows. Each submitted transfer comes back exactly
//! once, as a completion or, once the ring has broken, as given up. Until then its memory is the kernel's. Only one thread at a time uses
//! a ring.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};
use libc::iovec;

use crate::transfer::Kind;
use crate::{Error, pwrite};

/// A completion: the token that its transfer was put in with, and the count of bytes or the error number.
pub(super) type Completion = (u64, Result<usize, i32>);

pub(super) struct Ring {
    queues: IoUring,
    depth: usize,
    /// Put in and not yet taken out.
    in_flight: usize,
    /// [`Self::enter`] has failed for good, with this error.
    broken: Option<i32>,
}

impl Ring {
    /// A ring for `depth` transfers at once.
    pub(super) fn new(depth: u32) -> Result<Self, Error> {
        let entries = depth.next_power_of_two();
        let mut builder = IoUring::builder();
        // Completions wait until the thread enters the kernel, where it does so anyway to wait for them, in place of
        // interrupting it: Linux 5.19.
        let queues =
            builder.setup_coop_taskrun().build(entries).or_else(|error| match error.raw_os_error() {
                Some(libc::EINVAL) => IoUring::new(entries),
                _ => Err(error),
            });
        let queues = queues.map_err(|error| unavailable("io_uring_setup", &error))?;
        Ok(Self { queues, depth: depth as usize, in_flight: 0, broken: None })
    }

    /// How many more may be put in.
    pub(super) fn room(&self) -> usize {
        self.depth - self.in_flight
    }

    /// How many are in.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The error that the ring failed with for good: it takes and gives no more.
    pub(super) fn broken(&self) -> Option<i32> {
        self.broken
    }

    /// Puts a read or write in and starts it.
    ///
    /// # Safety
    ///
    /// The pieces of memory must be valid for writes and no one else's (of a write: valid for reads and not changed), and
    /// the list itself must stay where it is, until the transfer has come out. There must be room.
    #[expect(unsafe_code, reason = "the kernel writes where it is asked to")]
    pub(super) unsafe fn transfer(
        &mut self,
        kind: Kind,
        fd: BorrowedFd<'_>,
        pieces: &[iovec],
        offset: u64,
        token: u64,
    ) {
        let fd = types::Fd(fd.as_raw_fd());
        // A longer piece comes back short and is gone on with, as preadv(2) does from 2 GiB on.
        let len = |piece: &iovec| u32::try_from(piece.iov_len).unwrap_or(1 << 30);
        let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
        let entry = match (kind, pieces) {
            (Kind::Read, [piece]) => {
                opcode::Read::new(fd, piece.iov_base.cast(), len(piece)).offset(offset).build()
            }
            (Kind::Read, pieces) => opcode::Readv::new(fd, pieces.as_ptr(), count).offset(offset).build(),
            (Kind::Write(mode), pieces) => {
                let flags = pwrite::flags(mode).bits().cast_signed();
                opcode::Writev::new(fd, pieces.as_ptr(), count).offset(offset).rw_flags(flags).build()
            }
        };
        // SAFETY: the caller vouches for memory and list. The descriptor need not live longer than the file: the kernel
        // holds that itself once the read has started, and a wrong number would only give EBADF.
        unsafe { self.push(&entry.user_data(token)) };
    }

    /// Puts in something that comes out when `fd` can be read.
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
    /// What the entry points at must be valid until it has come out.
    #[expect(unsafe_code, reason = "the kernel writes where it is asked to")]
    unsafe fn push(&mut self, entry: &io_uring::squeue::Entry) {
        assert!(self.room() > 0, "no room in the ring");
        // SAFETY: the caller vouches for the entry.
        let pushed = unsafe { self.queues.submission().push(entry) };
        // The queue is no smaller than the depth, and entries leave it before they come out.
        assert!(pushed.is_ok(), "the submission queue is smaller than the depth");
        self.in_flight += 1;
        // Each by itself: from three entries on the kernel collects their requests and passes them to the device together
        // (`IO_PLUG_THRESHOLD`), which saves half a microsecond of CPU each and has the device wait, at the cost of up to a
        // tenth of the throughput.
        self.enter(0);
    }

    /// Starts what was put in and could not be started yet, and waits until `want` (at most what is in) have completed.
    ///
    /// Returns early on a signal. On an error the ring is broken: what had been started still completes, the rest was
    /// not begun.
    pub(super) fn enter(&mut self, want: usize) {
        if self.broken.is_some() {
            return;
        }
        let want = want.min(self.in_flight);
        // Completions come with every call into the kernel, those that put others in among them.
        if want > 0 && self.queues.submission().is_empty() && self.queues.completion().len() >= want {
            return;
        }
        let Err(error) = self.queues.submit_and_wait(want) else { return };
        match error.raw_os_error().unwrap_or(libc::EIO) {
            libc::EINTR => {}
            // No memory for more at the moment, or completions are to be taken out first.
            libc::EAGAIN | libc::EBUSY | libc::ENOMEM => std::thread::sleep(Duration::from_micros(100)),
            errno => self.broken = Some(errno),
        }
    }

    /// Takes out what has completed, into `completions`; of a broken ring all that had been started.
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
            completions.push((entry.user_data(), count(entry.result())));
        }
    }

    /// Waits for all that is in the ring and forgets the results.
    pub(super) fn drain(&mut self) {
        let mut completions = Vec::new();
        while self.in_flight > 0 {
            self.enter(self.in_flight);
            self.take(&mut completions);
            completions.clear();
        }
    }

    /// After [`Self::enter`] has failed: waits for what had been started and takes it out. What then has not come out
    /// was never begun, and never will be: the ring takes nothing more.
    fn give_up(&mut self, completions: &mut Vec<Completion>) {
        loop {
            self.take_completed(completions);
            let unsubmitted = self.queues.submission().len();
            if self.in_flight == unsubmitted {
                self.in_flight = 0;
                return;
            }
            // Completions are posted when the thread comes back from any call into the kernel.
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

fn count(result: i32) -> Result<usize, i32> {
    usize::try_from(result).map_err(|_| -result)
}

pub(super) fn unavailable(call: &'static str, error: &std::io::Error) -> Error {
    Error::Unavailable { what: "io_uring", call, errno: error.raw_os_error().unwrap_or(libc::ENOSYS) }
}
