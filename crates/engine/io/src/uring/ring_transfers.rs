//! The reads and writes in a ring, each in a slot whose number is its token.
//!
//! Invariants: a slot is taken from the submission of its transfer until the result is known, over
//! any number of raw transfers. There are at most as many slots as the ring is deep, so a taken
//! slot always has room there. A [`RingTransfers`] never ends, even by a panic, while the kernel
//! may still use its memory.

use libc::iovec;

use super::ring::{Completion, Ring};
use crate::Error;
use crate::transfers::job::TransferJob;
use crate::transfers::scatter;
use crate::transfers::transfer::Transfer;

/// The token of the wake-up of a thread that waits in the ring.
const WAKE_TOKEN: u64 = u64::MAX;

/// The transfers in flight in one ring.
pub(super) struct RingTransfers<'r, J: TransferJob> {
    ring: &'r mut Ring,
    /// As many as were ever taken at once.
    slots: Vec<Option<TransferSlot<J>>>,
    free: Vec<usize>,
    slots_max: usize,
    completions: Vec<Completion>,
}

struct TransferSlot<J> {
    job: J,
    transfer: Transfer,
    /// Bytes that the current raw transfer asked for.
    asked: usize,
    /// The remaining memory, if an earlier raw transfer was short.
    rest: Vec<iovec>,
}

/// A completed transfer and its result.
pub(super) type EndedTransfer<J> = (J, Result<usize, Error>);

impl<'r, J: TransferJob> RingTransfers<'r, J> {
    /// Creates an empty set of up to `slots` concurrent transfers in an empty ring that is at least
    /// as deep.
    pub(super) fn new(ring: &'r mut Ring, slots: usize) -> Self {
        assert!(slots <= ring.room(), "more slots than room in the ring");
        Self { ring, slots: Vec::new(), free: Vec::new(), slots_max: slots, completions: Vec::new() }
    }

    /// Returns how many more transfers can be started.
    pub(super) fn room(&self) -> usize {
        self.slots_max - self.len()
    }

    /// Whether the ring has failed: see [`Self::wait`].
    pub(super) fn is_broken(&self) -> bool {
        self.ring.broken().is_some()
    }

    /// Returns how many transfers are in flight.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Starts a transfer. There must be room. Returns the result at once if the transfer needs no
    /// device.
    pub(super) fn begin(&mut self, job: J) -> Option<EndedTransfer<J>> {
        let transfer = Transfer::new(job.kind(), job.offset(), scatter::total(job.pieces()));
        if let Some(result) = transfer.before(job.file()) {
            return Some((job, result));
        }
        if job.file().fd().is_none() {
            let path = job.file().path().to_path_buf();
            return Some((job, Err(Error::Foreign { path })));
        }
        assert!(self.room() > 0, "no room for another transfer");
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let slot = self.slots[number].insert(TransferSlot { job, transfer, asked: 0, rest: Vec::new() });
        slot.put_into(self.ring, number);
        None
    }

    /// Requests one wake-up when `fd` becomes readable. The ring must have room for it besides the
    /// slots.
    pub(super) fn wake_by(&mut self, fd: std::os::fd::BorrowedFd<'_>) {
        self.ring.wait_readable(fd, WAKE_TOKEN);
    }

    /// Waits until `want` raw transfers have completed, or until a signal or wake-up. Passes each
    /// job that has ended to `ended`. Returns true after a wake-up.
    ///
    /// An error occurs once and makes the ring unusable: started jobs end with their own results,
    /// all others with this error.
    pub(super) fn wait(&mut self, want: usize, mut ended: impl FnMut(J, Result<usize, Error>)) -> bool {
        self.ring.enter(want);
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.take(&mut completions);
        let failed = self.ring.broken();
        let mut woken = false;
        for (token, got) in completions.drain(..) {
            if token == WAKE_TOKEN {
                woken = true;
            } else if let Some((job, result)) = self.completed(token, got, failed) {
                ended(job, result);
            }
        }
        self.completions = completions;
        if let Some(errno) = failed {
            for number in 0..self.slots.len() {
                if let Some(slot) = self.slots[number].take() {
                    self.free.push(number);
                    let error = slot.transfer.error(errno, slot.job.file());
                    ended(slot.job, Err(error));
                }
            }
        }
        woken
    }

    /// Processes the result of a raw transfer. Returns the result of the job if it has
    /// ended. `failed` means that no more raw transfers can be started.
    fn completed(
        &mut self,
        token: u64,
        got: Result<usize, i32>,
        failed: Option<i32>,
    ) -> Option<EndedTransfer<J>> {
        let number = usize::try_from(token).ok()?;
        let slot = self.slots.get_mut(number)?.as_mut()?;
        let result = slot.transfer.after(slot.asked, got, slot.job.file(), slot.job.pieces());
        let result = match (result, failed) {
            (None, None) => {
                slot.put_into(self.ring, number);
                return None;
            }
            (None, Some(errno)) => Err(slot.transfer.error(errno, slot.job.file())),
            (Some(result), _) => result,
        };
        self.free.push(number);
        self.slots[number].take().map(|slot| (slot.job, result))
    }
}

impl<J: TransferJob> TransferSlot<J> {
    /// Puts the next raw transfer into the ring.
    fn put_into(&mut self, ring: &mut Ring, number: usize) {
        let file = self.job.file();
        let Some(fd) = file.fd() else { unreachable!("a file had a descriptor and has none now") };
        let pieces: &[iovec] = match scatter::rest(self.job.pieces(), self.transfer.done()) {
            std::borrow::Cow::Borrowed(pieces) => pieces,
            std::borrow::Cow::Owned(rest) => {
                self.rest = rest;
                &self.rest
            }
        };
        self.asked = scatter::total(pieces);
        // A slot is emptied only in `completed`, after its transfer has come out, or in `wait` when
        // the ring has failed and takes nothing more; and `drop` drains the ring before any slot
        // goes.
        #[expect(unsafe_code, reason = "the kernel writes where it is asked to")]
        // SAFETY: the memory is the job's, valid until the job is dropped or returned (the contract
        // of `TransferJob`), and the list is the job's or this slot's on the heap. So both live
        // until the transfer has come out.
        unsafe {
            ring.transfer(self.transfer.kind(), fd, pieces, self.transfer.position(), number as u64);
        }
    }
}

impl<J: TransferJob> Drop for RingTransfers<'_, J> {
    fn drop(&mut self) {
        self.ring.drain();
    }
}
