//! A binlog on a disk without a free block: segments can be purged, and the log can be closed.

use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;

use pagekeeper_testing::Mounted;
use pagekeeper_wal::{BinLog, Error, Position, PurgeMode};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

fn open(dir: &Path) -> BinLog {
    BinLog::options().max_segment_bytes(8 << 20).open(dir).unwrap()
}

/// Takes all free space, in a file of its own.
fn fill(dir: &Path, name: &str) {
    let mut filler = File::create(dir.join(name)).unwrap();
    let (mut at, mut step) = (0, 64 << 20);
    while step >= 4096 {
        match rustix::fs::fallocate(&filler, FallocateFlags::empty(), at, step) {
            Ok(()) => at += step,
            Err(Errno::NOSPC) => step /= 2,
            Err(errno) => panic!("{errno}"),
        }
    }
    filler.seek(SeekFrom::End(0)).unwrap();
    let more = std::iter::repeat_with(|| filler.write(&[7; 4096])).find_map(Result::err).unwrap();
    assert_eq!(more.kind(), ErrorKind::StorageFull);
    filler.sync_all().unwrap();
}

fn purges_and_closes(kind: &str) {
    let Some(mounted) = Mounted::new(kind) else { return };
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

    fill(mounted.path(), "first");
    let refused = log.append_group(&[&vec![7; 6 << 20]]).unwrap_err();
    assert!(matches!(&refused, Error::Io(error) if error.errno() == Some(libc::ENOSPC)), "{refused}");
    assert_eq!(purge(&log, first + 2), 2);
    fill(mounted.path(), "second");
    assert_eq!(purge(&log, first + 4), 2);
    fill(mounted.path(), "third");
    log.close().unwrap();
    fill(mounted.path(), "fourth");
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

#[test]
fn segments_are_purged_on_a_full_tmpfs() {
    purges_and_closes("tmpfs");
}

#[test]
fn segments_are_purged_on_a_full_ext4() {
    purges_and_closes("ext4");
}
