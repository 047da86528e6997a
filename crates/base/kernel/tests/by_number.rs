//! Files opened by number, on real file systems: the very inode that was meant, or none.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagekeeper_kernel::process::{FileLeases, ProcRoot};
use pagekeeper_kernel::{Error, InodeId, InspectedFile, OpenMount, Result};
use pagekeeper_testing::{Mounted, OpenCounter, skip, unmount};
use rustix::fs::{CWD, FileType, Mode, OFlags};

/// Minimum number of outcomes of each kind, which shows that the race was really run.
const OUTCOMES_MIN: usize = 200;
/// Time after which a race ends, whatever its outcomes.
const RACE_TIME_MAX: Duration = Duration::from_secs(3);

/// A file system of its own, opened.
struct TestMount {
    // Before what it keeps from being unmounted.
    mount: OpenMount,
    mounted: Mounted,
}

impl TestMount {
    fn new(kind: &str) -> Option<Self> {
        let mounted = Mounted::new(kind)?;
        let mount = opened_mount(mounted.path());
        Some(Self { mount, mounted })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.mounted.path().join(name)
    }

    fn write(&self, name: &str) -> (PathBuf, InodeId) {
        let path = self.at(name);
        std::fs::write(&path, name).unwrap();
        let id = InodeId::of(referred(&path)).expect("it has numbers");
        (path, id)
    }

    fn open(&self, id: &InodeId) -> Result<InspectedFile> {
        self.mount.open(id, &FileLeases::default())
    }
}

fn opened_mount(point: &Path) -> OpenMount {
    let mounts = ProcRoot::default().own_mounts().unwrap();
    let dev = mounts.iter().find(|mount| mount.point == point).expect("it is mounted").dev;
    OpenMount::of_device(&ProcRoot::default(), dev, 1).unwrap()
}

/// Returns the places of all three kinds that are available here.
fn places() -> impl Iterator<Item = (&'static str, TestMount)> {
    ["ext4", "xfs", "btrfs"].into_iter().filter_map(|kind| Some((kind, TestMount::new(kind)?)))
}

/// Returns a reference to the object with this name, without opening it.
fn referred(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW, Mode::empty()).unwrap()
}

fn contents(file: &InspectedFile) -> String {
    std::io::read_to_string(file.reader()).unwrap()
}

#[test]
fn a_file_is_found_under_its_other_names() {
    for (kind, place) in places() {
        let (path, id) = place.write("one");
        let opened = place.open(&id).unwrap();
        assert_eq!((contents(&opened).as_str(), opened.path()), ("one", path.as_path()), "{kind}");
        drop(opened);
        std::fs::rename(&path, place.at("renamed")).unwrap();
        place.write("one");
        let opened = place.open(&id).unwrap();
        assert_eq!((contents(&opened).as_str(), opened.path()), ("one", place.at("renamed").as_path()));
        std::fs::hard_link(place.at("renamed"), place.at("linked")).unwrap();
        std::fs::remove_file(place.at("renamed")).unwrap();
        assert_eq!(place.open(&id).unwrap().inode(), opened.inode(), "{kind}");
    }
}

#[test]
fn a_file_that_the_kernel_has_forgotten_is_found() {
    for (kind, place) in places() {
        let (path, id) = place.write("one");
        let TestMount { mounted, mount } = place;
        drop(mount);
        assert!(unmount(mounted.path()));
        let again =
            Command::new("mount").args(["-o", "loop"]).arg(mounted.image()).arg(mounted.path()).status();
        assert!(again.unwrap().success());
        let mount = opened_mount(mounted.path());
        let opened = mount.open(&id, &FileLeases::default()).unwrap();
        assert_eq!(contents(&opened), "one", "{kind}");
        // No name was looked up since.
        assert_ne!(opened.path(), path, "{kind}");
    }
}

#[test]
fn a_file_without_a_name_is_gone() {
    for (kind, place) in places() {
        let (path, id) = place.write("one");
        let held = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = place.open(&id).unwrap_err();
        assert!(error.is_gone(), "{kind}: {error}");
        drop(held);
        let error = place.open(&id).unwrap_err();
        assert!(error.is_gone(), "{kind}: {error}");
    }
}

