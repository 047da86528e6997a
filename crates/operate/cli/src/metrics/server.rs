//! The HTTP server: `/`, `/data.json`, `/metrics`, `/healthz`; read-only.
//!
//! Invariants:
//! 1. Its one thread never delays the guard: it only copies the known state.
//! 2. No client can make it grow: each connection has a limited request head, a time limit for that, and a limited
//!    lifetime, and the number of connections is limited ([`Connections`]). Request bodies are not read.
//! 3. No client can keep another out: without a free slot, a new client replaces the one that was silent longest,
//!    but none that has begun a health request.
//! 4. On a loopback address it answers only requests for this host: a remote page whose name resolves to this
//!    address (DNS rebinding) is refused.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, HOST, VARY};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use pagekeeper_kernel::pressure::SysRoots;
use tokio::net::TcpStream;

use super::accept::wanted;
use super::answer::{builder, made};
use super::connections::{Connections, Entry};
use super::exposition;
use super::heard::Heard;
use super::host::Host;
use super::own::Own;
use super::page::Page;
use super::state::{MetricsState, POINT_EVERY};
use super::this_host::is_this_host;

/// Time limit of a request's head, and of an idle connection.
const HEAD_WITHIN: Duration = Duration::from_secs(5);
/// Lifetime of a connection, and the time for its last response after that.
const LIFE: Duration = Duration::from_secs(60);
const LAST_ANSWER: Duration = Duration::from_secs(10);
/// Maximum size of a request's head in bytes.
const MAX_HEAD: usize = 16 << 10;

/// The data that responses are made from.
struct MetricsService {
    state: Arc<MetricsState>,
    page: Page,
    /// Whether only requests for this host are answered.
    local: bool,
}

/// Serves until the process ends.
pub(super) fn serve(
    listener: TcpListener,
    address: SocketAddr,
    state: Arc<MetricsState>,
) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    let service = Arc::new(MetricsService { state, page: Page::new(), local: is_loopback(address) });
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::spawn(sample(Arc::clone(&service.state)));
        let connections = Arc::new(Connections::default());
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let entry = connections.enter();
                    let number = entry.number();
                    let task = tokio::spawn(attend(stream, Arc::clone(&service), entry));
                    connections.can_end(number, task.abort_handle());
                    // Its request may already be there: it is answered before the next connection.
                    tokio::task::yield_now().await;
                }
                // Too many open files, or the client has left: neither ends the server.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    })
}

/// Whether only this host can connect there, including IPv4-mapped IPv6 addresses.
fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Reads the host's figures periodically: a few files of `/proc`, a millisecond or two.
async fn sample(state: Arc<MetricsState>) {
    let mut clock = tokio::time::interval(POINT_EVERY);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        state.host_sampled(&Host::read(&SysRoots::default()));
    }
}

async fn attend(stream: TcpStream, service: Arc<MetricsService>, entry: Entry) {
    let entry = Arc::new(entry);
    let stream = Heard::new(stream, Arc::clone(&entry));
    let service = service_fn(|request| {
        let response = answer(&request, &service);
        entry.answers(response.body().len());
        async { Ok::<_, Infallible>(response) }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), service)
    );
    // The way a connection ends is the client's concern.
    if tokio::time::timeout(LIFE, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _ = tokio::time::timeout(LAST_ANSWER, connection).await;
    }
}

fn answer(request: &Request<Incoming>, service: &MetricsService) -> Response<String> {
    respond(request.method(), request.uri().path(), request.headers(), service)
}

fn respond(method: &Method, path: &str, headers: &HeaderMap, service: &MetricsService) -> Response<String> {
    if service.local && !asks_for_this_host(headers) {
        return text(
            StatusCode::MISDIRECTED_REQUEST,
            "This is served to its own host only: ask for it by its address, or as localhost.\n",
        );
    }
    if !matches!(path, "/" | "/data.json" | "/metrics" | "/healthz") {
        return text(StatusCode::NOT_FOUND, "Nothing is here. There are /, /metrics and /healthz.\n");
    }
    if *method != Method::GET && *method != Method::HEAD {
        let mut response =
            text(StatusCode::METHOD_NOT_ALLOWED, "Only GET and HEAD: nothing can be changed here.\n");
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/" => service.page.response(),
        "/data.json" => data(service),
        "/metrics" => metrics(headers, service),
        _ => health(service),
    }
}

