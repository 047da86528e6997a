//! Tests of the service with clients of all kinds. They see whom the streams' thread would be asked
//! to follow.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};

use pagekeeper_kernel::mutex::lock;
use pagekeeper_kernel::process::ProcRoot;
use pagekeeper_testing::{as_nobody, skip};
use rustix::net::UCred;
use rustix::process::{Gid, Pid, PidfdFlags, Uid, pidfd_open};

use super::{Ask, Connections, CurrentLink, Service, StreamSocket, link};
use crate::stream_request::{LINE_BYTES_MAX, StreamAnswer, request_line};
use crate::{Requester, StreamOptions, StreamPace, Streams, Verdict};

/// A service that refuses everyone it could follow, and the processes that it was asked about.
struct Case {
    service: Service,
    asked: Arc<Mutex<Vec<u32>>>,
    path: PathBuf,
    link: CurrentLink,
    _directory: tempfile::TempDir,
}

const WOULD: &str = "would be followed";

impl Case {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        let path = directory.path().join("streams.sock");
        let asked: Arc<Mutex<Vec<u32>>> = Arc::default();
        let pids = Arc::clone(&asked);
        let (to_thread, _) = link(move |pid| {
            lock(&pids).push(pid);
            Some(WOULD)
        })
        .unwrap();
        let link: CurrentLink = Arc::new(Mutex::new(Some(to_thread)));
        let socket = StreamSocket { path: path.clone(), mode: 0o666, group: None };
        let service = Service::start(ProcRoot::default(), &socket, Arc::clone(&link)).unwrap();
        Self { service, asked, path, link, _directory: directory }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }

    /// Checks the answer to a request that comes after all others.
    fn serves_others(&self) {
        assert_eq!(ask(&self.connect(), request_line().as_bytes()), Some(refused(WOULD)));
        assert_eq!(lock(&self.asked).pop(), Some(std::process::id()));
    }

    fn connections(&self) -> Connections {
        Connections::new(ProcRoot::default(), Arc::clone(&self.link)).unwrap()
    }
}

fn refused(why: &str) -> StreamAnswer {
    StreamAnswer::Refused(why.to_owned())
}

fn ask(mut stream: &UnixStream, line: &[u8]) -> Option<StreamAnswer> {
    stream.write_all(line).ok()?;
    answered(stream)
}

fn answered(stream: &UnixStream) -> Option<StreamAnswer> {
    let mut line = Vec::new();
    BufReader::new(stream).read_until(b'\n', &mut line).ok()?;
    StreamAnswer::parse(&line)
}

/// A process of a user; it ends when this is dropped.
struct OfUser(Child);

impl OfUser {
    fn new(user: u32) -> Self {
        Self(Command::new("sleep").arg("600").uid(user).stdin(Stdio::null()).spawn().unwrap())
    }

    fn peer(&self, user: u32) -> UCred {
        peer(self.0.id(), user)
    }

    fn descriptor(&self) -> OwnedFd {
        pidfd_open(self.peer(0).pid, PidfdFlags::empty()).unwrap()
    }
}

impl Drop for OfUser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn peer(pid: u32, user: u32) -> UCred {
    UCred {
        pid: Pid::from_raw(pid.cast_signed()).unwrap(),
        uid: Uid::from_raw(user),
        gid: Gid::from_raw(user),
    }
}

#[test]
fn the_process_that_connected_is_the_one_that_is_followed() {
    Case::new().serves_others();
}

#[test]
fn nobody_has_a_process_of_another_user_followed() {
    if !rustix::process::geteuid().is_root() {
        return skip("processes of others need root.");
    }
    let case = Case::new();
    // Connected as another user than the process is, so the process has the rights of two.
    let stream = as_nobody(|| UnixStream::connect(&case.path).unwrap());
    let answer = ask(&stream, request_line().as_bytes());
    assert_eq!(answer, Some(refused("the process that asked has the rights of another user")));
    // Its number belongs to another user's process by now.
    let of_another = OfUser::new(1002);
    let why =
        case.connections().follow(&of_another.peer(1001), Some(&of_another.descriptor())).err().unwrap();
    assert!(why.contains("another user"), "{why}");
    assert_eq!(*lock(&case.asked), [0; 0]);
    let own =
        case.connections().follow(&of_another.peer(1002), Some(&of_another.descriptor())).err().unwrap();
    assert_eq!(own, WOULD);
}

