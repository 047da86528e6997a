//! File-name patterns of profiles, and the order of a log's files that they reveal.
//!
//! A pattern is a file name, in which `*` stands for any characters, `{n}` for a decimal number and `{x}` for 24
//! hexadecimal digits (a PostgreSQL WAL segment). What a name has besides its number is its *stem*: names with
//! equal stems in one directory are one log, and the number orders it. Names of directories may stand before it,
//! in which `*` stands for any characters of one name (`base/*/{n}*`); for the files of a log at most one, without
//! a `*`. In one name there are at most three `*`: trying all that each may stand for takes time by the name's
//! length to that power. Matching never fails; a pattern that can't be read is refused with [`PatternError`].

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};
use std::str::FromStr;

/// A parsed pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    /// What the directories that the file is in are called, the innermost last.
    directories: Vec<Vec<Part>>,
    parts: Vec<Part>,
}

/// How many `*` one name may have.
const ANY_MAX: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Literal(Vec<u8>),
    Any,
    Number,
    HexSegment,
}

/// A pattern that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{pattern}\" is not a file pattern: {reason}")]
pub struct PatternError {
    pattern: String,
    reason: &'static str,
}

/// What a name that matches says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matched {
    /// The name without its number.
    pub stem: Vec<u8>,
    /// The number; 0 for a pattern without one.
    pub sequence: u64,
}

impl Matched {
    /// The name of the log's index: the stem with `index` in place of the number.
    pub fn index_name(&self) -> OsString {
        let mut name = self.stem.clone();
        name.extend_from_slice(b"index");
        OsString::from_vec(name)
    }
}

impl Pattern {
    /// Matches the last components of a path: its file name and as many directories as the pattern has.
    pub fn matches(&self, path: &Path) -> Option<Matched> {
        let matched = self.matches_name(path.file_name()?)?;
        let mut above = path.components().rev().skip(1);
        let fits = self.directories.iter().rev().all(|parts| match above.next() {
            Some(Component::Normal(name)) => {
                matches_parts(parts, name.as_bytes(), &mut Matched { stem: Vec::new(), sequence: 0 })
            }
            _ => false,
        });
        fits.then_some(matched)
    }

    /// The directory that a path that matches is found from: above those that the pattern names.
    pub fn base_of<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        self.matches(path)?;
        path.ancestors().nth(self.directories.len() + 1)
    }

    /// Matches a bare file name, whatever directory it is in.
    pub fn matches_name(&self, name: &OsStr) -> Option<Matched> {
        if !ends_as(&self.parts, name.as_bytes()) {
            return None;
        }
        let mut matched = Matched { stem: Vec::with_capacity(name.len()), sequence: 0 };
        matches_parts(&self.parts, name.as_bytes(), &mut matched).then_some(matched)
    }

    /// The name of the directory that the file must be in, if the pattern has one directory, without a `*`.
    pub fn directory(&self) -> Option<&str> {
        match self.directories.as_slice() {
            [parts] => match parts.as_slice() {
                [Part::Literal(name)] => std::str::from_utf8(name).ok(),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the files of a log can be called so: in one directory that its name leads to, at most.
    pub(crate) fn is_for_logs(&self) -> bool {
        self.directories.is_empty() || self.directory().is_some()
    }

    /// The pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let refuse = |reason| PatternError { pattern: text.to_owned(), reason };
        let mut names: Vec<&str> = text.split('/').collect();
        let name = names.pop().unwrap_or_default();
        if name.is_empty() {
            return Err(refuse("it names no file"));
        }
        if names.iter().any(|name| name.is_empty() || name.contains('{')) {
            return Err(refuse("before a / goes the name of a directory, in which only * has a meaning"));
        }
        let directories: Vec<_> =
            names.into_iter().map(parse_name).collect::<Result<_, _>>().map_err(refuse)?;
        let parts = parse_name(name).map_err(refuse)?;
        Ok(Self { text: text.to_owned(), directories, parts })
    }
}

/// The parts of one name.
fn parse_name(name: &str) -> Result<Vec<Part>, &'static str> {
    let mut parts = Vec::new();
    let mut literal = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let (part, length) = if rest.starts_with("{n}") {
            (Part::Number, 3)
        } else if rest.starts_with("{x}") {
            (Part::HexSegment, 3)
        } else if rest.starts_with('*') {
            (Part::Any, 1)
        } else if rest.starts_with('{') {
            return Err("in braces there is only {n}, a number, or {x}, 24 hexadecimal digits");
        } else {
            let length = rest.find(['{', '*']).unwrap_or(rest.len());
            literal.extend_from_slice(&rest.as_bytes()[..length]);
            rest = &rest[length..];
            parts.push(Part::Literal(std::mem::take(&mut literal)));
            continue;
        };
        parts.push(part);
        rest = &rest[length..];
    }
    let numbers = parts.iter().filter(|part| matches!(part, Part::Number | Part::HexSegment)).count();
    if numbers > 1 {
        return Err("it has more than one number to order files by");
    }
    if parts.iter().filter(|part| **part == Part::Any).count() > ANY_MAX {
        return Err("it has more than three *");
    }
    Ok(parts)
}

