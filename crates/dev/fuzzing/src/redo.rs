//! The record reader, through a redo log. Any bytes in its files are parsed or rejected. The
//! records read stay the same when the log is opened again, and an appended record follows them.
//!
//! The input is a list of places and what to write there: records with valid checksums, which
//! mutations never hit, and raw bytes.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use pagekeeper_io::{Access, Create, Io, IoFile, WriteMode};
use pagekeeper_simdisk::SimDisk;
use pagekeeper_wal::{Error, RedoLog, RedoOptions, RedoRecord};

const RING_FILE_BYTES: u64 = 32 << 10;
const RING_BYTES: u64 = 2 * RING_FILE_BYTES;

/// An empty log, and its current salt.
static EMPTY_LOG: LazyLock<(SimDisk, u32)> = LazyLock::new(|| {
    let disk = SimDisk::new();
    options(&disk).create(dir()).unwrap().close().unwrap();
    let mut slots = [0; 8192];
    disk.open(&dir().join("control"), Access::Buffered).unwrap().read_at(0, &mut slots).unwrap();
    // The slot of the second write is in use.
    let salt = slots[48..52].try_into().unwrap();
    (disk, u32::from_le_bytes(salt))
});

fn dir() -> &'static Path {
    Path::new("/redo")
}

fn options(disk: &SimDisk) -> RedoOptions {
    RedoLog::options().files(2).file_bytes(RING_FILE_BYTES).buffer_bytes(32 << 10).io(Arc::new(disk.clone()))
}

fn put(files: &[Arc<dyn IoFile>], at: u64, bytes: &[u8]) {
    for (offset, byte) in (at..RING_BYTES).zip(bytes) {
        let file = &files[usize::try_from(offset / RING_FILE_BYTES).unwrap()];
        file.write_at(offset % RING_FILE_BYTES, &[*byte], WriteMode::Plain).unwrap();
    }
}

fn record(kind: u8, at: u64, salt: u32, behind: u8, body: &[u8]) -> Vec<u8> {
    let mut header = [0; 24];
    let len = u32::try_from(body.len()).unwrap();
    header[4..8].copy_from_slice(&(len | u32::from(kind & 3) << 28).to_le_bytes());
    header[8..16].copy_from_slice(&at.to_le_bytes());
    header[16..20].copy_from_slice(&salt.to_le_bytes());
    header[20..24].copy_from_slice(&(u32::from(behind) * 64).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(body), &header[4..]);
    header[..4].copy_from_slice(&crc.to_le_bytes());
    [&header[..], body].concat()
}

fn all(log: &RedoLog) -> Vec<RedoRecord> {
    log.read_from(log.checkpoint_lsn()).unwrap().map(|record| record.unwrap()).collect()
}

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    let (empty, salt) = &*EMPTY_LOG;
    let disk = empty.after_kill();
    let files: Vec<_> = ["redo.000", "redo.001"]
        .map(|name| disk.open_writable(&dir().join(name), Access::Buffered, Create::Never).unwrap())
        .into();
    let (mut rest, mut next, mut salt) = (data, 0, *salt);
    while let [what, place, behind, len, after @ ..] = rest {
        let len = usize::from(*len) << (what >> 6 & 3) << 2;
        let (body, left) = after.split_at(len.min(after.len()));
        rest = left;
        let at = match what & 3 {
            0 => u64::from(*place) * 256,
            1 => next,
            _ => u64::next_multiple_of(next, 4096),
        };
        match what >> 2 & 7 {
            0 => put(&files, at, body),
            1 => {
                // An epoch that may be the expected one.
                let new = salt.wrapping_add(1 + u32::from(*behind));
                let mut body = next.to_le_bytes().to_vec();
                body.extend(new.to_le_bytes());
                body.extend([0; 4]);
                put(&files, at, &record(3, at, salt, 0, &body));
                salt = new;
                next = at + 40;
            }
            kind => {
                put(&files, at, &record(kind, at, salt, *behind, body));
                next = (at + 24 + body.len() as u64).next_multiple_of(8);
            }
        }
    }
    drop(files);
    let log = match options(&disk).open(dir()) {
        Ok(log) => log,
        Err(Error::Corrupt { offset, lsn, .. }) => {
            assert!(offset < RING_FILE_BYTES && lsn.get() < RING_BYTES);
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let found = all(&log);
    assert!(found.is_sorted_by(|a, b| a.end <= b.lsn) && log.end().get() <= RING_BYTES);
    let appended = log.try_append(b"more");
    log.close().unwrap();
    let log = options(&disk).open(dir()).unwrap();
    let mut again = all(&log);
    match appended {
        Ok(end) => assert_eq!(again.pop().map(|last| (last.end, last.body)), Some((end, b"more".to_vec()))),
        Err(error) => assert!(matches!(error, Error::RingFull { .. }), "{error}"),
    }
    assert_eq!(again, found);
}
