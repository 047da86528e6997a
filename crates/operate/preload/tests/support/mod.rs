//! Shared by the library's tests: waiting for the helper.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::time::{Duration, Instant};

/// Waits until `is_so` holds, and returns whether it does within two minutes: a disk may take
/// longer than the library's own wait for the helper, which is two seconds at most.
pub(crate) fn comes(is_so: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > Duration::from_secs(120) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
