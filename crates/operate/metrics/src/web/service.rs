//! The content at each path: `/` for people, `/data.json` for its script, `/metrics` and
//! `/healthz`. Read-only.
//!
//! Invariants:
//! 1. It only copies the known figures, so no request can delay the guard.
//! 2. On a loopback address it answers only requests for this host: a remote page whose name
//!    resolves to this address (DNS rebinding) is refused.
//! 3. The page is one self-contained file. Its policy names exactly its own style and script, so
//!    that nothing else can run in it, and it contacts only the guard that served it.

use std::net::SocketAddr;
use std::sync::Arc;

use httparse::Request;

use pagekeeper_kernel::process::OwnCost;

use crate::exposition_text::ExpositionText;
use crate::state::MetricsState;
use crate::web::headers::{ExpositionFormat, accepted_format, is_this_host};
use crate::web::http::{HttpResponse, parameters, path, values};
use crate::{exposition, page_data};

const PAGE_HTML: &str = include_str!("../page.html");
/// The page's policy. Whoever changes its style or script changes the hashes: the tests name the
/// right ones.
const PAGE_POLICY: &str = "default-src 'none'; \
                           style-src 'sha256-SVd33Jb5t+0sK3NV6KYC3kQaJ9b/xdYK074LH2Z9F+Q='; \
                           script-src 'sha256-Iy/w05j59RLwlERSEXyjy76XPpg9LwPpq9kfXS2udUY='; \
                           connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The source of all responses.
pub(crate) struct MetricsService {
    state: Arc<MetricsState>,
    /// Whether only requests for this host are answered.
    is_local: bool,
}

impl MetricsService {
    /// Creates the service at an address.
    pub(crate) fn new(state: Arc<MetricsState>, address: SocketAddr) -> Self {
        // Also as an IPv4-mapped IPv6 address.
        Self { state, is_local: address.ip().to_canonical().is_loopback() }
    }

    /// Responds to a request.
    pub(crate) fn answer(&self, request: &Request<'_, '_>) -> HttpResponse {
        // A request without `Host` does not come from a browser.
        if self.is_local && !values(request, "host").all(is_this_host) {
            return HttpResponse::text(
                "421 Misdirected Request",
                "This is served to its own host only: ask for it by its address, or as localhost.\n",
            );
        }
        let content: fn(&Self, &Request<'_, '_>) -> HttpResponse = match path(request) {
            "/" => |_, _| HttpResponse {
                policy: PAGE_POLICY,
                ..HttpResponse::ok("text/html; charset=utf-8", PAGE_HTML)
            },
            "/data.json" => {
                |service, _| HttpResponse::ok("application/json", page_data::write(&service.state.figures()))
            }
            "/metrics" => Self::metrics,
            "/healthz" => |service, _| service.health(),
            _ => {
                return HttpResponse::text(
                    "404 Not Found",
                    "Nothing is here. There are /, /metrics and /healthz.\n",
                );
            }
        };
        if !matches!(request.method, Some("GET" | "HEAD")) {
            let refusal = "Only GET and HEAD: nothing can be changed here.\n";
            return HttpResponse {
                header: "Allow: GET, HEAD\r\n",
                ..HttpResponse::text("405 Method Not Allowed", refusal)
            };
        }
        content(self, request)
    }

    fn metrics(&self, request: &Request<'_, '_>) -> HttpResponse {
        let format = accepted_format(values(request, "accept"));
        let content_type = match format {
            ExpositionFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            ExpositionFormat::Plain => "text/plain; version=0.0.4; charset=utf-8",
        };
        // By a parameter, as node_exporter takes it.
        let is_host_excluded = parameters(request)
            .any(|parameter| ["exclude[]=host", "exclude%5B%5D=host"].contains(&parameter));
        let excluded: &[_] = if is_host_excluded { &exposition::NODE_EXPORTER_FAMILIES } else { &[] };
        let text = ExpositionText::new(format).without(excluded);
        let body = exposition::write(&self.state.figures(), OwnCost::read(), text);
        HttpResponse { header: "Vary: Accept\r\n", ..HttpResponse::ok(content_type, body) }
    }

