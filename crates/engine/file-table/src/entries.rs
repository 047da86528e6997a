//! The keys that have a value or are being opened. This is the authoritative state of a table and
//! its transitions.
//!
//! ```text
//!             get_or_open                    value
//!  absent ──────────────────▶ opening ──────────────────▶ resident
//!     ▲                        │   ▲                       │    │
//!     │   error, panic,        │   │  no longer good       │    │
//!     │   dropped, removed     │   └───────────────────────┘    │ removed
//!     └────────────────────────┴────────────────────────────────┘
//! ```
//!
//! Invariants, checked in every order of threads by `model.rs`:
//! 1. A key is absent, being opened by one caller, or resident. Each transition happens under one
//!    lock.
//! 2. The index has a key if and only if it is resident, as seen by every holder of the lock.
//! 3. A removal wins: it detaches the flight from the key. The flight's value reaches its waiters
//!    but not the table. A caller that asks after the removal opens again.
//! 4. A flight ends however its opener ends: with a value, an error or a panic, or by being
//!    dropped.
//! 5. No foreign code runs with the lock held except the key's `Hash`, `Eq`, `Borrow`, `ToOwned`
//!    and `Drop`: neither an opener, nor a condition, nor a value's `clone` or `drop`.
//!
//! A caller that finds another's flight waits for it and then tries again; only its own opener's
//! outcome is final.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::Hash;
use std::pin::pin;
use std::sync::{Arc, PoisonError};

// Not from `crate`: the model has its own versions beside its copy of this file.
use super::flight::{Flight, FlightOutcome, OpenResult};
use super::sync::{Mutex, MutexGuard};

/// Finds resident values without the lock. Changed only with the lock held.
pub(super) trait ResidentIndex<K, V> {
    fn publish(&self, key: K, value: &Arc<V>);
    fn retract<Q: Hash + Eq + ?Sized>(&self, key: &Q)
    where
        K: Borrow<Q>;
    fn clear(&self);
}

/// The keys that are resident or being opened.
pub(super) struct KeyEntries<K, V, E, I> {
    pub(super) index: I,
    entries: Mutex<HashMap<K, KeyState<V, E>>>,
}

enum KeyState<V, E> {
    Opening(Arc<Flight<V, E>>),
    Resident(Arc<V>),
}

