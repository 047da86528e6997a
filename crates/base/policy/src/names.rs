//! File names: matching against patterns, and the number in a name that orders the files of a log.
//!
//! A pattern is a file name in which some text stands for other text:
//!
//! | text  | stands for                                                                                        |
//! |-------|---------------------------------------------------------------------------------------------------|
//! | `*`   | any characters, or none; at most three times in one name                                          |
//! | `{n}` | a decimal number                                                                                  |
//! | `{h}` | a hexadecimal number, in digits of either case                                                    |
//! | `{x}` | a PostgreSQL WAL segment: 24 upper-case hexadecimal digits                                        |
//! | `{_}` | hexadecimal digits of either case that neither order files nor distinguish logs; at most once      |
//!
//! A name has at most one of `{n}`, `{h}` and `{x}`: it orders the files. The name without its
//! numbers is its *stem*: files with equal stems in one directory form one log. If a pattern has no
//! number, files form one log if their names differ only in dates or in the number of a rotated
//! file, as `error.csv`, `error-2026-11-29.csv` and `error.csv.1` do. A pattern may start with
//! directory names, separated by `/`, in which only `*` has a meaning (`base/*/{n}*`).
//!
//! Invariants:
//! 1. Neighbouring files of a log have sequences that differ by exactly 1
//!    ([`FileNumber::sequence`]), so a difference of two sequences is a distance in files.
//! 2. A number always includes all adjacent digits: a `*` never takes some of them. A number that
//!    does not fit in 64 bits does not match.
//! 3. A path is normalised before it is matched: `.` and repeated `/` are ignored, and `..` matches
//!    no pattern.
//! 4. Matching allocates nothing and never panics. Its time grows with the name's length to the
//!    power of the number of `*`.

mod number;
#[cfg(feature = "std")]
mod pattern;
#[cfg(feature = "std")]
mod rotation;

pub use number::{FileNumber, SegmentSize, WalSegment};
#[cfg(feature = "std")]
pub use pattern::{NamePattern, PatternError};

use number::{NumberSyntax, hexadecimal_digits};

/// The maximum number of `*` in one name of a pattern.
const WILDCARDS_MAX: usize = 3;

/// The result of a successful match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameMatch<'n> {
    /// The number that orders the file.
    pub number: FileNumber,
    name: &'n [u8],
    /// Start and end of the number's digits; both are the name's length if it has none.
    digits: (usize, usize),
    /// Start and end of the ignored digits, likewise.
    ignored: (usize, usize),
}

impl<'n> NameMatch<'n> {
    /// Creates the match of a name before any digits are found.
    const fn new(name: &'n [u8]) -> Self {
        let end = (name.len(), name.len());
        Self { number: FileNumber::None, name, digits: end, ignored: end }
    }

    /// Returns the name without its numbers, in three pieces.
    ///
    /// ```
    /// use pagekeeper_policy::names::matches_name;
    ///
    /// let matched = matches_name(b"{h}-{_}.wal", b"000000000000000c-0000000000002f4a.wal").unwrap();
    /// assert_eq!(matched.stem().concat(), b"-.wal");
    /// assert_eq!(matched.number.sequence(None), 12);
    /// ```
    pub fn stem(&self) -> [&'n [u8]; 3] {
        let (first, second) = if self.digits.0 <= self.ignored.0 {
            (self.digits, self.ignored)
        } else {
            (self.ignored, self.digits)
        };
        let piece = |from: usize, to: usize| self.name.get(from..to).unwrap_or_default();
        [piece(0, first.0), piece(first.1, second.0), piece(second.1, self.name.len())]
    }

    /// Returns start and end of the text between two suffixes of the name: from the start of `rest`
    /// to the start of `after`.
    fn span(&self, rest: &[u8], after: &[u8]) -> (usize, usize) {
        (self.name.len().saturating_sub(rest.len()), self.name.len().saturating_sub(after.len()))
    }

    /// Whether `rest`, the end of the name, matches `pattern`. Records the numbers found.
    fn fits(&mut self, mut pattern: &[u8], mut rest: &'n [u8]) -> bool {
        loop {
            let Some((piece, later)) = PatternPart::first_of(pattern) else {
                return rest.is_empty();
            };
            let after = match piece {
                PatternPart::Byte(byte) => match rest {
                    [first, after @ ..] if *first == byte => after,
                    _ => return false,
                },
                PatternPart::Any => return self.fits_after_any(later, rest),
                PatternPart::Number(class) => {
                    let Some((number, after)) = class.read(rest) else { return false };
                    (self.number, self.digits) = (number, self.span(rest, after));
                    after
                }
                PatternPart::Ignored => {
                    let Some((_, after)) = rest.split_at_checked(hexadecimal_digits(rest)) else {
                        return false;
                    };
                    if after.len() == rest.len() {
                        return false;
                    }
                    self.ignored = self.span(rest, after);
                    after
                }
            };
            (pattern, rest) = (later, after);
        }
    }

