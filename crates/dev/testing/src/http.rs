//! Plain HTTP requests to servers on this host.
//!
//! Uses HTTP 1.0, so that a response comes in one piece and ends with its connection. Panics with
//! the received text if that is not a response.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// The response of an HTTP server.
#[derive(Debug)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// The headers, with their names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl HttpResponse {
    /// Returns the value of a header.
    ///
    /// # Panics
    ///
    /// If the response does not have it.
    pub fn header(&self, name: &str) -> &str {
        let header = self.headers.iter().find(|(other, _)| other == name);
        &header.unwrap_or_else(|| panic!("no {name} in {:?}", self.headers)).1
    }
}

/// Sends a request to the server at a port of this host. Returns `None` if nobody listens.
///
/// # Panics
///
/// If the server's answer is not an HTTP response.
pub fn ask(port: u16, method: &str, path: &str, headers: &[(&str, &str)]) -> Option<HttpResponse> {
    ask_with(port, method, path, headers, &[])
}

/// Sends a request with a body.
///
/// # Panics
///
/// If the server's answer is not an HTTP response.
pub fn ask_with(
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Option<HttpResponse> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("set a time");
    // A server that refuses a request may close the connection before all of it is sent. The
    // response shows that.
    let sent = send(&mut stream, port, method, path, headers, body);
    let mut text = String::new();
    // In that case the connection ends by a reset after the response.
    let read = stream.read_to_string(&mut text);
    assert!(read.is_ok() || text.contains("\r\n\r\n"), "no answer: {sent:?}, {read:?}: {text:?}");
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a status");
    let header = |line: &str| {
        let (name, value) = line.split_once(':').expect("a header");
        (name.to_ascii_lowercase(), value.trim().to_owned())
    };
    Some(HttpResponse { status, headers: lines.map(header).collect(), body: body.to_owned() })
}

/// Sends a request.
pub(crate) fn send(
    stream: &mut TcpStream,
    port: u16,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<()> {
    let mut head = format!("{method} {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n");
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").expect("memory");
    }
    if !body.is_empty() {
        write!(head, "Content-Length: {}\r\n", body.len()).expect("memory");
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

/// Returns a TCP port that nobody listens on.
///
/// # Panics
///
/// If there is none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind to a free port");
    listener.local_addr().expect("bound").port()
}
