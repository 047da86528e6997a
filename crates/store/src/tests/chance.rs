//! Chance that repeats: from a seed that is printed when a test fails, and taken from `PAGEKEEPER_SEED` if that is set.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of a test; printed when the test fails.
pub(super) struct Seed(pub(super) u64);

impl Seed {
    /// `PAGEKEEPER_SEED`, or one by the clock.
    pub(super) fn new() -> Self {
        let given = std::env::var("PAGEKEEPER_SEED").ok();
        let given = given.map(|seed| seed.parse().expect("PAGEKEEPER_SEED is a number"));
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
        Self(given.unwrap_or_else(|| now().into()))
    }

    /// Chance for one of several that share the seed.
    pub(super) fn chance(&self, which: u64) -> Chance {
        let mut chance = Chance(self.0 ^ which.wrapping_mul(0xd6e8_feb8_6659_fd93));
        chance.next();
        chance
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("PAGEKEEPER_SEED={} repeats this", self.0);
        }
    }
}

/// Numbers by chance: splitmix64.
#[derive(Debug, Clone)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn from_seed(seed: u64) -> Self {
        Seed(seed).chance(0)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of a range that is not empty.
    pub(super) fn of(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// An index into so many.
    pub(super) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.of(0..len as u64)).unwrap()
    }

    /// True once in so many times.
    pub(super) fn one_in(&mut self, times: u64) -> bool {
        self.next().is_multiple_of(times)
    }
}
