//! Several threads begin reads past the cache, and their ends let others begin.

use std::sync::Arc;

use super::bypass_queue::BypassQueue;
use super::sync::{AtomicU32, Ordering};

struct Bypasses {
    queue: BypassQueue<u32>,
    under_way: AtomicU32,
    done: AtomicU32,
}

impl Bypasses {
    /// Makes reads that begin and end on the thread that begins them.
    fn read(&self, reads: Vec<u32>) {
        let under_way = self.under_way.fetch_add(u32::try_from(reads.len()).unwrap(), Ordering::AcqRel);
        assert!(under_way as usize + reads.len() <= 2, "more than two are under way");
        for read in reads {
            self.done.fetch_add(read, Ordering::Relaxed);
            self.under_way.fetch_sub(1, Ordering::AcqRel);
            self.queue.ended(|reads| self.read(reads));
        }
    }
}

fn check(threads: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(super::PREEMPTIONS[threads - 2]);
    model.check(move || {
        let all = Arc::new(Bypasses {
            queue: BypassQueue::new(2),
            under_way: AtomicU32::new(0),
            done: AtomicU32::new(0),
        });
        // Two reads that nobody has ended yet hold the next one up.
        for _ in 0..2 {
            all.queue.push(0, |reads| assert_eq!(reads.len(), 1));
        }
        all.queue.push(1, |_| panic!("a third is under way"));
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
