//! The pace of streams, in configurations and on the command line.

use pagekeeper_policy::stream_pace::StreamPace;
use pagekeeper_text::parse_size;

/// Parses how fast streams may use a disk, for clap's `value_parser` and configurations: `auto`,
/// `off`, `idle`, or a size per second, such as `64M` or `64M/s`.
pub fn parse_pace(text: &str) -> Result<StreamPace, String> {
    let bad = || format!("\"{text}\" is not a pace: give auto, off, idle, or a rate, like 64M/s");
    match text.trim() {
        "auto" => Ok(StreamPace::Auto),
        "off" => Ok(StreamPace::Off),
        "idle" => Ok(StreamPace::Idle),
        rate => match parse_size(rate.strip_suffix("/s").unwrap_or(rate)) {
            Ok(0) | Err(_) => Err(bad()),
            Ok(bytes) => Ok(StreamPace::BytesPerSecond(bytes)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_are_read() {
        for (text, pace) in [
            ("auto", StreamPace::Auto),
            ("off", StreamPace::Off),
            ("idle", StreamPace::Idle),
            ("64M", StreamPace::BytesPerSecond(64 << 20)),
            ("64M/s", StreamPace::BytesPerSecond(64 << 20)),
            ("1.5 MB/s", StreamPace::BytesPerSecond(1_500_000)),
        ] {
            assert_eq!(parse_pace(text), Ok(pace), "{text}");
        }
        for text in ["", "0", "0/s", "slow", "/s", "64M/h", "64M/s/s", "-1", "AUTO"] {
            assert!(parse_pace(text).unwrap_err().contains(&format!("\"{text}\" is not a pace")), "{text}");
        }
    }
}