/// The next step of a caller that found no good value.
enum NextStep<'a, K, Q, V, E, I>
where
    K: Borrow<Q> + Hash + Eq,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    I: ResidentIndex<K, V>,
{
    Take(Arc<V>),
    Wait(Arc<Flight<V, E>>),
    Open(OpenPermit<'a, K, Q, V, E, I>),
}

impl<K: Hash + Eq, V, E, I: ResidentIndex<K, V>> KeyEntries<K, V, E, I> {
    pub(super) fn new(index: I) -> Self {
        Self { index, entries: Mutex::new(HashMap::new()) }
    }

    /// Returns the key's value. Opens it, or waits for it, if it is absent or not good: `stale` is
    /// a value that the caller found and rejected, and `good` judges any other.
    pub(super) fn get_or_open<Q>(
        &self,
        key: &Q,
        mut stale: Option<Arc<V>>,
        good: impl Fn(&V) -> bool,
        open: impl FnOnce() -> Result<V, E>,
    ) -> OpenResult<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        loop {
            let value = match self.next_step(key, stale.as_ref()) {
                NextStep::Open(opening) => {
                    drop(stale);
                    let result = opening.flight.run(open);
                    return opening.finish(result);
                }
                NextStep::Wait(flight) => match flight.wait() {
                    FlightOutcome::Opened(opened) => opened?,
                    FlightOutcome::Abandoned => continue,
                },
                NextStep::Take(value) => value,
            };
            if good(&value) {
                return Ok(value);
            }
            stale = Some(value);
        }
    }

    /// Does the same without blocking the thread. `open` is polled only by this caller, and may be
    /// dropped.
    pub(super) async fn get_or_open_async<Q>(
        &self,
        key: &Q,
        mut stale: Option<Arc<V>>,
        good: impl Fn(&V) -> bool,
        open: impl Future<Output = Result<V, E>>,
    ) -> OpenResult<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        loop {
            let value = match self.next_step(key, stale.as_ref()) {
                NextStep::Open(opening) => {
                    drop(stale);
                    return opening.drive(open).await;
                }
                NextStep::Wait(flight) => match flight.ended().await {
                    FlightOutcome::Opened(opened) => opened?,
                    FlightOutcome::Abandoned => continue,
                },
                NextStep::Take(value) => value,
            };
            if good(&value) {
                return Ok(value);
            }
            stale = Some(value);
        }
    }

    /// Removes the key's value, or its flight if it is being opened.
    pub(super) fn remove<Q>(&self, key: &Q) -> Option<Arc<V>>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut entries = self.lock();
        match entries.remove(key)? {
            KeyState::Resident(value) => {
                self.index.retract(key);
                Some(value)
            }
            KeyState::Opening(_) => None,
        }
    }

    /// Removes the key's value if it is exactly this one.
    pub(super) fn remove_exactly<Q>(&self, key: &Q, value: &Arc<V>) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut entries = self.lock();
        let is_it = matches!(entries.get(key), Some(KeyState::Resident(other)) if Arc::ptr_eq(other, value));
        if is_it {
            entries.remove(key);
            self.index.retract(key);
        }
        is_it
    }

    /// Removes all keys as [`remove`](Self::remove) does, in one step.
    pub(super) fn clear(&self) {
        let mut entries = self.lock();
        let removed = std::mem::take(&mut *entries);
        self.index.clear();
        drop(entries);
        drop(removed);
    }

    /// Returns the number of keys that are being opened. Visits all keys.
    pub(super) fn opening(&self) -> usize {
        self.lock().values().filter(|entry| matches!(entry, KeyState::Opening(_))).count()
    }

    /// Returns the number of callers that wait for the key to be opened.
    #[cfg(test)]
    pub(super) fn waiting<Q>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        match self.lock().get(key) {
            // All except this entry and the opener.
            Some(KeyState::Opening(flight)) => Arc::strong_count(flight) - 2,
            _ => 0,
        }
    }

    fn next_step<'a, Q>(&'a self, key: &'a Q, stale: Option<&Arc<V>>) -> NextStep<'a, K, Q, V, E, I>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let mut entries = self.lock();
        let flight = match entries.get_mut(key) {
            Some(KeyState::Opening(flight)) => return NextStep::Wait(Arc::clone(flight)),
            Some(KeyState::Resident(value)) if !stale.is_some_and(|stale| Arc::ptr_eq(stale, value)) => {
                return NextStep::Take(Arc::clone(value));
            }
            Some(entry) => {
                self.index.retract(key);
                let flight = Arc::new(Flight::new());
                // The value is not dropped here: the caller holds it as `stale`.
                *entry = KeyState::Opening(Arc::clone(&flight));
                flight
            }
            None => {
                let flight = Arc::new(Flight::new());
                entries.insert(key.to_owned(), KeyState::Opening(Arc::clone(&flight)));
                flight
            }
        };
        NextStep::Open(OpenPermit { entries: self, key, flight, outcome: FlightOutcome::Abandoned })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, KeyState<V, E>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The permission, and duty, to open a key. It ends the flight when dropped.
struct OpenPermit<'a, K, Q, V, E, I>
where
    K: Borrow<Q> + Hash + Eq,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    I: ResidentIndex<K, V>,
{
    entries: &'a KeyEntries<K, V, E, I>,
    key: &'a Q,
    flight: Arc<Flight<V, E>>,
    outcome: FlightOutcome<V, E>,
}

impl<K, Q, V, E, I> OpenPermit<'_, K, Q, V, E, I>
where
    K: Borrow<Q> + Hash + Eq,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    I: ResidentIndex<K, V>,
{
    async fn drive(self, open: impl Future<Output = Result<V, E>>) -> OpenResult<V, E> {
        // Declared after `self`, so dropped before it: a dropped open releases its resources before
        // another begins.
        let mut open = pin!(open);
        let result = poll_fn(|context| self.flight.run(|| open.as_mut().poll(context))).await;
        self.finish(result)
    }

    fn finish(mut self, result: Result<V, E>) -> OpenResult<V, E> {
        let opened = result.map(Arc::new).map_err(Arc::new);
        self.outcome = FlightOutcome::Opened(opened.clone());
        opened
    }
}

impl<K, Q, V, E, I> Drop for OpenPermit<'_, K, Q, V, E, I>
where
    K: Borrow<Q> + Hash + Eq,
    Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    I: ResidentIndex<K, V>,
{
    fn drop(&mut self) {
        let mut entries = self.entries.lock();
        let is_ours = |entry: &&mut KeyState<V, E>| matches!(&**entry, KeyState::Opening(flight) if Arc::ptr_eq(flight, &self.flight));
        // Otherwise a removal came first.
        if let Some(entry) = entries.get_mut(self.key).filter(is_ours) {
            if let FlightOutcome::Opened(Ok(value)) = &self.outcome {
                self.entries.index.publish(self.key.to_owned(), value);
                *entry = KeyState::Resident(Arc::clone(value));
            } else {
                entries.remove(self.key);
            }
        }
        drop(entries);
        // From now on, new callers find the value or open again.
        self.flight.end(std::mem::replace(&mut self.outcome, FlightOutcome::Abandoned));
    }
}
