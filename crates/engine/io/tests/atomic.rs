//! Atomic writes on real file systems. A size that a file reports as supported works, in each
//! back-end and in both ways. Any other size is refused, without any change.

#[expect(dead_code, reason = "parts for tests of other modules")]
mod support;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, mpsc};

use pagekeeper_io::{
    Access, AlignedBuf, AtomicWrites, Create, Error, Io, IoFile, OwnedWrite, Threads, Uring, WriteMode,
    writes_atomically,
};
use pagekeeper_testing::{Mounted, disk_dir, unmount};

const FILE_LEN: usize = 4 << 20;
/// Reported sizes are tested up to this one.
const TESTED_WRITE_BYTES_MAX: u64 = 1 << 20;

fn real() -> Vec<Arc<dyn Io>> {
    vec![Arc::new(Uring::new().unwrap()), Arc::new(Threads::new())]
}

fn filled(len: usize, byte: u8) -> AlignedBuf {
    let mut buf = AlignedBuf::new(len);
    buf.fill(byte);
    buf
}

/// Whether the device itself does atomic writes. A loop device does not (Linux 6.18): its file
/// system does them elsewhere.
fn is_by_a_device(root: &Path) -> bool {
    let io = Threads::new();
    let file = io.open_writable(&root.join("asked"), Access::Direct, Create::New).unwrap();
    let found = writes_atomically(&*file, 4096);
    io.remove(&root.join("asked")).unwrap();
    found
}

/// Performs an atomic write, blocking or in the background.
fn write(io: &dyn Io, file: &Arc<dyn IoFile>, blocking: bool, at: u64, buf: AlignedBuf) -> Result<(), Error> {
    if blocking {
        return file.write_at(at, &buf, WriteMode::Atomic);
    }
    let (sender, ended) = mpsc::channel();
    let done = Box::new(move |_: AlignedBuf, result| sender.send(result).unwrap());
    io.submit_writes(vec![OwnedWrite {
        file: Arc::clone(file),
        offset: at,
        buf,
        mode: WriteMode::Atomic,
        done,
    }]);
    ended.recv().unwrap()
}

/// Whether such writes work at all, in place or elsewhere.
fn works(file: &dyn IoFile, bytes: u64) -> bool {
    let found = AtomicWrites::probe(file, bytes);
    assert_eq!(writes_atomically(file, bytes), found == AtomicWrites::InPlace);
    found != AtomicWrites::Refused
}

/// Creates a file of ones, and returns whether it supports atomic writes of 4096 bytes.
fn prepare(io: &dyn Io, path: &Path) -> (Arc<dyn IoFile>, bool) {
    let file = io.open_writable(path, Access::Direct, Create::New).unwrap();
    file.write_at(0, &filled(FILE_LEN, 1), WriteMode::Plain).unwrap();
    file.sync_all().unwrap();
    let before = std::fs::metadata(path).unwrap();
    let works = works(&*file, 4096);
    let after = std::fs::metadata(path).unwrap();
    assert_eq!((before.mtime_nsec(), before.ctime_nsec()), (after.mtime_nsec(), after.ctime_nsec()));
    assert!(std::fs::read(path).unwrap().iter().all(|byte| *byte == 1), "the probe changes nothing");
    (file, works)
}

fn is_refused(result: &Result<(), Error>, errnos: &[i32]) -> bool {
    matches!(result, Err(Error::Write { errno, .. }) if errnos.contains(errno))
}

/// Tests a directory. Returns whether atomic writes of 4096 bytes work there.
fn check(root: &Path) -> bool {
    let mut all_work = None;
    for (n, io) in real().into_iter().enumerate() {
        let path = root.join(format!("atomic {n}"));
        let (file, works) = prepare(&*io, &path);
        let reported = file.atomic_write_bytes();
        let unchanged = || std::fs::read(&path).unwrap().iter().all(|byte| *byte == 1);
        if n == 0 {
            eprintln!(
                "{}: atomic writes of {reported:?} bytes reported, of 4096: {:?}",
                root.display(),
                AtomicWrites::probe(&*file, 4096)
            );
        }
        assert_eq!(*all_work.get_or_insert(works), works, "by {}", io.name());
        assert!(reported.is_some() || !works);
        let buffered = io.open_writable(&path, Access::Buffered, Create::Never).unwrap();
        assert_eq!(buffered.atomic_write_bytes(), None);
        for blocking in [true, false] {
            let refused = write(&*io, &buffered, blocking, 0, filled(4096, 2));
            assert!(is_refused(&refused, &[libc::EOPNOTSUPP]) && unchanged(), "buffered: {refused:?}");
        }
        if works {
            check_sizes(&*io, &file, &path);
        } else {
            for blocking in [true, false] {
                let refused = write(&*io, &file, blocking, 0, filled(4096, 2));
                assert!(
                    is_refused(&refused, &[libc::EOPNOTSUPP, libc::EINVAL]) && unchanged(),
                    "{refused:?}"
                );
            }
        }
        assert_eq!(std::fs::read_dir(root).unwrap().filter(is_file).count(), 1 + n);
    }
    all_work.unwrap()
}

fn is_file(entry: &std::io::Result<std::fs::DirEntry>) -> bool {
    entry.as_ref().unwrap().file_type().unwrap().is_file()
}