    /// Matches `rest` against a `*` followed by `later`. The `*` takes as many characters as
    /// possible, so that in `*.{n}` the stem of `a.b.000001` is `a.b.`.
    fn fits_after_any(&mut self, later: &[u8], rest: &'n [u8]) -> bool {
        // Most patterns can match in one way only.
        if tail(later).len() == later.len() {
            return rest.ends_with(later);
        }
        let next = PatternPart::first_of(later).map(|(piece, _)| piece);
        (0..=rest.len()).rev().filter_map(|length| rest.split_at_checked(length)).any(|(any, after)| {
            let cuts_number = match next {
                Some(PatternPart::Number(class)) => {
                    any.last().is_some_and(|byte| class.continues_after(*byte))
                }
                Some(PatternPart::Ignored) => any.last().is_some_and(u8::is_ascii_hexdigit),
                _ => false,
            };
            !cuts_number && self.fits(later, after)
        })
    }
}

/// One part of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatternPart {
    Byte(u8),
    Any,
    Number(NumberSyntax),
    Ignored,
}

impl PatternPart {
    /// Splits a pattern into its first part and the rest. Braces without a special meaning stand
    /// for themselves.
    const fn first_of(pattern: &[u8]) -> Option<(Self, &[u8])> {
        match pattern {
            [] => None,
            [b'*', later @ ..] => Some((Self::Any, later)),
            [b'{', b'n', b'}', later @ ..] => Some((Self::Number(NumberSyntax::Decimal), later)),
            [b'{', b'h', b'}', later @ ..] => Some((Self::Number(NumberSyntax::Hexadecimal), later)),
            [b'{', b'x', b'}', later @ ..] => Some((Self::Number(NumberSyntax::WalSegment), later)),
            [b'{', b'_', b'}', later @ ..] => Some((Self::Ignored, later)),
            [byte, later @ ..] => Some((Self::Byte(*byte), later)),
        }
    }
}

/// Matches the last components of a path: the file name, and as many directories above it as the
/// pattern names.
///
/// ```
/// use pagekeeper_policy::names::matches;
///
/// assert!(matches(b"pg_wal/{x}", b"/d/pg_wal/00000001000000000000000A").is_some());
/// assert!(matches(b"*.sst", b"000012.sst").is_some());
/// assert!(matches(b"{n}.log", b"/d/LOG").is_none());
/// ```
pub fn matches<'n>(pattern: &[u8], path: &'n [u8]) -> Option<NameMatch<'n>> {
    let (mut above, pattern) = split_last(pattern);
    let (mut path_above, name) = split_last(path);
    if matches!(name, b"" | b"." | b"..") {
        return None;
    }
    let matched = matches_name(pattern, name)?;
    while let Some(directories) = above {
        let (pattern_above, pattern) = split_last(directories);
        let (next, name) = last_directory(path_above?)?;
        matches_name(pattern, name)?;
        (above, path_above) = (pattern_above, next);
    }
    Some(matched)
}

/// Matches a bare file name, in any directory.
pub fn matches_name<'n>(pattern: &[u8], name: &'n [u8]) -> Option<NameMatch<'n>> {
    if !name.ends_with(tail(pattern)) {
        return None;
    }
    let mut matched = NameMatch::new(name);
    matched.fits(pattern, name).then_some(matched)
}

/// Finds the ordering number of a name that no pattern describes. A name of 24 upper-case
/// hexadecimal digits is a WAL segment. Otherwise its last decimal number orders it, if that fits
/// in 64 bits.
///
/// ```
/// use pagekeeper_policy::names::by_last_number;
///
/// let matched = by_last_number(b"host1-bin.000007");
/// assert_eq!((matched.stem().concat(), matched.number.sequence(None)), (b"host1-bin.".to_vec(), 7));
/// ```
pub fn by_last_number(name: &[u8]) -> NameMatch<'_> {
    let mut matched = NameMatch::new(name);
    if let Some(segment) = WalSegment::of_name(name) {
        (matched.number, matched.digits) = (FileNumber::WalSegment(segment), (0, name.len()));
        return matched;
    }
    let end = name.iter().rposition(u8::is_ascii_digit).map_or(0, |at| at.saturating_add(1));
    let before = name.get(..end).unwrap_or_default();
    let from = before.iter().rposition(|byte| !byte.is_ascii_digit()).map_or(0, |at| at.saturating_add(1));
    if let Some((number, _)) = name.get(from..end).and_then(|digits| NumberSyntax::Decimal.read(digits)) {
        (matched.number, matched.digits) = (number, (from, end));
    }
    matched
}

