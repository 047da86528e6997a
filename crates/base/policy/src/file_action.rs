//! The treatment of a file in a process that sees each of its own calls, and its text in the
//! settings of such a process.

use core::fmt;

use crate::{BulkPages, RewriteSource, Rule};

/// The treatment of a file.
///
/// ```
/// use pagekeeper_policy::file_action::FileAction;
///
/// let data = FileAction::Data { direct_only: true };
/// assert_eq!(FileAction::from_line(b"data direct-only *.ibd"), Some((data, &b"*.ibd"[..])));
/// assert_eq!(data.to_string(), "data direct-only");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileAction {
    /// A log: released behind the flush.
    Log {
        /// The rule for its release.
        rule: Rule,
        /// The way in which its writer overwrites pages.
        rewrite: RewriteSource,
    },
    /// Bulk output: written behind the writer, which waits for it.
    Bulk(BulkPages),
    /// Data that may be used by direct and by buffered I/O.
    Data {
        /// Whether a program that uses it by direct I/O reads it by that only: then resident pages
        /// are leftovers, and go. Otherwise they stay, since the program may read them again.
        direct_only: bool,
    },
    /// Nothing is done.
    Leave,
}

/// The word for data that its users read by direct I/O only.
const DIRECT_ONLY: &str = "direct-only";
/// The word for data that its users may also read through the page cache.
const DIRECT_AND_BUFFERED: &str = "direct-and-buffered";

impl FileAction {
    /// Parses the words at the start of a line; returns the rest of the line too. `None` if they
    /// are not understood.
    pub fn from_line(line: &[u8]) -> Option<(Self, &[u8])> {
        let (word, rest) = split_word(line);
        match word {
            b"log" => {
                let (rule, rest) = split_word(rest);
                let (rewrite, rest) = split_word(rest);
                let (rule, rewrite) = (Rule::from_text(rule)?, RewriteSource::from_text(rewrite)?);
                Some((Self::Log { rule, rewrite }, rest))
            }
            b"bulk" => {
                let (pages, rest) = split_word(rest);
                Some((Self::Bulk(BulkPages::from_text(pages)?), rest))
            }
            b"data" => {
                let (word, rest) = split_word(rest);
                let direct_only = word == DIRECT_ONLY.as_bytes();
                let is_known = direct_only || word == DIRECT_AND_BUFFERED.as_bytes();
                is_known.then_some((Self::Data { direct_only }, rest))
            }
            b"leave" => Some((Self::Leave, rest)),
            _ => None,
        }
    }
}

impl fmt::Display for FileAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log { rule, rewrite } => write!(f, "log {rule} {rewrite}"),
            Self::Bulk(pages) => write!(f, "bulk {pages}"),
            Self::Data { direct_only: true } => write!(f, "data {DIRECT_ONLY}"),
            Self::Data { direct_only: false } => write!(f, "data {DIRECT_AND_BUFFERED}"),
            Self::Leave => f.write_str("leave"),
        }
    }
}

/// Splits a line behind its first word.
pub fn split_word(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|&byte| byte == b' ') {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => (line, b""),
    }
}
