//! Crashes at random.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::chance::Seed;
use super::life::{Made, OF_A_LIFE, crashes, life};

#[test]
fn lives_with_random_crashes() {
    let seed = Seed::new();
    let made = Made::new();
    for which in 0..crashes(50_000).div_ceil(OF_A_LIFE) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| life(&seed, which, &made, None))) {
            eprintln!("life {which}");
            resume_unwind(panic);
        }
    }
}
