//! The cleanup of a run: a scratch directory, and the signals that end a run early but in order.
//!
//! Invariants: SIGINT and SIGTERM set a flag that is checked between measurements, so every change
//! is undone by its `Drop`; a second signal kills the process as it would without this module.
//! SIGKILL leaves the directory behind.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pagekeeper_kernel::FileSystem;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The request to stop.
#[derive(Debug, Clone)]
pub(crate) struct StopRequest(Arc<AtomicBool>);

/// The error of a run that a signal ended; the exit code shows it, so it has no message.
#[derive(Debug)]
pub(crate) struct RunInterrupted;

impl std::fmt::Display for RunInterrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for RunInterrupted {}

impl StopRequest {
    /// Catches SIGINT and SIGTERM from now on.
    pub(crate) fn on_signals() -> Result<Self> {
        let requested = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order, because the flag must not be set yet when the default action is
            // considered at the first signal.
            flag::register_conditional_default(signal, Arc::clone(&requested))
                .context("can't catch signals")?;
            flag::register(signal, Arc::clone(&requested)).context("can't catch signals")?;
        }
        Ok(Self(requested))
    }

    /// Returns a request that nobody makes.
    #[cfg(test)]
    pub(crate) fn never() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }

    /// Fails with [`RunInterrupted`] once a signal has come.
    pub(crate) fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(RunInterrupted.into());
        }
        Ok(())
    }

    /// Sleeps for `duration`; fails at once when a signal comes.
    pub(crate) fn sleep(&self, duration: Duration) -> Result<()> {
        let deadline = Instant::now() + duration;
        loop {
            self.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

/// A directory on a disk that is removed with the value.
#[derive(Debug)]
pub(crate) struct ScratchDirectory(tempfile::TempDir);

impl ScratchDirectory {
    /// Creates a directory in `parent`, which must be on a file system whose pages can be released.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("pagekeeper-bench-")
            .tempdir_in(parent)
            .with_context(|| format!("can't make a directory in {}", parent.display()))?;
        let open = std::fs::File::open(directory.path())?;
        if let Some(reason) = FileSystem::of(&open, directory.path())?.release_refusal() {
            bail!("{}: {reason}; name a directory on a disk with --dir", parent.display());
        }
        Ok(Self(directory))
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Fails unless this many bytes fit and a tenth of the file system stays free.
    pub(crate) fn require_space(&self, bytes: u64) -> Result<()> {
        let stat = rustix::fs::statvfs(self.path()).context("can't tell the free space")?;
        let free = stat.f_bavail * stat.f_frsize;
        ensure!(
            free > bytes + bytes / 10,
            "{} has {} MiB free, this needs {} MiB; name another directory with --dir",
            self.path().display(),
            free >> 20,
            (bytes + bytes / 10) >> 20
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_memory_is_refused_and_leaves_nothing() {
        let parent = tempfile::tempdir_in("/dev/shm").unwrap();
        let error = ScratchDirectory::new(parent.path()).unwrap_err();
        assert!(error.to_string().contains("--dir"), "{error}");
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_scratch_directory_is_removed_with_its_content() {
        let scratch = ScratchDirectory::new(Path::new("/var/tmp")).unwrap();
        let path = scratch.path().to_path_buf();
        std::fs::write(path.join("x"), "x").unwrap();
        assert!(scratch.require_space(u64::MAX / 4).is_err());
        drop(scratch);
        assert!(!path.exists());
    }
}
