//! A disk that the kernel holds to a rate, and low limits on dirty pages: they have writers paused
//! within seconds.
//!
//! The disk is a file system on a loop device that the *root* blkio cgroup (version 1) holds to a
//! rate, because writeback belongs to no other group. The limits on dirty pages are the whole
//! machine's. So only one process at a time may change them ([`LowDirtyLimits`] takes a lock that
//! all processes share), and for as short as possible.
//!
//! Invariants: everything is undone when its value goes, also by a panic; and by a shell that waits
//! for the end of this process where it is killed.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::{disk_dir, skip};

const WRITE_THROTTLE: &str = "blkio.throttle.write_bps_device";
const READ_THROTTLE: &str = "blkio.throttle.read_bps_device";

/// $1: the throttle, $2: the device's number, $3: the mount point, $4: the device.
const TAKE_DISK_BACK: &str = r#"
echo "$2 0" >"$1"
echo "$2 0" >"${1%write_bps_device}read_bps_device"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    umount "$3" 2>/dev/null && break
    sleep 0.2
done
losetup --detach "$4"
"#;

/// Pairs of a file and what is to be written into it.
const RESTORE_SCRIPT: &str = r#"
while [ $# -gt 1 ]; do
    echo "$2" >"$1"
    shift 2
done
"#;

/// A mounted file system that is written at a rate. Fields go in this order.
#[derive(Debug)]
pub struct ThrottledDisk {
    _undo: RestoreShell,
    mount: PathBuf,
    number: String,
    throttle: PathBuf,
    _directory: tempfile::TempDir,
}

impl ThrottledDisk {
    /// Programs that it needs, beside the `mkfs` of its file system.
    pub const REQUIRED_PROGRAMS: [&str; 5] = ["mkfs.ext4", "losetup", "mount", "umount", "sh"];

    /// The feature that a machine without such disks lacks.
    pub const MISSING_CONTROLLER: &str =
        "the blkio controller of cgroup version 1, which this host does not have";

    /// Makes a file system of this kind in `size` bytes (sparse), written at `rate` bytes a second.
    /// Returns `None`, with a sentence, where the machine can't hold a device to a rate, also where
    /// `PAGEKEEPER_REQUIRE_ALL=1`: no package brings that to a kernel.
    ///
    /// # Panics
    ///
    /// If a program that it runs fails, and as [`skip`] does without root.
    pub fn new(kind: &str, test: &str, size: u64, rate: u64) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip(format_args!("{test} needs root."));
            return None;
        }
        let made = Self::of(disk_dir(), kind, size, rate);
        if made.is_none() {
            // Version 2 holds back no group but those below its root, whose limits on dirty pages
            // are others.
            println!("SKIPPED: {test} needs {}.", Self::MISSING_CONTROLLER);
        }
        made
    }

    /// Makes a disk as [`new`](Self::new) does, in a new directory. Returns `None` where the
    /// machine can't.
    ///
    /// # Panics
    ///
    /// If a program that it runs fails.
    pub fn of(directory: tempfile::TempDir, kind: &str, size: u64, rate: u64) -> Option<Self> {
        let root = blkio_root()?;
        let (image, mount) = (directory.path().join("image"), directory.path().join("mount"));
        std::fs::create_dir(&mount).unwrap();
        File::create(&image).and_then(|file| file.set_len(size)).unwrap();
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image));
        let node = run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&image));
        let node = PathBuf::from(node.trim());
        let number = device_number(&node);
        let throttle = root.join(WRITE_THROTTLE);
        let words: [&OsStr; 4] = [throttle.as_os_str(), number.as_ref(), mount.as_os_str(), node.as_os_str()];
        let undo = RestoreShell::new(TAKE_DISK_BACK, &words);
        give_usual_shares(&number);
        run(Command::new("mount").args(["-t", kind, "-o", "noatime"]).arg(&node).arg(&mount));
        std::fs::write(&throttle, format!("{number} {rate}")).unwrap();
        Some(Self { _undo: undo, mount, number, throttle, _directory: directory })
    }

    /// Limits it to half of the present rate of the disk below, and to at most `most` bytes a
    /// second; returns the limit. Then load of a neighbour on that disk does not slow the writers
    /// here.
    ///
    /// # Panics
    ///
    /// If the disk can't be written.
    pub fn pace(&self, most: u64) -> u64 {
        const SAMPLE: usize = 32 << 20;
        std::fs::write(&self.throttle, format!("{} 0", self.number)).expect("lift a throttle");
        let path = self.mount.join("sample");
        let began = std::time::Instant::now();
        std::fs::write(&path, vec![1; SAMPLE]).expect("write a sample");
        File::open(&path).and_then(|file| file.sync_all()).expect("sync a sample");
        let millis = u64::try_from(began.elapsed().as_millis()).expect("not that long").max(1);
        std::fs::remove_file(&path).expect("remove a sample");
        let rate = (SAMPLE as u64 * 1000 / millis / 2).clamp(1_000_000, most);
        std::fs::write(&self.throttle, format!("{} {rate}", self.number)).expect("throttle a device");
        rate
    }

    /// Has it read `rate` bytes a second.
    ///
    /// # Panics
    ///
    /// If the device can't be held to a rate.
    pub fn read_at(&self, rate: u64) {
        let throttle = self.throttle.with_file_name(READ_THROTTLE);
        std::fs::write(throttle, format!("{} {rate}", self.number)).expect("throttle a device");
    }

    /// Returns its mount point.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Returns the kernel's name for its device: `7:0`.
    pub fn device(&self) -> &str {
        &self.number
    }
}

