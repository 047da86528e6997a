//! The slow disk as a process: its content, its counts, and the absence of leftovers. As root, with
//! FUSE.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::num::NonZero;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pagekeeper_io::AlignedBuf;
use pagekeeper_slow_disk::{DiskSettings, SlowDisk};
use pagekeeper_testing::skip;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Pid, Signal, kill_process};

const BIN: &str = env!("CARGO_BIN_EXE_pagekeeper-slow-disk");
const LATENCY: Duration = Duration::from_millis(1);
const WIDTH: u16 = 4;
const PAGE: usize = 4096;

/// Whether disks can be created here.
fn possible() -> bool {
    let fuse = File::options().read(true).write(true).open("/dev/fuse");
    if !rustix::process::geteuid().is_root() {
        skip("a slow disk needs root");
    } else if fuse.is_err() {
        skip("there is no /dev/fuse");
    } else {
        return true;
    }
    false
}

fn settings() -> DiskSettings {
    DiskSettings { size: 64 << 20, ..DiskSettings::new(LATENCY, NonZero::new(WIDTH).unwrap()) }
}

fn start(mount: &Path) -> SlowDisk {
    SlowDisk::start(Path::new(BIN), mount, &settings()).unwrap()
}

fn is_mounted(path: &Path) -> bool {
    path.metadata().map_or(true, |here| here.dev() != path.parent().unwrap().metadata().unwrap().dev())
}

/// Returns a byte that differs between neighbours.
fn byte(number: usize) -> u8 {
    u8::try_from(number % 251).unwrap()
}

fn pages(count: usize) -> Vec<u8> {
    (0..count * PAGE).map(byte).collect()
}

#[test]
fn files_are_as_on_any_other_file_system() {
    if !possible() {
        return;
    }
    let mount = tempfile::tempdir().unwrap();
    let disk = start(mount.path());
    let at = |name: &str| disk.dir().join(name);

    std::fs::write(at("a"), pages(3)).unwrap();
    assert_eq!(std::fs::read(at("a")).unwrap(), pages(3));
    let mut file = OpenOptions::new().append(true).open(at("a")).unwrap();
    file.write_all(b"end").unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(at("a").metadata().unwrap().len(), 3 * PAGE as u64 + 3);
    // Writes part of an uncached page through a write-only file.
    let file = OpenOptions::new().write(true).open(at("a")).unwrap();
    file.write_all_at(b"X", 5).unwrap();
    drop(file);
    let mut expected = pages(3);
    expected[5] = b'X';
    expected.extend(b"end");
    assert_eq!(std::fs::read(at("a")).unwrap(), expected);

    let file = OpenOptions::new().read(true).write(true).open(at("a")).unwrap();
    file.set_len(5000).unwrap();
    file.set_len(6000).unwrap();
    expected.truncate(5000);
    expected.resize(6000, 0);
    assert_eq!(std::fs::read(at("a")).unwrap(), expected);
    fallocate(&file, FallocateFlags::empty(), 6000, 10_000).unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE, 0, PAGE as u64).unwrap();
    drop(file);
    expected[..PAGE].fill(0);
    expected.resize(16_000, 0);
    assert_eq!(std::fs::read(at("a")).unwrap(), expected);

    std::fs::create_dir(at("d")).unwrap();
    std::fs::rename(at("a"), at("d/b")).unwrap();
    std::fs::hard_link(at("d/b"), at("c")).unwrap();
    std::os::unix::fs::symlink("d/b", at("s")).unwrap();
    assert_eq!(std::fs::read_link(at("s")).unwrap(), Path::new("d/b"));
    assert_eq!(std::fs::read(at("s")).unwrap(), expected);
    assert_eq!(at("c").metadata().unwrap().nlink(), 2);
    assert_eq!(at("c").metadata().unwrap().ino(), at("d/b").metadata().unwrap().ino());
    let mut names: Vec<_> = disk.dir().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["c", "d", "s"]);
    let mut open = File::open(at("c")).unwrap();
    std::fs::remove_file(at("c")).unwrap();
    std::fs::remove_file(at("d/b")).unwrap();
    open.seek(SeekFrom::Start(15_999)).unwrap();
    assert_eq!(open.read(&mut [0; 2]).unwrap(), 1, "open files stay");
    std::fs::remove_file(at("s")).unwrap();
    File::open(at("d")).unwrap().sync_all().unwrap();
    std::fs::remove_dir(at("d")).unwrap();
    let error = File::open(at("c")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);

    let file = File::create_new(at("e")).unwrap();
    assert!(File::create_new(at("e")).is_err());
    file.set_permissions(PermissionsExt::from_mode(0o640)).unwrap();
    let modified = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    file.set_modified(modified).unwrap();
    drop(file);
    let metadata = at("e").metadata().unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.modified().unwrap()), (0o640, modified));
    let space = rustix::fs::statvfs(disk.dir()).unwrap();
    let bytes = space.f_blocks * space.f_frsize;
    assert!((64 << 20..70 << 20).contains(&bytes), "{bytes}");

    drop(open);
    disk.end().unwrap();
    assert!(!is_mounted(mount.path()));
    assert_eq!(mount.path().read_dir().unwrap().count(), 0);
}