#[test]
fn a_process_whose_end_came_first_is_refused() {
    let case = Case::new();
    let mut ended = Command::new("true").spawn().unwrap();
    let pid = ended.id();
    ended.wait().unwrap();
    let own = rustix::process::getuid().as_raw();
    let why = case.connections().follow(&peer(pid, own), None).err().unwrap();
    assert!(why.contains("has ended"), "{why}");
    assert_eq!(*lock(&case.asked), [0; 0]);
}

#[test]
fn a_number_that_is_used_again_is_not_followed() {
    let case = Case::new();
    let own = rustix::process::getuid().as_raw();
    let gone = OfUser::new(own);
    let descriptor = gone.descriptor();
    drop(gone);
    // A process of the same user that has the number of the one that connected.
    let next = OfUser::new(own);
    let why = case.connections().follow(&next.peer(own), Some(&descriptor)).err().unwrap();
    assert!(why.contains("has ended"), "{why}");
    assert_eq!(*lock(&case.asked), [0; 0]);
}

#[test]
fn a_request_whose_answer_came_too_late_is_withdrawn() {
    let options = StreamOptions {
        names: Vec::new(),
        members: None,
        never: Vec::new(),
        decide: Box::new(|_, _| Verdict::Leave),
        pace: StreamPace::Off,
    };
    let Ok(mut streams) = Streams::start(options) else { return skip("events of the kernel need root.") };
    let (link, asks) = link(|_| None).unwrap();
    let process = OfUser::new(rustix::process::getuid().as_raw());
    for is_late in [false, true] {
        let (answer, outcome) = sync_channel(1);
        let outcome = (!is_late).then_some(outcome);
        let user = Requester { user: 1001, groups: vec![1001] };
        link.ask(Ask::Follow { pid: process.0.id(), user, answer }).unwrap();
        asks.serve(&mut streams);
        assert_eq!(streams.report().running, usize::from(!is_late));
        // Nobody was answered either.
        drop(outcome);
        asks.serve(&mut streams);
        assert_eq!(streams.report().running, 0);
    }
}

#[test]
fn clients_that_send_nothing_half_a_line_or_very_much_keep_nobody_out() {
    let case = Case::new();
    let silent = case.connect();
    let half = case.connect();
    (&half).write_all(b"{\"version\":1,").unwrap();
    let endless = case.connect();
    let piece = vec![b' '; 1 << 20];
    let sent = (0..1 << 10).take_while(|_| (&endless).write_all(&piece).is_ok()).count();
    assert!(sent < 1 << 10, "1 GiB was taken");
    case.serves_others();
    let none = "the request is none that this version of the guard knows";
    for stream in [&silent, &half] {
        assert_eq!(answered(stream), Some(refused(none)));
    }
    let long = case.connect();
    let answer = ask(&long, &vec![b' '; LINE_BYTES_MAX]);
    assert_eq!(answer, Some(refused("a request has at most 1024 bytes")));
    assert_eq!(*lock(&case.asked), [0; 0]);
}

#[test]
fn a_user_with_a_thousand_connections_does_not_block_another() {
    if !rustix::process::geteuid().is_root() {
        return skip("connections of others need root.");
    }
    let case = Case::new();
    let streams: Vec<UnixStream> =
        as_nobody(|| (0..1000).map(|_| UnixStream::connect(&case.path).unwrap()).collect());
    case.serves_others();
    let busy = Some(refused("too many requests are in progress"));
    let kept_out = streams.iter().filter(|stream| answered(stream) == busy).count();
    assert!(kept_out > 0);
    drop(streams);
    case.serves_others();
}

#[test]
fn without_streams_a_request_is_refused_and_the_end_is_no_wait() {
    let case = Case::new();
    *lock(&case.link) = None;
    let answer = ask(&case.connect(), request_line().as_bytes());
    assert_eq!(answer, Some(refused("the guard follows no streams at the moment")));
    let silent = case.connect();
    let path = case.path.clone();
    drop(case.service);
    assert!(!path.exists());
    drop(silent);
}
