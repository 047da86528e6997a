//! The process at the other end of a Unix socket.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use crate::sys::peer::peer_pidfd;

/// Returns a pidfd of the process that connected a Unix socket (`SO_PEERPIDFD`, Linux 6.5), or
/// `None` where the kernel has none to give. It becomes readable once that process has ended,
/// even if its PID is reused by then. Fails if the process has ended and was reaped.
pub fn peer_process(socket: impl AsFd) -> std::io::Result<Option<OwnedFd>> {
    match peer_pidfd(socket.as_fd()) {
        Ok(process) => Ok(Some(process)),
        Err(Errno::NOPROTOOPT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn has_ended(process: &OwnedFd) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)).unwrap() == 1
    }

    #[test]
    fn a_peer_is_the_process_that_connected_also_after_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let script =
            "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); sys.stdin.read()";
        let started = Command::new("python3").arg("-c").arg(script).arg(&path).stdin(Stdio::piped()).spawn();
        let Ok(mut child) = started else { return crate::testing::skip("python3 is not installed.") };
        let (stream, _) = listener.accept().unwrap();
        let process = peer_process(&stream).unwrap();
        if let Some(process) = &process {
            assert!(!has_ended(process));
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        let Some(process) = process else {
            return crate::testing::skip("this kernel does not say which process connected (Linux 6.5).");
        };
        assert!(has_ended(&process));
        // Since Linux 6.16 a pidfd is also returned for a reaped process.
        assert!(peer_process(&stream).is_err() || has_ended(&peer_process(&stream).unwrap().unwrap()));
    }
}
