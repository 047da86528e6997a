//! Models of the frames' protocol: loom runs the very sources of the pool, of eviction, lending, readers and waiters in every
//! order of a few threads, and with every value that the memory model lets a load see. One to three frames, one to five
//! pages, two or three threads that can be stopped at most [`PREEMPTIONS`] times where they could go on.
//!
//! A model fails by an assertion, by loom's "Causality violation" where a frame is written while another may read it, or by its
//! "deadlock" where a waiter is never told. No chance is in it, so that a failure repeats without a seed.
//!
//! What is not modelled: bytes (a frame is one number), the device, the shortest way of a hit (`hot`, whose steps are
//! those of `find`), and membarrier(2), which is a fence on both sides here. That is more than the light half gives: that
//! [`Slot::hold`] must release can't be shown.
//!
//! Each model was seen to fail. What was broken in turn, and which models found it:
//!
//! | broken | found by |
//! |---|---|
//! | no heavy barrier in `Readers::grace` | all of `evictions` but the raised frequency; holds, pins, lending, forgetting |
//! | no light barrier in `Slot::enter` | the same, and closes |
//! | frames are freed without waiting for their grace (`collect`), or the grace notes nobody | the same, and closes |
//! | the section is left before the frame is used or named (`find`) | as without the light barrier, but for the stopped reader |
//! | `Slot::leave` does not release | as without the light barrier, but for the stopped reader |
//! | `Grace::is_over` or `Readers::grace` does not acquire | the same but for evictions by two threads and a close against a load |
//! | the count that begins a section does not release | a hit against an eviction |
//! | `Slot::let_go` does not release, `Readers::held` does not acquire | a hold against an eviction, a hold handed over, lending |
//! | `unpin` does not release, `collect` does not acquire the pins | a pin that is let go |
//! | pins are collected before holds | a hold that is handed over |
//! | holds are read before the grace is looked at | holds and pins against evictions and closes, lending |
//! | a load is kept after it was published | a load that is kept |
//! | the frame of a load that found its file closed is free at once | a load that is kept |
//! | a page is published before it was written | all of `loads`, closes, evictions by two threads, lending against a load |
//! | `publish` does not release, `find` does not acquire the entry | misses of one page, a close against a load |
//! | `publish` does not look whether the file was closed | closes, a load that is kept |
//! | `begin` does not look whether the file was closed | closes, a load that is kept |
//! | a file that is closed is handed to the sweep before its table is closed | a close against a load |
//! | everyone who closes a file is the first | a file that is closed once |
//! | the frequency is raised by a store | all of `evictions` but the stopped reader, holds, pins, lending, forgetting |
//! | a page that is taken out of a closed file, or of a part, needs no grace | closes, guards that outlive them, lending, forgetting |
//! | a frame that is lent is given back at once | lending against a hit, against a guard |
//! | a part with live pages is forgotten | forgetting |
//! | `begin` loads what is being loaded | all of `loads` |
//! | waiters are taken before the entry says that the page is there | all of `loads`, closes, evictions by two threads, a load that is kept |
//! | a failure is told to nobody, or leaves the entry loading | an error |
//! | a waiter is woken before its outcome is set | all of `loads` |
//! | limbo has no bound | a reader that is stopped |
//! | `discard` leaves what is loading, or what is resident | discards against hits and loads, guards |
//! | `publish` does not look whether the load was superseded | all of `rewrites` that load |
//! | `abandon` does not | a discard against a load that fails |
//! | `join` does not | a load that is awaited after it was superseded |
//! | those who wait for a load that is superseded are not told | discards and installs against loads |
//! | the frame of a load that was superseded is free at once | a guard that keeps what it had |
//! | `install` leaves the load that it found its frame | an install against a load, against a close |
//! | `install` does not release | installs |
//! | `install` frees the old frame without a grace | installs one after another |
//! | `install` does not look whether the file was closed | an install against a close |

mod arena;
mod closes;
mod evictions;
mod guards;
mod limits;
mod loads;
mod rewrites;
mod sync;
mod table;
mod world;

macro_rules! modelled {
    ($($path:literal $module:ident)*) => {$(
        #[path = $path]
        #[allow(clippy::duplicate_mod, reason = "the very source that the crate runs, with loom's atomics and locks")]
        #[allow(dead_code, reason = "a model needs no more than it shows")]
        mod $module;
    )*};
}

modelled! {
    "evict.rs" evict
    "find.rs" find
    "lend.rs" lend
    "pool.rs" pool
    "readers.rs" readers
    "rewrite.rs" rewrite
    "translation.rs" translation
    "waiter.rs" waiter
}

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

// There is nothing for loom in these.
use crate::{error, queues, rule, word};

use readers::Slot;
use world::World;

/// Of two threads, and of three: all orders are too many to try.
const PREEMPTIONS: [usize; 2] = [5, 2];

/// What one thread of a model does.
type Caller<T> = fn(&World, &Slot) -> T;

/// Runs the callers side by side, each on a thread of its own, and then `end`, in every order.
fn check<T: Send + 'static>(world: fn() -> World, callers: &'static [Caller<T>], end: fn(&World, Vec<T>)) {
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&orders);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS[callers.len() - 2]);
    model.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let mut world = world();
        world.slots = callers.iter().map(|_| world.readers.register()).collect();
        let world = Arc::new(world);
        let others: Vec<_> = (1..callers.len())
            .map(|index| {
                let world = Arc::clone(&world);
                loom::thread::spawn(move || callers[index](&world, &world.slots[index]))
            })
            .collect();
        let mut results = vec![callers[0](&world, &world.slots[0])];
        results.extend(others.into_iter().map(|other| other.join().unwrap()));
        end(&world, results);
        world.assert_sound();
    });
    let orders = orders.load(Ordering::Relaxed);
    println!("{} callers: {orders} orders", callers.len());
    assert!(orders > 1);
}