fn check_sizes(io: &dyn Io, file: &Arc<dyn IoFile>, path: &Path) {
    let reported = file.atomic_write_bytes().unwrap();
    let (least, most) = reported.into_inner();
    let mut expected = vec![1; FILE_LEN];
    let sizes = (0..64)
        .map(|bits| 1_u64 << bits)
        .filter(|size| (least..=most.min(TESTED_WRITE_BYTES_MAX)).contains(size));
    let mut byte = 1;
    for size in sizes {
        assert!(works(&**file, size), "{size} bytes");
        let len = usize::try_from(size).unwrap();
        for (blocking, at) in [(true, size), (false, 0), (true, FILE_LEN as u64 - size)] {
            byte += 1;
            assert_eq!(write(io, file, blocking, at, filled(len, byte)), Ok(()), "{size} bytes at {at}");
            expected[usize::try_from(at).unwrap()..][..len].fill(byte);
        }
        let unaligned = Err(Error::Unaligned { path: path.to_path_buf(), range: size / 2..size / 2 * 3 });
        if size > 1024 {
            assert_eq!(write(io, file, byte % 2 == 0, size / 2, filled(len, 0)), unaligned);
        }
    }
    assert!(byte > 1, "nothing was tried of {least}..={most}");
    for size in
        [least / 2, most * 2].into_iter().filter(|size| (512..=TESTED_WRITE_BYTES_MAX * 4).contains(size))
    {
        assert!(!works(&**file, size), "{size} bytes");
        for blocking in [true, false] {
            let refused = write(io, file, blocking, 0, filled(usize::try_from(size).unwrap(), 0));
            assert!(is_refused(&refused, &[libc::EINVAL]), "{size} bytes: {refused:?}");
        }
    }
    assert!(std::fs::read(path).unwrap() == expected);
    // Behind the end: the file grows.
    let at = FILE_LEN as u64;
    assert_eq!(write(io, file, false, at, filled(usize::try_from(least).unwrap(), 7)), Ok(()));
    assert_eq!(file.stat().unwrap().size, at + least);
}

#[test]
fn on_the_disk_of_the_build() {
    check(disk_dir().path());
}

#[test]
fn on_ext4() {
    if let Some(mounted) = Mounted::new("ext4") {
        check(mounted.path());
    }
}

#[test]
fn on_xfs() {
    if let Some(mounted) = Mounted::new("xfs") {
        assert!(!is_by_a_device(mounted.path()), "of a loop device");
        check(mounted.path());
    }
}

#[test]
fn on_btrfs() {
    if let Some(mounted) = Mounted::new("btrfs") {
        check(mounted.path());
    }
}

/// Unmounts when dropped.
struct Overlay(PathBuf);

impl Drop for Overlay {
    fn drop(&mut self) {
        assert!(unmount(&self.0) || std::thread::panicking());
    }
}

/// An overlay reports the sizes of its upper file system, but may still refuse all of them.
#[test]
fn on_an_overlay_of_xfs() {
    let Some(mounted) = Mounted::new("xfs") else { return };
    let [lower, upper, work, merged] =
        ["lower", "upper", "work", "merged"].map(|name| mounted.path().join(name));
    for dir in [&lower, &upper, &work, &merged] {
        std::fs::create_dir(dir).unwrap();
    }
    let [lower, upper, work] = [lower, upper, work].map(|dir| dir.display().to_string());
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    let done = Command::new("mount").args(["-t", "overlay", "none", "-o", &options]).arg(&merged).status();
    if !done.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: no overlay can be mounted here");
        return;
    }
    let overlay = Overlay(merged);
    check(&overlay.0);
}

/// Mounts the file system again, as after a crash.
fn mount_again(mounted: &Mounted) {
    assert!(unmount(mounted.path()), "it stays busy");
    let mut mount = Command::new("mount");
    mount.args(["-t", "xfs", "-o", "loop"]).arg(mounted.image()).arg(mounted.path());
    assert!(mount.status().unwrap().success(), "{mount:?}");
}

/// XFS is shut down at once, without flushing its log (`XFS_IOC_GOINGDOWN`), and mounted again.
#[test]
fn atomic_writes_on_a_stopped_xfs_are_whole() {
    const BLOCK: usize = 16_384;
    const BLOCKS: u64 = 64;
    let Some(mounted) = Mounted::new("xfs") else { return };
    let io = Uring::new().unwrap();
    let path = mounted.path().join("file");
    let file = io.open_writable(&path, Access::Direct, Create::New).unwrap();
    if !works(&*file, BLOCK as u64) {
        eprintln!("SKIPPED: XFS takes no atomic writes here");
        return;
    }
    let (sender, ended) = mpsc::channel();
    let submit = |byte: u8| {
        let write = |n| {
            let sender = sender.clone();
            let done = Box::new(move |_: AlignedBuf, result| sender.send(result).unwrap());
            let buf = filled(BLOCK, byte);
            OwnedWrite {
                file: Arc::clone(&file),
                offset: n * BLOCK as u64,
                buf,
                mode: WriteMode::Atomic,
                done,
            }
        };
        io.submit_writes((0..BLOCKS).map(write).collect());
    };
    for byte in 1..=3 {
        submit(byte);
        assert!(ended.iter().take(64).all(|result| result.is_ok()));
        if byte == 2 {
            file.sync_all().unwrap();
        }
    }
    submit(4);
    assert!(ended.iter().take(20).all(|result| result.is_ok()));
    let stopped = Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(mounted.path()).status();
    assert_eq!(ended.iter().take(44).count(), 44);
    drop((file, io));
    if !stopped.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: xfs_io can't stop XFS here");
        return;
    }
    mount_again(&mounted);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, BLOCKS * BLOCK as u64);
    let mut found = [0; 5];
    for (n, block) in bytes.chunks(BLOCK).enumerate() {
        assert!(block.iter().all(|byte| *byte == block[0]), "block {n} is torn");
        assert!(block[0] >= 2, "block {n} was synced");
        found[usize::from(block[0])] += 1;
    }
    eprintln!("synced, later, last: {:?}", &found[2..]);
}
