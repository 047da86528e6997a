//! A stream of reads on one ring, by the calling thread alone.

use super::flight::Flight;
use super::ring::Ring;
use crate::job::Job;
use crate::stream::{ReadStream, StreamRead};
use crate::{Error, pread};

/// One part of the reads in flight is waited for at a time: fewer calls into the kernel, and the device still has the
/// other parts to work on.
const WAIT_SHARE: usize = 32;

/// Runs the stream to its end; the ring is empty before and after, also after a panic of the stream's.
pub(super) fn run(ring: &mut Ring, stream: &mut dyn ReadStream<'_>) {
    while let Some(first) = stream.next() {
        if let Some(second) = stream.next() {
            run_on(ring, [first, second], stream);
        } else {
            // One alone is not worth a ring.
            read_alone(&first, stream);
            stream.turn();
        }
    }
}

fn read_alone(read: &StreamRead<'_>, stream: &mut dyn ReadStream<'_>) {
    // SAFETY: by the contract of `Target` the memory is the read's alone until `ended` has been called.
    #[expect(unsafe_code, reason = "the promise of Target is taken up")]
    let result = unsafe { pread::read(read.file, read.offset, read.pieces()) };
    stream.ended(read.token, result);
}

/// Runs the stream as far as the ring lasts; what was begun has ended then.
fn run_on<'a>(ring: &mut Ring, first: [StreamRead<'a>; 2], stream: &mut dyn ReadStream<'a>) {
    let slots = ring.room();
    let mut flight = Flight::new(ring, slots);
    let mut first = first.into_iter();
    // Whether any has ended since the stream was asked last.
    let mut ended = false;
    loop {
        let mut begun = 0;
        while flight.room() > 0 {
            let is_broken = flight.is_broken();
            let Some(read) = first.next().or_else(|| if is_broken { None } else { stream.next() }) else {
                break;
            };
            begun += 1;
            if is_broken {
                read_alone(&read, stream);
            } else if let Some((read, result)) = flight.begin(read) {
                stream.ended(read.token, result);
            }
        }
        // After others have begun: the device works while these are looked at.
        stream.turn();
        if flight.len() > 0 {
            let wanted = (flight.len() / WAIT_SHARE).max(1);
            flight.wait(wanted, |read, result: Result<usize, Error>| stream.ended(read.token, result));
            ended = true;
        } else if begun == 0 && !std::mem::take(&mut ended) {
            return;
        }
    }
}
