//! The place of the stores: files in memory, behind a slow disk for as long as something is
//! measured.
//!
//! The state to recover is created in memory at once. The disk is then mounted again, so that none
//! of it is cached, and removed before contents are compared. Invariants: nobody has the files open
//! while a disk begins or ends; mounts end with the value. Fails with a plain message without root.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pagekeeper_slow_disk::{DiskSettings, SlowDisk};

use crate::data::MIB;
use crate::machine::available_bytes;
use crate::peers::run as run_program;
use crate::scratch::ScratchDirectory;

/// Time of a request.
pub(crate) const REQUEST_LATENCY: Duration = Duration::from_millis(2);
/// Requests served at once.
pub(crate) const DISK_WIDTH: u16 = 64;

/// The place.
#[derive(Debug)]
pub(crate) struct RecoveryDisk {
    program: PathBuf,
    memory: MemoryFileSystem,
    mount: PathBuf,
}

/// A file system in memory, which is unmounted with the value.
#[derive(Debug)]
struct MemoryFileSystem(PathBuf);

impl MemoryFileSystem {
    fn new(point: PathBuf, bytes: u64) -> Result<Self> {
        std::fs::create_dir(&point).with_context(|| format!("can't make {}", point.display()))?;
        let size = format!("size={bytes},mode=0700");
        run_program(
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "pagekeeper-bench"]).arg(&point),
        )?;
        Ok(Self(point))
    }
}

impl Drop for MemoryFileSystem {
    fn drop(&mut self) {
        if let Err(error) = run_program(Command::new("umount").arg(&self.0)) {
            eprintln!("pagekeeper-bench: left behind: {error:#}");
        }
    }
}

impl RecoveryDisk {
    /// Creates a place for `bytes` of files.
    pub(crate) fn new(scratch: &ScratchDirectory, bytes: u64) -> Result<Self> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "this bench mounts a slow disk over files in memory: it needs root"
        );
        let available = available_bytes();
        ensure!(
            bytes + bytes / 4 < available,
            "this takes {} MiB of memory, of which {} MiB are available",
            (bytes + bytes / 4) / MIB,
            available / MIB
        );
        let mount = scratch.path().join("slow");
        std::fs::create_dir(&mount).with_context(|| format!("can't make {}", mount.display()))?;
        let memory = MemoryFileSystem::new(scratch.path().join("memory"), bytes)?;
        let program = std::env::current_exe().context("can't find this program")?;
        Ok(Self { program, memory, mount })
    }

    /// Runs `work` on a directory, which is created if missing, at memory speed.
    pub(crate) fn at_once<T>(&self, name: &str, work: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let path = self.memory.0.join(name);
        std::fs::create_dir_all(&path).with_context(|| format!("can't make {}", path.display()))?;
        work(&path)
    }

    /// Runs something on that directory behind the slow disk, where it is cold.
    pub(crate) fn on_disk<T>(&self, name: &str, measure: impl FnOnce(&Path) -> Result<T>) -> Result<T> {
        let width = NonZero::new(DISK_WIDTH).context("a disk has a width")?;
        let backing = Some(self.memory.0.clone());
        let settings =
            DiskSettings { backing, keep_cache: true, ..DiskSettings::new(REQUEST_LATENCY, width) };
        let disk = SlowDisk::start(&self.program, &self.mount, &settings)?;
        let measured = measure(&disk.dir().join(name))?;
        disk.end()?;
        Ok(measured)
    }

    /// Returns the minimal time of this many requests, in ms.
    pub(super) fn limit_ms(requests: usize) -> f64 {
        requests as f64 / f64::from(DISK_WIDTH) * REQUEST_LATENCY.as_secs_f64() * 1e3
    }
}
