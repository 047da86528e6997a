//! Random numbers that distinguish epochs and logs.

use std::hash::{BuildHasher, RandomState};

/// Returns an unpredictable number.
pub(super) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// Returns a salt that differs from this one.
pub(super) fn unlike(other: u32) -> u32 {
    let random = random();
    let salt = ((random ^ (random << 32)) >> 32) as u32;
    if salt == other { !salt } else { salt }
}
