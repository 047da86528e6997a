//! Models of single flight. loom runs each in every order of its threads; three threads are
//! preempted at most [`PREEMPTIONS_MAX`] times.
//!
//! A model fails by an assertion, or by loom's "deadlock" if a waiter is never woken. Nothing is
//! random, so that a failure repeats without a seed. The lock-free map is not modelled: a map under
//! a lock takes its place.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::{Condvar, Mutex};
use loom::thread;

use entries::{KeyEntries, ResidentIndex};
use flight::OpenResult;

/// Replaces `super::sync`.
mod sync {
    pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};
    pub(super) use loom::thread::{ThreadId, current};
}

#[path = "entries.rs"]
#[expect(clippy::duplicate_mod, reason = "the very source that the crate runs, with loom's locks")]
#[allow(dead_code, reason = "a model needs no more than it shows")]
mod entries;
#[path = "flight.rs"]
#[expect(clippy::duplicate_mod, reason = "the very source that the crate runs, with loom's locks")]
mod flight;

/// Without a bound, three threads have too many orders to test. Two are tested without one.
const PREEMPTIONS_MAX: usize = 3;

const MODEL_KEY: u8 = 7;

/// Replaces the lock-free map.
struct ModelMap(Mutex<HashMap<u8, Arc<usize>>>);

impl ModelMap {
    fn get(&self) -> Option<Arc<usize>> {
        self.0.lock().unwrap().get(&MODEL_KEY).cloned()
    }
}

impl ResidentIndex<u8, usize> for ModelMap {
    fn publish(&self, key: u8, value: &Arc<usize>) {
        assert!(self.0.lock().unwrap().insert(key, Arc::clone(value)).is_none(), "resident twice");
    }

    fn retract<Q: Hash + Eq + ?Sized>(&self, key: &Q)
    where
        u8: Borrow<Q>,
    {
        assert!(self.0.lock().unwrap().remove(key).is_some(), "not resident");
    }

    fn clear(&self) {
        self.0.lock().unwrap().clear();
    }
}

/// A table of one key. Each open returns its number, counted from one.
struct ModelTable {
    entries: KeyEntries<u8, usize, usize, ModelMap>,
    /// Not loom's: it is not part of the tested state, and each step of a modelled atomic would
    /// multiply the orders.
    opens: AtomicUsize,
}

impl ModelTable {
    fn new() -> Arc<Self> {
        let entries = KeyEntries::new(ModelMap(Mutex::new(HashMap::new())));
        Arc::new(Self { entries, opens: AtomicUsize::new(0) })
    }

    fn opens(&self) -> usize {
        self.opens.load(Ordering::Relaxed)
    }