#[test]
fn a_later_inode_of_the_same_number_is_not_opened() {
    for (kind, place) in places() {
        let (path, id) = place.write("one");
        std::fs::remove_file(&path).unwrap();
        let later = (0..1000).map(|_| {
            let _ = std::fs::remove_file(place.at("two"));
            place.write("two").1
        });
        let Some(later) = later.into_iter().find(|later| later.ino == id.ino) else {
            assert_eq!(kind, "btrfs", "numbers come again");
            let (_path, id) = place.write("three");
            let other = InodeId { generation: id.generation.wrapping_add(1), ..id };
            assert!(place.open(&other).unwrap_err().is_gone());
            continue;
        };
        assert_ne!(later.generation, id.generation, "{kind}");
        assert!(place.open(&id).unwrap_err().is_gone(), "{kind}");
        assert!(place.open(&InodeId { generation: 0, ..later }).unwrap_err().is_gone(), "{kind}");
        assert_eq!(contents(&place.open(&later).unwrap()), "two", "{kind}");
    }
}

#[test]
fn a_snapshot_s_file_is_distinguished_from_its_origin_s() {
    let Some(place) = TestMount::new("btrfs") else { return };
    let btrfs = |arguments: &[&Path]| {
        let output = Command::new("btrfs").arg("subvolume").args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    btrfs(&["create".as_ref(), &place.at("origin")]);
    std::fs::write(place.at("origin/file"), "origin").unwrap();
    rustix::fs::sync();
    btrfs(&["snapshot".as_ref(), &place.at("origin"), &place.at("snapshot")]);
    std::fs::OpenOptions::new()
        .write(true)
        .open(place.at("snapshot/file"))
        .unwrap()
        .write_all(b"copied")
        .unwrap();
    let [origin, snapshot] =
        ["origin/file", "snapshot/file"].map(|name| InodeId::of(referred(&place.at(name))).unwrap());
    assert_eq!((origin.ino, origin.generation), (snapshot.ino, snapshot.generation));
    assert_ne!(origin.subvolume, snapshot.subvolume);
    assert_eq!(contents(&place.open(&origin).unwrap()), "origin");
    assert_eq!(contents(&place.open(&snapshot).unwrap()), "copied");
}

#[test]
fn only_regular_files_are_opened() {
    for (kind, place) in places() {
        let mode = Mode::from_raw_mode(0o600);
        let null = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(CWD, place.at("fifo"), FileType::Fifo, mode, 0).unwrap();
        rustix::fs::mknodat(CWD, place.at("device"), FileType::CharacterDevice, mode, null).unwrap();
        std::fs::create_dir(place.at("directory")).unwrap();
        std::os::unix::fs::symlink("fifo", place.at("link")).unwrap();
        let opens = ["fifo", "device", "directory"].map(|name| OpenCounter::of(&place.at(name)));
        for name in ["fifo", "device", "directory", "link"] {
            let id = InodeId::of(referred(&place.at(name))).unwrap();
            let error = place.open(&id).unwrap_err();
            assert!(
                matches!(error, Error::NotRegular { .. } | Error::SymbolicLink { .. }),
                "{kind}: {error}"
            );
        }
        assert!(opens.iter().all(|opens| !opens.any()), "{kind}");
        File::open(place.at("directory")).unwrap();
        assert!(opens[2].any(), "an open is noticed");
    }
}

/// A program that has a lease on a file, and says so when it is asked to give it back.
struct LeaseHolder(Child, BufReader<std::process::ChildStdout>);

impl LeaseHolder {
    fn new(path: &Path) -> Option<Self> {
        let text = "import fcntl, os, signal, sys\n\
                    opened = os.open(sys.argv[1], os.O_RDWR)\n\
                    asked = []\n\
                    signal.signal(signal.SIGIO, lambda *_: asked.append(1))\n\
                    fcntl.fcntl(opened, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n\
                    print('held', flush=True)\n\
                    for _ in sys.stdin:\n    print('asked' if asked else 'quiet', flush=True)";
        let mut child = Command::new("python3")
            .args(["-c", text])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Some(Self(child, output))
    }

    fn was_asked(&mut self) -> bool {
        self.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        self.1.read_line(&mut line).unwrap();
        line == "asked\n"
    }
}

impl Drop for LeaseHolder {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn the_holder_of_a_lease_is_not_interrupted() {
    for (kind, place) in places() {
        let (path, id) = place.write("one");
        let Some(mut holder) = LeaseHolder::new(&path) else {
            return skip("a lease is taken by a program in Python");
        };
        let leases = ProcRoot::default().leases().unwrap();
        let error = place.mount.open(&id, &leases).unwrap_err();
        assert!(error.to_string().contains("has a lease on it"), "{kind}: {error}");
        assert!(!holder.was_asked(), "{kind}");
        let (_path, other) = place.write("two");
        assert!(place.mount.open(&other, &leases).is_ok(), "{kind}");
        // Without the look at the leases it would have been.
        assert!(place.open(&id).is_err());
        assert!(holder.was_asked(), "{kind}");
    }
}

struct SetWhenDropped<'a>(&'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn while_a_file_is_replaced_again_and_again_no_other_is_opened() {
    for (kind, place) in places() {
        let (path, id) = place.write("one");
        let (is_over, is_removed) = (AtomicBool::new(false), AtomicBool::new(false));
        let (mut opened, mut gone) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if is_removed.load(Ordering::Relaxed) {
                        // Another file gets its inode number, too.
                        std::fs::remove_file(&path).unwrap();
                        let mode = Mode::from_raw_mode(0o600);
                        rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
                        std::fs::remove_file(&path).unwrap();
                        std::fs::write(&path, "other").unwrap();
                    } else {
                        // Its name leads to another file for a moment.
                        std::fs::rename(&path, place.at("aside")).unwrap();
                        std::fs::write(&path, "other").unwrap();
                        std::fs::rename(place.at("aside"), &path).unwrap();
                    }
                }
            });
            // Also if something is found amiss.
            let _over = SetWhenDropped(&is_over);
            let until = Instant::now() + RACE_TIME_MAX;
            while gone < OUTCOMES_MIN && Instant::now() < until {
                match place.open(&id) {
                    Ok(file) => {
                        assert_eq!(contents(&file), "one");
                        opened += 1;
                        is_removed.store(opened >= OUTCOMES_MIN, Ordering::Relaxed);
                    }
                    Err(error) => {
                        // ENOMEM: ext4 makes an inode of that number.
                        assert!(error.is_gone() || error.errno() == Some(12), "{error}");
                        gone += 1;
                    }
                }
            }
        });
        assert!(opened > 0 && gone > 0, "{kind}: opened {opened} times, gone {gone} times");
    }
}

