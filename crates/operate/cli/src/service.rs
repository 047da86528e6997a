//! Notifications of the guard to a service manager: ready, reloading its configuration, alive, and
//! stopping (`sd_notify(3)`: a datagram to the socket that `NOTIFY_SOCKET` names).
//!
//! Invariants: without `NOTIFY_SOCKET` no socket is made. The socket does not block. The messages
//! "ready" and "alive" are repeated until they could be sent, because the manager ends a service
//! from which it does not receive them. Other processes may fill its socket, and a restarting
//! manager has no socket for a moment. Other messages that can't be sent are lost. The socket's
//! name is trusted, as the rest of the environment is.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The service manager, if this process is a service whose manager accepts notifications.
#[derive(Debug, Default)]
pub(crate) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    alive: Option<Alive>,
    /// The message "ready" could not be sent yet.
    is_ready_due: bool,
}

/// Time after which a message that could not be sent is repeated.
const RESEND_INTERVAL: Duration = Duration::from_secs(1);

/// When the manager is to be notified that the guard is alive.
#[derive(Debug)]
struct Alive {
    every: Duration,
    due: Instant,
}

impl Manager {
    /// Returns the manager of this process, from the environment.
    ///
    /// # Errors
    ///
    /// If there is a service manager that accepts notifications, and no socket can be made.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Ok(Self::default()) };
        let of = |name| env::var(name).ok();
        let every =
            watchdog(of("WATCHDOG_USEC").as_deref(), of("WATCHDOG_PID").as_deref(), std::process::id());
        Self::at(&name, every)
    }

    fn at(name: &OsStr, every: Option<Duration>) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            _ => SocketAddr::from_pathname(name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let alive = every.map(|every| Alive { every, due: Instant::now() });
        Ok(Self { socket: Some((socket, address)), alive, is_ready_due: false })
    }

    /// Notifies it that the configuration was read.
    pub(crate) fn ready(&mut self) {
        self.is_ready_due = !self.say("READY=1");
    }

    /// Notifies it that the configuration is read again; [`Self::ready`] ends that.
    pub(crate) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// Notifies it that the guard is stopping.
    pub(crate) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// Notifies it that the guard is alive, no more often than requested, and that it is ready if
    /// that message is still due.
    pub(crate) fn alive(&mut self) {
        if self.is_ready_due {
            self.ready();
        }
        let now = Instant::now();
        if self.alive.as_ref().is_some_and(|alive| now >= alive.due) {
            let was_said = self.say("WATCHDOG=1");
            if let Some(alive) = self.alive.as_mut().filter(|_| was_said) {
                alive.due = now + alive.every;
            }
        }
    }

    /// Returns the longest time to wait before the next [`Self::alive`].
    pub(crate) fn pause(&self, longest: Duration) -> Duration {
        let ready = self.is_ready_due.then_some(RESEND_INTERVAL);
        let alive = self.alive.as_ref().map(|alive| {
            let left = alive.due.saturating_duration_since(Instant::now());
            // The message is due, and could not be sent.
            if left.is_zero() { RESEND_INTERVAL.min(alive.every) } else { left }
        });
        ready.into_iter().chain(alive).fold(longest, Duration::min)
    }

    /// Sends a message; returns whether it was sent, or there is no manager.
    fn say(&self, message: &str) -> bool {
        self.socket
            .as_ref()
            .is_none_or(|(socket, address)| socket.send_to_addr(message.as_bytes(), address).is_ok())
    }
}

/// Returns the interval of the "alive" messages: an eighth of the time after which the manager
/// regards this process as hung. `None` if it requests none, or requests them from another process.
fn watchdog(micros: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    let is_own = pid.is_none_or(|pid| pid.parse() == Ok(own));
    let micros: u64 = micros.filter(|_| is_own)?.parse().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros) / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_at_both_kinds_of_sockets() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let hidden = format!("pagekeeper-test-{}", std::process::id());
        let by_path = UnixDatagram::bind(&path).unwrap();
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&hidden).unwrap()).unwrap();
        for (name, socket) in [(path.as_os_str(), by_path), (OsStr::new(&format!("@{hidden}")), by_name)] {
            let mut manager = Manager::at(name, Some(Duration::from_secs(3600))).unwrap();
            manager.ready();
            manager.reloading();
            manager.alive();
            // Not again before its time.
            manager.alive();
            manager.stopping();
            let next = || {
                let mut buffer = [0; 100];
                let length = socket.recv(&mut buffer).unwrap();
                String::from_utf8(buffer[..length].to_vec()).unwrap()
            };
            assert_eq!(next(), "READY=1");
            let reloading = next();
            let at = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap();
            assert!(at.parse::<u64>().unwrap() > 0, "{reloading}");
            assert_eq!((next(), next()), ("WATCHDOG=1".to_owned(), "STOPPING=1".to_owned()));
        }
    }

    #[test]
    fn a_manager_that_is_gone_or_does_not_read_holds_nobody_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        Manager::at(path.as_os_str(), None).unwrap().ready();
        let silent = UnixDatagram::bind(&path).unwrap();
        let mut manager = Manager::at(path.as_os_str(), None).unwrap();
        for _ in 0..10_000 {
            manager.ready();
        }
        drop(silent);
        manager.stopping();
        assert!(Manager::at(OsStr::new(&"x".repeat(200)), None).is_err(), "no socket can be called so");
    }

    /// Any user may send to the service manager's socket, and so fill it.
    #[test]
    fn messages_that_were_crowded_out_are_sent_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        // The kernel queues a limited amount for one sender, so several senders are used.
        let has_room = || {
            let hostile = UnixDatagram::unbound().unwrap();
            hostile.set_nonblocking(true).unwrap();
            std::iter::repeat_with(|| hostile.send_to(b"noise", &path)).take_while(io::Result::is_ok).count()
                > 0
        };
        while has_room() {}
        let day = Duration::from_secs(86_400);
        let mut manager = Manager::at(path.as_os_str(), Some(day)).unwrap();
        manager.ready();
        manager.alive();
        assert_eq!(manager.pause(day), RESEND_INTERVAL, "neither could be sent");
        let heard = || {
            let mut buffer = [0; 100];
            let next = || socket.recv(&mut buffer).ok().map(|length| buffer[..length].to_vec());
            std::iter::from_fn(next).filter(|message| message != b"noise").collect::<Vec<_>>()
        };
        assert!(heard().is_empty());
        manager.alive();
        assert_eq!(heard(), [b"READY=1".to_vec(), b"WATCHDOG=1".to_vec()]);
        manager.alive();
        assert!(heard().is_empty() && manager.pause(day) > RESEND_INTERVAL, "each was said once");
    }

    #[test]
    fn keepalives_are_sent_only_for_the_watchdog_of_this_process() {
        let eighth = Some(Duration::from_secs(15));
        assert_eq!(watchdog(Some("120000000"), None, 7), eighth);
        assert_eq!(watchdog(Some("120000000"), Some("7"), 7), eighth);
        assert_eq!(watchdog(Some("30000000"), Some("8"), 7), None);
        assert_eq!(watchdog(Some("30000000"), Some(""), 7), None);
        for odd in ["0", "-1", "", "soon", "99999999999999999999"] {
            assert_eq!(watchdog(Some(odd), None, 7), None, "{odd}");
        }
        assert_eq!(watchdog(None, None, 7), None);
        assert_eq!(Manager::default().pause(Duration::from_secs(60)), Duration::from_secs(60));
    }
}
