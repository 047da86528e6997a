//! The signal that a device has nothing more to write.
//!
//! The loop steps every 10 ms, and a disk that waits for the next step to get more output is idle
//! for that long. Without a descriptor for the signal the loop steps as usual.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

#[derive(Clone)]
pub(crate) struct DrainedSignal(Option<Arc<OwnedFd>>);

impl DrainedSignal {
    pub(crate) fn new() -> Self {
        Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok().map(Arc::new))
    }

    pub(crate) fn raise(&self) {
        if let Some(fd) = &self.0 {
            // A full counter is readable as well.
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        }
    }

    pub(crate) fn reset(&self) {
        if let Some(fd) = &self.0 {
            // Fails if it was not raised.
            let _ = rustix::io::read(fd, &mut [0; 8]);
        }
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    /// Waits for this time, but at most until it is raised. Returns whether it is.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let Some(fd) = self.fd() else {
            std::thread::sleep(time);
            return false;
        };
        let timeout = Timespec::try_from(time).ok();
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], timeout.as_ref())
            .is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_a_sleep_until_it_is_reset() {
        let signal = DrainedSignal::new();
        assert!(!signal.sleep(Duration::from_millis(1)));
        let other = signal.clone();
        let thread = std::thread::spawn(move || other.raise());
        assert!(signal.sleep(Duration::from_secs(60)) && signal.sleep(Duration::from_secs(60)));
        thread.join().unwrap();
        signal.reset();
        signal.reset();
        assert!(!signal.sleep(Duration::from_millis(1)));
    }
}
