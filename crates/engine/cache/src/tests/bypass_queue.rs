//! The order in which reads begin, and the depth of calls. `model` checks it in every order of
//! threads.

use crate::bypass_queue::BypassQueue;

#[test]
fn reads_in_flight_stay_within_the_limit_and_start_in_order() {
    let queue = BypassQueue::new(3);
    let mut begun = Vec::new();
    for read in 0..10 {
        queue.push(read, |reads| begun.extend(reads));
    }
    assert_eq!(begun, [0, 1, 2]);
    for ended in 0..10 {
        queue.ended(|reads| begun.extend(reads));
        assert_eq!(begun.len(), (ended + 4).min(10));
    }
    assert_eq!(begun, (0..10).collect::<Vec<_>>());
}

/// Simulates a device that is done at once: a hundred thousand nested calls would be too deep.
#[test]
fn reads_that_end_while_they_begin_go_no_deeper() {
    fn begin(queue: &BypassQueue<u32>, reads: Vec<u32>, depth: u32, deepest: &mut u32, done: &mut u32) {
        *deepest = depth.max(*deepest);
        for _ in reads {
            *done += 1;
            queue.ended(|reads| begin(queue, reads, depth + 1, deepest, done));
        }
    }
    let queue = BypassQueue::new(2);
    let (mut deepest, mut done) = (0, 0);
    // Two reads that do not end hold the others up.
    for read in 0..100_002 {
        queue.push(read, |_| {});
    }
    for _ in 0..2 {
        queue.ended(|reads| begin(&queue, reads, 0, &mut deepest, &mut done));
    }
    assert_eq!((done, deepest), (100_000, 0));
}
