//! Models of the interaction of the log's threads. Loom runs the real sources of the commit queue
//! and of the followers' progress in every order of two or three threads. A thread is preempted at
//! most [`BINLOG_PREEMPTIONS_MAX`] times.
//!
//! A model fails by an assertion, or by loom's "deadlock" if a sleeping caller or follower is never
//! woken. Nothing is random.
//!
//! Not modelled: the writer and its disk (segments are vectors, a sync is a number), batches that
//! are split over segments, purges that are undone, deadlines of followers, the releaser. A panic
//! is modelled by dropping everything that its thread owns, in the order of unwinding: loom's
//! threads share one thread of the system, so all of them would seem to panic.
//!
//! Each model was seen to fail. The table lists the injected mutations, and the models that found
//! them:
//!
//! | mutation | found by |
//! |---|---|
//! | a caller that finds no leader does not become it | all of `leaders` |
//! | there is no leader during the handover, or only afterwards; there is always one | all of `leaders` |
//! | leadership that was handed over is handed to another of the batch again | all of `leaders` but a sync that fails |
//! | a waiter checks its ticket and sleeps in two steps, or is woken before the result is there | all of `leaders` |
//! | a waiter takes any wakeup for its result | the same, but for a leader that panics alone and a sync that fails |
//! | the next leader is not woken, or before it leads; the waiting batch is forgotten | all of `leaders` |
//! | a result wakes nobody | all of `leaders` |
//! | a result wakes only one | callers who come again, requests for a sync |
//! | a waiter does not register, or takes its batch's ticket after it released the lock | all of `leaders` |
//! | two batches share a ticket | callers who come again, requests for a sync, both of the panics |
//! | a waiter reads the end of its group after the batch was written | all of `leaders` that do not fail |
//! | only the last request for a sync counts | requests for a sync |
//! | spare memory is not cleared | groups side by side, callers who come again, requests for a sync |
//! | an exclusive caller takes the place of another | exclusive leaders |
//! | exclusive callers are forgotten, or stay in the queue | exclusive leaders, a panic, a sync that fails |
//! | an exclusive caller does not check whether the log has failed | both of the panics |
//! | it checks, and keeps the writer | a panic, a sync that fails |
//! | a batch that is dropped wakes nobody | both of the panics |
//! | a leader that is dropped does not hand over, does not end the log, or does so too late | both of the panics |
//! | the last error is reported, and not the first | a sync that fails and a panic |
//! | followers check and sleep in two steps | all of `followers` but the waker, a purge by force |
//! | followers check and register as waiters in two steps | all of `followers` but the waker, a purge by force |
//! | waiters are not counted, or are not woken | the same |
//! | waiters are counted before the change | the same, but for two who append |
//! | followers are woken before the change | all of `followers` but two who append, a purge by force |
//! | one waiter is woken | all with two followers |
//! | a waker is not called, or registered in another step than the check | a follower with a waker |
//! | followers are not woken by a write, or by a sync | followers of each step |
//! | they are not woken by the close, or ignore it | all that are closed but a purge that minds followers |
//! | they are not woken by a failure, or ignore it | followers of a log that fails |
//! | the log's end is read before its closed or failed state | all of `followers` that end, a purge by force |
//! | a follower of durable records reads others | all with two followers |
//! | records that are not durable are read after a failure | followers of a log that fails |
//! | a rotation seals in another step than it moves the end | a rotation, a purge by force |
//! | a rotation moves the durable end in an earlier step | a rotation |
//! | a follower is registered in another step than its segment was found | both of `purges` |
//! | followers are cut off, or respected, in another step than segments are removed | both of `purges` |
//! | a follower's recorded position is ahead of its real one | both of `purges` |
//! | followers are ignored | both of `purges` |
//! | a purge by force cuts nobody off | a purge by force |
//! | a follower that left still blocks purges | a purge that minds followers |

mod follower;
mod followers;
mod leaders;
mod purges;
mod sync;
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
    "group_commit.rs" group_commit
    "progress.rs" progress
}

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

// These modules hold nothing that loom could model.
use super::{frame, segment};
use world::ModelLog;

/// Preemptions per thread in models of two and of three threads. Trying all orders would take too
/// long.
const BINLOG_PREEMPTIONS_MAX: [usize; 2] = [6, 3];

/// The code that one thread of a model runs.
type ModelCaller = fn(&ModelLog);

/// Runs the callers concurrently, each on its own thread, and then `end`, in every order.
fn check(log: fn() -> ModelLog, callers: &'static [ModelCaller], end: fn(&ModelLog)) {
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&orders);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(BINLOG_PREEMPTIONS_MAX[callers.len() - 2]);
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
