//! The exposition formats, with their HTTP names.

/// A format of the exposition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// `OpenMetrics` 1.0.
    OpenMetrics,
    /// Prometheus' own text format.
    Plain,
}

impl Format {
    /// Returns the `Content-Type` header.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}