#[test]
fn requests_are_counted_and_never_early() {
    if !possible() {
        return;
    }
    let mount = tempfile::tempdir().unwrap();
    let disk = start(mount.path());
    let path = disk.dir().join("file");
    std::fs::write(&path, pages(32)).unwrap();
    let direct = 0o40000; // O_DIRECT, on all that this runs on
    let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(&path).unwrap();
    disk.reset().unwrap();
    assert_eq!(disk.stats().unwrap().requests(), 0);

    let began = Instant::now();
    let mut page = AlignedBuf::new(PAGE);
    for number in 0..32 {
        file.read_exact_at(&mut page, (number * PAGE) as u64).unwrap();
        assert_eq!(*page, pages(32)[number * PAGE..][..PAGE]);
    }
    assert!(began.elapsed() >= 32 * LATENCY, "{:?}", began.elapsed());
    let stats = disk.stats().unwrap();
    assert_eq!((stats.reads, stats.writes, stats.read_bytes), (32, 0, 32 * PAGE as u64), "{stats:?}");
    assert_eq!((stats.depth_peak, stats.sizes.get(&4096)), (1, Some(&32)), "{stats:?}");

    // Many at once, of which WIDTH are served at once.
    disk.reset().unwrap();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..32 {
            let file = &file;
            scope.spawn(move || {
                let mut page = AlignedBuf::new(PAGE);
                page.fill(byte(number));
                file.write_all_at(&page, (number * PAGE) as u64).unwrap();
            });
        }
    });
    assert!(began.elapsed() >= 32 / u32::from(WIDTH) * LATENCY, "{:?}", began.elapsed());
    file.sync_data().unwrap();
    let stats = disk.stats().unwrap();
    assert_eq!((stats.writes, stats.others, stats.written_bytes), (32, 1, 32 * PAGE as u64), "{stats:?}");
    let content = std::fs::read(&path).unwrap();
    assert!(
        (0..32).all(|number| content[number * PAGE..][..PAGE].iter().all(|&found| found == byte(number)))
    );

    // Cold at each open.
    disk.reset().unwrap();
    std::fs::read(&path).unwrap();
    std::fs::read(&path).unwrap();
    assert_eq!(disk.stats().unwrap().read_bytes, 2 * 32 * PAGE as u64);
    drop(file);
    disk.end().unwrap();
}

#[test]
fn a_disk_that_keeps_its_cache_reads_a_file_once() {
    if !possible() {
        return;
    }
    let mount = tempfile::tempdir().unwrap();
    let disk = DiskSettings { keep_cache: true, ..settings() };
    let disk = SlowDisk::start(Path::new(BIN), mount.path(), &disk).unwrap();
    let path = disk.dir().join("file");
    std::fs::write(&path, pages(8)).unwrap();
    disk.reset().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), pages(8));
    assert_eq!(disk.stats().unwrap().reads, 0);
    disk.end().unwrap();
}

