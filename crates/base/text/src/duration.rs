//! Durations.
//!
//! Parsing accepts a number with a unit; formatting chooses the unit by the length.

use std::str::FromStr;
use std::time::Duration;

/// A duration in human-readable form: a number with `ms`, `s`, `m` or `h`, like 500ms or 1.5h;
/// longer than zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HumanDuration(pub Duration);

impl FromStr for HumanDuration {
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
    text.parse::<HumanDuration>().map(|period| period.0)
}

/// Formats a duration in a suitable unit: "12.3 s", "4.5 ms", "80 µs", "0.6 µs".
pub fn duration(duration: Duration) -> String {
    microseconds(duration.as_secs_f64() * 1e6)
}

/// Formats a number of microseconds, such as a mean, as [`duration`] does.
pub fn microseconds(number: f64) -> String {
    match number {
        1e6.. => format!("{:.1} s", number / 1e6),
        1e3.. => format!("{:.1} ms", number / 1e3),
        10.0.. | 0.0 => format!("{number:.0} µs"),
        _ => format!("{number:.1} µs"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn durations_have_the_unit_that_suits() {
        for (nanoseconds, text) in [
            (0, "0 µs"),
            (550, "0.6 µs"),
            (80_000, "80 µs"),
            (4_500_000, "4.5 ms"),
            (41_234_000, "41.2 ms"),
            (12_340_000_000, "12.3 s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanoseconds)), text);
        }
    }
}
