//! The callers' view, with real threads and the real map. `model.rs` tests the orders of threads.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

use pagekeeper_testing::fork_often;

use super::FileTable;

type Table = FileTable<String, Arc<usize>, io::Error>;

const KEY: &str = "000042.sst";

/// Waits until this many callers wait for the key to be opened.
fn await_waiting(table: &Table, callers: usize) {
    while table.entries.waiting(KEY) < callers {
        thread::yield_now();
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic.downcast_ref::<&str>().expect("a message")
}

/// Calls its function when dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Counts wakes.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns a future that is pending until `open` is set.
fn gate(open: &AtomicBool) -> impl Future<Output = ()> + '_ {
    std::future::poll_fn(|_| if open.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending })
}

#[test]
fn a_waker_that_panics_keeps_nobody_else_waiting() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a waker's own fault");
        }
    }
    let (table, open) = (Table::new(), AtomicBool::new(false));
    let mut opener = pin!(table.get_or_open_async(KEY, async {
        gate(&open).await;
        Ok(Arc::new(7))
    }));
    assert!(poll(opener.as_mut()).is_pending());
    let woken = Arc::new(Woken::default());
    let wakers = [Waker::from(Arc::new(Panics)), Waker::from(Arc::clone(&woken))];
    let mut waiting =
        [0, 1].map(|_| Box::pin(table.get_or_open_async(KEY, async { unreachable!("opened twice") })));
    for (future, waker) in waiting.iter_mut().zip(&wakers) {
        assert!(future.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    open.store(true, Ordering::Relaxed);
    assert!(poll(opener).is_ready());
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(waiting.into_iter().all(|mut future| poll(future.as_mut()).is_ready()));
}

/// Table caches without single flight let 80 threads open the same large file 80 times.
#[test]
fn eighty_threads_open_one_key_once() {
    const THREADS: usize = 80;
    let table = Table::new();
    let (opens, start) = (AtomicUsize::new(0), Barrier::new(THREADS));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    table.get_or_open(KEY, || {
                        let open = opens.fetch_add(1, Ordering::Relaxed);
                        await_waiting(&table, THREADS - 1);
                        Ok(Arc::new(open))
                    })
                })
            })
            .collect();
        let values: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
        assert!(values.iter().all(|value| Arc::ptr_eq(value, &values[0])));
    });
    assert_eq!(opens.into_inner(), 1);
    assert_eq!((table.len(), table.is_empty()), (1, false));
}

#[test]
fn a_failure_reaches_all_waiters_and_is_retried() {
    const THREADS: usize = 8;
    let table = Table::new();
    let fail = || {
        await_waiting(&table, THREADS - 1);
        Err(io::Error::other("torn footer"))
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| table.get_or_open(KEY, fail))).collect();
        let errors: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap_err()).collect();
        assert!(errors.iter().all(|error| Arc::ptr_eq(error, &errors[0])));
        assert_eq!(errors[0].to_string(), "torn footer");
    });
    assert_eq!((table.get(KEY), table.len()), (None, 0));
    assert_eq!(*table.get_or_open(KEY, || Ok(Arc::new(2))).unwrap(), 2);
}

#[test]
fn a_panic_is_its_callers_and_a_waiter_opens() {
    let table = Table::new();
    let opens = AtomicUsize::new(0);
    let open = || Ok(Arc::new(opens.fetch_add(1, Ordering::Relaxed)));
    thread::scope(|scope| {
        let opener = scope.spawn(|| {
            table.get_or_open(KEY, || {
                await_waiting(&table, 2);
                std::panic::resume_unwind(Box::new("planned"))
            })
        });
        // The others must not come first.
        while table.entries.opening() == 0 {
            thread::yield_now();
        }
        let others: Vec<_> = (0..2).map(|_| scope.spawn(|| table.get_or_open(KEY, open))).collect();
        for other in others {
            assert_eq!(*other.join().unwrap().unwrap(), 0);
        }
        assert_eq!(message(&*opener.join().unwrap_err()), "planned");
    });
}

#[test]
fn an_opener_may_open_other_keys_but_not_its_own() {
    let table = Table::new();
    let nested = table.get_or_open("index", || {
        let part = table.get_or_open("part", || Ok(Arc::new(20))).map_err(|_| io::ErrorKind::Other)?;
        table.remove("part");
        Ok(Arc::new(*part + 1))
    });
    assert_eq!((*nested.unwrap(), table.keys()), (21, vec!["index".to_owned()]));

    let own = AssertUnwindSafe(|| {
        let _ = table.get_or_open(KEY, || {
            // Indirectly, through another key.
            let _ = table.get_or_open("other", || {
                let _ = table.get_or_open(KEY, || Ok(Arc::new(0)));
                Ok(Arc::new(0))
            });
            Ok(Arc::new(0))
        });
    });
    let panic = catch_unwind(own).unwrap_err();
    assert_eq!(message(&*panic), "a FileTable's opener asked for the key that it is opening");
    // Neither key is still marked as being opened.
    assert_eq!(format!("{table:?}"), "FileTable { resident: 1, opening: 0 }");
}

