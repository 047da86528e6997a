//! Logs that are configured not to release: their pages stay resident, also after the log is
//! closed. Some kernels reclaim a few pages even with enough free memory.

use std::path::Path;

use pagekeeper_kernel::{InspectedFile, Links, residency};
use pagekeeper_testing::{disk_dir, skip};
use pagekeeper_wal::{BinLog, LogMode, RedoLog};

const MIB: u64 = 1 << 20;

/// Returns the resident bytes of all files; prints a line and returns `None` if the kernel does
/// not report them.
fn resident(dir: &Path) -> Option<u64> {
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

#[test]
fn a_redo_log_keeps_its_pages_only_if_asked() {
    for (release, min, max) in [(true, 0, MIB), (false, 36 * MIB, u64::MAX)] {
        let temp = disk_dir();
        let dir = temp.path().join("redo");
        let options = RedoLog::options().files(2).file_bytes(32 * MIB).mode(LogMode::Buffered);
        let log = options.release(release).create(&dir).unwrap();
        for _ in 0..40 {
            let end = log.append(&vec![1; 1 << 20]).unwrap();
            log.wait_flushed(end).unwrap();
        }
        assert!(release || log.stats().released == 0);
        log.close().unwrap();
        let Some(found) = resident(&dir) else { return };
        assert!((min..=max).contains(&found), "release {release}: {found} bytes are resident");
    }
}

#[test]
fn a_binlog_keeps_its_pages_only_if_asked() {
    for (release, min, max) in [(true, 0, 16 * MIB), (false, 54 * MIB, u64::MAX)] {
        let temp = disk_dir();
        let dir = temp.path().join("binlog");
        let options = BinLog::options().max_segment_bytes(16 * MIB).mode(LogMode::Buffered);
        let log = options.release(release).open(&dir).unwrap();
        let mut follower = log.follow(log.first()).unwrap();
        for _ in 0..60 {
            log.append_group(&[&vec![1; 1 << 20]]).unwrap();
        }
        let read = std::iter::from_fn(|| follower.try_next().unwrap()).count();
        assert_eq!((read, log.resident().is_some()), (60, release));
        drop(follower);
        log.close().unwrap();
        let Some(found) = resident(&dir) else { return };
        assert!((min..=max).contains(&found), "release {release}: {found} bytes are resident");
    }
}