/// Whether a name can match by its end: most names fail here, before every way to match is tried.
fn ends_as(parts: &[Part], name: &[u8]) -> bool {
    match parts.last() {
        Some(Part::Literal(literal)) => name.ends_with(literal),
        Some(Part::Number) => name.last().is_some_and(u8::is_ascii_digit),
        Some(Part::HexSegment) => name.last().is_some_and(u8::is_ascii_hexdigit),
        Some(Part::Any) | None => true,
    }
}

fn matches_parts(parts: &[Part], name: &[u8], matched: &mut Matched) -> bool {
    let Some((part, later)) = parts.split_first() else {
        return name.is_empty();
    };
    match part {
        Part::Literal(literal) => {
            let Some(rest) = name.strip_prefix(literal.as_slice()) else {
                return false;
            };
            with_stem(literal, matched, |matched| matches_parts(later, rest, matched))
        }
        // The longest first: in `*.{n}` the stem of `a.b.000001` is `a.b`.
        Part::Any => (0..=name.len()).rev().any(|length| {
            with_stem(&name[..length], matched, |matched| matches_parts(later, &name[length..], matched))
        }),
        Part::Number => {
            let length = name.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let Ok(digits) = std::str::from_utf8(&name[..length]) else {
                return false;
            };
            let Ok(sequence) = digits.parse() else {
                return false;
            };
            matched.sequence = sequence;
            matches_parts(later, &name[length..], matched)
        }
        Part::HexSegment => {
            let Some((digits, rest)) = name.split_at_checked(24) else {
                return false;
            };
            let Some(sequence) = segment_number(digits) else {
                return false;
            };
            matched.sequence = sequence;
            matches_parts(later, rest, matched)
        }
    }
}

fn with_stem(piece: &[u8], matched: &mut Matched, go_on: impl FnOnce(&mut Matched) -> bool) -> bool {
    let length = matched.stem.len();
    matched.stem.extend_from_slice(piece);
    let fits = go_on(matched);
    if !fits {
        matched.stem.truncate(length);
    }
    fits
}