#[test]
fn a_future_that_opens_may_not_await_its_own_key() {
    let table = Table::new();
    let own = table.get_or_open_async(KEY, async {
        let own = table.get_or_open_async(KEY, async { Ok(Arc::new(0)) }).await;
        Ok(own.unwrap())
    });
    let mut own = Box::pin(own);
    let panic = catch_unwind(AssertUnwindSafe(|| poll(own.as_mut()).is_ready())).unwrap_err();
    assert_eq!(message(&*panic), "a FileTable's opener asked for the key that it is opening");
    drop(own);
    assert_eq!(table.entries.opening(), 0);
}

#[test]
fn a_value_that_is_no_longer_good_is_replaced_by_one_for_all() {
    const THREADS: usize = 8;
    let table = Table::new();
    let old = table.get_or_open(KEY, || Ok(Arc::new(0))).unwrap();
    let opens = AtomicUsize::new(0);
    let newer = |at_least| {
        table.get_or_open_if(
            KEY,
            move |value| **value >= at_least,
            || {
                assert_eq!(table.get(KEY), None, "a replaced value is gone");
                await_waiting(&table, THREADS - 1);
                Ok(Arc::new(opens.fetch_add(1, Ordering::Relaxed) + 1))
            },
        )
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| newer(1))).collect();
        assert!(threads.into_iter().all(|thread| *thread.join().unwrap().unwrap() == 1));
    });
    assert_eq!((opens.load(Ordering::Relaxed), *old), (1, 0));
    assert_eq!(*newer(1).unwrap(), 1);

    // A replacement that fails leaves no value.
    table.get_or_open_if(KEY, |_| false, || Err(io::ErrorKind::NotFound.into())).unwrap_err();
    assert_eq!(table.get(KEY), None);
}

#[test]
fn a_waiter_judges_the_shared_result() {
    let table = Table::new();
    thread::scope(|scope| {
        let opener = scope.spawn(|| {
            table.get_or_open(KEY, || {
                await_waiting(&table, 1);
                Ok(Arc::new(1))
            })
        });
        while table.entries.opening() == 0 {
            thread::yield_now();
        }
        let newer = table.get_or_open_if(KEY, |value| **value > 1, || Ok(Arc::new(2))).unwrap();
        assert_eq!((*newer, *opener.join().unwrap().unwrap()), (2, 1));
    });
    assert_eq!(table.get(KEY).as_deref(), Some(&2));
}

#[test]
fn a_removal_during_an_open_wins_and_the_waiters_get_their_value() {
    for remove in [(|table: &Table| assert!(table.remove(KEY).is_none())) as fn(&Table), Table::clear] {
        let table = Table::new();
        let removed = AtomicBool::new(false);
        let opener = || {
            while !removed.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            Ok(Arc::new(1))
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(|| table.get_or_open(KEY, opener))).collect();
            await_waiting(&table, 1);
            remove(&table);
            // A new caller does not wait for an older open.
            assert_eq!(*table.get_or_open(KEY, || Ok(Arc::new(2))).unwrap(), 2);
            removed.store(true, Ordering::Relaxed);
            assert!(threads.into_iter().all(|thread| *thread.join().unwrap().unwrap() == 1));
        });
        assert_eq!(table.get(KEY).as_deref(), Some(&2));
    }
}

#[test]
fn values_are_removed_by_key_by_condition_and_altogether() {
    let table = Table::new();
    for (number, key) in ["a", "b", "c"].into_iter().enumerate() {
        table.get_or_open(key, || Ok(Arc::new(number))).unwrap();
    }
    let mut seen = Vec::new();
    table.for_each(|key, value| seen.push((key.clone(), **value)));
    seen.sort();
    assert_eq!(seen, [("a".to_owned(), 0), ("b".to_owned(), 1), ("c".to_owned(), 2)]);

    assert_eq!(table.remove("a").as_deref(), Some(&0));
    assert_eq!(table.remove("a"), None);
    assert_eq!(table.remove_if("b", |value| **value > 1), None);
    assert_eq!(table.remove_if("c", |value| **value > 1).as_deref(), Some(&2));
    assert_eq!(table.remove_if("c", |_| true), None);
    assert_eq!((table.keys(), table.len()), (vec!["b".to_owned()], 1));
    table.clear();
    assert!(table.is_empty() && table.keys().is_empty() && table.get("b").is_none());
    // The map finds a value that is inserted again.
    table.get_or_open("a", || Ok(Arc::new(3))).unwrap();
    assert_eq!(table.get("a").as_deref(), Some(&3));
}

