//! The address of the metrics server: a full address, or a port of the loopback interface.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Parses `9417`, `localhost:9417`, `192.0.2.7:9417` or `[::1]:9417`. Names are not resolved.
///
/// # Errors
///
/// A sentence that says what to give instead.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let loopback =
        |port: &str| port.parse().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    let address = if let Ok(address) = text.parse::<SocketAddr>() {
        address
    } else if let Ok(address) = loopback(text.strip_prefix("localhost:").unwrap_or(text)) {
        address
    } else if text.starts_with(':') {
        return Err(format!(
            "name the address, too: 127.0.0.1{text} for this host alone, 0.0.0.0{text} for all"
        ));
    } else {
        return Err(
            "an address and a port are wanted, as 127.0.0.1:9417, [::1]:9417, or 9417 alone".to_owned()
        );
    };
    if address.port() == 0 {
        return Err("port 0 is no port to be found at".to_owned());
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_for_this_host() {
        for (text, address) in [
            ("9417", "127.0.0.1:9417"),
            ("localhost:9417", "127.0.0.1:9417"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("0.0.0.0:9417", "0.0.0.0:9417"),
            ("[::1]:9417", "[::1]:9417"),
        ] {
            assert_eq!(parse_address(text).unwrap().to_string(), address);
        }
    }

    #[test]
    fn an_invalid_address_is_refused_with_the_fix() {
        for text in ["", "0", "65536", "host", "example.org:9417", "127.0.0.1", "::1", "127.0.0.1:"] {
            assert!(parse_address(text).is_err(), "{text}");
        }
        let error = parse_address(":9417").unwrap_err();
        assert!(error.contains("127.0.0.1:9417") && error.contains("0.0.0.0:9417"), "{error}");
    }
}
