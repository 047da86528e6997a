//! Writing: every back-end against the same cases, on all available file systems.

#[expect(dead_code, reason = "memory of tests that read")]
mod support;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, mpsc};

use pagekeeper_io::{
    Access, AlignedBuf, Create, Error, FileKind, Io, IoFile, OwnedWrite, Threads, Uring, WriteMode,
};
use pagekeeper_simdisk::SimDisk;
use pagekeeper_testing::{Mounted, disk_dir};
use support::noise;

const BLOCK: usize = 4096;
const MODES: [WriteMode; 3] = [WriteMode::Plain, WriteMode::Uncached, WriteMode::Durable];

/// Returns the back-ends for real files, with large and small queues.
fn real() -> Vec<Arc<dyn Io>> {
    vec![
        Arc::new(Uring::new().unwrap()),
        Arc::new(Uring::with_depth(1).unwrap()),
        Arc::new(Threads::new()),
        Arc::new(Threads::with_threads(1)),
    ]
}

/// Features of the file system.
#[derive(Clone, Copy)]
struct Features {
    /// Whether direct I/O is available and bypasses the page cache.
    direct: bool,
    /// Whether clean pages can be dropped.
    releases: bool,
}

fn copied(bytes: &[u8]) -> AlignedBuf {
    let mut buf = AlignedBuf::new(bytes.len());
    buf.copy_from_slice(bytes);
    buf
}

fn content(io: &dyn Io, path: &Path) -> Vec<u8> {
    let file = io.open(path, Access::Buffered).unwrap();
    let mut bytes = vec![0; usize::try_from(file.stat().unwrap().size).unwrap()];
    assert_eq!(file.read_at(0, &mut bytes), Ok(bytes.len()));
    bytes
}

/// Checks for the errors without `RWF_DONTCACHE`; returns true if this was one.
fn is_refused(result: &Result<(), Error>, mode: WriteMode) -> bool {
    match result {
        Err(error) if mode == WriteMode::Uncached && error.errno() == Some(libc::EOPNOTSUPP) => {
            assert!(matches!(error, Error::Write { .. }), "{error}");
            true
        }
        result => {
            assert_eq!(*result, Ok(()), "{mode:?}");
            false
        }
    }
}

/// Compares blocking writes, overwrites and gaps with a vector.
fn check_alone(io: &dyn Io, path: &Path, access: Access) {
    let align = if access == Access::Direct { BLOCK } else { 1 };
    let file = io.open_writable(path, access, Create::New).unwrap();
    assert_eq!((file.access(), file.path(), file.stat().unwrap().size), (access, path, 0));
    let mut expected: Vec<u8> = Vec::new();
    let noise = noise(1 << 20);
    let places = [(0, 1 << 18), (5000, 3), (100_000, 70_000), (1 << 20, 4096), (900_000, 200_000), (0, 0)];
    for (turn, (at, len)) in places.into_iter().cycle().take(18).enumerate() {
        let (at, len) = (at / align * align, len / align * align);
        let bytes = copied(&noise[turn * 4096..][..len]);
        let mode = MODES[turn % 3];
        if is_refused(&file.write_at(at as u64, &bytes, mode), mode) {
            file.write_at(at as u64, &bytes, WriteMode::Plain).unwrap();
        }
        if len > 0 {
            expected.resize(expected.len().max(at + len), 0);
            expected[at..at + len].copy_from_slice(&bytes);
        }
        assert_eq!(file.stat().unwrap().size, expected.len() as u64);
    }
    assert!(content(io, path) == expected);
    file.sync_data().unwrap();
    file.set_len(600_000).unwrap();
    file.set_len(700_000).unwrap();
    expected.truncate(600_000);
    expected.resize(700_000, 0);
    match file.allocate(650_000..800_000) {
        Ok(()) => expected.resize(800_000, 0),
        Err(error) => assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}"),
    }
    file.allocate(5..5).unwrap();
    file.punch(5..5).unwrap();
    // Also a range that ends behind the file, whose size does not change.
    for hole in [100_000_usize..300_001, 690_000..900_000] {
        match file.punch(hole.start as u64..hole.end as u64) {
            Ok(()) => {
                let end = expected.len().min(hole.end);
                expected[hole.start..end].fill(0);
            }
            Err(error) => assert_eq!(error.errno(), Some(libc::EOPNOTSUPP), "{error}"),
        }
    }
    file.sync_all().unwrap();
    assert!(content(io, path) == expected);
    // Also through an existing file, in both ways of access.
    let again = io.open_writable(path, Access::Buffered, Create::Never).unwrap();
    again.write_at(17, b"seventeen", WriteMode::Plain).unwrap();
    expected[17..26].copy_from_slice(b"seventeen");
    let mut read = AlignedBuf::new(BLOCK);
    assert_eq!(file.read_at(0, &mut read), Ok(BLOCK));
    assert!(read[..] == expected[..BLOCK]);
    assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & !0o640 & 0o777, 0);
}

