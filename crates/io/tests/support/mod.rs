//! File systems to test on, and memory to read into.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

/// A directory for test files: under the build's own target directory, since /tmp may be a tmpfs.
pub(crate) fn disk_dir() -> TempDir {
    let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/test-files");
    std::fs::create_dir_all(&target).unwrap();
    tempfile::tempdir_in(target).unwrap()
}

/// Says that a test can't be run here. Panics where `PAGEKEEPER_REQUIRE_ALL=1` is set: where nothing may be left out.
fn skip(why: &str) {
    let message = format!("SKIPPED: {why}");
    assert!(std::env::var_os("PAGEKEEPER_REQUIRE_ALL").is_none_or(|value| value != "1"), "{message}");
    eprintln!("{message}");
}

/// A file system of one's own; unmounted when dropped, also by a panic.
pub(crate) struct Mounted {
    mount: PathBuf,
    /// Holds the image and the mount point.
    _directory: TempDir,
}

impl Mounted {
    /// Makes and mounts an empty file system of this kind (xfs, btrfs, tmpfs). Nothing, and a line that says so, where
    /// that can't be done.
    pub(crate) fn new(kind: &str) -> Option<Self> {
        let mkfs = format!("mkfs.{kind}");
        let needs: &[&str] = if kind == "tmpfs" { &["mount"] } else { &[&mkfs, "mount"] };
        if !rustix::process::geteuid().is_root() {
            skip(&format!("mounting {kind} needs root."));
            return None;
        }
        if let Some(missing) = needs.iter().find(|program| !is_installed(program)) {
            skip(&format!("the test on {kind} needs {missing}."));
            return None;
        }
        let directory = disk_dir();
        let (image, mount) = (directory.path().join("image"), directory.path().join("mount"));
        std::fs::create_dir(&mount).unwrap();
        if kind == "tmpfs" {
            run(Command::new("mount").args(["-t", kind, "-o", "size=64m", "none"]).arg(&mount));
        } else {
            std::fs::File::create(&image).unwrap().set_len(400 << 20).unwrap();
            run(Command::new(mkfs).arg("-q").arg(&image));
            // The loop device goes with the mount.
            run(Command::new("mount").args(["-t", kind, "-o", "loop"]).arg(&image).arg(&mount));
        }
        Some(Self { mount, _directory: directory })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mount
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if unmount(&self.mount) {
            return;
        }
        let lazily = Command::new("umount").arg("--lazy").arg(&self.mount).status();
        eprintln!("{} stayed busy, unmounted lazily: {lazily:?}", self.mount.display());
    }
}

/// Unmounts; false if it stays busy. It is so for a moment where a thread of a back-end is just ending, or a program that
/// another test starts has not yet let go of what this process has open.
pub(crate) fn unmount(mount: &Path) -> bool {
    for _ in 0..100 {
        let status = Command::new("umount").arg(mount).stderr(std::process::Stdio::null()).status();
        if status.is_ok_and(|status| status.success()) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    false
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let also = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(also).any(|directory| directory.join(program).exists())
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Memory aligned to pages. It stays where it is when the value moves.
pub(crate) struct Memory {
    bytes: Vec<u8>,
    skip: usize,
    len: usize,
}

pub(crate) fn aligned(len: usize) -> Memory {
    const PAGE: usize = 4096;
    let bytes = vec![0xee_u8; len + PAGE];
    let skip = bytes.as_ptr().align_offset(PAGE);
    Memory { bytes, skip, len }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.skip..self.skip + self.len]
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.skip..self.skip + self.len]
    }
}

/// Bytes that differ from place to place.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pagekeeper_io::pattern(99, 0, &mut bytes);
    bytes
}
