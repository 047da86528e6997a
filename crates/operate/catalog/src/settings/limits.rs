//! Limits on the settings that are read and kept. Whoever may start a process may name it `mysqld`
//! and point it at any settings files: huge ones, ones that include each other forever, or one
//! setting a hundred thousand times.
//!
//! Invariant: every limit that was hit is in [`Settings::unread`](super::Settings::unread), once
//! per kind, and puts the settings read from files in doubt.

use std::borrow::Cow;
use std::fmt;

/// Size limit of a settings file in bytes. Real ones have a few KiB.
pub const SETTINGS_FILE_BYTES_MAX: u64 = 1 << 20;
/// Size limit of a TOML file in bytes: parsing takes many times its size in memory.
pub(super) const TOML_BYTES_MAX: usize = 256 << 10;
/// Limit of bytes read from all files of one database.
pub(super) const READ_BYTES_MAX: u64 = 4 << 20;
/// Limit of files and directories opened for one database, whether they exist or not.
pub(super) const OPENED_FILES_MAX: u32 = 256;
/// Limit of names read from all directories of one database. A directory of `RocksDB` may hold very
/// many.
pub(super) const READ_NAMES_MAX: u32 = 1_000_000;
/// Limit of names for callers that watch many servers and must be quick. No real server has as many
/// option files.
pub(super) const BRIEF_NAMES_MAX: u32 = 10_000;
/// Limit of bytes of a program searched for such callers.
pub(super) const BRIEF_PROGRAM_BYTES_MAX: u64 = 128 << 20;
/// Maximum depth of includes, as in the servers: `MySQL` and `MariaDB`, and `PostgreSQL`
/// (`CONF_FILE_MAX_DEPTH`).
pub(super) const INCLUDE_DEPTH_MAX: u32 = 10;
/// Length limit of a line in bytes; longer ones are skipped.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Length limit of a setting's name in bytes; longer ones are skipped. No engine has one.
pub(super) const SETTING_NAME_BYTES_MAX: usize = 256;
/// Limit of memory for the settings of one database that come from files, in bytes.
pub(super) const KEPT_BYTES_MAX: usize = 8 << 20;
/// Limit of that memory for all databases together; each may still use [`KEPT_BYTES_MIN`].
pub(super) const ALL_KEPT_BYTES_MAX: usize = 64 << 20;
/// Bytes that each database may use however many others there are. An ordinary server's options
/// need a hundredth of that.
pub(super) const KEPT_BYTES_MIN: usize = 256 << 10;
/// Limit of listed entries that were not read; further ones are only counted.
pub(super) const UNREAD_ENTRIES_MAX: usize = 20;

/// A limit that was hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LimitHit {
    /// A file includes itself, directly or through others.
    Cycle,
    /// Includes are nested too deeply.
    Depth,
    /// Too many files and directories.
    Files,
    /// Too much text.
    Bytes,
    /// Too many names in directories.
    Names,
    /// A line or a name is too long.
    Line,
    /// Too many settings, or settings that are too long.
    Kept,
}

impl LimitHit {
    /// Whether a setting may have been missed. A file that is read twice says nothing new.
    pub(super) fn hides(self) -> bool {
        match self {
            Self::Cycle => false,
            Self::Depth | Self::Files | Self::Bytes | Self::Names | Self::Line | Self::Kept => true,
        }
    }
}

impl fmt::Display for LimitHit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cycle => f.write_str("it includes itself, and is read once"),
            Self::Depth => {
                write!(f, "includes are followed {INCLUDE_DEPTH_MAX} deep, and this one is deeper")
            }
            Self::Files => {
                write!(
                    f,
                    "no more than {OPENED_FILES_MAX} settings files and directories are read of one database"
                )
            }
            Self::Bytes => {
                write!(f, "no more than {READ_BYTES_MAX} bytes of settings files are read of one database")
            }
            Self::Names => f.write_str("there are more names in directories than are read of one database"),
            Self::Line => write!(
                f,
                "lines of more than {LINE_BYTES_MAX} bytes and names of more than {SETTING_NAME_BYTES_MAX} are passed over"
            ),
            Self::Kept => f.write_str("more settings than are kept per database"),
        }
    }
}

/// Returns a text with its overlong lines emptied, and whether there were any. Lines keep their
/// numbers.
pub(super) fn without_long_lines(text: &str) -> (Cow<'_, str>, bool) {
    let is_short = |line: &str| line.len() <= LINE_BYTES_MAX;
    if text.split('\n').all(is_short) {
        return (Cow::Borrowed(text), false);
    }
    let lines: Vec<&str> = text.split('\n').map(|line| if is_short(line) { line } else { "" }).collect();
    (Cow::Owned(lines.join("\n")), true)
}

/// Returns the beginning of a text, for a sentence.
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
        let long = "x".repeat(LINE_BYTES_MAX + 1);
        assert_eq!(without_long_lines("a\nb\n"), ("a\nb\n".into(), false));
        assert_eq!(without_long_lines(&format!("a\n{long}\nb\n")), ("a\n\nb\n".into(), true));
        assert!(!without_long_lines(&long[1..]).1);
        assert_eq!(beginning("mysqld-9.1"), "mysqld-9.1");
        assert_eq!(beginning(&"é".repeat(100)), format!("{}…", "é".repeat(60)));
    }
}
