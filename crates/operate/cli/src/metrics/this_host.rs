//! Checks whether a client's `Host` header (RFC 9110, section 7.2) names this host.

use std::net::IpAddr;

/// Whether it does so by an address, or as `localhost`: a remote page whose own name resolves to this address
/// can't send that.
pub(super) fn is_this_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(rest, |(address, _)| address),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}
