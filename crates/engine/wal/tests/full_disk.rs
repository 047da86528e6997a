//! Logs on a disk without a free block or inode, and of a user whose quota is exhausted. A binlog
//! can be purged and closed, a redo log goes on and can be closed, and one that can't be created
//! leaves nothing.

use std::path::Path;

use pagekeeper_testing::{Mounted, as_nobody, is_out_of_space};
use pagekeeper_wal::{BinLog, Error, Position, PurgeMode, RedoLog};

fn open(dir: &Path) -> BinLog {
    BinLog::options().max_segment_bytes(8 << 20).open(dir).unwrap()
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Io(error) if is_out_of_space(error.errno()))
}

fn purges_and_closes(mounted: &Mounted) {
    let dir = mounted.path().join("binlog");
    let log = open(&dir);
    for _ in 0..8 {
        log.append_group(&[&[7; 5000]]).unwrap();
        log.rotate().unwrap();
    }
    let (first, end) = (log.first().segment, log.append_group(&[b"last"]).unwrap());
    let purge = |log: &BinLog, segment| {
        log.purge_to(Position { segment, offset: 0 }, PurgeMode::UnlessFollowed).unwrap()
    };

    mounted.fill("first");
    let refused = log.append_group(&[&vec![7; 6 << 20]]).unwrap_err();
    assert!(is_full(&refused), "{refused}");
    assert_eq!(purge(&log, first + 2), 2);
    mounted.fill("second");
    assert_eq!(purge(&log, first + 4), 2);
    mounted.fill("third");
    log.close().unwrap();
    mounted.fill("fourth");
    let log = open(&dir);
    assert_eq!(purge(&log, end.segment), 4);

    assert_eq!(log.first().segment, end.segment);
    let mut follower = log.follow(log.first()).unwrap();
    assert_eq!(&*follower.try_next().unwrap().unwrap().bytes, b"last");
    drop(follower);
    drop(log);
    std::fs::remove_file(mounted.path().join("first")).unwrap();
    open(&dir).append_group(&[&vec![7; 6 << 20]]).unwrap();
}

fn goes_on_and_closes(mounted: &Mounted) {
    let dir = mounted.path().join("redo");
    let options = || RedoLog::options().files(4).file_bytes(256 << 10).buffer_bytes(64 << 10);
    let log = options().create(&dir).unwrap();
    mounted.fill("filler");
    let (mut end, mut records) = (log.end(), 0);
    // Around the ring several times.
    for record in 0..1000_u32 {
        end = log.append(&[u8::try_from(record % 251).unwrap(); 4000]).unwrap();
        log.wait_flushed(end).unwrap();
        records += 1;
        if records == 100 {
            log.checkpoint(end).unwrap();
            records = 0;
        }
    }
    log.append(b"last").unwrap();
    log.close().unwrap();
    let (log, found) = options().recover(&dir, None).unwrap();
    assert_eq!(found.last().map(|record| &*record.body), Some(&b"last"[..]));
    assert!(log.end() > end);
    log.close().unwrap();

    let other = mounted.path().join("other");
    let refused = options().create(&other).unwrap_err();
    assert!(is_full(&refused), "{refused}");
    assert!(!other.exists());
    std::fs::remove_file(mounted.path().join("filler")).unwrap();
    options().create(&other).unwrap();
}

macro_rules! on_full {
    ($($kind:ident)*) => {$(
        mod $kind {
            use super::*;

            #[test]
            fn segments_are_purged() {
                Mounted::new(stringify!($kind)).iter().for_each(purges_and_closes);
            }

            #[test]
            fn a_redo_log_goes_on() {
                Mounted::new(stringify!($kind)).iter().for_each(goes_on_and_closes);
            }
        }
    )*};
}

on_full! { tmpfs ext4 xfs btrfs }

fn with_an_exhausted_quota(kind: &str) {
    for story in [purges_and_closes, goes_on_and_closes] {
        let Some(mounted) = Mounted::with_quota(kind) else { return };
        as_nobody(|| story(&mounted));
    }
}

#[test]
#[ignore = "needs a kernel with quotas for users: make test-kernels"]
fn logs_go_on_with_an_exhausted_quota_of_a_user() {
    ["ext4", "xfs"].into_iter().for_each(with_an_exhausted_quota);
}