/// The kernel's limits on dirty pages, lowered.
#[derive(Debug)]
pub struct LowDirtyLimits {
    _undo: RestoreShell,
    _lock: File,
}

impl LowDirtyLimits {
    /// Waits until nobody else has them lowered, and sets both, in bytes: where background
    /// writeback begins, and where writers wait.
    ///
    /// # Panics
    ///
    /// If they can't be set, as without root.
    pub fn new(background: u64, limit: u64) -> Self {
        let path = std::env::temp_dir().join("pagekeeper-dirty-limits.lock");
        let lock = File::options().create(true).append(true).open(&path).expect("open a lock file");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("lock a file");
        // Each limit has two forms, and setting one sets the other to 0: what was in force is put
        // back.
        let mut before = Vec::new();
        for name in ["dirty_background", "dirty"] {
            let [bytes, ratio] = ["bytes", "ratio"].map(|form| vm(&format!("{name}_{form}")));
            let read = |path: &Path| std::fs::read_to_string(path).expect("read a limit").trim().to_owned();
            let in_force = if read(&bytes) == "0" { ratio } else { bytes };
            before.push(in_force.display().to_string());
            before.push(read(&in_force));
        }
        let words: Vec<&OsStr> = before.iter().map(AsRef::as_ref).collect();
        let undo = RestoreShell::new(RESTORE_SCRIPT, &words);
        for (name, value) in [("dirty_background_bytes", background), ("dirty_bytes", limit)] {
            std::fs::write(vm(name), value.to_string()).expect("lower a limit");
        }
        Self { _undo: undo, _lock: lock }
    }
}

fn vm(name: &str) -> PathBuf {
    Path::new("/proc/sys/vm").join(name)
}

/// A shell that runs a script when this value goes, or this process ends.
#[derive(Debug)]
struct RestoreShell(Child);

impl RestoreShell {
    fn new(script: &str, words: &[&OsStr]) -> Self {
        let script = format!("trap '' INT TERM HUP\nread -r _\n{script}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, "sh"]).args(words);
        // In a group of its own, so that it outlasts a kill of this one.
        let command = command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        Self(command.spawn().expect("start sh"))
    }
}

impl Drop for RestoreShell {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        match self.0.wait() {
            Ok(status) if status.success() => {}
            other => eprintln!("something of a slow disk may be left behind: {other:?}"),
        }
    }
}

/// Gives the device the full limits on dirty pages, as a new disk has them. A setting made for a
/// loop device stays with its number after the device is gone.
fn give_usual_shares(number: &str) {
    for (name, value) in [("strict_limit", "0"), ("min_ratio", "0"), ("max_ratio", "100")] {
        // `strict_limit` exists since Linux 6.2.
        let path = Path::new("/sys/class/bdi").join(number).join(name);
        if path.exists() {
            std::fs::write(path, value).unwrap();
        }
    }
}

/// Returns the device number as the kernel prints it: `7:0`.
fn device_number(node: &Path) -> String {
    let name = node.file_name().expect("a device").to_string_lossy().into_owned();
    std::fs::read_to_string(format!("/sys/block/{name}/dev")).expect("a block device").trim().to_owned()
}

/// Returns the mount point of the blkio controller's root, by `proc_pid_mountinfo(5)`.
fn blkio_root() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("read the mounts");
    let mut roots = mounts.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mount: Vec<&str> = mount.split(' ').collect();
        let kind: Vec<&str> = kind.split(' ').collect();
        let is_blkio = kind[0] == "cgroup" && kind.last()?.split(',').any(|option| option == "blkio");
        (is_blkio && mount[3] == "/").then(|| PathBuf::from(mount[4]))
    });
    roots.find(|root| root.join(WRITE_THROTTLE).exists())
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
