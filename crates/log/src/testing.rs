//! Helpers of this crate's own tests: directories on a disk, and file systems of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

use pagekeeper_kernel::{InspectedFile, Links, residency};
use tempfile::TempDir;

/// A directory for test files: under the build's own target directory, since /tmp may be a tmpfs.
pub(crate) fn disk_dir() -> TempDir {
    let target = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/test-files");
    std::fs::create_dir_all(&target).unwrap();
    let target = target.canonicalize().unwrap();
    tempfile::tempdir_in(target).unwrap()
}

/// Says that a test, or a part of it, can't be run here. Panics where `PAGEKEEPER_REQUIRE_ALL=1` is set: where
/// nothing may be left out.
pub(crate) fn skip(why: impl std::fmt::Display) {
    let message = format!("SKIPPED: {why}");
    assert!(std::env::var_os("PAGEKEEPER_REQUIRE_ALL").is_none_or(|value| value != "1"), "{message}");
    eprintln!("{message}");
}

/// Bytes of all files in a directory that are resident; `None`, and said, where the kernel does not tell.
pub(crate) fn resident(dir: &Path) -> Option<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let file = InspectedFile::open(entry.unwrap().path(), Links::Refuse).unwrap();
        match residency(&file, 0..u64::MAX) {
            Ok(found) => sum += found.resident,
            Err(error) => {
                skip(format!("what is resident is not told here: {error}"));
                return None;
            }
        }
    }
    Some(sum)
}

/// Bytes that tests of residency put through a log: 1 GiB, or `PAGEKEEPER_LOG_MIB`.
pub(crate) fn volume() -> u64 {
    let mib = std::env::var("PAGEKEEPER_LOG_MIB");
    mib.map_or(1024, |mib| mib.parse().expect("PAGEKEEPER_LOG_MIB is a number")) << 20
}

/// A new file system on a loop device, which goes with the value.
pub(crate) struct Mounted {
    dir: TempDir,
}

impl Mounted {
    /// Of 1 GiB that takes up what is written; `kind` as in `mkfs.KIND`. `None`, and said, where that can't be had.
    pub(crate) fn new(kind: &str) -> Option<Self> {
        let mounted = Self { dir: disk_dir() };
        let (image, point) = (mounted.image(), mounted.point());
        std::fs::File::create(&image).unwrap().set_len(1 << 30).unwrap();
        std::fs::create_dir(&point).unwrap();
        let is_mounted = rustix::process::geteuid().is_root()
            && done(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image))
            && done(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&point));
        if !is_mounted {
            skip(format!("a {kind} of its own takes root, mkfs.{kind} and loop devices"));
            return None;
        }
        Some(mounted)
    }

    /// Where it is mounted.
    pub(crate) fn point(&self) -> PathBuf {
        self.dir.path().join("point")
    }

    /// The file that it lies in.
    pub(crate) fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let point = self.point();
        if is_mounted(&point) {
            done(Command::new("umount").arg("--lazy").arg(&point));
        }
    }
}

fn is_mounted(point: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == point))
}

fn done(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}
