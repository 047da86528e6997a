//! A batch of reads on one ring, by the calling thread alone.

use super::ring::Ring;
use super::ring_transfers::RingTransfers;
use crate::transfers::job::BatchPart;
use crate::transfers::pread;
use crate::{BatchRead, Error};

/// The ring waits for this fraction of the reads in flight at a time: this saves calls into the
/// kernel, and the device still has the others to work on.
const BATCH_WAIT_SHARE: usize = 8;

/// Runs the batch. The ring is empty before and after, even after a panic of `completed`.
pub(super) fn run(
    ring: &mut Ring,
    reads: &mut [BatchRead<'_>],
    completed: &mut dyn FnMut(usize, Result<usize, Error>),
) {
    let begun = run_on(ring, reads, completed);
    // The rest after the ring broke.
    for (index, read) in reads.iter_mut().enumerate().skip(begun) {
        completed(index, pread::read_alone(read));
    }
}

/// Runs the batch until it is done or the ring breaks. Returns how many reads were started, all of
/// which have ended.
fn run_on(
    ring: &mut Ring,
    reads: &mut [BatchRead<'_>],
    completed: &mut dyn FnMut(usize, Result<usize, Error>),
) -> usize {
    let reads = &*reads;
    let slots = reads.len().min(ring.room());
    let mut transfers = RingTransfers::new(ring, slots);
    let mut begun = 0;
    loop {
        while let (Some(read), 1.., false) = (reads.get(begun), transfers.room(), transfers.is_broken()) {
            // SAFETY: each read is started once, and the caller's buffers are borrowed until the
            // transfers are over.
            #[expect(unsafe_code, reason = "the kernel writes into the caller's buffers")]
            let part = unsafe { BatchPart::new(begun, read) };
            if let Some((part, result)) = transfers.begin(part) {
                completed(part.index(), result);
            }
            begun += 1;
        }
        if transfers.len() == 0 {
            return begun;
        }
        transfers.wait((transfers.len() / BATCH_WAIT_SHARE).max(1), |part, result| {
            completed(part.index(), result);
        });
    }
}
