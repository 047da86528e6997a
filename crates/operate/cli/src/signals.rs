//! SIGINT and SIGTERM as a request to stop.
//!
//! Invariants: the first signal sets the flag and ends any [`Stop::wait`]; a second one kills the
//! process as it would without this module, so that a blocked clean-up can be interrupted.

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// The request to stop; one for each process.
#[derive(Debug)]
pub(crate) struct Stop {
    flag: Arc<AtomicBool>,
    /// Becomes readable at a signal.
    wake: UnixStream,
}

impl Stop {
    /// Catches SIGINT and SIGTERM from now on.
    pub(crate) fn on_signals() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        let (wake, write_end) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM] {
            // The order matters: at the first signal, the flag must not yet be set when the default
            // action is considered.
            flag::register_conditional_default(signal, Arc::clone(&flag))?;
            flag::register(signal, Arc::clone(&flag))?;
            low_level::pipe::register(signal, write_end.try_clone()?)?;
        }
        Ok(Self { flag, wake })
    }

    /// Whether a signal has arrived.
    pub(crate) fn requested(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }

    /// Returns the flag itself, for code that polls it.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// Does `work`. If a signal arrives or `limit` passes before it is done, calls `end` once, from
    /// another thread.
    pub(crate) fn during<T>(
        &self,
        limit: Option<Duration>,
        end: impl FnOnce() + Send,
        work: impl FnOnce() -> T,
    ) -> T {
        /// Interval at which signals are checked.
        const POLL_INTERVAL: Duration = Duration::from_millis(50);
        let (done, is_done) = channel::<()>();
        let deadline = limit.map(|limit| Instant::now() + limit);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while is_done.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    if self.requested() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        end();
                        return;
                    }
                }
            });
            let result = work();
            drop(done);
            result
        })
    }

    /// Sleeps for `duration`, or less if a signal arrives; returns whether one has arrived.
    pub(crate) fn wait(&self, duration: Duration) -> io::Result<bool> {
        let deadline = Instant::now() + duration;
        while !self.requested() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.wake.set_read_timeout(Some(left))?;
            match (&self.wake).read(&mut [0]) {
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.requested())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_ends_the_wait() {
        let stop = Stop::on_signals().unwrap();
        assert!(!stop.wait(Duration::from_millis(1)).unwrap());
        low_level::raise(SIGTERM).unwrap();
        // Far longer than any test may take: it ends because of the signal.
        assert!(stop.wait(Duration::from_secs(3600)).unwrap());
        assert!(stop.requested());
    }
}
