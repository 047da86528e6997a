//! A stream of reads on one ring, by the calling thread alone.

use super::ring::Ring;
use super::ring_transfers::RingTransfers;
use crate::Error;
use crate::transfers::job::TransferJob;
use crate::transfers::pread;
use crate::transfers::stream::{ReadStream, StreamRead};

/// The ring waits for this fraction of the reads in flight at a time: this saves calls into the
/// kernel, and the device still has the others to work on.
const STREAM_WAIT_SHARE: usize = 32;

/// Runs the stream to its end. The ring is empty before and after, even after a panic of the
/// stream.
pub(super) fn run(ring: &mut Ring, stream: &mut dyn ReadStream<'_>) {
    while let Some(first) = stream.next() {
        if let Some(second) = stream.next() {
            run_on(ring, [first, second], stream);
        } else {
            // A single read is not worth a ring.
            read_alone(&first, stream);
            stream.turn();
        }
    }
}

fn read_alone(read: &StreamRead<'_>, stream: &mut dyn ReadStream<'_>) {
    // SAFETY: by the contract of `ReadTarget` the memory belongs to the read until `ended` has been
    // called.
    #[expect(unsafe_code, reason = "the promise of ReadTarget is taken up")]
    let result = unsafe { pread::read(read.file, read.offset, read.pieces()) };
    stream.ended(read.token, result);
}

/// Runs the stream until it ends or the ring breaks. All reads that were started have ended then.
fn run_on<'a>(ring: &mut Ring, first: [StreamRead<'a>; 2], stream: &mut dyn ReadStream<'a>) {
    let slots = ring.room();
    let mut transfers = RingTransfers::new(ring, slots);
    let mut first = first.into_iter();
    // Whether any read has ended since the stream was last asked.
    let mut ended = false;
    loop {
        let mut begun = 0;
        while transfers.room() > 0 {
            let is_broken = transfers.is_broken();
            let Some(read) = first.next().or_else(|| if is_broken { None } else { stream.next() }) else {
                break;
            };
            begun += 1;
            if is_broken {
                read_alone(&read, stream);
            } else if let Some((read, result)) = transfers.begin(read) {
                stream.ended(read.token, result);
            }
        }
        // After others have begun: the device works while the stream processes these.
        stream.turn();
        if transfers.len() > 0 {
            let wanted = (transfers.len() / STREAM_WAIT_SHARE).max(1);
            transfers.wait(wanted, |read, result: Result<usize, Error>| stream.ended(read.token, result));
            ended = true;
        } else if begun == 0 && !std::mem::take(&mut ended) {
            return;
        }
    }
}
