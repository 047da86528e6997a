//! Handles users' requests to follow their own processes.
//!
//! Each connection has a thread, because reading or closing what a user sent may block: descriptors
//! come with it, and their last close can take as long as their sender likes. The streams
//! themselves never wait for a connection.
//!
//! Invariants:
//! 1. Only the kernel identifies the client (`SO_PEERCRED`), and only the process that connected is
//!    followed. Its descriptor (`SO_PEERPIDFD`) shows whether it has ended, so its number is never
//!    that of another process. Before Linux 6.5 the descriptor is of the process that had the
//!    number when the connection was accepted.
//! 2. A request is withdrawn if its process ended before its number was followed, or if its user
//!    got no answer.
//! 3. The number of connections is bounded, per user and in all; each has deadlines.
//! 4. No descriptor is accepted.

mod listener;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::process::{ProcRoot, peer_process};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::UCred;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};

use self::listener::Listener;
use crate::stream_request::{LINE_BYTES_MAX, StreamAnswer, StreamSums, check_request};
use crate::{RequestId, RequestReport, Requester, Streams};

/// Maximum number of connections at a time: each has a thread.
const CONNECTIONS_MAX: usize = 64;
/// Maximum number of connections of one user other than root.
const CONNECTIONS_PER_USER: usize = 16;
/// Time limit for a client to send its line, and to take an answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit for an answer of the streams' thread.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of a report's wait for pages that are still being written.
const REPORT_WAIT_MAX: Duration = Duration::from_secs(2);
/// Time between two checks for that.
const REPORT_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A socket on which users ask for their own processes to be followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamSocket {
    /// Its path.
    pub path: PathBuf,
    /// Its permissions, which decide who may connect. By default everybody may, since users can ask
    /// only for their own processes.
    pub mode: u32,
    /// The number of its group; `None` for the guard's own.
    pub group: Option<u32>,
}

/// A message from a connection to the thread that follows streams.
pub(super) enum Ask {
    Follow { pid: u32, user: Requester, answer: SyncSender<Result<FollowedRequest, String>> },
    Report { id: RequestId, answer: SyncSender<RequestReport> },
    Forget(RequestId),
    Withdraw(RequestId),
}

/// A request whose process is followed. Dropping it forgets its totals. Dropping it withdraws the
/// request if its user got no answer, also when the streams' thread was too late for anyone to take
/// it.
pub(super) struct FollowedRequest {
    link: ThreadLink,
    id: RequestId,
    is_answered: bool,
}

impl Drop for FollowedRequest {
    fn drop(&mut self) {
        // A thread that has ended follows nobody.
        let _ = self.link.ask(if self.is_answered { Ask::Forget(self.id) } else { Ask::Withdraw(self.id) });
    }
}

/// The sending end of the channel to the thread that follows streams.
#[derive(Clone)]
pub struct ThreadLink {
    asks: Sender<Ask>,
    wake: Arc<OwnedFd>,
    /// Returns why a process may not be followed.
    refusal: Arc<dyn Fn(u32) -> Option<&'static str> + Send + Sync>,
}

/// The receiving end: the messages, and a descriptor that is readable when there are any.
pub(super) struct Asks {
    receiver: Receiver<Ask>,
    pub(super) wake: Arc<OwnedFd>,
    link: ThreadLink,
}

/// The sending end to the thread that follows streams now, if there is one.
pub type CurrentLink = Arc<Mutex<Option<ThreadLink>>>;

/// Makes both ends of a channel to a thread.
pub(super) fn link(
    refusal: impl Fn(u32) -> Option<&'static str> + Send + Sync + 'static,
) -> Result<(ThreadLink, Asks), String> {
    let (asks, receiver) = std::sync::mpsc::channel();
    let wake = Arc::new(event()?);
    let link = ThreadLink { asks, wake: Arc::clone(&wake), refusal: Arc::new(refusal) };
    Ok((link.clone(), Asks { receiver, wake, link }))
}

fn event() -> Result<OwnedFd, String> {
    let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    made.map_err(|error| format!("no descriptor is available: {}", std::io::Error::from(error)))
}

