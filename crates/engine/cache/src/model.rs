//! Models of the frames' protocol. Loom runs the unchanged sources of the pool, of eviction, loans
//! of frames, readers and waiters. It runs a few threads in every order, and with every value that
//! the memory model lets a load see. A model has one to three frames, one to five pages, and two or
//! three threads, which can be preempted at most [`PREEMPTIONS_MAX`] times.
//!
//! A model fails by an assertion, by loom's "Causality violation" if a frame is written while
//! another thread may read it, or by its "deadlock" if a waiter is never woken. Nothing is random,
//! so a failure repeats without a seed.
//!
//! The models do not cover bytes (a frame is one number), the device, or the shortest ways of a hit
//! (`fast_path`, whose steps are those of `lookup`). Membarrier(2) is a fence on both sides here,
//! which is more than the light half gives: the models can't show that [`ReaderSlot::hold`] must
//! release.
//!
//! Each model fails if the code is broken in one of these ways, which were tested in turn:
//!
//! | broken | found by |
//! |---|---|
//! | no heavy barrier in `ReaderRegistry::start_grace_period` | all of `evictions` but the raised frequency; holds, pins, loans, forgetting |
//! | no light barrier in `ReaderSlot::enter` | the same, and closes |
//! | frames are freed without waiting for their grace period (`collect`), or the grace period notes nobody | the same, and closes |
//! | the section is left before the frame is used or named (`lookup`) | as without the light barrier, but for the stopped reader |
//! | `ReaderSlot::leave` does not release | as without the light barrier, but for the stopped reader |
//! | `GracePeriod::is_over` or `ReaderRegistry::start_grace_period` does not acquire | the same but for evictions by two threads and a close against a load |
//! | the count that begins a section does not release | a hit against an eviction |
//! | `ReaderSlot::release` does not release, `ReaderRegistry::held` does not acquire | a hold against an eviction, a hold handed over, loans |
//! | `unpin` does not release, `collect` does not acquire the pins | a pin that is released |
//! | pins are collected before holds | a hold that is handed over |
//! | holds are read before the grace period is checked | holds and pins against evictions and closes, loans |
//! | a load is kept after it was published | a load that is kept |
//! | the frame of a load that found its file closed is free at once | a load that is kept |
//! | a page is published before it was written | all of `loads`, closes, evictions by two threads, loans against a load |
//! | `publish` does not release, `lookup` does not acquire the entry | misses of one page, a close against a load |
//! | `publish` does not check whether the file was closed | closes, a load that is kept |
//! | `begin` does not check whether the file was closed | closes, a load that is kept |
//! | a file that is closed is handed to the sweep before its table is closed | a close against a load |
//! | each thread that closes a file is the first | a file that is closed once |
//! | the frequency is raised by a store | all of `evictions` but the stopped reader, holds, pins, loans, forgetting |
//! | a page that is taken out of a closed file, or of a part, needs no grace period | closes, guards that outlive them, loans, forgetting |
//! | a frame on loan is given back at once | loans against a hit, against a guard |
//! | a part with live pages is forgotten | forgetting |
//! | `begin` loads a page that is being loaded | all of `loads` |
//! | waiters are taken before the entry says that the page is there | all of `loads`, closes, evictions by two threads, a load that is kept |
//! | a failure reaches nobody, or leaves the entry loading | an error |
//! | a waiter is woken before its outcome is set | all of `loads` |
//! | retired frames have no bound | a reader that is stopped |
//! | `discard` leaves loading pages, or resident pages | discards against hits and loads, guards |
//! | `publish` does not check whether the load was superseded | all of `rewrites` that load |
//! | `abandon` does not | a discard against a load that fails |
//! | `join` does not | a load that is awaited after it was superseded |
//! | waiters for a superseded load are not woken | discards and installs against loads |
//! | the frame of a load that was superseded is free at once | a guard that keeps the old content |
//! | `install` leaves the load that it found its frame | an install against a load, against a close |
//! | `install` does not release | installs |
//! | `install` frees the old frame without a grace period | installs one after another |
//! | `install` does not check whether the file was closed | an install against a close |
//! | the thread that begins reads past the cache says that it is done after it has let go of the lock | both of `bypasses` |
//! | an end lets nothing begin | both of `bypasses` |

mod arena;
mod bypasses;
mod closes;
mod evictions;
mod guards;
mod limits;
mod loads;
mod model_cache;
mod rewrites;
mod sync;
mod table;

macro_rules! modelled {
    ($($path:literal $module:ident)*) => {$(
        #[path = $path]
        #[allow(clippy::duplicate_mod, reason = "the very source that the crate runs, with loom's atomics and locks")]
        #[allow(dead_code, reason = "a model needs no more than it shows")]
        mod $module;
    )*};
}

modelled! {
    "bypass_queue.rs" bypass_queue
    "evict.rs" evict
    "lookup.rs" lookup
    "frame_loan.rs" frame_loan
    "pool.rs" pool
    "readers.rs" readers
    "rewrite.rs" rewrite
    "page_table.rs" page_table
    "waiter.rs" waiter
}

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

// Loom has nothing to check in these.
use crate::{entry, error, file_stats, free_frames, priority, queues, s3fifo};

use model_cache::ModelCache;
use readers::ReaderSlot;

/// Preemptions for two threads, and for three: all orders are too many.
const PREEMPTIONS_MAX: [usize; 2] = [5, 2];

/// The operations of one thread of a model.
type ModelCaller<T> = fn(&ModelCache, &ReaderSlot) -> T;

/// Runs the callers side by side, each on a thread of its own, and then `end`, in every order.
fn check<T: Send + 'static>(
    cache: fn() -> ModelCache,
    callers: &'static [ModelCaller<T>],
    end: fn(&ModelCache, Vec<T>),
) {
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&orders);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS_MAX[callers.len() - 2]);
    model.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let mut cache = cache();
        cache.slots = callers.iter().map(|_| cache.readers.register()).collect();
        let cache = Arc::new(cache);
        let others: Vec<_> = (1..callers.len())
            .map(|index| {
                let cache = Arc::clone(&cache);
                loom::thread::spawn(move || callers[index](&cache, &cache.slots[index]))
            })
            .collect();
        let mut results = vec![callers[0](&cache, &cache.slots[0])];
        results.extend(others.into_iter().map(|other| other.join().unwrap()));
        end(&cache, results);
        cache.assert_sound();
    });
    let orders = orders.load(Ordering::Relaxed);
    println!("{} callers: {orders} orders", callers.len());
    assert!(orders > 1);
}
