//! Residency of the log on the real kernel, by cachestat(2).
//!
//! The volume is 256 MiB in segments of 32 MiB. `PAGEKEEPER_LOG_MIB` sets another volume in the tests
//! whose followers do not need all of it on the disk.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::testing::{resident, volume};
use crate::{BinLog, BinLogOptions, LogMode, Position, PurgeMode};
use pagekeeper_io::{Access, Io};
use pagekeeper_simdisk::SimDisk;
use pagekeeper_testing::{Mounted, disk_dir};

const MIB: u64 = 1 << 20;
const SEGMENT_BYTES: u64 = 32 * MIB;
const GROUP_BYTES: u64 = 64 << 10;

/// The limit of resident bytes of a log without followers.
const RESIDENT_BYTES_MAX: u64 = 16 * MIB;

/// Returns the bytes that this thread read from the disk.
fn read_from_disk() -> u64 {
    let counters = std::fs::read_to_string("/proc/thread-self/io").unwrap_or_default();
    let line = counters.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.map_or(0, |bytes| bytes.parse().unwrap())
}

/// Returns the resident bytes, once the log's own thread had time to catch up.
fn settled(dir: &Path, max: u64) -> Option<u64> {
    let begun = Instant::now();
    loop {
        let found = resident(dir)?;
        if found <= max || begun.elapsed().as_secs() >= 60 {
            return Some(found);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn fill(log: &BinLog, bytes: u64) {
    let record = vec![0x5a; usize::try_from(GROUP_BYTES).unwrap() - 24];
    for _ in 0..bytes / GROUP_BYTES {
        log.append_group(&[&record]).unwrap();
    }
}

fn options(every: u64) -> BinLogOptions {
    BinLog::options().max_segment_bytes(SEGMENT_BYTES).sync_every(every).mode(LogMode::Buffered)
}

/// Runs a test on the file system of the build directory and on an XFS.
fn on_each(test: impl Fn(&Path)) {
    let dir = disk_dir();
    test(&dir.path().join("binlog"));
    if let Some(mounted) = Mounted::new("xfs") {
        test(&mounted.path().join("binlog"));
    }
}

#[test]
fn without_followers_little_stays_in_each_mode() {
    on_each(|dir| {
        for (mode, every) in
            [(LogMode::Buffered, 0), (LogMode::Buffered, 16), (LogMode::Uncached, 0), (LogMode::Direct, 16)]
        {
            let dir = dir.with_extension(format!("{mode}-{every}"));
            let log = options(every).mode(mode).open(&dir).unwrap();
            for _ in 0..volume() / SEGMENT_BYTES {
                fill(&log, SEGMENT_BYTES);
                // The disk may be smaller than the volume.
                let first = Position { segment: log.end().segment.saturating_sub(4), offset: 0 };
                log.purge_to(first, PurgeMode::UnlessFollowed).unwrap();
            }
            fill(&log, SEGMENT_BYTES * 3 / 4);
            let Some(found) = settled(&dir, RESIDENT_BYTES_MAX) else { return };
            eprintln!("{}: {mode}, {every}: {} KiB", dir.display(), found >> 10);
            assert!(found <= RESIDENT_BYTES_MAX, "{mode}, {every}: {found} bytes are resident");
            assert!(log.resident().is_none_or(|resident| resident <= found));
            log.close().unwrap();
            std::fs::remove_dir_all(&dir).unwrap();
        }
    });
}

#[test]
fn pages_for_a_near_follower_stay_until_it_has_read_them() {
    on_each(|dir| {
        let log = options(16).open(dir).unwrap();
        fill(&log, 10 * MIB);
        let mut follower = log.follow(log.end()).unwrap();
        let unread = 3 * SEGMENT_BYTES - 10 * MIB;
        fill(&log, unread);
        let Some(found) = settled(dir, unread + RESIDENT_BYTES_MAX) else { return };
        // Some kernels reclaim a few pages even with enough free memory, now or during the reads.
        assert!(found >= unread - unread / 10, "{found} resident, {unread} to read");
        assert!(found <= unread + RESIDENT_BYTES_MAX, "{found} resident, {unread} to read");
        let before = read_from_disk();
        while follower.try_next().unwrap().is_some() {}
        let read = read_from_disk() - before;
        assert!(read <= unread / 5, "{read} bytes were read from the disk");
        let found = settled(dir, RESIDENT_BYTES_MAX).unwrap();
        assert!(found <= RESIDENT_BYTES_MAX, "{found} resident when all was read");
        std::fs::remove_dir_all(dir).unwrap();
    });
}

#[test]
fn unsynced_pages_do_not_pile_up_with_a_follower_or_without() {
    for follows in [false, true] {
        // This disk writes nothing back until it is asked to.
        let disk = SimDisk::new();
        let log = options(0).io(Arc::new(disk.clone())).open("/binlog").unwrap();
        let _follower = follows.then(|| log.follow(log.first()));
        fill(&log, 30 * MIB);
        let file = disk.open("/binlog/binlog.000001".as_ref(), Access::Buffered).unwrap();
        let found = file.residency(0..u64::MAX).unwrap().unwrap();
        assert!(found.unwritten <= 8 * MIB, "{found:?}");
        assert_eq!(found.resident >= 30 * MIB, follows, "{found:?}");
    }
}

#[test]
fn a_follower_that_falls_far_behind_holds_nothing() {
    on_each(|dir| {
        let log = options(16).keep_segments(1).open(dir).unwrap();
        let mut follower = log.follow(log.first()).unwrap();
        fill(&log, 4 * SEGMENT_BYTES);
        let Some(found) = settled(dir, RESIDENT_BYTES_MAX) else { return };
        assert!(log.end().segment > 2 && found <= RESIDENT_BYTES_MAX, "{found} resident");
        // The follower reads on, and releases the pages it has read.
        let mut peak = 0;
        let mut read = 0_u64;
        while let Some(event) = follower.try_next().unwrap() {
            read += event.bytes.len() as u64 + 24;
            if read.is_multiple_of(64 * GROUP_BYTES) {
                peak = peak.max(resident(dir).unwrap());
            }
        }
        assert_eq!(read, 4 * SEGMENT_BYTES);
        // The last segments are near: their pages stay until the follower has read them.
        assert!(peak <= 2 * RESIDENT_BYTES_MAX, "{peak} resident while it read");
        let found = settled(dir, RESIDENT_BYTES_MAX).unwrap();
        assert!(found <= RESIDENT_BYTES_MAX, "{found} resident when all was read");
        std::fs::remove_dir_all(dir).unwrap();
    });
}

#[test]
fn a_follower_that_leaves_lets_go_of_all() {
    on_each(|dir| {
        let log = options(16).open(dir).unwrap();
        let follower = log.follow(log.first()).unwrap();
        fill(&log, 2 * SEGMENT_BYTES);
        let Some(found) = resident(dir) else { return };
        assert!(found >= 2 * SEGMENT_BYTES / 10 * 9, "{found} resident");
        drop(follower);
        let found = settled(dir, RESIDENT_BYTES_MAX).unwrap();
        assert!(found <= RESIDENT_BYTES_MAX, "{found} resident");
        assert_eq!(log.first(), Position { segment: 1, offset: 4096 });
        std::fs::remove_dir_all(dir).unwrap();
    });
}
