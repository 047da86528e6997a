//! Reproducible random numbers. The seed comes from `PAGEKEEPER_SEED`, if set, and is printed when
//! a test fails.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of a test. It is printed when the test fails.
#[derive(Debug)]
pub struct Seed(pub u64);

impl Seed {
    /// Takes the seed from `PAGEKEEPER_SEED`, or else from the clock.
    ///
    /// # Panics
    ///
    /// If `PAGEKEEPER_SEED` is not a number.
    #[allow(clippy::new_without_default, reason = "two of them differ")]
    pub fn new() -> Self {
        let given = std::env::var("PAGEKEEPER_SEED").ok();
        let given = given.map(|seed| seed.parse().expect("PAGEKEEPER_SEED is a number"));
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
        Self(given.unwrap_or_else(|| now().into()))
    }

    /// Returns one of several independent generators of the seed.
    pub fn rng(&self, which: u64) -> Rng {
        let mut rng = Rng(self.0 ^ which.wrapping_mul(0xd6e8_feb8_6659_fd93));
        rng.number();
        rng
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("PAGEKEEPER_SEED={} repeats this", self.0);
        }
    }
}

/// A generator of random numbers: splitmix64.
#[derive(Debug, Clone, Default)]
pub struct Rng(u64);

impl Rng {
    /// Returns the first generator of a seed that is printed elsewhere.
    pub fn from_seed(seed: u64) -> Self {
        Seed(seed).rng(0)
    }

    /// Returns any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from a range, which must not be empty.
    pub fn of(&mut self, range: Range<u64>) -> u64 {
        range.start + self.number() % (range.end - range.start)
    }

    /// Returns an index into a sequence of `len` elements.
    ///
    /// # Panics
    ///
    /// If `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.of(0..len as u64)).unwrap()
    }

    /// Returns true once in `times` calls on average.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.number().is_multiple_of(times)
    }

    /// Returns a number below `end`, small ones far more often: half of them are in the first
    /// eighth.
    ///
    /// # Panics
    ///
    /// Never: the result fits.
    pub fn skewed(&mut self, end: u64) -> u64 {
        let part = u128::from(self.number() >> 40);
        let cubed = part * part * part;
        u64::try_from((cubed * u128::from(end)) >> 72).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_and_its_generators_differ() {
        let numbers = |seed: u64, which| {
            let mut rng = Seed(seed).rng(which);
            [rng.number(), rng.number()]
        };
        assert_eq!(numbers(1, 0), numbers(1, 0));
        assert_ne!(numbers(1, 0), numbers(1, 1));
        assert_ne!(numbers(1, 0), numbers(2, 0));
    }

    #[test]
    fn numbers_are_where_they_are_asked_for() {
        let mut rng = Rng::from_seed(7);
        let mut low = 0;
        for _ in 0..10_000 {
            assert!((3..9).contains(&rng.of(3..9)));
            assert!(rng.index(5) < 5);
            let skewed = rng.skewed(800);
            assert!(skewed < 800);
            low += u32::from(skewed < 100);
        }
        assert!((4_500..5_500).contains(&low), "{low} of 10000 are in the first eighth");
        let ones = (0..10_000).filter(|_| rng.one_in(10)).count();
        assert!((800..1_200).contains(&ones), "{ones}");
    }
}