/// Returns the plain text at the end of a pattern, with which every matching name ends. Most files
/// are ruled out by it.
pub fn tail(pattern: &[u8]) -> &[u8] {
    let start = pattern.iter().rposition(|byte| matches!(byte, b'/' | b'*' | b'}'));
    pattern.get(start.map_or(0, |at| at.saturating_add(1))..).unwrap_or_default()
}

/// Returns the last four bytes of a name, the last one lowest, padded with zeros.
pub fn last_four(name: &[u8]) -> u32 {
    match name.last_chunk() {
        Some(&last) => u32::from_be_bytes(last),
        None => name.iter().fold(0, |word, &byte| word << 8 | u32::from(byte)),
    }
}

/// Returns the possible last four bytes of names that match a pattern: words with a mask in the
/// upper half and a value in the lower. A name that fits none of them does not match, which rejects
/// most names quickly.
///
/// ```
/// use pagekeeper_policy::names::{fits_end, last_four, pattern_ends};
///
/// let fits = |pattern, name| pattern_ends(pattern).any(|end| fits_end(end, last_four(name)));
/// assert!(fits(b"*.sst", b"/d/1.sst") && !fits(b"*.sst", b"1.lst") && !fits(b"*.sst", b"sst"));
/// assert!(fits(b"base/{n}", b"/base/9") && !fits(b"base/{n}", b"b") && fits(b"relay*", b""));
/// ```
pub fn pattern_ends(pattern: &[u8]) -> impl Iterator<Item = u64> {
    let end = |mask: u64, value: u32| mask << 32 | u64::from(value);
    let tail = tail(pattern);
    let bits = tail.len().min(4) * 8;
    let ends = match pattern {
        // Accepts digits and the letters up to g, slightly more than the pattern does.
        [.., b'{', b'n', b'}'] => [Some(end(0xf0, 0x30)), None],
        [.., b'{', b'x', b'}'] => [Some(end(0xf0, 0x30)), Some(end(0xd8, 0x40))],
        _ => [Some(end((1 << bits) - 1, last_four(tail))), None],
    };
    ends.into_iter().flatten()
}

/// Whether a name with these last bytes fits an end of a pattern.
pub const fn fits_end(end: u64, last: u32) -> bool {
    let (mask, value) = ((end >> 32) as u32, (end & 0xffff_ffff) as u32);
    last & mask == value
}

/// Returns the last name of a path or a pattern.
pub fn last_name(path: &[u8]) -> &[u8] {
    split_last(path).1
}

/// Returns the number of directory names in a pattern.
#[allow(clippy::naive_bytecount, reason = "a few bytes")]
pub fn directories(pattern: &[u8]) -> usize {
    pattern.iter().filter(|&&byte| byte == b'/').count()
}

/// Checks a pattern. The error says what is wrong with it.
pub fn check(pattern: &[u8]) -> Result<(), &'static str> {
    let (above, name) = split_last(pattern);
    if name.is_empty() {
        return Err("it names no file");
    }
    for directory in above.into_iter().flat_map(|above| above.split(|&byte| byte == b'/')) {
        if directory.is_empty() || directory.contains(&b'{') || matches!(directory, b"." | b"..") {
            return Err(
                "only * has a meaning in the name of a directory, before a /: a number orders the files of one directory",
            );
        }
        check_name(directory)?;
    }
    check_name(name)
}

fn check_name(pattern: &[u8]) -> Result<(), &'static str> {
    let (mut any, mut numbers, mut ignored) = (0, 0, 0);
    let mut rest = pattern;
    while let Some((piece, later)) = PatternPart::first_of(rest) {
        match piece {
            PatternPart::Any => any += 1,
            PatternPart::Number(_) => numbers += 1,
            PatternPart::Ignored => ignored += 1,
            PatternPart::Byte(b'{') => {
                return Err(
                    "in braces there is only {n}, a number, {h}, a hexadecimal one, {x}, 24 hexadecimal digits, or \
                            {_}, digits to ignore",
                );
            }
            PatternPart::Byte(_) => {}
        }
        rest = later;
    }
    match (numbers, ignored, any) {
        (2.., _, _) => Err("it has more than one number to order files by"),
        (_, 2.., _) => Err("it has more than one {_}"),
        (_, _, any) if any > WILDCARDS_MAX => Err("it has more than three *"),
        _ => Ok(()),
    }
}

