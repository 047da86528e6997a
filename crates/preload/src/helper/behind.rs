//! Releases behind large reads and writes while they are made ([`crate::large`]).
//!
//! The file's position moves only as the call returns. How far a read has come is seen by the pages that were not there before: what
//! lies further back from the last of them than read-ahead goes was read. What comes in further ahead than that is somebody else's, and
//! is left from then on. How far a write has come the file's size says. What it wrote is written in pieces
//! ([`crate::writeback`]), and dropped at later checks. It can't be held up, since it is in the kernel: a disk that is slower than memory
//! falls behind.
//!
//! Invariant: a call is forgotten as soon as it is over: the rest is its reader's or writer's to release. One that goes nowhere for
//! [`PATIENCE`], as one that its program has jumped out of, is forgotten, too.

use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::c_int;
use pagekeeper_policy::WINDOW;
use pagekeeper_policy::allowance::align_down;
use pagekeeper_policy::stream::HORIZON;

use super::{FileHash, drop_written, first_resident};
use crate::disks::Share;
use crate::large::LargeCall;
use crate::residency::ResidencyProbe;
use crate::writeback::Outflow;
use crate::{process, sys};

/// Calls at a time; those beyond are released by who makes them alone.
const CALLS: usize = 4;
/// Nanoseconds between two checks: of a read, and of a write, whose pieces follow each other.
const SOON: u64 = 4_000_000;
const SOON_WRITE: u64 = 500_000;
/// Nanoseconds without a step of a write.
const PATIENCE: u64 = 60_000_000_000;

/// Calls on their way to the helper.
static GIVEN: [AtomicPtr<u8>; CALLS] = [const { AtomicPtr::new(null_mut()) }; CALLS];

/// Puts a handle where the helper takes it: where that is. `None`: there is no room.
pub(super) fn give(call: &LargeCall) -> Option<u32> {
    let mut address = call.share().into_address();
    let is_free = |place: &AtomicPtr<u8>| {
        place.compare_exchange(null_mut(), address, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    let place = GIVEN.iter().position(is_free);
    if place.is_none() {
        drop(handle(core::mem::replace(&mut address, null_mut())));
    }
    place.map(|place| place as u32)
}

/// Takes the handle from there.
pub(super) fn take(place: u32) -> Option<LargeCall> {
    handle(GIVEN.get(place as usize)?.swap(null_mut(), Ordering::AcqRel))
}

#[allow(unsafe_code, reason = "takes an address for a handle")]
fn handle(address: *mut u8) -> Option<LargeCall> {
    // SAFETY: null, or put there by `give`, and taken out by this call alone.
    unsafe { LargeCall::from_address(address) }
}

/// In a child of fork, what its parent gave is the parent's.
pub(super) fn after_fork() {
    for place in &GIVEN {
        place.store(null_mut(), Ordering::Relaxed);
    }
}

/// One call.
struct Followed {
    call: LargeCall,
    file: c_int,
    place: FileHash,
    probe: ResidencyProbe,
    /// What lies before it was released; and how far the call was seen to have come, and when.
    released: u64,
    reached: u64,
    moved_at: u64,
    /// What a write wrote, on its way to its disk.
    outflow: Outflow,
    share: Share,
}

/// Calls that are followed.
pub(super) struct Behind([Option<Followed>; CALLS]);

impl Behind {
    pub(super) const NONE: Self = Self([const { None }; CALLS]);

    /// Nanoseconds until the next check.
    pub(super) fn due(&self) -> Option<u64> {
        let due = |followed: &Followed| if followed.call.is_write() { SOON_WRITE } else { SOON };
        self.0.iter().flatten().map(due).min()
    }

    /// Follows the call that was put at that place, in a file of which `file` is our own descriptor.
    pub(super) fn add(&mut self, given: u32, file: c_int, place: FileHash) {
        let free = self.0.iter_mut().find(|followed| followed.is_none());
        let (Some(free), Some(call)) = (free, take(given)) else {
            sys::close(file);
            return place.give_back();
        };
        let mut probe = ResidencyProbe::with(sys::has_counts(file));
        probe.learn(file);
        let (start, moved_at) = (call.range().start, sys::now());
        let share = Share::of(sys::fstat(file).map_or(0, |stat| stat.st_dev));
        let mut outflow = Outflow::NONE;
        outflow.set_step(share.pace(u64::MAX, call.range().end.saturating_sub(start), true).step);
        let (released, reached) = (start, start);
        *free = Some(Followed { call, file, place, probe, released, reached, moved_at, outflow, share });
    }

    /// Releases what was read or written since.
    pub(super) fn release(&mut self) {
        for followed in &mut self.0 {
            if followed.as_mut().is_some_and(|followed| !followed.release()) {
                *followed = None;
            }
        }
    }

    /// Forgets the calls on files that are to be let go of.
    pub(super) fn let_go(&mut self) {
        for followed in &mut self.0 {
            if followed.as_ref().is_some_and(|followed| followed.place.is_unwanted()) {
                *followed = None;
            }
        }
    }
}

impl Followed {
    /// `false`: the call is over.
    fn release(&mut self) -> bool {
        if self.call.is_over() {
            return false;
        }
        if self.call.is_write() {
            return self.release_written();
        }
        let range = self.call.range();
        while self.reached < range.end && self.has_own(self.reached..self.reached + WINDOW) != Some(false) {
            self.reached += WINDOW;
        }
        let ahead = self.reached.saturating_add(HORIZON);
        if ahead < range.end && self.has_own(ahead..range.end) == Some(true) {
            let mut start = ahead;
            while start < range.end {
                let window = start..(start + WINDOW).min(range.end);
                if self.has_own(window.clone()) == Some(true) {
                    self.call.set(&window, false);
                }
                start = window.end;
            }
        }
        let read = self.reached.saturating_sub(HORIZON);
        if read > self.released {
            // The last window once more: a large folio may have reached beyond it.
            let from = self.released.saturating_sub(WINDOW);
            for own in self.call.own(from..read) {
                process::count(self.call.released(), drop_written(self.file, own));
            }
            self.released = read;
        }
        true
    }

    /// The same of a write.
    fn release_written(&mut self) -> bool {
        let Ok(size) = sys::size_now(self.file) else { return false };
        let now = sys::now();
        let begun = self.reached;
        let reached = align_down(size.min(self.call.range().end));
        if reached > begun {
            self.outflow.add(self.file, &(begun..reached));
            (self.reached, self.moved_at) = (reached, now);
        }
        self.outflow.go_on(self.file, &self.share);
        // As far as all is written: to advise of pages that are not has all processors empty their lists of pages.
        while self.released < begun && !self.call.is_over() {
            let window = self.released..self.released + WINDOW;
            let Ok(seen) = sys::cachestat(self.file, window.clone()) else { return false };
            if seen.dirty + seen.writeback > 0 {
                break;
            }
            if seen.cached > 0 {
                process::count(self.call.released(), drop_written(self.file, window.clone()));
                if first_resident(self.file, window.clone()) < window.end {
                    break;
                }
            }
            self.released = window.end;
        }
        now.saturating_sub(self.moved_at) < PATIENCE
    }

    /// Whether pages of a range are resident that were not before; `None` where it had none that may go.
    fn has_own(&mut self, range: Range<u64>) -> Option<bool> {
        let mut has = None;
        for own in self.call.own(range) {
            if self.probe.resident(self.file, &own).unwrap_or(0) > 0 {
                return Some(true);
            }
            has = Some(false);
        }
        has
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        sys::close(self.file);
        self.place.give_back();
    }
}
