//! Residency of the ring on the real kernel after twice its size went through it, by cachestat(2).
//!
//! `PAGEKEEPER_LOG_MIB` sets another volume.

use std::path::Path;
use std::time::{Duration, Instant};

use super::*;
use crate::testing::{resident, volume};
use crate::{FlushPolicy, LogMode};
use pagekeeper_testing::{Mounted, disk_dir};

const MIB: u64 = 1 << 20;
const RECORD_BYTES: usize = 256 << 10;

/// The limit of resident bytes of an open log.
const MAX_RESIDENT: u64 = 16 * MIB;

/// Bytes that the kernel may hold references to while it is advised to drop pages.
const HELD_BYTES_MAX: u64 = 256 << 10;

/// Returns the resident bytes, once the log's own thread had time to catch up.
fn settled(dir: &Path) -> Option<u64> {
    let begun = Instant::now();
    loop {
        let found = resident(dir)?;
        if found <= MAX_RESIDENT || begun.elapsed().as_secs() >= 60 {
            return Some(found);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn rounds_of_the_ring(dir: &Path) {
    for (mode, policy, each) in [
        (LogMode::Buffered, FlushPolicy::EachCommit, 4),
        (LogMode::Buffered, FlushPolicy::Os, u64::MAX),
        (LogMode::Uncached, FlushPolicy::EachCommit, 4),
        (LogMode::Direct, FlushPolicy::EachCommit, 4),
    ] {
        let options = RedoLog::options().files(4).file_bytes(32 * MIB).mode(mode).flush_policy(policy);
        let log = options.create(dir).unwrap();
        for number in 0..volume() / RECORD_BYTES as u64 {
            let end = log.append(&vec![number.to_le_bytes()[0]; RECORD_BYTES]).unwrap();
            if number % each == each - 1 {
                log.wait_flushed(end).unwrap();
            }
            if number % 128 == 127 {
                log.checkpoint(end).unwrap();
            }
        }
        let Some(found) = settled(dir) else { return };
        eprintln!("{}, {mode}, {policy:?}: {} KiB", dir.display(), found >> 10);
        assert!(found <= MAX_RESIDENT, "{}, {mode}, {policy:?}: {found} bytes are resident", dir.display());
        log.close().unwrap();
        let left = resident(dir).unwrap();
        // Without direct I/O the control file's two slots are written through the page cache.
        assert!(
            left <= 2 * BLOCK + HELD_BYTES_MAX,
            "{}, {mode}, {policy:?}: {left} bytes are left resident",
            dir.display()
        );
        std::fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn little_stays_in_each_mode_and_nothing_after_the_close() {
    let dir = disk_dir();
    rounds_of_the_ring(&dir.path().join("redo"));
    if let Some(mounted) = Mounted::new("xfs") {
        rounds_of_the_ring(&mounted.path().join("redo"));
    }
}