fn signal(event: &OwnedFd) {
    // A counter at its maximum is readable all the same.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

impl ThreadLink {
    pub(super) fn ask(&self, ask: Ask) -> Option<()> {
        self.asks.send(ask).ok()?;
        signal(&self.wake);
        Some(())
    }

    fn follow(&self, pid: u32, user: Requester) -> Result<FollowedRequest, String> {
        if let Some(why) = (self.refusal)(pid) {
            return Err(why.to_owned());
        }
        let (answer, outcome) = sync_channel(1);
        let gone = || "the guard follows no streams at the moment".to_owned();
        self.ask(Ask::Follow { pid, user, answer }).ok_or_else(gone)?;
        outcome.recv_timeout(ANSWER_TIMEOUT).map_err(|_| gone())?
    }

    fn report(&self, id: RequestId) -> Option<RequestReport> {
        let (answer, report) = sync_channel(1);
        self.ask(Ask::Report { id, answer })?;
        report.recv_timeout(ANSWER_TIMEOUT).ok()
    }
}

impl Asks {
    /// Handles the messages.
    pub(super) fn serve(&self, streams: &mut Streams) {
        let _ = rustix::io::read(&*self.wake, &mut [0_u8; 8]);
        for ask in self.receiver.try_iter() {
            // The sender may have given up.
            match ask {
                Ask::Follow { pid, user, answer } => {
                    let outcome = streams.follow_for(pid, user).map_err(|error| error.to_string());
                    let followed = |id| FollowedRequest { link: self.link.clone(), id, is_answered: false };
                    drop(answer.try_send(outcome.map(followed)));
                }
                Ask::Report { id, answer } => {
                    let _ = streams.request_report(id).map(|report| answer.try_send(report));
                }
                Ask::Forget(id) => streams.forget_request(id),
                Ask::Withdraw(id) => streams.withdraw_request(id),
            }
        }
    }
}

/// The service; it ends when this is dropped.
pub struct Service {
    socket: StreamSocket,
    stop: Arc<OwnedFd>,
    acceptor: Option<std::thread::JoinHandle<()>>,
}

impl Service {
    /// Starts to listen. Fails with a sentence.
    pub fn start(proc: ProcRoot, socket: &StreamSocket, link: CurrentLink) -> Result<Self, String> {
        let listener = Listener::bind(socket)?;
        let connections = Connections::new(proc, link)?;
        let stop = Arc::clone(&connections.stop);
        let run = move || connections.accept(&listener);
        let acceptor = std::thread::Builder::new().name("streams-socket".to_owned()).spawn(run);
        let acceptor = acceptor.map_err(|error| format!("no thread can be started: {error}"))?;
        Ok(Self { socket: socket.clone(), stop, acceptor: Some(acceptor) })
    }

    /// Returns the socket on which it listens.
    pub fn socket(&self) -> &StreamSocket {
        &self.socket
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Nobody reads the event, so everyone who waits for it sees it.
        signal(&self.stop);
        // The path is free once the acceptor has ended. It may be closing something that a user
        // sent; that is not waited for.
        let until = Instant::now() + CLIENT_TIMEOUT;
        let Some(acceptor) = self.acceptor.take() else { return };
        while !acceptor.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The number of connections of each user.
type Places = Arc<Mutex<HashMap<u32, usize>>>;

/// A connection's place among those of its user, until it is dropped.
struct ConnectionSlot {
    user: u32,
    places: Places,
}

impl ConnectionSlot {
    fn take(places: &Places, user: u32) -> Option<Self> {
        let mut taken = lock(places);
        let of_user = taken.get(&user).copied().unwrap_or_default();
        let most = if user == 0 { CONNECTIONS_MAX } else { CONNECTIONS_PER_USER };
        if of_user >= most || taken.values().sum::<usize>() >= CONNECTIONS_MAX {
            return None;
        }
        taken.insert(user, of_user + 1);
        Some(Self { user, places: Arc::clone(places) })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut taken = lock(&self.places);
        if let Some(count) = taken.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.user);
            }
        }
    }
}

/// The state that all connections share.
#[derive(Clone)]
pub(super) struct Connections {
    proc: ProcRoot,
    link: CurrentLink,
    stop: Arc<OwnedFd>,
    places: Places,
    /// Connections for which there was no room, to be closed in a thread of their own.
    refused: SyncSender<UnixStream>,
}

impl Connections {
    pub(super) fn new(proc: ProcRoot, link: CurrentLink) -> Result<Self, String> {
        let (refused, streams) = sync_channel(CONNECTIONS_MAX);
        let closer = std::thread::Builder::new().name("streams-refused".to_owned());
        closer
            .spawn(move || streams.into_iter().for_each(drop::<UnixStream>))
            .map_err(|error| format!("no thread can be started: {error}"))?;
        Ok(Self { proc, link, stop: Arc::new(event()?), places: Arc::default(), refused })
    }

    fn accept(self, listener: &Listener) {
        loop {
            let mut both =
                [PollFd::new(&listener.socket, PollFlags::IN), PollFd::new(&*self.stop, PollFlags::IN)];
            let polled = poll(&mut both, None);
            if both[1].revents().contains(PollFlags::IN) {
                return;
            }
            match polled.ok().and_then(|_| listener.socket.accept().ok()) {
                Some((stream, _)) => self.begin(stream),
                // There are no descriptors or memory for it; it waits in the kernel's queue.
                None => std::thread::sleep(REPORT_POLL_INTERVAL),
            }
        }
    }

