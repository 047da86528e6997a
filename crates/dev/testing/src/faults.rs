//! Searches for faults that a build for tests injects on request.

use std::fmt::Debug;
use std::iter::once;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

/// Checks that each fault makes one of the lives `0..lives` panic. A fault stands with the life to
/// search first: the one that finds it in the current code. If that life no longer finds it, the
/// search takes long and still succeeds; the output has the life's new number.
///
/// # Panics
///
/// If a fault is not found.
pub fn expect_found<F: Copy + Debug>(lives: u64, faults: &[(F, u64)], live: impl Fn(F, u64)) {
    let finds = |fault, life: &u64| catch_unwind(AssertUnwindSafe(|| live(fault, *life))).is_err();
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let found: Vec<_> = faults
        .iter()
        .map(|(fault, first)| (fault, once(*first).chain(0..lives).find(|life| finds(*fault, life))))
        .collect();
    set_hook(hook);
    println!("found in lives {found:?}");
    assert!(found.iter().all(|(_, life)| life.is_some()), "{found:?}");
}
