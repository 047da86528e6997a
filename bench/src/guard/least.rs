//! The least work that keeps a server's logs out of the page cache: a thread that knows the log
//! files beforehand and advises the kernel to drop each written one, twice a second, as the guard
//! does. Nearly all of its time is the kernel's, which drops the pages.
//!
//! It does not check followers, dirty or resident pages, or the coming and going of servers, which
//! no guard can leave out. Ends with its handle. Fails, when it is stopped, with the file it could
//! not open.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{Advice, fadvise};
use rustix::time::{ClockId, clock_gettime};

/// The guard's own interval.
const GUARD_INTERVAL: Duration = Duration::from_millis(500);

/// The running thread.
pub(super) struct LeastGuard {
    thread: Option<JoinHandle<Result<()>>>,
    /// Processor time used as of its last turn, in nanoseconds; `u64::MAX` asks the thread to end.
    used: Arc<AtomicU64>,
}

impl LeastGuard {
    /// Starts the thread on a server's redo log and binlogs. It has processed all of them when this
    /// returns.
    pub(super) fn start(mut logs: Vec<PathBuf>) -> Result<Self> {
        logs.sort();
        for log in &logs {
            drop_pages(&open(log)?)?;
        }
        let redo = logs.iter().find(|path| path.ends_with("ib_logfile0")).context("it has no redo log")?;
        let newest = logs.iter().rfind(|path| !path.ends_with("ib_logfile0")).context("it has no binlog")?;
        let (redo, newest) = (open(redo)?, newest.clone());
        let used = Arc::new(AtomicU64::new(0));
        let shown = Arc::clone(&used);
        let thread = Some(std::thread::spawn(move || release(&redo, newest, &shown)));
        Ok(Self { thread, used })
    }

    /// Returns the processor time used.
    pub(super) fn used(&self) -> Duration {
        Duration::from_nanos(self.used.load(Ordering::Relaxed))
    }

    /// Ends the thread.
    pub(super) fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.used.store(u64::MAX, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.thread().unpark();
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for LeastGuard {
    fn drop(&mut self) {
        // A caller that did not stop it has failed already.
        let _ = self.end();
    }
}

fn open(path: &Path) -> Result<File> {
    File::open(path).with_context(|| format!("can't open {}", path.display()))
}

fn drop_pages(file: &File) -> Result<()> {
    fadvise(file, 0, None, Advice::DontNeed).context("can't drop pages")
}

/// Returns `binlog.000007` after `binlog.000006`; `None` for a name without a number.
fn next(path: &Path) -> Option<PathBuf> {
    let number = path.extension()?.to_str()?;
    let next = number.parse::<u64>().ok()? + 1;
    Some(path.with_extension(format!("{next:0width$}", width = number.len())))
}

fn release(redo: &File, mut newest: PathBuf, used: &AtomicU64) -> Result<()> {
    let mut binlog = open(&newest)?;
    let mut due = Instant::now();
    loop {
        due += GUARD_INTERVAL;
        while Instant::now() < due {
            if used.load(Ordering::Relaxed) == u64::MAX {
                return Ok(());
            }
            std::thread::park_timeout(due.saturating_duration_since(Instant::now()));
        }
        drop_pages(redo)?;
        drop_pages(&binlog)?;
        while let Some(path) = next(&newest).filter(|path| path.exists()) {
            binlog = open(&path)?;
            drop_pages(&binlog)?;
            newest = path;
        }
        let time = Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).context("time before zero")?;
        let nanos = u64::try_from(time.as_nanos()).context("too much time")?;
        // Not if it was asked to end meanwhile.
        let _ = used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |shown| (shown != u64::MAX).then_some(nanos));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{MIB, resident, write_synced};

    /// Waits up to a minute for a later turn to make this true.
    fn eventually(is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_so() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn written_pages_are_released_and_the_next_log_is_found() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = |name: &str| dir.path().join(name);
        let (redo, first, second) = (at("ib_logfile0"), at("binlog.000009"), at("binlog.000010"));
        for path in [&redo, &first] {
            write_synced(path, MIB).unwrap();
        }
        let least = LeastGuard::start(vec![redo.clone(), first.clone()]).unwrap();
        write_synced(&second, MIB).unwrap();
        for path in [&redo, &first, &second] {
            eventually(|| resident(path).unwrap() == 0);
        }
        eventually(|| !least.used().is_zero());
        least.stop().unwrap();
        assert!(LeastGuard::start(vec![redo]).is_err(), "without a binlog");
    }

    #[test]
    fn numbers_go_on() {
        let next = |name: &str| next(Path::new(name)).map(|path| path.display().to_string());
        assert_eq!(next("a/binlog.000009").as_deref(), Some("a/binlog.000010"));
        assert_eq!(next("binlog.999999").as_deref(), Some("binlog.1000000"));
        assert_eq!(next("binlog.index"), None);
    }
}
