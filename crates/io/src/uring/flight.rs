//! The reads and writes in a ring, each in a slot whose number is its token.
//!
//! Invariants: a slot is taken from when its transfer is submitted until the result is known, over any number of raw transfers. There are
//! no more slots than the ring is deep, so a taken slot always has room there. A [`Flight`] never ends, also not by a panic, while the
//! kernel may still use its memory.

use libc::iovec;

use super::ring::{Completion, Ring};
use crate::job::Job;
use crate::transfer::Transfer;
use crate::{Error, scatter};

/// The token of what is no transfer: the wake-up of a thread that waits in the ring.
const WAKE: u64 = u64::MAX;

pub(super) struct Flight<'r, J: Job> {
    ring: &'r mut Ring,
    /// As many as were ever taken at once.
    slots: Vec<Option<Slot<J>>>,
    free: Vec<usize>,
    slots_max: usize,
    completions: Vec<Completion>,
}

struct Slot<J> {
    job: J,
    transfer: Transfer,
    /// How many bytes the raw transfer that is in the ring asked for.
    asked: usize,
    /// Where it goes, when an earlier one brought only a part.
    rest: Vec<iovec>,
}

/// A transfer's end.
pub(super) type Ended<J> = (J, Result<usize, Error>);

impl<'r, J: Job> Flight<'r, J> {
    /// A flight of up to `slots` transfers at once in an empty ring that is at least as deep.
    pub(super) fn new(ring: &'r mut Ring, slots: usize) -> Self {
        assert!(slots <= ring.room(), "more slots than room in the ring");
        Self { ring, slots: Vec::new(), free: Vec::new(), slots_max: slots, completions: Vec::new() }
    }

    /// How many more transfers can be begun.
    pub(super) fn room(&self) -> usize {
        self.slots_max - self.len()
    }

    /// Whether the ring has failed: see [`Self::wait`].
    pub(super) fn is_broken(&self) -> bool {
        self.ring.broken().is_some()
    }

    /// How many are on their way.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Starts a transfer. There must be room. One that needs no device ends here.
    pub(super) fn begin(&mut self, job: J) -> Option<Ended<J>> {
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
        let slot = self.slots[number].insert(Slot { job, transfer, asked: 0, rest: Vec::new() });
        slot.put_into(self.ring, number);
        None
    }

    /// Asks to be woken, once, when `fd` can be read: one more than the slots must fit the ring.
    pub(super) fn wake_by(&mut self, fd: std::os::fd::BorrowedFd<'_>) {
        self.ring.wait_readable(fd, WAKE);
    }

    /// Waits until `want` raw transfers have completed (earlier on a signal or a wake-up), and hands each job that has ended
    /// to `ended`. True after a wake-up.
    ///
    /// On an error, which comes once, the ring is of no use any more: jobs that had been started end as they may, all
    /// others with that error.
    pub(super) fn wait(&mut self, want: usize, mut ended: impl FnMut(J, Result<usize, Error>)) -> bool {
        self.ring.enter(want);
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.take(&mut completions);
        let failed = self.ring.broken();
        let mut woken = false;
        for (token, got) in completions.drain(..) {
            if token == WAKE {
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

    /// Takes in a raw transfer's result; gives the job's own, if it has ended with it. `failed`: no more can be begun.
    fn completed(&mut self, token: u64, got: Result<usize, i32>, failed: Option<i32>) -> Option<Ended<J>> {
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

impl<J: Job> Slot<J> {
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
        #[expect(unsafe_code, reason = "the kernel writes where it is asked to")]
        // SAFETY: the memory is the job's, valid until the job is dropped or given back (the contract of `Job`), and
        // the list is the job's or this slot's on the heap. Both live until the transfer has come out: a slot is emptied
        // only in `completed`, after that, or in `wait` when the ring has given up and will take no more; and `drop`
        // drains the ring before any slot goes.
        unsafe {
            ring.transfer(self.transfer.kind(), fd, pieces, self.transfer.position(), number as u64);
        }
    }
}

impl<J: Job> Drop for Flight<'_, J> {
    fn drop(&mut self) {
        self.ring.drain();
    }
}
