//! File systems of one's own: an image file on a disk, mounted through a loop device for the time of a test.
//!
//! Invariants: unmounted when dropped, also by a panic; the loop device goes with the mount, so that even a killed test
//! leaves no device behind once its mount is gone. Needs root.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A mounted image.
pub(crate) struct LoopImage {
    mount: PathBuf,
    /// Holds the image and the mount point.
    directory: tempfile::TempDir,
}

impl LoopImage {
    /// What making images of these file systems needs beside root, for `can_run`.
    pub(crate) fn programs(kind: &str) -> [String; 3] {
        [format!("mkfs.{kind}"), "mount".to_owned(), "umount".to_owned()]
    }

    /// Makes and mounts a file system of this kind (ext4, xfs, btrfs), empty, of `size_bytes` (XFS: at least 300 MiB; sparse).
    pub(crate) fn new(kind: &str, size_bytes: u64) -> Self {
        let directory = super::scratch();
        let image = directory.path().join("image");
        let mount = directory.path().join("mount");
        std::fs::create_dir(&mount).expect("make a mount point");
        std::fs::File::create(&image).and_then(|file| file.set_len(size_bytes)).expect("make an image");
        run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image));
        // The loop device is detached with the unmounting.
        run(Command::new("mount").args(["-t", kind, "-o", "loop,noatime"]).arg(&image).arg(&mount));
        Self { mount, directory }
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> &Path {
        &self.mount
    }

    /// The directory around the mount point, on another file system: holds `image` and `mount`.
    pub(crate) fn outside(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for LoopImage {
    fn drop(&mut self) {
        // Busy for a moment, where a process that had a file open is just ending.
        for _ in 0..50 {
            if Command::new("umount")
                .arg(&self.mount)
                .stderr(std::process::Stdio::null())
                .status()
                .is_ok_and(|s| s.success())
            {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let lazily = Command::new("umount").arg("--lazy").arg(&self.mount).status();
        eprintln!("{} stayed busy, unmounted lazily: {lazily:?}", self.mount.display());
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
