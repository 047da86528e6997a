//! A batch of reads on one ring, by the calling thread alone.

use libc::iovec;

use super::flight::{Flight, Job};
use super::ring::Ring;
use crate::{BatchRead, Error, IoFile, pread, scatter};

/// One part of the reads in flight is waited for at a time: fewer calls into the kernel, and the device still has the
/// other parts to work on.
const WAIT_SHARE: usize = 8;

/// One read of the batch.
struct Part<'a> {
    index: usize,
    read: &'a BatchRead<'a>,
}

// SAFETY: the buffers are borrowed alone for as long as the batch runs (`run` has the reads by `&mut`, and gives them to
// no one), and nothing in this process looks at them before the read has been given back; the list of them is on the
// heap, and not changed.
#[expect(unsafe_code, reason = "the promise that the kernel's writes rest on")]
unsafe impl Job for Part<'_> {
    fn file(&self) -> &dyn IoFile {
        self.read.file
    }

    fn offset(&self) -> u64 {
        self.read.offset
    }

    fn pieces(&self) -> &[iovec] {
        scatter::of_slices(&self.read.bufs)
    }
}

/// Runs the batch; the ring is empty before and after, also after a panic of `completed`.
pub(super) fn run(
    ring: &mut Ring,
    reads: &mut [BatchRead<'_>],
    completed: &mut dyn FnMut(usize, Result<usize, Error>),
) {
    let begun = run_on(ring, reads, completed);
    // Left over by a ring that broke.
    for (index, read) in reads.iter_mut().enumerate().skip(begun) {
        completed(index, pread::read_alone(read));
    }
}

/// Runs the batch as far as the ring lasts; says how many were begun, all of which have ended.
fn run_on(
    ring: &mut Ring,
    reads: &mut [BatchRead<'_>],
    completed: &mut dyn FnMut(usize, Result<usize, Error>),
) -> usize {
    let reads = &*reads;
    let slots = reads.len().min(ring.room());
    let mut flight = Flight::new(ring, slots);
    let mut begun = 0;
    loop {
        while let (Some(read), 1..) = (reads.get(begun), flight.room()) {
            if let Some((part, result)) = flight.begin(Part { index: begun, read }) {
                completed(part.index, result);
            }
            begun += 1;
        }
        if flight.len() == 0 || flight.is_broken() {
            return begun;
        }
        flight.wait((flight.len() / WAIT_SHARE).max(1), |part, result| completed(part.index, result));
    }
}