/// Starts many writes at once: each `done` is called once and returns its buffer.
fn check_background(io: &dyn Io, path: &Path, access: Access) {
    let file = io.open_writable(path, access, Create::New).unwrap();
    let (sender, ended) = mpsc::channel();
    let write = |n: usize| {
        let (sender, file) = (sender.clone(), Arc::clone(&file));
        let buf = copied(&vec![u8::try_from(n).unwrap() + 1; BLOCK * (1 + n % 3)]);
        let done = Box::new(move |buf: AlignedBuf, result| sender.send((n, buf, result)).unwrap());
        OwnedWrite { file, offset: (n * 3 * BLOCK) as u64, buf, mode: MODES[n % 3], done }
    };
    io.submit_writes((0..200).map(write).collect());
    io.submit_writes(Vec::new());
    let empty = ended_of(&sender, Arc::clone(&file));
    io.submit_writes(vec![empty]);
    drop(sender);
    let mut seen = vec![false; 201];
    let mut refused = [false; 200];
    for (n, buf, result) in ended {
        assert!(!std::mem::replace(&mut seen[n], true), "done twice");
        if n < 200 {
            assert_eq!((buf.len(), usize::from(buf[0])), (BLOCK * (1 + n % 3), n + 1));
            refused[n] = is_refused(&result, MODES[n % 3]);
        }
    }
    assert!(seen.iter().all(|seen| *seen), "not all were done");
    file.sync_data().unwrap();
    let content = content(io, path);
    for n in (0..200).filter(|n| !refused[*n]) {
        let written = &content[n * 3 * BLOCK..][..BLOCK * (1 + n % 3)];
        assert!(written.iter().all(|byte| usize::from(*byte) == n + 1), "write {n}");
    }
}

type Sender = mpsc::Sender<(usize, AlignedBuf, Result<(), Error>)>;

/// Creates a write of no bytes.
fn ended_of(sender: &Sender, file: Arc<dyn IoFile>) -> OwnedWrite {
    let sender = sender.clone();
    let done = Box::new(move |buf, result| sender.send((200, buf, result)).unwrap());
    OwnedWrite { file, offset: 0, buf: AlignedBuf::default(), mode: WriteMode::Plain, done }
}

fn check_names(io: &dyn Io, root: &Path) {
    let dir = root.join("names");
    io.create_dir(&dir).unwrap();
    assert_eq!(io.create_dir(&dir).unwrap_err().errno(), Some(libc::EEXIST));
    let [a, b, lock] = ["a", "b", "lock"].map(|name| dir.join(name));
    let errno = |result: Result<Arc<dyn IoFile>, Error>| result.err().unwrap().errno();
    assert_eq!(errno(io.open_writable(&a, Access::Buffered, Create::Never)), Some(libc::ENOENT));
    let file = io.open_writable(&a, Access::Buffered, Create::New).unwrap();
    assert_eq!(errno(io.open_writable(&a, Access::Buffered, Create::New)), Some(libc::EEXIST));
    file.write_at(0, b"of a", WriteMode::Plain).unwrap();
    let old = io.open_writable(&b, Access::Buffered, Create::New).unwrap();
    assert_eq!(io.list(&dir).unwrap(), ["a", "b"]);
    io.rename(&a, &b).unwrap();
    assert_eq!((io.list(&dir).unwrap(), content(io, &b)), (vec!["b".into()], b"of a".to_vec()));
    old.write_at(0, b"nameless", WriteMode::Durable).unwrap();
    assert_eq!(io.rename(&a, &b).unwrap_err().path(), Some(&*a));
    io.sync_dir(&dir).unwrap();
    assert_eq!(io.sync_dir(&a).unwrap_err().errno(), Some(libc::ENOENT));
    let directory = io.open_writable(&dir, Access::Buffered, Create::Never).err().unwrap();
    assert!(matches!(directory, Error::NotARegularFile { kind: FileKind::Directory, .. }), "{directory}");

    let held = io.lock(&lock).unwrap();
    assert_eq!(io.lock(&lock).err(), Some(Error::Locked { path: lock.clone() }));
    // A lock does not require a missing file, and a lock on a file without a name excludes nobody.
    io.remove(&lock).unwrap();
    let other = io.lock(&lock).unwrap();
    drop(held);
    assert!(io.lock(&lock).is_err());
    drop(other);
    io.lock(&lock).unwrap();
    for path in [&b, &lock] {
        io.remove(path).unwrap();
    }
    assert_eq!(io.remove(&b).unwrap_err().errno(), Some(libc::ENOENT));
    assert!(io.list(&dir).unwrap().is_empty());
    std::fs::remove_dir(&dir).unwrap();
}

