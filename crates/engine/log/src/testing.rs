//! Helpers of this crate's own tests: what is resident, how much goes through a log, how many lives it has, and what they must show.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use pagekeeper_kernel::{InspectedFile, Links, residency};
use pagekeeper_testing::skip;

/// Bytes of all files in a directory that are resident; `None`, and reported as skipped, where the kernel does not say.
pub(crate) fn resident(dir: &Path) -> Option<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let file = InspectedFile::open(entry.unwrap().path(), Links::Refuse).unwrap();
        match residency(&file, 0..u64::MAX) {
            Ok(found) => sum += found.resident,
            Err(error) => {
                skip(format!("residency can't be read here: {error}"));
                return None;
            }
        }
    }
    Some(sum)
}

/// Bytes that tests of residency put through a log: 1 GiB, or `PAGEKEEPER_LOG_MIB`.
pub(crate) fn volume() -> u64 {
    let mib = std::env::var("PAGEKEEPER_LOG_MIB");
    mib.map_or(1024, |mib| mib.parse().expect("PAGEKEEPER_LOG_MIB is a number")) << 20
}

/// So many lives, or as `PAGEKEEPER_CRASHES` says.
pub(crate) fn lives(unless_said: u64) -> u64 {
    let said = std::env::var("PAGEKEEPER_CRASHES").ok();
    said.map_or(unless_said, |said| said.parse().expect("PAGEKEEPER_CRASHES is a number"))
}

/// Fails unless one of so many lives shows, by an error or a panic, the fault that was injected into it.
#[track_caller]
pub(crate) fn require_found(fault: impl Debug, lives: u64, life: impl Fn(u64) -> Result<(), String>) {
    let is_right = |which| catch_unwind(AssertUnwindSafe(|| life(which))).is_ok_and(|found| found.is_ok());
    let found = (0..lives).find(|which| !is_right(*which));
    println!("{fault:?}: found in life {found:?}");
    assert!(found.is_some(), "{fault:?}");
}
