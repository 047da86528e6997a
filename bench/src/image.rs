//! A private file system on a loop device over a file.
//!
//! Invariant: it is unmounted before the loop device is detached, each by the `Drop` of its value. Fails with a plain
//! message where a program or the permission is missing.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::peers::{Program, run};
use crate::scratch::Scratch;

/// A mounted file system. Fields are dropped in this order.
#[derive(Debug)]
pub(crate) struct Image {
    mounted: Mounted,
    device: Loop,
}

impl Image {
    /// Creates and mounts a file system of this kind ("xfs", "ext4", "btrfs") in a file of `bytes`.
    pub(crate) fn new(scratch: &Scratch, kind: &'static str, bytes: u64) -> Result<Self> {
        scratch.require_space(bytes)?;
        let image = scratch.path().join("image");
        Self::make(&image, kind, bytes)?;
        Self::mount(&image, kind, &scratch.path().join("disk"))
    }

    /// Creates only the file, sparse and with a new file system.
    pub(crate) fn make(image: &Path, kind: &'static str, bytes: u64) -> Result<()> {
        let (maker, package) = match kind {
            "xfs" => ("mkfs.xfs", "xfsprogs"),
            "btrfs" => ("mkfs.btrfs", "btrfs-progs"),
            _ => ("mkfs.ext4", "e2fsprogs"),
        };
        let maker = Program::find(maker)
            .with_context(|| format!("{maker} is not installed; Debian has it in the package {package}"))?;
        crate::data::make_sparse(image, bytes)?;
        run(maker.command().arg("-q").arg(image))?;
        Ok(())
    }

    /// Mounts the file system in such a file on a directory, which is created if it is missing.
    pub(crate) fn mount(image: &Path, kind: &'static str, point: &Path) -> Result<Self> {
        let device = Loop::new(image)?;
        let mount = ["-t", kind, "-o", "noatime"];
        let mounted = Mounted::new(Command::new("mount").args(mount).arg(&device.node), point)?;
        Ok(Self { mounted, device })
    }

    /// Returns the mount point.
    pub(crate) fn path(&self) -> &Path {
        &self.mounted.point
    }

    /// Returns its device node.
    #[cfg(test)]
    pub(crate) fn node(&self) -> &Path {
        &self.device.node
    }

    /// Returns its device number as the kernel prints it: `7:0`.
    pub(crate) fn device_number(&self) -> Result<String> {
        self.device.number()
    }
}

/// A loop device over a file that bypasses the file's page cache.
#[derive(Debug)]
struct Loop {
    node: PathBuf,
}

impl Loop {
    fn new(image: &Path) -> Result<Self> {
        let made = run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(image))
            .context("can't make a loop device; this bench needs root")?;
        Ok(Self { node: made.stdout.trim().into() })
    }

    /// Returns the device number as the kernel prints it: `7:0`.
    fn number(&self) -> Result<String> {
        let dev = self.node.metadata().with_context(|| format!("can't stat {}", self.node.display()))?.rdev();
        Ok(format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev)))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        tell(run(Command::new("losetup").arg("--detach").arg(&self.node)));
    }
}

/// A mount that ends with the value.
#[derive(Debug)]
pub(crate) struct Mounted {
    pub(crate) point: PathBuf,
}

impl Mounted {
    /// Runs the `mount` command with the mount point as its last argument.
    pub(crate) fn new(mount: &mut Command, point: &Path) -> Result<Self> {
        std::fs::create_dir_all(point).with_context(|| format!("can't make {}", point.display()))?;
        run(mount.arg(point))?;
        Ok(Self { point: point.to_path_buf() })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        tell(run(Command::new("umount").arg(&self.point)));
    }
}

/// Prints an error of a cleanup, with advice.
pub(crate) fn tell<T>(done: Result<T>) {
    if let Err(error) = done {
        eprintln!("pagekeeper-bench: left behind: {error:#}");
    }
}
