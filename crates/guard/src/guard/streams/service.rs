//! Users' requests to follow their own processes.
//!
//! Each connection has a thread, since to read or close what a user sent may block: descriptors come with it, and their last close waits
//! as long as their sender likes. The streams themselves never wait for a connection.
//!
//! Invariants: who asks is known from the kernel alone (`SO_PEERCRED`), and only the process that connected is followed: a request whose
//! process ended before its number was followed is withdrawn, and so is one whose user was not answered. Connections are bounded, of each
//! user and of all; each has deadlines. No descriptor is taken.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_streams::{RequestId, RequestReport, Requester, Streams};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::UCred;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{PidfdFlags, pidfd_open};

use super::listener::Listener;
use crate::config::StreamSocket;
use crate::stream_request::{LINE_MAX, StreamAnswer, StreamSums, check_request};

/// Connections at a time: each has a thread.
const CONNECTIONS_MAX: usize = 64;
/// Connections of one user other than root.
const CONNECTIONS_PER_USER: usize = 16;
/// How long a client may take for its line, and for taking an answer.
const CLIENT_MAX: Duration = Duration::from_secs(2);
/// How long the streams' thread may take for an answer.
const THREAD_MAX: Duration = Duration::from_secs(5);
/// How long a report waits for what is still being written.
const REPORTED_AFTER: Duration = Duration::from_secs(2);
/// Time between two looks whether that is done.
const REPORT_POLL: Duration = Duration::from_millis(50);

/// What a connection asks of the thread that follows streams.
pub(super) enum Ask {
    Follow { pid: u32, user: Requester, answer: SyncSender<Result<FollowedRequest, String>> },
    Report { id: RequestId, answer: SyncSender<RequestReport> },
    Forget(RequestId),
    Withdraw(RequestId),
}

/// A request whose process is followed. As it is dropped its sums are forgotten; it is withdrawn if its user was not answered, also where
/// nobody takes it since the streams' thread was late.
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

/// The way to the thread that follows streams.
#[derive(Clone)]
pub(super) struct ThreadLink {
    asks: Sender<Ask>,
    wake: Arc<OwnedFd>,
    /// Why a process may not be followed.
    refusal: Arc<dyn Fn(u32) -> Option<&'static str> + Send + Sync>,
}

/// The other end: what is asked, and a descriptor that is readable when something is.
pub(super) struct Asks {
    asks: Receiver<Ask>,
    pub(super) wake: Arc<OwnedFd>,
    link: ThreadLink,
}

/// The way to the thread that follows streams at present, if one does.
pub(super) type CurrentLink = Arc<Mutex<Option<ThreadLink>>>;

/// Both ends of the way to a thread.
pub(super) fn link(
    refusal: impl Fn(u32) -> Option<&'static str> + Send + Sync + 'static,
) -> Result<(ThreadLink, Asks), String> {
    let (asks, receiver) = std::sync::mpsc::channel();
    let wake = Arc::new(event()?);
    let link = ThreadLink { asks, wake: Arc::clone(&wake), refusal: Arc::new(refusal) };
    Ok((link.clone(), Asks { asks: receiver, wake, link }))
}

fn event() -> Result<OwnedFd, String> {
    let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    made.map_err(|error| format!("no descriptor can be had: {}", std::io::Error::from(error)))
}

fn signal(event: &OwnedFd) {
    // A counter that is full is readable all the same.
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
        outcome.recv_timeout(THREAD_MAX).map_err(|_| gone())?
    }

    fn report(&self, id: RequestId) -> Option<RequestReport> {
        let (answer, report) = sync_channel(1);
        self.ask(Ask::Report { id, answer })?;
        report.recv_timeout(THREAD_MAX).ok()
    }
}

