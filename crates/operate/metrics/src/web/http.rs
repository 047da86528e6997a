//! HTTP/1: parses the head of a request and formats its response.
//!
//! A connection has one request, and the response says so (`Connection: close`). Request bodies are
//! not read. httparse parses the heads; a head that is too large or not HTTP gets an error as its
//! response.

use std::borrow::Cow;
use std::time::SystemTime;

use httparse::{Request, Status};

/// Maximum size of a request's head.
pub(crate) const HEAD_BYTES_MAX: usize = 16 << 10;
/// Maximum number of a request's headers.
const HEADERS_MAX: usize = 100;

/// A response: its code and reason, its body, and the headers in which responses differ.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: &'static str,
    pub(crate) content_type: &'static str,
    /// The `Content-Security-Policy`.
    pub(crate) policy: &'static str,
    /// A further header with its line end, or nothing.
    pub(crate) header: &'static str,
    pub(crate) body: Cow<'static, str>,
}

impl HttpResponse {
    /// Creates a successful response.
    pub(crate) fn ok(content_type: &'static str, body: impl Into<Cow<'static, str>>) -> Self {
        let policy = "default-src 'none'; frame-ancestors 'none'";
        Self { status: "200 OK", content_type, policy, header: "", body: body.into() }
    }

    /// Creates a response with a sentence.
    pub(crate) fn text(status: &'static str, body: impl Into<Cow<'static, str>>) -> Self {
        Self { status, ..Self::ok("text/plain; charset=utf-8", body) }
    }

    /// Formats it. It is not cached, and its content type is not guessed.
    fn into_bytes(self, with_body: bool) -> Vec<u8> {
        let Self { status, content_type, policy, header, body } = self;
        let (length, date) = (body.len(), httpdate::fmt_http_date(SystemTime::now()));
        let head = format!(
            "HTTP/1.1 {status}\r\n\
             Connection: close\r\n\
             Date: {date}\r\n\
             Content-Type: {content_type}\r\n\
             Content-Length: {length}\r\n\
             Cache-Control: no-store\r\n\
             Content-Security-Policy: {policy}\r\n\
             X-Content-Type-Options: nosniff\r\n\
             Cross-Origin-Resource-Policy: same-origin\r\n\
             {header}\r\n"
        );
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(if with_body { body.as_bytes() } else { &[] });
        bytes
    }
}

/// Returns the response that `answer` makes, once the request's head is complete.
pub(crate) fn respond(head: &[u8], answer: impl FnOnce(&Request<'_, '_>) -> HttpResponse) -> Option<Vec<u8>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = Request::new(&mut headers);
    let response = match request.parse(head) {
        Ok(Status::Complete(_)) => answer(&request),
        Ok(Status::Partial) if head.len() < HEAD_BYTES_MAX => return None,
        Ok(Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            HttpResponse::text("431 Request Header Fields Too Large", "The request's head is too large.\n")
        }
        Err(_) => HttpResponse::text("400 Bad Request", "This is not an HTTP request.\n"),
    };
    Some(response.into_bytes(request.method != Some("HEAD")))
}

/// Returns the path of a request's target. The target may be a whole URL (RFC 9112, section 3.2.2).
pub(crate) fn path<'a>(request: &Request<'_, 'a>) -> &'a str {
    let target = request.path.unwrap_or_default();
    let of_url = |rest: &'a str| rest.find('/').map_or("/", |at| &rest[at..]);
    let target = target.strip_prefix("http://").map_or(target, of_url);
    target.split('?').next().unwrap_or_default()
}

/// Returns the parameters behind the path of a request, as they are encoded.
pub(crate) fn parameters<'a>(request: &Request<'_, 'a>) -> impl Iterator<Item = &'a str> {
    let query = request.path.and_then(|target| target.split_once('?')).map_or("", |(_, query)| query);
    query.split('&')
}

/// Returns the values of a header; one that is not UTF-8 is empty.
pub(crate) fn values<'a>(request: &'a Request<'_, '_>, name: &'a str) -> impl Iterator<Item = &'a str> {
    let named = request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
    #[allow(clippy::disallowed_methods, reason = "of a client, and it hides nothing else")]
    named.map(|header| std::str::from_utf8(header.value).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(head: &str) -> Option<String> {
        let echo = |request: &Request<'_, '_>| HttpResponse::ok("text/plain", path(request).to_owned());
        respond(head.as_bytes(), echo).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn a_request_is_answered_once_its_head_is_complete() {
        assert_eq!(response("GET /metrics HTTP/1.1\r\nHost: a\r\n"), None);
        for (target, path) in [
            ("/metrics", "/metrics"),
            ("/metrics?a=/b", "/metrics"),
            ("http://localhost:9417/metrics", "/metrics"),
            ("http://localhost", "/"),
        ] {
            let response = response(&format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\nbody")).unwrap();
            assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
            assert!(response.ends_with(&format!("\r\n\r\n{path}")), "{response}");
        }
        let head = response("HEAD /metrics HTTP/1.1\r\n\r\n").unwrap();
        assert!(head.contains("\r\nContent-Length: 8\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    }

    #[test]
    fn a_head_that_is_too_large_or_not_http_is_refused() {
        let status = |head: &str| response(head).unwrap().lines().next().unwrap().to_owned();
        let long = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(HEAD_BYTES_MAX));
        assert_eq!(status(&long), "HTTP/1.1 431 Request Header Fields Too Large");
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(status(&many), "HTTP/1.1 431 Request Header Fields Too Large");
        assert_eq!(status("\u{16}\u{3}\u{1}TLS\r\n\r\n"), "HTTP/1.1 400 Bad Request");
    }
}