/// Splits a path into the part before its last `/`, if any, and the last component.
fn split_last(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(at) => (path.get(..at), path.get(at.saturating_add(1)..).unwrap_or_default()),
        None => (None, path),
    }
}

/// Splits off the name of the directory that a path ends with. Returns `None` at the root, and
/// where `..` hides the name.
fn last_directory(path: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let mut path = path;
    loop {
        let (above, name) = split_last(path);
        match name {
            b"" | b"." => path = above?,
            b".." => return None,
            name => return Some((above, name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(pattern: &str, path: &str) -> Option<(String, u64)> {
        check(pattern.as_bytes()).unwrap();
        matches(pattern.as_bytes(), path.as_bytes()).map(|matched| {
            (String::from_utf8(matched.stem().concat()).unwrap(), matched.number.sequence(None))
        })
    }

    #[test]
    fn numbers_order_and_stems_group() {
        for (pattern, path, expected) in [
            ("*.{n}", "/d/binlog.000012", Some(("binlog.", 12))),
            ("*.{n}", "/d/host.example-bin.1000000", Some(("host.example-bin.", 1_000_000))),
            ("*.{n}", "/d/binlog.index", None),
            ("{n}.log", "/d/000123.log", Some((".log", 123))),
            ("{n}.log", "/d/x000123.log", None),
            ("{n}.log", "/d/.log", None),
            ("ib_logfile{n}", "/d/ib_logfile0", Some(("ib_logfile", 0))),
            ("#innodb_redo/#ib_redo{n}", "/d/#innodb_redo/#ib_redo7", Some(("#ib_redo", 7))),
            ("#innodb_redo/#ib_redo{n}", "/d/#ib_redo7", None),
            ("#innodb_redo/#ib_redo{n}", "/d/#innodb_redo/#ib_redo8_tmp", None),
            ("*relay*.{n}", "/d/host-relay-bin.000002", Some(("host-relay-bin.", 2))),
            ("plain", "/d/plain", Some(("plain", 0))),
            ("*.sst", "/d/000012.sst", Some(("000012.sst", 0))),
            ("*.sst", "/d/000012.sst.tmp", None),
            ("pg_wal/{x}", "pg_wal/00000001000000000000000A", Some(("", 10))),
            ("pg_wal/{x}", "pg_wal/00000001000000000000000A.backup", None),
            ("pg_wal/{x}", "pg_wal/00000001000000000000000A0", None),
            ("{h}-{_}.wal", "/d/wal/0000000000000001-0000000000002f4a.wal", Some(("-.wal", 1))),
            ("{h}-{_}.wal", "/d/wal/00000000000000ff-0000000000010000.wal", Some(("-.wal", 255))),
            ("{h}-{_}.wal", "/d/wal/0000000000000001-.wal", None),
            ("{h}-{_}.wal", "/d/wal/0.tmp", None),
            ("{_}.{n}", "/d/2f.12", Some((".", 12))),
            ("*-{h}", "/d/log-1bE", Some(("log-", 0x1be))),
        ] {
            let expected = expected.map(|(stem, sequence)| (stem.to_owned(), sequence));
            assert_eq!(matched(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn directories_match_from_the_file_upwards() {
        for (pattern, path, expected) in [
            ("base/*/{n}*", "/d/base/5/16384_fsm", Some(("_fsm", 16384))),
            ("base/*/{n}*", "base/5/16384.1", Some((".1", 16384))),
            ("base/*/{n}*", "base/5/1", Some(("", 1))),
            ("base/*/{n}*", "/d/base/16384", None),
            ("base/*/{n}*", "5/16384", None),
            ("base/*/{n}*", "/d/other/5/16384", None),
            ("*/x", "/x", None),
            ("*/x", "x", None),
            ("PG_*/*/{n}", "/ts/PG_15_2022/5/7", Some(("", 7))),
            ("a", "a/", None),
            ("a", "", None),
            ("*", "", None),
        ] {
            let expected = expected.map(|(stem, sequence)| (stem.to_owned(), sequence));
            assert_eq!(matched(pattern, path), expected, "{pattern} {path}");
        }
        assert_eq!(directories(b"base/*/{n}*"), 2);
    }

    /// Cases in which two earlier matchers, one for watched directories and one inside of
    /// processes, disagreed.
    #[test]
    fn odd_names_have_one_meaning() {
        for (pattern, path, expected) in [
            // PostgreSQL writes upper-case digits only, and takes no other file for a segment.
            ("pg_wal/{x}", "/d/pg_wal/00000001000000000000000f", None),
            // A number that does not fit can't order files, so the file belongs to no log. Leading
            // zeros do not count as digits.
            ("*.{n}", "/d/binlog.99999999999999999999999", None),
            ("{h}", "/d/10000000000000000", None),
            ("{n}.log", "/d/18446744073709551615.log", Some((".log", u64::MAX))),
            ("{n}.log", "/d/18446744073709551616.log", None),
            ("{n}.log", "/d/000000000000000000000000000000007.log", Some((".log", 7))),
            // The whole number orders the files, not just the last digit: 9 and 10 belong to one
            // log.
            ("redo*{n}.log", "redo0009.log", Some(("redo.log", 9))),
            ("redo*{n}.log", "redo0010.log", Some(("redo.log", 10))),
            ("redo*{n}.log", "redo-a1-0010.log", Some(("redo-a1-.log", 10))),
            ("redo*{n}.log", "redo99999999999999999999999.log", None),
            ("*{h}.wal", "x-00ff.wal", Some(("x-.wal", 255))),
            ("*{_}.wal", "x-00ff.wal", Some(("x-.wal", 0))),
            // A digit of the pattern itself does not belong to the number.
            ("x1{n}", "x12", Some(("x1", 2))),
            // `*` takes the longest text, so the last number is used.
            ("*{n}*", "a1b22c", Some(("a1bc", 22))),
            ("*.{n}", "a.1.22", Some(("a.1.", 22))),
            // A path is normalised before it is matched.
            ("base/*/{n}*", "/d/base//5/16384_vm", Some(("_vm", 16384))),
            ("base/*/{n}*", "/d/base/./5/16384", Some(("", 16384))),
            ("base/*/{n}*", "/d/base/../16384", None),
            ("base/*/{n}*", "/d/base/5/../16384", None),
            ("*/{n}", "./16384", None),
            ("*", "/d/..", None),
            ("*", "/d/.", None),
            ("*", "/d/a/", None),
            // A closing brace is a character like any other.
            ("a}*", "a}b", Some(("a}b", 0))),
        ] {
            let expected = expected.map(|(stem, sequence)| (stem.to_owned(), sequence));
            assert_eq!(matched(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn names_without_a_pattern_are_ordered_by_their_last_number() {
        for (name, expected) in [
            ("binlog.000007", ("binlog.", 7)),
            ("#ib_redo31", ("#ib_redo", 31)),
            ("host1-bin.000123.tmp", ("host1-bin..tmp", 123)),
            ("0000000100000002000000FE", ("", 2 * 256 + 254)),
            ("0000000100000002000000fe", ("fe", 100_000_002_000_000)),
            ("x99999999999999999999999", ("x99999999999999999999999", 0)),
            ("log", ("log", 0)),
            ("", ("", 0)),
        ] {
            let matched = by_last_number(name.as_bytes());
            let found = (String::from_utf8(matched.stem().concat()).unwrap(), matched.number.sequence(None));
            assert_eq!(found, (expected.0.to_owned(), expected.1), "{name}");
        }
    }

    #[test]
    fn tails_are_the_plain_end_of_the_last_name() {
        for (pattern, expected) in [
            ("*.sst", ".sst"),
            ("{n}.log", ".log"),
            ("pg_wal/{x}", ""),
            ("a/b", "b"),
            ("ibtmp{n}", ""),
            ("", ""),
        ] {
            assert_eq!(tail(pattern.as_bytes()), expected.as_bytes(), "{pattern}");
        }
    }

    #[test]
    fn text_that_is_not_a_pattern_is_refused_with_the_reason() {
        for (pattern, reason) in [
            ("", "names no file"),
            ("a/", "names no file"),
            ("a//c", "name of a directory"),
            ("/c", "name of a directory"),
            ("../c", "name of a directory"),
            ("{n}/c", "only * has a meaning"),
            ("*a*a*a*b/c", "more than three"),
            ("{q}", "in braces"),
            ("{n", "in braces"),
            ("{n}.{n}", "more than one number"),
            ("{n}.{h}", "more than one number"),
            ("{_}.{_}", "more than one {_}"),
            ("*a*a*a*b", "more than three"),
        ] {
            let error = check(pattern.as_bytes()).unwrap_err();
            assert!(error.contains(reason), "{pattern}: {error}");
        }
        for pattern in ["a", "*a*a*a", "base/*/{n}*", "{h}-{_}.wal", "*/*/*/*", "a}"] {
            assert_eq!(check(pattern.as_bytes()), Ok(()), "{pattern}");
        }
    }
}
