//! Headers that clients of the metrics send, as far as this project parses them. Any text names
//! this host or not, and selects a format of the exposition. httparse parses the headers
//! themselves.
//!
//! The first line is a `Host`, each other line an `Accept`.

use pagekeeper_metrics::fuzzing::{is_this_host, parse_accept};

/// Runs one input.
pub(crate) fn fuzz_one(data: &[u8]) {
    let mut lines = crate::text(data).split('\n');
    let host = lines.next().unwrap_or_default();
    if is_this_host(host) {
        let named = host.to_ascii_lowercase().starts_with("localhost");
        assert!(named || host.contains(|c: char| c.is_ascii_hexdigit() || c == ':'), "{host:?}");
    }
    parse_accept(lines);
}

/// Returns the headers that Prometheus 2.42 sends.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let accept = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                  text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    ["localhost:9417", "[::1]:9417"].map(|host| format!("{host}\n{accept}").into_bytes()).to_vec()
}
