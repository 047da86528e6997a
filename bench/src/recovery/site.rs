//! The place of the stores: files in memory, behind a slow disk for as long as something is measured.
//!
//! The state to recover is created in memory at once. The disk is then mounted anew, so that none of it is cached, and
//! removed before contents are compared. With XFS the files are in an image, a loop device is over the image, and the
//! disk below. Invariants: nobody has the files open while a disk begins or ends; mounts end with the value. Fails with
//! a plain message without root.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::data::MIB;
use crate::image::{Image, Mounted};
use crate::machine::available_bytes;
use crate::scratch::Scratch;
use crate::slowdisk::{Settings, SlowDisk};

/// Time of a request.
pub(super) const LATENCY: Duration = Duration::from_millis(2);
/// Requests served at once.
pub(super) const WIDTH: u16 = 64;

/// The file that holds an XFS.
const IMAGE: &str = "disk.img";
const KIND: &str = "xfs";

/// The place.
#[derive(Debug)]
pub(super) struct RecoveryDisk {
    program: PathBuf,
    memory: Mounted,
    mount: PathBuf,
    /// Mount point of an XFS, whose image is in memory.
    xfs: Option<PathBuf>,
}

impl RecoveryDisk {
    /// Creates a place for `bytes` of files, on an XFS if wanted.
    pub(super) fn new(scratch: &Scratch, bytes: u64, xfs: bool) -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "this bench mounts a slow disk over files in memory: it needs root"
        );
        let available = available_bytes();
        ensure!(
            bytes + bytes / 4 < available,
            "this takes {} MiB of memory, of which {} MiB can be had",
            (bytes + bytes / 4) / MIB,
            available / MIB
        );
        let mount = scratch.path().join("slow");
        std::fs::create_dir(&mount).with_context(|| format!("can't make {}", mount.display()))?;
        let size = format!("size={bytes},mode=0700");
        let memory = Mounted::new(
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "pagekeeper-bench"]),
            &scratch.path().join("memory"),
        )?;
        let program = std::env::current_exe().context("can't find this program")?;
        let xfs = xfs.then(|| scratch.path().join("xfs"));
        if xfs.is_some() {
            Image::make(&memory.point.join(IMAGE), KIND, bytes / 8 * 7)?;
        }
        Ok(Self { program, memory, mount, xfs })
    }

    /// Runs `work` on a directory, which is created if missing, at memory speed.
    pub(super) fn at_once<T>(&self, name: &str, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let _image = self.image_in(&self.memory.point)?;
        let path = self.xfs.as_ref().unwrap_or(&self.memory.point).join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("can't make {}", path.display()))?;
        work(&path)
    }

    /// Removes that directory.
    pub(super) fn remove(&self, name: &str) -> Result<()> {
        self.at_once(name, |dir| {
            std::fs::remove_dir_all(dir).with_context(|| format!("can't remove {}", dir.display()))
        })
    }

    /// Runs something on that directory behind the slow disk, where it is cold.
    pub(super) fn on_disk<T>(
        &self,
        name: &str,
        measure: impl FnOnce(&SlowDisk, &Path) -> Result<T>,
    ) -> Result<T> {
        let width = NonZero::new(WIDTH).context("a disk has a width")?;
        let backing = Some(self.memory.point.clone());
        let settings = Settings { backing, ..Settings::new(LATENCY, width) };
        let disk = SlowDisk::start(&self.program, &self.mount, &settings)?;
        let image = self.image_in(disk.dir())?;
        let path = self.xfs.as_deref().unwrap_or_else(|| disk.dir()).join(name);
        let measured = measure(&disk, &path);
        drop(image);
        let measured = measured?;
        disk.end()?;
        Ok(measured)
    }

    /// Mounts the XFS image in that directory, if one is wanted.
    fn image_in(&self, dir: &Path) -> Result<Option<Image>> {
        self.xfs.as_ref().map(|point| Image::mount(&dir.join(IMAGE), KIND, point)).transpose()
    }

    /// Returns the least time of this many requests, in ms.
    pub(super) fn limit_ms(requests: usize) -> f64 {
        requests as f64 / f64::from(WIDTH) * LATENCY.as_secs_f64() * 1e3
    }
}
