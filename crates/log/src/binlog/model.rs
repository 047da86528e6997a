//! Models of how the log's threads meet: loom runs the very sources of the turns and of the followers' watch in every order of
//! two or three threads. A thread can be stopped at most [`PREEMPTIONS`] times where it could go on.
//!
//! A model fails by an assertion, or by loom's "deadlock" where a caller or a follower that sleeps is never woken. No chance
//! is in it.
//!
//! What is not modelled: the writer and its disk (segments are vectors, a sync is a number), batches that are split over
//! segments, deadlines of followers, the keeper. A panic is the drop of what its thread has, in the order of unwinding: loom's
//! threads share one of the system's, where the others would seem to panic, too.

mod follower;
mod followers;
mod purges;
mod sync;
mod turns;
mod world;
mod writer;

macro_rules! modelled {
    ($($path:literal $module:ident)*) => {$(
        #[path = $path]
        #[allow(clippy::duplicate_mod, reason = "the very source that the log runs, with loom's atomics and locks")]
        #[allow(dead_code, reason = "a model needs no more than it shows")]
        mod $module;
    )*};
}

modelled! {
    "turn.rs" turn
    "watch.rs" watch
}

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

// There is nothing for loom in these.
use super::{Position, frame, segment};
use world::Log;

/// Of two threads, and of three: all orders are too many to try.
const PREEMPTIONS: [usize; 2] = [6, 3];

/// What one thread of a model does.
type Caller = fn(&Log);

/// Runs the callers side by side, each on a thread of its own, and then `end`, in every order.
fn check(log: fn() -> Log, callers: &'static [Caller], end: fn(&Log)) {
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&orders);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS[callers.len() - 2]);
    model.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let log = Arc::new(log());
        let others: Vec<_> = callers[1..]
            .iter()
            .map(|caller| {
                let log = Arc::clone(&log);
                loom::thread::spawn(move || caller(&log))
            })
            .collect();
        callers[0](&log);
        for other in others {
            other.join().unwrap();
        }
        end(&log);
    });
    let orders = orders.load(Ordering::Relaxed);
    println!("{} callers: {orders} orders", callers.len());
    assert!(orders > 1);
}
