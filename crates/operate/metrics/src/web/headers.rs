//! The headers of a request that decide about its response: `Host` (RFC 9110, section 7.2) and
//! `Accept` (section 12.5.1). Any text is valid here.

use std::net::IpAddr;

/// A format of the exposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpositionFormat {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// Prometheus' own text format 0.0.4.
    Plain,
}

/// Whether a `Host` names this host by an address, or as `localhost`. A remote page whose own name
/// resolves to this address can't send that.
pub(crate) fn is_this_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(address, _)| address),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// Returns `OpenMetrics` if the values of `Accept` want it at least as much as plain text.
/// Otherwise returns plain text, also if they want neither.
pub(crate) fn accepted_format<'a>(accept: impl Iterator<Item = &'a str>) -> ExpositionFormat {
    let (mut open, mut plain) = (0.0, 0.0);
    for range in accept.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut quality, mut version) = (1.0, None);
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => quality = value.trim().parse().unwrap_or(0.0),
                "version" => version = Some(value.trim().trim_matches('"')),
                _ => {}
            }
        }
        let best = |so_far: f64| so_far.max(quality);
        match (kind.as_str(), version) {
            ("application/openmetrics-text", None | Some("1.0.0" | "0.0.1")) => open = best(open),
            ("text/plain", None | Some("0.0.4")) | ("text/*", None) => plain = best(plain),
            _ => {}
        }
    }
    if open > 0.0 && open >= plain { ExpositionFormat::OpenMetrics } else { ExpositionFormat::Plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_best_encoding_they_accept() {
        for (accept, format) in [
            // Prometheus 2.42, and 3.
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                ExpositionFormat::OpenMetrics,
            ),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,*/*;q=0.2",
                ExpositionFormat::OpenMetrics,
            ),
            ("application/openmetrics-text; version=\"1.0.0\"; charset=utf-8", ExpositionFormat::OpenMetrics),
            ("application/openmetrics-text;version=2.0.0", ExpositionFormat::Plain),
            ("application/openmetrics-text;q=0, text/plain", ExpositionFormat::Plain),
            ("application/openmetrics-text;q=0.3, text/plain;version=0.0.4;q=0.6", ExpositionFormat::Plain),
            ("text/html,application/xhtml+xml,*/*;q=0.8", ExpositionFormat::Plain),
            ("*/*", ExpositionFormat::Plain),
            ("", ExpositionFormat::Plain),
            (";;,q=,application/openmetrics-text;q=x", ExpositionFormat::Plain),
        ] {
            assert_eq!(accepted_format([accept].into_iter()), format, "{accept}");
        }
        assert_eq!(accepted_format(std::iter::empty()), ExpositionFormat::Plain);
        let in_two = ["text/plain;q=0.5", "application/openmetrics-text"];
        assert_eq!(accepted_format(in_two.into_iter()), ExpositionFormat::OpenMetrics);
    }
}
