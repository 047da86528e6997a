//! How every answer begins: what it is, and that nobody is to keep it.

use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use hyper::{Response, StatusCode};

/// An answer that nobody is to keep, or to take for something else than it says.
pub(super) fn builder(status: StatusCode, content_type: &str) -> hyper::http::response::Builder {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, content_type)
        .header(CACHE_CONTROL, "no-store")
        .header(CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'")
        .header("X-Content-Type-Options", "nosniff")
        .header("Cross-Origin-Resource-Policy", "same-origin")
}

/// The builder fails on headers that are none; those here are constants.
pub(super) fn made(response: Result<Response<String>, hyper::http::Error>) -> Response<String> {
    response.unwrap_or_else(|_| {
        let mut response = Response::new(String::new());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}
