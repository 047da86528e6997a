//! What tests of the library share: waiting for the helper.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::time::{Duration, Instant};

/// Whether this comes to be so, however long the disk takes: the library itself waits for the helper for two seconds at most.
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
