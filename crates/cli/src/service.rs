//! What a service manager hears of the guard: that it is ready, reads its configuration again, is alive, and stops (`sd_notify(3)`: a
//! datagram to the socket that `NOTIFY_SOCKET` names).
//!
//! Invariants: without `NOTIFY_SOCKET` no socket is made. No message is waited for: the socket does not block, and what can't be sent
//! is lost. The socket's name is the service manager's word, as the rest of the environment is.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The service manager, if this process is a service of one that wants to hear of it.
#[derive(Debug, Default)]
pub(crate) struct Manager {
    door: Option<(UnixDatagram, SocketAddr)>,
    alive: Option<Alive>,
}

/// When it is to hear that the guard is alive.
#[derive(Debug)]
struct Alive {
    every: Duration,
    due: Instant,
}

impl Manager {
    /// By this process's environment.
    ///
    /// # Errors
    ///
    /// Where there is a service manager that wants to hear of it, and no socket can be had.
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
        Ok(Self { door: Some((socket, address)), alive })
    }

    /// It watches what it was asked to watch.
    pub(crate) fn ready(&self) {
        self.say("READY=1");
    }

    /// It reads its configuration again; [`Self::ready`] ends that.
    pub(crate) fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
    }

    /// It ends.
    pub(crate) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// It is alive, which is said no more often than is asked for.
    pub(crate) fn alive(&mut self) {
        let now = Instant::now();
        let Some(alive) = self.alive.as_mut().filter(|alive| now >= alive.due) else { return };
        alive.due = now + alive.every;
        self.say("WATCHDOG=1");
    }

    /// The longest time to wait before the next [`Self::alive`].
    pub(crate) fn pause(&self, longest: Duration) -> Duration {
        self.alive.as_ref().map_or(longest, |alive| longest.min(alive.every))
    }

    fn say(&self, message: &str) {
        if let Some((socket, address)) = &self.door {
            // A manager that is just being started anew hears the next one.
            let _ = socket.send_to_addr(message.as_bytes(), address);
        }
    }
}

/// How often a sign of life is to come: half of the time after which the manager takes this process for hung. `None` if it asks for
/// none, or asks another process.
fn watchdog(micros: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    let is_own = pid.is_none_or(|pid| pid.parse() == Ok(own));
    let micros: u64 = micros.filter(|_| is_own)?.parse().ok()?;
    (micros > 0).then(|| Duration::from_micros(micros) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_arrives_at_sockets_of_both_kinds() {
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
        let manager = Manager::at(path.as_os_str(), None).unwrap();
        for _ in 0..10_000 {
            manager.ready();
        }
        drop(silent);
        manager.stopping();
        assert!(Manager::at(OsStr::new(&"x".repeat(200)), None).is_err(), "no socket can be called so");
    }

    #[test]
    fn a_sign_of_life_is_for_who_asks_this_process() {
        let half = Some(Duration::from_secs(15));
        assert_eq!(watchdog(Some("30000000"), None, 7), half);
        assert_eq!(watchdog(Some("30000000"), Some("7"), 7), half);
        assert_eq!(watchdog(Some("30000000"), Some("8"), 7), None);
        assert_eq!(watchdog(Some("30000000"), Some(""), 7), None);
        for odd in ["0", "-1", "", "soon", "99999999999999999999"] {
            assert_eq!(watchdog(Some(odd), None, 7), None, "{odd}");
        }
        assert_eq!(watchdog(None, None, 7), None);
        assert_eq!(Manager::default().pause(Duration::from_secs(60)), Duration::from_secs(60));
    }
}