/// A deleted file keeps its blocks while a descriptor is open, and lock-free maps drop values some
/// time later.
#[test]
fn a_removed_value_is_dropped_with_its_last_user() {
    let table = FileTable::<u64, Arc<OnDrop<_>>, io::Error>::new();
    let drops = Arc::new(AtomicUsize::new(0));
    let open = || {
        let drops = Arc::clone(&drops);
        Ok(Arc::new(OnDrop(move || _ = drops.fetch_add(1, Ordering::Relaxed))))
    };
    let dropped = || drops.load(Ordering::Relaxed);

    let user = table.get_or_open(&1, open).unwrap();
    drop(table.remove(&1));
    assert_eq!(dropped(), 0);
    drop(user);
    assert_eq!(dropped(), 1);

    drop(table.get_or_open(&1, open).unwrap());
    drop(table.get_or_open_if(&1, |_| false, open).unwrap());
    assert_eq!(dropped(), 2);
    drop(table.remove_if(&1, |_| true));
    assert_eq!(dropped(), 3);
    drop(table.get_or_open(&2, open).unwrap());
    table.clear();
    assert_eq!(dropped(), 4);
    drop(table.get_or_open(&3, open).unwrap());
    drop(table);
    assert_eq!(dropped(), 5);
}

#[test]
fn futures_wait_for_a_thread_that_opens() {
    let table = Table::new();
    let (woken, ready) = (Arc::new(Woken::default()), AtomicBool::new(false));
    thread::scope(|scope| {
        let opener = scope.spawn(|| {
            table.get_or_open(KEY, || {
                while !ready.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                Ok(Arc::new(1))
            })
        });
        while table.entries.opening() == 0 {
            thread::yield_now();
        }
        let mut waiting = pin!(table.get_or_open_async(KEY, async { unreachable!("another opens") }));
        let waker = Waker::from(Arc::clone(&woken));
        let context = &mut Context::from_waker(&waker);
        // Only the waker of the last poll is woken.
        assert!(poll(waiting.as_mut()).is_pending());
        assert!(waiting.as_mut().poll(context).is_pending());
        {
            // A waiter that gives up leaves nothing behind.
            let mut dropped = Box::pin(table.get_or_open_async(KEY, async { unreachable!("another opens") }));
            assert!(dropped.as_mut().poll(context).is_pending());
        }
        ready.store(true, Ordering::Relaxed);
        opener.join().unwrap().unwrap();
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert_eq!(poll(waiting).map(Result::unwrap), Poll::Ready(Arc::new(1)));
    });
}

#[test]
fn a_thread_waits_for_a_future_that_opens() {
    let table = Table::new();
    let open = AtomicBool::new(false);
    let mut opening = pin!(table.get_or_open_async(KEY, async {
        gate(&open).await;
        Ok(Arc::new(1))
    }));
    assert!(poll(opening.as_mut()).is_pending());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| table.get_or_open(KEY, || unreachable!("another opens")));
        await_waiting(&table, 1);
        open.store(true, Ordering::Relaxed);
        assert!(poll(opening.as_mut()).is_ready());
        assert_eq!(*waiter.join().unwrap().unwrap(), 1);
    });
}

#[test]
fn when_a_future_that_opens_is_dropped_a_waiter_opens() {
    let table = Table::new();
    let let_go = Arc::new(AtomicBool::new(false));
    let held = Arc::clone(&let_go);
    let mut opening = Box::pin(table.get_or_open_async(KEY, async move {
        let _held = OnDrop(|| held.store(true, Ordering::Relaxed));
        std::future::pending().await
    }));
    assert!(poll(opening.as_mut()).is_pending());
    let open = || {
        assert!(let_go.load(Ordering::Relaxed), "the dropped opener's resources are released first");
        Ok(Arc::new(2))
    };
    let mut next = pin!(table.get_or_open_async(KEY, async { open() }));
    let woken = Arc::new(Woken::default());
    assert!(next.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&woken)))).is_pending());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| table.get_or_open(KEY, open));
        await_waiting(&table, 2);
        drop(opening);
        // The thread does not depend on whether this task is ever polled again.
        assert_eq!(*waiter.join().unwrap().unwrap(), 2);
    });
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(matches!(poll(next), Poll::Ready(Ok(value)) if *value == 2));
}