    fn health(&self) -> HttpResponse {
        match self.state.figures().stuck() {
            None => HttpResponse::text("200 OK", "ok\n"),
            Some(since) => HttpResponse::text(
                "503 Service Unavailable",
                format!("The guard has not finished a tick for {} s.\n", since.as_secs()),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use pagekeeper_kernel::pressure::SysRoots;
    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::host::HostFigures;

    fn service(address: &str) -> MetricsService {
        let state = Arc::new(MetricsState::new(false, Duration::from_secs(60)));
        MetricsService::new(state, address.parse().unwrap())
    }

    fn ask_at(service: &MetricsService, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpResponse {
        let mut headers: Vec<_> =
            headers.iter().map(|(name, value)| httparse::Header { name, value: value.as_bytes() }).collect();
        let mut request = Request::new(&mut headers);
        (request.method, request.path) = (Some(method), Some(path));
        service.answer(&request)
    }

    fn ask(method: &str, path: &str, headers: &[(&str, &str)]) -> HttpResponse {
        ask_at(&service("127.0.0.1:1"), method, path, headers)
    }

    #[test]
    fn each_path_answers_with_its_content_type() {
        for (path, content_type) in [
            ("/", "text/html; charset=utf-8"),
            ("/data.json", "application/json"),
            ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
            ("/healthz", "text/plain; charset=utf-8"),
        ] {
            let response = ask("GET", path, &[]);
            assert_eq!((response.status, response.content_type), ("200 OK", content_type), "{path}");
            assert!(!response.body.is_empty());
        }
        let open = ask("GET", "/metrics", &[("accept", "application/openmetrics-text;version=1.0.0")]);
        assert_eq!(open.content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    }

    #[test]
    fn other_paths_and_methods_are_refused() {
        assert_eq!(ask("GET", "/metrics/", &[]).status, "404 Not Found");
        assert_eq!(ask("POST", "/x", &[]).status, "404 Not Found");
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            let response = ask(method, "/metrics", &[]);
            assert_eq!(
                (response.status, response.header),
                ("405 Method Not Allowed", "Allow: GET, HEAD\r\n")
            );
        }
    }

    #[test]
    fn families_of_node_exporter_are_left_out_on_request() {
        let service = service("127.0.0.1:1");
        service.state.host_sampled(&HostFigures::read(&SysRoots::default()));
        let body = |path| ask_at(&service, "GET", path, &[]).body;
        let shared = "pagekeeper_host_dirty_bytes ";
        assert!(body("/metrics").contains(shared) && body("/metrics?exclude[]=disks").contains(shared));
        for path in ["/metrics?exclude[]=host", "/metrics?a=b&exclude%5B%5D=host"] {
            let text = body(path);
            assert!(!text.contains(shared) && text.contains("pagekeeper_host_memory_bytes "), "{text}");
        }
    }

    #[test]
    fn a_foreign_name_for_this_host_is_refused() {
        for (host, status) in [
            ("127.0.0.1:9417", "200 OK"),
            ("[::1]:9417", "200 OK"),
            ("LOCALHOST", "200 OK"),
            ("evil.example:9417", "421 Misdirected Request"),
            ("localhost.evil.example", "421 Misdirected Request"),
            ("\u{e9}", "421 Misdirected Request"),
        ] {
            assert_eq!(ask("GET", "/data.json", &[("Host", host)]).status, status, "{host}");
        }
        let everywhere = service("0.0.0.0:1");
        assert_eq!(ask_at(&everywhere, "GET", "/metrics", &[("host", "db7.example")]).status, "200 OK");
    }

    #[test]
    fn loopback_is_known_by_its_address() {
        for (address, is_local) in [
            ("127.0.0.1:1", true),
            ("127.9.9.9:1", true),
            ("[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
            ("192.0.2.7:1", false),
        ] {
            assert_eq!(service(address).is_local, is_local, "{address}");
        }
    }

    #[test]
    fn a_guard_that_hangs_is_not_healthy() {
        let state = Arc::new(MetricsState::new(false, Duration::ZERO));
        std::thread::sleep(Duration::from_millis(2));
        let service = MetricsService { state, is_local: true };
        assert_eq!(ask_at(&service, "GET", "/healthz", &[]).status, "503 Service Unavailable");
    }

    /// Returns the contents of the only element with this name.
    fn inside(name: &str) -> &'static str {
        let (_, rest) = PAGE_HTML.split_once(&format!("<{name}>")).unwrap();
        rest.split_once(&format!("</{name}>")).unwrap().0
    }

    #[test]
    fn the_page_is_all_in_itself() {
        for name in ["style", "script"] {
            assert_eq!(PAGE_HTML.matches(&format!("<{name}")).count(), 1);
            assert!(inside(name).len() > 1000);
        }
        for outside in ["src=", "@import", "url(", "style=", "onclick", "innerHTML", "eval("] {
            assert!(!PAGE_HTML.contains(outside), "{outside}");
        }
        let names = PAGE_HTML.matches("http").count();
        assert_eq!(names, PAGE_HTML.matches("http://www.w3.org/2000/svg").count(), "but for the name of SVG");
    }

    #[test]
    fn the_policy_names_its_style_and_script() {
        for name in ["style", "script"] {
            let hash = STANDARD.encode(Sha256::digest(inside(name).as_bytes()));
            let right = format!("{name}-src 'sha256-{hash}';");
            assert!(PAGE_POLICY.contains(&right), "{PAGE_POLICY} has not {right}");
        }
        assert!(PAGE_POLICY.starts_with("default-src 'none'; "));
    }
}
