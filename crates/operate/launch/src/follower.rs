//! Follows a command by kernel events: any streaming program, however it is linked, and the streams
//! that a script starts.
//!
//! A process [`beside`] the command follows it and its descendants, and releases the pages that
//! they bring into the page cache (`pagekeeper_streams`). The process that becomes the command
//! reports its ID just before execution, and waits for the answer, so no page of the command is
//! missed.
//!
//! A caller without permission for that asks the guard's [`service`] to follow the command, if one
//! listens.
//!
//! Invariants: the process beside the command is not its child, holds none of its descriptors, and
//! ends by itself. The command waits at most [`FOLLOWER_ANSWER_TIMEOUT`] until that process is
//! ready, and as long for its answer, and is started in any case. If that process is killed,
//! nothing is held: the command continues without the rules. Fails before anything is started if
//! the command can't be followed ([`FollowRefusal`]).

mod beside;
mod pages;
mod plan;
mod service;

use std::io::{self, BufRead as _, BufReader};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pagekeeper_streams::stream_request::STREAM_SOCKET;
use rustix::thread::CapabilitySet;

use beside::REPORT_TIMEOUT;
pub(crate) use beside::{BUSY_INTERVAL, READY_MESSAGE, answer, followed_process};
pub use pages::{FollowedFileReport, FollowedPages};
pub(crate) use plan::FollowPlan;
use service::GuardService;
pub(crate) use service::ServiceError;

use crate::processes::detached;

/// Time limit for an answer of the process beside the command: loading its programs into the kernel
/// takes some 10 ms, and a second on an emulated processor.
const FOLLOWER_ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why a command can't be followed by events.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FollowRefusal {
    /// The kernel does not allow it; contains a sentence.
    #[error("{0}")]
    Unavailable(String),
    /// This process lacks the permissions; contains why the guard's service does not follow it.
    #[error("that takes root, or the capabilities BPF, PERFMON and DAC_READ_SEARCH{0}")]
    NotPermitted(ServiceError),
    #[error("the process that follows it does not answer")]
    Silent,
    /// Orphaned processes become this one's children, which the command does not expect.
    #[error("the process that follows it would be a child of it, as in the first process of a container")]
    Inherits,
    #[error("no process that follows it can be started: {0}")]
    Failed(io::Error),
}

/// The follower of the command.
pub(crate) enum Follower {
    /// A process beside it, ready to follow.
    Beside(Arc<UnixStream>),
    /// The guard's service, which already follows this process and its descendants.
    Service(GuardService),
}

impl Follower {
    /// Starts the follower.
    pub(crate) fn start(plan: &FollowPlan) -> Result<Self, FollowRefusal> {
        if !is_permitted() {
            let service = if plan.suits_service() {
                GuardService::ask(&service_path())
            } else {
                Err(ServiceError::Unasked)
            };
            return service.map(Self::Service).map_err(FollowRefusal::NotPermitted);
        }
        start_beside(&[], |socket| beside::run(plan, socket)).map(|socket| Self::Beside(Arc::new(socket)))
    }

    /// Makes it follow the process that becomes the command, and its descendants.
    pub(crate) fn attach(&self, command: &mut Command) {
        match self {
            Self::Beside(socket) => detached::announce(command, Arc::clone(socket)),
            Self::Service(_) => {}
        }
    }

    /// Returns the page totals after the command has ended, or why they are unknown.
    pub(crate) fn end(self) -> Result<FollowedPages, &'static str> {
        let socket = match self {
            Self::Beside(socket) => socket,
            Self::Service(service) => return service.end(),
        };
        // This requests them.
        let _ = socket.shutdown(Shutdown::Write);
        let _ = socket.set_read_timeout(Some(2 * REPORT_TIMEOUT));
        let mut lines = BufReader::new(&*socket).lines().map_while(Result::ok);
        lines.find_map(|line| serde_json::from_str(&line).ok()).ok_or(
            "the process that followed it does not answer: the pages that it brought in since then stay",
        )
    }
}

/// Starts a process beside the command, and waits until that is ready. It has the other end of the
/// socket, and keeps these descriptors.
pub(crate) fn start_beside(
    kept: &[BorrowedFd<'_>],
    work: impl FnOnce(&UnixStream),
) -> Result<UnixStream, FollowRefusal> {
    if std::process::id() == 1
        || rustix::process::child_subreaper().is_ok_and(|subreaper| subreaper.is_some())
    {
        return Err(FollowRefusal::Inherits);
    }
    let begin = || -> io::Result<UnixStream> {
        let (socket, other) = UnixStream::pair()?;
        socket.set_read_timeout(Some(FOLLOWER_ANSWER_TIMEOUT))?;
        detached::start_detached(&[kept, &[other.as_fd()]].concat(), || work(&other))?;
        Ok(socket)
    };
    let socket = begin().map_err(FollowRefusal::Failed)?;
    match next_answer(&socket) {
        Some(answer) if answer == READY_MESSAGE => Ok(socket),
        Some(sentence) => Err(FollowRefusal::Unavailable(sentence)),
        None => Err(FollowRefusal::Silent),
    }
}

/// Returns the socket path of the guard's service.
fn service_path() -> PathBuf {
    std::env::var_os("PAGEKEEPER_STREAM_SOCKET").map_or_else(|| STREAM_SOCKET.into(), PathBuf::from)
}

/// Returns the next answer of a process beside the command; `None` if it has ended or takes too
/// long.
fn next_answer(socket: &UnixStream) -> Option<String> {
    let mut line = String::new();
    // The next answer comes only after another request, so nothing of it is in the reader's buffer.
    BufReader::new(socket).read_line(&mut line).ok()?;
    Some(line).filter(|line| line.ends_with('\n')).map(|line| line.trim_end().to_owned())
}

/// Whether this process may load programs into the kernel and open files by handle: otherwise no
/// process is started uselessly.
pub(crate) fn is_permitted() -> bool {
    let Ok(sets) = rustix::thread::capabilities(None) else { return false };
    let has = |capability| sets.effective.contains(capability);
    let administers = has(CapabilitySet::SYS_ADMIN);
    has(CapabilitySet::DAC_READ_SEARCH)
        && (administers || has(CapabilitySet::BPF) && has(CapabilitySet::PERFMON))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_answers(answers: &str) -> UnixStream {
        let (socket, other) = UnixStream::pair().unwrap();
        io::Write::write_all(&mut &other, answers.as_bytes()).unwrap();
        socket
    }

    #[test]
    fn page_counts_follow_unread_answers() {
        let pages = FollowedPages { released_bytes: 4096, ..FollowedPages::default() };
        let text = serde_json::to_string(&pages).unwrap();
        let read = Follower::Beside(Arc::new(with_answers(&format!("followed\n{text}\n")))).end().unwrap();
        assert_eq!(read.released_bytes, 4096);
        assert!(Follower::Beside(Arc::new(with_answers("followed\n"))).end().is_err());
    }

    #[test]
    fn an_answer_is_a_whole_line() {
        assert_eq!(next_answer(&with_answers("no BTF here\n")).as_deref(), Some("no BTF here"));
        assert_eq!(next_answer(&with_answers("no B")), None);
    }
}