fn check_pages(io: &dyn Io, path: &Path, features: Features) {
    const FILE_LEN: usize = 8 << 20;
    let file = io.open_writable(path, Access::Buffered, Create::New).unwrap();
    file.write_at(0, &noise(FILE_LEN), WriteMode::Plain).unwrap();
    let Some(found) = file.residency(0..u64::MAX).unwrap() else {
        eprintln!("SKIPPED: residency can't be known here");
        return;
    };
    assert_eq!(found.resident, FILE_LEN as u64);
    file.start_writeback(0..u64::MAX).unwrap();
    file.wait_writeback(0..u64::MAX).unwrap();
    // Pages that the kernel just uses stay at first.
    let is_released = |_| {
        file.release(0..u64::MAX).unwrap();
        file.residency(0..u64::MAX).unwrap().unwrap().resident == 0 || later()
    };
    let _ = (0..if features.releases { 100 } else { 1 }).any(is_released);
    let left = file.residency(0..u64::MAX).unwrap().unwrap();
    if !features.releases {
        assert_eq!(left.resident, FILE_LEN as u64, "memory is all there is");
        return;
    }
    assert_eq!((left.resident, left.unwritten), (0, 0));
    assert!(content(io, path) == noise(FILE_LEN));
    file.release(0..u64::MAX).unwrap();
    if features.direct {
        let direct = io.open_writable(path, Access::Direct, Create::Never).unwrap();
        direct.write_at(0, &copied(&noise(1 << 20)), WriteMode::Plain).unwrap();
        assert_eq!(direct.residency(0..u64::MAX).unwrap().unwrap().resident, 0, "direct, and it is resident");
    }
    // Behind the end, where even ext4 drops written pages. They are dropped a moment later, and not
    // if the kernel writes them back of its own accord.
    let is_dropped = |turn: u64| {
        let at = FILE_LEN as u64 + (turn << 20);
        if is_refused(&file.write_at(at, &noise(1 << 20), WriteMode::Uncached), WriteMode::Uncached) {
            return true;
        }
        file.sync_data().unwrap();
        (0..100).any(|_| file.residency(at..u64::MAX).unwrap().unwrap().resident == 0 || later())
    };
    assert!((0..10).any(is_dropped), "uncached, and it is resident");
}

/// Returns false after a short sleep.
fn later() -> bool {
    std::thread::sleep(std::time::Duration::from_millis(10));
    false
}

fn check_unaligned(io: &dyn Io, path: &Path) {
    let file = io.open_writable(path, Access::Direct, Create::New).unwrap();
    let memory = AlignedBuf::new(2 * BLOCK);
    for (offset, bytes) in [(100, &memory[..BLOCK]), (0, &memory[1..=BLOCK]), (0, &memory[..100])] {
        let range = offset..offset + bytes.len() as u64;
        let unaligned = Err(Error::Unaligned { path: path.to_path_buf(), range });
        assert_eq!(file.write_at(offset, bytes, WriteMode::Plain), unaligned);
    }
}

fn check_file_system(root: &Path, features: Features) {
    for (n, io) in real().into_iter().enumerate() {
        let path = |what: &str| root.join(format!("{n} {what}"));
        check_alone(&*io, &path("alone"), Access::Buffered);
        check_background(&*io, &path("background"), Access::Buffered);
        if features.direct {
            check_alone(&*io, &path("direct"), Access::Direct);
            check_background(&*io, &path("direct background"), Access::Direct);
        }
        check_pages(&*io, &path("pages"), features);
        check_names(&*io, root);
    }
}

#[test]
fn on_the_disk_of_the_build() {
    let directory = disk_dir();
    check_file_system(directory.path(), Features { direct: true, releases: true });
    check_unaligned(&Threads::new(), &directory.path().join("unaligned"));
}

#[test]
fn on_ext4() {
    if let Some(mounted) = Mounted::new("ext4") {
        check_file_system(mounted.path(), Features { direct: true, releases: true });
        check_unaligned(&Uring::new().unwrap(), &mounted.path().join("unaligned"));
    }
}

#[test]
fn on_xfs() {
    if let Some(mounted) = Mounted::new("xfs") {
        check_file_system(mounted.path(), Features { direct: true, releases: true });
        check_unaligned(&Uring::new().unwrap(), &mounted.path().join("unaligned"));
    }
}

#[test]
fn on_btrfs() {
    if let Some(mounted) = Mounted::new("btrfs") {
        check_file_system(mounted.path(), Features { direct: true, releases: true });
    }
}

