//! Reads the configuration files that a user names: profiles, the guard's options, disk profiles.
//!
//! Invariants: only regular files are read, without blocking, and at most [`CONFIG_BYTES_MAX`]
//! bytes. An error quotes at most [`QUOTED_CHARACTERS_MAX`] characters of a line, and says at most
//! [`ERROR_CHARACTERS_MAX`] characters about it, both escaped. Errors are [`ProfileError`]s that
//! name the file.

use std::path::Path;

use pagekeeper_kernel::{Error, read_named};
use pagekeeper_text::escaped;
use serde::de::DeserializeOwned;

use crate::ProfileError;

/// Size limit of a configuration file in bytes. Real ones have a few KiB.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of characters that an error quotes from a line.
const QUOTED_CHARACTERS_MAX: usize = 160;

/// Maximum number of characters of an error about a line: room for the names of all keys.
const ERROR_CHARACTERS_MAX: usize = 1000;

/// Reads a whole configuration file.
pub fn read_config(path: &Path) -> Result<String, ProfileError> {
    let bytes = read_named(path, CONFIG_BYTES_MAX).map_err(|error| refusal(path, error))?;
    utf8(bytes).map_err(|message| text_error(path, message))
}

/// Converts the bytes of a configuration file to text.
#[allow(clippy::disallowed_methods, reason = "the text of a configuration, no name of a file")]
pub(crate) fn utf8(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|_| "not UTF-8 text".to_owned())
}

/// Parses TOML; `path` is used in errors.
pub fn parse_config<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, ProfileError> {
    toml::from_str(text).map_err(|error| text_error(path, quoted(&error)))
}

/// Formats a TOML error, with the quoted lines cut and escaped.
pub(crate) fn quoted(error: &toml::de::Error) -> String {
    let text = error.to_string();
    let cut = |line: &str| {
        let characters_max = if line.contains(" | ") { QUOTED_CHARACTERS_MAX } else { ERROR_CHARACTERS_MAX };
        match line.char_indices().nth(characters_max) {
            Some((end, _)) => format!("{}…", escaped(&line[..end])),
            None => escaped(line).to_string(),
        }
    };
    let lines = text.lines().map(cut);
    lines.collect::<Vec<_>>().join("\n")
}

fn refusal(path: &Path, error: Error) -> ProfileError {
    match error {
        Error::Call { source, .. } => ProfileError::Io { path: path.to_path_buf(), source },
        Error::NotRegular { found, .. } => text_error(path, format!("{found}, not a regular file")),
        Error::TooLong { limit, .. } => text_error(path, format!("longer than {limit} bytes")),
        other => text_error(path, other.to_string()),
    }
}

fn text_error(path: &Path, message: String) -> ProfileError {
    ProfileError::Text { path: path.to_path_buf(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) -> String {
        read_config(path).unwrap_err().to_string()
    }

    #[test]
    fn files_that_are_no_configuration_are_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(refused(&fifo), format!("{}: a FIFO, not a regular file", fifo.display()));
        assert_eq!(refused(Path::new("/dev/zero")), "/dev/zero: a character device, not a regular file");
        let long = dir.path().join("long");
        std::fs::write(&long, vec![b'#'; (CONFIG_BYTES_MAX + 1).try_into().unwrap()]).unwrap();
        assert_eq!(refused(&long), format!("{}: longer than 1048576 bytes", long.display()));
        std::fs::write(&long, [0xff, 0xfe, b'a']).unwrap();
        assert_eq!(refused(&long), format!("{}: not UTF-8 text", long.display()));
        assert!(refused(&dir.path().join("no")).contains("No such file"));
    }

    #[test]
    fn an_error_quotes_a_long_line_in_part_and_escaped() {
        let text = format!("name = \"{}\u{1b}[2J\"", "x".repeat(100_000));
        let error = parse_config::<toml::Table>(&text, Path::new("p.toml")).unwrap_err().to_string();
        assert!(error.len() < 1000, "{} bytes", error.len());
        assert!(!error.contains('\u{1b}'), "{error:?}");
        let error = parse_config::<toml::Table>("a = \u{1b}", Path::new("p.toml")).unwrap_err().to_string();
        assert!(!error.contains('\u{1b}'), "{error:?}");
    }
}
