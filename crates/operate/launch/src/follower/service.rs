//! The guard's service, which follows the command for a user without permission: see
//! `pagekeeper_streams::stream_request`.
//!
//! Invariants: this process itself is followed, and so is everything it starts or becomes. The
//! connection is closed when it becomes the command. Each wait is bounded. If nobody listens,
//! nothing is reported, since the library serves as well.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use pagekeeper_streams::stream_request::{LINE_BYTES_MAX, StreamAnswer, connect, request_line};
use pagekeeper_text::escaped;

use super::pages::FollowedPages;

/// Maximum wait for each line. The report waits 2 s for data that is still being written.
const SERVICE_ANSWER_TIMEOUT: Duration = Duration::from_secs(8);

/// The reason why the service does not follow a command, as the end of a sentence.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    /// It can't do what is wanted.
    #[error("")]
    Unasked,
    /// Nobody listens.
    #[error(", or a guard that takes requests ([streams] socket)")]
    Absent,
    #[error("; the guard does not follow it: {}", escaped(.0))]
    Refused(String),
}

/// The connection by which the service follows this process.
pub(crate) struct GuardService(UnixStream);

impl GuardService {
    /// Requests that this process and everything it starts from now on be followed.
    pub(super) fn ask(path: &Path) -> Result<Self, ServiceError> {
        let socket = connect(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => ServiceError::Absent,
            io::ErrorKind::WouldBlock => ServiceError::Refused("it is busy with other requests".to_owned()),
            _ => ServiceError::Refused(error.to_string()),
        })?;
        Self::request(socket)
    }

    fn request(socket: UnixStream) -> Result<Self, ServiceError> {
        let bounded = socket
            .set_read_timeout(Some(SERVICE_ANSWER_TIMEOUT))
            .and_then(|()| socket.set_write_timeout(Some(SERVICE_ANSWER_TIMEOUT)));
        // A service that refuses at once may have closed it already: its answer can still be read.
        let _ = bounded.is_ok().then(|| (&socket).write_all(request_line().as_bytes()));
        match bounded.ok().and_then(|()| next_answer(&socket)) {
            Some(StreamAnswer::Followed) => Ok(Self(socket)),
            Some(StreamAnswer::Refused(why)) => Err(ServiceError::Refused(why)),
            Some(StreamAnswer::Report(_)) | None => {
                Err(ServiceError::Refused("it does not answer, or is of another version".to_owned()))
            }
        }
    }

    /// Returns the page totals, or why they are unknown.
    pub(super) fn end(self) -> Result<FollowedPages, &'static str> {
        let _ = self.0.shutdown(Shutdown::Write);
        match next_answer(&self.0) {
            Some(StreamAnswer::Report(sums)) => {
                Ok(FollowedPages { by_guard: true, ..FollowedPages::of_sums(sums) })
            }
            _ => Err(
                "the guard that followed it has ended, or follows other streams now: the pages that it brought in since then stay",
            ),
        }
    }
}

fn next_answer(socket: &UnixStream) -> Option<StreamAnswer> {
    let mut line = Vec::new();
    // One line is in flight at a time.
    let most = u64::try_from(LINE_BYTES_MAX).unwrap_or(u64::MAX);
    BufReader::new(socket.take(most)).read_until(b'\n', &mut line).ok()?;
    StreamAnswer::parse(&line)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    /// Returns a client's result for these answers.
    fn with_answers(answers: &'static str) -> (Result<GuardService, ServiceError>, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = String::new();
            BufReader::new(&stream).read_line(&mut asked).unwrap();
            assert_eq!(asked, request_line());
            stream.write_all(answers.as_bytes()).unwrap();
        });
        (GuardService::ask(&path), directory)
    }

    #[test]
    fn a_busy_guard_is_not_waited_for_and_a_closed_answer_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let queued: Vec<UnixStream> = (0..8).map_while(|_| connect(&path).ok()).collect();
        assert!(queued.len() < 8, "the queue is never full");
        assert!(GuardService::ask(&path).err().unwrap().to_string().contains("it is busy"));

        let refused = StreamAnswer::Refused("too many".to_owned()).to_line();
        let client = queued.into_iter().next().unwrap();
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(refused.as_bytes()).unwrap();
        drop(server);
        let why = GuardService::request(client).err().unwrap().to_string();
        assert!(why.contains("too many"), "{why}");
    }

    fn why(answers: &'static str) -> String {
        with_answers(answers).0.err().unwrap().to_string()
    }

    #[test]
    fn each_refusal_is_reported_and_a_killed_guard_ends_the_wait() {
        let absent = GuardService::ask(Path::new("/nonexistent/streams.sock")).err().unwrap();
        assert!(matches!(absent, ServiceError::Absent));
        let refused = why("{\"version\":1,\"answer\":{\"refused\":\"too \\u001b many\"}}\n");
        assert_eq!(refused, "; the guard does not follow it: too \\x1b many");
        for answers in
            ["", "{\"version\":1,\"answer\":\"follo", "{\"version\":2,\"answer\":\"followed\"}\n", "\n"]
        {
            assert!(why(answers).contains("does not answer"), "{answers}");
        }
        let (followed, _directory) = with_answers("{\"version\":1,\"answer\":\"followed\"}\n");
        assert!(followed.unwrap().end().unwrap_err().contains("has ended"));
    }
}