#[test]
fn on_tmpfs() {
    if let Some(mounted) = Mounted::new("tmpfs") {
        check_file_system(mounted.path(), Features { direct: false, releases: false });
        for io in real() {
            let path = mounted.path().join("direct");
            // Refused before Linux 6.6. Then nothing is left behind.
            match io.open_writable(&path, Access::Direct, Create::New) {
                Ok(_) => io.remove(&path).unwrap(),
                Err(error) => assert!(matches!(error, Error::NoDirect { .. }) && !path.exists(), "{error}"),
            }
        }
    }
}

#[test]
fn a_full_disk_reports_it_and_keeps_accepted_bytes() {
    let Some(mounted) = Mounted::new("tmpfs") else { return };
    for io in real() {
        let path = mounted.path().join("file");
        let file = io.open_writable(&path, Access::Buffered, Create::New).unwrap();
        file.write_at(0, b"first", WriteMode::Plain).unwrap();
        let error = file.allocate(0..1 << 30).unwrap_err();
        assert_eq!((error.errno(), error.path()), (Some(libc::ENOSPC), Some(&*path)));
        let large = AlignedBuf::new(65 << 20);
        let range = 4096..4096 + large.len() as u64;
        let full = Error::Write { path: path.clone(), range, errno: libc::ENOSPC };
        assert_eq!(file.write_at(4096, &large, WriteMode::Plain), Err(full.clone()));
        let (sender, ended) = mpsc::channel();
        let done = Box::new(move |_: AlignedBuf, result| sender.send(result).unwrap());
        let file = io.open_writable(&path, Access::Buffered, Create::Never).unwrap();
        io.submit_writes(vec![OwnedWrite { file, offset: 4096, buf: large, mode: WriteMode::Plain, done }]);
        assert_eq!(ended.recv().unwrap(), Err(full));
        assert!(content(&*io, &path).starts_with(b"first"));
        io.remove(&path).unwrap();
    }
}

#[test]
fn all_back_ends_report_errors_alike() {
    let directory = disk_dir();
    let path = directory.path().join("file");
    std::fs::write(&path, b"content").unwrap();
    let simulated = SimDisk::new();
    let stranger = simulated.open_writable("/file".as_ref(), Access::Buffered, Create::New).unwrap();
    let (sender, ended) = mpsc::channel();
    let one_write = |file: &Arc<dyn IoFile>| {
        let sender = sender.clone();
        let done = Box::new(move |buf: AlignedBuf, result| sender.send((buf.len(), result)).unwrap());
        let (file, buf) = (Arc::clone(file), AlignedBuf::new(10));
        vec![OwnedWrite { file, offset: 2, buf, mode: WriteMode::Plain, done }]
    };
    for io in real() {
        io.submit_writes(one_write(&stranger));
        assert_eq!(ended.recv().unwrap(), (10, Err(Error::Foreign { path: "/file".into() })));
        let file = io.open(&path, Access::Buffered).unwrap();
        simulated.submit_writes(one_write(&file));
        assert_eq!(ended.recv().unwrap(), (10, Err(Error::Foreign { path: path.clone() })));
        // A file that is open only for reading.
        let refused = Error::Write { path: path.clone(), range: 2..12, errno: libc::EBADF };
        assert_eq!(file.write_at(2, &[0; 10], WriteMode::Plain), Err(refused.clone()));
        io.submit_writes(one_write(&file));
        assert_eq!(ended.recv().unwrap(), (10, Err(refused)));
        assert_eq!(file.set_len(0).unwrap_err().errno(), Some(libc::EINVAL));
        assert_eq!(file.allocate(0..100).unwrap_err().errno(), Some(libc::EBADF));
        let file = io.open_writable(&path, Access::Buffered, Create::Never).unwrap();
        let beyond = file.write_at(u64::MAX - 4, &[0; 10], WriteMode::Plain).unwrap_err();
        assert_eq!(beyond.errno(), Some(libc::EINVAL));
        assert_eq!(std::fs::metadata(&path).unwrap().size(), 7);
    }
}

#[test]
fn a_dropped_back_end_finishes_submitted_writes() {
    let directory = disk_dir();
    for (n, io) in real().into_iter().chain([Arc::new(SimDisk::new()) as Arc<dyn Io>]).enumerate() {
        let root = if n < 4 { directory.path() } else { Path::new("/") };
        let file = io.open_writable(&root.join(n.to_string()), Access::Buffered, Create::New).unwrap();
        let (sender, ended) = mpsc::channel();
        let writes = (0..50).map(|n| {
            let sender = sender.clone();
            let done = Box::new(move |_: AlignedBuf, result| sender.send(result).unwrap());
            let (file, buf) = (Arc::clone(&file), AlignedBuf::new(BLOCK));
            OwnedWrite { file, offset: n * BLOCK as u64, buf, mode: WriteMode::Plain, done }
        });
        io.submit_writes(writes.collect());
        drop((io, sender));
        assert_eq!(ended.iter().collect::<Vec<_>>(), vec![Ok(()); 50]);
    }
}
