//! The page: one self-contained file. Its Content-Security-Policy names exactly its own style and script, so that
//! nothing else could run in it. It contacts only the guard that served it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use hyper::{Response, StatusCode};
use sha2::{Digest as _, Sha256};

use super::answer::{builder, made};

const PAGE: &str = include_str!("page.html");

/// The page, ready to send.
pub(super) struct Page {
    policy: HeaderValue,
}

impl Page {
    pub(super) fn new() -> Self {
        let policy = format!(
            "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'",
            hash(inside("style")),
            hash(inside("script")),
        );
        // Base64 and these words are a valid header value.
        Self { policy: policy.parse().unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'")) }
    }

    /// Returns the response with the page.
    pub(super) fn response(&self) -> Response<String> {
        let mut response = made(builder(StatusCode::OK, "text/html; charset=utf-8").body(PAGE.to_owned()));
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, self.policy.clone());
        response
    }
}

/// Returns the contents of the only element with this name.
fn inside(name: &str) -> &'static str {
    let after = |text: &'static str, tag: &str| text.split_once(tag).map_or("", |(_, rest)| rest);
    let rest = after(PAGE, &format!("<{name}>"));
    rest.split_once(&format!("</{name}>")).map_or("", |(inside, _)| inside)
}

fn hash(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_all_in_itself() {
        for name in ["style", "script"] {
            assert_eq!(PAGE.matches(&format!("<{name}")).count(), 1);
            assert!(inside(name).len() > 1000);
        }
        for outside in ["src=", "@import", "url(", "style=", "onclick", "innerHTML", "eval("] {
            assert!(!PAGE.contains(outside), "{outside}");
        }
        let names = PAGE.matches("http").count();
        assert_eq!(names, PAGE.matches("http://www.w3.org/2000/svg").count(), "but for the name of SVG");
    }

    #[test]
    fn the_policy_names_its_style_and_script() {
        let response = Page::new().response();
        let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
        // sha256sum of an empty input, in Base64.
        assert_eq!(hash(""), "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='");
    }
}