/// The place of a WAL segment in its log: the last 16 of 24 upper-case digits (8 are the timeline, then the
/// high half of the position, then the segment in it); the order holds for every segment size.
pub(crate) fn segment_number(digits: &[u8]) -> Option<u64> {
    if digits.len() != 24 || !digits.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'A'..=b'F')) {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(&digits[8..]).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matched(pattern: &str, path: &str) -> Option<(String, u64)> {
        let pattern: Pattern = pattern.parse().unwrap();
        pattern.matches(Path::new(path)).map(|m| (String::from_utf8(m.stem).unwrap(), m.sequence))
    }

    #[test]
    fn numbers_order_and_stems_group() {
        assert_eq!(matched("*.{n}", "/d/binlog.000012"), Some(("binlog.".into(), 12)));
        assert_eq!(
            matched("*.{n}", "/d/host.example-bin.1000000"),
            Some(("host.example-bin.".into(), 1_000_000))
        );
        assert_eq!(matched("*.{n}", "/d/binlog.index"), None);
        assert_eq!(matched("{n}.log", "/d/000123.log"), Some((".log".into(), 123)));
        assert_eq!(matched("{n}.log", "/d/x000123.log"), None);
        assert_eq!(matched("ib_logfile{n}", "/d/ib_logfile0"), Some(("ib_logfile".into(), 0)));
        assert_eq!(
            matched("#innodb_redo/#ib_redo{n}", "/d/#innodb_redo/#ib_redo7"),
            Some(("#ib_redo".into(), 7))
        );
        assert_eq!(matched("#innodb_redo/#ib_redo{n}", "/d/#ib_redo7"), None);
        assert_eq!(matched("#innodb_redo/#ib_redo{n}", "/d/#innodb_redo/#ib_redo8_tmp"), None);
        assert_eq!(matched("plain", "/d/plain"), Some(("plain".into(), 0)));
    }

    #[test]
    fn directories_match_from_the_file_upwards() {
        assert_eq!(matched("base/*/{n}*", "/d/base/5/16384_fsm"), Some(("_fsm".into(), 16384)));
        assert_eq!(matched("base/*/{n}*", "/d/base/16384"), None);
        assert_eq!(matched("base/*/{n}*", "/d/other/5/16384"), None);
        assert_eq!(matched("base/*/{n}*", "base/5/1"), Some((String::new(), 1)));
        assert_eq!(matched("*/x", "/x"), None);
        assert_eq!(matched("PG_*/*/{n}", "/ts/PG_15_2022/5/7"), Some((String::new(), 7)));
        let pattern: Pattern = "base/*/{n}".parse().unwrap();
        assert_eq!(pattern.base_of(Path::new("/d/base/5/7")), Some(Path::new("/d")));
        assert_eq!(pattern.base_of(Path::new("/d/base/5/x")), None);
        assert_eq!("base/{n}".parse::<Pattern>().unwrap().directory(), Some("base"));
        for several in ["base/*/{n}", "*/{n}"] {
            let several: Pattern = several.parse().unwrap();
            assert_eq!((several.directory(), several.is_for_logs()), (None, false));
        }
    }

    #[test]
    fn wal_segments_order_across_the_high_half() {
        let early = matched("pg_wal/{x}", "/d/pg_wal/0000000100000000000000FF").unwrap();
        let late = matched("pg_wal/{x}", "/d/pg_wal/000000020000000100000000").unwrap();
        assert!(early.1 < late.1);
        assert_eq!(early.0, late.0);
        assert_eq!(matched("pg_wal/{x}", "/d/pg_wal/00000001000000000000000f"), None);
        assert_eq!(matched("pg_wal/{x}", "/d/pg_wal/0000000100000000000000FF.partial"), None);
    }

    #[test]
    fn a_number_too_large_is_no_match() {
        assert_eq!(matched("*.{n}", "/d/binlog.99999999999999999999999"), None);
    }

    #[test]
    fn unreadable_patterns_say_why() {
        for (pattern, reason) in [
            ("", "names no file"),
            ("a/", "names no file"),
            ("a//c", "name of a directory"),
            ("/c", "name of a directory"),
            ("{n}/c", "only * has a meaning"),
            ("*a*a*a*b/c", "more than three"),
            ("{q}", "in braces"),
            ("{n}.{n}", "more than one number"),
            ("*a*a*a*b", "more than three"),
        ] {
            let error = pattern.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.contains(reason), "{pattern}: {error}");
        }
    }

    proptest! {
        #[test]
        fn matching_never_panics(pattern in "[a#*{}nx./]{0,8}", name in proptest::collection::vec(any::<u8>(), 1..12)) {
            if let Ok(pattern) = pattern.parse::<Pattern>() {
                pattern.matches(Path::new(OsStr::from_bytes(&name)));
            }
        }

        #[test]
        fn stem_and_number_give_the_name_back(stem in "[a-z][a-z.-]{0,10}", number in any::<u32>()) {
            let name = format!("{stem}.{number:06}");
            let found = "*.{n}".parse::<Pattern>().unwrap().matches_name(OsStr::new(&name)).unwrap();
            prop_assert_eq!(found.stem, format!("{stem}.").into_bytes());
            prop_assert_eq!(found.sequence, u64::from(number));
        }
    }
}
