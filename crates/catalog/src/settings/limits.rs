//! How much is read and kept of settings. Who may start a process may call it `mysqld` and name any files as its
//! settings: huge ones, ones that include each other for ever, one setting a hundred thousand times.
//!
//! Invariant: what was cut is in [`Settings::unread`](super::Settings::unread), once for each kind, and casts doubt on what
//! was read of files.

use std::borrow::Cow;
use std::fmt;

/// Longest settings file that is read, in bytes. Real ones are a few KiB.
pub const LONGEST_FILE: u64 = 1 << 20;
/// Longest file of TOML that is read, in bytes: what it means takes many times its size until it is looked through.
pub(super) const LONGEST_TOML: usize = 256 << 10;
/// No more is read of all files of one database, in bytes.
pub(super) const MAX_BYTES: u64 = 4 << 20;
/// No more files and directories are opened for one database, whether they are there or not.
pub(super) const MAX_OPENED: u32 = 256;
/// No more names are read of all directories of one database. A directory of `RocksDB` may hold very many.
pub(super) const MAX_NAMES: u32 = 1_000_000;
/// The same for who watches many servers and may not take long: none has as many option files.
pub(super) const BRIEF_NAMES: u32 = 10_000;
/// No more of a program is then searched, in bytes.
pub(super) const BRIEF_PROGRAM: u64 = 128 << 20;
/// As deep as servers follow includes: `MySQL` and `MariaDB`, and `PostgreSQL` (`CONF_FILE_MAX_DEPTH`).
pub(super) const DEEPEST: u32 = 10;
/// Longer lines are passed over, in bytes.
const LONGEST_LINE: usize = 16 << 10;
/// Settings with longer names are passed over, in bytes: no engine has one.
pub(super) const LONGEST_NAME: usize = 256;
/// No more memory is taken for the settings of one database that stand in files, in bytes.
pub(super) const MAX_KEPT: usize = 8 << 20;
/// No more for those of all databases, but for [`EACH_KEEPS`] of each.
pub(super) const ALL_KEEP: usize = 64 << 20;
/// So much for each, however many others there are. The options of a usual server are a hundredth of that.
pub(super) const EACH_KEEPS: usize = 256 << 10;
/// No more is listed of what was not read; the rest is counted.
pub(super) const MAX_UNREAD: usize = 20;

/// A limit that was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cut {
    /// A file includes itself, directly or by others.
    Cycle,
    /// Includes of includes of includes.
    Depth,
    /// Too many files and directories.
    Files,
    /// Too much text.
    Bytes,
    /// Too many names in directories.
    Names,
    /// A line or a name is too long.
    Line,
    /// Too many settings, or too long ones.
    Kept,
}

impl Cut {
    /// Whether a setting may have been missed. What is read twice says nothing new.
    pub(super) fn hides(self) -> bool {
        match self {
            Self::Cycle => false,
            Self::Depth | Self::Files | Self::Bytes | Self::Names | Self::Line | Self::Kept => true,
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cycle => f.write_str("it includes itself, and is read once"),
            Self::Depth => write!(f, "includes are followed {DEEPEST} deep, and this one is deeper"),
            Self::Files => {
                write!(f, "no more than {MAX_OPENED} settings files and directories are read of one database")
            }
            Self::Bytes => {
                write!(f, "no more than {MAX_BYTES} bytes of settings files are read of one database")
            }
            Self::Names => f.write_str("there are more names in directories than are read of one database"),
            Self::Line => write!(
                f,
                "lines of more than {LONGEST_LINE} bytes and names of more than {LONGEST_NAME} are passed over"
            ),
            Self::Kept => f.write_str("more settings than are kept of one database"),
        }
    }
}

/// A text without what is in its too long lines, and whether there are any. Lines keep their numbers.
pub(super) fn shortened(text: &str) -> (Cow<'_, str>, bool) {
    let is_short = |line: &str| line.len() <= LONGEST_LINE;
    if text.split('\n').all(is_short) {
        return (Cow::Borrowed(text), false);
    }
    let lines: Vec<&str> = text.split('\n').map(|line| if is_short(line) { line } else { "" }).collect();
    (Cow::Owned(lines.join("\n")), true)
}

/// The beginning of a text, for a sentence.
pub(super) fn beginning(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(60) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_lines_go_and_numbers_stay() {
        let long = "x".repeat(LONGEST_LINE + 1);
        assert_eq!(shortened("a\nb\n"), ("a\nb\n".into(), false));
        assert_eq!(shortened(&format!("a\n{long}\nb\n")), ("a\n\nb\n".into(), true));
        assert!(!shortened(&long[1..]).1);
        assert_eq!(beginning("mysqld-9.1"), "mysqld-9.1");
        assert_eq!(beginning(&"é".repeat(100)), format!("{}…", "é".repeat(60)));
    }
}
