//! Rings on file systems that copy on write, on a disk that is full to the last block.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagekeeper_testing::Mounted;
use pagekeeper_wal::{Error, FlushPolicy, LogMode, Lsn, RedoLog, RedoOptions};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

const MODES: [LogMode; 3] = [LogMode::Buffered, LogMode::Direct, LogMode::Uncached];

fn options(mode: LogMode) -> RedoOptions {
    RedoLog::options().files(2).file_bytes(1 << 20).flush_policy(FlushPolicy::EachCommit).mode(mode)
}

fn create(dir: &Path, mode: LogMode) -> RedoLog {
    options(mode).create(dir).unwrap()
}

fn open(dir: &Path) -> RedoLog {
    options(LogMode::Auto).open(dir).unwrap()
}

fn commit(log: &RedoLog, body: &[u8]) -> Result<u64, Error> {
    let end = log.append(body)?;
    log.wait_flushed(end)?;
    Ok(end.get())
}

/// Overwrites the whole ring more than twice.
fn go_round(log: &RedoLog) -> Result<(), Error> {
    let mut left = 5 * log.capacity() / 2;
    while left > 0 {
        let body = vec![7; 10_000];
        let end = commit(log, &body)?;
        log.checkpoint(Lsn::new(end))?;
        left = left.saturating_sub(body.len() as u64);
    }
    Ok(())
}

fn is_full_disk(error: &Error) -> bool {
    matches!(error, Error::Io(error) if error.errno() == Some(libc::ENOSPC))
}

/// Takes all free space. Returns the file that holds it.
fn fill(dir: &Path) -> PathBuf {
    let path = dir.join("filler");
    let filler = File::create(&path).unwrap();
    let (mut at, mut step) = (0, 64 << 20);
    while step >= 4096 {
        match rustix::fs::fallocate(&filler, FallocateFlags::empty(), at, step) {
            Ok(()) => at += step,
            Err(Errno::NOSPC) => step /= 2,
            Err(errno) => panic!("{errno}"),
        }
    }
    filler.sync_all().unwrap();
    let write = || {
        let mut file = File::create(dir.join("one-more"))?;
        file.write_all(&vec![1; 64 << 10])?;
        file.sync_all()
    };
    assert_eq!(write().unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    path
}

/// Frees the space. Removing the file would free it only later.
fn make_room(filler: &Path) {
    File::options().write(true).open(filler).unwrap().set_len(0).unwrap();
    rustix::fs::sync();
}

fn run(program: &str, args: &[&str], paths: [&Path; 2]) {
    let output = Command::new(program).args(args).args(paths).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_full_disk_does_not_end_a_ring_that_was_made_there() {
    for kind in ["ext4", "xfs", "btrfs"] {
        let Some(mounted) = Mounted::new(kind) else { continue };
        let dir_of = |mode: LogMode| mounted.path().join(mode.to_string());
        let logs = MODES.map(|mode| create(&dir_of(mode), mode));
        // The test of the mode runs while there is room.
        for log in &logs {
            commit(log, b"first").unwrap();
        }
        fill(mounted.path());
        for (log, mode) in logs.into_iter().zip(MODES) {
            assert!(log.is_overwritten_in_place(), "{kind}, {mode}");
            go_round(&log).unwrap_or_else(|error| panic!("{kind}, {mode}: {error}"));
            log.close().unwrap();
            let log = open(&dir_of(mode));
            go_round(&log).unwrap_or_else(|error| panic!("{kind}, {mode}, opened: {error}"));
            assert!(log.is_overwritten_in_place(), "{kind}, {mode}");
        }
    }
}

#[test]
fn a_copied_ring_on_xfs_gets_its_own_blocks_or_reports_a_full_disk() {
    let Some(mounted) = Mounted::new("xfs") else { return };
    let [original, copy, late] = ["original", "copy", "late"].map(|name| mounted.path().join(name));
    let log = create(&original, LogMode::Auto);
    let kept = commit(&log, b"kept").unwrap();
    log.close().unwrap();
    for to in [&copy, &late] {
        run("cp", &["-r", "--reflink=always"], [&original, to]);
    }
    let log = open(&copy);
    assert!(!log.is_overwritten_in_place());
    commit(&log, b"first").unwrap();
    assert!(log.is_overwritten_in_place());
    let filler = fill(mounted.path());
    go_round(&log).unwrap();

    let log = open(&late);
    for _ in 0..2 {
        let error = commit(&log, b"no room").unwrap_err();
        assert!(is_full_disk(&error), "{error}");
    }
    assert!(!log.is_overwritten_in_place());
    make_room(&filler);
    commit(&log, b"with room").unwrap();
    let records: Vec<_> = log.read_from(Lsn::new(0)).unwrap().map(|record| record.unwrap().body).collect();
    assert_eq!(records, [&b"kept"[..], b"with room"]);
    fill(mounted.path());
    log.checkpoint(Lsn::new(kept)).unwrap();
    go_round(&log).unwrap();
}

#[test]
fn a_ring_on_btrfs_that_may_need_room_warns_and_loses_nothing_on_a_full_disk() {
    let Some(mounted) = Mounted::new("btrfs") else { return };
    let [volume, snapshot, plain] = ["volume", "snapshot", "plain"].map(|name| mounted.path().join(name));
    let created = Command::new("btrfs").args(["subvolume", "create"]).arg(&volume).output().unwrap();
    assert!(created.status.success(), "{created:?}");
    let dir = volume.join("redo");
    let log = create(&dir, LogMode::Auto);
    let copied = commit(&log, b"copied").unwrap();
    assert!(log.is_overwritten_in_place());

    // These files are copied on write, like those of logs from an older version.
    run("cp", &["-r", "--reflink=never"], [&dir, &plain]);
    assert!(!open(&plain).is_overwritten_in_place());

    run("btrfs", &["subvolume", "snapshot"], [&volume, &snapshot]);
    assert!(!log.is_overwritten_in_place());
    log.checkpoint(Lsn::new(copied)).unwrap();
    go_round(&log).unwrap();
    assert!(log.is_overwritten_in_place(), "each block was copied once");
    log.close().unwrap();

    // Each overwrite needs room here.
    let log = open(&plain);
    commit(&log, b"first").unwrap();
    let filler = fill(mounted.path());
    let mut kept = vec![b"first".to_vec()];
    let ended = loop {
        let body = vec![u8::try_from(kept.len() % 251).unwrap(); 9000];
        match commit(&log, &body) {
            Ok(_) => kept.push(body),
            Err(error) => break error,
        }
        assert!(kept.len() <= 150, "the disk is not full");
    };
    let Error::Poisoned { cause } = &ended else { panic!("{ended}") };
    assert!(is_full_disk(cause), "{ended}");
    drop(log);
    make_room(&filler);
    let log = open(&plain);
    let found: Vec<_> = log.read_from(Lsn::new(copied)).unwrap().map(|record| record.unwrap().body).collect();
    // The last record was not acknowledged.
    assert!(found.len() >= kept.len() && found.iter().zip(&kept).all(|(found, kept)| found == kept));
    log.checkpoint(log.end()).unwrap();
    go_round(&log).unwrap();
}
