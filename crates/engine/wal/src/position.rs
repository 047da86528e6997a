//! A position in a binlog: a segment, and a byte in it.
//!
//! Positions are ordered like the log. They are written as `000012:4096`, and parsed from that.

use std::fmt;
use std::str::FromStr;

/// A position between two records of a binlog.
///
/// ```
/// use pagekeeper_wal::Position;
/// let position: Position = "000012:4096".parse()?;
/// assert_eq!(position, Position { segment: 12, offset: 4096 });
/// assert_eq!(position.to_string(), "000012:4096");
/// assert!(position < Position { segment: 13, offset: 0 });
/// # Ok::<(), pagekeeper_wal::PositionError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The segment's number; the first of a log is 1.
    pub segment: u64,
    /// Bytes from the start of the segment's file. The first record is at 4096; 0 means the same.
    pub offset: u64,
}

/// The error of a text that is not a [`Position`].
///
/// ```
/// use pagekeeper_wal::Position;
/// assert_eq!("12".parse::<Position>().unwrap_err().to_string(), "\"12\" is not a position such as 000012:4096");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a position such as 000012:4096")]
pub struct PositionError {
    text: String,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06}:{}", self.segment, self.offset)
    }
}

impl FromStr for Position {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Self, PositionError> {
        // Only digits are valid; `parse` alone accepts a sign, too.
        let number = |digits: &str| digits.parse().ok().filter(|_| !digits.starts_with('+'));
        let parse = || {
            let (segment, offset) = text.split_once(':')?;
            Some(Self { segment: number(segment)?, offset: number(offset)? })
        };
        parse().ok_or_else(|| PositionError { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_positions_parse_back() {
        for position in [
            Position { segment: 1, offset: 0 },
            Position { segment: 1_234_567, offset: 1 << 40 },
            Position { segment: u64::MAX, offset: u64::MAX },
        ] {
            assert_eq!(position.to_string().parse(), Ok(position));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            ":",
            "1:",
            ":1",
            "1:2:3",
            "+1:2",
            "1:+2",
            "-1:2",
            " 1:2",
            "1:2 ",
            "a:b",
            "18446744073709551616:0",
        ] {
            assert!(text.parse::<Position>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_segment_counts_before_the_offset() {
        let at = |segment, offset| Position { segment, offset };
        assert!(at(1, 9) < at(2, 0) && at(2, 0) < at(2, 1));
    }
}
