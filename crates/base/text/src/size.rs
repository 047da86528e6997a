//! Sizes and byte ranges.
//!
//! Parsing accepts a number with an optional unit, in either case, as GNU coreutils does. `K`, `M`,
//! `G`, `T`, `P` (or `KiB` …) are powers of 1024; `KB`, `MB` … are powers of 1000; none, or `B`, is
//! bytes. Formatting uses binary units with one decimal.

use std::fmt;
use std::str::FromStr;

/// A number of bytes, read from and shown to people.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// The units by power of 1024.
const UNIT_NAMES: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

impl ByteSize {
    /// Returns the whole bytes of a computed number, such as a rate; 0 for a negative one.
    ///
    /// ```
    /// use pagekeeper_text::ByteSize;
    /// assert_eq!(ByteSize::from_f64(1536.7).to_string(), "1.5 KiB");
    /// ```
    pub fn from_f64(bytes: f64) -> Self {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        Self(bytes as u64)
    }
}

impl FromStr for ByteSize {
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

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = u128::from(self.0);
        let mut unit = 0;
        let mut scale = 1_u128;
        let tenths = loop {
            let tenths = (bytes * 10 + scale / 2) / scale;
            // Rounded first, so that 1023.99 KiB shows as 1 MiB and not as 1024.0 KiB.
            if tenths < 10240 || unit + 1 == UNIT_NAMES.len() {
                break tenths;
            }
            unit += 1;
            scale *= 1024;
        };
        let text = if bytes % scale == 0 {
            format!("{} {}", bytes / scale, UNIT_NAMES[unit])
        } else {
            format!("{}.{} {}", tenths / 10, tenths % 10, UNIT_NAMES[unit])
        };
        f.pad(&text)
    }
}

/// Parses a size, for clap's `value_parser`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    text.parse::<ByteSize>().map(|size| size.0)
}

/// Formats a rate in bytes per second: "38 MiB/s".
pub fn rate(bytes_per_second: u64) -> String {
    format!("{}/s", ByteSize(bytes_per_second))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn text_that_is_not_a_size_is_refused_with_a_message() {
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
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}|{:<8}", ByteSize(1024), ByteSize(5)), "   1 KiB|5 B     ");
        assert_eq!(rate(38 << 20), "38 MiB/s");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_panic(text in ".{0,24}") {
            let _ = parse_size(&text);
        }

        #[test]
        fn a_printed_size_parses_back_to_within_its_decimal(bytes in 0_u64..1 << 62) {
            let back = parse_size(&ByteSize(bytes).to_string()).unwrap();
            prop_assert!(back.abs_diff(bytes) <= bytes / 20, "{bytes} {back}");
        }
    }
}
