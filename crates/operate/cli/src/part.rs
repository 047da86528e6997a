//! The requested part of each file: as sizes, or in percent of the file, since several files differ
//! in size.

use std::ops::Range;

use pagekeeper_text::parse_size;

/// A part of each file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FilePart {
    start: PartBoundary,
    end: PartBoundary,
}

/// A position in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartBoundary {
    /// In bytes from its start.
    At(u64),
    /// In percent of its size, at most 100.
    Percent(u64),
}

impl PartBoundary {
    fn parse(text: &str) -> Result<Self, String> {
        let Some(number) = text.trim().strip_suffix('%') else { return parse_size(text).map(Self::At) };
        let percent = number.trim().parse().ok().filter(|percent| *percent <= 100);
        percent.map(Self::Percent).ok_or_else(|| format!("\"{text}\" is no share of a file: give 0% to 100%"))
    }

    fn of(self, size: u64) -> u64 {
        match self {
            Self::At(offset) => offset,
            Self::Percent(100) => size,
            Self::Percent(percent) => size / 100 * percent + size % 100 * percent / 100,
        }
    }
}

impl FilePart {
    /// Returns the range for a file of this size; empty if its end is not after its start.
    pub(crate) fn of(self, size: u64) -> Range<u64> {
        let (start, end) = (self.start.of(size), self.end.of(size));
        start..end.max(start)
    }
}

/// Reads a part, for clap's `value_parser`: `A..B`, `A..`, `..B`, each as a size or in percent of
/// the file.
pub(crate) fn parse_part(text: &str) -> Result<FilePart, String> {
    let (start, end) = text.split_once("..").ok_or_else(|| match range_meant_by(text) {
        Some(range) => format!("\"{text}\" is not a range: give {range} for the first {text} of each file"),
        None => format!("\"{text}\" is not a range: give A..B, A.. or ..B, like 0..64M or ..90%"),
    })?;
    let start = if start.trim().is_empty() { PartBoundary::At(0) } else { PartBoundary::parse(start)? };
    let end = if end.trim().is_empty() { PartBoundary::At(u64::MAX) } else { PartBoundary::parse(end)? };
    let is_empty = match (start, end) {
        (PartBoundary::At(start), PartBoundary::At(end))
        | (PartBoundary::Percent(start), PartBoundary::Percent(end)) => start >= end,
        (PartBoundary::Percent(100), _) | (_, PartBoundary::At(0) | PartBoundary::Percent(0)) => true,
        (PartBoundary::At(_), PartBoundary::Percent(_)) | (PartBoundary::Percent(_), PartBoundary::At(_)) => {
            false
        }
    };
    if is_empty {
        return Err(format!("the range \"{text}\" is empty: its end is not after its start"));
    }
    Ok(FilePart { start, end })
}

/// Returns the range that the user means who writes a range or a share of a file where neither is
/// accepted.
pub(crate) fn range_meant_by(text: &str) -> Option<String> {
    let range = if text.contains("..") {
        text.to_owned()
    } else if text.ends_with('%') {
        format!("..{text}")
    } else {
        return None;
    };
    parse_part(&range).is_ok().then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_of_each_file_by_itself() {
        for (text, size, expected) in [
            ("..", 1000, 0..u64::MAX),
            ("..90%", 1000, 0..900),
            ("10%..", 1000, 100..u64::MAX),
            ("50%..100%", 7, 3..7),
            ("1K..90%", 1000, 1024..1024),
            ("0..64M", 5, 0..64 << 20),
            ("..90%", u64::MAX, 0..u64::MAX / 100 * 90 + 13),
        ] {
            assert_eq!(parse_part(text).unwrap().of(size), expected, "{text}");
        }
        for (text, why) in [
            ("64M", "not a range: give A..B, A.. or ..B"),
            ("80%", "not a range: give ..80% for the first 80% of each file"),
            ("180%", "not a range: give A..B, A.. or ..B"),
            ("..101%", "give 0% to 100%"),
            ("90%..10%", "is empty"),
            ("2..1", "is empty"),
            ("..0%", "is empty"),
            ("0..x", "not a size"),
        ] {
            assert!(parse_part(text).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn a_share_or_a_range_is_known_where_neither_is_taken() {
        for (text, range) in [
            ("90%", Some("..90%")),
            ("10%..", Some("10%..")),
            ("0..64M", Some("0..64M")),
            ("0%", None),
            ("180%", None),
            ("64M", None),
            ("../file", None),
            ("a..b", None),
            ("100%real", None),
        ] {
            assert_eq!(range_meant_by(text).as_deref(), range, "{text}");
        }
    }
}
