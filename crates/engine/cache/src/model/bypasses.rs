//! Several threads begin reads past the cache, and their ends let others begin.

use std::sync::Arc;

use super::bypass_queue::BypassQueue;
use super::sync::{AtomicU32, Ordering};

struct BypassModel {
    queue: BypassQueue<u32>,
    in_flight: AtomicU32,
    done: AtomicU32,
}

impl BypassModel {
    /// Makes reads that begin and end on the thread that begins them.
    fn read(&self, reads: Vec<u32>) {
        let in_flight = self.in_flight.fetch_add(u32::try_from(reads.len()).unwrap(), Ordering::AcqRel);
        assert!(in_flight as usize + reads.len() <= 2, "more than two are in flight");
        for read in reads {
            self.done.fetch_add(read, Ordering::Relaxed);
            self.in_flight.fetch_sub(1, Ordering::AcqRel);
            self.queue.ended(|reads| self.read(reads));
        }
    }
}

fn check(threads: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(super::PREEMPTIONS_MAX[threads - 2]);
    model.check(move || {
        let all = Arc::new(BypassModel {
            queue: BypassQueue::new(2),
            in_flight: AtomicU32::new(0),
            done: AtomicU32::new(0),
        });
        // Two reads that nobody has ended yet hold the next one up.
        for _ in 0..2 {
            all.queue.push(0, |reads| assert_eq!(reads.len(), 1));
        }
        all.queue.push(1, |_| panic!("a third is in flight"));
        let others: Vec<_> = (1..threads)
            .map(|thread| {
                let all = Arc::clone(&all);
                loom::thread::spawn(move || match thread {
                    1 => all.queue.ended(|reads| all.read(reads)),
                    _ => all.queue.push(100, |reads| all.read(reads)),
                })
            })
            .collect();
        all.queue.push(10, |reads| all.read(reads));
        all.queue.ended(|reads| all.read(reads));
        for other in others {
            other.join().unwrap();
        }
        let expected = if threads == 3 { 111 } else { 11 };
        assert_eq!(all.done.load(Ordering::Relaxed), expected, "a read was forgotten");
    });
}

#[test]
fn an_end_against_a_push_and_an_end() {
    check(2);
}

#[test]
fn an_end_and_a_push_against_a_push_and_an_end() {
    check(3);
}