#[test]
fn a_resident_key_does_not_poll_the_future_given() {
    let table = Table::new();
    table.get_or_open(KEY, || Ok(Arc::new(1))).unwrap();
    let unpolled = async { unreachable!("it is resident") };
    assert!(poll(pin!(table.get_or_open_async(KEY, unpolled))).is_ready());
    let newer = pin!(table.get_or_open_if_async(KEY, |_| false, async { Ok(Arc::new(2)) }));
    assert_eq!(poll(newer).map(Result::unwrap), Poll::Ready(Arc::new(2)));
    assert_eq!(table.get(KEY).as_deref(), Some(&2));
}

#[test]
fn tables_and_their_futures_go_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    fn is_sync<T: Sync>(_: &T) {}
    let table = Table::default();
    is_send(&table);
    is_sync(&table);
    is_send(&table.get_or_open_async(KEY, async { Ok(Arc::new(0)) }));
}

/// Threads open, replace, remove and read a few keys. Nobody hangs, and no value belongs to another
/// key, or returns after it was dropped.
#[test]
fn many_threads_on_few_keys() {
    const THREADS: usize = 8;
    const STEPS: usize = 4000;
    let table = FileTable::<usize, Arc<(usize, usize)>, usize>::new();
    let opens = AtomicUsize::new(0);
    let removed = Mutex::new(std::collections::HashSet::new());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (table, opens, removed) = (&table, &opens, &removed);
            scope.spawn(move || {
                for step in 0..STEPS {
                    let key = (step * 7 + thread) % 3;
                    let open = || match opens.fetch_add(1, Ordering::Relaxed) {
                        number if number % 5 == 0 => Err(number),
                        number => Ok(Arc::new((key, number))),
                    };
                    let value = match (step + thread) % 11 {
                        0 => table.remove(&key).inspect(|value| {
                            assert!(removed.lock().unwrap().insert(value.1), "removed twice");
                        }),
                        1 => table.remove_if(&key, |value| value.1 % 2 == 0).inspect(|value| {
                            assert!(removed.lock().unwrap().insert(value.1), "removed twice");
                        }),
                        2 => table.get_or_open_if(&key, |value| value.1 % 3 == 0, open).ok(),
                        3..7 => table.get_or_open(&key, open).ok(),
                        _ => table.get(&key),
                    };
                    assert!(value.is_none_or(|value| value.0 == key));
                }
            });
        }
    });
    assert_eq!(table.entries.opening(), 0);
    table.for_each(|key, value| {
        assert_eq!(*key, value.0);
        assert!(!removed.lock().unwrap().contains(&value.1), "came back");
    });
    assert!(table.len() <= 3);
}

#[test]
fn a_table_has_no_map_before_it_has_a_value() {
    let table = Table::new();
    table.remove(KEY);
    table.clear();
    table.for_each(|_, _| unreachable!("there are none"));
    assert!(table.is_empty() && table.keys().is_empty() && table.get(KEY).is_none());
    assert!(table.entries.index.map.get().is_none());
    let opened = table.get_or_open(KEY, || Ok(Arc::new(7))).unwrap();
    assert!(Arc::ptr_eq(&opened, &table.get(KEY).unwrap()) && table.len() == 1);
}

/// Locks that other threads hold at a fork stay locked in the child for ever: the table's, and the
/// one under which a thread becomes a reader of the map.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn children_forked_beside_users_of_a_table_end() {
    let table = Table::new();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    table.get_or_open(KEY, || Ok(Arc::new(7))).unwrap();
                    thread::scope(|scope| scope.spawn(|| table.get(KEY)).join().unwrap());
                    table.remove(KEY);
                }
            });
        }
        let ended = fork_often(200, || {
            let found = table.get(KEY);
            let opened = table.get_or_open(KEY, || Ok(Arc::new(8))).unwrap();
            let again = table.get_or_open_if(KEY, |_| false, || Ok(Arc::new(9))).unwrap();
            let failed = table.get_or_open_if(KEY, |_| false, || Err(io::ErrorKind::Other.into()));
            table.for_each(|_, value| assert_eq!(**value, 7));
            let is_kept = table.remove(KEY).is_none() && table.remove_if(KEY, |_| true).is_none();
            table.clear();
            let shown = format!("{table:?}");
            let is_right = found.is_none_or(|found| *found == 7) && [7, 8].contains(&*opened);
            is_right && is_kept && *again == 9 && failed.is_err() && shown.contains("opening: 0")
        });
        done.store(true, Ordering::Relaxed);
        assert_eq!(ended, None);
    });
}