    fn number(&self) -> usize {
        self.opens.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn open(&self) -> OpenResult<usize, usize> {
        self.entries.get_or_open(&MODEL_KEY, None, |_| true, || Ok(self.number()))
    }

    fn value(&self) -> Option<usize> {
        self.open().ok().map(|value| *value)
    }

    fn value_async(&self) -> Option<usize> {
        self.open_async().ok().map(|value| *value)
    }

    fn fail(&self) -> OpenResult<usize, usize> {
        self.entries.get_or_open(&MODEL_KEY, None, |_| true, || Err(self.number()))
    }

    /// Opens by a future that is pending once, and done at its second poll.
    fn open_async(&self) -> OpenResult<usize, usize> {
        let open = async {
            PendingOnce(false).await;
            Ok(self.number())
        };
        block_on(self.entries.get_or_open_async(&MODEL_KEY, None, |_| true, open))
    }

    fn newer_than(&self, last: usize) -> usize {
        let found = self.entries.index.get();
        if let Some(value) = &found
            && **value > last
        {
            return **value;
        }
        *self.entries.get_or_open(&MODEL_KEY, found, |value| *value > last, || Ok(self.number())).unwrap()
    }

    /// Returns the resident value at the end, when nothing is being opened any more.
    fn resident(&self) -> Option<usize> {
        assert_eq!(self.entries.opening(), 0);
        let found = self.entries.index.get();
        let resident = self.entries.remove(&MODEL_KEY);
        assert_eq!(found, resident, "the index and the truth");
        resident.map(|value| *value)
    }
}

/// Pending once, and wakes its task at once.
struct PendingOnce(bool);

impl Future for PendingOnce {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Wakes a thread that is in [`block_on`].
struct ThreadSignal {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Wake for ThreadSignal {
    fn wake(self: Arc<Self>) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let signal = Arc::new(ThreadSignal { woken: Mutex::new(false), changed: Condvar::new() });
    let waker = Waker::from(Arc::clone(&signal));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        let mut woken = signal.woken.lock().unwrap();
        while !*woken {
            woken = signal.changed.wait(woken).unwrap();
        }
        *woken = false;
    }
}

/// Runs the callers concurrently, each on its own thread, and then `end`, in every order.
fn check<T: Send + 'static>(callers: &'static [fn(&ModelTable) -> T], end: fn(&ModelTable, &[T])) {
    let orders = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&orders);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = (callers.len() > 2).then_some(PREEMPTIONS_MAX);
    model.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let table = ModelTable::new();
        let others: Vec<_> = callers[1..]
            .iter()
            .map(|caller| {
                let table = Arc::clone(&table);
                thread::spawn(move || caller(&table))
            })
            .collect();
        let mut results = vec![callers[0](&table)];
        results.extend(others.into_iter().map(|other| other.join().unwrap()));
        end(&table, &results);
    });
    let orders = orders.load(Ordering::Relaxed);
    println!("{} callers: {orders} orders", callers.len());
    assert!(orders > 1);
}

fn all_have_the_first(table: &ModelTable, results: &[OpenResult<usize, usize>]) {
    assert!(results.iter().all(|result| *result == Ok(Arc::new(1))));
    assert_eq!((table.opens(), table.resident()), (1, Some(1)));
}

#[test]
fn callers_of_one_key_open_it_once() {
    check(&[ModelTable::open, ModelTable::open], all_have_the_first);
    check(&[ModelTable::open, ModelTable::open, ModelTable::open], all_have_the_first);
}

#[test]
fn callers_that_block_and_that_await_wait_for_one_another() {
    check(&[ModelTable::open, ModelTable::open_async], all_have_the_first);
    check(&[ModelTable::open_async, ModelTable::open_async], all_have_the_first);
    check(&[ModelTable::open, ModelTable::open_async, ModelTable::open_async], all_have_the_first);
}

#[test]
fn a_failure_reaches_waiters_and_later_callers_retry() {
    fn end(table: &ModelTable, results: &[OpenResult<usize, usize>]) {
        let mut errors: Vec<_> = results.iter().map(|result| result.clone().unwrap_err()).collect();
        errors.dedup_by(|one, other| Arc::ptr_eq(one, other));
        errors.sort();
        errors.dedup();
        assert_eq!(errors.len(), table.opens(), "each failure was somebody's");
        assert_eq!(table.resident(), None);
        assert_eq!(table.open(), Ok(Arc::new(errors.len() + 1)));
    }
    check(&[ModelTable::fail, ModelTable::fail], end);
    check(&[ModelTable::fail, ModelTable::fail, ModelTable::fail], end);
    check(&[ModelTable::fail, ModelTable::open], |table, results| {
        // The second one waited for the failure, or opened after it; or the first one found the
        // second one's value.
        let [first, second] = results else { unreachable!() };
        match (first, second) {
            (Err(one), Err(other)) => assert!(Arc::ptr_eq(one, other) && table.resident().is_none()),
            (Err(_), Ok(value)) => assert_eq!((**value, table.resident()), (2, Some(2))),
            (Ok(one), Ok(other)) => assert!(Arc::ptr_eq(one, other) && table.resident() == Some(1)),
            (Ok(_), Err(_)) => panic!("the second cannot fail by itself"),
        }
    });
}

