//! Models of how the log's threads meet: loom runs the very sources of the turns and of the followers' watch in every order of
//! two or three threads. A thread can be stopped at most [`PREEMPTIONS`] times where it could go on.
//!
//! A model fails by an assertion, or by loom's "deadlock" where a caller or a follower that sleeps is never woken. No chance
//! is in it.
//!
//! What is not modelled: the writer and its disk (segments are vectors, a sync is a number), batches that are split over
//! segments, purges that are undone, deadlines of followers, the keeper. A panic is the drop of what its thread has, in the order
//! of unwinding: loom's threads share one of the system's, where the others would seem to panic, too.
//!
//! Each model was seen to fail. What was broken in turn, and which models found it:
//!
//! | broken | found by |
//! |---|---|
//! | who finds the turn free does not take it; it is free while it is given on, or only afterwards; it is never free | all of `turns` |
//! | a turn that was given is given again to another of the batch | all of `turns` but a sync that fails |
//! | who sleeps for an answer looks and sleeps in two steps, or is told before the answer is there | all of `turns` |
//! | who sleeps for an answer takes any waking for one | the same, but for a leader that panics alone and a sync that fails |
//! | the next leader is not woken, or before it is its turn; the batch that waits is forgotten | all of `turns` |
//! | an answer wakes nobody | all of `turns` |
//! | an answer wakes only one | callers who come again, wishes for a sync |
//! | who waits does not say so, or asks for its batch's answer once it has let go of the lock | all of `turns` |
//! | two batches have one answer | callers who come again, wishes for a sync, both of the panics |
//! | who waited looks where its group ends once the batch is written | all of `turns` that do not fail |
//! | the last wish for a sync is all that counts | wishes for a sync |
//! | spare memory is not emptied | groups side by side, callers who come again, wishes for a sync |
//! | one who wants a turn of its own takes the place of another | turns of one's own |
//! | those who want a turn of their own are forgotten, or stay in the queue | turns of one's own, a panic, a sync that fails |
//! | who wants a turn of its own does not look whether the log is over | both of the panics |
//! | it looks, and keeps the turn | a panic, a sync that fails |
//! | a batch that is dropped tells nobody | both of the panics |
//! | a turn that is dropped is not given back, does not end the log, or does so too late | both of the panics |
//! | the last reason is told, and not the first | a sync that fails and a panic |
//! | followers look and sleep in two steps, or count themselves in another step than they look | all of `followers` but the waker, a purge by force |
//! | sleepers are not counted, or counted before the change, or not woken | the same (the second: but for two who append) |
//! | followers are told before the change | all of `followers` but two who append, a purge by force |
//! | one sleeper is woken | all with two followers |
//! | a waker is not called, or left in another step than the look | a follower with a waker |
//! | followers are not told of a write, or of a sync | followers of each step |
//! | they are not told of the close, or take it for no news | all that are closed but a purge that minds followers |
//! | they are not told of a failure, or take it for no news | followers of a log that fails |
//! | it is looked how far the log is, and then whether it is closed or failed | all of `followers` that end, a purge by force |
//! | what is not durable is read by who must not | all with two followers |
//! | what is not durable is read after a failure | followers of a log that fails |
//! | a rotation seals in another step than it moves the end | a rotation, a purge by force |
//! | a rotation moves what is durable in an earlier step | a rotation |
//! | a follower is registered in another step than its segment was found | both of `purges` |
//! | followers are cut off, or minded, in another step than segments are taken away | both of `purges` |
//! | a follower is said to be ahead of where it is | both of `purges` |
//! | followers are not minded at all | both of `purges` |
//! | a purge by force cuts nobody off | a purge by force |
//! | a follower that left is still minded | a purge that minds followers |

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