fn metrics(headers: &HeaderMap, service: &MetricsService) -> Response<String> {
    let accept = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = wanted(accept);
    match exposition::write(service.state.known(), Own::read(), format) {
        Ok(body) => {
            let response = builder(StatusCode::OK, format.content_type()).header(VARY, "Accept");
            made(response.body(body))
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
    }
}

fn data(service: &MetricsService) -> Response<String> {
    match super::data::write(&service.state) {
        Ok(body) => made(builder(StatusCode::OK, "application/json").body(body)),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
    }
}

fn health(service: &MetricsService) -> Response<String> {
    match service.state.known().stuck() {
        None => text(StatusCode::OK, "ok\n"),
        Some(since) => text(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!("The guard has not finished a tick for {} s.\n", since.as_secs()),
        ),
    }
}

fn text(status: StatusCode, body: &str) -> Response<String> {
    made(builder(status, "text/plain; charset=utf-8").body(body.to_owned()))
}

/// Whether a request names this host by an address, or as `localhost`. A request without `Host` does not come from
/// a browser.
fn asks_for_this_host(headers: &HeaderMap) -> bool {
    headers.get_all(HOST).iter().all(|host| host.to_str().is_ok_and(is_this_host))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use hyper::header::{CACHE_CONTROL, CONTENT_TYPE};

    use super::*;

    fn service() -> MetricsService {
        let state = Arc::new(MetricsState::new(false, Duration::from_secs(60)));
        MetricsService { state, page: Page::new(), local: true }
    }

    fn ask(method: &Method, path: &str, headers: &[(hyper::header::HeaderName, &str)]) -> Response<String> {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        respond(method, path, &headers, &service())
    }

    #[test]
    fn each_place_answers_as_what_it_is() {
        for (path, content_type) in [
            ("/", "text/html; charset=utf-8"),
            ("/data.json", "application/json"),
            ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
            ("/healthz", "text/plain; charset=utf-8"),
        ] {
            let response = ask(&Method::GET, path, &[]);
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            assert_eq!(response.headers()[CONTENT_TYPE], content_type);
            assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
            assert!(!response.body().is_empty());
        }
        let open = ask(&Method::GET, "/metrics", &[(ACCEPT, "application/openmetrics-text;version=1.0.0")]);
        assert_eq!(
            open.headers()[CONTENT_TYPE],
            "application/openmetrics-text; version=1.0.0; charset=utf-8"
        );
    }

    #[test]
    fn there_is_nothing_else_and_nothing_to_change() {
        assert_eq!(ask(&Method::GET, "/metrics/", &[]).status(), StatusCode::NOT_FOUND);
        assert_eq!(ask(&Method::POST, "/x", &[]).status(), StatusCode::NOT_FOUND);
        for method in [Method::POST, Method::PUT, Method::DELETE, Method::OPTIONS] {
            let response = ask(&method, "/metrics", &[]);
            assert_eq!(response.status(), StatusCode::METHOD_NOT_ALLOWED);
            assert_eq!(response.headers()[ALLOW], "GET, HEAD");
        }
    }

    #[test]
    fn a_foreign_name_for_this_host_is_refused() {
        for (host, status) in [
            ("127.0.0.1:9417", StatusCode::OK),
            ("[::1]:9417", StatusCode::OK),
            ("LOCALHOST", StatusCode::OK),
            ("evil.example:9417", StatusCode::MISDIRECTED_REQUEST),
            ("localhost.evil.example", StatusCode::MISDIRECTED_REQUEST),
        ] {
            assert_eq!(ask(&Method::GET, "/data.json", &[(HOST, host)]).status(), status, "{host}");
        }
        let everywhere = MetricsService { local: false, ..service() };
        let headers = [(HOST, "db7.example".parse().unwrap())].into_iter().collect();
        assert_eq!(respond(&Method::GET, "/metrics", &headers, &everywhere).status(), StatusCode::OK);
    }

    #[test]
    fn loopback_is_known_by_its_address() {
        for (address, local) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("192.0.2.7:1", false),
        ] {
            assert_eq!(is_loopback(address.parse().unwrap()), local, "{address}");
        }
    }

    /// Creates a server on its own port, which serves until the tests end.
    fn served() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(MetricsState::new(false, Duration::from_secs(600)));
        std::thread::spawn(move || serve(listener, address, state));
        address
    }

    /// Returns the first line of the response to a request on its own connection.
    fn asked(address: SocketAddr, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    #[test]
    fn idle_slow_and_unreading_clients_keep_nobody_out() {
        let address = served();
        let connect = || std::net::TcpStream::connect(address).unwrap();
        let mut idle: Vec<_> = (0..100).map(|_| connect()).collect();
        assert_eq!(asked(address, "/healthz"), "HTTP/1.1 200 OK");
        // Endless heads, sent a byte at a time, and responses that nobody reads.
        for stream in &mut idle {
            let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ");
        }
        let began = std::time::Instant::now();
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
            let waits = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
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
        let connect = || std::net::TcpStream::connect(address).unwrap();
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
        // It has seen them all when it answers a later one.
        assert_eq!(asked(address, "/metrics"), "HTTP/1.1 200 OK");
        health.write_all(b"alhost\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        health.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer:?}");
        drop(storm);
    }

    #[test]
    fn a_guard_that_hangs_is_not_healthy() {
        let state = Arc::new(MetricsState::new(false, Duration::ZERO));
        std::thread::sleep(Duration::from_millis(2));
        let service = MetricsService { state, ..service() };
        let response = respond(&Method::GET, "/healthz", &HeaderMap::new(), &service);
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
