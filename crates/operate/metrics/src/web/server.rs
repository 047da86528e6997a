//! The HTTP server: one thread that waits for all of its connections at once.
//!
//! Invariants:
//! 1. No client can make it grow. There are at most [`CONNECTIONS_MAX`] connections, each with one
//!    request, a limited head and a time limit at each stage. Together they hold at most
//!    [`UNSENT_BYTES_MAX`] of responses, apart from the newest one.
//! 2. No client can keep another out. If all places are taken, a new client replaces the one that
//!    was silent longest. Up to [`HEALTH_CONNECTIONS_MAX`] connections that have begun a health
//!    request stay until they are answered.
//! 3. Nothing waits for a client: no socket blocks, and each takes its turn in small steps.
//!
//! The way in which a connection ends is the client's concern. Fails only if poll(2) does.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::web::http::{HEAD_BYTES_MAX, respond};
use crate::web::service::MetricsService;

/// Maximum number of connections.
const CONNECTIONS_MAX: usize = 32;
/// Up to this many connections with health requests are closed only for others of that kind.
const HEALTH_CONNECTIONS_MAX: usize = 8;
/// Maximum size of the responses that clients have not read yet.
const UNSENT_BYTES_MAX: usize = 64 << 20;
/// Time limit of a request's head, and of a client to close the connection after its response.
const HEAD_TIME_MAX: Duration = Duration::from_secs(5);
/// Time limit of a client to read its response.
const READ_TIME_MAX: Duration = Duration::from_secs(60);
/// The pause after a failure to accept a connection, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// The time between checks of the time limits.
const LIMIT_CHECK_INTERVAL: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Serves until the process ends. The listener must not block.
pub(crate) fn serve(listener: &TcpListener, service: &MetricsService) -> io::Result<Infallible> {
    let mut connections = ConnectionTable::default();
    loop {
        let (ready, is_new) = connections.wait(listener)?;
        for number in ready {
            connections.advance(number, service);
        }
        connections.open.retain(|_, connection| connection.since.elapsed() < connection.time_limit());
        if is_new {
            match listener.accept().and_then(|(stream, _)| stream.set_nonblocking(true).map(|()| stream)) {
                Ok(stream) => {
                    // The client's request may already be there.
                    let number = connections.enter(stream);
                    connections.advance(number, service);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }
}

/// The open connections by their number, in the order of their arrival.
#[derive(Debug)]
struct ConnectionTable<S> {
    last: u64,
    open: BTreeMap<u64, Connection<S>>,
}

/// A connection by the stream `S`.
#[derive(Debug)]
struct Connection<S> {
    stream: S,
    /// The time at which its stage began.
    since: Instant,
    stage: ConnectionStage,
}

/// The progress of a connection.
#[derive(Debug)]
enum ConnectionStage {
    /// It sends the head of its request, so far these bytes.
    Head(Vec<u8>),
    /// It reads the response, and has got this many bytes of it.
    Response { bytes: Vec<u8>, sent: usize },
    /// It has the response. Further input is discarded until it closes the connection, since
    /// closing it here first would discard what it has not read yet.
    End,
}

impl<S> Default for ConnectionTable<S> {
    fn default() -> Self {
        Self { last: 0, open: BTreeMap::new() }
    }
}

impl<S> ConnectionTable<S> {
    /// Adds a new connection, and returns its number. Closes another one if all places are taken.
    fn enter(&mut self, stream: S) -> u64 {
        while self.open.len() >= CONNECTIONS_MAX && self.make_room() {}
        self.last += 1;
        let connection =
            Connection { stream, since: Instant::now(), stage: ConnectionStage::Head(Vec::new()) };
        self.open.insert(self.last, connection);
        self.last
    }

    /// Closes a connection for another. Returns whether there was one.
    fn make_room(&mut self) -> bool {
        let health = self.open.values().filter(|connection| connection.asks_for_health()).count();
        self.close_most_silent(|connection| health > HEALTH_CONNECTIONS_MAX || !connection.asks_for_health())
    }

    /// Closes connections with unread responses until the others are within their limit.
    fn bound_unsent(&mut self) {
        let unsent = |connections: &Self| {
            let sizes = connections.open.values().map(Connection::unsent).filter(|bytes| *bytes > 0);
            sizes.fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes))
        };
        while matches!(unsent(self), (2.., UNSENT_BYTES_MAX..)) {
            self.close_most_silent(|connection| connection.unsent() > 0);
        }
    }

    /// Closes the one of the selected connections that was silent longest. Returns whether there
    /// was one.
    fn close_most_silent(&mut self, is_selected: impl Fn(&Connection<S>) -> bool) -> bool {
        let selected = self.open.iter().filter(|(_, connection)| is_selected(connection));
        let most_silent = selected.min_by_key(|(_, connection)| connection.since).map(|(number, _)| *number);
        most_silent.and_then(|number| self.open.remove(&number)).is_some()
    }
}

impl ConnectionTable<TcpStream> {
    /// Waits until connections can continue, or for the next check of the limits. Returns the
    /// numbers of those, and whether a new client waits.
    fn wait(&self, listener: &TcpListener) -> io::Result<(Vec<u64>, bool)> {
        let streams =
            self.open.values().map(|connection| PollFd::new(&connection.stream, connection.awaits()));
        let mut polled: Vec<PollFd<'_>> = streams.collect();
        polled.push(PollFd::new(listener, PollFlags::IN));
        match poll(&mut polled, (!self.open.is_empty()).then_some(&LIMIT_CHECK_INTERVAL)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready = self.open.keys().zip(&polled).filter(|(_, fd)| is_ready(fd)).map(|(number, _)| *number);
        Ok((ready.collect(), polled.last().is_some_and(is_ready)))
    }

    /// Lets a connection continue, and removes it at its end.
    fn advance(&mut self, number: u64, service: &MetricsService) {
        let Some(connection) = self.open.get_mut(&number) else { return };
        let waits =
            |error: &io::Error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted);
        if !connection.advance(service).unwrap_or_else(|error| waits(&error)) {
            self.open.remove(&number);
        }
        self.bound_unsent();
    }
}

impl<S> Connection<S> {
    fn enter(&mut self, stage: ConnectionStage) {
        (self.stage, self.since) = (stage, Instant::now());
    }

    fn time_limit(&self) -> Duration {
        if matches!(self.stage, ConnectionStage::Response { .. }) { READ_TIME_MAX } else { HEAD_TIME_MAX }
    }

    fn awaits(&self) -> PollFlags {
        if matches!(self.stage, ConnectionStage::Response { .. }) { PollFlags::OUT } else { PollFlags::IN }
    }

    /// Whether it has begun a health request that is not answered yet.
    fn asks_for_health(&self) -> bool {
        let begins = |head: &[u8]| head.starts_with(b"GET /healthz") || head.starts_with(b"HEAD /healthz");
        matches!(&self.stage, ConnectionStage::Head(head) if begins(head))
    }

    /// Returns the size of its response until it has all of that.
    fn unsent(&self) -> usize {
        if let ConnectionStage::Response { bytes, .. } = &self.stage { bytes.len() } else { 0 }
    }
}

impl Connection<TcpStream> {
    /// Goes on by one step. Returns whether the connection stays open.
    fn advance(&mut self, service: &MetricsService) -> io::Result<bool> {
        let mut piece = [0; 4096];
        match &mut self.stage {
            ConnectionStage::Head(head) => {
                let room = piece.len().min(HEAD_BYTES_MAX - head.len());
                let count = self.stream.read(&mut piece[..room])?;
                head.extend_from_slice(&piece[..count]);
                if let Some(bytes) = respond(head, |request| service.answer(request)) {
                    self.enter(ConnectionStage::Response { bytes, sent: 0 });
                }
                Ok(count > 0)
            }
            ConnectionStage::Response { bytes, sent } => {
                let count = self.stream.write(&bytes[*sent..])?;
                *sent += count;
                if *sent == bytes.len() {
                    self.stream.shutdown(Shutdown::Write)?;
                    self.enter(ConnectionStage::End);
                }
                Ok(count > 0)
            }
            ConnectionStage::End => Ok(self.stream.read(&mut piece)? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::Arc;

    use super::*;
    use crate::state::MetricsState;

    fn open(connections: &ConnectionTable<()>) -> Vec<u64> {
        connections.open.keys().copied().collect()
    }

    fn answered(connections: &mut ConnectionTable<()>, number: u64, bytes: usize) {
        let stage = ConnectionStage::Response { bytes: vec![0; bytes], sent: 0 };
        connections.open.get_mut(&number).unwrap().enter(stage);
        connections.bound_unsent();
    }

    fn asks_for_health(connections: &mut ConnectionTable<()>, number: u64) {
        connections.open.get_mut(&number).unwrap().stage = ConnectionStage::Head(b"GET /healthz".to_vec());
    }

    #[test]
    fn the_longest_silent_connection_is_closed() {
        let mut connections = ConnectionTable::default();
        for _ in 0..CONNECTIONS_MAX {
            connections.enter(());
        }
        answered(&mut connections, 1, 1);
        connections.enter(());
        assert_eq!(connections.open.len(), CONNECTIONS_MAX);
        assert!(!open(&connections).contains(&2) && open(&connections).contains(&1));
    }

    #[test]
    fn health_checks_are_displaced_by_health_checks_alone() {
        let mut connections = ConnectionTable::default();
        for number in 1..=HEALTH_CONNECTIONS_MAX as u64 {
            connections.enter(());
            asks_for_health(&mut connections, number);
        }
        for _ in 0..10 * CONNECTIONS_MAX {
            connections.enter(());
        }
        assert_eq!(connections.open.len(), CONNECTIONS_MAX);
        assert_eq!(open(&connections)[..HEALTH_CONNECTIONS_MAX], [1, 2, 3, 4, 5, 6, 7, 8]);
        let last = connections.last;
        asks_for_health(&mut connections, last);
        connections.enter(());
        assert_eq!(open(&connections)[0], 2, "one too many asked");
        answered(&mut connections, 2, 1);
        // This connection was silent for less time than all of the storm.
        for _ in 0..CONNECTIONS_MAX {
            connections.enter(());
        }
        assert_eq!(open(&connections)[0], 3, "an answered client keeps no place");
    }

    #[test]
    fn answers_that_nobody_reads_are_bounded() {
        let mut connections = ConnectionTable::default();
        for number in 1..=10 {
            connections.enter(());
            answered(&mut connections, number, UNSENT_BYTES_MAX / 4 - 1);
        }
        assert_eq!(open(&connections), [7, 8, 9, 10]);
        let new = connections.enter(());
        answered(&mut connections, 10, UNSENT_BYTES_MAX * 2);
        assert_eq!(open(&connections), [10, new], "an unanswered client stays");
    }

    /// Creates a server on its own port, which serves until the tests end.
    fn served() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(MetricsState::new(false, Duration::from_secs(600)));
        std::thread::spawn(move || serve(&listener, &MetricsService::new(state, address)));
        address
    }

    /// Returns the first line of the response to a request on its own connection.
    fn asked(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn idle_slow_and_unreading_clients_keep_nobody_out() {
        let address = served();
        let connect = || TcpStream::connect(address).unwrap();
        let mut idle: Vec<_> = (0..100).map(|_| connect()).collect();
        assert_eq!(asked(address, "/healthz"), "HTTP/1.1 200 OK");
        // Endless heads, sent a byte at a time, and responses that nobody reads.
        for stream in &mut idle {
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ");
        }
        let began = Instant::now();
        let mut unread: Vec<_> = (0..100).map(|_| connect()).collect();
        for stream in &mut unread {
            for _ in 0..50 {
                let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
            }
        }
        for path in ["/healthz", "/metrics"] {
            assert_eq!(asked(address, path), "HTTP/1.1 200 OK");
        }
        // An endless head is abandoned, however steadily its bytes arrive.
        let mut slow = connect();
        slow.set_nonblocking(true).unwrap();
        let closed = loop {
            std::thread::sleep(Duration::from_millis(200));
            let written = slow.write_all(b"G");
            let read = slow.read(&mut [0; 512]);
            let waits = |error: &io::Error| error.kind() == ErrorKind::WouldBlock;
            if written.is_err() || read.is_ok() || read.is_err_and(|error| !waits(&error)) {
                break true;
            }
            if began.elapsed() > Duration::from_secs(120) {
                break false;
            }
        };
        assert!(closed);
        assert_eq!(asked(address, "/healthz"), "HTTP/1.1 200 OK");
    }

    #[test]
    fn a_storm_of_connections_ends_no_request_for_health_that_has_begun() {
        let address = served();
        let connect = || TcpStream::connect(address).unwrap();
        let mut health = connect();
        health.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // In two pieces, neither of which is complete.
        for piece in ["GET /hea", "lthz HTTP/1.1\r\nHost: loc"] {
            health.write_all(piece.as_bytes()).unwrap();
            assert_eq!(asked(address, "/healthz"), "HTTP/1.1 200 OK");
        }
        let storm: Vec<_> = (0..200)
            .map(|number| {
                let mut stream = connect();
                if number % 2 == 0 {
                    let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ");
                }
                stream
            })
            .collect();
        // The server has seen all connections when it answers a later one.
        assert_eq!(asked(address, "/metrics"), "HTTP/1.1 200 OK");
        health.write_all(b"alhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        health.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer:?}");
        drop(storm);
    }
}
