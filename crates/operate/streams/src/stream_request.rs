//! The protocol between a user's `pagekeeper run` and the guard on the socket for streams.
//!
//! The user's process connects and sends one line, which asks the guard to follow this very process
//! and its children. The guard answers with one line. Once the process has shut down its sending
//! side, the guard sends a second line with the totals. Lines are JSON of at most
//! [`LINE_BYTES_MAX`] bytes, with the protocol's version. They name no process, file or user: the
//! kernel identifies the peer.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use pagekeeper_policy::stream_pages::StreamTotals;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

/// The path of the guard's socket, where `pagekeeper run` looks for it.
pub const STREAM_SOCKET: &str = "/run/pagekeeper-guard/streams.sock";
/// The length limit of a line, in bytes, including its end.
pub const LINE_BYTES_MAX: usize = 1024;
/// The version of the protocol.
const PROTOCOL_VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestLine {
    version: u32,
    follow: Followee,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Followee {
    #[serde(rename = "self")]
    Itself,
}

#[derive(Serialize, Deserialize)]
struct AnswerLine {
    version: u32,
    answer: StreamAnswer,
}

/// An answer of the guard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamAnswer {
    /// The process is followed.
    Followed,
    /// It is not followed; a sentence says why.
    Refused(String),
    /// It has ended its work; the totals of its pages.
    Report(StreamSums),
}

/// The fate of the pages that a request's processes brought in, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamSums {
    /// Brought in; a page that was brought in twice counts twice.
    pub added_bytes: u64,
    /// Released.
    pub released_bytes: u64,
    /// Used by other processes since, and left in the page cache for them.
    pub used_by_others_bytes: u64,
    /// Dropped by the kernel, or together with their file.
    pub gone_bytes: u64,
    /// Still in the page cache.
    pub left_bytes: u64,
    /// Whether some of the processes still run, and are followed.
    pub goes_on: bool,
}

impl StreamSums {
    /// Converts totals; `goes_on` as in the field.
    pub fn of(totals: StreamTotals, goes_on: bool) -> Self {
        Self {
            added_bytes: totals.added,
            released_bytes: totals.released,
            used_by_others_bytes: totals.handed_on,
            gone_bytes: totals.gone,
            left_bytes: totals.resident,
            goes_on,
        }
    }
}

/// Connects to the service without waiting for it. Fails with [`io::ErrorKind::WouldBlock`] while
/// its queue of connections is full.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Returns the request line.
pub fn request_line() -> String {
    line(&RequestLine { version: PROTOCOL_VERSION, follow: Followee::Itself })
}

/// Checks a request line. Fails with a sentence.
pub fn check_request(line: &[u8]) -> Result<(), String> {
    let request = line.strip_suffix(b"\n").and_then(|line| serde_json::from_slice(line).ok());
    match request {
        Some(RequestLine { version: PROTOCOL_VERSION, follow: Followee::Itself }) => Ok(()),
        Some(RequestLine { version, .. }) => {
            Err(format!("the guard knows version {PROTOCOL_VERSION} of requests, and not version {version}"))
        }
        None => Err("the request is none that this version of the guard knows".to_owned()),
    }
}

impl StreamAnswer {
    /// Returns the answer as a line.
    pub fn to_line(&self) -> String {
        line(&AnswerLine { version: PROTOCOL_VERSION, answer: self.clone() })
    }

    /// Parses an answer line; `None` if it is not one of this version.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let line: AnswerLine = serde_json::from_slice(line.strip_suffix(b"\n")?).ok()?;
        (line.version == PROTOCOL_VERSION).then_some(line.answer)
    }
}

fn line(content: &impl Serialize) -> String {
    // It contains only strings and numbers, which JSON can always write.
    serde_json::to_string(content).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_are_written() {
        let sums = StreamSums { added_bytes: u64::MAX, left_bytes: 7, ..StreamSums::default() };
        for answer in [
            StreamAnswer::Followed,
            StreamAnswer::Refused("a \"word\"\nand more".to_owned()),
            StreamAnswer::Report(sums),
        ] {
            let line = answer.to_line();
            assert!(line.len() <= LINE_BYTES_MAX && line.matches('\n').count() == 1, "{line}");
            assert_eq!(StreamAnswer::parse(line.as_bytes()), Some(answer));
        }
        assert_eq!(check_request(request_line().as_bytes()), Ok(()));
    }

    #[test]
    fn other_requests_are_refused() {
        for line in [
            "",
            "\n",
            "{\"version\":1,\"follow\":\"self\"}",
            "{\"version\":1,\"follow\":\"4711\"}\n",
            "{\"version\":1,\"follow\":\"self\",\"pid\":1}\n",
            "{\"version\":1}\n",
        ] {
            assert!(check_request(line.as_bytes()).unwrap_err().contains("none that"), "{line:?}");
        }
        let later = check_request(b"{\"version\":2,\"follow\":\"self\"}\n").unwrap_err();
        assert!(later.contains("not version 2"), "{later}");
    }
}
