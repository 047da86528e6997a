//! A slow disk as a child process: starts it, reads its account, takes it down.
//!
//! Invariants: when the handle is dropped, so are the mounts and the process, even if that was
//! killed; files still open on the disk fail. The process is in a group of its own, so that a
//! Ctrl-C on the terminal leaves it to the handle. Fails with the process's message.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

use super::place::is_mounted;
use super::serve::STATS_FILE_NAME;
use super::settings::DiskSettings;
use super::stats::DiskStats;
use super::{READY_LINE, place};

/// The longest time in which a disk may finish its requests and end.
const SHUTDOWN_WAIT_MAX: Duration = Duration::from_secs(30);

/// A slow disk that goes with the value, and with the thread that started it.
///
/// ```no_run
/// use std::{num::NonZero, path::Path, time::Duration};
/// use pagekeeper_slow_disk::{DiskSettings, SlowDisk};
///
/// # fn main() -> anyhow::Result<()> {
/// let settings = DiskSettings::new(Duration::from_millis(2), NonZero::new(64).unwrap());
/// let disk = SlowDisk::start(&std::env::current_exe()?, Path::new("/mnt/slow"), &settings)?;
/// std::fs::write(disk.dir().join("file"), "text")?;
/// disk.reset()?;
/// std::fs::read(disk.dir().join("file"))?;
/// assert_eq!(disk.stats()?.reads, 1);
/// disk.end()
/// # }
/// ```
#[derive(Debug)]
pub struct SlowDisk {
    child: Child,
    mount: PathBuf,
    xfs: Option<PathBuf>,
}

impl SlowDisk {
    /// Starts `program slowdisk` as a disk on the empty directory `mount`, and returns when the
    /// disk is there. The program calls [`run`](crate::run) with the arguments. Needs root.
    pub fn start(program: &Path, mount: &Path, settings: &DiskSettings) -> Result<Self> {
        let at = place::check_mount_point(mount)?;
        let xfs = settings.xfs.as_deref().map(place::check_mount_point).transpose()?;
        let child = Command::new(program)
            .arg("slowdisk")
            .arg(&at)
            .args(settings.arguments())
            .arg(format!("--parent={}", std::process::id()))
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("can't start {}", program.display()))?;
        let mut disk = Self { child, mount: at, xfs };
        disk.wait_ready()?;
        Ok(disk)
    }

    fn wait_ready(&mut self) -> Result<()> {
        let mut stdout = BufReader::new(self.child.stdout.take().context("it has no output")?);
        let mut line = String::new();
        stdout.read_line(&mut line).context("can't hear the slow disk")?;
        let mut stderr = self.child.stderr.take().context("it has no output")?;
        if line.trim() != READY_LINE {
            let mut said = String::new();
            let _ = stderr.read_to_string(&mut said);
            bail!("no slow disk: {}", said.trim());
        }
        // Later output is warnings; the pipe must not fill. Ends with the process.
        std::thread::spawn(move || {
            let lines = BufReader::new(stderr).lines().map_while(Result::ok);
            lines.for_each(|line| eprintln!("{line}"));
        });
        Ok(())
    }

    /// Returns the directory for files: the XFS if there is one, else the disk itself.
    pub fn dir(&self) -> &Path {
        self.xfs.as_deref().unwrap_or(&self.mount)
    }

    /// Returns the process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the requests since the disk's start, or since the last [`reset`](Self::reset).
    pub fn stats(&self) -> Result<DiskStats> {
        let path = self.mount.join(STATS_FILE_NAME);
        let text = std::fs::read(&path).with_context(|| format!("can't read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is not understood", path.display()))
    }

    /// Sets the counts to 0.
    pub fn reset(&self) -> Result<()> {
        let path = self.mount.join(STATS_FILE_NAME);
        std::fs::write(&path, "").with_context(|| format!("can't reset {}", path.display()))
    }

    /// Takes the disk down. Fails if something was still open on it.
    pub fn end(mut self) -> Result<()> {
        let status = self.terminate()?;
        ensure!(status.success(), "the slow disk ended with {status}");
        Ok(())
    }

    fn terminate(&mut self) -> Result<ExitStatus> {
        if self.child.try_wait().context("can't wait for the slow disk")?.is_none() {
            kill_process(Pid::from_child(&self.child), Signal::TERM).context("can't end the slow disk")?;
        }
        let until = Instant::now() + SHUTDOWN_WAIT_MAX;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait().context("can't wait for the slow disk")? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the slow disk does not end");
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        if let Err(error) = self.terminate() {
            eprintln!("slowdisk: {error:#}");
            // Both calls fail only if the process has ended after all.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        // The process has unmounted them itself unless it was killed.
        for path in self.xfs.iter().chain([&self.mount]).filter(|path| is_mounted(path)) {
            if let Err(error) = unmount(path, UnmountFlags::DETACH) {
                eprintln!("slowdisk: can't unmount {}: {error}", path.display());
            }
        }
    }
}