#[test]
fn after_a_panic_one_waiter_opens() {
    fn panics(table: &ModelTable) -> Option<usize> {
        // Without the message that a panic prints: thousands of orders are tested.
        let open = || resume_unwind(Box::new("planned"));
        let caller = AssertUnwindSafe(|| table.entries.get_or_open(&MODEL_KEY, None, |_| true, open));
        catch_unwind(caller).ok().map(|opened| *opened.unwrap())
    }
    fn end(table: &ModelTable, results: &[Option<usize>]) {
        // Its own panic, or another's value.
        assert!(matches!(results[0], None | Some(1)));
        assert!(results[1..].iter().all(|result| *result == Some(1)));
        assert_eq!((table.opens(), table.resident()), (1, Some(1)));
    }
    check(&[panics, ModelTable::value], end);
    check(&[panics, ModelTable::value, ModelTable::value], end);
}

#[test]
fn after_a_dropped_future_one_waiter_opens() {
    fn polled_once(table: &ModelTable) -> Option<usize> {
        let open = async {
            PendingOnce(false).await;
            Ok(table.number())
        };
        let opening = pin!(table.entries.get_or_open_async(&MODEL_KEY, None, |_| true, open));
        match opening.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(opened) => Some(*opened.unwrap()),
            Poll::Pending => None,
        }
    }
    fn end(table: &ModelTable, results: &[Option<usize>]) {
        assert!(matches!(results[0], None | Some(1)));
        assert!(results[1..].iter().all(|result| *result == Some(1)));
        assert_eq!((table.opens(), table.resident()), (1, Some(1)));
    }
    check(&[polled_once, ModelTable::value], end);
    check(&[polled_once, ModelTable::value_async], end);
    check(&[polled_once, ModelTable::value, ModelTable::value_async], end);
}

#[test]
fn a_removal_wins_over_an_open_and_is_final() {
    fn removes(table: &ModelTable) -> Option<usize> {
        table.entries.remove(&MODEL_KEY).map(|value| *value)
    }
    fn clears(table: &ModelTable) -> Option<usize> {
        table.entries.clear();
        None
    }
    fn end(table: &ModelTable, results: &[Option<usize>]) {
        assert_eq!((results[0], table.opens()), (Some(1), 1));
        let resident = table.resident();
        assert!(matches!((results[1], resident), (None, None | Some(1)) | (Some(1), None)));
    }
    check(&[ModelTable::value, removes], end);
    check(&[ModelTable::value, clears], end);
    // A caller that asks after a removal never gets an open from before it.
    check(
        &[ModelTable::value, |table| {
            let before = table.opens();
            table.entries.remove(&MODEL_KEY);
            let after = *table.open().unwrap();
            assert!(after > before);
            Some(after)
        }],
        |table, results| {
            assert!(results.iter().all(|number| number.is_some_and(|number| number <= table.opens())));
            assert_eq!(table.resident(), results[1], "the newer one stays");
        },
    );
    check(&[ModelTable::value, ModelTable::value, removes], |table, results| {
        let resident = table.resident();
        assert!(table.opens() <= 2 && results[0].is_some() && results[1].is_some());
        assert!(resident.is_none_or(|number| results[..2].contains(&Some(number))));
    });
}

#[test]
fn a_value_that_is_no_longer_good_is_replaced_once() {
    fn newer_than_first(table: &ModelTable) -> usize {
        table.newer_than(1)
    }
    fn replaces(table: &ModelTable) -> usize {
        table.open().unwrap();
        newer_than_first(table)
    }
    fn end(table: &ModelTable, results: &[usize]) {
        // A caller that finds no value opens, and takes its result, good or not.
        assert!(results.iter().all(|number| *number == 2 || *number == 1));
        assert!(table.opens() <= 2);
        assert_eq!(table.resident(), results.iter().max().copied());
    }
    check(&[replaces, replaces], end);
    check(&[replaces, newer_than_first], end);
    check(&[replaces, newer_than_first, newer_than_first], end);
}
