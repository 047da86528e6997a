//! Parsers of a request's headers for random input: hidden, and built only with the feature
//! `fuzzing`.

use crate::web::headers;

/// Whether a `Host` names this host.
pub fn is_this_host(host: &str) -> bool {
    headers::is_this_host(host)
}

/// Parses the values of `Accept`.
pub fn parse_accept<'a>(values: impl Iterator<Item = &'a str>) {
    headers::accepted_format(values);
}
