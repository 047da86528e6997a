//! The metrics server: HTTP and the content at each path.

pub(crate) mod headers;
pub(crate) mod http;
pub(crate) mod listen_address;
pub(crate) mod server;
pub(crate) mod service;