    /// Starts a connection's thread. If there is no room, the connection is closed in another
    /// thread, because that may block.
    fn begin(&self, stream: UnixStream) {
        let Ok(peer) = socket_peercred(&stream) else { return };
        let Some(place) = ConnectionSlot::take(&self.places, peer.uid.as_raw()) else {
            let refused = StreamAnswer::Refused("too many requests are in progress".to_owned());
            let _ = stream.set_nonblocking(true);
            let _ = (&stream).write_all(refused.to_line().as_bytes());
            // The client sees the end at once. The acceptor closes the connection itself only if
            // very many wait to be closed.
            let _ = stream.shutdown(Shutdown::Both);
            return drop(self.refused.try_send(stream));
        };
        let process = process_of(&stream, &peer);
        let connections = self.clone();
        let run = move || {
            let _place = place;
            connections.serve(&stream, &peer, process.as_ref());
            // Closed here, so that its place is taken for as long as that takes.
            drop(stream);
        };
        // Without a thread the client sees the end of the connection, and continues without being
        // followed.
        drop(std::thread::Builder::new().name("streams-request".to_owned()).spawn(run));
    }

    fn serve(&self, stream: &UnixStream, peer: &UCred, process: Option<&OwnedFd>) {
        let request = read_line(stream, CLIENT_TIMEOUT).and_then(|line| check_request(&line));
        match request.and_then(|()| self.follow(peer, process)) {
            Ok(mut request) => {
                request.is_answered = answer(stream, &StreamAnswer::Followed).is_some();
                if request.is_answered {
                    self.report(stream, &request);
                }
            }
            Err(why) => {
                let _ = answer(stream, &StreamAnswer::Refused(why));
            }
        }
    }

    /// Follows the process that connected, if it has the rights of its user alone.
    pub(super) fn follow(&self, peer: &UCred, process: Option<&OwnedFd>) -> Result<FollowedRequest, String> {
        let ended = || "the process that asked has ended".to_owned();
        let link = lock(&self.link).clone().ok_or("the guard follows no streams at the moment")?;
        let process = process.ok_or_else(ended)?;
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let (users, groups) = self.proc.users_and_groups(pid).map_err(|_| ended())?;
        if users.one() != Some(peer.uid.as_raw()) {
            return Err("the process that asked has the rights of another user".to_owned());
        }
        // Users and groups may be those of another process that has its number by now.
        if has_ended(process) {
            return Err(ended());
        }
        let request = link.follow(pid, Requester { user: peer.uid.as_raw(), groups })?;
        // Another process may have had its number by the time it was followed: then the request is
        // withdrawn.
        if has_ended(process) { Err(ended()) } else { Ok(request) }
    }

    /// Sends the report once the client has shut down its sending side. A client that has gone gets
    /// none.
    fn report(&self, stream: &UnixStream, request: &FollowedRequest) {
        let mut both = [PollFd::new(stream, PollFlags::RDHUP), PollFd::new(&*self.stop, PollFlags::IN)];
        while poll(&mut both, None) == Err(rustix::io::Errno::INTR) {}
        if !both[1].revents().is_empty() || both[0].revents().contains(PollFlags::HUP) {
            return;
        }
        let until = Instant::now() + REPORT_WAIT_MAX;
        while let Some(report) = request.link.report(request.id) {
            if (report.files == 0 && report.running == 0) || Instant::now() >= until {
                let sums = StreamSums::of(report.totals, report.running > 0);
                let _ = answer(stream, &StreamAnswer::Report(sums));
                return;
            }
            std::thread::sleep(REPORT_POLL_INTERVAL);
        }
    }
}

/// Returns a descriptor of the process that connected, which does not reserve its number but shows
/// whether it has ended; `None` if it had ended already.
fn process_of(stream: &UnixStream, peer: &UCred) -> Option<OwnedFd> {
    match peer_process(stream) {
        Ok(None) => pidfd_open(peer.pid, PidfdFlags::empty()).ok(),
        found => found.ok()?,
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)) != Ok(0)
}

/// Reads the client's line, within that time.
fn read_line(stream: &UnixStream, at_most: Duration) -> Result<Vec<u8>, String> {
    let until = Instant::now() + at_most;
    let mut line = vec![0; LINE_BYTES_MAX];
    let mut length = 0;
    while length < line.len() {
        let left = until.saturating_duration_since(Instant::now());
        let waits = !left.is_zero() && stream.set_read_timeout(Some(left)).is_ok();
        let read = if waits { (&*stream).read(&mut line[length..]).unwrap_or(0) } else { 0 };
        length += read;
        if read == 0 || line[..length].contains(&b'\n') {
            line.truncate(length);
            return Ok(line);
        }
    }
    Err(format!("a request has at most {LINE_BYTES_MAX} bytes"))
}

/// Sends a line. Returns `None` if the client does not take it.
fn answer(stream: &UnixStream, answer: &StreamAnswer) -> Option<()> {
    stream.set_write_timeout(Some(CLIENT_TIMEOUT)).ok()?;
    (&*stream).write_all(answer.to_line().as_bytes()).ok()
}
