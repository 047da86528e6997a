//! Sizes, byte ranges and periods in human-readable form.
//!
//! Parsing accepts a number with an optional unit, in either case, as GNU coreutils does. `K`, `M`, `G`, `T`, `P`
//! (or `KiB` …) are powers of 1024; `KB`, `MB` … are powers of 1000; none, or `B`, is bytes. Formatting uses
//! binary units with one decimal. Errors are sentences that quote the input.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use pagekeeper_policy::stream_pace::StreamPace;

/// A number of bytes, read from and shown to people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!("\"{text}\" is not a size: give bytes, or a number with K, M, G or T, like 64M or 1.5G")
        };
        let trimmed = text.trim();
        let number_len = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(number_len);
        let factor = factor(unit.trim_start()).ok_or_else(bad)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty()
            || fraction.len() > 18
            || fraction.contains('.')
            || (number.contains('.') && fraction.is_empty())
        {
            return Err(bad());
        }
        let too_large = || format!("\"{text}\" is more than 64 bits of bytes can say");
        let whole: u64 = whole.parse().map_err(|_| too_large())?;
        let mut bytes = u128::from(whole) * u128::from(factor);
        if !fraction.is_empty() {
            let digits: u64 = fraction.parse().map_err(|_| bad())?;
            let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| bad())?);
            bytes += u128::from(digits) * u128::from(factor) / scale;
        }
        u64::try_from(bytes).map(Self).map_err(|_| too_large())
    }
}

/// Returns the bytes of a unit; `None` for an unknown one.
fn factor(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_uppercase();
    if unit.is_empty() || unit == "B" {
        return Some(1);
    }
    let power = u32::try_from("KMGTPE".find(unit.chars().next()?)? + 1).ok()?;
    match &unit[1..] {
        "" | "IB" => Some(1024_u64.pow(power)),
        "B" => Some(1000_u64.pow(power)),
        _ => None,
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = u128::from(self.0);
        let mut unit = 0;
        let mut scale = 1_u128;
        let tenths = loop {
            let tenths = (bytes * 10 + scale / 2) / scale;
            // Rounded first, so that 1023.99 KiB shows as 1 MiB and not as 1024.0 KiB.
            if tenths < 10240 || unit + 1 == UNITS.len() {
                break tenths;
            }
            unit += 1;
            scale *= 1024;
        };
        let text = if bytes % scale == 0 {
            format!("{} {}", bytes / scale, UNITS[unit])
        } else {
            format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
        };
        f.pad(&text)
    }
}

/// Parses a size, for clap's `value_parser`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    text.parse::<Size>().map(|size| size.0)
}

/// Parses a byte range, for clap's `value_parser`: `A..B`, `A..` (to the end of the file, `u64::MAX`), `..B`; both
/// ends are sizes, and the end is exclusive.
pub fn parse_range(text: &str) -> Result<Range<u64>, String> {
    let (start, end) = text
        .split_once("..")
        .ok_or_else(|| format!("\"{text}\" is not a range: give A..B, A.. or ..B, like 0..64M"))?;
    let start = if start.trim().is_empty() { 0 } else { parse_size(start)? };
    let end = if end.trim().is_empty() { u64::MAX } else { parse_size(end)? };
    if start < end {
        Ok(start..end)
    } else {
        Err(format!("the range \"{text}\" is empty: its end is not after its start"))
    }
}

/// A duration in human-readable form: a number with `ms`, `s`, `m` or `h`, like 500ms or 1.5h; longer than zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period(pub Duration);

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!("\"{text}\" is not a length of time: give a number with ms, s, m or h, like 500ms or 30s")
        };
        let trimmed = text.trim();
        let number_len = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (number, unit) = trimmed.split_at(number_len);
        let seconds = match unit.trim_start() {
            "ms" => 0.001,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(bad()),
        };
        let number: f64 = number.parse().map_err(|_| bad())?;
        match Duration::try_from_secs_f64(number * seconds) {
            Ok(period) if !period.is_zero() => Ok(Self(period)),
            _ => Err(bad()),
        }
    }
}

/// Parses a period, for clap's `value_parser`.
pub fn parse_period(text: &str) -> Result<Duration, String> {
    text.parse::<Period>().map(|period| period.0)
}

/// Parses how fast streams may use a disk, for clap's `value_parser` and configurations: `auto`, `off`, `idle`, or
/// a size per second, such as `64M` or `64M/s`.
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
    use proptest::prelude::*;

    #[test]
    fn periods_are_read() {
        for (text, milliseconds) in [("500ms", 500), ("30s", 30_000), ("1.5m", 90_000), ("2h", 7_200_000)] {
            assert_eq!(parse_period(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "5", "s", "0s", "-1s", "1d", "1e400s", "1..2s"] {
            assert!(parse_period(text).unwrap_err().contains("not a length of time"), "{text}");
        }
    }

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

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4096B", 4096),
            ("1k", 1024),
            ("64M", 64 << 20),
            ("10MiB", 10 << 20),
            ("10 mib", 10 << 20),
            ("1.5G", 3 << 29),
            ("0.25T", 1 << 38),
            ("200MB", 200_000_000),
            ("15E", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_in_words() {
        for text in ["", "M", "-1", "1.", ".5", "1..2", "1.2.3", "5X", "5MX", "5iB", "٣", "1e3"] {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains(&format!("\"{text}\" is not a size")), "{error}");
        }
        for text in ["16E", "18446744073709551616", "99999999999999999999999"] {
            assert!(parse_size(text).unwrap_err().contains("more than 64 bits"), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (64 << 20, "64 MiB"),
            ((64 << 20) + 1, "64.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}|{:<8}", Size(1024), Size(5)), "   1 KiB|5 B     ");
    }

    #[test]
    fn ranges_are_read() {
        assert_eq!(parse_range("0..64M"), Ok(0..64 << 20));
        assert_eq!(parse_range("1K..2K"), Ok(1024..2048));
        assert_eq!(parse_range("1.5K..2.5K"), Ok(1536..2560));
        assert_eq!(parse_range("4096.."), Ok(4096..u64::MAX));
        assert_eq!(parse_range("..1G"), Ok(0..1 << 30));
        assert_eq!(parse_range(".."), Ok(0..u64::MAX));
        assert!(parse_range("64M").unwrap_err().contains("not a range"));
        assert!(parse_range("2..1").unwrap_err().contains("is empty"));
        assert!(parse_range("0..x").unwrap_err().contains("not a size"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_panic(text in ".{0,24}") {
            let _ = parse_size(&text);
            let _ = parse_range(&text);
        }

        #[test]
        fn what_is_shown_reads_back_to_within_its_decimal(bytes in 0_u64..1 << 62) {
            let back = parse_size(&Size(bytes).to_string()).unwrap();
            prop_assert!(back.abs_diff(bytes) <= bytes / 20, "{bytes} {back}");
        }
    }
}