#[test]
fn an_xfs_is_made_on_it_and_taken_away() {
    if !possible() {
        return;
    }
    if Command::new("mkfs.xfs").arg("-V").output().is_err() {
        return skip("mkfs.xfs is not installed (xfsprogs)");
    }
    if !Path::new("/dev/loop-control").exists() {
        return skip("there is no /dev/loop-control");
    }
    let (mount, xfs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let settings = DiskSettings { size: 512 << 20, xfs: Some(xfs.path().to_path_buf()), ..settings() };
    let disk = SlowDisk::start(Path::new(BIN), mount.path(), &settings).unwrap();
    assert_eq!(disk.dir(), xfs.path());
    assert_eq!(disk.stats().unwrap().requests(), 0, "making it does not count");
    let mut file = File::create(disk.dir().join("file")).unwrap();
    file.write_all(&pages(64)).unwrap();
    file.sync_all().unwrap();
    let stats = disk.stats().unwrap();
    assert!(stats.written_bytes >= 64 * PAGE as u64 && stats.others > 0, "{stats:?}");
    assert_eq!(std::fs::read(disk.dir().join("file")).unwrap(), pages(64));
    drop(file);
    disk.end().unwrap();
    assert!(!is_mounted(mount.path()) && !is_mounted(xfs.path()));
    let devices = Command::new("losetup").args(["--list", "--output=BACK-FILE"]).output().unwrap();
    let devices = String::from_utf8_lossy(&devices.stdout).into_owned();
    assert!(!devices.contains(&*mount.path().to_string_lossy()), "{devices}");
}

#[test]
fn a_killed_or_used_disk_leaves_nothing() {
    if !possible() {
        return;
    }
    let mount = tempfile::tempdir().unwrap();
    let disk = start(mount.path());
    let error = SlowDisk::start(Path::new(BIN), mount.path(), &settings()).unwrap_err().to_string();
    assert!(error.contains("something is mounted there already"), "{error}");
    let pid = Pid::from_raw(disk.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    drop(disk);
    assert!(!is_mounted(mount.path()));

    let disk = start(mount.path());
    let open = File::create(disk.dir().join("file")).unwrap();
    assert!(disk.end().is_err(), "a file is still open");
    assert!(!is_mounted(mount.path()));
    assert!(open.sync_all().is_err());
}

#[test]
fn a_disk_ends_with_its_parent() {
    if !possible() {
        return;
    }
    let mount = tempfile::tempdir().unwrap();
    let script = "\"$1\" slowdisk \"$2\" --latency 1ms --width 4 --size 64M --parent $$ & wait";
    let mut parent = Command::new("sh")
        .args(["-c", script, "sh", BIN])
        .arg(mount.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = parent.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 6]).unwrap();
    assert!(is_mounted(mount.path()));
    parent.kill().unwrap();
    parent.wait().unwrap();
    // The disk's output ends when its process does.
    stdout.read_to_end(&mut Vec::new()).unwrap();
    assert!(!is_mounted(mount.path()));
}

#[test]
fn impossible_requests_are_refused_with_the_reason() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    let refusal = |settings: &DiskSettings, mount: &Path| {
        SlowDisk::start(Path::new(BIN), mount, settings).unwrap_err().to_string()
    };
    assert!(refusal(&settings(), dir.path()).contains("not empty"));
    let (mount, xfs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let small = DiskSettings { xfs: Some(xfs.path().to_path_buf()), ..settings() };
    assert!(refusal(&small, mount.path()).contains("300M"));
    let same = DiskSettings { xfs: Some(mount.path().to_path_buf()), size: 1 << 30, ..settings() };
    assert!(refusal(&same, mount.path()).contains("a directory each"));
    assert!(!is_mounted(mount.path()) && !is_mounted(xfs.path()));
}
