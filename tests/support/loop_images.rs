//! Private file systems: an image file on a disk, mounted through a loop device during a test.
//!
//!
//! Invariants: unmounted when dropped, also by a panic; the loop device goes with the mount, so
//! that even a killed test leaves no device behind once its mount is gone. Needs root.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A mounted image.
pub(crate) struct LoopImage {
    mount: PathBuf,
    is_mounted: bool,
    /// Holds the image and the mount point.
    directory: tempfile::TempDir,
}

impl LoopImage {
    /// Returns the programs that creating images of these file systems needs beside root, for
    /// `can_run`.
    pub(crate) fn programs(kind: &str) -> [String; 3] {
        [format!("mkfs.{kind}"), "mount".to_owned(), "umount".to_owned()]
    }

    /// Creates and mounts a file system of this kind (ext4, xfs, btrfs), empty, of `size_bytes`
    /// (XFS: at least 300 MiB; sparse).
    pub(crate) fn new(kind: &str, size_bytes: u64) -> Self {
        let directory = super::scratch();
        let image = directory.path().join("image");
        let mount = directory.path().join("mount");
        std::fs::create_dir(&mount).expect("make a mount point");
        std::fs::File::create(&image).and_then(|file| file.set_len(size_bytes)).expect("make an image");
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image));
        // The loop device is detached with the unmounting.
        run(Command::new("mount").args(["-t", kind, "-o", "loop,noatime"]).arg(&image).arg(&mount));
        Self { mount, is_mounted: true, directory }
    }

    /// Unmounts it early; the image stays.
    pub(crate) fn unmount(&mut self) {
        unmount(&self.mount);
        self.is_mounted = false;
    }

    /// Returns its mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.mount
    }

    /// Returns the directory around the mount point, on another file system: holds `image` and
    /// `mount`.
    pub(crate) fn outside(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for LoopImage {
    fn drop(&mut self) {
        if self.is_mounted {
            unmount(&self.mount);
        }
    }
}

fn unmount(mount: &Path) {
    // Busy for a moment, where a process that had a file open is just ending.
    for _ in 0..50 {
        if Command::new("umount")
            .arg(mount)
            .stderr(std::process::Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
        {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let lazily = Command::new("umount").arg("--lazy").arg(mount).status();
    eprintln!("{} stayed busy, unmounted lazily: {lazily:?}", mount.display());
}

/// A place on a disk in memory (an ext4 on an image on a tmpfs). Reads and writes are quick
/// there, however busy the machine's disks are, so tests with deadlines use it. Without
/// permission to mount, it is a directory on one of the machine's disks. Fields go in this order.
pub(crate) struct QuickDisk {
    files: Option<Mount>,
    _memory: Option<Mount>,
    directory: tempfile::TempDir,
}

/// A mount that goes with the value.
struct Mount(PathBuf);

impl Mount {
    /// Returns `mount` without its last argument, or `None` if mounting is impossible.
    fn new(mount: &mut Command, point: PathBuf) -> Option<Self> {
        std::fs::create_dir(&point).expect("make a mount point");
        let output = mount.arg(&point).output().ok()?;
        output.status.success().then_some(Self(point))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

impl QuickDisk {
    /// Creates a sparse image of one GiB.
    pub(crate) fn new() -> Self {
        let directory = super::scratch();
        let (memory, files) = (directory.path().join("memory"), directory.path().join("files"));
        let image = memory.join("image");
        let memory = Mount::new(Command::new("mount").args(["-t", "tmpfs", "none"]), memory);
        let is_made = memory.is_some() && {
            std::fs::File::create(&image).and_then(|file| file.set_len(1 << 30)).expect("make an image");
            let mut make = Command::new("mkfs.ext4");
            make.args(["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(&image);
            make.output().is_ok_and(|output| output.status.success())
        };
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", "loop,noatime"]).arg(&image);
        let files = if is_made { Mount::new(&mut mount, files) } else { None };
        Self { files, _memory: memory, directory }
    }

    /// Returns the directory for files.
    pub(crate) fn path(&self) -> &Path {
        self.files.as_ref().map_or_else(|| self.directory.path(), |files| &files.0)
    }
}

/// A block device that is memory (an image on a tmpfs), and that another process has open;
/// otherwise its pages would go with the stream's descriptor. `None` if it can't be created.
pub(crate) struct Device {
    path: PathBuf,
    opened: Option<std::fs::File>,
    memory: tempfile::TempDir,
}

impl Device {
    pub(crate) fn new(bytes: u64) -> Option<Self> {
        let memory = super::scratch();
        let image = memory.path().join("image");
        let mount = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(memory.path()).status();
        mount.ok().filter(std::process::ExitStatus::success)?;
        std::fs::File::create(&image).and_then(|file| file.set_len(bytes)).expect("make an image");
        let made = super::command::finish(Command::new("losetup").args(["--find", "--show"]).arg(&image));
        let path = PathBuf::from(made.stdout.trim());
        let opened = std::fs::File::open(&path).ok()?;
        Some(Self { path, opened: Some(opened), memory })
    }

    /// Closes the other descriptor, so that no process has it open.
    pub(crate) fn close(&mut self) {
        self.opened = None;
    }

    /// Returns its directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its resident bytes by mincore(2): fincore(1) takes a device for an empty file, and
    /// kernels before 6.5 have no cachestat(2).
    pub(crate) fn resident(&self) -> u64 {
        let text = "import ctypes, mmap, os, sys\n\
                    opened = os.open(sys.argv[1], 0)\n\
                    size = os.lseek(opened, 0, 2)\n\
                    mapped = ctypes.c_char.from_buffer(mmap.mmap(opened, size, access=mmap.ACCESS_COPY))\n\
                    seen = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()\n\
                    start = ctypes.c_void_p(ctypes.addressof(mapped))\n\
                    assert ctypes.CDLL(None).mincore(start, ctypes.c_size_t(size), seen) == 0\n\
                    print(sum(page & 1 for page in seen) * mmap.PAGESIZE)";
        let seen = super::command::finish(Command::new("python3").args(["-c", text]).arg(&self.path))
            .expect_success();
        seen.trim().parse().expect("a number")
    }

    pub(crate) fn evict(&self) {
        super::command::finish(Command::new("blockdev").arg("--flushbufs").arg(&self.path)).expect_success();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
        let _ = Command::new("umount").arg("--lazy").arg(self.memory.path()).status();
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