impl Asks {
    /// Does what was asked.
    pub(super) fn serve(&self, streams: &mut Streams) {
        let _ = rustix::io::read(&*self.wake, &mut [0_u8; 8]);
        for ask in self.asks.try_iter() {
            // Whoever asked may have given up.
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

/// The service, until it is dropped.
pub(super) struct Service {
    pub(super) socket: StreamSocket,
    stop: Arc<OwnedFd>,
    acceptor: Option<std::thread::JoinHandle<()>>,
}

impl Service {
    /// Listens from now on.
    pub(super) fn start(proc: ProcRoot, socket: &StreamSocket, link: CurrentLink) -> Result<Self, String> {
        let listener = Listener::bind(socket)?;
        let connections = Connections::new(proc, link)?;
        let stop = Arc::clone(&connections.stop);
        let run = move || connections.accept(&listener);
        let acceptor = std::thread::Builder::new().name("streams-socket".to_owned()).spawn(run);
        let acceptor = acceptor.map_err(|error| format!("no thread can be started: {error}"))?;
        Ok(Self { socket: socket.clone(), stop, acceptor: Some(acceptor) })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Nobody reads it, so that all who wait for it see it.
        signal(&self.stop);
        // The path is free once it has ended. It may be closing what a user sent, which is not waited for.
        let until = Instant::now() + CLIENT_MAX;
        let Some(acceptor) = self.acceptor.take() else { return };
        while !acceptor.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// How many connections each user has.
type Places = Arc<Mutex<HashMap<u32, usize>>>;

/// A connection's place among those of its user, until it is dropped.
struct Place {
    user: u32,
    places: Places,
}

impl Place {
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

impl Drop for Place {
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

/// What each connection needs.
#[derive(Clone)]
pub(super) struct Connections {
    proc: ProcRoot,
    link: CurrentLink,
    stop: Arc<OwnedFd>,
    places: Places,
    /// Connections that there was no room for, to be closed in a thread of their own.
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
                // Without descriptors or memory for it; it waits in the kernel's queue.
                None => std::thread::sleep(REPORT_POLL),
            }
        }
    }

    /// Starts a connection's thread. One that there is no room for is closed, elsewhere since that may block.
    fn begin(&self, stream: UnixStream) {
        let Ok(peer) = socket_peercred(&stream) else { return };
        let Some(place) = Place::take(&self.places, peer.uid.as_raw()) else {
            let refused = StreamAnswer::Refused("too many requests are under way".to_owned());
            let _ = stream.set_nonblocking(true);
            let _ = (&stream).write_all(refused.to_line().as_bytes());
            // The client sees the end at once. The acceptor does the close itself only if very many wait for theirs.
            let _ = stream.shutdown(Shutdown::Both);
            return drop(self.refused.try_send(stream));
        };
        let connections = self.clone();
        let run = move || {
            let _place = place;
            connections.serve(&stream, &peer);
            // Here, so that its place is taken as long as that may need.
            drop(stream);
        };
        // Without a thread the client sees the end, and does without.
        drop(std::thread::Builder::new().name("streams-request".to_owned()).spawn(run));
    }

    fn serve(&self, stream: &UnixStream, peer: &UCred) {
        let request = read_line(stream, CLIENT_MAX).and_then(|line| check_request(&line));
        match request.and_then(|()| self.follow(peer)) {
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

    /// Has the process that connected followed, if it is its user's alone.
    pub(super) fn follow(&self, peer: &UCred) -> Result<FollowedRequest, String> {
        let ended = || "the process that asked has ended".to_owned();
        let link = lock(&self.link).clone().ok_or("the guard follows no streams at the moment")?;
        // It does not keep the number for the process, but says whether the process has ended.
        let process = pidfd_open(peer.pid, PidfdFlags::empty()).map_err(|_| ended())?;
        let pid = peer.pid.as_raw_nonzero().get().unsigned_abs();
        let (users, groups) = self.proc.users_and_groups(pid).map_err(|_| ended())?;
        if users.one() != Some(peer.uid.as_raw()) {
            return Err("the process that asked has the rights of another user".to_owned());
        }
        let request = link.follow(pid, Requester { user: peer.uid.as_raw(), groups })?;
        // Another one may have had its number when that was followed: then the request is withdrawn.
        if has_ended(&process) { Err(ended()) } else { Ok(request) }
    }

    /// Sends the report, once the client sends no more. One that has gone wants none.
    fn report(&self, stream: &UnixStream, request: &FollowedRequest) {
        let mut both = [PollFd::new(stream, PollFlags::RDHUP), PollFd::new(&*self.stop, PollFlags::IN)];
        while poll(&mut both, None) == Err(rustix::io::Errno::INTR) {}
        if !both[1].revents().is_empty() || both[0].revents().contains(PollFlags::HUP) {
            return;
        }
        let until = Instant::now() + REPORTED_AFTER;
        while let Some(report) = request.link.report(request.id) {
            if (report.files == 0 && report.running == 0) || Instant::now() >= until {
                let _ = answer(stream, &StreamAnswer::Report(sums(&report)));
                return;
            }
            std::thread::sleep(REPORT_POLL);
        }
    }
}

fn sums(report: &RequestReport) -> StreamSums {
    let totals = report.totals;
    StreamSums {
        added_bytes: totals.added,
        released_bytes: totals.released,
        used_by_others_bytes: totals.handed_on,
        gone_bytes: totals.gone,
        left_bytes: totals.resident,
        goes_on: report.running > 0,
    }
}

fn has_ended(process: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&now)) != Ok(0)
}

/// Reads the client's line, within that time.
fn read_line(stream: &UnixStream, at_most: Duration) -> Result<Vec<u8>, String> {
    let until = Instant::now() + at_most;
    let mut line = vec![0; LINE_MAX];
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
    Err(format!("a request has at most {LINE_MAX} bytes"))
}

/// Sends a line. `None`: the client does not take it.
fn answer(stream: &UnixStream, answer: &StreamAnswer) -> Option<()> {
    stream.set_write_timeout(Some(CLIENT_MAX)).ok()?;
    (&*stream).write_all(answer.to_line().as_bytes()).ok()
}
