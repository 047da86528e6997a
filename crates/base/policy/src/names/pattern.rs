//! Checked patterns for profiles, matched against paths of the operating system.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::str::FromStr;

use super::rotation::without_rotation;
use super::{FileNumber, NameMatch, check, directories, matches, matches_name, split_last};

/// A checked pattern.
///
/// ```
/// use pagekeeper_policy::names::NamePattern;
/// use std::path::Path;
///
/// let pattern: NamePattern = "*.{n}".parse()?;
/// let matched = pattern.matches(Path::new("/var/lib/mysql/binlog.000012")).unwrap();
/// assert_eq!(matched.number.sequence(None), 12);
/// assert_eq!(matched.index_name(), "binlog.index");
/// # Ok::<(), pagekeeper_policy::names::PatternError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern {
    text: String,
}

/// The error for a text that is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternError {
    pattern: String,
    reason: &'static str,
}

impl fmt::Display for PatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not a file pattern: {}", self.pattern, self.reason)
    }
}

impl std::error::Error for PatternError {}

impl NamePattern {
    /// Matches the last components of a path: the file name, and as many directories above it as
    /// the pattern names.
    pub fn matches<'n>(&self, path: &'n Path) -> Option<NameMatch<'n>> {
        matches(self.text.as_bytes(), path.as_os_str().as_bytes())
    }

    /// Matches a bare file name, in any directory.
    pub fn matches_name<'n>(&self, name: &'n OsStr) -> Option<NameMatch<'n>> {
        matches_name(split_last(self.text.as_bytes()).1, name.as_bytes())
    }

    /// Returns the base directory of a matching path: the one above those that the pattern names.
    pub fn base_of<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        self.matches(path)?;
        path.ancestors().nth(directories(self.text.as_bytes()) + 1)
    }

    /// Returns the name of the directory that the file must be in, if the pattern names one without
    /// a `*`.
    pub fn directory(&self) -> Option<&str> {
        let (directory, _) = self.text.rsplit_once('/')?;
        (!directory.contains(['/', '*'])).then_some(directory)
    }

    /// Whether the pattern suits the files of a log: it names at most one directory, without a `*`.
    pub fn is_for_logs(&self) -> bool {
        !self.text.contains('/') || self.directory().is_some()
    }

    /// Returns the pattern as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for NamePattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let refused = |reason| PatternError { pattern: text.to_owned(), reason };
        check(text.as_bytes()).map_err(refused)?;
        Ok(Self { text: text.to_owned() })
    }
}

impl NameMatch<'_> {
    /// Returns the common part of the names of one log: the stem. If no number orders the files,
    /// dates and the numbers of rotated files are removed from it.
    ///
    /// ```
    /// use pagekeeper_policy::names::matches_name;
    ///
    /// let log = |pattern: &[u8], name| matches_name(pattern, name).unwrap().log();
    /// assert_eq!(log(b"*.log*", b"slow.log"), log(b"*.log*", b"slow.log.1"));
    /// assert_ne!(log(b"*.log*", b"slow.log"), log(b"*.log*", b"general.log"));
    /// assert_ne!(log(b"*.{n}", b"relay.000001"), log(b"*.{n}", b"binlog.000001"));
    /// ```
    pub fn log(&self) -> Vec<u8> {
        let stem = self.stem().concat();
        match self.number {
            FileNumber::None => without_rotation(&stem),
            FileNumber::Counted(_) | FileNumber::WalSegment(_) => stem,
        }
    }

    /// Returns the name of the log's index file: the stem, with `index` appended.
    pub fn index_name(&self) -> OsString {
        let mut name = self.stem().concat();
        name.extend_from_slice(b"index");
        OsString::from_vec(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_the_parent_of_the_named_directories() {
        let pattern: NamePattern = "base/*/{n}".parse().unwrap();
        assert_eq!(pattern.base_of(Path::new("/d/base/5/7")), Some(Path::new("/d")));
        assert_eq!(pattern.base_of(Path::new("/d/base/./5//7")), Some(Path::new("/d")));
        assert_eq!(pattern.base_of(Path::new("base/5/7")), Some(Path::new("")));
        assert_eq!(pattern.base_of(Path::new("/d/base/5/x")), None);
        assert!(pattern.matches_name(OsStr::new("7")).is_some());
    }

    #[test]
    fn logs_are_in_one_plain_directory() {
        for (pattern, directory, is_for_logs) in [
            ("{n}", None, true),
            ("base/{n}", Some("base"), true),
            ("base/*/{n}", None, false),
            ("*/{n}", None, false),
        ] {
            let pattern: NamePattern = pattern.parse().unwrap();
            assert_eq!((pattern.directory(), pattern.is_for_logs()), (directory, is_for_logs), "{pattern:?}");
        }
    }

    #[test]
    fn a_refused_pattern_is_named_with_the_reason() {
        let error = "{n}.{n}".parse::<NamePattern>().unwrap_err().to_string();
        assert_eq!(error, "\"{n}.{n}\" is not a file pattern: it has more than one number to order files by");
    }
}
