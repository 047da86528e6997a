//! The common headers of all responses: content type, and no caching.

use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use hyper::{Response, StatusCode};

/// Creates a response that is not cached, and whose content type is not guessed.
pub(super) fn builder(status: StatusCode, content_type: &str) -> hyper::http::response::Builder {
    Response::builder()
        .status(status)
        .header(CONTENT_TYPE, content_type)
        .header(CACHE_CONTROL, "no-store")
        .header(CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'")
        .header("X-Content-Type-Options", "nosniff")
        .header("Cross-Origin-Resource-Policy", "same-origin")
}

/// Unwraps a response. The builder fails only on invalid headers; those here are constants.
pub(super) fn made(response: Result<Response<String>, hyper::http::Error>) -> Response<String> {
    response.unwrap_or_else(|_| {
        let mut response = Response::new(String::new());
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        response
    })
}