#[test]
fn a_mount_under_another_one_is_not_taken_for_it() {
    let (Some(below), Some(above)) = (TestMount::new("ext4"), Mounted::new("tmpfs")) else { return };
    let (_path, id) = below.write("one");
    let bound = below.at("bound");
    std::fs::create_dir(&bound).unwrap();
    let run =
        |arguments: &[&Path]| assert!(Command::new("mount").args(arguments).status().unwrap().success());
    run(&["--bind".as_ref(), above.path(), &bound]);
    let dev = rustix::fs::stat(&bound).unwrap().st_dev;
    let error = OpenMount::of_device(&ProcRoot::default(), dev, 1).unwrap_err();
    assert!(error.to_string().contains("not opened by number"), "{error}");
    assert!(below.open(&id).is_ok());
    assert!(Command::new("umount").arg(&bound).status().unwrap().success());
}

#[test]
fn a_device_that_is_mounted_is_left_alone() {
    let Some(place) = TestMount::new("ext4") else { return };
    let device = rustix::fs::stat(place.mounted.path()).unwrap().st_dev;
    let sys = Path::new("/sys");
    let error = InspectedFile::open_device_by_number(&ProcRoot::default(), sys, device).unwrap_err();
    assert!(error.to_string().contains("mounted or in use"), "{error}");
    let image = place.mounted.path().join("image");
    File::create(&image).unwrap().set_len(8 << 20).unwrap();
    let output = Command::new("losetup").args(["--find", "--show"]).arg(&image).output().unwrap();
    let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let device = rustix::fs::stat(&path).unwrap().st_rdev;
    let opened = InspectedFile::open_device_by_number(&ProcRoot::default(), sys, device);
    assert!(Command::new("losetup").arg("--detach").arg(&path).status().unwrap().success());
    let opened = opened.unwrap();
    assert_eq!((opened.device(), opened.size()), (Some(device), 8 << 20));
}
