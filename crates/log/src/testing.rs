//! Helpers of this crate's own tests: what is resident, and how much goes through a log.

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
