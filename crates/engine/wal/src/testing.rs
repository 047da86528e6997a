//! Helpers of this crate's own tests: residency, the volume of data, the number of simulated lives,
//! and checks for injected faults.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use pagekeeper_kernel::{InspectedFile, Links, residency};
use pagekeeper_testing::skip;

/// Returns the resident bytes of all files in a directory; `None`, reported as skipped, if the
/// kernel does not report them.
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

/// Returns the bytes that residency tests put through a log: 256 MiB, or `PAGEKEEPER_LOG_MIB`. That
/// is twice the ring of the redo log, and more than the segments that a binlog keeps.
pub(crate) fn volume() -> u64 {
    let mib = std::env::var("PAGEKEEPER_LOG_MIB");
    mib.map_or(256, |mib| mib.parse().expect("PAGEKEEPER_LOG_MIB is a number")) << 20
}

/// Returns this number of lives, unless `PAGEKEEPER_CRASHES` sets another.
pub(crate) fn lives(unless_said: u64) -> u64 {
    let said = std::env::var("PAGEKEEPER_CRASHES").ok();
    said.map_or(unless_said, |said| said.parse().expect("PAGEKEEPER_CRASHES is a number"))
}

/// Fails unless one of these lives reveals the injected fault, by an error or a panic.
#[track_caller]
pub(crate) fn require_found(fault: impl Debug, lives: u64, life: impl Fn(u64) -> Result<(), String>) {
    let is_right = |which| catch_unwind(AssertUnwindSafe(|| life(which))).is_ok_and(|found| found.is_ok());
    let found = (0..lives).find(|which| !is_right(*which));
    println!("{fault:?}: found in life {found:?}");
    assert!(found.is_some(), "{fault:?}");
}
