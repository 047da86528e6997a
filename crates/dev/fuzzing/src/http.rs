//! What clients of the metrics write into their heads, as far as it is read here: any text is a host or none, and a form of the
//! exposition. The heads themselves are read by hyper.
//!
//! The first line is a `Host`, each other an `Accept`.

#[path = "../../../operate/cli/src/metrics/accept.rs"]
mod accept;
#[path = "../../../operate/cli/src/metrics/format.rs"]
#[allow(dead_code)]
mod format;
#[path = "../../../operate/cli/src/metrics/this_host.rs"]
mod this_host;

/// Reads an input.
pub(crate) fn fuzz_one(data: &[u8]) {
    let mut lines = crate::text(data).split('\n');
    let host = lines.next().unwrap_or_default();
    if this_host::is_this_host(host) {
        let named = host.to_ascii_lowercase().starts_with("localhost");
        assert!(named || host.contains(|c: char| c.is_ascii_hexdigit() || c == ':'), "{host:?}");
    }
    accept::wanted(lines);
}

/// What Prometheus 2.42 writes.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let accept = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                  text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    ["localhost:9417", "[::1]:9417"].map(|host| format!("{host}\n{accept}").into_bytes()).to_vec()
}
