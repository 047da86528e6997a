//! A batch of reads on one ring, by the calling thread alone.

use super::flight::Flight;
use super::ring::Ring;
use crate::job::Part;
use crate::{BatchRead, Error, pread};

/// One part of the reads in flight is waited for at a time: fewer calls into the kernel, and the device still has the
/// other parts to work on.
const WAIT_SHARE: usize = 8;

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
        while let (Some(read), 1.., false) = (reads.get(begun), flight.room(), flight.is_broken()) {
            // SAFETY: each read is begun once, and the caller's buffers are borrowed until the flight is over.
            #[expect(unsafe_code, reason = "the kernel writes into the caller's buffers")]
            let part = unsafe { Part::new(begun, read) };
            if let Some((part, result)) = flight.begin(part) {
                completed(part.index(), result);
            }
            begun += 1;
        }
        if flight.len() == 0 {
            return begun;
        }
        flight.wait((flight.len() / WAIT_SHARE).max(1), |part, result| completed(part.index(), result));
    }
}
